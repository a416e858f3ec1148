//! Records the outcome of an exchange when it is dropped: metrics, the comparison, the access line, and the span.

use std::time::Instant;

use super::{Exchange, SHUTTING_DOWN};
use crate::lifecycle::ProcessPhase;
use crate::sse::{End, Outcome};
use crate::telemetry::access;
use crate::telemetry::strata::AttemptResult;

impl Drop for Exchange {
    fn drop(&mut self) {
        let end = self.end.unwrap_or_else(|| self.end_of_dropped());
        let failed = self.status.is_some_and(|status| status.is_server_error());
        // Without a known terminal event, its absence is not an error.
        let quiet = self.quiet || !self.api.has_terminal_event();
        let outcome = self.timeline.outcome(self.is_sse, quiet, failed, end);
        if !self.is_sse && !failed {
            self.recovered();
        }
        let now = Instant::now();
        self.count_answer(now);
        if outcome == Outcome::Cancelled {
            self.compare_silence(now);
        }
        let failed = matches!(outcome, Outcome::Failed | Outcome::Truncated);
        let in_stream = self.timeline.error().flatten();
        if self.status.is_some_and(|status| status.is_client_error())
            || in_stream.is_some_and(|code| (400..500).contains(&code))
        {
            self.first_refused();
        }
        self.first_over(match outcome {
            Outcome::Completed => AttemptResult::Completed,
            Outcome::Cancelled => AttemptResult::Abandoned,
            Outcome::Failed | Outcome::Truncated => AttemptResult::FailedForGood,
        });
        self.retry_over((outcome != Outcome::Cancelled).then_some(failed));
        if self.is_sse {
            self.compare_pace();
        }
        let metrics = &self.context.metrics;
        metrics.closed(self.answering);
        if self.is_probe {
            return;
        }
        if self.is_sse {
            metrics.streamed(
                self.answering,
                now.saturating_duration_since(self.attempted),
            );
        }
        metrics.ended(self.assignment, self.api, outcome);
        if self.first_failed && outcome == Outcome::Completed {
            metrics.completed_by_another(self.assignment.generation);
        }
        let (events, bytes) = (self.timeline.events(), self.timeline.bytes());
        match &self.parts {
            Some(parts) => {
                parts.deliver_rest(metrics, self.answering, &self.timeline, self.usage);
            }
            // A response of the proxy itself does not count as forwarded.
            None if self.answered.is_none() => {}
            None => metrics.delivered(self.answering, events, bytes, self.usage),
        }
        let line = access::Line {
            client: self.client.as_ref().map(|client| client.address_text()),
            request_id: self.request_id.text(),
            assignment: Some(self.assignment),
            answered: self.answered,
            method: self.method.as_str(),
            path: &self.path,
            class: self.api,
            model: self.model.as_deref(),
            endpoint: self.endpoint.as_ref().map(|endpoint| &*endpoint.text),
            status: self.status.map(|status| status.as_u16()),
            attempts: self.attempts,
            cause: self.cause,
            outcome,
            continued: self.parts.as_ref().map_or(0, |parts| parts.continued),
            not_continued: self.not_continued,
            first_event: self.timeline.time_to_first_event(),
            duration: now.saturating_duration_since(self.timeline.started()),
            events,
            bytes,
            usage: self.usage,
            why: self.why.as_deref(),
            trace: self.trace.as_deref(),
        };
        access::log(&line);
        if let (Some(span), Some(tracer)) = (self.span.take(), &self.context.tracer) {
            tracer.end(*span, &line);
        }
    }
}

impl Exchange {
    /// How an exchange ends that is dropped without an end. Usually its client has left. But when the process ends, the
    /// exchange of a stream that is retried or continued is dropped as well.
    fn end_of_dropped(&mut self) -> End {
        if self.context.lifecycle.phase() != ProcessPhase::Ending {
            return End::Gone;
        }
        self.because(SHUTTING_DOWN);
        self.excuse();
        self.search_is_over();
        End::Deadline
    }
}
