//! Handles a stream that breaks after its first content: another server takes it over, or it ends the way its own server ended
//! it.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Relay, SILENT, State};
use crate::continuation::{ContinuationCause, ContinuationOutcome, ContinuationReason, Sent};
use crate::failover;
use crate::memory::{Budget, Charge, FREE, Purpose, cost};
use crate::proxy::attempt::Retry;
use crate::proxy::body::sse_relay::HeldBack;
use crate::proxy::continuing::{Continued, Joined, OpenStream, Resume};
use crate::proxy::exchange::Exchange;
use crate::snapshot::{MoveDecision, MoveWatch};
use crate::split::Generation;
use crate::upstream::{Endpoint, EndpointFailure, UpstreamBody};

/// The state that another server needs to continue a stream.
pub struct ContinuationState {
    /// `None` while other servers are asked.
    source: Option<Box<dyn Resume>>,
    /// The endpoint that sends the stream.
    endpoint: Option<Arc<Endpoint>>,
    /// How many times another server has continued it.
    times: u32,
    /// Tells when the stream has to move; `None` unless it is on old.
    moves: Option<MoveWatch>,
    /// Set while other servers are asked. Boxed, because most streams never break, but each open stream reserves room for it.
    interruption: Option<Box<Interruption>>,
}

/// How a stream broke.
struct Interruption {
    cause: ContinuationCause,
    at: Instant,
    /// The generation that it came from.
    from: Generation,
    /// What happens if no server continues the stream.
    if_not_continued: IfNotContinued,
    /// Stops the search for a server to move the stream to.
    stop: Option<oneshot::Sender<()>>,
    memory: Arc<Budget>,
}

/// What happens to a stream that no other server continues.
pub enum IfNotContinued {
    /// It ends as after a broken connection.
    Break { for_client: Box<str>, why: Box<str> },
    /// It ends as its server ended it.
    End,
    /// It ends because no data arrived for too long.
    Silence,
    /// The error event is forwarded, and the stream continues.
    Forward(Bytes),
    /// It stays where it is.
    Stay,
}

impl Relay {
    /// Keeps the state of `attempts` if the stream can be continued after its first content, which has arrived if `goes_on`.
    pub(super) fn keep(&mut self, attempts: Box<dyn Retry>, goes_on: bool) {
        let api = self.exchange().api();
        let sent = self.sse.as_mut().and_then(|sse| sse.sent.as_deref_mut());
        let keep = goes_on && sent.is_some();
        let source = attempts.commit(keep);
        match (source, sent) {
            (Some(source), Some(sent)) => {
                if !source.record_demand(api, sent) {
                    // The access line contains the reason if the stream breaks.
                    sent.prevent(ContinuationReason::NotSupported);
                }
                let on_old = self.exchange.as_ref().is_some_and(is_on_old);
                self.kept = Some(Box::new(ContinuationState {
                    moves: on_old.then(|| source.watch_moves()),
                    source: Some(source),
                    endpoint: self.endpoint.clone(),
                    times: 0,
                    interruption: None,
                }));
            }
            _ => self.drop_kept(),
        }
    }

    /// The stream will no longer be continued.
    fn drop_kept(&mut self) {
        if let Some(sse) = &mut self.sse {
            sse.forget_sent();
        }
        self.kept = None;
    }

    /// Releases what is kept if it is known to be unneeded.
    pub(super) fn release_kept(&mut self) {
        let (Some(kept), Some(sse)) = (&mut self.kept, &self.sse) else {
            return;
        };
        if sse.quiet() {
            return self.drop_kept();
        }
        // The access line contains the reason if the stream breaks.
        let is_over = sse
            .sent
            .as_ref()
            .is_none_or(|sent| sent.prevented().is_some());
        if let Some(source) = kept.source.as_mut().filter(|_| is_over) {
            source.release();
        }
    }

