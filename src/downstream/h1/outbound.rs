//! The writing side of an HTTP/1.1 connection: the response head with the first available bytes of the body, then each
//! batch of bytes in one write.

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use http::{HeaderMap, StatusCode, Version};
use http_body::{Body, Frame};
use tokio::io::AsyncWrite;

use super::super::refusal::NO_MEMORY;
use super::ClientGone;
use crate::http1::{self, Framing};
use crate::memory::{Budget, Charge, Purpose, holding_cost};
use crate::proxy::SplitBody;
use crate::transport::with_write_buffer;
use crate::transport::write_timeout::WriteTimeout;

/// Size of a batch, in bytes. A batch is gathered from data that is available without waiting.
const BATCH: usize = 32 * 1024;

/// Data of at least this length, in bytes, is written in place instead of being copied into the batch. Copying less is cheaper
/// than another slice in a vectored write. Copying more can be slow: on AMD Zen 4 a copy can take up to fifty times as long if
/// the destination lies slightly behind the source, modulo 4 KiB (glibc bug 30994).
const LARGE: usize = 2048;

/// Initial capacity for a head, in bytes.
const HEAD: usize = 512;

/// How a response ended on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Clean,
    /// The body failed: the connection must end without the mark of a clean end.
    Cut,
}

/// Bytes for one write.
struct Batch<'a> {
    composed: &'a mut Vec<u8>,
    /// Large data that follows `composed`, not copied, and the end of its chunk.
    large: Bytes,
    chunk_end: &'static [u8],
}

impl Batch<'_> {
    fn is_full(&self) -> bool {
        self.composed.len() >= BATCH || !self.large.is_empty()
    }

    fn add(&mut self, data: Bytes) {
        if data.len() < LARGE {
            self.composed.extend_from_slice(&data);
        } else {
            self.large = data;
        }
    }
}

/// The writing side of a connection.
pub struct Outbound {
    memory: Arc<Budget>,
    /// Charge for the bytes that the socket has not accepted yet.
    charge: Charge,
    /// Composed bytes that the socket has not accepted yet.
    pending: Vec<u8>,
    written: usize,
    /// The head is composed and goes out with the first available bytes of the body.
    head_waits: bool,
    framing: Option<Framing>,
    end: Option<End>,
}

impl Outbound {
    /// Has nothing to write yet. Charges what it will hold to `memory`.
    pub fn new(memory: &Arc<Budget>) -> Self {
        Self {
            memory: Arc::clone(memory),
            charge: Charge::default(),
            pending: Vec::new(),
            written: 0,
            head_waits: false,
            framing: None,
            end: None,
        }
    }

