//! Invariants of event streams: complete events in order, from one visit once there is content, and a truthful end.

use std::borrow::Cow;

use super::WaveConditions;
use super::answers::is_owed;
use crate::ledger::{ClientEnd, Exchange, VisitEnd};
use crate::server::behavior::{Answer, Fault};
use crate::support::scripts::Family;
use crate::wire::Tag;

/// The result of matching an event stream against the visits.
pub struct Followed {
    /// The visit whose IDs the client has.
    first: usize,
    /// The visit that sent the last event.
    pub visit: usize,
    /// How many events of that visit arrived, including those before a switch.
    pub events: usize,
    /// Did any of them have content?
    pub committed: bool,
    /// The error event that ends the stream.
    pub closing: Option<String>,
    /// Length of an incomplete event at the end, in bytes.
    pub rest: usize,
}

pub fn check(exchange: &Exchange, first: usize, conditions: WaveConditions) -> Option<String> {
    let followed = match follow(exchange, first) {
        Ok(followed) => followed,
        Err(wrong) => return Some(wrong),
    };
    let visit = &exchange.visits[followed.visit];
    let all = blocks(&visit.answer).0.len();
    let is_complete = followed.events == all;
    match exchange.seen.end {
        Some(ClientEnd::Whole | ClientEnd::Closed) => {
            if followed.closing.is_some() {
                // If only the close of the connection ends the stream, the error event is the only signal.
                let is_clean = exchange.seen.end == Some(ClientEnd::Whole);
                return is_clean.then(|| "an error event before a clean end".into());
            }
            if !is_complete || followed.rest > 0 {
                let count = followed.events;
                return Some(format!("{count} of {all} events look like a whole stream"));
            }
            // A stream that ends with its own terminal event is complete, however the connection ended.
            let was_cut = visit.end == VisitEnd::Cut
                && matches!(visit.behavior.fault, Fault::Half(..))
                && !ends_by_itself(&visit.behavior.answer);
            was_cut.then(|| "a cut became a clean end".into())
        }
        Some(ClientEnd::Fin | ClientEnd::Reset) => {
            if exchange.seen.end == Some(ClientEnd::Fin) {
                if followed.rest > 0 {
                    return Some("half an event before the end".into());
                }
                let has_ended = is_complete && ends_by_itself(&visit.behavior.answer);
                if followed.closing.is_none() && !has_ended && is_owed(exchange, conditions) {
                    return Some("a cut without an error event".into());
                }
            }
            let in_time = |event: &String| event.contains("in time") || event.contains("too long");
            let unexplained = visit.end == VisitEnd::Whole
                && !conditions.http2
                && is_owed(exchange, conditions)
                && !followed.closing.as_ref().is_some_and(in_time);
            unexplained.then(|| "a whole stream is cut".into())
        }
        _ => None,
    }
}

fn ends_by_itself(answer: &Answer) -> bool {
    matches!(answer, Answer::Events { terminal: true, .. })
}

/// Matches what the client saw against the events of the visits.
///
/// # Errors
/// If an event does not belong there.
pub fn follow(exchange: &Exchange, first: usize) -> Result<Followed, String> {
    let (seen, rest) = blocks(&exchange.seen.body);
    let mut followed = Followed {
        first,
        visit: first,
        events: 0,
        committed: false,
        closing: None,
        rest: rest.len(),
    };
    let mut answer = owned(exchange, first, first);
    for block in seen {
        if followed.closing.is_some() {
            return Err("something follows the error event that ends it".into());
        }
        if block.starts_with(b":") || is_next(exchange, &answer, &mut followed, block) {
            continue;
        }
        if switches(exchange, &mut followed, block) {
            answer = owned(exchange, followed.first, followed.visit);
            continue;
        }
        let text = String::from_utf8_lossy(block);
        if !text.contains('~') && text.contains("error") {
            followed.closing = Some(text.into_owned());
            continue;
        }
        return Err(format!(
            "after {} events of visit {}: {text:?}",
            followed.events, followed.visit
        ));
    }
    Ok(followed)
}

/// Is this the next event of `answer`?
fn is_next(exchange: &Exchange, answer: &[Vec<u8>], followed: &mut Followed, block: &[u8]) -> bool {
    if answer.get(followed.events).is_none_or(|next| next != block) {
        return false;
    }
    let visit = &exchange.visits[followed.visit];
    followed.events += 1;
    followed.committed |= followed.events > preambles(&visit.behavior.answer);
    true
}

fn owned(exchange: &Exchange, first: usize, visit: usize) -> Vec<Vec<u8>> {
    let answer = as_continued(exchange, first, visit);
    blocks(&answer).0.into_iter().map(<[u8]>::to_vec).collect()
}

/// Is this an event of a later visit, with nothing missing before it that the client does not already have in another form?
fn switches(exchange: &Exchange, followed: &mut Followed, block: &[u8]) -> bool {
    if followed.committed {
        return false;
    }
    for (number, visit) in exchange.visits.iter().enumerate().skip(followed.visit + 1) {
        // If nothing was forwarded yet, the client gets the IDs of the new visit.
        let first = if followed.events == 0 {
            number
        } else {
            followed.first
        };
        let answer = as_continued(exchange, first, number);
        let (all, _) = blocks(&answer);
        let at = all
            .iter()
            .take(followed.events + 1)
            .position(|known| *known == block);
        if let Some(at) = at {
            followed.first = first;
            followed.visit = number;
            followed.events = at + 1;
            followed.committed = followed.events > preambles(&visit.behavior.answer);
            return true;
        }
    }
    false
}

/// The response of a visit as it continues that of the `first` one: with the IDs of the first one, where its API has one ID for a
/// whole stream.
fn as_continued(exchange: &Exchange, first: usize, number: usize) -> Cow<'_, [u8]> {
    let visit = &exchange.visits[number];
    let prefix = match visit.behavior.answer {
        Answer::Events { family, .. } => match family {
            Family::Chat => "chatcmpl-",
            Family::Completions => "cmpl-",
            Family::Responses => "",
            Family::Messages => return Cow::Borrowed(&visit.answer),
        },
        Answer::Whole { .. } => return Cow::Borrowed(&visit.answer),
    };
    if number == first {
        return Cow::Borrowed(&visit.answer);
    }
    let id = exchange.planned.id;
    let [shown, own] =
        [first, number].map(|visit| format!("\"id\":\"{prefix}{}\"", Tag { id, visit }));
    let text = String::from_utf8_lossy(&visit.answer);
    Cow::Owned(text.replace(&own, &shown).into_bytes())
}

/// The number of events without content at the start of a response.
fn preambles(answer: &Answer) -> usize {
    match answer {
        Answer::Events { family, .. } => family.preamble("").matches("\n\n").count(),
        Answer::Whole { .. } => 0,
    }
}

/// The complete events of a text, and what follows them.
fn blocks(text: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some(at) = memchr::memmem::find(rest, b"\n\n") {
        blocks.push(&rest[..at + 2]);
        rest = &rest[at + 2..];
    }
    (blocks, rest)
}
