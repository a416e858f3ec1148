//! Any bytes are a request head, the beginning of one, or refused; which of them does not depend on how they are cut. What is
//! accepted a naive reader reads alike, and written again it means the same. Seeds: `tests/corpus/request`.

#![no_main]

use crossfade::http1::{self, Framing, HeadError, RequestHead, parse_request};
use http::header::{CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, Version};
use libfuzzer_sys::fuzz_target;

#[path = "shared/cuts.rs"]
mod cuts;
#[path = "shared/lines.rs"]
mod lines;

fuzz_target!(|input: &[u8]| {
    let at_once = parse_request(input);
    for widest in cuts::WIDTHS {
        assert_same(&slice_by_slice(input, widest), &at_once);
    }
    if let Ok(Some(head)) = at_once {
        let bytes = &input[..head.length];
        assert!(matches!(parse_request(&bytes[..bytes.len() - 1]), Ok(None)));
        assert_naive(bytes, &head);
        assert_written_again(&head);
    }
});

/// Parses after each slice, as a connection does, until there is a head or an error.
fn slice_by_slice(input: &[u8], widest: usize) -> Result<Option<RequestHead>, HeadError> {
    let mut read = 0;
    for slice in cuts::cut(input, widest) {
        read += slice.len();
        match parse_request(&input[..read]) {
            Ok(None) => {}
            other => return other,
        }
    }
    Ok(None)
}

fn assert_same(
    cut: &Result<Option<RequestHead>, HeadError>,
    at_once: &Result<Option<RequestHead>, HeadError>,
) {
    match (cut, at_once) {
        (Ok(None), Ok(None)) => {}
        (Ok(Some(cut)), Ok(Some(at_once))) => {
            assert_eq!(cut.length, at_once.length);
            assert_eq!(meaning(cut), meaning(at_once));
        }
        // Which of two faults is seen first may depend on how much is there.
        (Err(_), Err(_)) => {}
        _ => panic!("{cut:?} in slices, {at_once:?} at once"),
    }
}

/// What two heads that mean the same have in common.
fn meaning(head: &RequestHead) -> (String, String, Framing, bool, bool, HeaderMap) {
    let mut headers = head.headers.clone();
    for name in [CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT] {
        headers.remove(name);
    }
    (
        head.method.to_string(),
        head.uri.to_string(),
        head.framing,
        head.keep_alive,
        head.expects_continue,
        headers,
    )
}

fn assert_naive(bytes: &[u8], head: &RequestHead) {
    let lines = lines::read(bytes).expect("what is accepted has lines");
    let (first, fields) = &lines;
    let words: Vec<_> = first.split(|byte| *byte == b' ').collect();
    assert_eq!(words.len(), 3, "{first:?}");
    assert_eq!(words[0], head.method.as_str().as_bytes());
    assert!(words[2] == b"HTTP/1.1" || words[2] == b"HTTP/1.0");
    assert_eq!(words[2] == b"HTTP/1.1", head.version == Version::HTTP_11);
    for (name, value) in fields {
        let name = std::str::from_utf8(name).expect("names are tokens");
        let is_host = name == HOST.as_str();
        let mut known = head.headers.get_all(name).iter();
        // The authority of an absolute target replaces it.
        assert!(is_host || known.any(|known| known.as_bytes() == value), "{name}");
    }
    assert!(lines::all(&lines, "host").len() <= 1);
    let codings = lines::all(&lines, "transfer-encoding");
    let lengths = lines::all(&lines, "content-length");
    assert!(codings.len() + lengths.len() <= 1, "two lengths");
    match head.framing {
        Framing::Chunked => assert!(codings[0].eq_ignore_ascii_case(b"chunked")),
        Framing::Length(length) => assert_eq!(number(lengths[0]), Some(length)),
        Framing::None => {
            assert!(codings.is_empty());
            assert!(lengths.first().is_none_or(|length| number(length) == Some(0)));
        }
        Framing::UntilClose => panic!("no request lasts until the close"),
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    assert!(digits.iter().all(u8::is_ascii_digit), "{digits:?}");
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn assert_written_again(head: &RequestHead) {
    let mut bytes = Vec::new();
    http1::request_line(&mut bytes, &head.method, &head.uri);
    for (name, value) in &head.headers {
        if ![CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT].contains(name) {
            http1::field(&mut bytes, name, value.as_bytes());
        }
    }
    http1::request_end(&mut bytes, &head.method, head.expects_continue, head.framing);
    let again = parse_request(&bytes);
    // Without Host it cannot be HTTP/1.1, as which all requests go out.
    if !head.headers.contains_key(HOST) {
        assert!(again.is_err());
        return;
    }
    let again = again.expect("what is accepted is accepted again").expect("whole");
    let (mut wanted, mut got) = (meaning(head), meaning(&again));
    if head.version == Version::HTTP_10 {
        // What the version says of the connection ends here.
        (wanted.3, got.3) = (true, true);
    }
    assert_eq!(got, wanted);
    assert_eq!(again.length, bytes.len());
}
