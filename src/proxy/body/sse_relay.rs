//! Decides, slice by slice, what of an event stream to forward, hold or drop.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;

use super::timers::Timers;
use crate::failover::{Cause, Target};
use crate::memory::{Charge, FREE, Purpose, cost};
use crate::proxy::attempt::Retry;
use crate::proxy::error::kind;
use crate::proxy::exchange::Exchange;
use crate::sse::{self, Api, Decoder, Event, HoldPolicy, Openings, Prescan, Prescans, Step, Tail};

/// Longest event that is held until it is complete, in bytes. A longer event, or one for which the memory budget has no
/// room, passes through as it arrives, and the decoder goes quiet.
const MAX_EVENT: usize = 1024 * 1024;

/// Maximum size of held events without content, in bytes.
const MAX_HELD: usize = 256 * 1024;

/// Relays one event stream.
pub struct SseRelay {
    api: Api,
    decoder: Decoder,
    /// The beginning of an incomplete event.
    partial: Vec<u8>,
    /// Complete events without content, held until content arrives.
    held: Vec<u8>,
    /// The stream stays on this target, because content was forwarded or a retry is ruled out.
    committed: bool,
    hold: HoldPolicy,
    /// The events without content that were forwarded, in case another target continues the stream.
    openings: Openings,
    /// Charge for everything held here.
    charge: Charge,
}

/// The result of taking a slice.
#[derive(Default)]
pub struct Taken {
    pub forward: Bytes,
    /// This slice committed the stream.
    pub committed: bool,
    /// Abandon this stream and retry on another target.
    pub retry: Option<(Target, Cause)>,
    /// The stream cannot continue what the client has from another target.
    pub stop: Option<Stop>,
}

/// Why a stream cannot continue what the client has from another target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It opens something else in the same place.
    Conflict,
    /// An event is too long to be held, and ids are only rewritten in complete events.
    TooLong,
    /// The memory budget has no room for an incomplete event.
    NoMemory,
}

/// What to do after an event before the first content.
enum Early {
    Go,
    Commit,
    Retry(Target, Cause),
    Conflict,
}

impl SseRelay {
    /// `hold` is how long events without content are held.
    pub fn new(api: Api, hold: Duration) -> Self {
        Self {
            api,
            decoder: Decoder::new(MAX_EVENT),
            partial: Vec::new(),
            held: Vec::new(),
            committed: false,
            hold: HoldPolicy {
                hold,
                max_bytes: MAX_HELD,
                released: false,
            },
            openings: Openings::default(),
            charge: Charge::default(),
        }
    }

    pub fn committed(&self) -> bool {
        self.committed
    }

    pub fn quiet(&self) -> bool {
        self.decoder.quiet()
    }

    /// Prepares for the stream of another target.
    pub fn restart(&mut self) {
        self.decoder = Decoder::new(MAX_EVENT);
        self.partial = Vec::new();
        self.held = Vec::new();
        self.openings.next_stream();
        self.charge.shrink(0);
    }

    /// Returns the held events: they were held long enough.
    pub fn release(&mut self) -> Bytes {
        self.hold.released = true;
        self.openings.sent_all(self.api, &self.held);
        std::mem::take(&mut self.held).into()
    }

    /// Returns what is still held when the stream ends by itself.
    pub fn rest(&mut self) -> Bytes {
        let rest = self.take_held();
        self.openings.rewritten(self.api, rest.into())
    }

    /// Takes all that is held, as the target sent it.
    fn take_held(&mut self) -> Vec<u8> {
        let mut held = std::mem::take(&mut self.held);
        held.append(&mut self.partial);
        self.partial = Vec::new();
        self.charge.shrink(0);
        held
    }

    /// The error event that ends the stream, after the held events. An incomplete event is dropped, or terminated if
    /// part of it was already sent.
    pub fn error(&mut self, message: &str, status: StatusCode) -> Bytes {
        let event = sse::error_event(self.api, message, kind(status), status.as_u16());
        let mut bytes = std::mem::take(&mut self.held);
        if self.quiet() {
            bytes.extend_from_slice(b"\n\n");
        }
        self.partial = Vec::new();
        self.charge.shrink(0);
        bytes.extend_from_slice(&event);
        bytes.into()
    }

