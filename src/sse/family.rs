//! The API families and the differences between their streams.
//!
//! One file below `family/` contains everything that is specific to a family. To add one: write its file, then add it to [`Api`],
//! [`Api::ALL`] and `by_family!`. The compiler reports what else is missing.

mod blank;
mod chat;
mod chunk;
mod completions;
mod messages;
mod openai_error;
mod other;
mod responses;

pub use self::chunk::DONE;
use serde::Serialize;

use super::meaning::Tail;
use super::openings::Start;
use super::usage::{ReportedUsage, Tokens};
use super::{Event, Usage};

/// A family of LLM API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Api {
    /// OpenAI Chat Completions.
    Chat,
    /// OpenAI Completions (legacy).
    Completions,
    /// OpenAI Responses.
    Responses,
    /// Anthropic Messages.
    Messages,
    /// Everything else: models, embeddings, token counts.
    Other,
}

/// What crossfade needs to know about a family.
trait Family {
    /// The label in metrics and logs.
    const NAME: &'static str;
    /// The usual path. A request belongs to the family if its path ends like this one, `/v1` aside.
    const ROUTE: Option<&'static str>;
    /// Whether a complete stream ends with an event that [`Family::tail`] recognizes. If not, a stream that ends without one
    /// may still be complete.
    const HAS_TERMINAL_EVENT: bool = true;
    /// Whether later events repeat the IDs of earlier ones. If so, a stream that another target continues is rewritten.
    const REPEATS_IDS: bool = false;
    /// Whether all events share the members `created`, `model`, and `system_fingerprint`.
    const SHARES_MEMBERS: bool = false;
    /// Whether clients fail if an ID changes. If so, a stream that another target continues, and whose IDs cannot be rewritten,
    /// ends with an error.
    const CHECKS_IDS: bool = false;
    /// Whether events have sequence numbers.
    const IS_NUMBERED: bool = false;

    /// Classifies an event with data by its form: an error or the end. `None` if it is an error only if its data has a key
    /// `error`. Called for every event, so it must avoid parsing.
    fn tail(event: &Event<'_>) -> Option<Tail>;

    /// Whether this error event is also the end of the stream.
    fn is_terminal_error(_event: &Event<'_>) -> bool {
        false
    }

    /// Whether an event with data, which is neither an error nor the end, is still without commitment.
    fn is_preamble(event: &Event<'_>) -> bool;

    /// The token counts in an event, from where the family reports them.
    fn tokens(report: ReportedUsage) -> Option<Tokens> {
        report.usage
    }

    /// The items that a preamble event opens; several only if a chunk has several choices. If an event with content may be the
    /// first one with an ID of the stream, also the item with that ID.
    fn starts(event: &Event<'_>) -> Vec<Start>;

    /// The error event that ends a stream.
    fn error_event(error: &ErrorReport<'_>) -> Vec<u8>;

    /// The body of an error response.
    fn error_body(error: &ErrorReport<'_>) -> Vec<u8> {
        openai_error::body(error)
    }
}

/// An error that crossfade itself reports.
struct ErrorReport<'a> {
    message: &'a str,
    /// The `type` of the OpenAI forms.
    kind: &'a str,
    /// The HTTP status that it stands for.
    code: u16,
    /// The sequence number of the event, if events have one.
    number: u64,
}

/// Evaluates an expression with `$family` as the type that implements [`Family`] for an [`Api`].
macro_rules! by_family {
    ($api:expr, $family:ident => $value:expr) => {
        by_family!($api, $family => $value; Chat chat, Completions completions, Responses responses, Messages messages, Other other)
    };
    ($api:expr, $family:ident => $value:expr; $($variant:ident $module:ident),+) => {
        match $api {
            $(Api::$variant => {
                type $family = $module::$variant;
                $value
            })+
        }
    };
}

impl Api {
    /// Every family. One whose path ends like another's comes first.
    pub const ALL: [Self; 5] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Other,
    ];

    /// The name used in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        by_family!(self, F => F::NAME)
    }

    /// The usual path, such as `/v1/chat/completions`; `None` for [`Api::Other`].
    #[must_use]
    pub const fn route(self) -> Option<&'static str> {
        by_family!(self, F => F::ROUTE)
    }

    /// The family of a request path (without its query). Only the end of the path counts, so a prefix in front of `/v1`
    /// does not matter, and sub-resources such as `/v1/messages/count_tokens` are [`Api::Other`].
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        let ends_like = |route: &str| path.ends_with(route.strip_prefix("/v1").unwrap_or(route));
        let mut families = Self::ALL.into_iter();
        families
            .find(|api| api.route().is_some_and(ends_like))
            .unwrap_or(Self::Other)
    }

    /// Whether a complete stream of the family ends with an event that crossfade recognizes. If not, its absence says nothing.
    #[must_use]
    pub const fn has_terminal_event(self) -> bool {
        by_family!(self, F => F::HAS_TERMINAL_EVENT)
    }

    pub(super) const fn repeats_ids(self) -> bool {
        by_family!(self, F => F::REPEATS_IDS)
    }

    pub(super) const fn shares_members(self) -> bool {
        by_family!(self, F => F::SHARES_MEMBERS)
    }

    pub(super) const fn checks_ids(self) -> bool {
        by_family!(self, F => F::CHECKS_IDS)
    }

    pub(super) const fn is_numbered(self) -> bool {
        by_family!(self, F => F::IS_NUMBERED)
    }

    #[inline]
    pub(super) fn tail(self, event: &Event<'_>) -> Option<Tail> {
        by_family!(self, F => F::tail(event))
    }

    pub(super) fn is_terminal_error(self, event: &Event<'_>) -> bool {
        by_family!(self, F => F::is_terminal_error(event))
    }

    pub(super) fn is_preamble(self, event: &Event<'_>) -> bool {
        by_family!(self, F => F::is_preamble(event))
    }

    pub(super) fn usage(self, report: ReportedUsage) -> Option<Usage> {
        by_family!(self, F => F::tokens(report)).and_then(Tokens::known)
    }

    pub(super) fn starts(self, event: &Event<'_>) -> Vec<Start> {
        by_family!(self, F => F::starts(event))
    }
}

