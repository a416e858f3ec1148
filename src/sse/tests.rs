//! The sample streams in `tests/corpus/sse`, split at every position. They are also the seeds of the fuzzer.

use std::fmt::Write as _;
use std::path::Path;

use super::{Api, Decoder, Meaning, Prescans, Usage, meaning, tail_meaning, usage};

/// File, family, the meaning of its events, `| pending` if a block is incomplete, `| prompt/completion` tokens.
const SAMPLES: [(&str, Api, &str); 18] = [
    ("chat.sse", Api::Chat, "content content content terminal"),
    (
        "chat_usage.sse",
        Api::Chat,
        "preamble content content content terminal | 16/3",
    ),
    (
        "chat_keep_alive.sse",
        Api::Chat,
        "comment comment content comment content terminal",
    ),
    (
        "chat_annotations.sse",
        Api::Chat,
        "comment content content content terminal",
    ),
    (
        "chat_worker_killed.sse",
        Api::Chat,
        "content error(503) terminal",
    ),
    ("chat_refused.sse", Api::Chat, "error(400) terminal"),
    ("chat_error_old.sse", Api::Chat, "content error"),
    ("chat_crlf.sse", Api::Chat, "content content terminal"),
    ("chat_cr.sse", Api::Chat, "content content terminal"),
    (
        "chat_bom.sse",
        Api::Chat,
        "comment content content terminal",
    ),
    (
        "chat_lines.sse",
        Api::Chat,
        "content comment content terminal",
    ),
    ("chat_cut.sse", Api::Chat, "content content | pending"),
    (
        "completions.sse",
        Api::Completions,
        "content content content terminal | 5/2",
    ),
    (
        "responses.sse",
        Api::Responses,
        "preamble preamble preamble preamble content content content content content terminal terminal | 9/2",
    ),
    (
        "responses_failed.sse",
        Api::Responses,
        "preamble content error(500)",
    ),
    (
        "responses_error.sse",
        Api::Responses,
        "preamble error(500) terminal",
    ),
    (
        "messages.sse",
        Api::Messages,
        "preamble preamble preamble content content content content terminal | 25/15",
    ),
    (
        "messages_error.sse",
        Api::Messages,
        "preamble content error(529) | 25/1",
    ),
];

fn transcript<'a>(api: Api, slices: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut decoder = Decoder::new(1 << 16);
    let mut words = Vec::new();
    let mut tokens = Usage::default();
    for slice in slices {
        let mut prescans = Prescans::before(&decoder, slice);
        let mut events = decoder.feed(slice);
        while let Some(event) = events.next() {
            let prescan = prescans.for_next();
            let with = (
                prescan.tail_meaning(api, &event),
                prescan.usage(api, &event),
            );
            let without = (tail_meaning(api, &event), usage(api, event.data));
            assert_eq!(with, without, "a prescan changes no result");
            tokens.merge(usage(api, event.data).unwrap_or_default());
            words.push(match meaning(api, &event) {
                Meaning::Comment => "comment".to_owned(),
                Meaning::Preamble => "preamble".to_owned(),
                Meaning::Content => "content".to_owned(),
                Meaning::Terminal => "terminal".to_owned(),
                Meaning::Error { code: None } => "error".to_owned(),
                Meaning::Error { code: Some(code) } => format!("error({code})"),
            });
        }
    }
    let mut text = words.join(" ");
    if decoder.mid_event() {
        text.push_str(" | pending");
    }
    if tokens != Usage::default() {
        write!(
            text,
            " | {}/{}",
            tokens.prompt_tokens, tokens.completion_tokens
        )
        .unwrap();
    }
    text
}

#[test]
fn every_sample_reads_the_same_through_every_cut() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/sse");
    for (file, api, expected) in SAMPLES {
        let stream = std::fs::read(folder.join(file)).unwrap();
        for width in 1..=stream.len() {
            assert_eq!(
                transcript(api, stream.chunks(width)),
                expected,
                "{file} by {width}"
            );
        }
        for at in 0..=stream.len() {
            let (head, tail) = stream.split_at(at);
            assert_eq!(transcript(api, [head, tail]), expected, "{file} at {at}");
        }
    }
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), SAMPLES.len());
}