    /// Begins a response: composes its head. Returns true if the connection can be reused afterwards.
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
            // A response without a body on the wire: to HEAD, the head's own `Content-Length`; otherwise 0, where one
            // is allowed.
            Framing::None if !is_head && has_a_length(parts.status) => Framing::Length(0),
            other => other,
        };
        // One allocation is enough for nearly all heads.
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

    /// Whether there are bytes that the client has not received yet.
    pub fn is_blocked(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether the end of the connection marks the end of the response.
    pub fn ends_with_connection(&self) -> bool {
        self.framing == Some(Framing::UntilClose)
    }

    /// Bytes to send before anything else.
    pub fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Writes the pending bytes.
    pub fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut WriteTimeout,
    ) -> Poll<Result<(), ClientGone>> {
        while self.written < self.pending.len() {
            let rest = &self.pending[self.written..];
            match ready!(Pin::new(&mut *transport).poll_write(cx, rest)) {
                Ok(0) | Err(_) => return Poll::Ready(Err(ClientGone)),
                Ok(length) => self.written += length,
            }
        }
        if !self.pending.is_empty() {
            // Idle streams keep no buffer.
            self.pending = Vec::new();
            self.written = 0;
            self.charge.shrink(0);
        }
        poll_flush_tls(cx, transport)
    }

    /// Writes the response as its body arrives, until it ends.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut WriteTimeout,
        body: &mut SplitBody,
    ) -> Poll<Result<End, ClientGone>> {
        loop {
            if !self.head_waits {
                ready!(self.poll_flush(cx, transport))?;
                if let Some(end) = self.end {
                    return Poll::Ready(Ok(end));
                }
            }
            let waits = with_write_buffer(|composed| {
                self.head_waits = false;
                composed.extend_from_slice(&self.pending[self.written..]);
                self.pending = Vec::new();
                self.written = 0;
                let mut batch = Batch {
                    composed,
                    large: Bytes::new(),
                    chunk_end: b"",
                };
                let waits = self.gather(cx, body, &mut batch);
                if !self.write(cx, transport, &batch)? {
                    body.because(NO_MEMORY.message);
                    body.not_delivered();
                    self.end = Some(End::Cut);
                    return Ok(false);
                }
                Ok(waits)
            })?;
            if waits && self.pending.is_empty() {
                ready!(poll_flush_tls(cx, transport))?;
                return Poll::Pending;
            }
        }
    }

    /// Composes the available part of the body without waiting. Returns true if the body is pending.
    fn gather(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut SplitBody,
        batch: &mut Batch<'_>,
    ) -> bool {
        while self.end.is_none() && !batch.is_full() {
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => return true,
                Poll::Ready(Some(Ok(frame))) => {
                    self.encode(frame, batch);
                    // Nothing can be composed behind large data, because it would be sent first.
                    if self.end.is_none() && batch.large.is_empty() && body.is_end_stream() {
                        self.finish(batch.composed, None);
                    }
                }
                Poll::Ready(Some(Err(_))) => self.end = Some(End::Cut),
                Poll::Ready(None) => self.finish(batch.composed, None),
            }
        }
        false
    }

    fn encode(&mut self, frame: Frame<Bytes>, batch: &mut Batch<'_>) {
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                let trailers = frame.into_trailers().ok();
                return self.finish(batch.composed, trailers.as_ref());
            }
        };
        match &mut self.framing {
            // An empty chunk would end the body.
            Some(Framing::Chunked) if !data.is_empty() => {
                http1::chunk_head(batch.composed, data.len());
                batch.add(data);
                if batch.large.is_empty() {
                    batch.composed.extend_from_slice(http1::CHUNK_END);
                } else {
                    batch.chunk_end = http1::CHUNK_END;
                }
            }
            Some(Framing::Length(left)) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX);
                if here < data.len() {
                    self.end = Some(End::Cut);
                    data.truncate(here);
                }
                *left -= data.len() as u64;
                batch.add(data);
            }
            Some(Framing::UntilClose) => batch.add(data),
            _ => {}
        }
    }

    fn finish(&mut self, batch: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
        self.end = Some(match self.framing {
            Some(Framing::Chunked) => {
                http1::last_chunk(batch, trailers);
                End::Clean
            }
            // A body shorter than its length is incomplete.
            Some(Framing::Length(1..)) => End::Cut,
            _ => End::Clean,
        });
    }

    /// Writes a batch. Bytes that the socket does not accept stay pending. Returns false if the memory budget has no room for them.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut WriteTimeout,
        batch: &Batch<'_>,
    ) -> Result<bool, ClientGone> {
        let mut pieces = [&batch.composed[..], &batch.large, batch.chunk_end].map(IoSlice::new);
        let count = match (batch.large.len(), batch.chunk_end.len()) {
            (0, _) => 1,
            (_, 0) => 2,
            _ => 3,
        };
        let mut left = &mut pieces[..count];
        // Skips an empty first slice.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let written = match &*left {
                // A plain write is cheaper for a single slice.
                [first] => Pin::new(&mut *transport).poll_write(cx, first),
                pieces => Pin::new(&mut *transport).poll_write_vectored(cx, pieces),
            };
            match written {
                Poll::Ready(Ok(0) | Err(_)) => return Err(ClientGone),
                Poll::Ready(Ok(length)) => IoSlice::advance_slices(&mut left, length),
                Poll::Pending => {
                    let length = left.iter().map(|piece| piece.len()).sum();
                    // The data has already been read.
                    let held = holding_cost(length);
                    if !self.charge.overdraw(&self.memory, held, Purpose::Answer) {
                        return Ok(false);
                    }
                    self.pending.reserve_exact(length);
                    for piece in left {
                        self.pending.extend_from_slice(piece);
                    }
                    break;
                }
            }
        }
        Ok(true)
    }
}

fn poll_flush_tls(
    cx: &mut Context<'_>,
    transport: &mut WriteTimeout,
) -> Poll<Result<(), ClientGone>> {
    if !transport.is_tls() {
        return Poll::Ready(Ok(()));
    }
    let flushed = ready!(Pin::new(transport).poll_flush(cx));
    Poll::Ready(flushed.map_err(|_| ClientGone))
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

/// Whether a response with this status has a content length. RFC 9110 §8.6: the others have no content, and no
/// `Content-Length: 0` either.
fn has_a_length(status: StatusCode) -> bool {
    !status.is_informational()
        && status != StatusCode::NO_CONTENT
        && status != StatusCode::NOT_MODIFIED
}
