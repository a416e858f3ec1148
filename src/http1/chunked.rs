//! Decodes `Transfer-Encoding: chunked` in place (RFC 9112 §7.1). Strict: anything that a lenient parser would repair is an
//! error.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use super::trailers::keep_their_charge;
use crate::memory::{self, Budget, Charge, Purpose, holding_cost};

/// Maximum length of a chunk extension, in bytes. Extensions are read and ignored.
const MAX_EXTENSION: u16 = 1024;
/// How far the size lines of a body may exceed their allowance in total, in bytes; see [`Chunked::charge`].
const MAX_EXCESS: u32 = 16 * 1024;
/// Allowance of each size line beyond twice its payload, in bytes: enough for chunks of one byte.
const FREE: u64 = 16;
/// Maximum length of a trailer section, in bytes.
const MAX_TRAILERS: usize = 16 * 1024;
/// Maximum number of hexadecimal digits of a chunk size: this keeps it below 2^60, so that nothing overflows.
const MAX_DIGITS: u8 = 15;

/// Approximately how much longer decoding a byte of framing takes than a byte of payload.
const FRAMING: usize = 16;

/// The work of decoding a part of a body, of which `payload` bytes are payload, counted in bytes of payload.
#[must_use]
pub const fn decoding_work(part: usize, payload: usize) -> usize {
    part + FRAMING * part.saturating_sub(payload)
}

/// Why a chunked body cannot be decoded further. Its connection must be closed.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum ChunkError {
    /// Not `1*HEXDIG`, or too large: 2^60 or more.
    #[error("a chunk size that is not a hexadecimal number")]
    Size,
    /// Something other than CRLF at the end of a line.
    #[error("a chunk that does not end where its size says")]
    LineEnd,
    /// A chunk extension with control characters, or beyond the limit.
    #[error("a chunk extension that is malformed or too long")]
    Extension,
    /// Chunk extensions that are far longer than the payload, repeatedly.
    #[error("chunks that are mostly extensions")]
    Excess,
    /// A trailer section that is malformed or beyond the limit.
    #[error("a trailer section that is malformed or too long")]
    Trailers,
}

#[derive(Debug)]
enum State {
    Size {
        value: u64,
        digits: u8,
    },
    /// Whitespace after the size. Only more whitespace, an extension or the end of the line may follow.
    Padding {
        value: u64,
        length: u16,
    },
    Extension {
        value: u64,
        length: u16,
    },
    SizeLf {
        value: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    Trailers(Section),
    Done,
}

/// The part of a trailer section that has arrived.
#[derive(Debug, Default)]
struct Section {
    bytes: Vec<u8>,
    charge: Charge,
}

/// A complete trailer section. Its fields are valid.
#[derive(Debug)]
struct Trailers {
    section: Bytes,
    /// The memory for the section, for the map of its fields, and for a copy while they are sent, in bytes.
    held: usize,
    charge: Charge,
}

const SIZE: State = State::Size {
    value: 0,
    digits: 0,
};

/// The decoder of one body.
#[derive(Debug)]
pub struct Chunked {
    state: State,
    /// Length of the current size line so far, in bytes.
    line: u32,
    /// How far the size lines exceed their allowance, in bytes.
    excess: u32,
    trailers: Option<Box<Trailers>>,
    /// The error after the payload that was decoded last.
    failed: Option<ChunkError>,
}

/// The result of one call of [`Chunked::decode`].
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The payload, as a range of the slice. The payloads of later chunks are moved up to the first one.
    pub payload: Range<usize>,
    /// How many bytes of the slice were consumed. Fewer than all only if the body is done, or if an error follows that the next
    /// call returns.
    pub consumed: usize,
}

impl Default for Chunked {
    fn default() -> Self {
        Self {
            state: SIZE,
            line: 0,
            excess: 0,
            trailers: None,
            failed: None,
        }
    }
}

