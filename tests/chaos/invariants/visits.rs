//! Invariants of requests: a request that may have been read is not sent again, unless the rules allow it.
//!
//! - A POST is read at most once by each generation. A second generation may read it only if a plan allows failover and the
//!   response of the first one did not commit the exchange: no content, or a status of 404 or 5xx.
//! - All other requests are idempotent (RFC 9110 §9.2.2) and go to old, which reads them at most twice: they are repeated once,
//!   on a new connection, if a reused one broke before the first byte of a response.
//!
//! Requests that a server rejected unread (GOAWAY, REFUSED_STREAM, a connection closed before) do not count.

use super::counts::Line;
use super::{WaveConditions, events};
use crate::client::request::Kind;
use crate::ledger::{Exchange, VisitEnd};

/// Servers below this number are old, the others are new.
pub const OLD: usize = 2;

pub fn check(exchange: &Exchange, lines: &[Line], conditions: WaveConditions) -> Option<String> {
    let read: Vec<_> = exchange
        .visits
        .iter()
        .enumerate()
        .filter(|(_, visit)| visit.end != VisitEnd::Refused)
        .collect();
    let is_post = matches!(exchange.planned.kind, Kind::Stream(_) | Kind::Unary(_));
    let of_old = read.iter().filter(|(_, visit)| visit.server < OLD).count();
    let of_new = read.len() - of_old;
    if is_post && (of_old > 1 || of_new > 1) {
        return Some(format!("sent {of_old} times to old, {of_new} to new"));
    }
    if !is_post && (of_new > 0 || of_old > 2) {
        return Some(format!(
            "not to be split, sent {of_old} times to old, {of_new} to new"
        ));
    }
    if is_post && !conditions.failover && read.len() > 1 {
        return Some("sent twice although nothing is to be tried again".into());
    }
    let head = exchange.seen.head.as_ref()?;
    let first = head.tag?.visit;
    let committed = if head.is_events {
        let followed = events::follow(exchange, first).ok()?;
        followed.committed.then_some(followed.visit)?
    } else if head.status < 500 && head.status != 404 {
        first
    } else {
        return None;
    };
    // A busy server may read a request only after it was given up and the other generation has responded.
    let given_up = |server: usize| {
        let generation = if server < OLD { "old" } else { "new" };
        lines
            .iter()
            .any(|line| line.labels[0] == generation && line.answered != generation)
    };
    let again = read
        .iter()
        .any(|(number, visit)| *number > committed && !given_up(visit.server));
    again.then(|| format!("sent again after visit {committed} had answered"))
}
