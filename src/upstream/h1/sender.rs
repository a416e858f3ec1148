//! Writes the rest of a request, possibly while its response is already arriving.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::io::AsyncWrite;

use crate::http1::{self, Framing};
use crate::request_body::RequestBody;
use crate::transport::Transport;

/// The part of the request body that has not been encoded yet.
enum Rest {
    /// The end of the request has been encoded.
    Nothing,
    /// Waits for `100 Continue`. Once the head has announced these bytes, the server relies on them.
    Held(RequestBody),
    Flowing(RequestBody),
}

/// The last chunk, until it is written.
struct LastChunk {
    encoded: Vec<u8>,
    /// These fields hold the charge for the encoded ones.
    _charged: Option<HeaderMap>,
}

impl AsRef<[u8]> for LastChunk {
    fn as_ref(&self) -> &[u8] {
        &self.encoded
    }
}

/// The rest of a request to write.
pub(super) struct Sender {
    pending: VecDeque<Bytes>,
    rest: Rest,
    /// Bytes that the head announced and the body has not yet delivered; `None` if the body is chunked.
    owed: Option<u64>,
    /// Bytes that the transport has accepted.
    written: u64,
    /// Why nothing more can be written. The model server may still respond, for example to a body that is too large.
    broken: Option<io::Error>,
    /// The client aborted its body: there is nothing more to send and no response to wait for.
    abandoned: bool,
}

impl Sender {
    /// The rest of a request whose head announced `framing`. `written` bytes have been written, and `first` is encoded but not
    /// written. `body` follows immediately, or after `100 Continue` if it `waits`. Without a body, only `first` is left.
    pub(super) fn new(
        written: usize,
        first: Bytes,
        body: Option<RequestBody>,
        framing: Framing,
        waits: bool,
    ) -> Self {
        let owed = match (&body, framing) {
            (Some(_), Framing::Chunked) => None,
            (Some(_), Framing::Length(length)) => Some(length),
            _ => Some(0),
        };
        Self {
            pending: (!first.is_empty()).then_some(first).into_iter().collect(),
            rest: match body {
                None => Rest::Nothing,
                Some(body) if waits => Rest::Held(body),
                Some(body) => Rest::Flowing(body),
            },
            owed,
            written: written as u64,
            broken: None,
            abandoned: false,
        }
    }

    /// Writes what can be written. Ready when there is nothing more to do, whether or not everything was written.
    pub(super) fn poll(&mut self, transport: &mut Transport, cx: &mut Context<'_>) -> Poll<()> {
        if self.broken.is_some() {
            return Poll::Ready(());
        }
        loop {
            if let Err(error) = ready!(self.poll_flush(transport, cx)) {
                self.broken = Some(error);
                return Poll::Ready(());
            }
            let Rest::Flowing(body) = &mut self.rest else {
                return Poll::Ready(());
            };
            let composed = match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => self.push(frame),
                Some(Err(error)) => Err(io::Error::other(error)),
                None => self.finish(None),
            };
            if let Err(error) = composed {
                self.broken = Some(error);
                self.abandoned = true;
                return Poll::Ready(());
            }
        }
    }

    fn push(&mut self, frame: Frame<Bytes>) -> io::Result<()> {
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => match &mut self.owed {
                None => {
                    let mut head = Vec::with_capacity(18);
                    http1::chunk_head(&mut head, data.len());
                    self.pending
                        .extend([head.into(), data, Bytes::from_static(http1::CHUNK_END)]);
                }
                Some(owed) => {
                    *owed = owed
                        .checked_sub(data.len() as u64)
                        .ok_or_else(|| io::Error::other("the body is longer than announced"))?;
                    self.pending.push_back(data);
                }
            },
            Err(frame) => return self.finish(frame.into_trailers().ok()),
        }
        Ok(())
    }

    /// Encodes the end of the body.
    fn finish(&mut self, trailers: Option<HeaderMap>) -> io::Result<()> {
        match self.owed {
            None => {
                let mut encoded = Vec::new();
                http1::last_chunk(&mut encoded, trailers.as_ref());
                let last = LastChunk {
                    encoded,
                    _charged: trailers,
                };
                self.pending.push_back(Bytes::from_owner(last));
            }
            Some(0) => {}
            Some(_) => return Err(io::Error::other("the body is shorter than announced")),
        }
        self.rest = Rest::Nothing;
        Ok(())
    }

    fn poll_flush(
        &mut self,
        transport: &mut Transport,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(first) = self.pending.front() {
            let written = if self.pending.len() == 1 {
                Pin::new(&mut *transport).poll_write(cx, first)
            } else {
                // A chunk with its head and end.
                let mut slices = [IoSlice::new(&[]); 3];
                for (slice, piece) in slices.iter_mut().zip(&self.pending) {
                    *slice = IoSlice::new(piece);
                }
                Pin::new(&mut *transport).poll_write_vectored(cx, &slices)
            };
            self.consume(ready!(written)?);
        }
        match transport {
            Transport::Tcp(_) => Poll::Ready(Ok(())),
            Transport::Tls(_) => Pin::new(transport).poll_flush(cx),
        }
    }

    /// Drops the bytes that were written from what is pending.
    fn consume(&mut self, mut written: usize) {
        self.written += written as u64;
        while let Some(first) = self.pending.front_mut() {
            let here = written.min(first.len());
            first.advance(here);
            written -= here;
            if !first.is_empty() {
                return;
            }
            self.pending.pop_front();
        }
    }

    /// Whether the body is waiting for `100 Continue`.
    pub(super) const fn is_held(&self) -> bool {
        matches!(self.rest, Rest::Held(_))
    }

    /// Releases a held body: the model server requested it, or did not respond to the expectation in time.
    pub(super) fn release_body(&mut self) {
        self.rest = match std::mem::replace(&mut self.rest, Rest::Nothing) {
            Rest::Held(body) => Rest::Flowing(body),
            rest => rest,
        };
    }

    /// Whether the whole request was written, as announced by its head. Otherwise the connection cannot be reused: the server
    /// would read the next request as the rest of this body (RFC 9112 §9.3).
    pub(super) fn is_done(&self) -> bool {
        matches!(self.rest, Rest::Nothing) && self.pending.is_empty() && self.broken.is_none()
    }

    /// Bytes that the transport has accepted.
    pub(super) const fn written(&self) -> u64 {
        self.written
    }

    /// Whether the client aborted its body.
    pub(super) const fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Takes the reason why nothing more can be written, if any. The sender stays broken.
    pub(super) fn error(&mut self) -> Option<io::Error> {
        let broken = self.broken.as_mut()?;
        Some(std::mem::replace(broken, io::ErrorKind::Other.into()))
    }

    /// The part of the body that has not been encoded yet.
    pub(super) fn into_rest(self) -> Option<RequestBody> {
        match self.rest {
            Rest::Nothing => None,
            Rest::Held(body) | Rest::Flowing(body) => Some(body),
        }
    }
}
