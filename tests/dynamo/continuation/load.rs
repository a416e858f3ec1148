//! Many streams of Dynamo's own mocker, while old's processes are killed at random.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::*;
use crate::dynamo::{Kind, MODEL, Stack};
use crate::rig::Client;

const OPEN: usize = 500;
const LASTS: Duration = Duration::from_secs(120);
const BETWEEN_KILLS: Duration = Duration::from_secs(5);
/// Tokens of an answer: some ten seconds.
const TOKENS: u64 = 100;
/// Ten tokens per second and stream, so that all streams together do not need more than two cores.
const SPEEDUP: f64 = 0.06;

/// How the streams ended.
#[derive(Default)]
struct Ends {
    whole: AtomicUsize,
    cut: AtomicUsize,
    refused: AtomicUsize,
    /// How some of those ended that were cut.
    examples: Mutex<Vec<String>>,
    /// Whole ones whose count of tokens is not what was asked for.
    miscounted: AtomicUsize,
}

/// Keeps one stream open at a time.
async fn stream(address: std::net::SocketAddr, stop: Arc<AtomicBool>, ends: Arc<Ends>) {
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
                    ends.miscounted.fetch_add(1, Ordering::Relaxed);
                }
                &ends.whole
            }
            (200, _) => {
                let mut examples = ends.examples.lock().expect("nobody panics with it");
                if examples.len() < 5 {
                    let end = text.len().saturating_sub(300);
                    examples.push(text[text.ceil_char_boundary(end)..].to_owned());
                }
                &ends.cut
            }
            _ => &ends.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Run with `cargo test --release --test dynamo -- --ignored load`. Needs a quiet machine, and prints its figures.
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
    let proxy = Proxy::start(
        &[
            &[
                "--old", &old, "--old", &other, "--new", &new, "--split", "10",
            ][..],
            &FLAGS,
            // A stream is to outlive every kill that it meets.
            &[
                "--gap-timeout",
                "20s",
                "--continuation-max-per-stream",
                "30",
            ],
        ]
        .concat(),
    )
    .await;
    let (stop, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(Ends::default()));
    let streams: Vec<_> = (0..OPEN)
        .map(|_| tokio::spawn(stream(proxy.address, Arc::clone(&stop), Arc::clone(&ends))))
        .collect();
    let until = Instant::now() + LASTS;
    let mut kills = 0;
    while Instant::now() < until {
        sleep(BETWEEN_KILLS).await;
        // One of both has had its time to come back.
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
        count(&ends.whole),
        count(&ends.cut),
        count(&ends.refused),
        count(&ends.miscounted),
    );
    for example in ends.examples.lock().expect("nobody panics with it").iter() {
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
    assert_eq!(count(&ends.cut), 0);
    assert!(metrics.sum("crossfade_continuations_total", &[("outcome", "continued")]) > 0.0);
}
