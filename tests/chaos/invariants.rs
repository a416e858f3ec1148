//! The invariants of each exchange and of the process, checked against what clients and servers recorded.

pub mod answers;
pub mod counts;
pub mod events;
pub mod process;
pub mod visits;

use std::fmt::Write;

use crate::ledger::{Exchange, Records, Violation};
use crate::wire::Id;
use counts::Line;

/// The conditions of the wave that an exchange belongs to.
#[derive(Clone, Copy, Debug)]
pub struct WaveConditions {
    /// The servers use HTTP/2: data that they passed to their library may still be lost with the connection.
    pub http2: bool,
    /// The process was stopped during the wave.
    pub drains: bool,
    /// A plan that allows retries was in force at some time.
    pub failover: bool,
}

/// Returns all violations in an exchange.
pub fn check(
    id: Id,
    records: &Records,
    exchange: &Exchange,
    lines: &[Line],
    conditions: WaveConditions,
) -> Vec<Violation> {
    let mut wrong = answers::check(id, records, (exchange, lines), conditions);
    wrong.extend(visits::check(exchange, lines, conditions));
    wrong.extend(counts::check(exchange, lines, conditions));
    let violation = |what| Violation { id: Some(id), what };
    wrong.into_iter().map(violation).collect()
}

/// Everything known about an exchange, for a human reader.
pub fn trace(id: Id, exchange: &Exchange, lines: &[Line]) -> String {
    let mut text = format!("exchange {id}: {:?}\n", exchange.planned);
    let began = exchange.actions.began;
    let _ = writeln!(text, "  client: {:?}", exchange.actions);
    let seen = &exchange.seen;
    let _ = writeln!(
        text,
        "  client saw: interim {:?}, {:?}, {} bytes, end {:?}",
        seen.interim,
        seen.head,
        seen.body.len(),
        seen.end
    );
    let tail = &seen.body[seen.body.len().saturating_sub(240)..];
    let _ = writeln!(text, "    …{:?}", String::from_utf8_lossy(tail));
    for (number, visit) in exchange.visits.iter().enumerate() {
        let after = began.map(|began| visit.began.saturating_duration_since(began));
        let _ = writeln!(
            text,
            "  visit {number}: server {} connection {} after {after:?}: request whole {} ({} of {} bytes), end {:?}, {:?}",
            visit.server,
            visit.connection,
            visit.whole,
            visit.body_bytes,
            exchange.planned.length,
            visit.end,
            visit.behavior
        );
    }
    for line in lines {
        let _ = writeln!(text, "  access: {}", line.text);
    }
    text
}
