//! Invariants of counts: every exchange has one accurate access line, and the metrics are the sums of the lines.

use std::collections::BTreeMap;

use serde_json::Value;

use super::answers::is_owed;
use super::{WaveConditions, events};
use crate::client::request::Kind;
use crate::ledger::{ClientEnd, Exchange, VisitEnd};
use crate::server::behavior::Answer;
use crate::support::proxy::Metrics;
use crate::wire::Id;

/// An access line.
#[derive(Clone, Debug)]
pub struct Line {
    pub status: u64,
    pub attempts: u64,
    /// Bytes of the body that were sent to the client.
    pub bytes: u64,
    pub outcome: String,
    /// The generation that responded in the end.
    pub answered: String,
    /// The labels of the request metric.
    pub labels: [String; 4],
    pub text: String,
}

const LABELS: [&str; 4] = ["generation", "reason", "class", "outcome"];

impl Line {
    /// Whether the request was rejected before it was assigned to a generation.
    fn is_rejected(&self) -> bool {
        self.labels[0] == "none"
    }

    /// The exchange of an access line; `None` if its request was not read so far.
    pub fn exchange(fields: &Value) -> Option<Id> {
        Id::of_trace(fields["trace_id"].as_str()?)
    }

    /// Parses an access line.
    pub fn of(fields: &Value) -> Option<Self> {
        let word = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
        Some(Self {
            status: fields["status"].as_u64()?,
            attempts: fields["attempts"].as_u64()?,
            bytes: fields["bytes"].as_u64()?,
            outcome: word("outcome"),
            answered: word("answered"),
            labels: LABELS.map(word),
            text: fields.to_string(),
        })
    }
}

pub fn check(exchange: &Exchange, lines: &[Line], conditions: WaveConditions) -> Option<String> {
    let seen = &exchange.seen;
    let routed = seen
        .head
        .as_ref()
        .is_some_and(|head| head.generation.is_some());
    let line = match lines {
        [] if routed && !conditions.drains => return Some("answered, but not counted".into()),
        [] if !exchange.visits.is_empty() && !conditions.drains => {
            return Some("sent to a server, but not counted".into());
        }
        [] => return None,
        [line] => line,
        more => return Some(format!("counted {} times", more.len())),
    };
    if line.is_rejected() && !exchange.visits.is_empty() {
        return Some("sent to a server, but counted as rejected".into());
    }
    // An idempotent request may be repeated on another connection within one attempt.
    let is_idempotent = matches!(
        exchange.planned.kind,
        Kind::Get | Kind::Head | Kind::Upgrade
    );
    let visits = exchange.visits.iter();
    let read = visits
        .filter(|visit| visit.end != VisitEnd::Refused)
        .count();
    if !is_idempotent && line.attempts < read as u64 {
        return Some(format!(
            "{} attempts are counted of {}",
            line.attempts, read
        ));
    }
    let head = seen.head.as_ref()?;
    if routed && line.status != u64::from(head.status) {
        return Some(format!("{} is counted as {}", head.status, line.status));
    }
    if let Some(bytes) = whole_answer(exchange, line)
        && bytes != line.bytes
    {
        return Some(format!("{} bytes are counted of {bytes}", line.bytes));
    }
    let possible = outcomes(exchange, conditions)?;
    let outcome = line.outcome.as_str();
    (!possible.contains(&outcome)).then(|| format!("{outcome} is counted, not one of {possible:?}"))
}

/// The length of an answer that its client received as one server sent it; `None` if it did not, or may not have.
fn whole_answer(exchange: &Exchange, line: &Line) -> Option<u64> {
    let seen = &exchange.seen;
    let head = seen.head.as_ref()?;
    let tag = head.tag?;
    // The end of one direction of a tunnel does not show that the other one has ended, too.
    let switches = exchange.visits[tag.visit].behavior.switches;
    let is_altered = head.is_events && events::follow(exchange, tag.visit).ok()?.closing.is_some();
    let is_one = line.attempts == 1 && exchange.planned.kind != Kind::Head;
    (seen.is_whole() && is_one && !switches && !is_altered).then_some(seen.body.len() as u64)
}

