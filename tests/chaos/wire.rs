//! The content of requests and responses. Each piece names its exchange, so that any reader can tell whether it is in the right
//! place.

use std::fmt::{self, Display, Formatter};

/// What the trace ID of each exchange begins with.
const TRACE: &str = "c4a05c4a05c4a050";

/// The ID of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u64);

impl Id {
    pub fn new(wave: usize, client: usize, sequence: usize) -> Self {
        Self((wave as u64) << 40 | (client as u64) << 20 | sequence as u64)
    }

    pub fn wave(self) -> u64 {
        self.0 >> 40
    }

    /// The `traceparent` that identifies its access line. A trace ID of zeros only would be invalid.
    pub fn traceparent(self) -> String {
        format!("00-{TRACE}{self}-{:016x}-01", 1)
    }

    /// Parses the `trace_id` of an access line.
    pub fn of_trace(text: &str) -> Option<Self> {
        Self::parse(text.strip_prefix(TRACE)?)
    }

    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 16).then_some(())?;
        Some(Self(u64::from_str_radix(text, 16).ok()?))
    }
}

impl Display for Id {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Request field: the ID of the exchange, and the length of its body.
pub const ID: &str = "x-chaos-id";
pub const LENGTH: &str = "x-chaos-length";
/// Response field: the [`Tag`] of the visit that responds.
pub const ANSWER: &str = "x-chaos-answer";
/// Trailer: of a request the ID of the exchange, of a response the [`Tag`] of the visit that responds.
pub const TRAILER: &str = "x-chaos-trailer";

/// One visit of an exchange at a server, as named in responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    pub id: Id,
    pub visit: usize,
}

const MARK: char = '~';

impl Tag {
    pub fn parse(text: &str) -> Option<Self> {
        let (id, visit) = text.split_once(MARK)?;
        Some(Self {
            id: Id::parse(id)?,
            visit: visit.parse().ok()?,
        })
    }

    /// Every tag in `bytes`.
    pub fn all_in(bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        let at = |position: usize| {
            let start = position.checked_sub(16)?;
            let digits = bytes[position + 1..]
                .iter()
                .take_while(|byte| byte.is_ascii_digit());
            let end = position + 1 + digits.count();
            Self::parse(std::str::from_utf8(&bytes[start..end]).ok()?)
        };
        let marks = bytes.iter().enumerate();
        marks
            .filter(|(_, byte)| **byte == MARK as u8)
            .filter_map(move |(position, _)| at(position))
    }
}

impl Display for Tag {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{MARK}{}", self.id, self.visit)
    }
}

/// The body of a request with exactly this length. A short one is truncated.
pub fn request_body(id: Id, is_stream: bool, length: usize) -> Vec<u8> {
    let mut body =
        format!("{{\"model\":\"chaos\",\"stream\":{is_stream},\"id\":\"{id}\",\"fill\":\"")
            .into_bytes();
    fill(&mut body, &id.to_string(), length.saturating_sub(2));
    body.truncate(length.saturating_sub(2));
    body.extend(b"\"}");
    body.truncate(length);
    body
}

/// A response body that names its visit throughout.
pub fn whole_answer(tag: Tag, length: usize) -> Vec<u8> {
    let mut body = Vec::new();
    fill(&mut body, &tag.to_string(), length);
    body.truncate(length);
    body
}

/// Extends `body` to at least `length` with words that all differ.
fn fill(body: &mut Vec<u8>, name: &str, length: usize) {
    while body.len() < length {
        body.extend(format!("{name}/{} ", body.len()).bytes());
    }
}
