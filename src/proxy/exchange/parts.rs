//! The parts of a continued stream that each server delivered.

use std::time::{Duration, Instant};

use http::HeaderValue;

use super::Exchange;
use crate::continuation::{ContinuationCause, ContinuationOutcome, ContinuationReason};
use crate::failover;
use crate::split::Generation;
use crate::sse::{Timeline, Usage};
use crate::telemetry::Metrics;
use crate::telemetry::strata::AttemptResult;

/// The parts of a stream that earlier servers delivered.
#[derive(Debug, Default)]
pub struct Parts {
    /// How many times another server has continued it.
    pub continued: u32,
    /// The next event is the first from another server.
    pub begins: bool,
    /// The generation of the server that is asked to continue it.
    candidate: Option<Generation>,
    /// The stream has broken, and the search for a server to continue it is not over.
    is_searching: bool,
    events: u64,
    bytes: u64,
    /// Tokens of earlier servers, by generation. They count once a server reports tokens.
    tokens: [u64; 2],
}

impl Parts {
    /// Counts what has been delivered since the last call for `generation`, whose server has generated `tokens` of the answer.
    fn deliver(
        &mut self,
        metrics: &Metrics,
        generation: Generation,
        timeline: &Timeline,
        tokens: u64,
    ) {
        let events = timeline.events() - self.events;
        let bytes = timeline.bytes() - self.bytes;
        metrics.delivered(generation, events, bytes, Usage::default());
        self.events = timeline.events();
        self.bytes = timeline.bytes();
        let counted: u64 = self.tokens.iter().sum();
        self.tokens[generation.index()] += tokens.saturating_sub(counted);
    }

    /// Counts the remaining tokens for `generation` at the end. `usage` is that of the whole answer.
    pub fn deliver_rest(
        &self,
        metrics: &Metrics,
        generation: Generation,
        timeline: &Timeline,
        usage: Usage,
    ) {
        let counted: u64 = self.tokens.iter().sum();
        if counted > 0 && usage.completion_tokens > 0 {
            for earlier_generation in Generation::ALL {
                let earlier = Usage {
                    prompt_tokens: 0,
                    completion_tokens: self.tokens[earlier_generation.index()],
                };
                metrics.delivered(earlier_generation, 0, 0, earlier);
            }
        }
        let own = Usage {
            completion_tokens: usage.completion_tokens.saturating_sub(counted),
            ..usage
        };
        let events = timeline.events() - self.events;
        let bytes = timeline.bytes() - self.bytes;
        metrics.delivered(generation, events, bytes, own);
    }
}

/// The cause of failure for a broken stream. A planned move is not a failure.
const fn failure(cause: ContinuationCause) -> Option<failover::Cause> {
    match cause {
        ContinuationCause::Connection | ContinuationCause::Truncated => {
            Some(failover::Cause::Broken)
        }
        ContinuationCause::GapTimeout => Some(failover::Cause::Deadline),
        ContinuationCause::ErrorEvent => Some(failover::Cause::ErrorEvent),
        ContinuationCause::PlannedMove => None,
    }
}

impl Exchange {
    /// Records that the stream broke on its server, and that others are asked for the rest.
    pub fn record_break(&mut self, cause: ContinuationCause) {
        if let Some(cause) = failure(cause) {
            self.attempt_failed(cause);
            self.cause = Some(cause);
            self.parts.get_or_insert_default().is_searching = true;
        }
    }

    /// Counts a stream whose search ends with the process.
    pub(super) fn search_is_over(&mut self) {
        if self.parts.as_ref().is_some_and(|parts| parts.is_searching) {
            self.not_continued(
                self.answering,
                ContinuationOutcome::Ended,
                ContinuationReason::AttemptsFailed,
            );
        }
    }

    /// Records that another server, of `generation`, is asked to continue the stream. The server before it generated `tokens`
    /// of the answer. Returns the `traceparent` of the attempt if the exchange is traced.
    pub fn asks_to_continue(
        &mut self,
        generation: Generation,
        cause: ContinuationCause,
        tokens: u64,
    ) -> Option<HeaderValue> {
        if cause == ContinuationCause::PlannedMove {
            self.first_over(AttemptResult::Abandoned);
        }
        self.attempts += 1;
        let parts = self.parts.get_or_insert_default();
        parts.candidate = Some(generation);
        let metrics = &self.context.metrics;
        parts.deliver(metrics, self.answering, &self.timeline, tokens);
        // Until then, a stream that has to move stays open where it is.
        if cause == ContinuationCause::PlannedMove {
            let span = self.span.as_mut();
            return span.map(|span| span.begin_attempt(generation, Instant::now()));
        }
        // Before the request is sent, so that it counts as open where it may arrive.
        self.carried_by(generation);
        // For the previous attempt.
        let cause = self.cause?;
        let span = self.span.as_mut();
        span.map(|span| span.retried(generation, cause, Instant::now()))
    }

    /// Counts a failed attempt of the server that was asked to continue the stream, if one was.
    pub fn continuation_failed(&mut self, cause: failover::Cause) {
        let candidate = self.parts.as_mut().and_then(|parts| parts.candidate.take());
        if let Some(generation) = candidate {
            self.context.metrics.failed_attempt(generation, cause);
            self.cause = Some(cause);
            if let Some(span) = &mut self.span {
                span.did_not_take_over(Some(cause), Instant::now());
            }
        }
    }

    /// Records that a server of `generation` continues the stream, `gap` after it broke or started to move.
    pub fn continued(&mut self, generation: Generation, cause: ContinuationCause, gap: Duration) {
        self.carried_by(generation);
        let parts = self.parts.get_or_insert_default();
        parts.continued += 1;
        parts.begins = true;
        parts.candidate = None;
        parts.is_searching = false;
        self.attempted = Instant::now();
        if let Some(span) = &mut self.span {
            span.took_over(self.attempted);
        }
        self.context.metrics.continued(cause, gap);
    }

    /// Records that no other server continues the stream. It stays with `generation`, or ends as one of its streams.
    pub fn not_continued(
        &mut self,
        generation: Generation,
        outcome: ContinuationOutcome,
        reason: ContinuationReason,
    ) {
        self.carried_by(generation);
        if let Some(parts) = &mut self.parts {
            // The move was stopped, so nothing is known of the server that was asked.
            parts.candidate = None;
            parts.is_searching = false;
        }
        if let Some(span) = &mut self.span {
            span.did_not_take_over(None, Instant::now());
        }
        self.not_continued = Some(reason);
        self.context.metrics.not_continued(outcome, reason);
        tracing::debug!(
            outcome = outcome.as_str(),
            reason = reason.as_str(),
            "a stream is not continued"
        );
    }
}
