//! Decides, slice by slice, which parts of an event stream to forward, hold or drop.

mod events;
mod holding;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;

use self::events::{note, write_joined};
use super::timers::Timers;
use crate::continuation::{ContinuationReason, Sent};
use crate::failover::{Cause, Target};
use crate::memory::Charge;
use crate::proxy::attempt::Retry;
use crate::proxy::error::kind;
use crate::proxy::exchange::Exchange;
use crate::sse::{
    self, Api, ByteOrderMark, Decoder, Event, EventAction, HoldPolicy, Openings, Prescans,
    TailAction,
};

/// Longest event that is held until it is complete, in bytes. A longer event, or one for which the memory budget has no room,
/// passes through as it arrives, and the decoder stops reporting.
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
    /// The part that the client has received, if another server may continue the stream or has continued it.
    pub sent: Option<Box<Sent>>,
    /// No other server will continue the stream.
    is_final: bool,
    byte_order_mark: ByteOrderMark,
    /// The sequence number of the last event that was forwarded, in families that have such numbers.
    last_number: Option<u64>,
    /// The charge for all memory held here, except `sent`.
    charge: Charge,
    sent_charge: Charge,
}

/// The result of processing a slice.
#[derive(Default)]
pub struct Taken {
    pub forward: Bytes,
    /// This slice committed the stream.
    pub committed: bool,
    /// Abandon this stream and retry on another target.
    pub retry: Option<(Target, Cause)>,
    /// The stream cannot continue what the client has from another target.
    pub stop: Option<Stop>,
    /// An error event after the first content, of a stream that another server may continue. It is held back with what
    /// follows it.
    pub error: Option<HeldBack>,
}

/// An error event that is held back.
pub struct HeldBack {
    /// The status that it stands for.
    pub code: Option<u16>,
    /// The event and what followed it.
    pub bytes: Bytes,
}

/// Why a stream cannot continue what the client has from another target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It opens something different at the same position.
    Conflict,
    /// An event is too long to be held, and IDs are only rewritten in complete events.
    TooLong,
    /// The memory budget has no room for an incomplete event.
    NoMemory,
}

