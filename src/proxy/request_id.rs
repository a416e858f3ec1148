//! The ID that identifies a request in the logs of the client, crossfade, and the model server: `x-request-id`.

use http::{HeaderMap, HeaderValue};
use uuid::fmt::Hyphenated;

use crate::http1::NameFilter;
use crate::upstream::Head;

/// The header of requests and responses with the ID.
pub use crate::upstream::X_REQUEST_ID as REQUEST_ID;

/// Maximum length of an ID that is accepted from a client, in bytes. Each open request keeps its ID.
const LONGEST: usize = 128;

/// The ID of a request, as each open exchange keeps it: the text of a random one without an allocation.
#[derive(Debug)]
pub enum RequestId {
    Given(Box<str>),
    Made([u8; Hyphenated::LENGTH]),
}

impl RequestId {
    /// The client's ID, or a random one, which is added to `head`. `names` are the names of its fields.
    pub fn take_or_make(head: &mut Head, names: NameFilter) -> Self {
        if let Some(given) = Self::given(&head.headers, names) {
            return given;
        }
        if names.may_contain(&REQUEST_ID) {
            head.headers.remove(REQUEST_ID);
        }
        let text = random();
        head.added.request_id = Some(text);
        Self::Made(text)
    }

    /// The client's ID, if it can be used. `names` are the names of the fields of `headers`.
    pub fn given(headers: &HeaderMap, names: NameFilter) -> Option<Self> {
        if !names.may_contain(&REQUEST_ID) {
            return None;
        }
        let mut given = headers.get_all(&REQUEST_ID).iter();
        match (given.next(), given.next()) {
            (Some(id), None) => Some(Self::Given(usable(id)?.into())),
            _ => None,
        }
    }

    /// A random ID.
    pub fn made() -> Self {
        Self::Made(random())
    }

    pub fn text(&self) -> &str {
        match self {
            Self::Given(id) => id,
            Self::Made(text) => str::from_utf8(text).expect("hexadecimal digits and hyphens"),
        }
    }

    pub fn value(&self) -> HeaderValue {
        let text = match self {
            Self::Given(id) => id.as_bytes(),
            Self::Made(text) => text,
        };
        HeaderValue::from_bytes(text).expect("graphic characters")
    }
}

/// A random ID, from the thread's own generator, which costs no system call per request.
fn random() -> [u8; Hyphenated::LENGTH] {
    uuid(fastrand::u128(..))
}

/// The UUID of version 4 with these random bits.
fn uuid(random: u128) -> [u8; Hyphenated::LENGTH] {
    let id = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
    let mut text = [0; Hyphenated::LENGTH];
    id.hyphenated().encode_lower(&mut text);
    text
}

/// The text of an ID, if it can be logged unescaped and is short enough to keep.
fn usable(id: &HeaderValue) -> Option<&str> {
    let is_usable =
        (1..=LONGEST).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    is_usable.then(|| id.to_str().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};

    use super::*;
    use crate::upstream::AddedFields;

    fn id(given: &[&str]) -> (String, Vec<String>) {
        let mut headers = HeaderMap::new();
        for value in given {
            headers.append(REQUEST_ID, HeaderValue::from_str(value).unwrap());
        }
        let names = NameFilter::of(&headers);
        let mut head = Head {
            method: Method::POST,
            uri: Uri::from_static("/"),
            headers,
            added: AddedFields::default(),
            expects_continue: false,
        };
        let id = RequestId::take_or_make(&mut head, names);
        let fields = head.fields();
        let sent = fields.get_all(REQUEST_ID).iter();
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
            assert_eq!(uuid(random), *id.as_bytes());
        }
    }
}
