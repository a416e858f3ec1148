//! One exchange, from its head to the end of its body: the guard that counts it while it lives and records, exactly once,
//! how it ended.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderValue, Method, StatusCode};

use super::context::Permit;
use crate::failover::Cause;
use crate::http1::NameFilter;
use crate::memory::{Budget, Charge};
use crate::split::{Assignment, Generation};
use crate::sse::{self, Api, End, Timeline, Usage};
use crate::telemetry::trace::{Span, TRACEPARENT};
use crate::telemetry::{Reject, access};
use crate::upstream::Head;

/// The record of an exchange. Dropped unfinished it means that the client went away.
pub struct Exchange {
    context: Permit,
    assignment: Assignment,
    /// The side that carries it now.
    answering: Generation,
    /// The side whose answer the client gets; none while there is only one of the proxy's own.
    answered: Option<Generation>,
    api: Api,
    // Of the head only what the access line needs: the head itself is let go once the exchange is committed.
    method: Method,
    path: Box<str>,
    trace: Option<Box<str>>,
    /// Present when it is traced.
    span: Option<Box<Span>>,
    /// For the request's head, of which the path stays to the end.
    pub head_charge: Charge,
    pub timeline: Timeline,
    pub usage: Usage,
    status: StatusCode,
    attempts: u32,
    /// When the last attempt began: what a generation is measured by.
    attempted: Instant,
    cause: Option<Cause>,
    /// It was retried, and the last target has not shown yet that this recovered it.
    recovery_pending: bool,
    /// A generation answers, which is still to be counted: an event stream may yet move.
    answer_uncounted: bool,
    why: Option<Box<str>>,
    pub is_sse: bool,
    pub quiet: bool,
    end: Option<End>,
}

impl Exchange {
    /// Opens the record. Where exchanges are traced, `head`, which came with these `names`, is made to tell of it.
    pub fn open(
        context: Permit,
        assignment: Assignment,
        api: Api,
        head: &mut Head,
        names: NameFilter,
        now: Instant,
    ) -> Self {
        let tracer = context.tracer.as_ref();
        let span =
            tracer.and_then(|tracer| tracer.begin(&mut head.headers, assignment.generation, now));
        context.metrics.opened(assignment.generation);
        let has_trace = tracer.is_some() || names.may_hold(&TRACEPARENT);
        Self {
            trace: has_trace.then(|| Some(trace_id(head)?.into())).flatten(),
            context,
            assignment,
            answering: assignment.generation,
            answered: None,
            api,
            method: head.method.clone(),
            path: head.uri.path().into(),
            span,
            head_charge: Charge::default(),
            timeline: Timeline::new(now),
            usage: Usage::default(),
            status: StatusCode::OK,
            attempts: 1,
            attempted: now,
            cause: None,
            recovery_pending: false,
            answer_uncounted: false,
            why: None,
            is_sse: false,
            quiet: false,
            end: None,
        }
    }

    /// What all that is held for it is charged to.
    pub fn memory(&self) -> &Arc<Budget> {
        &self.context.memory
    }

    pub fn api(&self) -> Api {
        self.api
    }

    pub fn answering(&self) -> Generation {
        self.answering
    }

    /// Another attempt is made, on `generation`. Answers its `traceparent`, when it is traced.
    pub fn retried(&mut self, generation: Generation, cause: Cause) -> Option<HeaderValue> {
        self.recovery_pending = true;
        self.attempts += 1;
        self.attempted = Instant::now();
        self.cause = Some(cause);
        self.carried_by(generation);
        let span = self.span.as_mut();
        span.map(|span| span.retried(generation, cause, self.attempted))
    }

    /// The last target has answered: a request that was retried is recovered.
    fn recovered(&mut self) {
        if std::mem::take(&mut self.recovery_pending)
            && let Some(cause) = self.cause
        {
            self.context.metrics.recovered(cause);
        }
    }

    /// No target did better than the first, whose answer is passed on.
    pub fn not_recovered(&mut self) {
        self.recovery_pending = false;
    }