/// The outcomes that an exchange may have, given what its client saw; `None` if they depend on a client that left.
fn outcomes(exchange: &Exchange, conditions: WaveConditions) -> Option<&'static [&'static str]> {
    let head = exchange.seen.head.as_ref()?;
    let ended = matches!(
        exchange.seen.end,
        Some(ClientEnd::Whole | ClientEnd::Closed)
    );
    if !is_owed(exchange, conditions) {
        return None;
    }
    if head.status >= 500 {
        return Some(&["failed"]);
    }
    let tag = head.tag?;
    let visit = &exchange.visits[tag.visit];
    // The client may see the end of one direction before the other breaks.
    if visit.behavior.switches && visit.end == VisitEnd::Open {
        return None;
    }
    if !head.is_events {
        return Some(if ended {
            &["completed"]
        } else {
            &["truncated"]
        });
    }
    let followed = events::follow(exchange, tag.visit).ok()?;
    let ended = ended && followed.closing.is_none();
    let has_terminal = matches!(
        exchange.visits[followed.visit].behavior.answer,
        Answer::Events { terminal: true, .. }
    );
    Some(match (ended, has_terminal) {
        (true, true) => &["completed"],
        (true, false) => &["truncated"],
        // The content was complete, but the end of the framing did not arrive.
        (false, _) if followed.closing.is_none() => &["completed", "truncated"],
        (false, _) => &["truncated", "failed"],
    })
}

/// Do the metrics add up to the lines? Requests that end before they are assigned have a metric of their own.
pub fn sums(metrics: &Metrics, lines: &[Line]) -> Option<String> {
    let (rejected, assigned): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.is_rejected());
    let mut wanted: BTreeMap<&[String; 4], f64> = BTreeMap::new();
    for line in &assigned {
        *wanted.entry(&line.labels).or_default() += 1.0;
    }
    let name = "crossfade_requests_total";
    for (labels, count) in &wanted {
        let pairs: Vec<_> = LABELS
            .into_iter()
            .zip(labels.iter().map(String::as_str))
            .collect();
        let counted = metrics.sum(name, &pairs);
        if counted != *count {
            return Some(format!(
                "{labels:?}: {counted} are counted, {count} have a line"
            ));
        }
    }
    let rejected = rejected.len();
    // The metric has only what was forwarded.
    let forwarded = assigned.iter().filter(|line| line.answered != "none");
    let bytes: u64 = forwarded.map(|line| line.bytes).sum();
    let failed: u64 = assigned.iter().map(|line| line.attempts - 1).sum();
    let retried = |line: &&&Line| line.attempts > 1;
    let is_completed = |line: &&&Line| line.outcome == "completed";
    // The last attempt of a request may have failed, too, unless the request was completed.
    let incomplete = assigned.iter().filter(|line| !is_completed(line)).count();
    let recovered = assigned.iter().filter(retried).count();
    // A 404 that failed over is forwarded if no other server responds, which is not a recovery.
    let is_recovered = |line: &&&Line| is_completed(line) && line.status != 404;
    let at_least = assigned.iter().filter(retried).filter(is_recovered).count();
    let between = |least: usize, most: usize| least as f64..=most as f64;
    let failed = usize::try_from(failed).expect("few");
    let bytes = usize::try_from(bytes).expect("few");
    [
        (name, between(assigned.len(), assigned.len())),
        (
            "crossfade_rejected_requests_total",
            between(rejected, rejected),
        ),
        ("crossfade_response_bytes_total", between(bytes, bytes)),
        (
            "crossfade_failed_attempts_total",
            between(failed, failed + incomplete),
        ),
        (
            "crossfade_recovered_requests_total",
            between(at_least, recovered),
        ),
    ]
    .into_iter()
    .find_map(|(name, due)| {
        let counted = metrics.sum(name, &[]);
        (!due.contains(&counted))
            .then(|| format!("{name} is {counted}, not {due:?} as the lines say"))
    })
    .or_else(|| held(metrics))
}

/// What is counted while it lasts is counted down again.
fn held(metrics: &Metrics) -> Option<String> {
    let used = [("kind", "used")];
    let gauges: [(&str, &[(&str, &str)]); 3] = [
        ("crossfade_open_streams", &[]),
        ("crossfade_connections", &[]),
        ("crossfade_memory_bytes", &used),
    ];
    gauges.into_iter().find_map(|(name, labels)| {
        let value = metrics.sum(name, labels);
        (value != 0.0).then(|| format!("{name} is {value} when all is quiet"))
    })
}
