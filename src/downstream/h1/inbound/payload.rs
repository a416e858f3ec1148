//! Finds the end of a request body by its framing (RFC 9112 §6).

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use http::HeaderMap;
use http_body::SizeHint;

use crate::downstream::refusal::{BAD_CHUNK, Refusal};
use crate::http1::{Chunked, Framing};
use crate::memory::Budget;

/// The unread rest of a body.
pub enum Payload {
    None,
    /// This many bytes.
    Length(u64),
    Chunked(Chunked),
}

impl Payload {
    pub fn of(framing: Framing) -> Self {
        match framing {
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(Chunked::default()),
            Framing::None | Framing::UntilClose => Self::None,
        }
    }

    /// Removes the bytes of this body from `read` and returns the payload among them.
    ///
    /// # Errors
    /// A malformed chunk.
    pub fn split(&mut self, read: &mut BytesMut) -> Result<BytesMut, Refusal> {
        match self {
            Self::None => Ok(BytesMut::new()),
            Self::Length(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
                *left -= here as u64;
                Ok(read.split_to(here))
            }
            Self::Chunked(chunked) => {
                let decoded = chunked.decode(read).map_err(|_| BAD_CHUNK)?;
                let mut payload = read.split_to(decoded.consumed);
                payload.truncate(decoded.payload.end);
                payload.advance(decoded.payload.start);
                Ok(payload)
            }
        }
    }

    /// Whether a malformed chunk follows the payload that was taken last.
    pub fn is_broken(&self) -> bool {
        match self {
            Self::Chunked(chunked) => chunked.failure().is_some(),
            Self::None | Self::Length(_) => false,
        }
    }

    /// Charges the trailer section, as far as it has arrived. Returns false if `memory` has no room.
    #[must_use]
    pub fn charge_trailers(&mut self, memory: &Arc<Budget>) -> bool {
        match self {
            Self::Chunked(chunked) => chunked.charge_trailers(memory),
            Self::None | Self::Length(_) => true,
        }
    }

    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        match self {
            Self::Chunked(chunked) => chunked.take_trailers(),
            Self::None | Self::Length(_) => None,
        }
    }

    /// Whether the whole body was read.
    pub fn is_read(&self) -> bool {
        match self {
            Self::None | Self::Length(0) => true,
            Self::Length(_) => false,
            Self::Chunked(chunked) => chunked.is_done(),
        }
    }
}

/// The length of a body with this framing, in bytes, as far as its head declares it.
pub fn length(framing: Framing) -> SizeHint {
    match framing {
        Framing::Length(length) => SizeHint::with_exact(length),
        _ => SizeHint::default(),
    }
}
