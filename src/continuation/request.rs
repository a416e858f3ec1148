//! Decides whether a request can be sent again so that the response continues where it broke off, and builds the body of that
//! request.

use std::ops::Range;

use bytes::Bytes;

use super::ContinuationReason;
use super::json::{self, Edit, Object};
use super::text::given;
use crate::sse::Api;

/// Fields that restrict the output to a grammar or schema, besides those that begin with `guided_`.
const GUIDED: [&str; 5] = [
    "structured_outputs",
    "grammar",
    "json_schema",
    "regex",
    "ebnf",
];

/// Fields that limit the number of generated tokens.
const LIMITS: [&str; 2] = ["max_tokens", "max_completion_tokens"];

/// A request for a stream, as its client sent it.
#[derive(Debug)]
pub struct Request<'a> {
    api: Api,
    object: Object<'a>,
}

impl<'a> Request<'a> {
    /// Reads a request body.
    ///
    /// # Errors
    /// When it is not understood.
    pub fn read(api: Api, body: &'a [u8]) -> Result<Self, ContinuationReason> {
        if !json::is_valid(body) {
            return Err(ContinuationReason::Request);
        }
        let object = Object::whole(body).ok_or(ContinuationReason::Request)?;
        // If a name occurs twice, servers differ in which value they use.
        if object.repeats() {
            return Err(ContinuationReason::Request);
        }
        let request = Self { api, object };
        if request.object.value("stream") != Some(b"true") {
            return Err(ContinuationReason::Request);
        }
        for key in ["n", "best_of"] {
            if !matches!(request.object.given(key), None | Some(b"1")) {
                return Err(ContinuationReason::Choices);
            }
        }
        Ok(request)
    }

    /// The model that it names.
    #[must_use]
    pub fn model(&self) -> Option<String> {
        let name = json::string(self.object.given("model")?)?;
        Some(name.into_owned())
    }

    /// The body that requests the rest of an answer. `text` is the part that the client has, as the contents of a JSON string,
    /// and `tokens` is the number of its tokens.
    ///
    /// # Errors
    /// Why there is no such body.
    pub fn continued(&self, text: &[u8], tokens: u64) -> Result<Bytes, ContinuationReason> {
        match self.api {
            Api::Messages => self.is_plain_message()?,
            _ => self.is_plain()?,
        }
        let quoted = [b"\"", text, b"\""].concat();
        let said: String =
            serde_json::from_slice(&quoted).map_err(|_| ContinuationReason::Content)?;
        let mut edits = match self.api {
            Api::Chat => self.with_message(given(self.api, &said))?,
            Api::Completions => self.with_prompt(text)?,
            Api::Messages => self.with_prefill(given(self.api, &said))?,
            _ => return Err(ContinuationReason::Request),
        };
        self.lower_limits(tokens, &mut edits)?;
        Ok(json::edited(self.object.text, edits).into())
    }

    /// Whether it requests only text.
    fn is_plain(&self) -> Result<(), ContinuationReason> {
        let object = &self.object;
        let asks = |key: &str| {
            let value = object.given(key);
            value.is_some_and(|value| value != b"false" && !json::is_blank(value))
        };
        // In Completions, this is a number, and 0 also requests log probabilities.
        if ["logprobs", "prompt_logprobs"].into_iter().any(asks)
            || object
                .given("top_logprobs")
                .is_some_and(|value| value != b"0")
        {
            return Err(ContinuationReason::Logprobs);
        }
        if asks("echo") {
            return Err(ContinuationReason::Echo);
        }
        if asks("suffix") {
            return Err(ContinuationReason::Suffix);
        }
        let wants_audio = object
            .given("modalities")
            .is_some_and(|value| memchr::memmem::find(value, b"\"audio\"").is_some());
        if asks("audio") || wants_audio {
            return Err(ContinuationReason::Audio);
        }
        if self.is_guided() {
            return Err(ContinuationReason::GuidedOutput);
        }
        for key in ["tool_choice", "function_call"] {
            let free = [&b"\"auto\""[..], b"\"none\""];
            if object
                .given(key)
                .is_some_and(|value| !free.contains(&value))
            {
                return Err(ContinuationReason::ToolChoice);
            }
        }
        // If tokens are given instead of the prompt, Dynamo uses them and ignores what is added to the prompt.
        let nvext = object.object("nvext");
        let has_tokens = nvext.is_some_and(|nvext| nvext.given("token_data").is_some());
        if asks("prompt_embeds") || has_tokens {
            return Err(ContinuationReason::Prompt);
        }
        Ok(())
    }

    /// Same as [`Request::is_plain`], for Messages.
    fn is_plain_message(&self) -> Result<(), ContinuationReason> {
        let object = &self.object;
        // The type of a field that is an object with one; something else has none.
        let kind = |key: &str| {
            object
                .given(key)
                .map(|_| object.object(key).and_then(|field| field.value("type")))
        };
        if !matches!(kind("thinking"), None | Some(Some(b"\"disabled\""))) {
            return Err(ContinuationReason::Reasoning);
        }
        let free = [&b"\"auto\""[..], b"\"none\""];
        if kind("tool_choice").is_some_and(|kind| kind.is_none_or(|kind| !free.contains(&kind))) {
            return Err(ContinuationReason::ToolChoice);
        }
        let bound = object.given("output_format").is_some()
            || object
                .object("output_config")
                .is_some_and(|config| config.given("format").is_some());
        if bound || self.is_guided() {
            return Err(ContinuationReason::GuidedOutput);
        }
        Ok(())
    }

