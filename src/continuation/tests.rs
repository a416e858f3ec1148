//! Tests of the text that was sent, and of the joined stream.

mod messages;
mod properties;
mod request;

use serde_json::json;

use super::*;
use crate::sse::{Api, Decoder, Usage};

fn sent(events: &[&str]) -> Sent {
    let mut sent = Sent::new(Api::Chat, 1000);
    events.iter().for_each(|event| sent.take(event.as_bytes()));
    sent
}

fn delta(id: &str, delta: &str) -> String {
    format!(
        r#"{{"id":"{id}","created":1,"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#
    )
}

/// The data of an event of a continued part, as the client gets it.
fn passed(sent: &mut Sent, data: &str) -> String {
    let rewritten = sent.pass(data.as_bytes()).expect("a chunk");
    assert_eq!(rewritten.before, None);
    String::from_utf8(rewritten.data).unwrap()
}

#[test]
fn the_sent_part_decides_what_to_request() {
    let role = delta("a", r#"{"role":"assistant","content":""}"#);
    let think = delta("a", r#"{"reasoning_content":"hm"}"#);
    let text = delta("a", r#"{"content":"x"}"#);
    let tool = delta("a", r#"{"tool_calls":[{"index":0}]}"#);
    let finish = r#"{"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    for (events, expected) in [
        (vec![&*role, &*think], Ok(Resumption::Resend)),
        (vec![&*role, &*text], Ok(Resumption::Continue)),
        (vec![&*think, &*text, &*text], Ok(Resumption::Continue)),
        (vec![&*text, &*tool], Err(ContinuationReason::ToolCalls)),
        (vec![&*tool, &*text], Err(ContinuationReason::ToolCalls)),
        (vec![&*text, finish], Err(ContinuationReason::Finished)),
        (vec![&*text, "[DONE]"], Err(ContinuationReason::Finished)),
        (vec![&*text, "what?"], Err(ContinuationReason::Content)),
        (
            vec![&*text, "", " ", "{}", "null"],
            Ok(Resumption::Continue),
        ),
        (vec![&*text, r#"{"type":"ping"}"#], Ok(Resumption::Continue)),
        (
            vec![&*text, r#"{"tool_call":{"id":"c"}}"#],
            Err(ContinuationReason::Content),
        ),
    ] {
        assert_eq!(sent(&events).resumption(), expected, "{events:?}");
    }
}

#[test]
fn an_event_without_text_is_not_a_token() {
    let [text, none] = ["x", ""].map(|text| delta("a", &json!({"content": text}).to_string()));
    let mut sent = sent(&[&none, &text, &none, &text, &none]);
    assert_eq!(sent.tokens(), 2);
    sent.join(Resumption::Continue, 0);
    for event in [&none, &text, &none] {
        passed(&mut sent, event);
    }
    assert_eq!(sent.tokens(), 3);
}

#[test]
fn only_the_first_event_of_a_second_answer_continues_without_its_reasoning() {
    let both = r#"{"reasoning_content":"hm","role":"assistant","content":"x","reasoning":"hm"}"#;
    let mut first = sent(&[&delta("a", r#"{"reasoning":"hm"}"#)]);
    first.join(Resumption::Resend, 1);
    let expected = r#"{"reasoning_content":null,"content":"x","reasoning":null}"#;
    assert_eq!(passed(&mut first, &delta("b", both)), delta("a", expected));
    let rest = r#"{"content":"y","reasoning":"hm"}"#;
    assert_eq!(passed(&mut first, &delta("b", rest)), delta("a", rest));
}

#[test]
fn text_beyond_the_limit_is_given_up() {
    let mut sent = Sent::new(Api::Chat, 3);
    for _ in 0..3 {
        sent.take(delta("a", r#"{"content":"x"}"#).as_bytes());
    }
    assert_eq!(
        (&sent.text()[..], sent.resumption()),
        (&b"xxx"[..], Ok(Resumption::Continue))
    );
    sent.take(delta("a", r#"{"content":"x"}"#).as_bytes());
    assert_eq!(
        (&sent.text()[..], sent.resumption()),
        (&b""[..], Err(ContinuationReason::TextTooLong))
    );
}

#[test]
fn little_more_than_the_text_is_kept() {
    let mut sent = Sent::new(Api::Chat, 1 << 20);
    let event = delta("chatcmpl-0b4f7f1a", r#"{"content":"word "}"#);
    for count in 1..52_000 {
        sent.take(event.as_bytes());
        let text = count * 5;
        assert!(sent.held() <= text + 1024, "{text}: {}", sent.held());
    }
    assert_eq!((sent.text().len(), sent.tokens()), (51_999 * 5, 51_999));
    assert_eq!(sent.prevented(), None);
}

#[test]
fn the_data_next_to_a_text_fits_into_128_bytes() {
    assert_eq!(size_of::<Sent>(), 128);
}

#[test]
fn a_continued_event_has_the_ids_of_the_first_part_and_no_second_role() {
    let mut first = sent(&[
        &delta("a", r#"{"role":"assistant"}"#),
        &delta("a", r#"{"content":"x"}"#),
    ]);
    first.join(Resumption::Continue, 0);
    let event = r#"{"id":"b", "created" : 2,"x":"y","choices":[{"index":0,"delta":{"role":"assistant","content":"\"id\":"}}]}"#;
    let expected = r#"{"id":"a", "created" : 1,"x":"y","choices":[{"index":0,"delta":{"content":"\"id\":"}}]}"#;
    assert_eq!(passed(&mut first, event), expected);
    let event = r#"{"system_fingerprint":"f","id":"b","choices":[]}"#;
    let expected = r#"{"system_fingerprint":null,"id":"a","choices":[]}"#;
    assert_eq!(passed(&mut first, event), expected);
    assert_eq!(first.pass(b"[DONE]"), None);
}

#[test]
fn token_counts_are_those_of_the_whole_answer() {
    let usage = |prompt_tokens, completion_tokens| Usage {
        prompt_tokens,
        completion_tokens,
    };
    let text = delta("a", r#"{"content":"x"}"#);
    let counted = text.replacen(
        '{',
        r#"{"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12},"#,
        1,
    );
    let mut plain = sent(&[&text, &text]);
    plain.join(Resumption::Continue, 0);
    // The second server counts the text so far as part of its prompt.
    assert_eq!(plain.corrected(usage(9, 4)), usage(7, 6));
    // It is not given the reasoning.
    let think = delta("a", r#"{"reasoning":"hm"}"#);
    let mut reasoned = sent(&[&think, &think, &think, &text, &text]);
    reasoned.join(Resumption::Continue, 0);
    assert_eq!(reasoned.corrected(usage(9, 4)), usage(7, 9));
    let mut again = sent(&[&think, &think]);
    again.join(Resumption::Resend, 1);
    passed(&mut again, &text);
    again.join(Resumption::Continue, 0);
    assert_eq!(again.corrected(usage(8, 4)), usage(7, 6));
    let mut reported = sent(&[&text, &counted]);
    reported.join(Resumption::Continue, 0);
    assert_eq!(reported.corrected(usage(99, 4)), usage(7, 9));
    let last = r#"{"id":"b","choices":[],"usage":{"prompt_tokens":99,"completion_tokens":4,"total_tokens":103,"x":{"y":1}}}"#;
    let expected = r#"{"id":"a","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16,"x":{"y":1}}}"#;
    assert_eq!(passed(&mut reported, last), expected);
    for (cached, expected) in [(50, 7), (3, 3)] {
        let with = |prompt, completion, total, cached| {
            format!(
                r#"{{"id":"a","choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}}}"#
            )
        };
        let data = passed(&mut reported, &with(99, 4, 103, cached));
        assert_eq!(data, with(7, 9, 16, expected));
    }
    // A request that is asked again is answered as a whole.
    let mut again = sent(&[&delta("a", r#"{"reasoning":"hm"}"#)]);
    again.join(Resumption::Resend, 3);
    assert_eq!(again.corrected(usage(7, 9)), usage(7, 9));
    assert_eq!(again.tokens(), 3);
}

#[test]
fn white_space_that_the_second_server_says_again_is_dropped_and_counts_once() {
    let text = |text: &str, count: u64| {
        let delta = serde_json::json!({"content": text});
        let usage = serde_json::json!({"prompt_tokens": 7, "completion_tokens": count});
        serde_json::json!({"id": "a", "choices": [{"index": 0, "delta": delta}], "usage": usage})
            .to_string()
    };
    let mut broken = sent(&[&text("a", 1), &text("b\n", 2), &text("\n", 3)]);
    assert_eq!(broken.resumption(), Ok(Resumption::Continue));
    broken.join(Resumption::Continue, 0);
    for (given, expected) in [
        (text("\n", 1), text("", 3)),
        (text("\n c", 2), text(" c", 4)),
        (text("\n", 3), text("\n", 5)),
    ] {
        assert_eq!(passed(&mut broken, &given), expected);
    }
    assert_eq!(
        (&broken.text()[..], broken.tokens()),
        (&br"ab\n\n c\n"[..], 5)
    );
    // If there is only whitespace, it is requested again.
    // The server repeats only the end of what was withheld.
    let mut partial = sent(&[&text("a  \n", 1)]);
    partial.join(Resumption::Continue, 0);
    assert_eq!(passed(&mut partial, &text("\n", 1)), text("", 1));
    assert_eq!(passed(&mut partial, &text("b", 2)), text("b", 2));
    let mut blank = sent(&[&delta("a", r#"{"reasoning":"hm"}"#), &text("\n\n", 2)]);
    assert_eq!(blank.resumption(), Ok(Resumption::Resend));
    blank.join(Resumption::Resend, 0);
    assert_eq!(passed(&mut blank, &text("\n\na", 1)), text("a", 1));
}

#[test]
fn a_second_server_begins_where_the_first_broke_off() {
    let first = sent(&[&delta("a", r#"{"content":"x"}"#)]);
    let think = delta("b", r#"{"reasoning":"hm"}"#);
    let both = delta("b", r#"{"reasoning":"hm","content":"y"}"#);
    for (resumption, data, expected) in [
        (
            Resumption::Continue,
            delta("b", r#"{"role":"assistant","content":""}"#),
            JoinAction::Skip { token: false },
        ),
        (
            Resumption::Continue,
            r#"{"choices":[],"usage":null}"#.into(),
            JoinAction::Skip { token: false },
        ),
        (
            Resumption::Continue,
            delta("b", r#"{"content":"y"}"#),
            JoinAction::Begin,
        ),
        (
            Resumption::Continue,
            r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#.into(),
            JoinAction::Begin,
        ),
        (
            Resumption::Continue,
            delta("b", r#"{"tool_calls":[{"index":0}]}"#),
            JoinAction::Begin,
        ),
        (
            Resumption::Continue,
            think.clone(),
            JoinAction::Refuse(ContinuationReason::Reasoning),
        ),
        (Resumption::Resend, think, JoinAction::Skip { token: true }),
        (Resumption::Resend, both.clone(), JoinAction::Begin),
        (
            Resumption::Continue,
            both,
            JoinAction::Refuse(ContinuationReason::Reasoning),
        ),
        (
            Resumption::Continue,
            "[DONE]".into(),
            JoinAction::Refuse(ContinuationReason::AttemptsFailed),
        ),
        (
            Resumption::Continue,
            r#"{"error":{"code":503}}"#.into(),
            JoinAction::Refuse(ContinuationReason::AttemptsFailed),
        ),
    ] {
        assert_eq!(
            first.opening(resumption, data.as_bytes()),
            expected,
            "{resumption:?} {data}"
        );
    }
}

/// The data of the events in complete blocks of `bytes`.
fn events(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut decoder = Decoder::new(1 << 20);
    let mut events = decoder.feed(bytes);
    let mut found = Vec::new();
    while let Some(event) = events.next() {
        if event.has_data {
            found.push(event.data.to_vec());
        }
    }
    found
}