    /// Processes a slice of the stream.
    pub fn take(
        &mut self,
        data: Bytes,
        now: Instant,
        exchange: &mut Exchange,
        mut attempts: Option<&mut (dyn Retry + 'static)>,
        timers: &mut Timers,
    ) -> Taken {
        if self.quiet() {
            timers.last_data = Some(now);
            return Taken {
                forward: data,
                ..Taken::default()
            };
        }
        let mut taken = Taken::default();
        let mut out = Vec::new();
        // Everything before this offset is done.
        let mut from = 0;
        // The end of the last complete event.
        let mut complete = 0;
        let mut with_content = 0;
        let mut prescans = Prescans::before(&self.decoder, &data);
        let mut decoder = std::mem::replace(&mut self.decoder, Decoder::new(0));
        let mut events = decoder.feed(&data);
        while let Some(event) = events.next() {
            let prescan = prescans.for_next();
            complete = event.end;
            if self.committed {
                with_content += u64::from(note(self.api, &event, prescan, exchange));
                continue;
            }
            match self.early(
                &event,
                &data[from..complete],
                &mut out,
                now,
                exchange,
                attempts.as_deref_mut(),
                timers,
            ) {
                Early::Go => from = complete,
                Early::Commit => {
                    self.committed = true;
                    taken.committed = true;
                    with_content += u64::from(note(self.api, &event, prescan, exchange));
                }
                Early::Retry(target, cause) => {
                    taken.retry = Some((target, cause));
                    break;
                }
                Early::Conflict => {
                    taken.stop = Some(Stop::Conflict);
                    break;
                }
            }
        }
        drop(events);
        self.decoder = decoder;
        exchange.content(now, with_content);
        if taken.retry.is_none() && taken.stop.is_none() {
            let rewrites = self.openings.rewrites(self.api);
            let mut boundary = self.decoder.boundary();
            if rewrites && self.quiet() {
                taken.stop = Some(Stop::TooLong);
                boundary = complete;
            }
            let boundary = boundary.max(from);
            taken.committed |= self.settle(
                &data,
                from..boundary,
                &mut out,
                &mut taken.forward,
                exchange,
            );
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
            if self.committed {
                timers.last_data = Some(now);
            }
            if self.quiet() {
                // Event boundaries are no longer known, so the proxy must not insert anything.
                timers.comments = None;
            }
        } else {
            taken.forward = out.into();
        }
        taken.forward = self.openings.rewritten(self.api, taken.forward);
        taken
    }

    /// Charges what is held. Returns false if the budget has no room for it.
    fn charge_held(&mut self, exchange: &Exchange) -> bool {
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
    /// as after an event that is too long. Only for a stream whose ids are not rewritten. Returns true if this commits
    /// the stream.
    fn give_up(&mut self, forward: &mut Bytes, exchange: &mut Exchange) -> bool {
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

    /// Processes an event before the first content. `bytes` is the part of it in this slice.
    #[expect(clippy::too_many_arguments)]
    fn early(
        &mut self,
        event: &Event<'_>,
        bytes: &[u8],
        out: &mut Vec<u8>,
        now: Instant,
        exchange: &mut Exchange,
        attempts: Option<&mut (dyn Retry + 'static)>,
        timers: &mut Timers,
    ) -> Early {
        let held = self.held.len();
        let step = self
            .hold
            .step(&mut self.openings, (self.api, event), held, now);
        if !matches!(step, Step::Commit | Step::Fail { .. })
            && let Some(usage) = sse::usage(self.api, event.data)
        {
            exchange.usage.merge(usage);
        }
        let destination = match step {
            Step::Forward => out,
            Step::Hold { until } => {
                timers.held_until.get_or_insert(until);
                &mut self.held
            }
            Step::Release => {
                timers.held_until = None;
                out.extend_from_slice(&self.release());
                self.openings.sent(self.api, event);
                out
            }
            Step::Drop => {
                self.partial.clear();
                return Early::Go;
            }
            Step::Fail { code } => {
                let cause = Cause::of_error_event(code);
                if let (Some(attempts), Some(cause)) = (attempts, cause)
                    && let Some(target) = attempts.next_target_after_head(cause)
                {
                    return Early::Retry(target, cause);
                }
                return Early::Commit;
            }
            Step::Commit => return Early::Commit,
            Step::Conflict => return Early::Conflict,
        };
        destination.append(&mut self.partial);
        destination.extend_from_slice(bytes);
        Early::Go
    }

    /// Processes the rest of the slice: complete events in `events`, and the beginning of another one after them. Returns
    /// true if this commits the stream.
    fn settle(
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

/// Records an event that is forwarded. Returns whether it has content.
fn note(api: Api, event: &Event<'_>, prescan: Prescan, exchange: &mut Exchange) -> bool {
    if let Some(usage) = prescan.usage(api, event) {
        exchange.usage.merge(usage);
    }
    let tail = prescan.tail_meaning(api, event);
    match tail {
        Tail::Error { code } => {
            exchange.timeline.set_error(code);
            if sse::is_terminal(api, event) {
                exchange.timeline.set_terminal();
            }
        }
        Tail::Terminal => exchange.timeline.set_terminal(),
        Tail::Nothing => {}
    }
    tail == Tail::Nothing && event.has_data
}
