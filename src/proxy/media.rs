//! Determines from a response head how the body can be handled.

use http::{HeaderMap, header};

/// Whether this is an event stream (WHATWG HTML §9.2).
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let essence = value.as_bytes().split(|byte| *byte == b';').next();
        essence.is_some_and(|text| text.trim_ascii().eq_ignore_ascii_case(b"text/event-stream"))
    })
}

/// Whether the body is unencoded and can be parsed. An encoded stream passes unchanged.
pub fn is_readable(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_ENCODING)
        .is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}
