//! Counts an exchange for the comparison of both generations.

use std::time::Instant;

use super::{Exchange, is_of_server};
use crate::failover::Cause;
use crate::split::{Generation, Key};
use crate::telemetry::strata::{AttemptResult, Record};

/// How a request is compared.
#[derive(Clone, Copy)]
pub(super) struct ComparedExchange {
    /// The size class of its body.
    size: u8,
    /// The series of counts in which it began.
    series: u64,
    in_session: bool,
    /// A failure without content counts only if the other generation answers the request.
    needs_proof: bool,
}

impl Exchange {
    /// Compares the exchange with others whose bodies are of this size class, if it was open to the split and its session is not
    /// compared yet. `fails_over` tells whether the plan retries failed requests.
    pub fn compare(&mut self, size: u8, session: Option<Key>, fails_over: bool, now: Instant) {
        let metrics = &self.context.metrics;
        let second = metrics.second(now);
        let is_first = |session| metrics.sessions.is_first(session, second);
        if self.assignment.open_to_split() && session.is_none_or(is_first) {
            let series = self.context.metrics.strata.series();
            self.compared = Some(ComparedExchange {
                size,
                series,
                in_session: session.is_some(),
                needs_proof: session.is_some() && fails_over,
            });
            self.first_open = true;
            if let Some(record) = self.stratum(self.assignment.generation) {
                record.started();
            }
        }
    }

    /// The counters of `generation` for this exchange; none once a different new generation is compared.
    fn stratum(&self, generation: Generation) -> Option<&Record> {
        let strata = &self.context.metrics.strata;
        let compared = self.compared?;
        let is_current = compared.series == strata.series();
        is_current.then(|| strata.record(generation, self.api, compared.size))
    }

    fn first_stratum(&self) -> Option<&Record> {
        self.stratum(self.assignment.generation)
    }

    /// Records, for the comparison, that the request is retried on `generation`. `failed` tells whether its generation failed
    /// the last attempt.
    pub(super) fn compare_retry(&mut self, generation: Generation, failed: bool) {
        let is_second = self.attempts == 2;
        self.retry_open = failed && is_second && generation != self.assignment.generation;
    }

    /// Records, for the comparison, the result of the second attempt. `None` if it will never be known.
    pub(super) fn retry_over(&mut self, failed: Option<bool>) {
        if !std::mem::take(&mut self.retry_open) {
            return;
        }
        if std::mem::take(&mut self.first_unproven)
            && let Some(record) = self.first_stratum()
        {
            match failed {
                Some(false) => record.ended(AttemptResult::Failed, false),
                Some(true) | None => record.ended_undecided(),
            }
        }
        if let Some(failed) = failed
            && let Some(record) = self.stratum(self.answering)
        {
            record.retried(failed);
        }
    }

    /// Records, for the comparison, that an attempt failed, and that the request is retried on `next`.
    ///
    /// A client knows where its session leads, and could send requests that fail on any server to only one generation. So a
    /// failure in a session counts only once the other generation has answered the request. If the request is not retried, for
    /// example because the retry budget is used up, nothing is known. Failures that are never retried count immediately, as they
    /// do on the other generation.
    pub(super) fn first_fails(&mut self, cause: Cause, next: Option<Generation>) {
        if !is_of_server(cause) {
            return self.first_over(AttemptResult::Abandoned);
        }
        if next.is_none() && cause == Cause::Overloaded {
            return self.first_over(AttemptResult::FailedForGood);
        }
        let generation = self.assignment.generation;
        let needs_proof = self.compared.is_some_and(|compared| compared.needs_proof);
        let is_tried = generation == Generation::New || cause != Cause::ServerError;
        match next {
            Some(next) if needs_proof && !self.first_answered && next != generation => {
                self.first_unproven |= std::mem::take(&mut self.first_open);
            }
            None if needs_proof && !self.first_answered && is_tried => self.first_undecided(),
            _ => self.first_over(AttemptResult::Failed),
        }
    }

    /// Records, for the comparison, that the model server rejected the request as invalid. In a session, a client can send
    /// requests that any server rejects to only one generation, so this says nothing about the generation.
    pub(super) fn first_refused(&mut self) {
        if self.compared.is_some_and(|compared| compared.in_session) {
            self.first_undecided();
        } else {
            self.first_over(AttemptResult::FailedForGood);
        }
    }

    /// Records, for the comparison, that the first attempt has ended without evidence about its generation.
    fn first_undecided(&mut self) {
        if std::mem::take(&mut self.first_open)
            && let Some(record) = self.first_stratum()
        {
            record.ended_undecided();
        }
    }

    /// Records, for the comparison, that the first attempt has ended, unless that is known.
    pub(super) fn first_over(&mut self, how: AttemptResult) {
        if std::mem::take(&mut self.first_open)
            && let Some(record) = self.first_stratum()
        {
            record.ended(how, self.first_answered);
        }
    }

    /// Records, for the comparison, that the response to the first attempt begins with content.
    pub(super) fn first_answers(&mut self) {
        if self.first_open
            && !std::mem::replace(&mut self.first_answered, true)
            && let Some(record) = self.first_stratum()
        {
            record.answered();
        }
    }

    /// The model server does not cause what follows, so it does not count against its generation.
    pub fn excuse(&mut self) {
        self.first_over(AttemptResult::Abandoned);
    }

    /// Whether the latencies of this stream are compared. A later attempt is not, because it depends on the result of the first
    /// one.
    fn compares_latencies(&self) -> bool {
        self.attempts == 1 && self.is_warm
    }

    pub(super) fn compare_first_event(&self, now: Instant) {
        if self.compares_latencies()
            && let Some(record) = self.first_stratum()
        {
            record.first_event(now.saturating_duration_since(self.attempted));
        }
    }

    /// The client has disconnected: the server would have taken longer.
    pub(super) fn compare_silence(&mut self, now: Instant) {
        if self.status.is_some() && !self.is_sse {
            return;
        }
        match self.timeline.last_event() {
            None => self.compare_first_event(now),
            Some(last) => {
                let gap = now.saturating_duration_since(last);
                self.gap_sample.add(Some(gap), 0, fastrand::f64);
            }
        }
    }

    /// Counts what is known only at the end of a stream.
    pub(super) fn compare_pace(&self) {
        let Some(record) = self.first_stratum().filter(|_| self.compares_latencies()) else {
            return;
        };
        if let Some(gap) = self.gap_sample.value() {
            record.gap(gap);
        }
        let gaps = self.usage.completion_tokens.saturating_sub(1);
        if let Some(lasted) = self.timeline.time_of_events()
            && let Ok(gaps) = u32::try_from(gaps)
            && gaps > 0
        {
            record.per_token(lasted / gaps);
        }
    }
}
