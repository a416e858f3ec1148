//! The request to the server that continues a stream.

use serde_json::{Value, json};

use crate::continuation::{ContinuationReason, Request};
use crate::sse::Api;

const CHAT: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}]}"#;

fn continued(api: Api, body: &str, text: &str, tokens: u64) -> Result<String, ContinuationReason> {
    let request = Request::read(api, body.as_bytes())?;
    let body = request.continued(text.as_bytes(), tokens)?;
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

#[test]
fn the_text_becomes_a_message_that_is_to_be_continued_and_the_rest_keeps_its_bytes() {
    let body = "{ \"x-unknown\": [1, 2 ],\"messages\" : [ {\"role\":\"user\",\"content\":\"a\"} ] ,\"stream\":true, \"max_tokens\": 10 ,\"seed\":1}";
    let expected = "{ \"x-unknown\": [1, 2 ],\"messages\" : [ {\"role\":\"user\",\"content\":\"a\"} ,{\"role\":\"assistant\",\"content\":\"b\\nc\"}] ,\"stream\":true, \"max_tokens\": 7 ,\"seed\":1,\"continue_final_message\":true,\"add_generation_prompt\":false}";
    assert_eq!(continued(Api::Chat, body, "b\\nc\\n", 3).unwrap(), expected);
}

#[test]
fn the_text_is_added_to_a_message_that_the_client_wants_continued() {
    let body = r#"{"messages":[{"role":"assistant","content":"one "}],"continue_final_message":true,"add_generation_prompt":false,"stream":true}"#;
    let expected = r#"{"messages":[{"role":"assistant","content":"one two"}],"continue_final_message":true,"add_generation_prompt":false,"stream":true}"#;
    assert_eq!(continued(Api::Chat, body, "two", 1).unwrap(), expected);
    for message in [
        r#"{"role":"user","content":"one"}"#,
        r#"{"role":"assistant","content":[{"type":"text","text":"one"}]}"#,
        r#"{"role":"assistant","content":null}"#,
        r#"{"role":"assistant"}"#,
        r#"{"role":"assistant","content":"a","content":"b"}"#,
        r#""one""#,
    ] {
        let body =
            format!(r#"{{"messages":[{message}],"continue_final_message":true,"stream":true}}"#);
        assert_eq!(
            continued(Api::Chat, &body, "two", 1),
            Err(ContinuationReason::Request),
            "{message}"
        );
    }
}

#[test]
fn a_prompt_grows_by_the_text() {
    for (prompt, expected) in [
        (r#""a\"""#, r#""a\"b""#),
        (r#"["a"]"#, r#"["ab"]"#),
        (r#""""#, r#""b""#),
    ] {
        let body = |prompt: &str| format!(r#"{{"prompt":{prompt},"stream":true}}"#);
        assert_eq!(
            continued(Api::Completions, &body(prompt), "b", 1).unwrap(),
            body(expected)
        );
    }
    for prompt in ["[1,2]", r#"["a","b"]"#, "[[1]]", "[]", "null", "7"] {
        let body = format!(r#"{{"prompt":{prompt},"stream":true}}"#);
        assert_eq!(
            continued(Api::Completions, &body, "b", 1),
            Err(ContinuationReason::Prompt),
            "{prompt}"
        );
    }
    assert_eq!(
        continued(Api::Completions, r#"{"stream":true}"#, "b", 1),
        Err(ContinuationReason::Prompt)
    );
}

#[test]
fn a_request_for_more_than_text_is_not_continued_and_the_reason_is_reported() {
    for (field, reason) in [
        (r#""n":2"#, ContinuationReason::Choices),
        (r#""best_of":3"#, ContinuationReason::Choices),
        (r#""logprobs":true"#, ContinuationReason::Logprobs),
        (r#""logprobs":0"#, ContinuationReason::Logprobs),
        (r#""top_logprobs":2"#, ContinuationReason::Logprobs),
        (r#""prompt_logprobs":1"#, ContinuationReason::Logprobs),
        (r#""nvext":{"token_data":[1]}"#, ContinuationReason::Prompt),
        (r#""echo":true"#, ContinuationReason::Echo),
        (r#""suffix":"x""#, ContinuationReason::Suffix),
        (
            r#""modalities":["text","audio"]"#,
            ContinuationReason::Audio,
        ),
        (r#""audio":{"voice":"a"}"#, ContinuationReason::Audio),
        (
            r#""response_format":{"type":"json_object"}"#,
            ContinuationReason::GuidedOutput,
        ),
        (
            r#""response_format":"text""#,
            ContinuationReason::GuidedOutput,
        ),
        (
            r#""guided_json":{"type":"object"}"#,
            ContinuationReason::GuidedOutput,
        ),
        (
            r#""guided_anything_new":"x""#,
            ContinuationReason::GuidedOutput,
        ),
        (
            r#""structured_outputs":{"regex":"a"}"#,
            ContinuationReason::GuidedOutput,
        ),
        (
            r#""nvext":{"guided_regex":"a"}"#,
            ContinuationReason::GuidedOutput,
        ),
        (r#""guided_json":{}"#, ContinuationReason::GuidedOutput),
        (
            r#""nvext":{"guided_json":{ }}"#,
            ContinuationReason::GuidedOutput,
        ),
        (
            r#""tool_choice":"required""#,
            ContinuationReason::ToolChoice,
        ),
        (
            r#""tool_choice":{"type":"function"}"#,
            ContinuationReason::ToolChoice,
        ),
        (
            r#""function_call":{"name":"f"}"#,
            ContinuationReason::ToolChoice,
        ),
        (r#""prompt_embeds":"x""#, ContinuationReason::Prompt),
        (r#""max_tokens":3"#, ContinuationReason::TokensUsedUp),
        (
            r#""max_completion_tokens":2"#,
            ContinuationReason::TokensUsedUp,
        ),
        (r#""max_tokens":"many""#, ContinuationReason::Request),
        (
            r#""add_generation_prompt":false"#,
            ContinuationReason::Request,
        ),
        (r#""model":"other""#, ContinuationReason::Request),
        (r#""mod\u0065l":"other""#, ContinuationReason::Request),
    ] {
        let body = CHAT.replacen('{', &format!("{{{field},"), 1);
        assert_eq!(continued(Api::Chat, &body, "b", 3), Err(reason), "{field}");
    }
    for body in [
        "",
        "[]",
        "{",
        r#"{"stream":true}"#,
        r#"{"stream":true,"messages":[]}"#,
        r#"{"stream":true,"messages":{}}"#,
        r#"{"messages":[{"role":"user","content":"a"}]}"#,
    ] {
        assert_eq!(
            continued(Api::Chat, body, "b", 1),
            Err(ContinuationReason::Request),
            "{body}"
        );
    }
    assert_eq!(
        continued(Api::Chat, CHAT, r"\ud83d", 1),
        Err(ContinuationReason::Content)
    );
    assert_eq!(
        continued(Api::Chat, CHAT, "a\u{1}", 1),
        Err(ContinuationReason::Content)
    );
}

#[test]
fn a_request_without_special_options_is_continued() {
    for field in [
        r#""n":1"#,
        r#""n":null"#,
        r#""best_of":1"#,
        r#""logprobs":false"#,
        r#""top_logprobs":0"#,
        r#""echo":false"#,
        r#""suffix":null"#,
        r#""modalities":["text"]"#,
        r#""response_format":{"type":"text"}"#,
        r#""guided_json":null"#,
        r#""nvext":{"annotations":["x"]}"#,
        r#""tools":[{"type":"function"}],"tool_choice":"auto""#,
        r#""max_tokens":null"#,
        r#""max_tokens":4"#,
        r#""min_tokens":2"#,
        r#""continue_final_message":false,"add_generation_prompt":true"#,
    ] {
        let body = CHAT.replacen('{', &format!("{{{field},"), 1);
        let body = continued(Api::Chat, &body, "b", 3)
            .unwrap_or_else(|reason| panic!("{field}: {reason:?}"));
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            body["messages"][1],
            json!({"role": "assistant", "content": "b"})
        );
        assert_eq!(body["continue_final_message"], true);
        assert_eq!(body["add_generation_prompt"], false);
    }
}
