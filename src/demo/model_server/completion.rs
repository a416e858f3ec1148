//! The JSON of one response, in the forms of Chat Completions and Completions.
//!
//! Source: OpenAI API reference, "Chat completion chunk" and "Completion".

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::MODEL;
use crate::demo::transcript::{self, Words};
use crate::split::Generation;

/// Tokens of a response without a limit.
const LENGTH: std::ops::RangeInclusive<usize> = 30..=120;

/// The API family of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// The response to one request.
#[derive(Clone, Debug)]
pub(super) struct Completion {
    api: Api,
    generation: Generation,
    id: String,
    created: u64,
    /// Its number of tokens.
    pub(super) tokens: usize,
    finish_reason: &'static str,
    /// Whether a stream ends with the usage.
    include_usage: bool,
    prompt_tokens: usize,
    /// The text that the response continues.
    begun: Option<String>,
}

/// Whether the server must continue the last message of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastMessage {
    /// No: it is a message like the others.
    Closed,
    /// Yes: the response continues it.
    Open,
    /// The request contradicts itself.
    Both,
}

impl LastMessage {
    pub(super) fn of(request: &Value) -> Self {
        let is_set = |field| request.get(field).and_then(Value::as_bool);
        let opens = is_set("continue_final_message") == Some(true);
        match (opens, is_set("add_generation_prompt")) {
            (false, _) => Self::Closed,
            (true, Some(true)) => Self::Both,
            (true, _) => Self::Open,
        }
    }
}

/// The text that the response to `request` continues.
fn begun(request: &Value, api: Api) -> Option<String> {
    let text = match api {
        Api::Chat if LastMessage::of(request) == LastMessage::Open => request
            .get("messages")?
            .as_array()?
            .last()?
            .get("content")?,
        Api::Chat => return None,
        // A prompt is always continued. Most prompts are not the start of a generation's text.
        Api::Completions => request.get("prompt")?,
    };
    Some(text.as_str()?.to_owned())
}

impl Completion {
    /// Chooses length and identity of the response to `request`.
    pub(super) fn to(request: &Value, api: Api, generation: Generation) -> Self {
        let limit = ["max_completion_tokens", "max_tokens"]
            .iter()
            .find_map(|field| request.get(field)?.as_u64())
            .and_then(|limit| usize::try_from(limit).ok());
        let wanted = fastrand::usize(LENGTH);
        let tokens = limit.map_or(wanted, |limit| wanted.min(limit.max(1)));
        let (prefix, prompt) = match api {
            Api::Chat => ("chatcmpl", request.get("messages")),
            Api::Completions => ("cmpl", request.get("prompt")),
        };
        Self {
            api,
            generation,
            begun: begun(request, api),
            id: format!("{prefix}-{:016x}", fastrand::u64(..)),
            created: unix_seconds(),
            tokens,
            finish_reason: if tokens < wanted { "length" } else { "stop" },
            include_usage: request
                .pointer("/stream_options/include_usage")
                .and_then(Value::as_bool)
                == Some(true),
            prompt_tokens: prompt.map_or(0, |prompt| prompt.to_string().split_whitespace().count()),
        }
    }

    /// The words, of which [`Completion::tokens`] make the response.
    pub(super) fn words(&self) -> Words {
        let continued = self.begun.as_deref().and_then(transcript::after);
        continued.map_or_else(|| transcript::words(self.generation), |(_, words)| words)
    }

    /// The event before the first content: chat only.
    pub(super) fn opening(&self) -> Option<Value> {
        (self.api == Api::Chat)
            .then(|| self.chunk(&json!({"role": "assistant", "content": ""}), None))
    }

    /// The event of one token.
    pub(super) fn token(&self, word: &str) -> Value {
        match self.api {
            Api::Chat => self.chunk(&json!({"content": word}), None),
            Api::Completions => self.chunk(&json!(word), None),
        }
    }

    /// The events after the last token, without `[DONE]`.
    pub(super) fn closing(&self) -> Vec<Value> {
        let last = match self.api {
            Api::Chat => self.chunk(&json!({}), Some(self.finish_reason)),
            Api::Completions => self.chunk(&json!(""), Some(self.finish_reason)),
        };
        let usage = self.include_usage.then(|| {
            let mut usage = self.envelope(&json!([]), true);
            usage["usage"] = self.usage();
            usage
        });
        std::iter::once(last).chain(usage).collect()
    }

    /// The response in one piece.
    pub(super) fn whole(&self) -> Value {
        let text: String = self.words().take(self.tokens).collect();
        let mut choice = json!({"index": 0, "logprobs": null, "finish_reason": self.finish_reason});
        match self.api {
            Api::Chat => choice["message"] = json!({"role": "assistant", "content": text}),
            Api::Completions => choice["text"] = json!(text),
        }
        let mut whole = self.envelope(&json!([choice]), false);
        whole["usage"] = self.usage();
        whole
    }

    fn chunk(&self, content: &Value, finish_reason: Option<&str>) -> Value {
        let field = match self.api {
            Api::Chat => "delta",
            Api::Completions => "text",
        };
        let choice =
            json!({"index": 0, field: content, "logprobs": null, "finish_reason": finish_reason});
        self.envelope(&json!([choice]), true)
    }

    fn envelope(&self, choices: &Value, is_chunk: bool) -> Value {
        let object = match (self.api, is_chunk) {
            (Api::Chat, true) => "chat.completion.chunk",
            (Api::Chat, false) => "chat.completion",
            (Api::Completions, _) => "text_completion",
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": MODEL,
            "system_fingerprint": fingerprint(self.generation),
            "choices": choices,
        })
    }

    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt_tokens + self.tokens,
        })
    }
}

/// The entry of `/v1/models`.
pub(super) fn model(generation: Generation) -> Value {
    json!({"id": MODEL, "object": "model", "created": unix_seconds(), "owned_by": fingerprint(generation)})
}

fn fingerprint(generation: Generation) -> &'static str {
    match generation {
        Generation::Old => "demo-old",
        Generation::New => "demo-new",
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
