//! The type of an event, in API families with event types.

use std::borrow::Cow;

use serde::Deserialize;

use super::Event;

/// Passes the event's type to `classify`: its name (`message` is the default name, so it counts as none), else the `type`
/// in its data (nearly always the first key), else an empty string.
#[inline]
pub(super) fn with_type<T>(event: &Event<'_>, classify: impl FnOnce(&[u8]) -> T) -> T {
    if !matches!(event.name, b"" | b"message") {
        classify(event.name)
    } else if let Some(kind) = leading_type(event.data) {
        classify(kind)
    } else {
        classify(json_type(event.data).as_bytes())
    }
}

/// The value of `"type"`, if that is the first key of an object.
fn leading_type(data: &[u8]) -> Option<&[u8]> {
    let rest = data.trim_ascii_start().strip_prefix(b"{")?;
    let rest = rest.trim_ascii_start().strip_prefix(b"\"type\"")?;
    let rest = rest.trim_ascii_start().strip_prefix(b":")?;
    let rest = rest.trim_ascii_start().strip_prefix(b"\"")?;
    let end = memchr::memchr(b'"', rest)?;
    Some(&rest[..end])
}

/// The `type` of the data, or nothing.
fn json_type(data: &[u8]) -> Cow<'_, str> {
    #[derive(Deserialize)]
    struct TypeField<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
    }
    serde_json::from_slice::<TypeField<'_>>(data)
        .map(|probe| probe.kind)
        .unwrap_or_default()
}
