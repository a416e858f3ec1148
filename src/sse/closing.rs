//! The words in which crossfade itself reports an error, in the form each API family's clients understand.
//!
//! Must not know: why there is an error.

use serde::Serialize;

use super::Api;

#[derive(Serialize)]
struct OpenAi<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    code: u16,
}

/// The `error` event of the Responses stream.
#[derive(Serialize)]
struct Responses<'a> {
    #[serde(rename = "type")]
    event: &'a str,
    code: String,
    message: &'a str,
    param: Option<&'a str>,
    sequence_number: u32,
}

/// The error of Messages, the same in a stream and in a body. `code` is our addition, in bodies only.
#[derive(Serialize)]
struct Messages<'a> {
    #[serde(rename = "type")]
    event: &'a str,
    error: MessagesError<'a>,
}

#[derive(Serialize)]
struct MessagesError<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
}

/// The event that closes a stream which died. `kind` is a word for the error, `code` the HTTP status it stands for.
///
/// Beware: it must be written at a block boundary ([`Decoder::boundary`](super::Decoder::boundary)); after half an event,
/// end that one with a blank line first.
#[must_use]
pub fn error_event(api: Api, message: &str, kind: &str, code: u16) -> Vec<u8> {
    match api {
        Api::Chat | Api::Completions | Api::Other => event("data: ", &open_ai(message, kind, code)),
        Api::Responses => event(
            "event: error\ndata: ",
            &Responses {
                event: "error",
                code: code.to_string(),
                message,
                param: None,
                // Required by the form, but ours is not to count the upstream's events.
                sequence_number: 0,
            },
        ),
        Api::Messages => event("event: error\ndata: ", &messages(message, code, None)),
    }
}

/// The body of an answer that is an error. Dynamo's own bodies lack the outer `error`; clients of the families expect it.
#[must_use]
pub fn error_body(api: Api, message: &str, kind: &str, code: u16) -> Vec<u8> {
    match api {
        Api::Messages => json(&messages(message, code, Some(code))),
        _ => json(&open_ai(message, kind, code)),
    }
}

const fn open_ai<'a>(message: &'a str, kind: &'a str, code: u16) -> OpenAi<'a> {
    OpenAi {
        error: OpenAiError {
            message,
            kind,
            code,
        },
    }
}

/// The types of Messages errors are a closed set, so the code chooses.
const fn messages(message: &str, code: u16, shown: Option<u16>) -> Messages<'_> {
    let kind = match code {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    Messages {
        event: "error",
        error: MessagesError {
            kind,
            message,
            code: shown,
        },
    }
}

/// Beware: JSON escapes line ends, so its text is always one line of data.
fn event(fields: &str, data: &impl Serialize) -> Vec<u8> {
    let mut bytes = fields.as_bytes().to_vec();
    bytes.extend(json(data));
    bytes.extend(b"\n\n");
    bytes
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings and numbers always serialise")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::{Decoder, Late, is_terminal, late_meaning};

    #[test]
    fn each_family_gets_its_own_form() {
        let text = |api| {
            String::from_utf8(error_event(
                api,
                "upstream \"went\"\naway",
                "upstream_error",
                502,
            ))
            .unwrap()
        };
        let open_ai = "data: {\"error\":{\"message\":\"upstream \\\"went\\\"\\naway\",\"type\":\"upstream_error\",\"code\":502}}\n\n";
        assert_eq!(text(Api::Chat), open_ai);
        assert_eq!(text(Api::Completions), open_ai);
        assert_eq!(text(Api::Other), open_ai);
        assert_eq!(
            text(Api::Responses),
            "event: error\ndata: {\"type\":\"error\",\"code\":\"502\",\"message\":\"upstream \\\"went\\\"\\naway\",\"param\":null,\"sequence_number\":0}\n\n"
        );
        assert_eq!(
            text(Api::Messages),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"upstream \\\"went\\\"\\naway\"}}\n\n"
        );
    }

    #[test]
    fn our_own_closing_event_reads_as_an_error() {
        for api in Api::ALL {
            let bytes = error_event(api, "gone", "upstream_error", 502);
            let mut decoder = Decoder::new(4096);
            let mut events = decoder.feed(&bytes);
            let event = events.next().unwrap();
            let code = Some(if api == Api::Messages { 500 } else { 502 });
            assert_eq!(late_meaning(api, &event), Late::Error { code });
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
