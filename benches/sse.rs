//! What watching a stream costs: framing per event, and judging an event once content flows.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossfade::sse::{Api, Decoder, meaning, tail_meaning, usage};

/// A chat chunk of Dynamo, padded to 250 bytes with its line ends.
fn chat_event() -> Vec<u8> {
    let mut event = br#"data: {"id":"chatcmpl-83087757-fa2d-44c9-b690-886ab86f4012","choices":[{"index":0,"delta":{"content":"args"#.to_vec();
    let rest = br#""},"finish_reason":null,"logprobs":null}],"created":1795217637,"model":"tiny","object":"chat.completion.chunk"}"#;
    event.resize(250 - 2 - rest.len(), b's');
    event.extend(rest);
    event.extend(b"\n\n");
    event
}

fn responses_event() -> Vec<u8> {
    b"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":4,\"item_id\":\"msg_1\",\"output_index\":0,\"content_index\":0,\"delta\":\"any\",\"logprobs\":[]}\n\n".to_vec()
}

/// Feeds the slices in turn; each run counts as one pass over all of them.
fn drain(decoder: &mut Decoder, slices: &[&[u8]]) -> usize {
    let mut bytes = 0;
    for slice in slices {
        let mut events = decoder.feed(black_box(slice));
        while let Some(event) = events.next() {
            bytes += event.data.len();
        }
    }
    bytes
}

fn framing(c: &mut Criterion) {
    let event = chat_event();
    let many = event.repeat(16);
    let (head, tail) = event.split_at(125);
    let shifted = [tail, &event.repeat(15), head].concat();
    let responses = responses_event();
    let cases: [(&str, Vec<&[u8]>, u64); 6] = [
        ("16 events in a slice", vec![&many], 16),
        ("1 event in a slice", vec![&event], 1),
        ("1 event in 2 slices", vec![head, tail], 1),
        ("16 events, 1 split", vec![&shifted], 16),
        ("1 named event in a slice", vec![&responses], 1),
        ("16 events byte by byte", many.chunks(1).collect(), 16),
    ];
    let mut group = c.benchmark_group("framing");
    for (name, slices, events) in cases {
        group.throughput(Throughput::Elements(events));
        let mut decoder = Decoder::new(1 << 20);
        drop(decoder.feed(if name.contains("split") { head } else { b"" }));
        group.bench_function(name, |b| b.iter(|| drain(&mut decoder, &slices)));
    }
    group.finish();
}

fn classifying(c: &mut Criterion) {
    let mut group = c.benchmark_group("judging");
    for (api, bytes) in [
        (Api::Chat, chat_event()),
        (Api::Responses, responses_event()),
    ] {
        let mut decoder = Decoder::new(1 << 20);
        let mut events = decoder.feed(&bytes);
        let event = events.next().expect("one event is there");
        group.bench_function(format!("tail, {}", api.as_str()), |b| {
            b.iter(|| tail_meaning(api, black_box(&event)));
        });
        group.bench_function(format!("early, {}", api.as_str()), |b| {
            b.iter(|| meaning(api, black_box(&event)));
        });
        group.bench_function(format!("usage, {}", api.as_str()), |b| {
            b.iter(|| usage(api, black_box(event.data)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = framing, classifying
}
criterion_main!(benches);
