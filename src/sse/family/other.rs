//! Any other API. Its streams are unknown, so everything except an error and `[DONE]` is content.

use super::{ErrorReport, Family, chunk, openai_error};
use crate::sse::Event;
use crate::sse::meaning::Tail;
use crate::sse::openings::Start;

pub(super) struct Other;

impl Family for Other {
    const NAME: &'static str = "other";
    const ROUTE: Option<&'static str> = None;
    const HAS_TERMINAL_EVENT: bool = false;

    #[inline]
    fn tail(event: &Event<'_>) -> Option<Tail> {
        chunk::tail(event)
    }

    fn is_preamble(_: &Event<'_>) -> bool {
        false
    }

    fn starts(_: &Event<'_>) -> Vec<Start> {
        Vec::new()
    }

    fn error_event(error: &ErrorReport<'_>) -> Vec<u8> {
        openai_error::event(error)
    }
}
