//! A model server that generates one long, known text and can continue it from wherever the prompt ends. So the text that several
//! servers have sent together can be compared with that of a single server.

use std::sync::Arc;

use serde_json::{Value, json};

use super::scripts::{COMPLETIONS, DONE, MESSAGES, models};
use super::upstream::{Received, Script};

/// The words of the text. Each has a character that JSON escapes or that takes several bytes.
pub fn words(count: usize) -> String {
    (0..count).map(word).collect()
}

fn word(index: usize) -> String {
    let end = ["é ", "\"\n", "€😀 ", "\\ "][index % 4];
    format!("w{index}{end}")
}

/// How a server breaks off a response.
pub type Break = Arc<dyn Fn(Script) -> Script + Send + Sync>;

/// A model server.
#[derive(Clone)]
pub struct Counting {
    /// A part of its IDs.
    pub name: &'static str,
    /// The number of words of the text.
    pub words: usize,
    /// When and how it breaks off its own response.
    pub breaks: Option<(usize, Break)>,
    /// When and how it breaks off a continuation.
    pub breaks_again: Option<(usize, Break)>,
    /// How it treats continuation flags.
    pub flags: Flags,
    /// The `authorization` that it requires.
    pub key: Option<&'static str>,
    /// The number of reasoning words before an answer, and before a continuation.
    pub thinks: [usize; 2],
    /// Whether every event has token counts.
    pub counts: bool,
    /// Additional fields of a delta.
    pub delta: Value,
    /// An event that it sends before the first event and after each one until the finish reason.
    pub keep_alive: &'static str,
}

/// How a server treats a request to continue a message: two flags in Chat, or an assistant message at the end in Messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// It continues, and rejects contradictions: both flags at once, or a last message that ends with white space.
    Known,
    /// It ignores the flags: it responds to the probe and starts a new turn.
    Ignored,
    /// It rejects the request.
    Refused,
    /// It never responds to the probe.
    Hangs,
}

impl Counting {
    pub fn new(name: &'static str, words: usize) -> Self {
        Self {
            name,
            words,
            breaks: None,
            breaks_again: None,
            flags: Flags::Known,
            key: None,
            thinks: [0, 0],
            counts: false,
            delta: json!({}),
            keep_alive: "",
        }
    }

    /// Breaks off after this number of words.
    pub fn breaking(
        mut self,
        after: usize,
        how: impl Fn(Script) -> Script + Send + Sync + 'static,
    ) -> Self {
        self.breaks = Some((after, Arc::new(how)));
        self
    }

    /// The handler of a server.
    pub fn handler(self) -> impl Fn(&Received) -> Script + Send + Sync + 'static {
        let this = Arc::new(self);
        move |received| {
            let key = this.key.map(|key| format!("Bearer {key}"));
            if key.is_some() && received.header("authorization") != key.as_deref() {
                return Script::new().json(401, r#"{"error":{"message":"no key","code":401}}"#);
            }
            if received.target.ends_with("/v1/models") {
                return models(&["tiny"]);
            }
            let this = Arc::clone(&this);
            Script::by_body(move |received| this.answer(received))
        }
    }

