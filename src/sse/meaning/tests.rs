//! The rules as tables, on the bytes that real servers send.

use super::{Meaning, Tail, is_terminal, meaning, tail_meaning};
use crate::sse::{Api, Decoder};

use Meaning::{Comment, Content, Preamble, Terminal};

const fn error(code: u16) -> Meaning {
    Meaning::Error { code: Some(code) }
}

const UNKNOWN_ERROR: Meaning = Meaning::Error { code: None };

/// Reads a block, and checks that `tail_meaning` agrees with `meaning`.
fn classify(api: Api, block: &str) -> (Meaning, bool) {
    let mut decoder = Decoder::new(1 << 20);
    let stream = format!("{block}\n\n");
    let mut events = decoder.feed(stream.as_bytes());
    let event = events.next().unwrap();
    let early = meaning(api, &event);
    let tail = match early {
        Meaning::Error { code } => Tail::Error { code },
        Terminal => Tail::Terminal,
        Comment | Preamble | Content => Tail::Nothing,
    };
    assert_eq!(tail_meaning(api, &event), tail, "{api:?} {block}");
    (early, is_terminal(api, &event))
}

fn check(api: Api, table: &[(&str, Meaning)]) {
    for (block, expected) in table {
        let (meaning, terminal) = classify(api, block);
        assert_eq!(meaning, *expected, "{api:?} {block}");
        let failed = api == Api::Responses && block.contains("response.failed");
        assert_eq!(terminal, *expected == Terminal || failed, "{api:?} {block}");
    }
}

#[test]
fn blocks_without_data_are_comments_in_every_family() {
    for api in Api::ALL {
        check(
            api,
            &[
                (":", Comment),
                (": keep-alive", Comment),
                ("", Comment),
                ("id: 7", Comment),
                ("event: request_id\n: \"9f\"", Comment),
                // An older Dynamo reports errors without data.
                ("event: error\n: worker gone", UNKNOWN_ERROR),
                ("event: error", UNKNOWN_ERROR),
            ],
        );
    }
}

