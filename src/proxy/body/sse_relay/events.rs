//! Handles an event after the first content: records it, and rewrites it in a continued part.

use super::SseRelay;
use crate::continuation::{Rewritten, Sent};
use crate::proxy::exchange::Exchange;
use crate::sse::{self, Api, Event, Prescan, Tail, TailPolicy};

impl SseRelay {
    /// How events after the first content are handled.
    pub(super) fn tail_policy(&self) -> TailPolicy {
        TailPolicy {
            may_continue: self.sent.is_some() && !self.is_final,
            is_joined: self.is_joined(),
        }
    }
}

/// Records an event that is forwarded, of meaning `tail`. Returns whether it has content.
pub(super) fn note(
    api: Api,
    event: &Event<'_>,
    tail: Tail,
    prescan: Prescan,
    exchange: &mut Exchange,
    sent: Option<&mut Sent>,
) -> bool {
    if let Some(usage) = prescan.usage(api, event) {
        let usage = sent.as_ref().map_or(usage, |sent| sent.corrected(usage));
        exchange.usage.merge(usage);
    }
    match tail {
        Tail::Error { code } => {
            exchange.reported_error(code);
            if sse::is_terminal(api, event) {
                exchange.timeline.set_terminal();
            }
        }
        Tail::Terminal => exchange.timeline.set_terminal(),
        Tail::Nothing => {}
    }
    if let Some(sent) = sent.filter(|sent| event.has_data && !sent.is_joined()) {
        sent.take(event.data);
    }
    tail == Tail::Nothing && event.has_data
}

/// Processes an event of a continued part, and writes it in the form for the client. `raw` are its original bytes.
pub(super) fn write_joined(sent: &mut Sent, event: &Event<'_>, raw: [&[u8]; 2], out: &mut Vec<u8>) {
    let rewritten = event.has_data.then(|| sent.pass(event.data)).flatten();
    let Some(Rewritten { before, mut data }) = rewritten else {
        raw.into_iter().for_each(|part| out.extend_from_slice(part));
        return;
    };
    out.extend_from_slice(before.unwrap_or_default().as_bytes());
    // JSON has line ends only between its tokens.
    data.iter_mut()
        .filter(|byte| **byte == b'\n')
        .for_each(|byte| *byte = b' ');
    if !event.name.is_empty() {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(event.name);
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(&data);
    out.extend_from_slice(b"\n\n");
}
