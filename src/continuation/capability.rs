//! Finds out whether a server continues the last message of a conversation: the probe, and the meaning of the response.

use serde_json::json;

use crate::sse::Api;

/// Whether a server continues the last message of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capability {
    /// It has not been asked, or its response was inconclusive.
    #[default]
    Unknown,
    /// It respects the fields that request a continuation.
    Supported,
    /// It does not know the fields that request a continuation, or ignores them.
    Unsupported,
    /// It answers only authenticated requests, so it is asked with the credentials of a client whose stream broke.
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

    /// Whether another probe could change the result.
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

/// A probe: how it asks a server to continue a message, and what proves that the server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Probe {
    /// Chat Completions with `continue_final_message`.
    Chat,
    /// Messages that end with an assistant message.
    Messages,
}

impl Probe {
    /// Every one, in declaration order.
    pub const ALL: [Self; 2] = [Self::Chat, Self::Messages];

    /// The probe that a server must pass before it continues a stream of this family. `None` if the server only continues a
    /// prompt.
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

    /// A request that a server rejects if it can continue messages.
    ///
    /// In Chat, because the two fields contradict each other. In Messages, because a message to be continued must not end in
    /// whitespace.
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

    /// Interprets the response to [`Probe::body`] of this `model`.
    ///
    /// Only a 400 that gives the expected reason proves that the server continues messages. A 400 with another reason, or any
    /// success, proves that it does not. Errors that mean unavailable or busy prove nothing.
    #[must_use]
    pub fn classify(self, model: &str, status: u16, body: &[u8]) -> Capability {
        match status {
            401 | 403 => return Capability::Unauthorized,
            404 | 408 | 429 | 500.. => return Capability::Unknown,
            400 => {}
            _ => return Capability::Unsupported,
        }
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
        let (text, name) = (plain(&String::from_utf8_lossy(body)), plain(model));
        let says = |words: &&str| text.contains(words);
        // Errors quote what they reject. Of the request, only the name of the model, which clients choose, could contain one of
        // these reasons.
        let is_quoted = |words: &&str| name.contains(words);
        let is_proof = self
            .reasons()
            .iter()
            .any(|reason| says(reason) && !is_quoted(reason));
        if is_proof && !unknown.iter().any(says) {
            Capability::Supported
        } else {
            Capability::Unsupported
        }
    }

    /// The reasons for which a server that can continue messages rejects the probe, in [`plain`] words.
    const fn reasons(self) -> &'static [&'static str] {
        match self {
            Self::Chat => &[
                "cannot set both continue_final_message and add_generation_prompt",
                "cannot set both add_generation_prompt and continue_final_message",
            ],
            Self::Messages => &["final assistant content cannot end with trailing whitespace"],
        }
    }
}

/// The words of a text in lower case, one space between them, without quotes around them.
///
/// A backslash is only removed before a quote. Otherwise the `\t` of a quoted tab would become a letter.
fn plain(text: &str) -> String {
    let unescaped = text.replace("\\\"", "\"").to_ascii_lowercase();
    let words = unescaped.replace(['`', '\'', '"'], "");
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_400_that_says_both_cannot_be_set_is_proof() {
        use Capability::{Supported, Unauthorized, Unknown, Unsupported};
        let both = r#"{"message":"Validation: Cannot set both `continue_final_message` and `add_generation_prompt` to True.","type":"Bad Request","code":400}"#;
        let vllm = r#"{"error":{"message":"1 validation error: Value error, Cannot set both `continue_final_message` and `add_generation_prompt` to True.","type":"BadRequestError","code":400}}"#;
        let unsupported = r#"{"message":"Validation: Unsupported parameter(s): `continue_final_message`, `add_generation_prompt`","code":400}"#;
        let forbidden = r#"{"detail":[{"type":"extra_forbidden","loc":["body","continue_final_message"]},{"type":"extra_forbidden","loc":["body","add_generation_prompt"]}]}"#;
        // As text of Python, with the request.
        let python = r#"{"message":"[{'type': 'value_error', 'msg': 'Value error, Cannot set both `continue_final_message` and `add_generation_prompt` to True.', 'input': {'model': 'tiny', 'messages': [{'role': 'user', 'content': 'a'}]}}]","code":400}"#;
        let swapped = r#"{"error":"cannot set both \"add_generation_prompt\" and \"continue_final_message\""}"#;
        let apart = r#"{"message":"Cannot set both `n` and `stream`.","input":{"continue_final_message":true,"add_generation_prompt":true}}"#;
        for (status, body, expected) in [
            (400, both, Supported),
            (400, vllm, Supported),
            (400, unsupported, Unsupported),
            (400, forbidden, Unsupported),
            (400, python, Supported),
            (400, swapped, Supported),
            (400, apart, Unsupported),
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
            let classified = Probe::Chat.classify("tiny", status, body.as_bytes());
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
            let classified = Probe::Messages.classify("tiny", status, body.as_bytes());
            assert_eq!(classified, expected, "{status} {body}");
        }
    }

    /// A name of a model, which clients choose, out of parts of the proofs.
    fn name() -> impl Strategy<Value = String> {
        const PARTS: &[&str] = &[
            "cannot set both",
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
            "cannot\nset both",
            "canno\t set both continue_final_message and add_generation_prompt",
            "continue_final_message",
            " and ",
            "add_generation_prompt",
            "Final assistant content cannot end with trailing whitespace",
            "final\tassistant content",
            "cannot end with \"trailing\" whitespace",
            "\\",
            "'",
            "tiny",
        ];
        proptest::collection::vec(proptest::sample::select(PARTS), 0..5)
            .prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn a_server_that_quotes_the_question_proves_nothing(
            model in name(), probe in proptest::sample::select(&Probe::ALL[..]), how in 0..5,
        ) {
            let body = String::from_utf8(probe.body(&model)).unwrap();
            let quoted = match how {
                0 => json!({"message": format!("no model {model}")}).to_string(),
                1 => format!("no model {model}"),
                2 => format!("cannot read {body}"),
                3 => json!({"message": format!("cannot read {body}")}).to_string(),
                _ => json!({"detail": [{"msg": "no", "input": model}]}).to_string().to_uppercase(),
            };
            let classified = probe.classify(&model, 400, quoted.as_bytes());
            prop_assert_eq!(classified, Capability::Unsupported, "{}", quoted);
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