    /// Asks other servers for the rest of the stream, if allowed. If none continues it, `if_not_continued` happens. Returns false
    /// if no server is asked, in which case the caller carries out `if_not_continued`.
    pub(super) fn take_over(
        &mut self,
        cause: ContinuationCause,
        if_not_continued: IfNotContinued,
    ) -> bool {
        let (Some(kept), Some(sse)) = (&mut self.kept, &mut self.sse) else {
            return false;
        };
        let (Some(source), Some(sent), Some(mut exchange)) =
            (kept.source.take(), sse.sent.take(), self.exchange.take())
        else {
            return false;
        };
        let now = Instant::now();
        let generation = exchange.answering();
        let prepared = source.prepare(exchange.api(), &sent, cause, kept.times);
        // If nothing is missing from the response, the endpoint is not at fault.
        let may_continue =
            !matches!(prepared, Err(ContinuationReason::TokensUsedUp)) && sent.resumption().is_ok();
        if let Some(endpoint) = kept.endpoint.as_ref().filter(|_| may_continue) {
            record_failure(endpoint, cause, now);
        }
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(reason) => {
                self.exchange = Some(exchange);
                kept.source = Some(source);
                sse.sent = Some(sent);
                self.not_continued(generation, cause, reason);
                return false;
            }
        };
        exchange.record_break(cause);
        let stays = matches!(
            if_not_continued,
            IfNotContinued::Forward(_) | IfNotContinued::Stay
        );
        if !stays {
            self.source = UpstreamBody::empty();
        }
        let (stop, stopped) = match if_not_continued {
            IfNotContinued::Stay => {
                let (stop, stopped) = oneshot::channel();
                (Some(stop), Some(stopped))
            }
            _ => (None, None),
        };
        kept.interruption = Some(Box::new(Interruption {
            cause,
            at: now,
            from: generation,
            if_not_continued,
            stop,
            memory: Arc::clone(exchange.memory()),
        }));
        let stream = OpenStream {
            exchange,
            sent,
            from: kept.endpoint.clone(),
            stopped,
        };
        self.state = State::Continuing(source.continue_stream(prepared, stream));
        true
    }

    /// Keeps reading from the server of a stream that has to move. Returns true once its response has ended, early or not. In
    /// that case, the search for another server has been stopped.
    pub(super) fn ends_meanwhile(&mut self, cx: &mut Context<'_>) -> bool {
        let interruption = self
            .kept
            .as_mut()
            .and_then(|kept| kept.interruption.as_mut());
        let Some(interruption) = interruption.filter(|interruption| interruption.stop.is_some())
        else {
            return false;
        };
        let ends = self.source.poll_end(cx, &interruption.memory).is_ready();
        if let Some(stop) = interruption.stop.take_if(|_| ends) {
            // The search has not ended, so it receives this.
            let _ = stop.send(());
        }
        ends
    }

    /// Checks whether the plan moves the stream.
    #[inline]
    pub(super) fn watch_moves(&mut self, cx: &mut Context<'_>) {
        if let Some(watch) = self.kept.as_mut().and_then(|kept| kept.moves.as_mut())
            && let Poll::Ready(at) = watch.poll(cx)
        {
            self.timers.move_at = at;
        }
    }

    /// Moves the stream to new if it is its turn. If no server there continues it, it stays, and is not moved again.
    pub(super) fn turn_to_move(&mut self) {
        let Some(watch) = self.kept.as_mut().and_then(|kept| kept.moves.as_mut()) else {
            return;
        };
        match watch.decide(Instant::now()) {
            MoveDecision::At(at) => self.timers.move_at = Some(at),
            MoveDecision::Stay => {}
            MoveDecision::Move => {
                self.take_over(ContinuationCause::PlannedMove, IfNotContinued::Stay);
            }
        }
    }

    /// Records why the stream is not continued. Only a stream that had to move may still be continued later.
    fn not_continued(
        &mut self,
        generation: Generation,
        cause: ContinuationCause,
        reason: ContinuationReason,
    ) {
        let moves = cause == ContinuationCause::PlannedMove;
        if let Some(kept) = self.kept.as_mut().filter(|_| moves) {
            kept.moves = None;
        }
        let outcome = if moves {
            ContinuationOutcome::Stayed
        } else {
            ContinuationOutcome::Ended
        };
        self.exchange().not_continued(generation, outcome, reason);
        if !moves {
            self.drop_kept();
        }
    }

    /// Handles an error event after the first content. Returns the data to forward.
    pub(super) fn error_event(&mut self, held: HeldBack) -> Bytes {
        let HeldBack { code, bytes } = held;
        let says_gone = self.kept.is_some()
            && failover::Cause::of_error_event(code) == Some(failover::Cause::ErrorEvent);
        let reason = match says_gone.then(|| self.kept_aside(&bytes)) {
            None => ContinuationReason::RequestError,
            Some(None) => ContinuationReason::NoMemory,
            Some(Some(aside)) => {
                if self.take_over(
                    ContinuationCause::ErrorEvent,
                    IfNotContinued::Forward(aside),
                ) {
                    return Bytes::new();
                }
                return self.forward_held(bytes);
            }
        };
        if self.kept.is_some() {
            let generation = self.exchange().answering();
            self.not_continued(generation, ContinuationCause::ErrorEvent, reason);
        }
        self.forward_held(bytes)
    }

    /// An error event that is charged while others are asked; `None` if the memory budget has no room for it.
    fn kept_aside(&mut self, event: &Bytes) -> Option<Bytes> {
        let mut charge = Charge::default();
        let wanted = match event.len() {
            0..=FREE => 0,
            length => cost(length),
        };
        let memory = self.exchange().memory();
        charge
            .resize(memory, wanted, Purpose::Event)
            .then(|| charge.tie(event.clone()))
    }

    /// Processes what was held back with an error event, as if it had just arrived.
    fn forward_held(&mut self, bytes: Bytes) -> Bytes {
        self.drop_kept();
        self.take(bytes)
    }

    /// Continues with the server that was found, or without one. Returns the data to forward.
    pub(super) fn continue_after_search(&mut self, continued: Continued) -> Bytes {
        let Continued {
            source,
            exchange,
            sent,
            result,
        } = continued;
        self.exchange = Some(exchange);
        self.state = State::Flowing;
        let kept = self
            .kept
            .as_mut()
            .expect("it is kept while others are asked");
        kept.source = Some(source);
        let interruption = kept
            .interruption
            .take()
            .expect("it is set while others are asked");
        match result {
            Ok(joined) => self.join(sent, joined, *interruption),
            Err(reason) => {
                if let Some(sse) = &mut self.sse {
                    sse.sent = Some(sent);
                }
                self.not_continued(interruption.from, interruption.cause, reason);
                self.proceed_without_takeover(interruption.if_not_continued)
            }
        }
    }

    fn proceed_without_takeover(&mut self, if_not_continued: IfNotContinued) -> Bytes {
        match if_not_continued {
            IfNotContinued::Break { for_client, why } => {
                self.break_off(&for_client, &why);
                Bytes::new()
            }
            IfNotContinued::End => self.end(),
            IfNotContinued::Silence => {
                self.silent(SILENT);
                Bytes::new()
            }
            IfNotContinued::Forward(bytes) => self.forward_held(bytes),
            IfNotContinued::Stay => {
                // The server did not cause the pause.
                self.timers.last_data = Some(Instant::now());
                Bytes::new()
            }
        }
    }

    fn join(&mut self, mut sent: Box<Sent>, joined: Joined, interruption: Interruption) -> Bytes {
        let Interruption { cause, from, .. } = interruption;
        let exchange = self.exchange();
        let to = joined.generation;
        exchange.continued(to, cause, interruption.at.elapsed());
        sent.join(joined.resumption, joined.skipped);
        if let Some(sse) = &mut self.sse {
            sse.join(sent);
        }
        if let Some(kept) = &mut self.kept {
            kept.times += 1;
            kept.endpoint = Some(joined.endpoint);
            kept.moves = match (from, to) {
                (_, Generation::New) => None,
                (Generation::Old, Generation::Old) => kept.moves.take(),
                // Old may have lost its share before.
                (Generation::New, Generation::Old) => {
                    kept.source.as_ref().map(|source| source.watch_moves())
                }
            };
        }
        self.hide(joined.hidden);
        self.source = joined.body;
        let comment = match joined.comment {
            true => format!(
                ": crossfade continued ({from} → {to}, {})\n\n",
                cause.as_str()
            ),
            false => String::new(),
        };
        [Bytes::from(comment), self.take(joined.first)]
            .concat()
            .into()
    }
}

fn is_on_old(exchange: &Exchange) -> bool {
    exchange.answering() == Generation::Old
}

/// Counts the break against the endpoint. A planned move is not its fault.
fn record_failure(endpoint: &Endpoint, cause: ContinuationCause, now: Instant) {
    match cause {
        ContinuationCause::PlannedMove => {}
        ContinuationCause::GapTimeout => endpoint.failed(EndpointFailure::Timeout, now, &SILENT),
        ContinuationCause::ErrorEvent => {
            endpoint.failed(EndpointFailure::Answer, now, &"sent an error event")
        }
        ContinuationCause::Connection | ContinuationCause::Truncated => {
            endpoint.may_have_restarted();
            endpoint.failed(EndpointFailure::Answer, now, &"ended a stream early");
        }
    }
}
