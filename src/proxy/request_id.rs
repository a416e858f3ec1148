//! The id by which a request is found in the logs of its client, of crossfade and of the model server: `x-request-id`.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http1::NameFilter;

/// The header of requests and responses that has the id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id that is taken from a client, in bytes. Each open request keeps its id.
const LONGEST: usize = 128;

/// The id of a request: the client's own, or a random one, which is added to `headers`. `names` are the names of its fields.
pub fn take_or_make(headers: &mut HeaderMap, names: NameFilter) -> HeaderValue {
    if names.may_hold(&REQUEST_ID) {
        let mut given = headers.get_all(&REQUEST_ID).iter();
        if let (Some(id), None) = (given.next(), given.next())
            && is_usable(id.as_bytes())
        {
            // A copy: the value is a part of the whole head, which is released earlier.
            return HeaderValue::from_bytes(id.as_bytes()).expect("the bytes of a header value");
        }
    }
    let id = made(fastrand::u128(..));
    headers.insert(REQUEST_ID, id.clone());
    id
}

/// Can it be written to a log as it is, and kept?
fn is_usable(id: &[u8]) -> bool {
    (1..=LONGEST).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

/// A UUID of version 4 (RFC 9562 §5.4) from random bits.
fn made(random: u128) -> HeaderValue {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let random = random & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let mut text = [b'-'; 36];
    let mut digits = (0..32u32).map(|at| HEX[(random >> (124 - 4 * at)) as usize & 0xf]);
    for (at, byte) in text.iter_mut().enumerate() {
        if !matches!(at, 8 | 13 | 18 | 23) {
            *byte = digits.next().expect("32 digits");
        }
    }
    HeaderValue::from_bytes(&text).expect("hexadecimal digits and hyphens")
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
        let id = take_or_make(&mut headers, names);
        let sent = headers.get_all(REQUEST_ID).iter();
        let sent = sent.map(|value| value.to_str().unwrap().to_owned());
        (id.to_str().unwrap().to_owned(), sent.collect())
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
        assert_eq!(
            made(u128::MAX).to_str().unwrap(),
            "ffffffff-ffff-4fff-bfff-ffffffffffff"
        );
        assert_eq!(
            made(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef)
                .to_str()
                .unwrap(),
            "01234567-89ab-4def-8123-456789abcdef"
        );
    }
}