impl Chunked {
    /// True once the last chunk and its trailers have been read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// The error that follows the payload that was decoded last: the next call of [`Chunked::decode`] returns it.
    #[must_use]
    pub fn failure(&self) -> Option<ChunkError> {
        self.failed
    }

    /// Charges the trailer section, as far as it has arrived. The charge is returned when its fields are dropped. Returns false
    /// if `memory` has no room.
    #[must_use]
    pub fn charge_trailers(&mut self, memory: &Arc<Budget>) -> bool {
        let (held, charge) = match (&mut self.state, &mut self.trailers) {
            (State::Trailers(section), _) => (section.bytes.capacity(), &mut section.charge),
            (_, Some(trailers)) => (trailers.held, &mut trailers.charge),
            _ => return true,
        };
        charge.resize(memory, holding_cost(held), Purpose::Head)
    }

    /// Takes the trailer section, if there is one. Call this once the body is done.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        let trailers = *self.trailers.take()?;
        // The values are slices of the section, so they keep its charge.
        parse_trailers(&trailers.charge.tie(trailers.section)).ok()?
    }

    /// Decodes the next bytes in place. Payload before an error is returned first, so that the result does not depend on how
    /// the body was split into slices.
    ///
    /// # Errors
    /// At the first byte that RFC 9112 §7.1 does not allow.
    pub fn decode(&mut self, slice: &mut [u8]) -> Result<Decoded, ChunkError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut at = 0;
        let mut payload = 0..0;
        if let Err(error) = self.decode_from(slice, &mut at, &mut payload) {
            self.failed = Some(error);
            if payload.is_empty() {
                return Err(error);
            }
        }
        Ok(Decoded {
            payload,
            consumed: at,
        })
    }

    /// Decodes from `at`, advances it, and extends `payload`.
    fn decode_from(
        &mut self,
        slice: &mut [u8],
        at: &mut usize,
        payload: &mut Range<usize>,
    ) -> Result<(), ChunkError> {
        while *at < slice.len() && !self.is_done() {
            if let State::Data { left } = &mut self.state {
                let here = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(slice.len() - *at);
                append(payload, slice, *at..*at + here);
                *left -= here as u64;
                *at += here;
                if *left == 0 && slice[*at..].starts_with(b"\r\n") {
                    self.state = SIZE;
                    *at += 2;
                } else if *left == 0 {
                    self.state = State::DataCr;
                }
            } else if let State::Size { digits: 0, .. } = self.state
                && let Some((left, length)) = usual_size(&slice[*at..])
            {
                self.state = State::Data { left };
                self.line = u32::try_from(length).unwrap_or(u32::MAX);
                self.charge(left)?;
                *at += length;
            } else {
                self.framing_byte(slice[*at])?;
                *at += 1;
            }
        }
        Ok(())
    }

    /// Charges a complete size line against the payload that it announces, as Go's `net/http` does: a body that is mostly
    /// ignored extensions is an attack (CVE-2023-39326). Unused allowance reduces earlier excess but is not carried forward.
    fn charge(&mut self, payload: u64) -> Result<(), ChunkError> {
        let worth = payload.saturating_mul(2).saturating_add(FREE);
        let worth = u32::try_from(worth).unwrap_or(u32::MAX);
        let line = std::mem::take(&mut self.line);
        self.excess = self.excess.saturating_add(line).saturating_sub(worth);
        if self.excess > MAX_EXCESS {
            return Err(ChunkError::Excess);
        }
        Ok(())
    }

    fn framing_byte(&mut self, byte: u8) -> Result<(), ChunkError> {
        if !matches!(
            self.state,
            State::DataCr | State::DataLf | State::Trailers(_)
        ) {
            self.line += 1;
        }
        self.state = match (&mut self.state, byte) {
            (State::Size { value, digits }, _) if byte.is_ascii_hexdigit() => {
                if *digits == MAX_DIGITS {
                    return Err(ChunkError::Size);
                }
                State::Size {
                    value: *value << 4 | u64::from(hex(byte)),
                    digits: *digits + 1,
                }
            }
            (State::Size { digits: 0, .. }, _) => return Err(ChunkError::Size),
            (
                State::Size { value, .. }
                | State::Padding { value, .. }
                | State::Extension { value, .. },
                b'\r',
            ) => State::SizeLf { value: *value },
            (State::Size { value, .. } | State::Padding { value, .. }, b';') => State::Extension {
                value: *value,
                length: 1,
            },
            (State::Size { value, .. }, b' ' | b'\t') => State::Padding {
                value: *value,
                length: 1,
            },
            (State::Padding { value, length }, b' ' | b'\t') if *length < MAX_EXTENSION => {
                State::Padding {
                    value: *value,
                    length: *length + 1,
                }
            }
            (State::Size { .. } | State::Padding { .. }, _) => return Err(ChunkError::Size),
            (State::Extension { value, length }, b'\t' | b' '..=b'~' | 0x80..)
                if *length < MAX_EXTENSION =>
            {
                State::Extension {
                    value: *value,
                    length: *length + 1,
                }
            }
            (State::Extension { .. }, _) => return Err(ChunkError::Extension),
            (State::SizeLf { value: 0 }, b'\n') => State::Trailers(Section::default()),
            (State::SizeLf { value }, b'\n') => {
                let left = *value;
                self.charge(left)?;
                State::Data { left }
            }
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => SIZE,
            (State::Trailers(section), _) => {
                section.bytes.push(byte);
                if !section_is_whole(&section.bytes)? {
                    return Ok(());
                }
                self.trailers = Trailers::of(std::mem::take(section))?.map(Box::new);
                State::Done
            }
            _ => return Err(ChunkError::LineEnd),
        };
        Ok(())
    }
}