    /// The answer of `generation` is passed on.
    pub fn answered(&mut self, generation: Generation, status: StatusCode) {
        self.carried_by(generation);
        self.answered = Some(generation);
        self.status = status;
        self.answer_uncounted = self.assignment.open_to_split();
    }

    /// The proxy answers by itself.
    pub fn refused(&mut self, status: StatusCode) {
        self.status = status;
    }

    /// An event stream that cannot be read passes as it is.
    pub fn passes_encoded(&self) {
        self.context.metrics.encoded_stream(self.answering);
    }

    /// Counts, once, who answered what the weight had a say in. `now` is a moment of the answer.
    fn count_answer(&mut self, now: Instant) {
        if std::mem::take(&mut self.answer_uncounted) {
            let metrics = &self.context.metrics;
            let by_new = self.answering == Generation::New;
            metrics.answered.count(metrics.second(now), by_new);
        }
    }

    fn carried_by(&mut self, generation: Generation) {
        if generation != self.answering {
            self.context.metrics.closed(self.answering);
            self.context.metrics.opened(generation);
            self.answering = generation;
        }
    }

    pub fn rejected(&self, cause: Reject) {
        self.context.metrics.rejected(cause);
    }

    /// Events with content, if any, are forwarded together.
    pub fn content(&mut self, now: Instant, events: u64) {
        if events == 0 {
            return;
        }
        self.recovered();
        self.answered = Some(self.answering);
        let metrics = &self.context.metrics;
        let gap = self.timeline.content(now, events);
        let first = gap.is_none();
        if first {
            // A generation does not answer for the time that another one took to fail.
            let after = now.saturating_duration_since(self.attempted);
            metrics.first_event(self.answering, after);
        }
        metrics.gaps(self.answering, gap, events - 1);
        if first {
            self.count_answer(now);
        }
    }

    /// The token counts of a unary answer, when `data` is all of its body, as it nearly always is.
    pub fn unary_usage(&self, data: &[u8]) -> Option<Usage> {
        let whole = self.timeline.bytes() == data.len() as u64;
        if !whole || self.is_sse || self.api == Api::Other || self.status != StatusCode::OK {
            return None;
        }
        sse::usage_of_json_body(data)
    }

    /// What went wrong, for the access line. The first reason counts.
    pub fn because(&mut self, why: impl Into<Box<str>>) {
        self.why.get_or_insert(why.into());
    }

    /// The body has ended. The first end counts.
    pub fn ended(&mut self, end: End) {
        self.end.get_or_insert(end);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let end = self.end.unwrap_or(End::Gone);
        let failed = self.status.is_server_error();
        // Of an unknown family it is not known how its streams end.
        let quiet = self.quiet || !self.api.has_terminal_event();
        let outcome = self.timeline.outcome(self.is_sse, quiet, failed, end);
        if !self.is_sse && !failed {
            self.recovered();
        }
        self.count_answer(Instant::now());
        let metrics = &self.context.metrics;
        metrics.closed(self.answering);
        if self.is_sse {
            metrics.streamed(self.answering, self.attempted.elapsed());
        }
        metrics.ended(self.assignment, self.api, outcome);
        let (events, bytes) = (self.timeline.events(), self.timeline.bytes());
        metrics.delivered(self.answering, events, bytes, self.usage);
        let line = access::Line {
            assignment: self.assignment,
            answered: self.answered,
            method: self.method.as_str(),
            path: &self.path,
            class: self.api,
            status: self.status.as_u16(),
            attempts: self.attempts,
            cause: self.cause,
            outcome,
            first_event: self.timeline.time_to_first_event(),
            duration: self.timeline.started().elapsed(),
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

/// The trace id of the W3C trace context (`traceparent`: version-traceid-parentid-flags).
fn trace_id(head: &Head) -> Option<&str> {
    let value = head.headers.get(TRACEPARENT)?.to_str().ok()?;
    value.split('-').nth(1).filter(|id| id.len() == 32)
}
