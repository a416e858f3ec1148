//! Anthropic Messages. A stream is typed events between `message_start` and `message_stop`.

use serde::{Deserialize, Serialize};

use super::blank::Payload;
use super::{ErrorReport, Family, json, json_event};
use crate::sse::Event;
use crate::sse::event_type::with_type;
use crate::sse::meaning::Tail;
use crate::sse::openings::{Part, Start};
use crate::sse::reported_error::error_code;
use crate::sse::usage::{ReportedUsage, Tokens};

pub(super) struct Messages;

/// An error, which has the same form in streams and in bodies. `code` is our addition, only in bodies.
#[derive(Serialize)]
struct ErrorForm<'a> {
    #[serde(rename = "type")]
    event: &'a str,
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
}

/// The fields of an event that determine what it opens.
#[derive(Default, Deserialize)]
#[serde(default)]
struct OpeningFields {
    index: u32,
    content_block: Part,
}

/// The content in an event that opens something.
#[derive(Default, Deserialize)]
#[serde(default)]
struct OpeningContent {
    message: Payload,
    content_block: Payload,
}

impl Family for Messages {
    const NAME: &'static str = "messages";
    const ROUTE: Option<&'static str> = Some("/v1/messages");

    #[inline]
    fn tail(event: &Event<'_>) -> Option<Tail> {
        with_type(event, |kind| match kind {
            b"error" => Some(Tail::Error {
                code: error_code(event.data),
            }),
            b"message_stop" => Some(Tail::Terminal),
            _ => None,
        })
    }

    fn is_preamble(event: &Event<'_>) -> bool {
        let is_blank = || {
            // An event that cannot be parsed may have content.
            let carried = serde_json::from_slice(event.data);
            carried.is_ok_and(|carried: OpeningContent| {
                carried.message.is_blank() && carried.content_block.is_blank()
            })
        };
        opening(event).is_some() && is_blank()
    }

    /// The request's tokens are in `message_start`, those of the answer in `message_delta`.
    fn tokens(report: ReportedUsage) -> Option<Tokens> {
        report
            .message
            .and_then(|message| message.usage)
            .or(report.usage)
    }

    fn starts(event: &Event<'_>) -> Vec<Start> {
        let Some(kind) = opening(event) else {
            return Vec::new();
        };
        if kind != "content_block_start" {
            return vec![Start::new(kind, [0, 0])];
        }
        let opened: OpeningFields = serde_json::from_slice(event.data).unwrap_or_default();
        vec![Start::new(kind, [opened.index, 0]).block(opened.content_block)]
    }

    fn error_event(error: &ErrorReport<'_>) -> Vec<u8> {
        json_event("event: error\ndata: ", &form(error, None))
    }

    fn error_body(error: &ErrorReport<'_>) -> Vec<u8> {
        json(&form(error, Some(error.code)))
    }
}

/// The types of Messages errors are a closed set, so the code chooses.
const fn form<'a>(error: &ErrorReport<'a>, code: Option<u16>) -> ErrorForm<'a> {
    let kind = match error.code {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    ErrorForm {
        event: "error",
        error: Inner {
            kind,
            message: error.message,
            code,
        },
    }
}

/// The type of an event that opens something, usually without content.
fn opening(event: &Event<'_>) -> Option<&'static str> {
    with_type(event, |kind| match kind {
        b"message_start" => Some("message_start"),
        b"content_block_start" => Some("content_block_start"),
        b"ping" => Some("ping"),
        _ => None,
    })
}