    fn answer(&self, received: &Received) -> Script {
        let body: Value = serde_json::from_slice(&received.body()).unwrap_or_default();
        if received.target.contains(MESSAGES) {
            return self.answer_messages(&body);
        }
        let flag = |name: &str| body[name] == true;
        let both = flag("continue_final_message") && flag("add_generation_prompt");
        match self.flags {
            Flags::Known if both => {
                return Script::new().json(400, r#"{"message":"Validation: Cannot set both `continue_final_message` and `add_generation_prompt` to True.","type":"Bad Request","code":400}"#);
            }
            Flags::Hangs if both => return Script::new().hang(),
            Flags::Refused if !body["continue_final_message"].is_null() => {
                return Script::new().json(400, r#"{"message":"Validation: Unsupported parameter(s): `continue_final_message`, `add_generation_prompt`","code":400}"#);
            }
            _ => {}
        }
        let completions = received.target.contains(COMPLETIONS);
        let given = match (completions, body["messages"].as_array()) {
            (true, _) => body["prompt"].as_str().unwrap_or_default(),
            (false, Some(messages)) if flag("continue_final_message") => {
                let last = messages.last().map(|message| &message["content"]);
                last.and_then(Value::as_str).unwrap_or_default()
            }
            _ => "",
        };
        // The prompt of a completion is the question, then the text so far.
        let given = given.strip_prefix("say: ").unwrap_or(given);
        self.script(completions, given, &body)
    }

    fn keep_alive(&self, script: Script) -> Script {
        match self.keep_alive {
            "" => script,
            event => script.chunk(event),
        }
    }

    fn answer_messages(&self, body: &Value) -> Script {
        let last = body["messages"].as_array().and_then(|all| all.last());
        let prefill = last.filter(|last| last["role"] == "assistant");
        let prefill = prefill.and_then(|last| last["content"].as_str());
        let ends_blank = prefill.is_some_and(|prefill| prefill.ends_with(char::is_whitespace));
        let given = match (self.flags, prefill) {
            (Flags::Known, Some(_)) if ends_blank => {
                return refused(
                    "messages: final assistant content cannot end with trailing whitespace",
                );
            }
            (Flags::Refused, Some(_)) => {
                return refused("This model does not support assistant message prefill.");
            }
            (Flags::Hangs, Some(_)) => return Script::new().hang(),
            (Flags::Known, Some(given)) => given,
            (_, None) | (Flags::Ignored, Some(_)) => "",
        };
        let text = words(self.words);
        let Some(rest) = text.strip_prefix(given) else {
            return refused("another text");
        };
        let breaks = match given.is_empty() {
            true => &self.breaks,
            false => &self.breaks_again,
        };
        let prompt = 10 + given.split_inclusive([' ', '\n']).count();
        let event = |data: Value| {
            let kind = data["type"].as_str().unwrap_or_default();
            format!("event: {kind}\ndata: {data}\n\n")
        };
        let message = json!({
            "id": format!("msg_{}", self.name), "type": "message", "role": "assistant", "model": "tiny", "content": [],
            "stop_reason": null, "usage": {"input_tokens": prompt, "output_tokens": 1},
        });
        let (mut script, mut index, mut sent) = (Script::new().sse(), 0, 0);
        script = script.chunk(event(json!({"type": "message_start", "message": message})));
        script = script.chunk(event(json!({"type": "ping"})));
        let thinks = self.thinks[usize::from(!given.is_empty())];
        if thinks > 0 {
            let block = json!({"type": "thinking", "thinking": "", "signature": ""});
            script = script.chunk(event(
                json!({"type": "content_block_start", "index": 0, "content_block": block}),
            ));
            let delta = json!({"type": "thinking_delta", "thinking": "hm"});
            script = script.chunk(event(
                json!({"type": "content_block_delta", "index": 0, "delta": delta}),
            ));
            script = script.chunk(event(json!({"type": "content_block_stop", "index": 0})));
            index = 1;
        }
        let block = json!({"type": "text", "text": ""});
        script = script.chunk(event(
            json!({"type": "content_block_start", "index": index, "content_block": block}),
        ));
        let text = |text: &str| {
            let delta = json!({"type": "text_delta", "text": text});
            event(json!({"type": "content_block_delta", "index": index, "delta": delta}))
        };
        let (blank, rest) = without_blank(rest);
        for (number, word) in rest.split_inclusive([' ', '\n']).enumerate() {
            if let Some((after, how)) = breaks
                && *after == number
            {
                return how(script);
            }
            if number == 0 && !blank.is_empty() {
                sent += 1;
                script = script.chunk(text(blank));
            }
            sent += 1;
            script = script.chunk(text(word));
        }
        script = script.chunk(event(json!({"type": "content_block_stop", "index": index})));
        script = script.chunk(event(json!({
            "type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
            "usage": {"output_tokens": sent},
        })));
        script.chunk(event(json!({"type": "message_stop"})))
    }

    fn script(&self, completions: bool, given: &str, body: &Value) -> Script {
        let text = words(self.words);
        let Some(rest) = text.strip_prefix(given) else {
            return Script::new().json(400, r#"{"message":"another text","code":400}"#);
        };
        let is_first = given.is_empty();
        let breaks = if is_first {
            &self.breaks
        } else {
            &self.breaks_again
        };
        let prompt = 10 + given.split_inclusive([' ', '\n']).count();
        let wants_usage = body["stream_options"]["include_usage"] == true;
        let mut sent = 0;
        let mut script = Script::new().sse();
        let chunk = |delta: Value, finish: Value, sent: usize| {
            let choice = match completions {
                true => json!({"index": 0, "text": delta["content"], "finish_reason": finish}),
                false => {
                    json!({"index": 0, "delta": delta, "finish_reason": finish, "logprobs": null})
                }
            };
            let mut chunk = json!({
                "id": format!("cmpl-{}", self.name), "created": self.name.len(),
                "object": "chunk", "model": "tiny", "system_fingerprint": self.name,
                "choices": [choice],
            });
            if self.counts {
                chunk["usage"] = usage(prompt, sent);
            }
            format!("data: {chunk}\n\n")
        };
        script = self.keep_alive(script);
        script = script.chunk(chunk(
            json!({"role": "assistant", "content": ""}),
            Value::Null,
            0,
        ));
        script = self.keep_alive(script);
        let thinks = self.thinks[usize::from(!is_first)];
        for index in 0..thinks {
            sent += 1;
            let delta = json!({"reasoning_content": format!("{} thinks {index} ", self.name)});
            script = script.chunk(chunk(delta, Value::Null, sent));
        }
        let (blank, rest) = without_blank(rest);
        for (index, word) in rest.split_inclusive([' ', '\n']).enumerate() {
            if let Some((after, how)) = breaks
                && *after == index
            {
                return how(script);
            }
            if index == 0 && !blank.is_empty() {
                sent += 1;
                script = script.chunk(chunk(json!({"content": blank}), Value::Null, sent));
            }
            sent += 1;
            let mut delta = json!({"content": word});
            for (key, value) in self.delta.as_object().into_iter().flatten() {
                delta[key] = value.clone();
            }
            script = script.chunk(chunk(delta, Value::Null, sent));
            script = self.keep_alive(script);
        }
        script = script.chunk(chunk(json!({"content": ""}), "stop".into(), sent));
        if wants_usage {
            let last = json!({
                "id": format!("cmpl-{}", self.name), "model": "tiny", "choices": [],
                "usage": usage(prompt, sent),
            });
            script = script.chunk(format!("data: {last}\n\n"));
        }
        script.chunk(DONE)
    }
}

/// Splits the white space at the start of a text, which is a separate token and not a word, from the rest.
fn without_blank(text: &str) -> (&str, &str) {
    text.split_at(text.len() - text.trim_start().len())
}

fn usage(prompt: usize, sent: usize) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": sent, "total_tokens": prompt + sent})
}

/// The rejection of a Messages request.
fn refused(message: &str) -> Script {
    let error = json!({"type": "invalid_request_error", "message": message});
    Script::new().json(400, &json!({"type": "error", "error": error}).to_string())
}
