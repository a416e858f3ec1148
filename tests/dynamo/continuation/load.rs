//! Many streams of Dynamo's mocker while random processes of old are killed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::*;
use crate::dynamo::{Kind, MODEL, Stack};
use crate::rig::Client;

const OPEN: usize = 500;
const DURATION: Duration = Duration::from_secs(120);
const BETWEEN_KILLS: Duration = Duration::from_secs(5);
/// The number of tokens of a response, which takes about ten seconds.
const TOKENS: u64 = 100;
/// Ten tokens per second and stream, so that two cores suffice for all streams.
const SPEEDUP: f64 = 0.06;

/// The number of streams by outcome.
#[derive(Default)]
struct Outcomes {
    whole: AtomicUsize,
    cut: AtomicUsize,
    refused: AtomicUsize,
    /// The ends of some streams that were cut.
    examples: Mutex<Vec<String>>,
    /// Complete streams whose token count is not the requested one.
    miscounted: AtomicUsize,
}

/// Keeps one stream open at a time.
async fn stream(address: std::net::SocketAddr, stop: Arc<AtomicBool>, outcomes: Arc<Outcomes>) {
    let body = json!({
        "model": MODEL, "stream": true, "max_tokens": TOKENS, "ignore_eos": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        "messages": [{"role": "user", "content": "go on"}],
    });
    while !stop.load(Ordering::Relaxed) {
        let mut client = Client::connect(address).await;
        client
            .post("/v1/chat/completions", &[], body.to_string())
            .await;
        let response = client.response().await;
        let text = response.text();
        let counted = text.contains(&format!("\"completion_tokens\":{TOKENS},"));
        let counter = match (response.status, text.ends_with("data: [DONE]\n\n")) {
            (200, true) if !text.contains("\"error\"") => {
                if !counted {
                    outcomes.miscounted.fetch_add(1, Ordering::Relaxed);
                }
                &outcomes.whole
            }
            (200, _) => {
                let mut examples = outcomes
                    .examples
                    .lock()
                    .expect("no thread panics while it holds the lock");
                if examples.len() < 5 {
                    let end = text.len().saturating_sub(300);
                    examples.push(text[text.ceil_char_boundary(end)..].to_owned());
                }
                &outcomes.cut
            }
            _ => &outcomes.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The program to run: `CROSSFADE_BIN`, or the debug build.
fn program() -> PathBuf {
    std::env::var_os("CROSSFADE_BIN").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_crossfade")),
        PathBuf::from,
    )
}

/// Run with `cargo test --release --test dynamo -- --ignored load`, or with `CROSSFADE_BIN`. Needs a quiet machine, and prints its
/// figures.
#[tokio::test]
#[ignore = "two minutes of load"]
async fn a_pool_that_is_killed_again_and_again_under_load_cuts_no_stream() {
    let options = |workers| Options {
        kind: Kind::Mocker { speedup: SPEEDUP },
        workers,
        ..Options::default()
    };
    let (mut one, mut two, new) = tokio::join!(
        Stack::start("one", "dynamo-v1", options(1)),
        Stack::start("two", "dynamo-v1b", options(1)),
        Stack::start("new", "dynamo-v2", options(2)),
    );
    let (old, other, new) = (one.url(), two.url(), new.url());
    let proxy = Proxy::start_of(
        &program(),
        &[
            &[
                "--old", &old, "--old", &other, "--new", &new, "--split", "10",
            ][..],
            &FLAGS,
            // A stream must survive every kill that affects it.
            &[
                "--gap-timeout",
                "20s",
                "--continuation-max-per-stream",
                "30",
            ],
        ]
        .concat(),
        &[],
    )
    .await;
    let (stop, outcomes) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Outcomes::default()),
    );
    let streams: Vec<_> = (0..OPEN)
        .map(|_| {
            tokio::spawn(stream(
                proxy.address,
                Arc::clone(&stop),
                Arc::clone(&outcomes),
            ))
        })
        .collect();
    let until = Instant::now() + DURATION;
    let mut kills = 0;
    while Instant::now() < until {
        // The interval is a parameter of the test: the other stack has had this time to recover.
        sleep(BETWEEN_KILLS).await;
        let stack = if kills % 2 == 0 { &mut one } else { &mut two };
        if fastrand::bool() {
            stack.kill_frontend();
            stack.start_frontend().await;
        } else {
            let last = stack.worker_count() - 1;
            stack.kill_worker(last);
            stack.start_worker().await;
        }
        kills += 1;
    }
    stop.store(true, Ordering::Relaxed);
    for stream in streams {
        stream.await.expect("it does not panic");
    }
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let metrics = proxy.metrics().await;
    println!(
        "{kills} kills, {OPEN} streams at a time: {} whole, {} cut, {} refused, {} miscounted",
        count(&outcomes.whole),
        count(&outcomes.cut),
        count(&outcomes.refused),
        count(&outcomes.miscounted),
    );
    for example in outcomes
        .examples
        .lock()
        .expect("no thread panics while it holds the lock")
        .iter()
    {
        println!("cut: {example}");
    }
    for name in [
        "crossfade_requests_total",
        "crossfade_continuations_total",
        "crossfade_recovered_requests_total",
        "crossfade_continuation_gap_seconds",
    ] {
        let lines = metrics.text.lines().filter(|line| line.starts_with(name));
        let lines = lines.filter(|line| !line.ends_with(" 0"));
        lines.for_each(|line| println!("{line}"));
    }
    for counter in [&outcomes.cut, &outcomes.refused, &outcomes.miscounted] {
        assert_eq!(count(counter), 0);
    }
    assert!(metrics.sum("crossfade_continuations_total", &[("outcome", "continued")]) > 0.0);
}
