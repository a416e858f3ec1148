//! The official clients read streams that another generation continued. They raise an exception if the events of a stream are
//! inconsistent.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::pair::PROTOCOLS;
use crate::peers::read_streams;
use crate::rig::plan_file::mostly_old;
use crate::rig::{Counting, Family, PlanFile, Proxy, Script, Upstream, manifest, stream_of, words};

/// The number of complete streams between two that break, so that the endpoint is not ejected.
const WHOLE_STREAMS: usize = 2;

/// The content of a stream.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Text,
    Call,
}

/// The events of a stream before its first content, and the rest.
fn stream(family: Family, kind: Kind, name: &str) -> [String; 2] {
    match family {
        Family::Messages => messages(kind, name),
        _ => responses(kind, name),
    }
}

fn messages(kind: Kind, name: &str) -> [String; 2] {
    let (block, delta) = match kind {
        Kind::Text => (
            json!({"type": "text", "text": ""}),
            json!({"type": "text_delta", "text": name}),
        ),
        Kind::Call => (
            json!({"type": "tool_use", "id": format!("toolu_{name}"), "name": "f", "input": {}}),
            json!({"type": "input_json_delta", "partial_json": format!("{{\"by\":\"{name}\"}}")}),
        ),
    };
    let message = json!({
        "id": format!("msg_{name}"), "type": "message", "role": "assistant", "model": "tiny", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 5, "output_tokens": 1},
    });
    let opening = [
        json!({"type": "message_start", "message": message}),
        json!({"type": "ping"}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
    ];
    let rest = [
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}),
        json!({"type": "message_stop"}),
    ];
    [framed(&opening), framed(&rest)]
}