/// What to do after an event before the first content.
enum PreContentStep {
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
            sent: None,
            is_final: false,
            byte_order_mark: ByteOrderMark::default(),
            last_number: None,
            charge: Charge::default(),
            sent_charge: Charge::default(),
        }
    }

    pub fn committed(&self) -> bool {
        self.committed
    }

    /// Whether another server has continued the stream, so that its events are rewritten.
    fn is_joined(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.is_joined())
    }

    pub fn quiet(&self) -> bool {
        self.decoder.quiet()
    }

    /// A comment is inserted.
    pub fn insert_comment(&mut self) {
        self.byte_order_mark.precede();
    }

    /// Prepares for the stream of another target.
    pub fn restart(&mut self) {
        self.decoder = Decoder::new(MAX_EVENT);
        self.partial = Vec::new();
        self.held = Vec::new();
        self.byte_order_mark = ByteOrderMark::dropped();
        self.openings.next_stream();
        if let Some(sent) = &mut self.sent {
            sent.restart();
        }
        self.charge.shrink(0);
    }

    /// Whether the client has events of a response, other than comments.
    pub fn has_sent_openings(&self) -> bool {
        !self.openings.is_empty()
    }

    /// The events that are held, and are sent with whatever follows.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// Prepares for the stream of a server that continues what was `sent`.
    pub fn join(&mut self, sent: Box<Sent>) {
        self.decoder = Decoder::new(MAX_EVENT);
        self.partial = Vec::new();
        self.byte_order_mark = ByteOrderMark::dropped();
        self.sent = Some(sent);
    }

    /// Keeps no text for another server: none will continue the stream. The IDs of a continued part are still rewritten.
    pub fn forget_sent(&mut self) {
        self.is_final = true;
        match &mut self.sent {
            Some(sent) if sent.is_joined() => sent.prevent(ContinuationReason::NoTarget),
            sent => *sent = None,
        }
        self.sent_charge.shrink(0);
    }

    /// The error event that ends the stream, after the held events. An incomplete event is dropped, or terminated if
    /// part of it was already sent.
    pub fn error(&mut self, message: &str, status: StatusCode) -> Box<[u8]> {
        let mut bytes = std::mem::take(&mut self.held);
        if self.quiet() {
            bytes.extend_from_slice(b"\n\n");
        }
        self.note_number(&bytes);
        let code = status.as_u16();
        let event = sse::error_event(self.api, message, kind(status), code, self.last_number);
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
        let (mark, data) = self.byte_order_mark.split(data);
        if self.quiet() {
            timers.last_data = Some(now);
            self.last_number = None;
            return Taken {
                forward: data,
                ..Taken::default()
            };
        }
        let mut taken = Taken::default();
        let mut out = mark.to_vec();
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
            let end = event.end;
            if self.committed {
                let tail = prescan.tail_meaning(self.api, &event);
                let action = self.tail_policy().step(tail);
                if let TailAction::HoldBack { code } = action {
                    let bytes = Bytes::new();
                    taken.error = Some(HeldBack { code, bytes });
                    break;
                }
                let sent = self.sent.as_deref_mut();
                with_content += u64::from(note(self.api, &event, tail, prescan, exchange, sent));
                if let (TailAction::Rewrite, Some(sent)) = (action, self.sent.as_deref_mut()) {
                    let raw = [&self.partial[..], &data[from..end]];
                    write_joined(sent, &event, raw, &mut out);
                    self.partial.clear();
                    from = end;
                }
                complete = end;
                continue;
            }
            complete = end;
            match self.early(
                &event,
                &data[from..complete],
                &mut out,
                now,
                exchange,
                attempts.as_deref_mut(),
                timers,
            ) {
                PreContentStep::Go => from = complete,
                PreContentStep::Commit => {
                    self.committed = true;
                    taken.committed = true;
                    let tail = prescan.tail_meaning(self.api, &event);
                    let sent = self.sent.as_deref_mut();
                    let noted = note(self.api, &event, tail, prescan, exchange, sent);
                    with_content += u64::from(noted);
                }
                PreContentStep::Retry(target, cause) => {
                    taken.retry = Some((target, cause));
                    break;
                }
                PreContentStep::Conflict => {
                    taken.stop = Some(Stop::Conflict);
                    break;
                }
            }
        }
        drop(events);
        self.decoder = decoder;
        exchange.content(now, with_content);
        if let Some(held) = &mut taken.error {
            (taken.forward, held.bytes) = self.hold_back(&data, from, complete, out);
            if taken.committed {
                self.openings.settled();
            }
            timers.last_data = Some(now);
        } else if taken.retry.is_none() && taken.stop.is_none() {
            self.pass_on(&data, from..complete, &mut out, &mut taken, exchange);
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
        if self.quiet() && taken.stop.is_none() {
            // The rest passes without being parsed.
            self.last_number = None;
        } else {
            self.note_number(&taken.forward);
        }
        taken
    }

    /// Keeps the sequence number of the last event of `forwarded`, whose events are complete.
    fn note_number(&mut self, forwarded: &[u8]) {
        self.last_number = sse::last_number(self.api, forwarded).or(self.last_number);
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
    ) -> PreContentStep {
        exchange.find_model(event.data);
        let held = self.held.len();
        let step = self
            .hold
            .step(&mut self.openings, (self.api, event), held, now);
        if !matches!(step, EventAction::Commit | EventAction::Fail { .. }) {
            // The client has the usage of the event that was sent before in place of a dropped one.
            if step != EventAction::Drop
                && let Some(usage) = sse::usage(self.api, event.data)
            {
                exchange.usage.merge(usage);
            }
            if let Some(sent) = &mut self.sent {
                sent.open(event.data);
            }
        }
        let destination = match step {
            EventAction::Forward => out,
            EventAction::Hold { until } => {
                timers.held_until.get_or_insert(until);
                &mut self.held
            }
            EventAction::Release => {
                timers.held_until = None;
                out.extend_from_slice(&self.release());
                self.openings.sent(self.api, event);
                out
            }
            EventAction::Drop => {
                self.partial.clear();
                return PreContentStep::Go;
            }
            EventAction::Fail { code } => {
                let cause = Cause::of_error_event(code);
                if let (Some(attempts), Some(cause)) = (attempts, cause) {
                    if let Some(target) = attempts.next_target_after_head(cause) {
                        return PreContentStep::Retry(target, cause);
                    }
                    exchange.attempt_failed(cause);
                }
                return PreContentStep::Commit;
            }
            EventAction::Commit => return PreContentStep::Commit,
            EventAction::Conflict => return PreContentStep::Conflict,
        };
        destination.append(&mut self.partial);
        destination.extend_from_slice(bytes);
        PreContentStep::Go
    }
}
