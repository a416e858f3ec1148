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

    /// Parses an access line. `None` if it does not belong to an exchange of this test.
    pub fn of(fields: &Value) -> Option<(Id, Self)> {
        let id = Id::of_trace(fields["trace_id"].as_str()?)?;
        let word = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
        let line = Self {
            status: fields["status"].as_u64()?,
            attempts: fields["attempts"].as_u64()?,
            outcome: word("outcome"),
            answered: word("answered"),
            labels: LABELS.map(word),
            text: fields.to_string(),
        };
        Some((id, line))
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
    let possible = outcomes(exchange, conditions)?;
    let outcome = line.outcome.as_str();
    (!possible.contains(&outcome)).then(|| format!("{outcome} is counted, not one of {possible:?}"))
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

/// Do the metrics add up to the lines? Requests that are rejected before they are assigned have a metric of their own.
pub fn sums(metrics: &Metrics, lines: &BTreeMap<Id, Vec<Line>>) -> Option<String> {
    let lines = lines.values().flatten();
    let (rejected, assigned): (Vec<_>, Vec<_>) = lines.partition(|line| line.is_rejected());
    let mut wanted: BTreeMap<&[String; 4], f64> = BTreeMap::new();
    for line in assigned {
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
    let (all, lines) = (metrics.sum(name, &[]), wanted.values().sum::<f64>());
    if all != lines {
        return Some(format!("{all} are counted, {lines} have a line"));
    }
    let answered = rejected.iter().filter(|line| line.status != 0).count() as f64;
    let counted = metrics.sum("crossfade_rejected_requests_total", &[]);
    if counted < answered {
        return Some(format!(
            "{counted} are counted as rejected, {answered} have a line"
        ));
    }
    recovered_requests(metrics).or_else(|| held(metrics))
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

/// There cannot be more recovered requests than requests.
fn recovered_requests(metrics: &Metrics) -> Option<String> {
    let recoveries = metrics.sum("crossfade_recovered_requests_total", &[]);
    let all = metrics.sum("crossfade_requests_total", &[]);
    (recoveries > all).then(|| format!("{recoveries} recovered of {all} requests"))
}
