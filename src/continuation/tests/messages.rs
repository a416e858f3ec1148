//! Tests of Messages: what is asked of another server, and properties of the joined stream.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{events, passed};
use crate::continuation::{ContinuationReason, JoinAction, Request, Resumption, Sent};
use crate::sse::{Api, Usage};

const BODY: &str =
    r#"{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"a"}]}"#;
const START: &str = r#"{"type":"message_start","message":{"id":"a","model":"m","content":[],"usage":{"input_tokens":7,"output_tokens":1}}}"#;
const OPEN: &str =
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
const CLOSE: &str = r#"{"type":"content_block_stop","index":0}"#;

fn delta(index: u32, text: &str) -> String {
    json!({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}})
        .to_string()
}

fn sent(data: &[&str]) -> Sent {
    let mut sent = Sent::new(Api::Messages, 1000);
    data.iter().for_each(|data| sent.take(data.as_bytes()));
    sent
}

fn continued(body: &str, text: &str) -> Result<String, ContinuationReason> {
    let body = Request::read(Api::Messages, body.as_bytes())?.continued(text.as_bytes(), 3)?;
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

#[test]
fn the_text_becomes_the_assistants_message_without_white_space_at_its_end() {
    let expected = r#"{"model":"m","stream":true,"max_tokens":6,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b\n c"}]}"#;
    assert_eq!(continued(BODY, "b\\n c \\n").unwrap(), expected);
    // The client gave the beginning of the answer.
    let begun = BODY.replace("}]", r#"},{"role":"assistant","content":"one"}]"#);
    let expected = begun.replace("\"one\"", "\"one two\"").replace(":9", ":6");
    assert_eq!(continued(&begun, " two ").unwrap(), expected);
    for message in [
        r#"{"role":"assistant","content":[{"type":"text","text":"one"}]}"#,
        r#"{"role":"assistant"}"#,
        r#"{"role":"user","role":"assistant","content":"one"}"#,
        "7",
    ] {
        let body = BODY.replace("}]", &format!("}},{message}]"));
        assert_eq!(
            continued(&body, "b"),
            Err(ContinuationReason::Request),
            "{message}"
        );
    }
}

#[test]
fn a_request_for_more_than_text_is_not_continued_and_the_reason_is_reported() {
    for (field, reason) in [
        (
            r#""thinking":{"type":"enabled","budget_tokens":1024}"#,
            ContinuationReason::Reasoning,
        ),
        (
            r#""thinking":{"type":"adaptive"}"#,
            ContinuationReason::Reasoning,
        ),
        (
            r#""tool_choice":{"type":"any"}"#,
            ContinuationReason::ToolChoice,
        ),
        (
            r#""tool_choice":{"type":"tool","name":"f"}"#,
            ContinuationReason::ToolChoice,
        ),
        (
            r#""output_config":{"format":{"type":"json_schema"}}"#,
            ContinuationReason::GuidedOutput,
        ),
        (
            r#""output_format":{"type":"json_schema"}"#,
            ContinuationReason::GuidedOutput,
        ),
        (r#""stream":true"#, ContinuationReason::Request),
    ] {
        let body = BODY.replacen('{', &format!("{{{field},"), 1);
        assert_eq!(continued(&body, "b"), Err(reason), "{field}");
    }
    assert_eq!(
        continued(&BODY.replace(":9", ":3"), "b"),
        Err(ContinuationReason::TokensUsedUp)
    );
    for field in [
        r#""thinking":{"type":"disabled"}"#,
        r#""tools":[{"name":"f"}],"tool_choice":{"type":"auto"}"#,
        r#""output_config":{"effort":"low"}"#,
        r#""system":"x","stop_sequences":["y"]"#,
    ] {
        let body = BODY.replacen('{', &format!("{{{field},"), 1);
        assert!(continued(&body, "b").is_ok(), "{field}");
    }
}

#[test]
fn the_sent_part_decides_what_to_request() {
    let (text, blank) = (delta(0, "x"), delta(0, " \n"));
    let think = r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#;
    let tool =
        r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t"}}"#;
    let second = OPEN.replace(":0", ":1");
    for (more, expected) in [
        (vec![&*text], Ok(Resumption::Continue)),
        (vec![&*text, &*blank], Ok(Resumption::Continue)),
        (vec![&*blank], Ok(Resumption::Resend)),
        (vec![think], Err(ContinuationReason::Reasoning)),
        (vec![&*text, CLOSE], Err(ContinuationReason::Finished)),
        (
            vec![&*text, CLOSE, tool],
            Err(ContinuationReason::ToolCalls),
        ),
        (
            vec![&*text, CLOSE, &*second],
            Err(ContinuationReason::Content),
        ),
        (vec![&*text, "what?"], Err(ContinuationReason::Content)),
    ] {
        let all = [&[START, r#"{"type":"ping"}"#, OPEN][..], &more].concat();
        assert_eq!(sent(&all).resumption(), expected, "{more:?}");
    }
    let sent = sent(&[START, OPEN, &text]);
    assert_eq!((sent.model().as_deref(), sent.tokens()), (Some("m"), 1));
}

#[test]
fn a_second_server_begins_where_the_first_broke_off() {
    let first = sent(&[START, OPEN, &delta(0, "x")]);
    for (data, expected) in [
        (START, JoinAction::Skip { token: false }),
        (r#"{"type":"ping"}"#, JoinAction::Skip { token: false }),
        (OPEN, JoinAction::Skip { token: false }),
        (&delta(0, ""), JoinAction::Skip { token: false }),
        (&delta(0, " "), JoinAction::Begin),
        (CLOSE, JoinAction::Begin),
        (
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use"}}"#,
            JoinAction::Begin,
        ),
        (
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#,
            JoinAction::Begin,
        ),
        (
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking"}}"#,
            JoinAction::Refuse(ContinuationReason::Reasoning),
        ),
        (
            r#"{"type":"error","error":{"type":"api_error"}}"#,
            JoinAction::Refuse(ContinuationReason::AttemptsFailed),
        ),
    ] {
        for resumption in [Resumption::Continue, Resumption::Resend] {
            assert_eq!(
                first.opening(resumption, data.as_bytes()),
                expected,
                "{data}"
            );
        }
    }
}

#[test]
fn blocks_and_counts_continue_and_repeated_white_space_is_dropped() {
    let mut first = sent(&[START, OPEN, &delta(0, "x"), &delta(0, " \n")]);
    first.join(Resumption::Continue, 0);
    assert_eq!(passed(&mut first, &delta(0, " ")), delta(0, ""));
    assert_eq!(passed(&mut first, &delta(0, "\ny ")), delta(0, "y "));
    assert_eq!(passed(&mut first, &delta(0, " z")), delta(0, " z"));
    assert_eq!(first.text(), b"x \\ny  z");
    let tool = r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#;
    let rewritten = first.pass(tool.as_bytes()).unwrap();
    let end = format!("event: content_block_stop\ndata: {CLOSE}\n\n");
    assert_eq!(rewritten.before, Some(end));
    assert_eq!(String::from_utf8(rewritten.data).unwrap(), tool);
    let usage = Usage {
        prompt_tokens: 0,
        completion_tokens: 4,
    };
    // Two events of the first server. One of the second had nothing but whitespace that the client has.
    assert_eq!(first.corrected(usage).completion_tokens, 5);
    assert_eq!(
        passed(&mut first, r#"{"type":"content_block_stop","index":1}"#),
        r#"{"type":"content_block_stop","index":1}"#
    );
    let last = r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"input_tokens":99,"output_tokens":4}}"#;
    let expected = r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"input_tokens":7,"output_tokens":5}}"#;
    assert_eq!(passed(&mut first, last), expected);
}

#[test]
fn a_server_with_nothing_to_add_ends_the_block_that_the_client_has_open() {
    let mut first = sent(&[START, OPEN, &delta(0, "x")]);
    first.join(Resumption::Continue, 0);
    let last = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":0}}"#;
    let rewritten = first.pass(last.as_bytes()).unwrap();
    assert!(
        rewritten
            .before
            .is_some_and(|before| before.contains(CLOSE))
    );
    let stop = r#"{"type":"message_stop"}"#;
    assert_eq!(passed(&mut first, stop), stop);
}

/// The stream of a server that generates `text`, of which it was given `given`.
fn stream(id: &str, text: &str, given: &str, piece: usize, index: u32, bare_end: bool) -> Vec<u8> {
    let rest = text
        .strip_prefix(given)
        .expect("it was given the beginning");
    let mut all = vec![
        json!({"type": "message_start", "message": {"id": id, "model": "m", "content": [], "usage": {"input_tokens": 5, "output_tokens": 1}}}),
        json!({"type": "ping"}),
    ];
    let chars: Vec<char> = rest.chars().collect();
    let has_block = !(bare_end && chars.is_empty());
    if has_block {
        all.push(json!({"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}));
    }
    for piece in chars.chunks(piece) {
        let text: String = piece.iter().collect();
        all.push(json!({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}));
    }
    if has_block {
        all.push(json!({"type": "content_block_stop", "index": index}));
    }
    all.push(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": chars.len()}}));
    all.push(json!({"type": "message_stop"}));
    let event = |data: &Value| {
        format!(
            "event: {}\ndata: {data}\n\n",
            data["type"].as_str().unwrap()
        )
    };
    all.iter().map(event).collect::<String>().into_bytes()
}

proptest! {
    #[test]
    fn the_client_gets_the_text_once_in_one_block_no_matter_where_the_stream_breaks(
        text in "[a-c \"\\\\\\n\u{1}é€😀]{1,30}",
        pieces in [1usize..6, 1..6],
        index in 0u32..3,
        bare_end: bool,
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = stream("first", &text, "", pieces[0], 0, false);
        let mut seen = events(&bytes[..cut.index(bytes.len())]);
        let mut sent = Sent::new(Api::Messages, 10_000);
        seen.iter().for_each(|data| sent.take(data));
        let has_text = !sent.text().is_empty();
        let resumption = match sent.resumption() {
            Err(reason) => {
                prop_assert_eq!(reason, ContinuationReason::Finished);
                return Ok(());
            }
            // Without content the whole request is retried, and nothing is joined.
            Ok(_) if !has_text => return Ok(()),
            Ok(resumption) => resumption,
        };
        let body = BODY.replace(":9", ":900");
        let request = Request::read(Api::Messages, body.as_bytes()).unwrap();
        let body: Value = match resumption {
            Resumption::Resend => serde_json::from_str(&body).unwrap(),
            Resumption::Continue => serde_json::from_slice(&request.continued(&sent.text(), sent.tokens()).unwrap()).unwrap(),
        };
        let given = body["messages"][1]["content"].as_str().unwrap_or_default();
        prop_assert!(given.trim_end() == given);
        let bytes = stream("second", &text, given, pieces[1], index, bare_end);
        let mut begun = false;
        for data in events(&bytes) {
            if !begun {
                match sent.opening(resumption, &data) {
                    JoinAction::Skip { .. } => continue,
                    JoinAction::Begin => {}
                    JoinAction::Refuse(reason) => panic!("{reason:?}"),
                }
                begun = true;
                sent.join(resumption, 0);
            }
            let rewritten = sent.pass(&data).expect("each has its meaning");
            let before = rewritten.before.unwrap_or_default();
            seen.extend(events(before.as_bytes()));
            seen.push(rewritten.data);
        }
        let seen: Vec<Value> = seen.iter().map(|data| serde_json::from_slice(data).unwrap()).collect();
        let said: String = seen.iter().filter_map(|data| data["delta"]["text"].as_str()).collect();
        prop_assert_eq!(&said, &text);
        let kinds = |kind: &str| seen.iter().filter(|data| data["type"] == kind).count();
        for kind in ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"] {
            prop_assert_eq!(kinds(kind), 1, "{}", kind);
        }
        prop_assert!(seen.iter().all(|data| data["index"] == 0 || data["index"].is_null()));
        let kept: String = serde_json::from_slice(&[b"\"", &sent.text()[..], b"\""].concat()).unwrap();
        prop_assert_eq!(kept, text);
    }
}
