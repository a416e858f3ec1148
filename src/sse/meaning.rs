//! The meaning of an event for the relay of its stream: nothing yet, content, an error, or the end.
//!
//! Sources: the streaming references of OpenAI (Chat Completions, Completions, Responses) and Anthropic (Messages), and
//! what NVIDIA Dynamo sends: errors as `data: {"error":{…}}`, in older versions as `event: error` with a comment.

use super::keep_alive::is_keep_alive;
use super::reported_error::{error_code, has_error, may_have_error};
use super::{Api, Event};

/// The meaning of an event before the first content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Comments and annotations: no data, and no error.
    Comment,
    /// Data without commitment: roles, empty deltas, "in progress", keep-alives.
    Preamble,
    /// Content, or anything unknown.
    Content,
    /// The upstream reports a failure, with the HTTP status that it stands for, if known.
    Error { code: Option<u16> },
    /// The stream is complete.
    Terminal,
}

/// The meaning of an event after the first content, when only the end of the stream still matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Neither an error nor the end.
    Nothing,
    /// Same as [`Meaning::Error`].
    Error { code: Option<u16> },
    /// Same as [`Meaning::Terminal`].
    Terminal,
}

/// Classifies an event before the first content. May parse JSON, which takes about a microsecond.
///
/// An event that is both an error and the end (`response.failed`) is an error here. See [`is_terminal`].
#[must_use]
pub fn meaning(api: Api, event: &Event<'_>) -> Meaning {
    match tail_meaning(api, event) {
        Tail::Error { code } => Meaning::Error { code },
        Tail::Terminal => Meaning::Terminal,
        // WHATWG HTML §9.2.6: an event with empty data is not dispatched.
        Tail::Nothing if event.data.is_empty() => Meaning::Comment,
        Tail::Nothing if is_keep_alive(event) || api.is_preamble(event) => Meaning::Preamble,
        Tail::Nothing => Meaning::Content,
    }
}

/// Classifies an event after the first content. Parses JSON only if a few cheap checks show that it is not an ordinary chunk.
/// Agrees with [`meaning`] about errors and ends.
#[must_use]
#[inline]
pub fn tail_meaning(api: Api, event: &Event<'_>) -> Tail {
    tail_by_form(api, event).unwrap_or_else(|| tail_by_error(event))
}

/// The meaning according to everything except the keys in the event's data.
#[inline]
pub(super) fn tail_by_form(api: Api, event: &Event<'_>) -> Option<Tail> {
    if event.name == b"error" {
        return Some(Tail::Error {
            code: error_code(event.data),
        });
    }
    if !event.has_data {
        return Some(Tail::Nothing);
    }
    api.tail(event)
}

/// The meaning according to a key `error` in the event's data.
#[inline]
pub(super) fn tail_by_error(event: &Event<'_>) -> Tail {
    if may_have_error(event.data) && has_error(event.data) {
        return Tail::Error {
            code: error_code(event.data),
        };
    }
    Tail::Nothing
}

/// Whether the stream is complete with this event, in success or in failure (`response.failed` is both an error and an end).
#[must_use]
pub fn is_terminal(api: Api, event: &Event<'_>) -> bool {
    tail_meaning(api, event) == Tail::Terminal || (event.has_data && api.is_terminal_error(event))
}

#[cfg(test)]
mod tests;
