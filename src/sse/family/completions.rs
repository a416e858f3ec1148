//! OpenAI Completions, the legacy API. A stream is chunks with text, then `[DONE]`.

use std::sync::LazyLock;

use memchr::memmem;

use super::{ErrorReport, Family, chunk, openai_error};
use crate::sse::Event;
use crate::sse::meaning::Tail;
use crate::sse::openings::Start;

pub(super) struct Completions;

static TEXT: LazyLock<memmem::Finder<'_>> = LazyLock::new(|| memmem::Finder::new(b"\"text\":\""));

impl Family for Completions {
    const NAME: &'static str = "completions";
    const ROUTE: Option<&'static str> = Some("/v1/completions");
    const REPEATS_IDS: bool = true;
    const SHARES_MEMBERS: bool = true;

    #[inline]
    fn tail(event: &Event<'_>) -> Option<Tail> {
        chunk::tail(event)
    }

    fn is_preamble(event: &Event<'_>) -> bool {
        !has_text(event.data) && chunk::is_preamble(event.data, chunk::Choice::has_empty_text)
    }

    fn starts(event: &Event<'_>) -> Vec<Start> {
        chunk::starts(event)
    }

    fn error_event(error: &ErrorReport<'_>) -> Vec<u8> {
        openai_error::event(error)
    }
}

/// A cheap search that finds text in most chunks that contain text. Generated text cannot match, because its quotes are escaped.
fn has_text(data: &[u8]) -> bool {
    chunk::is_not_empty(TEXT.find(data).map(|at| &data[at + TEXT.needle().len()..]))
}
