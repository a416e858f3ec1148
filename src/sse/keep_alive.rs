//! Keep-alives that are events with data. Some servers and gateways send them instead of comments.

use super::Event;
use super::event_type::with_type;

/// The types of keep-alives, as the event's name or as the `type` in its data.
const TYPES: [&[u8]; 5] = [
    b"ping",
    b"keepalive",
    b"keep-alive",
    b"keep_alive",
    b"heartbeat",
];
/// No keep-alive is longer, in bytes.
const MAX_DATA: usize = 256;

/// Whether the event has no output and only keeps the connection open.
pub(super) fn is_keep_alive(event: &Event<'_>) -> bool {
    event.data.len() <= MAX_DATA
        && (event.data.trim_ascii().is_empty() || with_type(event, |kind| TYPES.contains(&kind)))
}
