//! What a chunk of Chat Completions or Completions says: text, reasoning, the end of the answer, or something else.

use std::ops::Range;

use super::Reason;
use super::json::{self, Edit, Object};
use crate::sse::{Api, Usage, usage};

/// The fields by which servers send reasoning.
const REASONING: [&str; 4] = [
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "thinking",
];

/// What a chunk says.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// The whole chunk.
    pub object: Object<'a>,
    /// The delta of the only choice; none in Completions.
    pub delta: Option<Object<'a>>,
    /// Where its text lies, between its quotes, if there is any.
    pub text: Option<Range<usize>>,
    pub reasoning: bool,
    pub role: bool,
    /// The model has finished.
    pub finish: bool,
    pub usage: Option<Usage>,
    /// What prevents that the stream is continued.
    pub other: Option<Reason>,
}

impl<'a> Chunk<'a> {
    /// Reads the data of an event. `None` if it is no chunk.
    pub fn read(api: Api, data: &'a [u8]) -> Option<Self> {
        if !json::is_valid(data) {
            return None;
        }
        let object = Object::whole(data)?;
        let mut chunk = Self {
            delta: None,
            text: None,
            reasoning: false,
            role: false,
            finish: false,
            usage: usage(api, data),
            other: None,
            object,
        };
        let choices = chunk.object.get("choices")?.value.clone();
        match &json::elements(data, choices)?[..] {
            [] => {}
            [choice] => chunk.read_choice(api, Object::at(data, choice.clone())?),
            _ => chunk.other = Some(Reason::Choices),
        }
        Some(chunk)
    }

    /// Does it add something to the answer, or end it?
    pub fn is_preamble(&self) -> bool {
        self.text.is_none() && !self.reasoning && !self.finish && self.other.is_none()
    }

    fn prevent(&mut self, reason: Reason) {
        self.other.get_or_insert(reason);
    }

    fn read_choice(&mut self, api: Api, choice: Object<'a>) {
        if !matches!(choice.given("index"), None | Some(b"0")) {
            self.prevent(Reason::Choices);
        }
        if choice
            .value("logprobs")
            .is_some_and(|value| !json::is_blank(value))
        {
            self.prevent(Reason::Logprobs);
        }
        self.finish = choice
            .value("finish_reason")
            .is_some_and(|value| !json::is_blank(value));
        if api == Api::Completions {
            return self.read_text(&choice, "text");
        }
        let Some(delta) = choice.object("delta") else {
            return;
        };
        for member in &delta.members {
            let value = &delta.text[member.value.clone()];
            match &*member.key {
                "role" => self.role = value != b"null",
                "content" => self.read_text(&delta, "content"),
                _ if json::is_blank(value) => {}
                "tool_calls" | "function_call" => self.prevent(Reason::ToolCalls),
                "audio" => self.prevent(Reason::Audio),
                key if REASONING.contains(&key) => self.reasoning = true,
                _ => self.prevent(Reason::Content),
            }
        }
        self.delta = Some(delta);
    }

    fn read_text(&mut self, holder: &Object<'a>, key: &str) {
        let Some(member) = holder.get(key) else {
            return;
        };
        let value = &holder.text[member.value.clone()];
        if json::is_blank(value) {
            return;
        }
        if value.starts_with(b"\"") {
            self.text = Some(member.value.start + 1..member.value.end - 1);
        } else {
            self.prevent(Reason::Content);
        }
    }

    /// The edits that correct its token counts.
    pub fn correct_usage(&self, corrected: Usage) -> Vec<Edit> {
        let Some(usage) = self.object.object("usage") else {
            return Vec::new();
        };
        let total = corrected.prompt_tokens + corrected.completion_tokens;
        [
            ("prompt_tokens", corrected.prompt_tokens),
            ("completion_tokens", corrected.completion_tokens),
            ("total_tokens", total),
        ]
        .into_iter()
        .filter(|(key, _)| usage.given(key).is_some())
        .map(|(key, value)| usage.set(key, &value.to_string()))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(delta: &str) -> String {
        format!(
            r#"{{"id":"a","choices":[{{"index":0,"delta":{delta},"finish_reason":null,"logprobs":null}}]}}"#
        )
    }

    #[test]
    fn a_delta_says_text_reasoning_or_what_is_not_understood() {
        for (given, text, reasoning, other) in [
            (r#"{"role":"assistant","content":""}"#, None, false, None),
            (
                r#"{"role":"assistant","content":null,"tool_calls":null}"#,
                None,
                false,
                None,
            ),
            (r#"{"content":"a\"b"}"#, Some(r#"a\"b"#), false, None),
            (
                r#"{"content":"x","reasoning_content":null,"tool_calls":[],"refusal":null}"#,
                Some("x"),
                false,
                None,
            ),
            (r#"{"reasoning_content":"hm"}"#, None, true, None),
            (r#"{"reasoning":"hm","content":""}"#, None, true, None),
            (
                r#"{"tool_calls":[{"index":0}]}"#,
                None,
                false,
                Some(Reason::ToolCalls),
            ),
            (
                r#"{"function_call":{"name":"f"}}"#,
                None,
                false,
                Some(Reason::ToolCalls),
            ),
            (
                r#"{"audio":{"data":"x"}}"#,
                None,
                false,
                Some(Reason::Audio),
            ),
            (r#"{"refusal":"no"}"#, None, false, Some(Reason::Content)),
            (
                r#"{"content":[{"type":"text"}]}"#,
                None,
                false,
                Some(Reason::Content),
            ),
        ] {
            let data = delta(given);
            let chunk = Chunk::read(Api::Chat, data.as_bytes()).expect("a chunk");
            let found = chunk.text.clone().map(|range| &data[range]);
            assert_eq!(
                (found, chunk.reasoning, chunk.other),
                (text, reasoning, other),
                "{given}"
            );
        }
    }

    #[test]
    fn a_choice_ends_is_one_of_several_or_has_log_probabilities() {
        for (api, data, finish, other) in [
            (
                Api::Chat,
                r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
                true,
                None,
            ),
            (
                Api::Chat,
                r#"{"choices":[{"index":1,"delta":{}}]}"#,
                false,
                Some(Reason::Choices),
            ),
            (
                Api::Chat,
                r#"{"choices":[{"index":0},{"index":1}]}"#,
                false,
                Some(Reason::Choices),
            ),
            (
                Api::Chat,
                r#"{"choices":[{"index":0,"delta":{},"logprobs":{"content":[]}}]}"#,
                false,
                Some(Reason::Logprobs),
            ),
            (
                Api::Completions,
                r#"{"choices":[{"text":"","finish_reason":"length"}]}"#,
                true,
                None,
            ),
            (Api::Chat, r#"{"choices":[]}"#, false, None),
        ] {
            let chunk = Chunk::read(api, data.as_bytes()).expect("a chunk");
            assert_eq!((chunk.finish, chunk.other), (finish, other), "{data}");
        }
        for data in [
            r#"{"error":{}}"#,
            "[DONE]",
            r#"{"choices":7}"#,
            r#"{"choices":["#,
        ] {
            assert!(Chunk::read(Api::Chat, data.as_bytes()).is_none(), "{data}");
        }
    }
}
