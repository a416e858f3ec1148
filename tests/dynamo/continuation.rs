//! The other generation continues streams whose server dies, stops sending or is drained, without a missing or repeated word.

mod load;
mod relay;
mod streams;
mod thinking;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::dynamo::Options;
use crate::pair::{PROTOCOLS, Pair};
use crate::rig::{Family, PlanFile, Proxy, eventually, manifest};
use relay::Relay;
use streams::{Answer, Streams};

const STREAMS: usize = 200;
const WORDS: usize = 60;
const FLAGS: [&str; 4] = [
    "--continuation",
    "any-generation",
    "--retry-budget-percent",
    "100",
];

/// The complete text of a stream.
fn text(words: usize) -> String {
    let words: Vec<_> = (0..words).map(|index| format!("w:{index}")).collect();
    words.join(" ")
}

fn prompt() -> String {
    incomplete_on_old(&format!("counted=1 words={WORDS} each_ms=300"))
}

/// A prompt with these commands, whose stream hangs on old after 50 words: none ends before the last one has started and the test
/// breaks them, however busy the machine is.
fn incomplete_on_old(commands: &str) -> String {
    format!("<<{commands}>><<for=old {commands} hang_after=50>>")
}

/// One proxy per protocol to the model servers. Practically all requests go to old.
async fn proxies(pair: &Pair, more: &[&str]) -> [Proxy; 2] {
    let mut proxies = Vec::new();
    for protocol in PROTOCOLS {
        let flags = [&FLAGS[..], &["--upstream-protocol", protocol], more].concat();
        proxies.push(pair.proxy(1, &flags).await);
    }
    proxies.try_into().ok().expect("two")
}

/// Opens chat and completion streams on old through both proxies, most with the official client and some over HTTP/2.
async fn begin(proxies: &[Proxy; 2], prompt: &str) -> Vec<Streams> {
    let [one, two] = proxies;
    let (one, two) = tokio::join!(begin_at(one, prompt), begin_at(two, prompt));
    one.into_iter().chain(two).collect()
}

/// Starts them concurrently, because a client program takes seconds to start.
async fn begin_at(proxy: &Proxy, prompt: &str) -> [Streams; 4] {
    const MOST: usize = STREAMS / 5;
    const SOME: usize = STREAMS / 20;
    let address = proxy.address;
    let raw = |family| Streams::raw(address, SOME, (family, true), prompt, "w:0");
    let (a, b, c, d) = tokio::join!(
        Streams::of_library(address, MOST, "chat", prompt),
        Streams::of_library(address, MOST, "completions", prompt),
        raw(Family::Chat),
        raw(Family::Completions),
    );
    [a, b, c, d]
}

/// The token counts of a stream of each family that nothing breaks, because its client asks new itself.
async fn unbroken_usage(pair: &Pair, prompt: &str) -> BTreeMap<&'static str, Value> {
    let mut open = Vec::new();
    for family in [Family::Chat, Family::Completions] {
        let kind = (family, false);
        open.push(Streams::raw(pair.new.address(), 1, kind, prompt, "w:0").await);
    }
    let answers = answers(open).await;
    let usage = |answer: Answer| (answer.class, answer.usage);
    answers.into_iter().map(usage).collect()
}

async fn answers(open: Vec<Streams>) -> Vec<Answer> {
    let mut all = Vec::new();
    for streams in open {
        all.extend(streams.answers().await);
    }
    all
}

/// Asserts that every stream is one complete response, with the token counts of an unbroken one.
fn assert_complete(answers: &[Answer], words: usize, usage: &BTreeMap<&'static str, Value>) {
    for answer in answers {
        assert_eq!(answer.text, text(words), "{answer:?}");
        assert!(answer.is_whole && answer.ids.len() == 1, "{answer:?}");
        assert_eq!(answer.finish.as_deref(), Some("stop"), "{answer:?}");
        assert!(answer.usage[0].as_u64() > Some(0), "{answer:?}");
        assert_eq!(answer.usage, usage[answer.class], "{answer:?}");
    }
}

/// Asserts that every stream that started on old was continued and counted as completed.
async fn assert_continued(proxies: &[Proxy; 2], streams: usize, cause: &str) {
    for proxy in proxies {
        proxy.outcomes("completed", streams as u32).await;
        let metrics = proxy.metrics().await;
        let continued =
            |labels: &[(&str, &str)]| metrics.sum("crossfade_continuations_total", labels);
        let on_old = metrics.sum(
            "crossfade_requests_total",
            &[("generation", "old"), ("outcome", "completed")],
        );
        let by_cause = [("outcome", "continued"), ("reason", cause)];
        let of = metrics.of("crossfade_continuations_total");
        assert_eq!(continued(&by_cause), on_old, "{of:?}");
        assert_eq!(continued(&[("outcome", "ended")]), 0.0, "{of:?}");
        assert_eq!(metrics.sum("crossfade_open_streams", &[]), 0.0);
    }
}

async fn assert_all_complete(pair: &Pair, open: Vec<Streams>, proxies: &[Proxy; 2], cause: &str) {
    let prompt = prompt();
    let (answers, usage) = tokio::join!(answers(open), unbroken_usage(pair, &prompt));
    assert_complete(&answers, WORDS, &usage);
    assert_continued(proxies, STREAMS / 2, cause).await;
}

