//! Invariants of responses: no client gets data of another exchange, and each response is complete or visibly broken.

use super::counts::Line;
use super::{WaveConditions, events};
use crate::client::request::Kind;
use crate::ledger::{ClientEnd, ClientHead, Exchange, Records, Visit, VisitEnd};
use crate::server::behavior::{Answer, AnswerFraming, Fault};
use crate::wire::{Id, TRAILER, Tag};

pub fn check(
    id: Id,
    records: &Records,
    (exchange, lines): (&Exchange, &[Line]),
    conditions: WaveConditions,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let seen = &exchange.seen;
    let head_tag = seen.head.as_ref().and_then(|head| head.tag);
    for tag in Tag::all_in(&seen.body).chain(head_tag) {
        if tag.id != id {
            wrong.push(format!("the client gets bytes of exchange {}", tag.id));
            return wrong;
        }
        if tag.visit >= exchange.visits.len() {
            wrong.push(format!("the client gets an answer of visit {}", tag.visit));
            return wrong;
        }
    }
    wrong.extend(trailers(exchange, lines));
    match &seen.head {
        None => wrong.extend(silence(records, exchange, conditions)),
        Some(head) => match head.tag {
            None => wrong.extend(own(exchange, head)),
            Some(tag) if head.is_events => {
                wrong.extend(events::check(exchange, tag.visit, conditions));
            }
            Some(tag) => {
                let visit = &exchange.visits[tag.visit];
                wrong.extend(plain(exchange, head, visit, conditions));
            }
        },
    }
    wrong
}

/// Checks trailers: they are those of the visit that sent the last bytes, and none is missing from a whole response of one
/// visit.
fn trailers(exchange: &Exchange, lines: &[Line]) -> Option<String> {
    let head = exchange.seen.head.as_ref()?;
    let first = head.tag?.visit;
    let last = match head.is_events {
        true => events::follow(exchange, first).ok()?.visit,
        false => first,
    };
    let visit = &exchange.visits[last];
    let id = exchange.planned.id;
    let theirs = vec![(TRAILER.to_owned(), Tag { id, visit: last }.to_string())];
    let seen = &exchange.seen.trailers;
    if !seen.is_empty() && (!visit.behavior.trailers || *seen != theirs) {
        return Some(format!("the trailers are {seen:?}"));
    }
    // An HTTP/2 server hands the end of a response to its connection. If another stream closes the connection before that is
    // written, the trailers are lost behind a complete event stream, and the access line says so.
    let may_be_lost = |line: &Line| line.text.contains("the HTTP/2 stream broke");
    let is_due = visit.behavior.trailers
        && !lines.iter().any(may_be_lost)
        && visit.end == VisitEnd::Whole
        && first == last
        && head.may_have_trailers
        && exchange.seen.end == Some(ClientEnd::Whole)
        && exchange.planned.kind != Kind::Head
        && !visit.answer.is_empty()
        && may_send_trailers(visit);
    (is_due && seen.is_empty()).then(|| "the trailers are missing".into())
}

/// Whether the server's framing has a place for trailers.
fn may_send_trailers(visit: &Visit) -> bool {
    match visit.behavior.answer {
        Answer::Events { .. } => true,
        Answer::Whole { framing, .. } => framing == AnswerFraming::Chunked,
    }
}

/// Has the client done its part, so that it must get the complete response of a server that sent one?
pub fn is_owed(exchange: &Exchange, conditions: WaveConditions) -> bool {
    exchange.planned.is_polite()
        && exchange.actions.whole
        && !exchange.actions.left
        && !conditions.drains
}

/// Checks an exchange without a response head.
fn silence(records: &Records, exchange: &Exchange, conditions: WaveConditions) -> Option<String> {
    let ended = matches!(exchange.seen.end, Some(ClientEnd::Fin | ClientEnd::Reset));
    // After an early response to the previous request, the connection may be closed.
    let previous = exchange.actions.previous;
    let after_body = previous
        .and_then(|id| records.exchanges.get(&id))
        .is_some_and(|previous| previous.planned.length > 0);
    (ended && !after_body && is_owed(exchange, conditions))
        .then(|| "it gets no answer at all".into())
}

/// Checks a response that crossfade generated itself.
fn own(exchange: &Exchange, head: &ClientHead) -> Option<String> {
    let seen = &exchange.seen;
    if head.status < 400 {
        return Some(format!("a {} that no server gave", head.status));
    }
    let ended = matches!(seen.end, Some(ClientEnd::Whole | ClientEnd::Closed));
    if !ended || exchange.planned.kind == Kind::Head {
        return None;
    }
    let json: Result<serde_json::Value, _> = serde_json::from_slice(&seen.body);
    let says_why = json.is_ok_and(|json| json["error"]["message"].is_string());
    (!says_why).then(|| "an error of crossfade's own that says nothing".into())
}

/// Checks a response that is not an event stream.
fn plain(
    exchange: &Exchange,
    head: &ClientHead,
    visit: &Visit,
    conditions: WaveConditions,
) -> Option<String> {
    let seen = &exchange.seen;
    if head.status != visit.behavior.status() {
        return Some(format!("{} of a {}", head.status, visit.behavior.status()));
    }
    let answer: &[u8] = match exchange.planned.kind {
        Kind::Head => b"",
        _ => &visit.answer,
    };
    if !answer.starts_with(&seen.body) {
        return Some("other bytes than its answer has".into());
    }
    if visit.behavior.switches
        && visit.end == VisitEnd::Whole
        && !visit.whole
        && is_owed(exchange, conditions)
    {
        return Some("the server did not get all that was sent through the tunnel".into());
    }
    // For a response that ends with its connection, any close is the end.
    let is_detectable = visit.end != VisitEnd::Open
        || !matches!(
            visit.behavior.answer,
            Answer::Whole {
                framing: AnswerFraming::UntilClose,
                ..
            }
        );
    match seen.end {
        Some(ClientEnd::Whole | ClientEnd::Closed) if !is_detectable => None,
        Some(ClientEnd::Whole | ClientEnd::Closed) if seen.body.len() < answer.len() => {
            Some(format!(
                "{} of {} bytes look like a whole answer",
                seen.body.len(),
                answer.len()
            ))
        }
        Some(ClientEnd::Whole | ClientEnd::Closed) => (visit.end == VisitEnd::Cut
            && !answer.is_empty()
            && matches!(visit.behavior.fault, Fault::Half(..)))
        .then(|| "a cut became a clean end".into()),
        Some(ClientEnd::Fin | ClientEnd::Reset) => {
            let unexplained =
                visit.end == VisitEnd::Whole && !conditions.http2 && is_owed(exchange, conditions);
            unexplained.then(|| "a whole answer is cut".into())
        }
        _ => None,
    }
}
