//! Whether a server continues the last message of a conversation: the probe, and the meaning of its response.

use serde_json::json;

use crate::sse::Api;

/// Whether a server continues the last message of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capability {
    /// It has not been asked, or its answer says nothing about it.
    #[default]
    Unknown,
    /// It acts on what asks for a continuation.
    Supported,
    /// It does not know what asks for a continuation, or ignores it.
    Unsupported,
    /// It answers only who authenticates, so it is asked with the credentials of a client whose stream broke.
    Unauthorized,
}

impl Capability {
    /// Every one, in declaration order.
    pub const ALL: [Self; 4] = [
        Self::Unknown,
        Self::Supported,
        Self::Unsupported,
        Self::Unauthorized,
    ];

    /// Would another question help?
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Unknown | Self::Unauthorized)
    }

    /// The name in metrics and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Supported => "supported",
            Self::Unsupported => "unsupported",
            Self::Unauthorized => "unauthorized",
        }
    }
}

/// A question about a server: how it is asked to continue a message, and what proves that it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Probe {
    /// Chat Completions with `continue_final_message`.
    Chat,
    /// Messages whose last one is the assistant's.
    Messages,
}

impl Probe {
    /// Every one, in declaration order.
    pub const ALL: [Self; 2] = [Self::Chat, Self::Messages];

    /// The proof that a server needs before it continues a stream of this family. None if the server only continues a prompt.
    #[must_use]
    pub const fn of(api: Api) -> Option<Self> {
        match api {
            Api::Chat => Some(Self::Chat),
            Api::Messages => Some(Self::Messages),
            _ => None,
        }
    }

    /// The name in metrics and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Messages => "messages",
        }
    }

    /// The path that it is sent to.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
        }
    }

    /// A request that a server refuses if it would continue a message.
    ///
    /// In Chat, because both fields contradict each other. In Messages, because a message that is to be continued must not end
    /// in white space.
    #[must_use]
    pub fn body(self, model: &str) -> Vec<u8> {
        let mut body = json!({
            "model": model,
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b "},
            ],
            "max_tokens": 1,
        });
        if self == Self::Chat {
            body["continue_final_message"] = true.into();
            body["add_generation_prompt"] = true.into();
        }
        body.to_string().into_bytes()
    }

    /// Interprets the response to [`Probe::body`].
    ///
    /// Only a 400 that gives the expected reason proves that the server continues messages. One that gives another, and any
    /// success, prove that it does not. Errors that mean unavailable or busy prove nothing.
    #[must_use]
    pub fn classify(self, status: u16, body: &[u8]) -> Capability {
        match status {
            401 | 403 => return Capability::Unauthorized,
            404 | 408 | 429 | 500.. => return Capability::Unknown,
            400 => {}
            _ => return Capability::Unsupported,
        }
        let text = String::from_utf8_lossy(body).to_ascii_lowercase();
        let says = |word: &str| text.contains(word);
        let unknown = [
            "unsupported",
            "not supported",
            "does not support",
            "unknown",
            "unrecognized",
            "unexpected",
            "not permitted",
            "extra_forbidden",
            "extra inputs",
        ];
        let is_proof = match self {
            Self::Chat => {
                says("continue_final_message")
                    && says("add_generation_prompt")
                    && says("cannot set both")
            }
            Self::Messages => says("final assistant content cannot end with trailing whitespace"),
        };
        if is_proof && !unknown.into_iter().any(says) {
            Capability::Supported
        } else {
            Capability::Unsupported
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_400_that_says_both_cannot_be_set_is_proof() {
        use Capability::{Supported, Unauthorized, Unknown, Unsupported};
        let both = r#"{"message":"Validation: Cannot set both `continue_final_message` and `add_generation_prompt` to True.","type":"Bad Request","code":400}"#;
        let vllm = r#"{"error":{"message":"1 validation error: Value error, Cannot set both `continue_final_message` and `add_generation_prompt` to True.","type":"BadRequestError","code":400}}"#;
        let unsupported = r#"{"message":"Validation: Unsupported parameter(s): `continue_final_message`, `add_generation_prompt`","code":400}"#;
        let forbidden = r#"{"detail":[{"type":"extra_forbidden","loc":["body","continue_final_message"]},{"type":"extra_forbidden","loc":["body","add_generation_prompt"]}]}"#;
        for (status, body, expected) in [
            (400, both, Supported),
            (400, vllm, Supported),
            (400, unsupported, Unsupported),
            (400, forbidden, Unsupported),
            (400, r#"{"message":"bad"}"#, Unsupported),
            (400, "", Unsupported),
            (422, forbidden, Unsupported),
            (200, both, Unsupported),
            (200, r#"{"choices":[]}"#, Unsupported),
            (401, "", Unauthorized),
            (403, both, Unauthorized),
            (404, "", Unknown),
            (429, "", Unknown),
            (503, both, Unknown),
            (529, "", Unknown),
        ] {
            let classified = Probe::Chat.classify(status, body.as_bytes());
            assert_eq!(classified, expected, "{status} {body}");
        }
    }

    #[test]
    fn only_a_server_that_minds_how_the_last_message_ends_continues_it() {
        use Capability::{Supported, Unauthorized, Unknown, Unsupported};
        let proof = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: final assistant content cannot end with trailing whitespace"}}"#;
        let none = r#"{"type":"error","error":{"type":"invalid_request_error","message":"This model does not support assistant message prefill. The conversation must end with a user message."}}"#;
        let answer =
            r#"{"type":"message","role":"assistant","content":[{"type":"text","text":"b"}]}"#;
        for (status, body, expected) in [
            (400, proof, Supported),
            (400, none, Unsupported),
            (
                400,
                r#"{"message":"Cannot set both `continue_final_message` and `add_generation_prompt` to True."}"#,
                Unsupported,
            ),
            (200, answer, Unsupported),
            (200, proof, Unsupported),
            (422, proof, Unsupported),
            (401, "", Unauthorized),
            (404, "", Unknown),
            (529, proof, Unknown),
        ] {
            let classified = Probe::Messages.classify(status, body.as_bytes());
            assert_eq!(classified, expected, "{status} {body}");
        }
    }

    #[test]
    fn the_probe_requests_one_token_of_the_model() {
        for (probe, both) in [(Probe::Chat, json!(true)), (Probe::Messages, json!(null))] {
            let body = probe.body("a \"b\"");
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["model"], "a \"b\"");
            assert_eq!(body["max_tokens"], 1);
            assert_eq!(body["messages"][1]["content"], "b ");
            assert_eq!(body["continue_final_message"], both);
            assert_eq!(body["add_generation_prompt"], both);
        }
    }
}