/// Parses the common form of a size line, digits and CRLF, and returns the size and the length of the line. `None` for the last
/// chunk, and for a line that may be incomplete.
fn usual_size(slice: &[u8]) -> Option<(u64, usize)> {
    let mut size = 0;
    for (at, byte) in slice.iter().take(usize::from(MAX_DIGITS)).enumerate() {
        if !byte.is_ascii_hexdigit() {
            let is_usual = size > 0 && slice[at..].starts_with(b"\r\n");
            return is_usual.then_some((size, at + 2));
        }
        size = size << 4 | u64::from(hex(*byte));
    }
    None
}

/// Moves `from` to the end of the payload so far. The first payload stays in place.
fn append(payload: &mut Range<usize>, slice: &mut [u8], from: Range<usize>) {
    if payload.end == payload.start {
        *payload = from;
    } else {
        let length = from.len();
        slice.copy_within(from, payload.end);
        payload.end += length;
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

fn section_is_whole(section: &[u8]) -> Result<bool, ChunkError> {
    if section.len() > MAX_TRAILERS {
        return Err(ChunkError::Trailers);
    }
    Ok(section == b"\r\n" || section.ends_with(b"\r\n\r\n"))
}

impl Trailers {
    fn of(Section { bytes, charge }: Section) -> Result<Option<Self>, ChunkError> {
        let capacity = bytes.capacity();
        let section = Bytes::from(bytes);
        let Some(fields) = parse_trailers(&section)? else {
            return Ok(None);
        };
        if !keep_their_charge(&fields, capacity) {
            return Ok(None);
        }
        Ok(Some(Self {
            held: 2 * capacity + memory::fields_size(&fields),
            section,
            charge,
        }))
    }
}

fn parse_trailers(section: &Bytes) -> Result<Option<HeaderMap>, ChunkError> {
    if section[..] == *b"\r\n" {
        return Ok(None);
    }
    if !super::line_ends_are_crlf(section) {
        return Err(ChunkError::Trailers);
    }
    let mut found = [httparse::EMPTY_HEADER; super::MAX_HEADERS];
    match httparse::parse_headers(section, &mut found) {
        Ok(httparse::Status::Complete((_, fields))) => {
            let map = super::header_map(fields, section, section, 0);
            map.map(Some).ok_or(ChunkError::Trailers)
        }
        _ => Err(ChunkError::Trailers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode_all(mut bytes: Vec<u8>) -> Result<(Vec<u8>, usize, bool), ChunkError> {
        let mut decoder = Chunked::default();
        let decoded = decoder.decode(&mut bytes)?;
        if decoded.consumed < bytes.len() && !decoder.is_done() {
            decoder.decode(&mut bytes[decoded.consumed..])?;
        }
        Ok((
            bytes[decoded.payload].to_vec(),
            decoded.consumed,
            decoder.is_done(),
        ))
    }

    #[test]
    fn payloads_are_joined_and_what_follows_is_left() {
        let bytes = b"3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0\r\n\r\nGET".to_vec();
        let (payload, consumed, done) = decode_all(bytes.clone()).expect("valid");
        assert_eq!(payload, b"abc0123456789");
        assert_eq!(&bytes[consumed..], b"GET");
        assert!(done);
    }

    #[test]
    fn trailers_are_kept() {
        let mut decoder = Chunked::default();
        let mut bytes = b"1\r\nx\r\n0\r\nx-sum: 7\r\nx-b: 8\r\n\r\n".to_vec();
        decoder.decode(&mut bytes).expect("valid");
        let trailers = decoder.take_trailers().expect("has trailers");
        assert_eq!(trailers["x-sum"], "7");
        assert_eq!(trailers["x-b"], "8");
    }

    #[test]
    fn a_trailer_section_is_charged_until_its_fields_are_dropped() {
        let memory = Budget::new(64 * 1024);
        let mut decoder = Chunked::default();
        let long = "x".repeat(8000);
        let mut head = format!("0\r\nx-a: {long}").into_bytes();
        decoder.decode(&mut head).expect("valid");
        assert!(decoder.charge_trailers(&memory) && memory.used() > 8000);
        let mut end = b"\r\nx-b:\r\n\r\n".to_vec();
        decoder.decode(&mut end).expect("valid");
        // The copy that is sent is charged too.
        assert!(decoder.charge_trailers(&memory) && memory.used() > 16_000);
        let trailers = decoder.take_trailers().expect("has trailers");
        assert_eq!(trailers["x-a"], long);
        assert_eq!(trailers.len(), 2);
        drop(decoder);
        assert!(memory.used() > 16_000);
        drop(trailers);
        assert_eq!(memory.used(), 0);

        let mut decoder = Chunked::default();
        decoder.decode(&mut head).expect("valid");
        assert!(!decoder.charge_trailers(&Budget::new(1000)));
        // Many names without values could not be charged, so they are not forwarded.
        let names: String = (0..100).map(|i| format!("x-{i}:\r\n")).collect();
        for (names, count) in [(names, 0), ("x-empty:\r\n".to_owned(), 1)] {
            let mut decoder = Chunked::default();
            let mut bytes = format!("0\r\n{names}\r\n").into_bytes();
            decoder.decode(&mut bytes).expect("valid");
            assert!(decoder.is_done());
            let trailers = decoder.take_trailers();
            assert_eq!(trailers.map_or(0, |trailers| trailers.len()), count);
        }
    }

    #[test]
    fn what_a_lenient_parser_would_repair_is_an_error() {
        for (bytes, error) in [
            (&b"\r\n"[..], ChunkError::Size),
            (b"g\r\n", ChunkError::Size),
            (b"0x3\r\nabc\r\n", ChunkError::Size),
            (b"+3\r\nabc\r\n", ChunkError::Size),
            (b"-1\r\n", ChunkError::Size),
            (b" 3\r\nabc\r\n", ChunkError::Size),
            (b"ffffffffffffffff\r\n", ChunkError::Size),
            (b"3\nabc\r\n", ChunkError::Size),
            (b"3 3\r\nabc\r\n", ChunkError::Size),
            (b"3\r\nabcd\r\n", ChunkError::LineEnd),
            (b"3\r\nabc\n", ChunkError::LineEnd),
            (b"3\r\nabc0\r\n\r\n", ChunkError::LineEnd),
            (b"3;a\nabc\r\n", ChunkError::Extension),
            (b"3;\0\r\nabc\r\n", ChunkError::Extension),
            (b"0\r\nbad header\r\n\r\n", ChunkError::Trailers),
            (b"0\r\nx: y\n\r\n\r\n", ChunkError::Trailers),
        ] {
            assert_eq!(
                decode_all(bytes.to_vec()),
                Err(error),
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
        let long = [b"3;".to_vec(), vec![b'a'; 2000], b"\r\nabc\r\n".to_vec()].concat();
        assert_eq!(decode_all(long), Err(ChunkError::Extension));
    }

    #[test]
    fn payload_before_an_error_comes_first() {
        for bad in ["zz\r\n", "2\r\nxyz", "0\r\nbad trailer\r\n\r\n"] {
            let mut bytes = format!("3\r\nabc\r\n{bad}").into_bytes();
            let mut decoder = Chunked::default();
            let decoded = decoder.decode(&mut bytes).expect("payload");
            assert!(bytes[decoded.payload].starts_with(b"abc"), "{bad:?}");
            assert!(decoded.consumed < bytes.len() && !decoder.is_done());
            let mut rest = bytes.split_off(decoded.consumed);
            for _ in 0..2 {
                assert!(decoder.decode(&mut rest).is_err(), "{bad:?}");
            }
        }
    }

    #[test]
    fn a_body_may_come_byte_by_byte_but_not_be_mostly_extensions() {
        let byte_by_byte = [b"1;a=b\r\nx\r\n".repeat(100_000), b"0\r\n\r\n".to_vec()].concat();
        assert!(decode_all(byte_by_byte).expect("valid").2);
        let chunk = [b"1;", &[b'e'; 1000][..], b"\r\nx\r\n"].concat();
        assert!(decode_all(chunk.repeat(16)).is_ok());
        assert_eq!(decode_all(chunk.repeat(20)), Err(ChunkError::Excess));
        // Payload pays for extensions.
        let worth = [
            b"400;",
            &[b'e'; 1000][..],
            b"\r\n",
            &[b'x'; 0x400][..],
            b"\r\n",
        ]
        .concat();
        assert!(decode_all(worth.repeat(1000)).is_ok());
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_the_cuts(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8),
            cuts in prop::collection::vec(1usize..9, 1..64),
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                wire.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\n\r\n");
            let mut decoder = Chunked::default();
            let mut payload = Vec::new();
            let mut rest = &wire[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (head, tail) = rest.split_at((*cut).min(rest.len()));
                let mut head = head.to_vec();
                let decoded = decoder.decode(&mut head).expect("valid");
                payload.extend_from_slice(&head[decoded.payload]);
                rest = tail;
            }
            prop_assert!(decoder.is_done());
            prop_assert_eq!(payload, chunks.concat());
        }

        #[test]
        fn a_refusal_does_not_depend_on_the_cuts(text in "[013a;x \r\n]{0,16}(3\r\nabc\r\n){0,2}[03\r\n]{0,8}") {
            let mut decoder = Chunked::default();
            let mut payload = Vec::new();
            let mut consumed = 0;
            let mut refused = None;
            for byte in text.bytes() {
                let mut slice = [byte];
                match decoder.decode(&mut slice) {
                    Ok(decoded) => {
                        payload.extend_from_slice(&slice[decoded.payload]);
                        consumed += decoded.consumed;
                    }
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                }
            }
            let by_bytes = match refused {
                Some(error) => Err(error),
                None => Ok((payload, consumed, decoder.is_done())),
            };
            prop_assert_eq!(decode_all(text.into_bytes()), by_bytes);
        }

        #[test]
        fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Chunked::default().decode(&mut bytes);
        }
    }
}