/// The event that ends a broken stream. `kind` is the error's type, `code` the HTTP status that it stands for, `last` the
/// sequence number of the previous event, if known.
///
/// Beware: it must be written at a block boundary ([`Decoder::boundary`](super::Decoder::boundary)); after an incomplete event,
/// end that one with a blank line first.
#[must_use]
pub fn error_event(api: Api, message: &str, kind: &str, code: u16, last: Option<u64>) -> Vec<u8> {
    let error = ErrorReport {
        message,
        kind,
        code,
        number: last.map_or(0, |last| last.saturating_add(1)),
    };
    by_family!(api, F => F::error_event(&error))
}

/// The body of an error response. Dynamo's own bodies lack the outer `error`, which clients of the families expect.
#[must_use]
pub fn error_body(api: Api, message: &str, kind: &str, code: u16) -> Vec<u8> {
    let error = ErrorReport {
        message,
        kind,
        code,
        number: 0,
    };
    by_family!(api, F => F::error_body(&error))
}

/// An event of these fields, up to and with `data: `. JSON escapes line ends, so its text is always one line of data.
fn json_event(fields: &str, data: &impl Serialize) -> Vec<u8> {
    let mut bytes = fields.as_bytes().to_vec();
    bytes.extend(json(data));
    bytes.extend(b"\n\n");
    bytes
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings and numbers always serialize")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::{Decoder, is_terminal, tail_meaning};

    #[test]
    fn the_end_of_a_path_determines_the_family() {
        for (path, api) in [
            ("/v1/chat/completions", Api::Chat),
            ("/team-a/v1/chat/completions", Api::Chat),
            ("/v1/completions", Api::Completions),
            ("/v1/responses", Api::Responses),
            ("/v1/messages", Api::Messages),
            ("/v1/responses/input_tokens", Api::Other),
            ("/v1/responses/resp_1/cancel", Api::Other),
            ("/v1/messages/count_tokens", Api::Other),
            ("/v1/models", Api::Other),
            ("/v1/mycompletions", Api::Other),
            ("/v1/completions/", Api::Other),
            ("completions", Api::Other),
            ("/", Api::Other),
            ("", Api::Other),
        ] {
            assert_eq!(Api::of_path(path), api, "{path}");
        }
    }

    #[test]
    fn each_family_has_its_own_name_and_its_route_leads_to_it() {
        for api in Api::ALL {
            let same = |other: &&Api| other.as_str() == api.as_str();
            assert_eq!(Api::ALL.iter().filter(same).count(), 1);
            assert_eq!(Api::of_path(api.route().unwrap_or("/v1/other")), api);
        }
    }

    #[test]
    fn each_family_gets_its_own_form() {
        let text = |api| {
            String::from_utf8(error_event(
                api,
                "upstream \"went\"\naway",
                "upstream_error",
                502,
                Some(41),
            ))
            .unwrap()
        };
        let open_ai = "data: {\"error\":{\"message\":\"upstream \\\"went\\\"\\naway\",\"type\":\"upstream_error\",\"code\":502}}\n\n";
        assert_eq!(text(Api::Chat), open_ai);
        assert_eq!(text(Api::Completions), open_ai);
        assert_eq!(text(Api::Other), open_ai);
        assert_eq!(
            text(Api::Responses),
            "event: error\ndata: {\"type\":\"error\",\"code\":\"502\",\"message\":\"upstream \\\"went\\\"\\naway\",\"param\":null,\"sequence_number\":42}\n\n"
        );
        assert_eq!(
            text(Api::Messages),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"upstream \\\"went\\\"\\naway\"}}\n\n"
        );
    }

    #[test]
    fn our_own_error_event_reads_as_an_error() {
        for api in Api::ALL {
            let bytes = error_event(api, "gone", "upstream_error", 502, None);
            let mut decoder = Decoder::new(4096);
            let mut events = decoder.feed(&bytes);
            let event = events.next().unwrap();
            let code = Some(if api == Api::Messages { 500 } else { 502 });
            assert_eq!(tail_meaning(api, &event), Tail::Error { code });
            assert!(!is_terminal(api, &event));
            assert!(events.next().is_none());
        }
    }

    #[test]
    fn bodies_carry_the_outer_error() {
        let text = |api| String::from_utf8(error_body(api, "full", "overloaded", 529)).unwrap();
        let open_ai = r#"{"error":{"message":"full","type":"overloaded","code":529}}"#;
        for api in [Api::Chat, Api::Completions, Api::Responses, Api::Other] {
            assert_eq!(text(api), open_ai);
        }
        assert_eq!(
            text(Api::Messages),
            r#"{"type":"error","error":{"type":"overloaded_error","message":"full","code":529}}"#
        );
    }
}
