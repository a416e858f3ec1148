//! What a client is sent: the head with the first bytes that are there, then each batch of bytes in one write.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use http::{HeaderMap, StatusCode, Version};
use http_body::{Body, Frame};
use tokio::io::AsyncWrite;

use super::Gone;
use crate::http1::{self, Framing};
use crate::proxy::body::SplitBody;
use crate::transport::{Transport, with_write_buffer};

/// Bytes that are gathered for one write, as long as they are there without waiting.
const BATCH: usize = 32 * 1024;

/// Room for a head, in bytes.
const HEAD: usize = 512;

/// How an answer ended on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Clean,
    /// The body broke: the connection must end without the mark of a clean end.
    Cut,
}

/// The writing side of a connection.
#[derive(Default)]
pub struct Outbound {
    /// Composed, but not taken by the socket yet.
    pending: Vec<u8>,
    written: usize,
    /// The head is composed, and goes out together with what the body has at once.
    head_waits: bool,
    framing: Option<Framing>,
    end: Option<End>,
}

impl Outbound {
    /// Begins an answer: composes its head. True when the connection may carry another one after it.
    pub fn begin(
        &mut self,
        version: Version,
        parts: &Parts,
        body: &SplitBody,
        is_head: bool,
        persists: bool,
    ) -> bool {
        let framing = framing(version, parts, body, is_head);
        let persists = persists && framing != Framing::UntilClose;
        let shown = match framing {
            // The lengths of what has no body on the wire: the head's own, or none.
            Framing::None if !is_head && has_a_length(parts.status) => Framing::Length(0),
            other => other,
        };
        // One allocation for nearly all heads.
        self.pending.reserve(HEAD);
        let close = !persists && parts.status != StatusCode::SWITCHING_PROTOCOLS;
        http1::response_head(
            &mut self.pending,
            version,
            parts.status,
            &parts.headers,
            shown,
            close,
        );
        self.end = (framing == Framing::None).then_some(End::Clean);
        self.framing = Some(framing);
        self.head_waits = true;
        persists
    }

    /// Bytes to go out before anything else.
    pub fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Writes what is pending.
    pub fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut Transport,
    ) -> Poll<Result<(), Gone>> {
        while self.written < self.pending.len() {
            let rest = &self.pending[self.written..];
            match ready!(Pin::new(&mut *transport).poll_write(cx, rest)) {
                Ok(0) | Err(_) => return Poll::Ready(Err(Gone)),
                Ok(length) => self.written += length,
            }
        }
        if !self.pending.is_empty() {
            // An idle stream keeps no buffer.
            self.pending = Vec::new();
            self.written = 0;
        }
        poll_flush_tls(cx, transport)
    }

    /// Writes the answer as its body comes, to its end.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut Transport,
        body: &mut SplitBody,
    ) -> Poll<Result<End, Gone>> {
        loop {
            if !self.head_waits {
                ready!(self.poll_flush(cx, transport))?;
                if let Some(end) = self.end {
                    return Poll::Ready(Ok(end));
                }
            }
            let waits = with_write_buffer(|batch| {
                self.head_waits = false;
                batch.extend_from_slice(&self.pending[self.written..]);
                self.pending = Vec::new();
                self.written = 0;
                let waits = self.gather(cx, body, batch);
                self.write(cx, transport, batch)?;
                Ok(waits)
            })?;
            if waits && self.pending.is_empty() {
                ready!(poll_flush_tls(cx, transport))?;
                return Poll::Pending;
            }
        }
    }

    /// Composes what the body has without waiting. True when it has to be waited for.
    fn gather(&mut self, cx: &mut Context<'_>, body: &mut SplitBody, batch: &mut Vec<u8>) -> bool {
        while self.end.is_none() && batch.len() < BATCH {
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => return true,
                Poll::Ready(Some(Ok(frame))) => {
                    self.encode(frame, batch);
                    if self.end.is_none() && body.is_end_stream() {
                        self.finish(batch, None);
                    }
                }
                Poll::Ready(Some(Err(_))) => self.end = Some(End::Cut),
                Poll::Ready(None) => self.finish(batch, None),
            }
        }
        false
    }

    fn encode(&mut self, frame: Frame<Bytes>, batch: &mut Vec<u8>) {
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                let trailers = frame.into_trailers().ok();
                return self.finish(batch, trailers.as_ref());
            }
        };
        match &mut self.framing {
            // An empty chunk would be the last one.
            Some(Framing::Chunked) if !data.is_empty() => {
                http1::chunk_head(batch, data.len());
                batch.extend_from_slice(&data);
                http1::chunk_end(batch);
            }
            Some(Framing::Length(left)) => {
                let here = data.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                batch.extend_from_slice(&data[..here]);
                *left -= here as u64;
                if here < data.len() {
                    self.end = Some(End::Cut);
                }
            }
            Some(Framing::UntilClose) => batch.extend_from_slice(&data),
            _ => {}
        }
    }

    fn finish(&mut self, batch: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
        self.end = Some(match self.framing {
            Some(Framing::Chunked) => {
                http1::last_chunk(batch, trailers);
                End::Clean
            }
            // A body shorter than its length is not whole.
            Some(Framing::Length(1..)) => End::Cut,
            _ => End::Clean,
        });
    }

    /// Writes a batch; what the socket does not take stays pending.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut Transport,
        mut batch: &[u8],
    ) -> Result<(), Gone> {
        while !batch.is_empty() {
            match Pin::new(&mut *transport).poll_write(cx, batch) {
                Poll::Ready(Ok(0) | Err(_)) => return Err(Gone),
                Poll::Ready(Ok(length)) => batch.advance(length),
                Poll::Pending => {
                    self.pending = batch.to_vec();
                    break;
                }
            }
        }
        Ok(())
    }
}

fn poll_flush_tls(cx: &mut Context<'_>, transport: &mut Transport) -> Poll<Result<(), Gone>> {
    match transport {
        Transport::Tcp(_) => Poll::Ready(Ok(())),
        Transport::Tls(_) => {
            let flushed = ready!(Pin::new(transport).poll_flush(cx));
            Poll::Ready(flushed.map_err(|_| Gone))
        }
    }
}

fn framing(version: Version, parts: &Parts, body: &SplitBody, is_head: bool) -> Framing {
    if is_head || !has_a_length(parts.status) {
        return Framing::None;
    }
    if let Some(length) = body.size_hint().exact() {
        return match length {
            0 => Framing::None,
            length => Framing::Length(length),
        };
    }
    if let Some(length) = parts.headers.get(CONTENT_LENGTH)
        && let Some(length) = length.to_str().ok().and_then(|text| text.parse().ok())
    {
        return Framing::Length(length);
    }
    match version {
        Version::HTTP_10 => Framing::UntilClose,
        _ => Framing::Chunked,
    }
}

/// RFC 9110 §8.6: these have no content, and no `Content-Length` of 0 either.
fn has_a_length(status: StatusCode) -> bool {
    !status.is_informational()
        && status != StatusCode::NO_CONTENT
        && status != StatusCode::NOT_MODIFIED
}