    fn is_guided(&self) -> bool {
        let guided = |object: &Object<'_>| {
            object.members.iter().any(|member| {
                let named = member.key.starts_with("guided_") || GUIDED.contains(&&*member.key);
                let value = &object.text[member.value.clone()];
                // An empty schema requires any kind of JSON.
                named && (value.starts_with(b"{") || !json::is_blank(value))
            })
        };
        let bound = self.object.given("response_format").is_some_and(|_| {
            let format = self.object.object("response_format");
            format.is_none_or(|format| format.value("type") != Some(b"\"text\""))
        });
        let nvext = self.object.given("nvext");
        bound
            || guided(&self.object)
            || nvext.is_some_and(|_| {
                let nvext = self.object.object("nvext");
                nvext.is_none_or(|nvext| guided(&nvext))
            })
    }

    /// The ranges of the messages and of the last one.
    fn messages(&self) -> Option<(Range<usize>, Range<usize>)> {
        let object = &self.object;
        let messages = object.get("messages")?.value.clone();
        let last = json::elements(object.text, messages.clone())?.last()?;
        Some((messages, last))
    }

    /// The edits that append the text as an assistant message, or to the last message if the request already asks to continue it.
    fn with_message(&self, said: &str) -> Result<Vec<Edit>, ContinuationReason> {
        let object = &self.object;
        let quoted = serde_json::to_string(said).map_err(|_| ContinuationReason::Content)?;
        let (messages, last) = self.messages().ok_or(ContinuationReason::Request)?;
        match object.given("continue_final_message") {
            None | Some(b"false") => {
                // Otherwise the answer is not an assistant message.
                if !matches!(object.given("add_generation_prompt"), None | Some(b"true")) {
                    return Err(ContinuationReason::Request);
                }
                let end = messages.end - 1;
                let message = format!(",{{\"role\":\"assistant\",\"content\":{quoted}}}");
                Ok(vec![
                    Edit::new(end..end, message),
                    object.set("continue_final_message", "true"),
                    object.set("add_generation_prompt", "false"),
                ])
            }
            Some(b"true") => {
                let last = Object::at(object.text, last).ok_or(ContinuationReason::Request)?;
                let is_assistant = last.value("role") == Some(b"\"assistant\"");
                let content = last
                    .get("content")
                    .filter(|_| is_assistant && !last.repeats());
                let content = content.ok_or(ContinuationReason::Request)?.value.clone();
                if object.text[content.start] != b'"' {
                    return Err(ContinuationReason::Request);
                }
                let end = content.end - 1;
                let text = &quoted[1..quoted.len() - 1];
                Ok(vec![
                    Edit::new(end..end, text),
                    object.set("add_generation_prompt", "false"),
                ])
            }
            Some(_) => Err(ContinuationReason::Request),
        }
    }

    /// The edit that appends the text as an assistant message, or to the last message if the client itself sent its beginning.
    fn with_prefill(&self, said: &str) -> Result<Vec<Edit>, ContinuationReason> {
        let object = &self.object;
        let quoted = serde_json::to_string(said).map_err(|_| ContinuationReason::Content)?;
        let (messages, last) = self.messages().ok_or(ContinuationReason::Request)?;
        let last = Object::at(object.text, last).ok_or(ContinuationReason::Request)?;
        if last.repeats() {
            return Err(ContinuationReason::Request);
        }
        if last.value("role") != Some(b"\"assistant\"") {
            let end = messages.end - 1;
            let message = format!(",{{\"role\":\"assistant\",\"content\":{quoted}}}");
            return Ok(vec![Edit::new(end..end, message)]);
        }
        let content = last
            .get("content")
            .ok_or(ContinuationReason::Request)?
            .value
            .clone();
        if object.text[content.start] != b'"' {
            return Err(ContinuationReason::Request);
        }
        let end = content.end - 1;
        Ok(vec![Edit::new(end..end, &quoted[1..quoted.len() - 1])])
    }

    /// The edit that appends the text to the prompt.
    fn with_prompt(&self, text: &[u8]) -> Result<Vec<Edit>, ContinuationReason> {
        let object = &self.object;
        let mut prompt = object
            .get("prompt")
            .ok_or(ContinuationReason::Prompt)?
            .value
            .clone();
        if let Some(prompts) = json::elements(object.text, prompt.clone()) {
            prompt = prompts.only().ok_or(ContinuationReason::Prompt)?;
        }
        if object.text[prompt.start] != b'"' {
            return Err(ContinuationReason::Prompt);
        }
        let end = prompt.end - 1;
        Ok(vec![Edit::new(end..end, text)])
    }

    fn lower_limits(&self, tokens: u64, edits: &mut Vec<Edit>) -> Result<(), ContinuationReason> {
        for key in LIMITS {
            if let Some(limit) = self.number(key)? {
                let left = limit.checked_sub(tokens).filter(|left| *left > 0);
                let left = left.ok_or(ContinuationReason::TokensUsedUp)?;
                edits.push(self.object.set(key, &left.to_string()));
            }
        }
        if let Some(least) = self.number("min_tokens")? {
            let left = least.saturating_sub(tokens);
            edits.push(self.object.set("min_tokens", &left.to_string()));
        }
        Ok(())
    }

    fn number(&self, key: &str) -> Result<Option<u64>, ContinuationReason> {
        let Some(value) = self.object.given(key) else {
            return Ok(None);
        };
        let text = std::str::from_utf8(value).map_err(|_| ContinuationReason::Request)?;
        text.parse()
            .map(Some)
            .map_err(|_| ContinuationReason::Request)
    }
}