#[tokio::test]
async fn a_worker_that_is_killed_cuts_no_stream() {
    let mut pair = Pair::start().await;
    let proxies = proxies(&pair, &[]).await;
    let open = begin(&proxies, &prompt()).await;
    pair.old.kill_worker(0);
    assert_all_complete(&pair, open, &proxies, "error_event").await;
}

#[tokio::test]
async fn a_frontend_that_is_killed_cuts_no_stream() {
    let mut pair = Pair::start().await;
    let proxies = proxies(&pair, &[]).await;
    let open = begin(&proxies, &prompt()).await;
    pair.old.kill_frontend();
    assert_all_complete(&pair, open, &proxies, "connection").await;
}

#[tokio::test]
async fn connections_that_are_reset_cut_no_stream() {
    let pair = Pair::start().await;
    let relay = Relay::start(pair.old.address()).await;
    let (old, new) = (relay.url(), pair.new.url());
    let mut proxies = Vec::new();
    for protocol in PROTOCOLS {
        let both = ["--old", &old, "--new", &new, "--split", "1"];
        let flags = ["--upstream-protocol", protocol];
        proxies.push(Proxy::start(&[&both[..], &FLAGS, &flags].concat()).await);
    }
    let proxies: [Proxy; 2] = proxies.try_into().ok().expect("two");
    let open = begin(&proxies, &prompt()).await;
    relay.reset();
    assert_all_complete(&pair, open, &proxies, "connection").await;
}

#[tokio::test]
async fn a_worker_that_stops_sending_cuts_no_stream() {
    let pair = Pair::start().await;
    // Longer than the pause that a busy machine makes when all streams are continued at once.
    let proxies = proxies(&pair, &["--gap-timeout", "10s"]).await;
    let open = begin(&proxies, &prompt()).await;
    pair.old.pause_worker(0);
    assert_all_complete(&pair, open, &proxies, "gap_timeout").await;
}

#[tokio::test]
async fn an_error_about_the_request_is_not_retried_on_another_server() {
    let pair = Pair::start().await;
    let proxies = proxies(&pair, &[]).await;
    // No stream goes beyond 50 words before all are open.
    let commands = format!("counted=1 words={WORDS} each_ms=300 hang_after=50");
    let prompt = format!("<<{commands}>><<for=old {commands} raise_after=50>>");
    let open = begin(&proxies, &prompt).await;
    for proxy in &proxies {
        let metrics = proxy.metrics().await;
        let open = metrics.sum("crossfade_open_streams", &[]);
        assert_eq!(open, STREAMS as f64 / 2.0, "they are open at once");
    }
    for generation in [&pair.old, &pair.new] {
        generation.release_worker(0);
    }
    let all = answers(open).await;
    let (broken, whole): (Vec<_>, Vec<_>) = all.iter().partition(|answer| answer.has_error);
    // The few streams that the split sent to new.
    assert!(whole.iter().all(|answer| answer.text == text(WORDS)));
    assert!(broken.iter().all(|answer| answer.text == text(50)));
    assert!(broken.len() >= STREAMS - 4, "{}", broken.len());
    let mut ended = 0.0;
    for proxy in &proxies {
        let metrics = proxy.metrics().await;
        let labels = [("outcome", "ended"), ("reason", "request_error")];
        ended += metrics.sum("crossfade_continuations_total", &labels);
        let all = metrics.sum("crossfade_continuations_total", &[]);
        assert_eq!(all, metrics.sum("crossfade_continuations_total", &labels));
    }
    assert_eq!(ended, broken.len() as f64);
}

#[tokio::test]
async fn a_plan_that_moves_streams_drains_old_at_once_and_cuts_none() {
    let pair = Pair::start().await;
    let plan = |old, new| {
        let more = "failover: {continuation: {mode: AnyGeneration}}\ndrain: {moveAfterSeconds: 0, moveRate: 200}";
        manifest(&pair.new.url(), old, new, more)
    };
    let file = PlanFile::new(&plan(1, 0));
    let (old, path) = (pair.old.url(), file.as_str());
    let mut proxies = Vec::new();
    for protocol in PROTOCOLS {
        let flags = [
            "--old",
            &old,
            "--plan",
            &path,
            "--upstream-protocol",
            protocol,
        ];
        proxies.push(Proxy::start(&flags).await);
    }
    let proxies: [Proxy; 2] = proxies.try_into().ok().expect("two");
    for proxy in &proxies {
        let proven = [("state", "supported"), ("api", "chat")];
        proxy
            .counts("crossfade_continuation_capability", &proven, 2.0)
            .await;
    }
    let open = begin(&proxies, &prompt()).await;
    file.write(&plan(0, 1));
    for proxy in &proxies {
        let on_old = [("generation", "old")];
        proxy.counts("crossfade_open_streams", &on_old, 0.0).await;
        let metrics = proxy.metrics().await;
        let on_new = metrics.sum("crossfade_open_streams", &[("generation", "new")]);
        assert!(on_new > STREAMS as f64 / 4.0, "they go on: {on_new}");
    }
    eventually("old's requests are cancelled", async || {
        let events = pair.old.events();
        let cancelled = events.iter().filter(|line| line.starts_with("cancelled"));
        cancelled.count() == STREAMS
    })
    .await;
    assert_all_complete(&pair, open, &proxies, "planned_move").await;
}
