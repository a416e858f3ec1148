//! The trace context of a request (W3C Trace Context, level 2).
//!
//! A malformed header counts as absent: the trace begins here (§3.2.2, §4.3).

use std::str::FromStr;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};

/// `traceparent`: the trace and the parent span.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// `tracestate`: vendors' data, passed on unchanged.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The flags that have a meaning: sampled and random trace ID.
const KNOWN_FLAGS: u8 = 0b11;

/// The caller's span, as a request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    pub trace: TraceId,
    pub span: SpanId,
    pub flags: TraceFlags,
}

/// The caller's span, if the head names exactly one.
pub fn parent(headers: &HeaderMap) -> Option<Parent> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => parse(value.to_str().ok()?),
        _ => None,
    }
}

/// `version "-" trace-id "-" parent-id "-" trace-flags`. Later versions may add more after another dash.
fn parse(text: &str) -> Option<Parent> {
    let mut fields = text.splitn(5, '-');
    let mut field = |length| {
        let field = fields.next()?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (field.len() == length && field.bytes().all(is_hex)).then_some(field)
    };
    let version = field(2)?;
    let trace = TraceId::from_hex(field(32)?).ok()?;
    let span = SpanId::from_hex(field(16)?).ok()?;
    let flags = u8::from_str_radix(field(2)?, 16).ok()?;
    let more = fields.next().is_some();
    if version == "ff" || version == "00" && more {
        return None;
    }
    let valid = trace != TraceId::INVALID && span != SpanId::INVALID;
    valid.then_some(Parent {
        trace,
        span,
        flags: TraceFlags::new(flags & KNOWN_FLAGS),
    })
}

/// The `traceparent` that makes `span` the parent.
pub fn traceparent(trace: TraceId, span: SpanId, flags: TraceFlags) -> HeaderValue {
    let text = format!("00-{trace}-{span}-{:02x}", flags.to_u8());
    HeaderValue::try_from(text).expect("hexadecimal digits and dashes are a valid value")
}

/// The vendors' data; empty if unreadable.
pub fn state(headers: &HeaderMap) -> TraceState {
    let lines = headers.get_all(TRACESTATE).iter();
    let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    TraceState::from_str(&lines.join(",")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn headers(values: &[&str]) -> HeaderMap {
        let values = values.iter();
        values
            .map(|value| (TRACEPARENT, value.parse().expect("valid")))
            .collect()
    }

    #[test]
    fn a_traceparent_is_read_and_written() {
        for (flags, known) in [("00", 0), ("01", 1), ("03", 3), ("ff", 3), ("02", 2)] {
            let text = format!("00-{TRACE}-{SPAN}-{flags}");
            let Parent { trace, span, flags } = parent(&headers(&[&text])).expect("valid");
            assert_eq!(
                (trace.to_string(), span.to_string()),
                (TRACE.into(), SPAN.into())
            );
            assert_eq!(flags.to_u8(), known);
            let written = traceparent(trace, span, flags);
            assert_eq!(written, format!("00-{TRACE}-{SPAN}-{known:02x}"));
        }
    }

    #[test]
    fn a_later_version_may_add_fields() {
        for text in [
            format!("01-{TRACE}-{SPAN}-01"),
            format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"),
            format!("fe-{TRACE}-{SPAN}-01-"),
        ] {
            assert!(parent(&headers(&[&text])).is_some(), "{text}");
        }
    }

    #[test]
    fn a_malformed_or_repeated_traceparent_is_ignored() {
        let good = format!("00-{TRACE}-{SPAN}-01");
        assert!(parent(&headers(&[&good])).is_some());
        assert_eq!(parent(&headers(&[])), None);
        assert_eq!(parent(&headers(&[&good, &good])), None);
        for text in [
            String::new(),
            "00".into(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("+0-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("cc-{TRACE}-{SPAN}-01.what"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}-{}-01", &SPAN[1..]),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
        ] {
            assert_eq!(parent(&headers(&[&text])), None, "{text}");
        }
    }

    #[test]
    fn the_state_of_vendors_is_read_over_lines() {
        let mut headers = HeaderMap::new();
        assert_eq!(state(&headers), TraceState::default());
        headers.append(TRACESTATE, "a=1".parse().expect("valid"));
        headers.append(TRACESTATE, "b=2".parse().expect("valid"));
        assert_eq!(state(&headers).header(), "a=1,b=2");
        headers.append(TRACESTATE, "nonsense".parse().expect("valid"));
        assert_eq!(state(&headers), TraceState::default());
    }
}
