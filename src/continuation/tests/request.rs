//! The request to the server that continues a stream.

use serde_json::{Value, json};

use crate::continuation::{Reason, Request};
use crate::sse::Api;

const CHAT: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}]}"#;

fn continued(api: Api, body: &str, text: &str, tokens: u64) -> Result<String, Reason> {
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
            Err(Reason::Request),
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
            Err(Reason::Prompt),
            "{prompt}"
        );
    }
    assert_eq!(
        continued(Api::Completions, r#"{"stream":true}"#, "b", 1),
        Err(Reason::Prompt)
    );
}

#[test]
fn a_request_for_more_than_text_is_not_continued_and_the_reason_is_reported() {
    for (field, reason) in [
        (r#""n":2"#, Reason::Choices),
        (r#""best_of":3"#, Reason::Choices),
        (r#""logprobs":true"#, Reason::Logprobs),
        (r#""logprobs":0"#, Reason::Logprobs),
        (r#""top_logprobs":2"#, Reason::Logprobs),
        (r#""prompt_logprobs":1"#, Reason::Logprobs),
        (r#""nvext":{"token_data":[1]}"#, Reason::Prompt),
        (r#""echo":true"#, Reason::Echo),
        (r#""suffix":"x""#, Reason::Suffix),
        (r#""modalities":["text","audio"]"#, Reason::Audio),
        (r#""audio":{"voice":"a"}"#, Reason::Audio),
        (
            r#""response_format":{"type":"json_object"}"#,
            Reason::GuidedOutput,
        ),
        (r#""response_format":"text""#, Reason::GuidedOutput),
        (r#""guided_json":{"type":"object"}"#, Reason::GuidedOutput),
        (r#""guided_anything_new":"x""#, Reason::GuidedOutput),
        (
            r#""structured_outputs":{"regex":"a"}"#,
            Reason::GuidedOutput,
        ),
        (r#""nvext":{"guided_regex":"a"}"#, Reason::GuidedOutput),
        (r#""guided_json":{}"#, Reason::GuidedOutput),
        (r#""nvext":{"guided_json":{ }}"#, Reason::GuidedOutput),
        (r#""tool_choice":"required""#, Reason::ToolChoice),
        (r#""tool_choice":{"type":"function"}"#, Reason::ToolChoice),
        (r#""function_call":{"name":"f"}"#, Reason::ToolChoice),
        (r#""prompt_embeds":"x""#, Reason::Prompt),
        (r#""max_tokens":3"#, Reason::TokensUsedUp),
        (r#""max_completion_tokens":2"#, Reason::TokensUsedUp),
        (r#""max_tokens":"many""#, Reason::Request),
        (r#""add_generation_prompt":false"#, Reason::Request),
        (r#""model":"other""#, Reason::Request),
        (r#""mod\u0065l":"other""#, Reason::Request),
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
            Err(Reason::Request),
            "{body}"
        );
    }
    assert_eq!(
        continued(Api::Chat, CHAT, r"\ud83d", 1),
        Err(Reason::Content)
    );
    assert_eq!(
        continued(Api::Chat, CHAT, "a\u{1}", 1),
        Err(Reason::Content)
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
