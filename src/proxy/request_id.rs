//! The id that identifies a request in the logs of its client, of crossfade and of the model server: `x-request-id`.

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::fmt::Hyphenated;

use crate::http1::NameFilter;

/// The header of requests and responses that has the id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id that is taken from a client, in bytes. Each open request keeps its id.
const LONGEST: usize = 128;

/// The id of a request, as each open exchange keeps it: the text of a random one without an allocation.
#[derive(Debug)]
pub enum RequestId {
    Given(Box<str>),
    Made([u8; Hyphenated::LENGTH]),
}

impl RequestId {
    /// The client's id, or a random one, which is added to `headers`. `names` are the names of its fields.
    pub fn take_or_make(headers: &mut HeaderMap, names: NameFilter) -> Self {
        Self::given(headers, names).unwrap_or_else(|| {
            let id = Self::made();
            headers.insert(REQUEST_ID, id.value());
            id
        })
    }

    /// The client's id, if it can be used. `names` are the names of the fields of `headers`.
    pub fn given(headers: &HeaderMap, names: NameFilter) -> Option<Self> {
        if !names.may_hold(&REQUEST_ID) {
            return None;
        }
        let mut given = headers.get_all(&REQUEST_ID).iter();
        match (given.next(), given.next()) {
            (Some(id), None) => Some(Self::Given(usable(id)?.into())),
            _ => None,
        }
    }

    /// A random id.
    pub fn made() -> Self {
        Self::from_random(fastrand::u128(..))
    }

    /// A UUID of version 4 from random bits. They come from the thread's own generator, which costs no system call per request.
    fn from_random(random: u128) -> Self {
        let id = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
        let mut text = [0; Hyphenated::LENGTH];
        id.hyphenated().encode_lower(&mut text);
        Self::Made(text)
    }

    pub fn text(&self) -> &str {
        match self {
            Self::Given(id) => id,
            Self::Made(text) => str::from_utf8(text).expect("hexadecimal digits and hyphens"),
        }
    }

    pub fn value(&self) -> HeaderValue {
        HeaderValue::from_str(self.text()).expect("graphic characters")
    }
}

/// The text of an id that can be written to a log as it is, and kept.
fn usable(id: &HeaderValue) -> Option<&str> {
    let is_usable =
        (1..=LONGEST).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    is_usable.then(|| id.to_str().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(given: &[&str]) -> (String, Vec<String>) {
        let mut headers = HeaderMap::new();
        for value in given {
            headers.append(REQUEST_ID, HeaderValue::from_str(value).unwrap());
        }
        let names = NameFilter::of(&headers);
        let id = RequestId::take_or_make(&mut headers, names);
        let sent = headers.get_all(REQUEST_ID).iter();
        let sent = sent.map(|value| value.to_str().unwrap().to_owned());
        (id.text().to_owned(), sent.collect())
    }

    #[test]
    fn the_id_of_a_client_is_kept() {
        let longest = "x".repeat(LONGEST);
        for given in [
            "request-7",
            "é".escape_default().to_string().as_str(),
            &longest,
        ] {
            assert_eq!(id(&[given]), (given.to_owned(), vec![given.to_owned()]));
        }
    }

    #[test]
    fn a_missing_or_unusable_id_is_replaced() {
        let too_long = "x".repeat(LONGEST + 1);
        for given in [&[][..], &[""], &["a b"], &["a", "b"], &[&too_long]] {
            let (id, sent) = id(given);
            assert_eq!(sent, [id.as_str()], "{given:?}");
            assert_eq!(id.len(), 36, "{given:?}");
        }
    }

    #[test]
    fn a_made_id_is_a_random_uuid() {
        for (random, id) in [
            (u128::MAX, "ffffffff-ffff-4fff-bfff-ffffffffffff"),
            (
                0x0123_4567_89ab_cdef_0123_4567_89ab_cdef,
                "01234567-89ab-4def-8123-456789abcdef",
            ),
        ] {
            assert_eq!(RequestId::from_random(random).value(), id);
        }
    }
}
