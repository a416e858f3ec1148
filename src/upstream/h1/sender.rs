//! What is still to be written of a request, while its answer may already be coming.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame};
use tokio::io::AsyncWrite;

use crate::http1;
use crate::request_body::RequestBody;
use crate::transport::Transport;

/// What is still to be written of a request.
pub(super) struct Sender {
    pub(super) pending: VecDeque<Bytes>,
    pub(super) body: Option<RequestBody>,
    pub(super) chunked: bool,
    /// The model server no longer reads. It may still answer, as it does to a body that is too large.
    pub(super) broken: Option<io::Error>,
    /// The client broke its body off: there is nothing more to send, and no answer to wait for.
    pub(super) abandoned: bool,
}

impl Sender {
    pub(super) fn poll(&mut self, transport: &mut Transport, cx: &mut Context<'_>) -> Poll<()> {
        if self.broken.is_some() {
            return Poll::Ready(());
        }
        loop {
            if let Err(error) = ready!(self.poll_flush(transport, cx)) {
                self.broken = Some(error);
                return Poll::Ready(());
            }
            let Some(body) = &mut self.body else {
                return Poll::Ready(());
            };
            match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                Some(Ok(frame)) => self.push(frame),
                Some(Err(error)) => {
                    self.broken = Some(io::Error::other(error));
                    self.abandoned = true;
                    return Poll::Ready(());
                }
                None => {
                    self.body = None;
                    if self.chunked {
                        self.pending.push_back(Bytes::from_static(b"0\r\n\r\n"));
                    }
                }
            }
        }
    }

    fn push(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) if self.chunked => {
                let mut head = Vec::with_capacity(18);
                http1::chunk_head(&mut head, data.len());
                self.pending
                    .extend([head.into(), data, Bytes::from_static(http1::CHUNK_END)]);
            }
            Ok(data) => self.pending.push_back(data),
            Err(frame) => {
                if let (true, Ok(trailers)) = (self.chunked, frame.into_trailers()) {
                    let mut last = Vec::new();
                    http1::last_chunk(&mut last, Some(&trailers));
                    self.pending.push_back(last.into());
                    self.body = None;
                }
            }
        }
    }

    fn poll_flush(
        &mut self,
        transport: &mut Transport,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(first) = self.pending.front_mut() {
            let written = ready!(Pin::new(&mut *transport).poll_write(cx, first))?;
            first.advance(written);
            if first.is_empty() {
                self.pending.pop_front();
            }
        }
        match transport {
            Transport::Tcp(_) => Poll::Ready(Ok(())),
            Transport::Tls(_) => Pin::new(transport).poll_flush(cx),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.body.is_none() && self.pending.is_empty() && self.broken.is_none()
    }
}
