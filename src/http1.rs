//! HTTP/1.1 message syntax (RFC 9112) over byte slices: heads and chunked framing, both directions.
//!
//! The grammar of a head is `httparse`'s; what is added here is what a proxy must be strict about (§11.2): one length,
//! one host, no repair. Knows no socket, no clock and no policy.

mod chunked;
mod encode;
mod request;
mod response;

pub use chunked::{ChunkError, Chunked, Decoded};
pub use encode::{chunk_end, chunk_head, last_chunk, request_head, response_head};
pub use request::{HeadError, RequestHead, host_is_valid, parse_request};
pub use response::{ResponseError, ResponseHead, parse_response};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Most header lines that a head may hold. Dynamo's frontends take 100.
pub const MAX_HEADERS: usize = 128;

/// How the end of a message's body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body at all.
    None,
    /// `Content-Length`, in bytes.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// A response that ends when its connection does.
    UntilClose,
}

/// Builds the map from what `httparse` found in `head`, of which `copy` is a copy: it backs all values.
fn header_map(found: &[httparse::Header<'_>], head: &[u8], copy: &Bytes) -> Option<HeaderMap> {
    let mut map = HeaderMap::with_capacity(found.len() + 6);
    for header in found {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        let value = if header.value.is_empty() {
            HeaderValue::from_static("")
        } else {
            HeaderValue::from_maybe_shared(part(copy, head, header.value)).ok()?
        };
        map.append(name, value);
    }
    Some(map)
}

/// The part of `copy` that `part` is of `head`.
fn part(copy: &Bytes, head: &[u8], part: &[u8]) -> Bytes {
    let start = part.as_ptr() as usize - head.as_ptr() as usize;
    copy.slice(start..start + part.len())
}

/// True where every CR stands before an LF and every LF behind a CR: a lone one is where two parsers disagree about lines.
fn line_ends_are_crlf(head: &[u8]) -> bool {
    let mut next = 0;
    for at in memchr::memchr2_iter(b'\r', b'\n', head) {
        if at < next {
            continue;
        }
        if head[at] == b'\n' || head.get(at + 1) != Some(&b'\n') {
            return false;
        }
        next = at + 2;
    }
    true
}

/// `1*DIGIT` that fits (RFC 9110 §8.6): no sign, no list, no white space.
fn content_length(value: &HeaderValue) -> Option<u64> {
    let digits = value.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The lengths of a head's field names. Asking a map for a name costs a hash; most names that a proxy asks for are not
/// there, and mostly no name of their length is.
#[derive(Clone, Copy, Debug)]
pub struct NameLengths(u64);

impl NameLengths {
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |all, name| all | Self::bit(name)))
    }

    /// False if no field has this name.
    #[must_use]
    pub fn may_hold(self, name: &HeaderName) -> bool {
        self.0 & Self::bit(name) != 0
    }

    fn bit(name: &HeaderName) -> u64 {
        1 << name.as_str().len().min(63)
    }
}

/// The members of a comma-separated field, over all its lines (RFC 9110 §5.6.1).
pub fn list_members<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|member| !member.is_empty())
}
