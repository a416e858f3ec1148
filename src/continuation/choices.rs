//! The meaning of an event of Chat or Completions, which has choices.

use super::ContinuationReason;
use super::chunk::Chunk;
use super::json::{self, Edit, Object};
use crate::sse::Api;

/// The fields by which servers send reasoning.
const REASONING: [&str; 4] = [
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "thinking",
];

/// Fields that may contain a part of the answer, or an error, in an event that is not a chunk of the API.
const CONTENT: [&str; 5] = ["content", "delta", "error", "message", "text"];

/// Reads the event from which `chunk` was created. `None` if it has no choices and is not a keep-alive.
pub fn read(mut chunk: Chunk<'_>, api: Api) -> Option<Chunk<'_>> {
    let data = chunk.object.text;
    if chunk.object.given("choices").is_none() {
        return is_keep_alive(&chunk.object).then_some(chunk);
    }
    let choices = chunk.object.get("choices")?.value.clone();
    let choices = json::elements(data, choices)?;
    match choices.count {
        0 => {}
        1 => read_choice(&mut chunk, api, &Object::at(data, choices.last)?),
        _ => chunk.other = Some(ContinuationReason::Choices),
    }
    Some(chunk)
}

/// Whether an event without choices keeps the connection alive, or reports usage, and nothing else. Then its fields have plain
/// values. Dynamo dispatches tool calls in events without choices.
fn is_keep_alive(event: &Object<'_>) -> bool {
    event.members.iter().all(|member| {
        let value = &event.text[member.value.clone()];
        match &*member.key {
            "usage" => true,
            key if CONTENT.contains(&key) => value == b"null",
            _ => json::is_blank(value) || !value.starts_with(b"{") && !value.starts_with(b"["),
        }
    })
}

fn read_choice<'a>(chunk: &mut Chunk<'a>, api: Api, choice: &Object<'a>) {
    if !matches!(choice.given("index"), None | Some(b"0")) {
        chunk.prevent(ContinuationReason::Choices);
    }
    if choice
        .value("logprobs")
        .is_some_and(|value| !json::is_blank(value))
    {
        chunk.prevent(ContinuationReason::Logprobs);
    }
    chunk.finish = choice
        .value("finish_reason")
        .is_some_and(|value| !json::is_blank(value));
    if api == Api::Completions {
        return chunk.read_text(choice, "text");
    }
    let Some(delta) = choice.object("delta") else {
        if choice.given("delta").is_some() {
            chunk.prevent(ContinuationReason::Content);
        }
        return;
    };
    for member in &delta.members {
        let value = &delta.text[member.value.clone()];
        match &*member.key {
            "role" => chunk.role = value != b"null",
            "content" => chunk.read_text(&delta, "content"),
            _ if json::is_blank(value) => {}
            "tool_calls" | "function_call" => chunk.prevent(ContinuationReason::ToolCalls),
            "audio" => chunk.prevent(ContinuationReason::Audio),
            key if REASONING.contains(&key) => chunk.reasoning = true,
            _ => chunk.prevent(ContinuationReason::Content),
        }
    }
    chunk.delta = Some(delta);
}

/// The edits that remove the reasoning from a delta.
pub fn without_reasoning(delta: &Object<'_>) -> impl Iterator<Item = Edit> {
    let named = REASONING
        .into_iter()
        .filter(|key| delta.given(key).is_some());
    named.map(|key| delta.set(key, "null"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_data(api: Api, data: &str) -> Option<Chunk<'_>> {
        read(Chunk::of(api, data.as_bytes())?, api)
    }

    fn delta(delta: &str) -> String {
        format!(
            r#"{{"id":"a","choices":[{{"index":0,"delta":{delta},"finish_reason":null,"logprobs":null}}]}}"#
        )
    }

    #[test]
    fn a_delta_is_text_reasoning_or_unknown() {
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
                Some(ContinuationReason::ToolCalls),
            ),
            (
                r#"{"function_call":{"name":"f"}}"#,
                None,
                false,
                Some(ContinuationReason::ToolCalls),
            ),
            (r#""x""#, None, false, Some(ContinuationReason::Content)),
            (
                r#"{"audio":{"data":"x"}}"#,
                None,
                false,
                Some(ContinuationReason::Audio),
            ),
            (
                r#"{"refusal":"no"}"#,
                None,
                false,
                Some(ContinuationReason::Content),
            ),
            (
                r#"{"content":[{"type":"text"}]}"#,
                None,
                false,
                Some(ContinuationReason::Content),
            ),
        ] {
            let data = delta(given);
            let chunk = read_data(Api::Chat, &data).expect("a chunk");
            let found = chunk.text.clone().map(|range| &data[range]);
            assert_eq!(
                (found, chunk.reasoning, chunk.other),
                (text, reasoning, other),
                "{given}"
            );
        }
    }

    #[test]
    fn an_event_without_choices_is_a_keep_alive_if_it_has_only_plain_values() {
        for (data, is_keep_alive) in [
            ("{}", true),
            (r#"{"type":"ping"}"#, true),
            (
                r#"{"id":"a","object":"keepalive","created":1,"choices":null}"#,
                true,
            ),
            (r#"{"id":"a","usage":{"completion_tokens":3}}"#, true),
            (r#"{"processing":true,"details":[],"more":{}}"#, true),
            (r#"{"tool_call":{"id":"c"}}"#, false),
            (r#"{"tool_calls":[1]}"#, false),
            (r#"{"content":"x"}"#, false),
            (r#"{"error":null}"#, true),
            (r#"{"error":{}}"#, false),
            (r#"{"choices":{}}"#, false),
        ] {
            for api in [Api::Chat, Api::Completions] {
                let chunk = read_data(api, data);
                assert_eq!(chunk.is_some(), is_keep_alive, "{data}");
                assert!(chunk.is_none_or(|chunk| chunk.is_preamble()), "{data}");
            }
        }
    }

    #[test]
    fn a_choice_ends_or_is_one_of_several_or_has_log_probabilities() {
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
                Some(ContinuationReason::Choices),
            ),
            (
                Api::Chat,
                r#"{"choices":[{"index":0},{"index":1}]}"#,
                false,
                Some(ContinuationReason::Choices),
            ),
            (
                Api::Chat,
                r#"{"choices":[{"index":0,"delta":{},"logprobs":{"content":[]}}]}"#,
                false,
                Some(ContinuationReason::Logprobs),
            ),
            (
                Api::Completions,
                r#"{"choices":[{"text":"","finish_reason":"length"}]}"#,
                true,
                None,
            ),
            (Api::Chat, r#"{"choices":[]}"#, false, None),
        ] {
            let chunk = read_data(api, data).expect("a chunk");
            assert_eq!((chunk.finish, chunk.other), (finish, other), "{data}");
        }
        for data in [
            r#"{"error":{}}"#,
            "[DONE]",
            r#"{"choices":7}"#,
            r#"{"choices":["#,
        ] {
            assert!(read_data(Api::Chat, data).is_none(), "{data}");
        }
    }
}
