//! What an event of each API family means to someone who watches the stream: nothing yet, content, an error, the end.
//!
//! Must not know: how events are framed, when they came.
//!
//! Sources: the streaming references of OpenAI (Chat Completions, Completions, Responses) and Anthropic (Messages), and
//! what NVIDIA Dynamo sends: errors as `data: {"error":{…}}`, in older versions as `event: error` with a comment.

mod probe;

use std::sync::LazyLock;

use memchr::memmem;

use super::{Api, Event};
use probe::{error_code, has_error, is_preamble_chunk, json_type};

/// What an event means while no content has been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Keep-alives and annotations: no data, and no error.
    Comment,
    /// Data that commits to nothing: roles, empty deltas, "in progress".
    Preamble,
    /// Content, or anything unknown.
    Content,
    /// The upstream reports a failure, with the HTTP status it stands for when it tells one.
    Error { code: Option<u16> },
    /// The stream is complete.
    Terminal,
}

/// What an event means once content has been seen: only how the stream ends is still of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// More of the same.
    Nothing,
    /// As [`Meaning::Error`].
    Error { code: Option<u16> },
    /// As [`Meaning::Terminal`].
    Terminal,
}

/// Judges an event before the first content. May parse JSON: about a microsecond.
///
/// An event that is both an error and the end (`response.failed`) is an error here; see [`is_terminal`].
#[must_use]
pub fn meaning(api: Api, event: &Event<'_>) -> Meaning {
    match late_meaning(api, event) {
        Late::Error { code } => Meaning::Error { code },
        Late::Terminal => Meaning::Terminal,
        Late::Nothing if !event.has_data => Meaning::Comment,
        Late::Nothing if is_preamble(api, event) => Meaning::Preamble,
        Late::Nothing => Meaning::Content,
    }
}

/// Judges an event after the first content. Parses JSON only when a few cheap looks say that it is no usual chunk; it
/// agrees with [`meaning`] about errors and ends.
#[must_use]
#[inline]
pub fn late_meaning(api: Api, event: &Event<'_>) -> Late {
    late_by_form(api, event).unwrap_or_else(|| late_by_error(event))
}

/// The verdict of all but the keys in an event's data.
#[inline]
pub(super) fn late_by_form(api: Api, event: &Event<'_>) -> Option<Late> {
    if event.name == b"error" {
        return Some(Late::Error {
            code: error_code(event.data),
        });
    }
    if !event.has_data {
        return Some(Late::Nothing);
    }
    match api {
        Api::Chat | Api::Completions | Api::Other => (event.data == DONE).then_some(Late::Terminal),
        Api::Responses | Api::Messages => late_by_type(api, event),
    }
}

/// The verdict of a key `error` in an event's data.
#[inline]
pub(super) fn late_by_error(event: &Event<'_>) -> Late {
    if may_have_error(event.data) && has_error(event.data) {
        return Late::Error {
            code: error_code(event.data),
        };
    }
    Late::Nothing
}

/// Whether nothing needs to follow this event for the stream to be complete, be it in success or in failure
/// (`response.failed` is both an error and an end).
#[must_use]
pub fn is_terminal(api: Api, event: &Event<'_>) -> bool {
    late_meaning(api, event) == Late::Terminal
        || (api == Api::Responses
            && event.has_data
            && with_type(event, |kind| kind == b"response.failed"))
}

/// The last event of the OpenAI families. Dynamo sends it after Responses, too.
const DONE: &[u8] = b"[DONE]";

/// The verdict of an event's type, in the families that have one.
#[inline]
fn late_by_type(api: Api, event: &Event<'_>) -> Option<Late> {
    if api == Api::Responses && event.data == DONE {
        return Some(Late::Terminal);
    }
    with_type(event, |kind| match (api, kind) {
        (_, b"error") | (Api::Responses, b"response.failed") => Some(Late::Error {
            code: error_code(event.data),
        }),
        (Api::Responses, b"response.completed" | b"response.incomplete")
        | (Api::Messages, b"message_stop") => Some(Late::Terminal),
        _ => None,
    })
}

/// Hands the event's type to `judge`: the name (`message` is the standard's word for none), else the `type` in the data
/// (which is nearly always its first key), else nothing.
#[inline]
pub(super) fn with_type<T>(event: &Event<'_>, judge: impl FnOnce(&[u8]) -> T) -> T {
    if !matches!(event.name, b"" | b"message") {
        judge(event.name)
    } else if let Some(kind) = leading_type(event.data) {
        judge(kind)
    } else {
        judge(json_type(event.data).as_bytes())
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

/// What data without an error does not have.
pub(super) static ERROR_KEY: LazyLock<memmem::Finder<'_>> =
    LazyLock::new(|| memmem::Finder::new(b"\"error\""));

/// Whether some key `error`, at whatever depth, has a value other than null. Inside a JSON string the quotes would be
/// escaped, so generated text cannot raise this.
#[inline]
fn may_have_error(data: &[u8]) -> bool {
    ERROR_KEY.find_iter(data).any(|at| {
        data[at + ERROR_KEY.needle().len()..]
            .trim_ascii_start()
            .strip_prefix(b":")
            .is_some_and(|value| !value.trim_ascii_start().starts_with(b"null"))
    })
}

/// Whether an event with data, no error and no end, still commits to nothing.
fn is_preamble(api: Api, event: &Event<'_>) -> bool {
    match api {
        Api::Chat | Api::Completions => is_preamble_chunk(api, event.data),
        Api::Responses => with_type(event, |kind| {
            matches!(
                kind,
                b"response.created"
                    | b"response.queued"
                    | b"response.in_progress"
                    | b"response.output_item.added"
                    | b"response.content_part.added"
            )
        }),
        Api::Messages => with_type(event, |kind| {
            matches!(kind, b"message_start" | b"content_block_start" | b"ping")
        }),
        Api::Other => false,
    }
}

#[cfg(test)]
mod tests;
