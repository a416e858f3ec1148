//! The demo as a new user runs it: it ends by itself or with Ctrl-C, and its figures are consistent.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use crate::rig::proxy::program;

/// How long a demo of five seconds may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running demo. It is killed when dropped.
struct Demo {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        let mut command = program();
        command.arg("demo").args(args);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits for its end. Returns the rest of its output and its exit status.
    fn end(mut self) -> (Vec<String>, Option<i32>) {
        let lines = self.lines.by_ref().map_while(Result::ok).collect();
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "does not end");
            std::thread::sleep(Duration::from_millis(2));
        };
        (lines, status.code())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Counts by received text: old, new, none, all.
type Row = [u64; 4];

/// The counts of a summary.
struct Summary {
    rows: BTreeMap<String, Row>,
    recovered: u64,
    continued: Option<u64>,
    verdict: String,
}

impl Summary {
    /// Reads the last report in `lines`.
    fn read(lines: &[String]) -> Self {
        let begin = lines
            .iter()
            .rposition(|line| line.starts_with("crossfade demo: "));
        let lines = &lines[begin.expect("a summary")..];
        let mut rows = BTreeMap::new();
        let (mut recovered, mut continued) = (None, None);
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let first = words.iter().position(|word| word.parse::<u64>().is_ok());
            let Some(first) = first.filter(|first| *first > 0) else {
                continue;
            };
            let name = words[..first].join(" ");
            let counts: Vec<u64> = words[first..]
                .iter()
                .map_while(|word| word.parse().ok())
                .collect();
            match <Row>::try_from(counts.clone()) {
                Ok(row) => drop(rows.insert(name, row)),
                Err(_) if name == "recovered by the proxy" => recovered = counts.first().copied(),
                Err(_) if name == "continued by the proxy" => continued = counts.first().copied(),
                Err(_) => {}
            }
        }
        let verdict = lines.iter().find_map(|line| line.strip_prefix("verdict: "));
        Self {
            rows,
            recovered: recovered.expect("the recoveries are reported"),
            continued,
            verdict: verdict.expect("a verdict").to_owned(),
        }
    }

    fn assert_adds_up(&self) {
        let names: Vec<&str> = self.rows.keys().map(String::as_str).collect();
        let ends = [
            "broken",
            "completed",
            "ended with an error",
            "never answered",
        ];
        assert_eq!(names, [&ends[..], &["requests"]].concat());
        for (name, [old, new, none, all]) in &self.rows {
            assert_eq!(old + new + none, *all, "{name}");
        }
        let requests = self.rows["requests"];
        for (column, requests) in requests.iter().enumerate() {
            let ended: u64 = ends.iter().map(|end| self.rows[*end][column]).sum();
            assert_eq!(ended, *requests, "column {column}");
        }
        assert!(self.recovered <= requests[3], "{}", self.recovered);
    }
}

#[test]
fn a_short_demo_ends_by_itself_with_figures_that_add_up() {
    let (lines, status) = Demo::start(&["--plain", "--seconds", "5"]).end();
    let text = lines.join("\n");
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("is KILLED") && !text.contains('\x1b'),
        "{text}"
    );
    let summary = Summary::read(&lines);
    summary.assert_adds_up();
    let [old, new, none, _] = summary.rows["completed"];
    assert!(old > 0 && new > 0 && none == 0, "{text}");
    let continued = summary.continued.expect("the summary reports it");
    assert!(continued > 0, "{text}");
    let verdict = format!("0 cut, {continued} continued: all ");
    assert!(summary.verdict.starts_with(&verdict), "{text}");
    assert!(!text.contains("stopped before its end"), "{text}");
}

/// The medians from the proxy in a line of the running demo: first token and gap, of old and of new.
fn medians_of_proxy(line: &str) -> Option<[[f64; 2]; 2]> {
    let pair = |text: &str| -> Option<[f64; 2]> {
        let (old, new) = text.split_once('/')?;
        Some([old.parse().ok()?, new.parse().ok()?])
    };
    let pairs: Vec<_> = line.split_whitespace().filter_map(pair).collect();
    // Open streams, first token, gap, and completed streams.
    <[_; 4]>::try_from(pairs)
        .ok()
        .map(|[_, first, gap, _]| [first, gap])
}

/// The same medians as measured by the clients.
fn medians_of_clients(lines: &[String], what: &str) -> [f64; 2] {
    let begins = format!("{what} p50 / p99, ms");
    let line = lines
        .iter()
        .find_map(|line| line.trim().strip_prefix(&*begins));
    let words: Vec<&str> = line
        .expect("the summary reports it")
        .split_whitespace()
        .collect();
    [words[0], words[3]].map(|word| word.parse().unwrap())
}

#[test]
fn its_figures_agree_with_those_of_its_own_clients() {
    let (lines, status) = Demo::start(&["--plain", "--seconds", "0m12s"]).end();
    let text = lines.join("\n");
    assert_eq!(status, Some(0), "{text}");
    let last = lines.iter().rev().find_map(|line| medians_of_proxy(line));
    let [first, gap] = last.unwrap_or_else(|| panic!("{text}"));
    for (what, proxy) in [("first token", first), ("gap", gap)] {
        let clients = medians_of_clients(&lines, what);
        for (proxy, client) in proxy.into_iter().zip(clients) {
            // Allows for the bucket error of each generation and for the time until the last line, which is longer on a busy
            // machine.
            let off = (proxy - client).abs();
            assert!(
                off <= 0.3 * client + 20.0,
                "{what}: the proxy says {proxy} ms, its clients {client} ms\n{text}"
            );
        }
    }
}

#[test]
fn without_continuation_the_kill_cuts_streams_and_the_demo_says_so() {
    let args = ["--plain", "--seconds", "5", "--no-continuation"];
    let (lines, status) = Demo::start(&args).end();
    let text = lines.join("\n");
    assert_eq!(status, Some(0), "{text}");
    let summary = Summary::read(&lines);
    summary.assert_adds_up();
    assert_eq!(summary.continued, None, "{text}");
    let [.., failed] = summary.rows["ended with an error"];
    assert!(failed > 0 && !summary.verdict.contains("0 cut"), "{text}");
}

#[test]
fn ctrl_c_ends_a_demo_cleanly_with_the_counts_so_far() {
    let mut demo = Demo::start(&["--plain", "--seconds", "600"]);
    let mut seen = Vec::new();
    // A line of figures with at least one response.
    let runs = demo.lines.by_ref().map_while(Result::ok).any(|line| {
        let shows =
            line.contains(" s ") && line.contains('%') && !line.contains(" 0/0         -/-");
        seen.push(line);
        shows
    });
    assert!(runs, "{seen:#?}");
    let pid = i32::try_from(demo.child.id()).unwrap();
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    let (lines, status) = demo.end();
    let text = lines.join("\n");
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("stopped before its end"), "{text}");
    Summary::read(&lines).assert_adds_up();
}
