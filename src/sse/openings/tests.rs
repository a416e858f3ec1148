//! Every prefix of a stream's opening, continued by another target, read as the official client libraries read it.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::sse::{Meaning, meaning};

/// A stream of the family, its opening first. The targets name and number things differently.
fn stream(api: Api, target: &str) -> Vec<Value> {
    let id = |what: &str| format!("{what}_{target}");
    match api {
        Api::Chat => vec![
            json!({"id": id("chat"), "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
            json!({"id": id("chat"), "choices": [{"index": 1, "delta": {"role": "assistant"}}]}),
            json!({"id": id("chat"), "choices": [{"index": 0, "delta": {"content": "text"}}]}),
        ],
        Api::Messages => vec![
            json!({"type": "message_start", "message": {"id": id("msg")}}),
            json!({"type": "ping"}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "text"}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_stop"}),
        ],
        _ => {
            let response = json!({"id": id("resp"), "status": "in_progress"});
            let item = json!({"type": "message", "id": id("item"), "role": "assistant"});
            let part = json!({"type": "output_text", "text": ""});
            let at = json!({"item_id": id("item"), "output_index": 0, "content_index": 0});
            let events = [
                json!({"type": "response.created", "response": response}),
                json!({"type": "response.in_progress", "response": response}),
                json!({"type": "keepalive"}),
                json!({"type": "response.output_item.added", "output_index": 0, "item": item}),
                json!({"type": "response.content_part.added", "part": part}),
                json!({"type": "response.output_text.delta", "delta": "text", "id": "other"}),
                json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
                json!({"type": "response.completed", "response": {"id": id("resp"), "output": [item]}}),
            ];
            let numbered = events.into_iter().enumerate().map(|(number, mut event)| {
                let fields = event.as_object_mut().unwrap();
                fields.insert("sequence_number".into(), number.into());
                if number == 4 || number == 5 {
                    fields.extend(at.as_object().unwrap().clone());
                }
                event
            });
            numbered.collect()
        }
    }
}

fn is_opening(api: Api, event: &Value) -> bool {
    let bytes = framed(event);
    let mut decoder = Decoder::new(bytes.len());
    let mut events = decoder.feed(&bytes);
    events
        .next()
        .is_some_and(|event| meaning(api, &event) == Meaning::Preamble)
}

fn classified(openings: &mut Openings, api: Api, bytes: &[u8]) -> Opening {
    let mut decoder = Decoder::new(bytes.len());
    let mut events = decoder.feed(bytes);
    let event = events.next().unwrap();
    openings.classify(api, &event)
}

fn framed(event: &Value) -> Vec<u8> {
    format!("data: {event}\n\n").into_bytes()
}

/// What a client gets from successive targets, each except the last cut after this many events of its opening.
fn continued(api: Api, targets: &[(&str, usize)]) -> Result<Vec<Value>, Opening> {
    let mut openings = Openings::default();
    let mut client = Vec::new();
    for (number, (target, length)) in targets.iter().enumerate() {
        if number > 0 {
            openings.next_stream();
        }
        for event in stream(api, target).into_iter().take(*length) {
            let bytes = framed(&event);
            if is_opening(api, &event) {
                match classified(&mut openings, api, &bytes) {
                    Opening::Forward => openings.sent_all(api, &bytes),
                    Opening::LeaveOut => continue,
                    Opening::Conflict => return Err(Opening::Conflict),
                }
            }
            let bytes = openings.rewritten(api, bytes.into());
            let data = bytes.strip_prefix(b"data: ").unwrap();
            client.push(serde_json::from_slice(data).unwrap());
        }
    }
    Ok(client)
}

/// Reads a stream as `openai` and `anthropic` do, and panics where they raise.
fn read(api: Api, events: &[Value]) {
    let mut opened: Vec<String> = Vec::new();
    let mut ids: [Option<Value>; 2] = [None, None];
    let mut last = None;
    for event in events {
        let kind = event["type"].as_str().unwrap_or("chunk");
        let once = match kind {
            "message_start" | "response.created" => Some(kind.to_owned()),
            "content_block_start" => Some(format!("block {}", event["index"])),
            "response.output_item.added" => Some(format!("item {}", event["output_index"])),
            "response.content_part.added" => Some(format!("part {}", event["content_index"])),
            "chunk" if !event["choices"][0]["delta"]["role"].is_null() => {
                Some(format!("role {}", event["choices"][0]["index"]))
            }
            _ => None,
        };
        if let Some(once) = once {
            assert!(!opened.contains(&once), "twice: {event}");
            opened.push(once);
        }
        let needs: &[&str] = match kind {
            "message_start" | "response.created" => &[],
            "content_block_delta" | "content_block_stop" => &["message_start", "block 0"],
            "response.content_part.added" => &["response.created", "item 0"],
            "response.output_text.delta" => &["response.created", "item 0", "part 0"],
            "response.output_item.done" | "response.completed" => &["item 0"],
            "chunk" => &[],
            _ if api == Api::Messages => &["message_start"],
            _ => &["response.created"],
        };
        let has = |need: &&str| opened.iter().any(|opened| opened == need);
        assert!(needs.iter().all(has), "{event} before {needs:?}");
        for (known, id) in [
            (0, &event["response"]["id"]),
            (
                0,
                if kind == "chunk" {
                    &event["id"]
                } else {
                    &Value::Null
                },
            ),
            (1, &event["item"]["id"]),
            (1, &event["item_id"]),
            (1, &event["response"]["output"][0]["id"]),
        ] {
            if !id.is_null() {
                assert_eq!(ids[known].get_or_insert(id.clone()), id, "{event}");
            }
        }
        if let Some(number) = event["sequence_number"].as_u64() {
            assert!(
                last.is_none_or(|last| last < number),
                "{event} after {last:?}"
            );
            last = Some(number);
        }
    }
}

const FAMILIES: [(Api, usize); 3] = [(Api::Chat, 2), (Api::Messages, 3), (Api::Responses, 5)];

#[test]
fn a_client_can_read_what_follows_any_part_of_an_opening() {
    for (api, opening) in FAMILIES {
        let whole = stream(api, "a").len();
        for sent in 0..=opening {
            let client = continued(api, &[("a", sent), ("b", whole)]).unwrap();
            read(api, &client);
            assert_eq!(
                client.len(),
                whole,
                "nothing is missing after {sent} of {api:?}"
            );
            assert_eq!(client[..sent], stream(api, "a")[..sent]);
        }
    }
}

#[test]
fn repeated_ids_are_rewritten_to_those_of_the_first_part() {
    for (api, opening) in FAMILIES {
        let client = continued(api, &[("a", opening), ("b", usize::MAX)]).unwrap();
        assert_eq!(client[opening..], stream(api, "a")[opening..]);
    }
}

#[test]
fn empty_values_of_the_first_part_are_replaced_by_those_of_the_second() {
    let empty =
        json!({"id": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": []});
    let event = |delta: Value| {
        let choices = json!([{"index": 0, "delta": delta}]);
        framed(&json!({"id": "c1", "created": 7, "model": "m", "choices": choices}))
    };
    let mut openings = Openings::default();
    openings.sent_all(Api::Chat, &framed(&empty));
    openings.next_stream();
    let role = event(json!({"role": "assistant"}));
    assert_eq!(
        classified(&mut openings, Api::Chat, &role),
        Opening::Forward
    );
    for bytes in [role, event(json!({"content": "text"}))] {
        let bytes = Bytes::from(bytes);
        assert_eq!(openings.rewritten(Api::Chat, bytes.clone()), bytes);
    }
}

#[test]
fn unchanged_data_is_not_copied() {
    let mut openings = Openings::default();
    let bytes = Bytes::from(framed(&stream(Api::Responses, "a")[0]));
    let same = |given: &Bytes, taken: Bytes| std::ptr::eq(given.as_ptr(), taken.as_ptr());
    assert!(same(
        &bytes,
        openings.rewritten(Api::Responses, bytes.clone())
    ));
    openings.sent_all(Api::Chat, &framed(&stream(Api::Chat, "a")[0]));
    openings.next_stream();
    assert!(same(&bytes, openings.rewritten(Api::Chat, bytes.clone())));
}

#[test]
fn a_block_that_the_next_stream_does_not_open_is_missed_until_it_does() {
    for (api, opening) in [(Api::Messages, 3), (Api::Responses, 5)] {
        let events = stream(api, "a");
        let mut openings = Openings::default();
        for event in &events[..opening] {
            openings.sent_all(api, &framed(event));
        }
        assert!(!openings.lacks_blocks(), "the stream is its own");
        openings.next_stream();
        let (last, others) = events[..opening].split_last().unwrap();
        for event in others {
            assert_eq!(
                classified(&mut openings, api, &framed(event)),
                Opening::LeaveOut
            );
        }
        assert!(openings.lacks_blocks());
        assert_eq!(
            classified(&mut openings, api, &framed(last)),
            Opening::LeaveOut
        );
        assert!(!openings.lacks_blocks());
    }
    // A missing role is no part of the response.
    let mut openings = Openings::default();
    openings.sent_all(Api::Chat, &framed(&stream(Api::Chat, "a")[0]));
    openings.next_stream();
    assert!(!openings.lacks_blocks());
}

/// What becomes of `second` after `first` went out.
fn after(api: Api, first: &Value, second: &Value) -> Opening {
    let mut openings = Openings::default();
    openings.sent_all(api, &framed(first));
    openings.next_stream();
    classified(&mut openings, api, &framed(second))
}

#[test]
fn equal_events_are_dropped_new_ones_continue_and_different_kinds_conflict() {
    let block = |index: u32, kind: &str, name: Option<&str>| json!({"type": "content_block_start", "index": index, "content_block": {"type": kind, "name": name}});
    let item = |index: u32, kind: &str, name: Option<&str>| json!({"type": "response.output_item.added", "output_index": index, "item": {"type": kind, "name": name}});
    let part = |item: u32, kind: &str| json!({"type": "response.content_part.added", "output_index": item, "content_index": 0, "part": {"type": kind}});
    let role = |index: u32| json!({"choices": [{"index": index, "delta": {"role": "assistant"}}]});
    let roles = json!({"choices": [
        {"index": 0, "delta": {"role": "assistant"}}, {"index": 1, "delta": {"role": "assistant"}},
    ]});
    let blank = json!({"choices": [{"index": 0, "delta": {"content": ""}}]});
    use Opening::{Conflict, Forward, LeaveOut};
    for (api, first, second, expected) in [
        (
            Api::Messages,
            block(0, "text", None),
            block(0, "text", None),
            LeaveOut,
        ),
        (
            Api::Messages,
            block(0, "text", None),
            block(1, "text", None),
            Forward,
        ),
        (
            Api::Messages,
            block(0, "thinking", None),
            block(0, "text", None),
            Conflict,
        ),
        (
            Api::Messages,
            block(0, "tool_use", Some("a")),
            block(0, "tool_use", Some("a")),
            LeaveOut,
        ),
        (
            Api::Messages,
            block(0, "tool_use", Some("a")),
            block(0, "tool_use", Some("b")),
            Conflict,
        ),
        (
            Api::Responses,
            item(0, "message", None),
            item(0, "message", None),
            LeaveOut,
        ),
        (
            Api::Responses,
            item(0, "message", None),
            item(1, "message", None),
            Forward,
        ),
        (
            Api::Responses,
            item(0, "reasoning", None),
            item(0, "message", None),
            Conflict,
        ),
        (
            Api::Responses,
            item(0, "function_call", Some("a")),
            item(0, "function_call", Some("b")),
            Conflict,
        ),
        (
            Api::Responses,
            part(0, "output_text"),
            part(0, "output_text"),
            LeaveOut,
        ),
        (
            Api::Responses,
            part(0, "output_text"),
            part(1, "output_text"),
            Forward,
        ),
        (
            Api::Responses,
            part(0, "output_text"),
            part(0, "refusal"),
            Conflict,
        ),
        (Api::Chat, role(0), role(0), LeaveOut),
        (Api::Chat, role(0), role(1), Forward),
        (Api::Chat, role(0), roles.clone(), Forward),
        (Api::Chat, roles.clone(), roles.clone(), LeaveOut),
        (Api::Chat, roles, role(1), LeaveOut),
        (Api::Chat, blank.clone(), role(0), Forward),
        (Api::Chat, role(0), blank, Forward),
    ] {
        assert_eq!(
            after(api, &first, &second),
            expected,
            "{first} then {second}"
        );
    }
}

#[test]
fn each_event_that_went_out_takes_the_place_of_one() {
    let mut openings = Openings::default();
    let start = framed(&json!({"type": "message_start"}));
    openings.sent_all(Api::Messages, &start);
    openings.next_stream();
    assert_eq!(
        classified(&mut openings, Api::Messages, &start),
        Opening::LeaveOut
    );
    assert_eq!(
        classified(&mut openings, Api::Messages, &start),
        Opening::Forward
    );
}

#[test]
fn an_opening_without_end_cannot_be_continued() {
    let mut openings = Openings::default();
    let start = framed(&json!({"type": "message_start"}));
    openings.sent_all(Api::Messages, &start.repeat(MAX_EVENTS + 1));
    openings.next_stream();
    assert_eq!(
        classified(&mut openings, Api::Messages, &start),
        Opening::Conflict
    );
}

#[test]
fn any_number_of_keep_alives_is_remembered_as_one() {
    let (mut openings, ping) = (Openings::default(), framed(&json!({"type": "ping"})));
    let start = framed(&json!({"type": "message_start"}));
    let sent = [&start[..], &ping.repeat(MAX_EVENTS + 1)].concat();
    openings.sent_all(Api::Messages, &sent);
    openings.next_stream();
    for (event, expected) in [
        (&ping, Opening::LeaveOut),
        (&ping, Opening::Forward),
        (&start, Opening::LeaveOut),
    ] {
        assert_eq!(classified(&mut openings, Api::Messages, event), expected);
    }
}

proptest! {
    #[test]
    fn a_client_can_read_what_three_targets_made_one_after_the_other(
        family in 0_usize..3, first in 0_usize..5, second in 0_usize..5,
    ) {
        let (api, opening) = FAMILIES[family];
        let (first, second) = (first.min(opening), second.min(opening));
        let client = continued(api, &[("a", first), ("b", second), ("c", usize::MAX)]).unwrap();
        read(api, &client);
        prop_assert_eq!(client.len(), stream(api, "a").len());
    }
}
