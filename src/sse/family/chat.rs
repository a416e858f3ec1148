//! OpenAI Chat Completions. A stream is chunks with deltas, then `[DONE]`.

use std::sync::LazyLock;

use memchr::memmem;

use super::{ErrorReport, Family, chunk, openai_error};
use crate::sse::Event;
use crate::sse::meaning::Tail;
use crate::sse::openings::Start;

pub(super) struct Chat;

static DELTA: LazyLock<memmem::Finder<'_>> = LazyLock::new(|| memmem::Finder::new(b"\"delta\":{"));

impl Family for Chat {
    const NAME: &'static str = "chat";
    const ROUTE: Option<&'static str> = Some("/v1/chat/completions");
    const REPEATS_IDS: bool = true;
    const SHARES_MEMBERS: bool = true;

    #[inline]
    fn tail(event: &Event<'_>) -> Option<Tail> {
        chunk::tail(event)
    }

    fn is_preamble(event: &Event<'_>) -> bool {
        !has_text(event.data) && chunk::is_preamble(event.data, chunk::Choice::has_empty_delta)
    }

    fn starts(event: &Event<'_>) -> Vec<Start> {
        chunk::starts(event)
    }

    fn error_event(error: &ErrorReport<'_>) -> Vec<u8> {
        openai_error::event(error)
    }
}

/// A cheap search that finds text in most chunks that contain text. Generated text cannot match, because its quotes are escaped.
/// Text under that name in other positions also matches, like everything unknown.
fn has_text(data: &[u8]) -> bool {
    let text = DELTA.find(data).and_then(|at| {
        let delta = &data[at + DELTA.needle().len()..];
        let rest = delta.strip_prefix(b"\"role\":\"assistant\",");
        rest.unwrap_or(delta).strip_prefix(b"\"content\":\"")
    });
    chunk::is_not_empty(text)
}
