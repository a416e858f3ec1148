//! What a relay does when one of its deadlines passes.

use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;

use super::super::timers::Due;
use super::takeover::IfNotContinued;
use super::{Relay, SILENT, State};
use crate::continuation::ContinuationCause;
use crate::failover::Cause;
use crate::proxy::attempt::Retry;
use crate::upstream::EndpointFailure;

impl Relay {
    /// Waits for the next deadline. Returns what to forward because it passed.
    pub(super) fn poll_timers(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let flowing = matches!(self.state, State::Flowing);
        let due = ready!(self.timers.poll(cx, flowing));
        let limit_passed = match due {
            Due::Hold => {
                let sse = self.sse.as_mut().expect("only event streams are held");
                let held = sse.release();
                // While another target is asked, nothing is held.
                if let Some(exchange) = &mut self.exchange {
                    exchange.timeline.forwarded(&held);
                }
                return Poll::Ready(held);
            }
            Due::Comment => {
                if let Some(sse) = &mut self.sse {
                    sse.insert_comment();
                }
                return Poll::Ready(Bytes::from_static(b":\n\n"));
            }
            Due::Move => {
                self.turn_to_move();
                return Poll::Ready(Bytes::new());
            }
            Due::FirstEvent => {
                let attempts = self.attempts.as_deref();
                let extended = attempts.and_then(Retry::first_event_deadline);
                if extended.is_some_and(|at| at > Instant::now()) {
                    self.timers.first_event = extended;
                    return Poll::Ready(Bytes::new());
                }
                self.failed(EndpointFailure::Timeout, "sent no first event in time");
                if let Some(attempts) = &mut self.attempts
                    && let Some(target) = attempts.next_target_after_head(Cause::Deadline)
                {
                    self.retry(target, Cause::Deadline);
                    return Poll::Ready(Bytes::new());
                }
                self.exchange().attempt_failed(Cause::Deadline);
                "sent no first event in time"
            }
            Due::Gap => {
                if self.take_over(ContinuationCause::GapTimeout, IfNotContinued::Silence) {
                    return Poll::Ready(Bytes::new());
                }
                SILENT
            }
        };
        self.silent(limit_passed);
        Poll::Ready(Bytes::new())
    }
}
