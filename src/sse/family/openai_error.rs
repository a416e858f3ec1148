//! The error form of the OpenAI families, which is also used if the family is unknown.

use serde::Serialize;

use super::{ErrorReport, json, json_event};

#[derive(Serialize)]
struct Form<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    code: u16,
}

impl<'a> Form<'a> {
    const fn of(error: &ErrorReport<'a>) -> Self {
        Self {
            error: Inner {
                message: error.message,
                kind: error.kind,
                code: error.code,
            },
        }
    }
}

pub(super) fn event(error: &ErrorReport<'_>) -> Vec<u8> {
    json_event("data: ", &Form::of(error))
}

pub(super) fn body(error: &ErrorReport<'_>) -> Vec<u8> {
    json(&Form::of(error))
}
