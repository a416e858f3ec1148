//! Whether a server continues the last message of a chat: what to ask it, and what its answer means.

use serde_json::json;

/// Whether a server continues the last message of a chat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capability {
    /// It has not been asked, or its answer says nothing about it.
    #[default]
    Unknown,
    /// It knows the fields and acts on them.
    Supported,
    /// It does not know the fields, or ignores them.
    Unsupported,
}

impl Capability {
    /// The name in metrics and reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Supported => "supported",
            Self::Unsupported => "unsupported",
        }
    }
}

/// Where [`probe_body`] goes.
pub const PROBE_PATH: &str = "/v1/chat/completions";

/// A chat request that a server refuses if it acts on both fields, because they contradict each other.
#[must_use]
pub fn probe_body(model: &str) -> Vec<u8> {
    json!({
        "model": model,
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
        ],
        "max_tokens": 1,
        "continue_final_message": true,
        "add_generation_prompt": true,
    })
    .to_string()
    .into_bytes()
}

/// What the answer to [`probe_body`] means.
///
/// Only a 400 that says that both fields cannot be set proves that the server acts on them. One that calls them unknown, and
/// any success, prove that it does not. What says that the server is not there or busy proves nothing.
#[must_use]
pub fn judge(status: u16, body: &[u8]) -> Capability {
    match status {
        404 | 408 | 429 | 500.. => return Capability::Unknown,
        400 => {}
        _ => return Capability::Unsupported,
    }
    let text = String::from_utf8_lossy(body).to_ascii_lowercase();
    let says = |word: &str| text.contains(word);
    let names_both = says("continue_final_message") && says("add_generation_prompt");
    let unknown = [
        "unsupported",
        "not supported",
        "unknown",
        "unrecognized",
        "unexpected",
        "not permitted",
        "extra_forbidden",
        "extra inputs",
    ];
    if names_both && says("cannot set both") && !unknown.into_iter().any(says) {
        Capability::Supported
    } else {
        Capability::Unsupported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_400_that_says_both_cannot_be_set_is_proof() {
        use Capability::{Supported, Unknown, Unsupported};
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
            (401, "", Unsupported),
            (404, "", Unknown),
            (429, "", Unknown),
            (503, both, Unknown),
            (529, "", Unknown),
        ] {
            assert_eq!(judge(status, body.as_bytes()), expected, "{status} {body}");
        }
    }

    #[test]
    fn the_question_names_the_model_and_asks_for_one_token() {
        let body = probe_body("a \"b\"");
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["model"], "a \"b\"");
        assert_eq!(body["max_tokens"], 1);
        assert_eq!(body["continue_final_message"], true);
        assert_eq!(body["add_generation_prompt"], true);
    }
}