#[test]
fn a_keep_alive_with_data_is_no_content_in_any_family() {
    for api in Api::ALL {
        check(
            api,
            &[
                ("data:", Comment),
                ("data: ", Comment),
                ("event: ping\ndata:", Comment),
                ("data:  ", Preamble),
                (r#"data: {"type":"ping"}"#, Preamble),
                (
                    r#"data: {"type": "keepalive", "sequence_number": 0}"#,
                    Preamble,
                ),
                (
                    "event: ping\ndata: {\"type\": \"ping\", \"cost\": \"0\"}",
                    Preamble,
                ),
                ("event: heartbeat\ndata: 1", Preamble),
                (r#"data: {"type":"pong"}"#, Content),
            ],
        );
    }
}

/// Errors in the form of an object with its own `error` are the same in every family.
#[test]
fn a_top_level_error_is_an_error_in_every_family() {
    for api in Api::ALL {
        #[rustfmt::skip]
        check(api, &[
            (r#"data: {"error":{"message":"Service temporarily unavailable","type":"service_unavailable","code":503}}"#, error(503)),
            (r#"data: {"error":{"message":"Internal server error","type":"Internal Server Error","code":500}}"#, error(500)),
            (r#"data: {"error":{"message":"`max_output_tokens` (or `max_tokens`) is required by the mocker worker","type":"invalid_request_error","code":400}}"#, error(400)),
            (r#"data: {"error":{"message":"m","type":"t","code":"529"}}"#, error(529)),
            (r#"data:  { "error" : {"code":503}}"#, error(503)),
            ("data: {\ndata: \"error\"\ndata: :{\"code\":503}}", error(503)),
            (r#"data: {"error":{"type":"overloaded_error"}}"#, error(529)),
            (r#"data: {"error":{"type":"api_error","code":null}}"#, error(500)),
            (r#"data: {"error":{"type":"server_error","code":"unknown"}}"#, error(500)),
            (r#"data: {"error":{"type":"internal_server_error"}}"#, error(500)),
            (r#"data: {"error":{"type":"service_unavailable"}}"#, error(503)),
            (r#"data: {"error":{"type":"rate_limit_error"}}"#, error(429)),
            (r#"data: {"error":{"type":"invalid_request_error"}}"#, error(400)),
            (r#"data: {"error":{"type":"not_found_error"}}"#, error(404)),
            (r#"data: {"error":{"type":"authentication_error"}}"#, error(401)),
            (r#"data: {"error":{"type":"permission_error"}}"#, error(403)),
            (r#"data: {"error":{"type":"timeout"}}"#, UNKNOWN_ERROR),
            (r#"data: {"error":{"code":40003}}"#, UNKNOWN_ERROR),
            (r#"data: {"error":{"code":-1}}"#, UNKNOWN_ERROR),
            (r#"data: {"error":"boom"}"#, UNKNOWN_ERROR),
            // Gateways put the error at the end of a chunk.
            (r#"data: {"id":"gen-1","object":"chat.completion.chunk","error":{"code":"server_error","message":"m"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}"#, error(500)),
        ]);
    }
}

#[test]
fn the_word_error_in_content_is_content() {
    #[rustfmt::skip]
    check(Api::Chat, &[
        (r#"data: {"choices":[{"index":0,"delta":{"content":"error"},"finish_reason":null}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"content":"{\"error\":{\"code\":503}}"},"finish_reason":null}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}"#, Content),
        (r#"data: {"error":null,"choices":[{"index":0,"delta":{"content":"x"}}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"content":"x"},"error":{"code":503}}]}"#, Content),
        (r#"data: {"error":{"code":503}"#, Content),
        ("data: error", Content),
        ("data: [DONE]: error", Content),
    ]);
}

#[test]
fn a_chat_stream_begins_with_content_unlike_a_bare_role() {
    #[rustfmt::skip]
    check(Api::Chat, &[
        // Dynamo: role and content in the same chunk.
        (r#"data: {"id":"chatcmpl-83087757","choices":[{"index":0,"delta":{"content":"any","role":"assistant"},"finish_reason":null,"logprobs":null}],"created":1795217637,"model":"tiny","object":"chat.completion.chunk"}"#, Content),
        (r#"data: {"id":"chatcmpl-83087757","choices":[{"index":0,"delta":{},"finish_reason":"length","logprobs":null}],"created":1795217637,"model":"tiny","object":"chat.completion.chunk"}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#, Preamble),
        (r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[],"refusal":null,"function_call":{}},"finish_reason":null}]}"#, Preamble),
        (r#"data: {"choices":[{"index":0,"delta":{"role":"assistant"}},{"index":1,"delta":{}}]}"#, Preamble),
        (r#"data: {"choices":[{"index":0,"delta":{"role":"assistant"}},{"index":1,"delta":{"content":"x"}}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"content":"\n"}}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"x"}}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}},{"index":1,"delta":{"role":"assistant","content":"x"}}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"content":""}}],"note":"\"delta\":{\"content\":\"x\"}"}"#, Preamble),
        (r#"data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"reasoning":"hm"}}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"audio":{"id":"a"}}}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"delta":{"something_new":0}}]}"#, Content),
        (r#"data: {"choices":[{"index":0,"message":{"content":""}}]}"#, Content),
        (r#"data: {"choices":[],"prompt_filter_results":[{"prompt_index":0}]}"#, Preamble),
        (r#"data: {"choices":[],"usage":null}"#, Preamble),
        (r#"data: {"choices":null}"#, Preamble),
        (r#"data: {"choice":[]}"#, Content),
        (r#"data: {"choices":[],"usage":{"prompt_tokens":16,"completion_tokens":3,"total_tokens":19,"prompt_tokens_details":{"cached_tokens":0}}}"#, Content),
        (r#"data: {"object":"unknown"}"#, Content),
        ("event: tool_call_dispatch\ndata: {\"index\":0}", Content),
        ("data: {\"choices\":[", Content),
        ("data:", Comment),
        ("data: [DONE]", Terminal),
        ("data:[DONE]", Terminal),
        ("data: [DONE] ", Content),
        ("data: \"[DONE]\"", Content),
    ]);
}

#[test]
fn a_completions_stream_begins_with_text() {
    #[rustfmt::skip]
    check(Api::Completions, &[
        (r#"data: {"id":"cmpl-1","choices":[{"text":" sign","index":0}],"created":1,"model":"tiny","object":"text_completion","usage":null}"#, Content),
        (r#"data: {"choices":[{"text":"","index":0}],"usage":null}"#, Preamble),
        (r#"data: {"choices":[{"text":"","index":0},{"text":"x","index":1}],"usage":null}"#, Content),
        (r#"data: {"choices":[{"text":"","index":0}],"note":"\"text\":\"x\""}"#, Preamble),
        (r#"data: {"choices":[{"text":"","index":0,"finish_reason":null}]}"#, Preamble),
        (r#"data: {"choices":[{"text":"","index":0,"finish_reason":"stop"}]}"#, Content),
        (r#"data: {"choices":[{"index":0}]}"#, Content),
        ("data: [DONE]", Terminal),
    ]);
}

#[test]
fn a_responses_stream_goes_by_its_types() {
    #[rustfmt::skip]
    check(Api::Responses, &[
        ("event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"error\":null}}", Preamble),
        ("event: response.queued\ndata: {}", Preamble),
        ("event: response.in_progress\ndata: {\"type\":\"response.in_progress\"}", Preamble),
        ("event: response.output_item.added\ndata: {}", Preamble),
        ("event: response.content_part.added\ndata: {}", Preamble),
        ("event: response.output_text.delta\ndata: {\"delta\":\"error\"}", Content),
        ("event: response.output_text.done\ndata: {}", Content),
        ("event: response.completed\ndata: {\"type\":\"response.completed\"}", Terminal),
        ("event: response.incomplete\ndata: {\"type\":\"response.incomplete\"}", Terminal),
        ("event: response.failed\ndata: {\"response\":{\"error\":{\"code\":\"server_error\",\"message\":\"m\"}}}", error(500)),
        ("event: response.failed\ndata: {\"response\":{\"error\":{\"code\":\"503\"}}}", error(503)),
        ("event: response.failed\ndata: {\"response\":{\"error\":{\"code\":\"rate_limit_exceeded\"}}}", error(429)),
        ("event: response.failed\ndata: {\"response\":{}}", UNKNOWN_ERROR),
        ("event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"m\",\"param\":null,\"sequence_number\":3}", error(500)),
        ("event: error\ndata: {\"type\":\"error\",\"code\":null,\"message\":\"m\"}", UNKNOWN_ERROR),
        ("data: [DONE]", Terminal),
        // Without an event name, the `type` in the data counts, wherever it is.
        (r#"data: {"type":"response.created"}"#, Preamble),
        // An item or a part of one may be opened with content.
        (r#"data: {"type":"response.output_item.added","item":{"type":"message","content":[]}}"#, Preamble),
        (r#"data: {"type":"response.output_item.added","item":{"type":"function_call","name":"f","arguments":""}}"#, Preamble),
        (r#"data: {"type":"response.output_item.added","item":{"type":"function_call","name":"f","arguments":"{}"}}"#, Content),
        (r#"data: {"type":"response.content_part.added","part":{"type":"output_text","text":"","annotations":[]}}"#, Preamble),
        (r#"data: {"type":"response.content_part.added","part":{"type":"output_text","text":"Hi"}}"#, Content),
        (r#"data: { "type" : "response.completed"}"#, Terminal),
        (r#"data: {"sequence_number":9,"type":"response.completed"}"#, Terminal),
        (r#"data: {"sequence_number":9,"type":"response.failed","response":{"error":{"code":"server_error"}}}"#, error(500)),
        (r#"data: {"sequence_number":9,"code":"502","type":"error"}"#, error(502)),
        (r#"data: {"type":"response.output_text.delta","delta":"\"type\":\"response.completed\""}"#, Content),
        (r#"data: {"type":7}"#, Content),
        ("data: {", Content),
    ]);
}

#[test]
fn a_messages_stream_goes_by_its_types() {
    #[rustfmt::skip]
    check(Api::Messages, &[
        ("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}", Preamble),
        ("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0}", Preamble),
        // A block may be opened with content.
        (r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#, Preamble),
        (r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"Hi"}}"#, Content),
        (r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#, Preamble),
        (r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"redacted_thinking","data":"x"}}"#, Content),
        (r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#, Preamble),
        (r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{"a":1}}}"#, Content),
        (r#"data: {"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":3}}}"#, Preamble),
        (r#"data: {"type":"message_start","message":{"id":"m","content":[{"type":"text","text":"Hi"}]}}"#, Content),
        ("event: ping\ndata: {\"type\": \"ping\"}", Preamble),
        ("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}", Content),
        ("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}", Content),
        ("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}", Content),
        ("event: message_stop\ndata: {\"type\":\"message_stop\"}", Terminal),
        ("event: error\ndata: {\"type\": \"error\", \"error\": {\"type\": \"overloaded_error\", \"message\": \"Overloaded\"}}", error(529)),
        // Dynamo's dead worker, which has the same word.
        ("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Service temporarily unavailable\"}}", error(503)),
        (r#"data: {"type":"message_stop"}"#, Terminal),
        ("event: message\ndata: {\"type\":\"message_stop\"}", Terminal),
        (r#"data: {"type":"error","error":{"type":"api_error","message":"m"}}"#, error(500)),
        (r#"data: {"type":"ping"}"#, Preamble),
        (r#"data: {"index":0,"type":"content_block_delta"}"#, Content),
        ("data: [DONE]", Content),
    ]);
}

#[test]
fn in_an_unknown_family_everything_but_error_and_done_is_content() {
    check(
        Api::Other,
        &[
            (r#"data: {"choices":[]}"#, Content),
            (r#"data: {"type":"message_start"}"#, Content),
            ("data: [DONE]", Terminal),
        ],
    );
}
