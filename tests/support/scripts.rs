//! Typical responses of model servers, labelled by generation, in the formats of Dynamo's frontends.

use std::sync::Arc;

use super::upstream::{Received, Script};

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";
pub const RESPONSES: &str = "/v1/responses";
pub const MESSAGES: &str = "/v1/messages";
pub const MODELS: &str = "/v1/models";

/// A request for a stream.
pub const STREAMING: &str =
    r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
/// A request for a unary response.
pub const UNARY: &str = r#"{"model":"tiny","messages":[{"role":"user","content":"hello"}]}"#;

pub const DONE: &str = "data: [DONE]\n\n";

/// The API families that stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Chat,
    Completions,
    Responses,
    Messages,
}

impl Family {
    pub const ALL: [Self; 4] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
    ];

    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => CHAT,
            Self::Completions => COMPLETIONS,
            Self::Responses => RESPONSES,
            Self::Messages => MESSAGES,
        }
    }

    /// The metric label.
    pub fn class(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
        }
    }

    /// The events that precede any content; none in Completions.
    pub fn preamble(self, name: &str) -> String {
        match self {
            Self::Chat => chunk(name, r#"{"role":"assistant","content":""}"#, "null"),
            Self::Completions => String::new(),
            Self::Responses => [
                (
                    "response.created",
                    format!(r#""response":{{"id":"{name}"}}"#),
                ),
                (
                    "response.in_progress",
                    format!(r#""response":{{"id":"{name}"}}"#),
                ),
                (
                    "response.output_item.added",
                    format!(r#""item":{{"id":"{name}"}}"#),
                ),
                (
                    "response.content_part.added",
                    format!(r#""item_id":"{name}""#),
                ),
            ]
            .iter()
            .map(|(kind, rest)| typed(kind, rest))
            .collect(),
            Self::Messages => [
                (
                    "message_start",
                    format!(r#""message":{{"id":"{name}","role":"assistant"}}"#),
                ),
                (
                    "content_block_start",
                    r#""index":0,"content_block":{"type":"text","text":""}"#.into(),
                ),
                ("ping", r#""index":0"#.into()),
            ]
            .iter()
            .map(|(kind, rest)| typed(kind, rest))
            .collect(),
        }
    }

    /// One event with content.
    pub fn content(self, name: &str, index: usize) -> String {
        match self {
            Self::Chat => chunk(name, &format!(r#"{{"content":"{name}:{index} "}}"#), "null"),
            Self::Completions => format!(
                "data: {{\"id\":\"cmpl-{name}\",\"object\":\"text_completion\",\"choices\":[{{\"index\":0,\"text\":\"{name}:{index} \"}}]}}\n\n"
            ),
            Self::Responses => typed(
                "response.output_text.delta",
                &format!(r#""delta":"{name}:{index} ""#),
            ),
            Self::Messages => typed(
                "content_block_delta",
                &format!(r#""index":0,"delta":{{"type":"text_delta","text":"{name}:{index} "}}"#),
            ),
        }
    }

    /// The events that complete a stream.
    pub fn terminal(self, name: &str) -> String {
        match self {
            Self::Chat => chunk(name, "{}", r#""stop""#) + DONE,
            Self::Completions => DONE.into(),
            Self::Responses => typed(
                "response.completed",
                &format!(r#""response":{{"id":"{name}"}}"#),
            ),
            Self::Messages => typed("message_stop", r#""x":0"#),
        }
    }

    /// The complete text of a stream with `count` content events.
    pub fn stream(self, name: &str, count: usize) -> String {
        let content: String = (0..count).map(|index| self.content(name, index)).collect();
        self.preamble(name) + &content + &self.terminal(name)
    }
}

fn chunk(name: &str, delta: &str, finish: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-{name}\",\"object\":\"chat.completion.chunk\",\"model\":\"tiny\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n"
    )
}

fn typed(kind: &str, rest: &str) -> String {
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{rest}}}\n\n")
}

/// A head, then each event of `text` in its own chunk.
pub fn stream_of(text: &str) -> Script {
    Script::new().sse().events(text)
}

/// A complete chat stream with three content events.
pub fn chat_stream(name: &str) -> Script {
    stream_of(&chat_text(name))
}

/// The text that [`chat_stream`] sends.
pub fn chat_text(name: &str) -> String {
    Family::Chat.stream(name, 3)
}

/// One event of chat content.
pub fn content(name: &str, index: usize) -> String {
    Family::Chat.content(name, index)
}

/// The first event of a chat, with only a role.
pub fn role(name: &str) -> String {
    Family::Chat.preamble(name)
}

/// A unary response that names its generation.
pub fn unary(name: &str) -> Script {
    Script::new().json(200, &unary_text(name))
}

pub fn unary_text(name: &str) -> String {
    format!(
        r#"{{"id":"chatcmpl-{name}","object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"{name}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}}}"#
    )
}

/// A list of models.
pub fn models(ids: &[&str]) -> Script {
    let list: Vec<_> = ids
        .iter()
        .map(|id| serde_json::json!({"id": id, "object": "model", "created": 1, "owned_by": "nvidia"}))
        .collect();
    let body = serde_json::json!({"object": "list", "data": list});
    Script::new().json(200, &body.to_string())
}

/// An error event as Dynamo sends it in a stream.
pub fn error_event(code: u16) -> String {
    format!(
        "data: {{\"error\":{{\"message\":\"from upstream\",\"type\":\"scripted\",\"code\":{code}}}}}\n\n"
    )
}

/// A 200 whose first data event is an error, ended as Dynamo does.
pub fn error_first(code: u16) -> Script {
    stream_of(&(error_event(code) + DONE))
}

/// A response with this status, in Dynamo's format.
pub fn status(code: u16) -> Script {
    Script::new().json(code, &status_text(code))
}

/// The text that [`status`] sends.
pub fn status_text(code: u16) -> String {
    format!(r#"{{"message":"scripted {code}","type":"Scripted","code":{code}}}"#)
}

/// The response of a frontend without workers.
pub fn empty_404() -> Script {
    Script::new().head(404, &[]).end()
}

pub const MODEL_NOT_FOUND: &str = r#"{"message":"Model not found","type":"Not Found","code":404}"#;

pub fn model_not_found() -> Script {
    Script::new().json(404, MODEL_NOT_FOUND)
}

/// A handler that responds to each kind of request like a healthy frontend, with its name in each response.
pub fn healthy(name: &'static str) -> impl Fn(&Received) -> Script + Send + Sync + 'static {
    move |received| {
        let path = received.target.split('?').next().unwrap_or_default();
        if path.ends_with("/v1/models") {
            return models(&["tiny"]);
        }
        if received.method != "POST" {
            let body = format!("{name}: {} {}", received.method, received.target);
            return Script::new().answer(200, "text/plain", body);
        }
        let family = Family::ALL
            .into_iter()
            .find(|family| path.ends_with(family.path()));
        Script::by_body(move |received| {
            let is_stream = String::from_utf8_lossy(&received.body()).contains("\"stream\":true");
            match family {
                Some(family) if is_stream => stream_of(&family.stream(name, 3)),
                _ => unary(name),
            }
        })
    }
}

/// A handler that responds to POSTs with `script` and lists its models.
pub fn serving(script: Script) -> impl Fn(&Received) -> Script + Send + Sync + 'static {
    let script = Arc::new(script);
    move |received| {
        if received.method == "GET" && received.target.ends_with("/v1/models") {
            models(&["tiny"])
        } else {
            (*script).clone()
        }
    }
}
