//! The held part of a stream: events without content, an incomplete event, and the charge for both.

use std::ops::Range;

use bytes::Bytes;

use super::{MAX_EVENT, SseRelay, Stop, Taken};
use crate::continuation::ContinuationReason;
use crate::memory::{FREE, Purpose, cost};
use crate::proxy::exchange::Exchange;
use crate::sse::Decoder;

impl SseRelay {
    /// Forwards the complete events of a slice, and holds the beginning of the next one. `rest` begins where `out` ends, and
    /// ends with the last complete event.
    #[inline]
    pub(super) fn pass_on(
        &mut self,
        data: &Bytes,
        rest: Range<usize>,
        out: &mut Vec<u8>,
        taken: &mut Taken,
        exchange: &mut Exchange,
    ) {
        let rewrites = self.is_joined() || self.openings.must_rewrite(self.api);
        let mut boundary = self.decoder.boundary();
        if rewrites && self.quiet() {
            taken.stop = Some(Stop::TooLong);
            boundary = rest.end;
        }
        let ready = rest.start..boundary.max(rest.start);
        taken.committed |= self.settle(data, ready, out, &mut taken.forward, exchange);
        if taken.committed {
            self.openings.settled();
        }
        if taken.stop.is_none() && !self.charge_held(exchange) {
            if rewrites {
                taken.stop = Some(Stop::NoMemory);
            } else {
                taken.committed |= self.give_up(&mut taken.forward, exchange);
            }
        }
    }

    /// Returns the held events: they were held long enough.
    pub fn release(&mut self) -> Bytes {
        self.hold.released = true;
        self.openings.sent_all(self.api, &self.held);
        let held = std::mem::take(&mut self.held);
        self.note_number(&held);
        held.into()
    }

    /// Returns what is still held when the stream ends by itself.
    pub fn take_remaining(&mut self) -> Bytes {
        if self.is_joined() && self.partial.contains(&b'{') {
            // It may contain the IDs of the server that continued the stream, which the client cannot use.
            self.partial.clear();
        }
        let rest = self.take_held();
        self.openings.rewritten(self.api, rest.into())
    }

    /// Returns everything that is held, as the target sent it.
    pub(super) fn take_held(&mut self) -> Vec<u8> {
        let mut held = std::mem::take(&mut self.held);
        held.append(&mut self.partial);
        self.partial = Vec::new();
        self.charge.shrink(0);
        held
    }

    /// Splits the received data into what is forwarded, up to `done`, and what is held back with an error event. Everything
    /// before `from` is already in `out`.
    pub(super) fn hold_back(
        &mut self,
        data: &Bytes,
        from: usize,
        done: usize,
        mut out: Vec<u8>,
    ) -> (Bytes, Bytes) {
        let mut held = Vec::new();
        out.append(&mut self.held);
        // An event that began in an earlier slice is the first one of this slice.
        let began = if done > from { &mut out } else { &mut held };
        began.append(&mut self.partial);
        out.extend_from_slice(&data[from..done]);
        held.extend_from_slice(&data[done..]);
        self.partial = Vec::new();
        self.charge.shrink(0);
        // Both begin at the boundary of an event.
        self.decoder = Decoder::new(MAX_EVENT);
        (out.into(), held.into())
    }

    /// Charges what is held. Returns false if the budget has no room for it.
    pub(super) fn charge_held(&mut self, exchange: &Exchange) -> bool {
        if let Some(sent) = &mut self.sent {
            let wanted = charged(sent.held());
            let memory = exchange.memory();
            if wanted != self.sent_charge.bytes()
                && !self.sent_charge.resize(memory, wanted, Purpose::Event)
            {
                sent.prevent(ContinuationReason::NoMemory);
                self.sent_charge.shrink(0);
            }
        }
        let held = self.partial.capacity()
            + self.held.capacity()
            + self.decoder.held()
            + self.openings.held();
        let wanted = charged(held);
        wanted == self.charge.bytes()
            || self
                .charge
                .resize(exchange.memory(), wanted, Purpose::Event)
    }

    /// Stops holding and parsing, because the memory budget has no room: from now on everything passes as it arrives,
    /// as after an event that is too long. Only for a stream whose IDs are not rewritten. Returns true if this commits
    /// the stream.
    pub(super) fn give_up(&mut self, forward: &mut Bytes, exchange: &mut Exchange) -> bool {
        let held = self.take_held();
        *forward = [&forward[..], &held].concat().into();
        self.decoder.give_up();
        // No other target will continue the stream.
        self.openings.settled();
        let held = charged(self.openings.held());
        self.charge.force(exchange.memory(), held);
        exchange.quiet = true;
        !std::mem::replace(&mut self.committed, true)
    }

    /// Processes the rest of the slice: complete events in `events`, and the beginning of another one after them. Returns
    /// true if this commits the stream.
    pub(super) fn settle(
        &mut self,
        data: &Bytes,
        events: Range<usize>,
        out: &mut Vec<u8>,
        forward: &mut Bytes,
        exchange: &mut Exchange,
    ) -> bool {
        let gave_up = self.decoder.quiet();
        let commits = gave_up && !self.committed;
        if gave_up {
            exchange.quiet = true;
            self.committed = true;
        }
        let boundary = events.end;
        if !self.committed {
            // A stray LF that completes the line ending of the last event goes where that event went.
            let destination = if self.held.is_empty() {
                &mut *out
            } else {
                &mut self.held
            };
            destination.extend_from_slice(&data[events]);
            self.partial.extend_from_slice(&data[boundary..]);
            *forward = std::mem::take(out).into();
            return false;
        }
        out.append(&mut self.held);
        if !events.is_empty() {
            out.append(&mut self.partial);
        }
        *forward = if out.is_empty() {
            data.slice(events)
        } else {
            out.extend_from_slice(&data[events]);
            std::mem::take(out).into()
        };
        self.partial.extend_from_slice(&data[boundary..]);
        if self.partial.is_empty() {
            // Idle streams keep no buffer.
            self.partial = Vec::new();
        }
        commits
    }
}

/// The charge for `held` bytes.
fn charged(held: usize) -> usize {
    if held > FREE { cost(held) } else { 0 }
}
