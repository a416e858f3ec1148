//! HTTP/1.1 message syntax (RFC 9112) over byte slices: heads and chunked framing, in both directions.
//!
//! `httparse` provides the grammar of heads. This module adds the strictness that a proxy needs (§11.2): one length, one host,
//! no repair. Contains no I/O, clock or policy.

mod chunked;
mod encode;
mod request;
mod response;
mod trailers;

pub use chunked::{ChunkError, Chunked, Decoded, decoding_work};
pub use encode::{
    CHUNK_END, chunk_head, field, last_chunk, request_end, request_line, response_head,
};
pub use request::{HeadError, RequestHead, expectations_are_known, host_is_valid, parse_request};
pub use response::{ResponseError, ResponseHead, parse_response};
pub use trailers::{NamedFields, passable, with_trailers};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

/// Maximum number of header lines in a head. Dynamo's frontends accept 100.
pub const MAX_HEADERS: usize = 128;

/// How the end of a message body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    None,
    /// `Content-Length`, in bytes.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// The response ends when its connection closes.
    UntilClose,
}

/// Builds a map from the headers that `httparse` found in `head`. The values are slices of `copy`, a copy of `head`. The map
/// has room for `more` fields.
fn header_map(
    found: &[httparse::Header<'_>],
    head: &[u8],
    copy: &Bytes,
    more: usize,
) -> Option<HeaderMap> {
    let mut map = HeaderMap::with_capacity(found.len() + more);
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

/// The slice of `copy` that corresponds to `part`, a slice of `head`.
fn part(copy: &Bytes, head: &[u8], part: &[u8]) -> Bytes {
    let start = part.as_ptr() as usize - head.as_ptr() as usize;
    copy.slice(start..start + part.len())
}

/// Whether every CR is followed by an LF, and every LF preceded by a CR. Parsers disagree about whether a single one ends a line.
fn line_ends_are_crlf(head: &[u8]) -> bool {
    let ends_well = head.first() != Some(&b'\n') && head.last() != Some(&b'\r');
    let pairs = head.iter().zip(head.iter().skip(1));
    // No early exit, so that the compiler can vectorize the comparison.
    pairs.fold(ends_well, |so_far, (byte, next)| {
        so_far & ((*byte == b'\r') == (*next == b'\n'))
    })
}

/// `1*DIGIT` that fits (RFC 9110 §8.6): no sign, list or whitespace.
fn content_length(value: &HeaderValue) -> Option<u64> {
    decimal(value.as_bytes())
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |length, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        length.checked_mul(10)?.checked_add(digit)
    })
}

/// The field names that a head may contain, as a Bloom filter of one word. A map lookup costs a hash, and most names that a
/// proxy looks up are absent.
#[derive(Clone, Copy, Debug)]
pub struct NameFilter(u64);

impl NameFilter {
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |all, name| all | Self::bit(name)))
    }

    /// False if no field has this name.
    #[must_use]
    pub fn may_contain(self, name: &HeaderName) -> bool {
        self.0 & Self::bit(name) != 0
    }

    /// Whether `headers`, from which this filter was built, contains a field of this name.
    #[must_use]
    pub fn contains(self, headers: &HeaderMap, name: &HeaderName) -> bool {
        self.may_contain(name) && headers.contains_key(name)
    }

    /// Whether the list `name` in `headers`, from which this filter was built, contains `member`, ignoring case.
    #[must_use]
    pub fn list_contains(self, headers: &HeaderMap, name: &HeaderName, member: &str) -> bool {
        self.may_contain(name)
            && list_members(headers, name).any(|listed| listed.eq_ignore_ascii_case(member))
    }

    /// The bit for a name, from its length and its first and last letters. The weights keep names that clients send and names
    /// that a proxy looks up on different bits; by length alone user-agent, connection and keep-alive would collide.
    fn bit(name: &HeaderName) -> u64 {
        let (length, name) = (name.as_str().len(), name.as_str().as_bytes());
        1 << ((2 * length + 7 * usize::from(name[0]) + usize::from(name[length - 1])) % 64)
    }
}

/// The members of a comma-separated field, over all its lines (RFC 9110 §5.6.1).
pub fn list_members<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().flat_map(members)
}

/// The members of one line of a comma-separated field. None if it is not ASCII text.
pub fn members(line: &HeaderValue) -> impl Iterator<Item = &str> {
    let text = line.to_str().unwrap_or_default();
    let members = text.split(',').map(str::trim);
    members.filter(|member| !member.is_empty())
}
