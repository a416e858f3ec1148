//! OpenAI Responses. A stream consists of typed, numbered events, and later events repeat the IDs of earlier ones. Dynamo also
//! sends `[DONE]` after the last event.

use serde::{Deserialize, Serialize};

use super::blank::Payload;
use super::chunk::DONE;
use super::{ErrorReport, Family, json_event};
use crate::sse::Event;
use crate::sse::event_type::with_type;
use crate::sse::keep_alive::is_keep_alive;
use crate::sse::meaning::Tail;
use crate::sse::openings::{Part, Start};
use crate::sse::reported_error::error_code;
use crate::sse::usage::{ReportedUsage, Tokens};

pub(super) struct Responses;

/// The `error` event.
#[derive(Serialize)]
struct ErrorForm<'a> {
    #[serde(rename = "type")]
    event: &'a str,
    code: String,
    message: &'a str,
    param: Option<&'a str>,
    sequence_number: u64,
}

/// The fields of an event that determine what it opens.
#[derive(Default, Deserialize)]
#[serde(default)]
struct OpeningFields {
    response: Part,
    item: Part,
    part: Part,
    output_index: u32,
    content_index: u32,
    sequence_number: Option<u64>,
}

/// The content in an event that opens something.
#[derive(Default, Deserialize)]
#[serde(default)]
struct OpeningContent {
    item: Payload,
    part: Payload,
}

impl Family for Responses {
    const NAME: &'static str = "responses";
    const ROUTE: Option<&'static str> = Some("/v1/responses");
    const REPEATS_IDS: bool = true;
    const CHECKS_IDS: bool = true;
    const IS_NUMBERED: bool = true;

    #[inline]
    fn tail(event: &Event<'_>) -> Option<Tail> {
        if event.data == DONE {
            return Some(Tail::Terminal);
        }
        with_type(event, |kind| match kind {
            b"error" | b"response.failed" => Some(Tail::Error {
                code: error_code(event.data),
            }),
            b"response.completed" | b"response.incomplete" => Some(Tail::Terminal),
            _ => None,
        })
    }

    fn is_terminal_error(event: &Event<'_>) -> bool {
        with_type(event, |kind| kind == b"response.failed")
    }

    fn is_preamble(event: &Event<'_>) -> bool {
        let is_blank = || {
            // An event that cannot be parsed may have content.
            let carried = serde_json::from_slice(event.data);
            carried.is_ok_and(|carried: OpeningContent| {
                carried.item.is_blank() && carried.part.is_blank()
            })
        };
        opening(event).is_some() && is_blank()
    }

    fn tokens(report: ReportedUsage) -> Option<Tokens> {
        report.response.and_then(|response| response.usage)
    }

    fn starts(event: &Event<'_>) -> Vec<Start> {
        let kind = opening(event);
        if kind.is_none() && !is_keep_alive(event) {
            return Vec::new();
        }
        let opened: OpeningFields = serde_json::from_slice(event.data).unwrap_or_default();
        let (item, part) = (opened.output_index, opened.content_index);
        let Some(kind) = kind else {
            // Its number counts like the others.
            return vec![Start::keep_alive().numbered(opened.sequence_number)];
        };
        let start = match kind {
            "response.created" | "response.queued" | "response.in_progress" => {
                let response = Part {
                    kind: None,
                    name: None,
                    ..opened.response
                };
                Start::new(kind, [0, 0])
                    .with(response)
                    .repeated("response", 0)
            }
            "response.output_item.added" => Start::new(kind, [item, 0])
                .block(opened.item)
                .repeated("item", item),
            _ => Start::new(kind, [item, part]).block(opened.part),
        };
        vec![start.numbered(opened.sequence_number)]
    }

    fn error_event(error: &ErrorReport<'_>) -> Vec<u8> {
        let form = ErrorForm {
            event: "error",
            code: error.code.to_string(),
            message: error.message,
            param: None,
            sequence_number: error.number,
        };
        json_event("event: error\ndata: ", &form)
    }
}

/// The type of an event that opens something, usually without content.
fn opening(event: &Event<'_>) -> Option<&'static str> {
    with_type(event, |kind| match kind {
        b"response.created" => Some("response.created"),
        b"response.queued" => Some("response.queued"),
        b"response.in_progress" => Some("response.in_progress"),
        b"response.output_item.added" => Some("response.output_item.added"),
        b"response.content_part.added" => Some("response.content_part.added"),
        _ => None,
    })
}
