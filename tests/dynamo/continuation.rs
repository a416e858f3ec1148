//! Streams whose worker or frontend dies after their first token go on from the other generation, to the word.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tokio::sync::mpsc;

use crate::dynamo::{Dynamo, MODEL};
use crate::pair::{PROTOCOLS, Pair};
use crate::rig::{Proxy, within};

const STREAMS: usize = 200;
const WORDS: usize = 60;
const FLAGS: [&str; 4] = [
    "--continuation",
    "any-generation",
    "--retry-budget-percent",
    "100",
];

/// What a server says that nobody interrupts.
fn text() -> String {
    let words: Vec<_> = (0..WORDS).map(|index| format!("w:{index}")).collect();
    words.join(" ")
}

/// A stream takes 18 s, so that none ends before the last one has begun, which takes seconds on a busy machine.
fn prompt() -> String {
    format!("<<counted=1 words={WORDS} each_ms=300>>")
}

/// Streams of the official client library.
struct Library {
    lines: mpsc::UnboundedReceiver<String>,
    child: Child,
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Library {
    async fn open(address: SocketAddr, count: usize, kind: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai/streams.py");
        let url = format!("http://{address}");
        let mut child = Command::new(Dynamo::install().python)
            .arg(script)
            .args([&url, MODEL, &count.to_string(), kind, &prompt()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the Python of the installation starts");
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, mut lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let begun = within("all streams begin", lines.recv()).await;
        assert_eq!(begun.as_deref(), Some("begun"));
        Self { lines, child }
    }

    /// Asserts that every stream is one whole answer.
    async fn assert_whole(mut self, count: usize) {
        let mut usages = Vec::new();
        for _ in 0..count {
            let line = within("a stream ends", self.lines.recv()).await;
            let line = line.expect("each stream is told of");
            let answer: Value = serde_json::from_str(&line).expect("JSON");
            assert_eq!(answer["text"], text(), "{answer}");
            assert_eq!(answer["ids"].as_array().map(Vec::len), Some(1), "{answer}");
            assert_eq!(answer["finish"], "stop", "{answer}");
            usages.push(answer["usage"].clone());
        }
        assert!(self.child.wait().expect("it ends").success());
        usages.dedup();
        let [usage] = &usages[..] else {
            panic!("the counts differ: {usages:?}");
        };
        let count = |key: &str| usage[key].as_u64().expect("a number");
        assert_eq!(
            count("total_tokens"),
            count("prompt_tokens") + count("completion_tokens")
        );
    }
}

/// Streams of chat and of completions through a proxy over each protocol, all of which began on old.
async fn begin(proxies: &[Proxy; 2]) -> Vec<Library> {
    let mut open = Vec::new();
    for proxy in proxies {
        for kind in ["chat", "completions"] {
            open.push(Library::open(proxy.address, STREAMS / 4, kind).await);
        }
    }
    open
}

async fn proxies(pair: &Pair) -> [Proxy; 2] {
    let mut proxies = Vec::new();
    for protocol in PROTOCOLS {
        let flags = [&FLAGS[..], &["--upstream-protocol", protocol]].concat();
        // Practically all of them begin on old.
        proxies.push(pair.proxy(1, &flags).await);
    }
    proxies.try_into().ok().expect("two")
}

async fn assert_all_whole(open: Vec<Library>, proxies: &[Proxy; 2], cause: &str) {
    for library in open {
        library.assert_whole(STREAMS / 4).await;
    }
    for proxy in proxies {
        proxy.outcomes("completed", STREAMS as u32 / 2).await;
        let metrics = proxy.metrics().await;
        let continued =
            |labels: &[(&str, &str)]| metrics.sum("crossfade_continuations_total", labels);
        let on_old = metrics.sum(
            "crossfade_requests_total",
            &[("generation", "old"), ("outcome", "completed")],
        );
        assert_eq!(
            continued(&[("outcome", "continued"), ("reason", cause)]),
            on_old
        );
        assert_eq!(continued(&[("outcome", "ended")]), 0.0);
        assert_eq!(metrics.sum("crossfade_open_streams", &[]), 0.0);
    }
}

#[tokio::test]
async fn a_worker_that_is_killed_cuts_no_stream() {
    let mut pair = Pair::start().await;
    let proxies = proxies(&pair).await;
    let open = begin(&proxies).await;
    pair.old.kill_worker(0);
    assert_all_whole(open, &proxies, "error_event").await;
}

#[tokio::test]
async fn a_frontend_that_is_killed_cuts_no_stream() {
    let mut pair = Pair::start().await;
    let proxies = proxies(&pair).await;
    let open = begin(&proxies).await;
    pair.old.kill_frontend();
    assert_all_whole(open, &proxies, "connection").await;
}