fn responses(kind: Kind, name: &str) -> [String; 2] {
    let response = |status: &str, output: &[Value]| {
        json!({
            "id": format!("resp_{name}"), "object": "response", "created_at": 1, "model": "tiny", "status": status,
            "output": output, "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
        })
    };
    let id = format!("item_{name}");
    let at = |kind: &str, more: Value| {
        let mut event = json!({"type": kind, "item_id": id, "output_index": 0, "content_index": 0});
        let fields = event.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        event
    };
    let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
    let arguments = format!("{{\"by\":\"{name}\"}}");
    let item = |is_done: bool| {
        let status = if is_done { "completed" } else { "in_progress" };
        match kind {
            Kind::Text => {
                let content: Vec<_> = is_done.then(|| part(name)).into_iter().collect();
                json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
            }
            Kind::Call => {
                let arguments = if is_done { &arguments } else { "" };
                json!({
                    "id": id, "type": "function_call", "call_id": format!("call_{name}"), "name": "f",
                    "arguments": arguments, "status": status,
                })
            }
        }
    };
    let mut opening = vec![
        json!({"type": "response.created", "response": response("in_progress", &[])}),
        json!({"type": "response.in_progress", "response": response("in_progress", &[])}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": item(false)}),
    ];
    let mut rest = match kind {
        Kind::Text => {
            opening.push(at("response.content_part.added", json!({"part": part("")})));
            vec![
                at(
                    "response.output_text.delta",
                    json!({"delta": name, "logprobs": []}),
                ),
                at(
                    "response.output_text.done",
                    json!({"text": name, "logprobs": []}),
                ),
                at("response.content_part.done", json!({"part": part(name)})),
            ]
        }
        Kind::Call => vec![
            at(
                "response.function_call_arguments.delta",
                json!({"delta": arguments}),
            ),
            at(
                "response.function_call_arguments.done",
                json!({"arguments": arguments, "name": "f"}),
            ),
        ],
    };
    rest.push(json!({"type": "response.output_item.done", "output_index": 0, "item": item(true)}));
    rest.push(
        json!({"type": "response.completed", "response": response("completed", &[item(true)])}),
    );
    for (number, event) in opening.iter_mut().chain(&mut rest).enumerate() {
        event["sequence_number"] = number.into();
    }
    [framed(&opening), framed(&rest)]
}

fn framed(events: &[Value]) -> String {
    let event = |event: &Value| {
        let kind = event["type"].as_str().unwrap();
        format!("event: {kind}\ndata: {event}\n\n")
    };
    events.iter().map(event).collect()
}

/// The offsets at which an opening is cut, in bytes: before and after each event, and within each part of it.
fn cuts(opening: &str) -> Vec<usize> {
    let mut cuts = vec![0];
    let mut start = 0;
    for event in opening.split_inclusive("\n\n") {
        let data = event.find("data: ").unwrap();
        for within in [
            3,
            data,
            data + 9,
            (data + event.len()) / 2,
            event.len() - 1,
            event.len(),
        ] {
            cuts.push(start + within);
        }
        start += event.len();
    }
    cuts
}

#[tokio::test]
async fn the_official_clients_read_a_stream_that_continues_elsewhere_after_any_part_of_its_opening()
{
    for family in [Family::Messages, Family::Responses] {
        for (kind, protocol) in [
            (Kind::Text, "http1"),
            (Kind::Text, "http2"),
            (Kind::Call, "http1"),
        ] {
            let [opening, rest] = stream(family, kind, "new");
            let whole = format!("{opening}{rest}");
            let cuts = cuts(&opening);
            let count = cuts.len() * (WHOLE_STREAMS + 1);
            let requests = AtomicUsize::new(0);
            let new = Upstream::start({
                let (opening, cuts) = (opening.clone(), cuts.clone());
                move |_| {
                    let number = requests.fetch_add(1, Ordering::Relaxed);
                    match number % (WHOLE_STREAMS + 1) {
                        WHOLE_STREAMS => {
                            let cut = cuts[number / (WHOLE_STREAMS + 1)];
                            let begun = &opening[..cut];
                            let script = Script::new().sse();
                            let script = if cut > 0 { script.chunk(begun) } else { script };
                            script.eof()
                        }
                        _ => stream_of(&whole),
                    }
                }
            })
            .await;
            let old = Upstream::always(stream_of(&stream(family, kind, "old").concat())).await;
            // Do not hold events. The few complete streams do not earn enough retry budget.
            let lines = "failover: {holdSeconds: 0, retryBudgetPercent: 100}";
            let plan = PlanFile::new(&manifest(&new.url(), 0, 1, lines));
            let flags = ["--upstream-protocol", protocol];
            let proxy = Proxy::planned(&old, &plan, &flags).await;
            let streams = read_streams(family, proxy.address, count).await;
            assert_eq!(new.count(), count, "{family:?} {kind:?}");
            assert_eq!(old.count(), cuts.len(), "{family:?} {kind:?}");
            let first_event = opening.find("\n\n").unwrap() + 2;
            for (number, (id, blocks)) in streams.iter().enumerate() {
                let cut = number % (WHOLE_STREAMS + 1) == WHOLE_STREAMS;
                let cut = cut.then(|| cuts[number / (WHOLE_STREAMS + 1)]);
                let what = format!("{family:?} {kind:?} {protocol} cut at {cut:?}");
                let by = if cut.is_some() { "old" } else { "new" };
                let known_by = if cut.is_some_and(|cut| cut < first_event) {
                    "old"
                } else {
                    "new"
                };
                assert!(id.ends_with(known_by), "{what}: {id}");
                let text = blocks[0][1].as_str().unwrap();
                let server = match kind {
                    Kind::Text => text.to_owned(),
                    Kind::Call => {
                        let arguments: Value = serde_json::from_str(text).unwrap();
                        arguments["by"].as_str().unwrap().to_owned()
                    }
                };
                assert_eq!(
                    (server.as_str(), blocks.as_array().unwrap().len()),
                    (by, 1),
                    "{what}"
                );
            }
            proxy
                .recovers(&[("cause", "broken")], cuts.len() as f64)
                .await;
        }
    }
}

#[tokio::test]
async fn the_official_client_of_messages_reads_a_message_that_breaks_and_continues_elsewhere() {
    type How = fn(Script) -> Script;
    const STREAMS: usize = 3;
    let gone: How = |script| {
        let error = json!({"type": "api_error", "message": "Service temporarily unavailable"});
        script.chunk(framed(&[json!({"type": "error", "error": error})]))
    };
    let breaks: [(usize, How); 3] = [(1, Script::reset), (5, Script::end), (4, gone)];
    for (protocol, (after, how)) in PROTOCOLS.into_iter().cycle().zip(breaks) {
        let old = Upstream::start(Counting::new("old", 20).breaking(after, how).handler()).await;
        let new = Upstream::start(Counting::new("new", 20).handler()).await;
        let lines = "failover: {retryBudgetPercent: 100, continuation: {mode: AnyGeneration}}";
        let flags = ["--upstream-protocol", protocol];
        let proxy = Proxy::planned(&old, &mostly_old(&new, lines), &flags).await;
        let streams = read_streams(Family::Messages, proxy.address, STREAMS).await;
        for (id, blocks) in streams {
            let what = format!("{protocol} after {after}: {blocks}");
            assert_eq!(id, "msg_old", "{what}");
            assert_eq!(blocks, json!([["text", words(20)]]), "{what}");
        }
        let labels = [("outcome", "continued")];
        let count = STREAMS as f64;
        proxy
            .counts("crossfade_continuations_total", &labels, count)
            .await;
    }
}
