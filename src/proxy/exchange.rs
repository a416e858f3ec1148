//! The record of one exchange, from its head to the end of its body. It counts the exchange as open and, on drop,
//! records its outcome exactly once.

mod comparison;
mod end;
mod parts;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};

use self::comparison::ComparedExchange;
use super::context::Permit;
use super::gap_sample::GapSample;
use super::head::Client;
use super::request_id::RequestId;
use crate::continuation;
use crate::failover::Cause;
use crate::http1::NameFilter;
use crate::memory::{Budget, Charge};
use crate::split::{Assignment, Generation};
use crate::sse::{self, Api, End, Timeline, Usage};
use crate::telemetry::Reject;
use crate::telemetry::trace::{Span, TRACEPARENT};
use crate::upstream::{Endpoint, Head};
use parts::Parts;

/// Why an exchange ended with the process.
pub const SHUTTING_DOWN: &str = "the proxy is shutting down";

/// The record of an exchange. If it is dropped without an end, the client disconnected.
pub struct Exchange {
    context: Permit,
    assignment: Assignment,
    /// The generation that currently serves the exchange.
    answering: Generation,
    /// The generation whose response the client gets; `None` while only the proxy itself has responded.
    answered: Option<Generation>,
    api: Api,
    // Only what the access line needs: the head itself is released when the exchange is committed.
    method: Method,
    path: Box<str>,
    client: Option<Arc<Client>>,
    request_id: RequestId,
    /// The model that the response names.
    model: Option<Box<str>>,
    /// The model server whose response the client gets.
    endpoint: Option<Arc<Endpoint>>,
    trace: Option<Box<str>>,
    /// Set if the exchange is traced.
    span: Option<Box<Span>>,
    /// Charge for the request head, whose path is kept until the end.
    pub head_charge: Charge,
    pub timeline: Timeline,
    pub usage: Usage,
    /// The status of the head that was forwarded; `None` until then.
    status: Option<StatusCode>,
    attempts: u32,
    /// When the last attempt began. The latencies of a generation count from here.
    attempted: Instant,
    cause: Option<Cause>,
    /// The generation that failed the last attempt.
    failed_on: Generation,
    /// `None` if the request is not compared, because it was not open to the split.
    compared: Option<ComparedExchange>,
    /// The first attempt is compared and has not ended yet.
    first_open: bool,
    /// The response to the first attempt has begun with content.
    first_answered: bool,
    /// The generation to which the exchange was first assigned has failed it, no matter how the exchange ended.
    first_failed: bool,
    /// The first attempt has failed, and whether that counts is unknown until the second one has ended.
    first_unproven: bool,
    /// The second attempt is compared, and its result is not known yet.
    retry_open: bool,
    /// The server is past its warm-up, so its latencies are compared.
    pub is_warm: bool,
    gap_sample: GapSample,
    /// A retry was made, and has not yet proved successful.
    recovery_pending: bool,
    /// The generation that responded is not counted yet: an event stream may still move.
    answer_uncounted: bool,
    why: Option<Box<str>>,
    /// What earlier servers delivered, once another server is asked to continue the stream.
    parts: Option<Box<Parts>>,
    not_continued: Option<continuation::ContinuationReason>,
    pub is_sse: bool,
    pub quiet: bool,
    /// A probe of another proxy of the update: it is not a client's request, so it is neither counted nor logged.
    pub is_probe: bool,
    end: Option<End>,
}

impl Exchange {
    /// Opens the record. Adds a request ID to `head` if it has no usable one, and the trace context if exchanges are traced.
    /// `names` are the names of its fields.
    pub fn open(
        context: Permit,
        assignment: Assignment,
        api: Api,
        head: &mut Head,
        names: NameFilter,
        client: Option<Arc<Client>>,
        now: Instant,
    ) -> Self {
        let tracer = context.tracer.as_ref();
        let span =
            tracer.and_then(|tracer| tracer.begin(&mut head.headers, assignment.generation, now));
        context.metrics.opened(assignment.generation);
        let has_trace = tracer.is_some() || names.may_contain(&TRACEPARENT);
        Self {
            trace: has_trace
                .then(|| Some(trace_id(&head.headers)?.into()))
                .flatten(),
            context,
            assignment,
            answering: assignment.generation,
            answered: None,
            api,
            method: head.method.clone(),
            path: head.uri.path().into(),
            client,
            request_id: RequestId::take_or_make(head, names),
            model: None,
            endpoint: None,
            span,
            head_charge: Charge::default(),
            timeline: Timeline::new(now),
            usage: Usage::default(),
            status: None,
            attempts: 1,
            attempted: now,
            cause: None,
            failed_on: assignment.generation,
            compared: None,
            first_open: false,
            first_answered: false,
            first_failed: false,
            first_unproven: false,
            retry_open: false,
            is_warm: true,
            gap_sample: GapSample::default(),
            recovery_pending: false,
            answer_uncounted: false,
            why: None,
            parts: None,
            not_continued: None,
            is_sse: false,
            quiet: false,
            is_probe: false,
            end: None,
        }
    }

    /// Counts a failed attempt of the generation that serves the exchange.
    pub fn attempt_failed(&mut self, cause: Cause) {
        self.fails(cause, None);
    }

    /// Counts a failed attempt. `next` is where the request is retried.
    fn fails(&mut self, cause: Cause, next: Option<Generation>) {
        self.failed_on = self.answering;
        self.context.metrics.failed_attempt(self.answering, cause);
        let failed = is_of_server(cause);
        self.first_failed |= self.attempts == 1 && failed;
        self.first_fails(cause, next);
        self.retry_over(failed.then_some(true));
    }

    /// The budget to which all memory held for the exchange is charged.
    pub fn memory(&self) -> &Arc<Budget> {
        &self.context.memory
    }

    pub fn api(&self) -> Api {
        self.api
    }

    /// The ID of the request, for the response.
    pub fn request_id(&self) -> HeaderValue {
        self.request_id.value()
    }

    pub fn answering(&self) -> Generation {
        self.answering
    }

    /// Records a retry on `generation`. Returns its `traceparent` if the exchange is traced.
    pub fn retried(&mut self, generation: Generation, cause: Cause) -> Option<HeaderValue> {
        self.fails(cause, Some(generation));
        self.recovery_pending = true;
        self.attempts += 1;
        self.compare_retry(generation, is_of_server(cause));
        self.attempted = Instant::now();
        self.cause = Some(cause);
        self.carried_by(generation);
        let span = self.span.as_mut();
        span.map(|span| span.retried(generation, cause, self.attempted))
    }

    /// Counts a retried request as recovered.
    fn recovered(&mut self) {
        if std::mem::take(&mut self.recovery_pending)
            && let Some(cause) = self.cause
        {
            let (from, to) = (self.failed_on, self.answering);
            self.context.metrics.recovered(from, to, cause);
        }
    }

    /// Clears a pending recovery: no other target succeeded, so a failed response or an error goes to the client.
    pub fn not_recovered(&mut self) {
        self.recovery_pending = false;
    }

    /// Records that the response of `generation`, sent by `endpoint`, is relayed.
    pub fn answered(
        &mut self,
        generation: Generation,
        endpoint: Option<Arc<Endpoint>>,
        status: StatusCode,
    ) {
        self.carried_by(generation);
        self.endpoint = endpoint;
        self.answered = Some(generation);
        self.status = Some(status);
        self.answer_uncounted = self.assignment.open_to_split();
    }

    /// Records that the proxy itself responds.
    pub fn refused(&mut self, response: &Response<Bytes>) {
        self.status = Some(response.status());
        if self.method != Method::HEAD {
            self.timeline.forwarded(response.body());
        }
    }

    /// Records an error that the server reported in its stream, with the status that it stands for.
    pub fn reported_error(&mut self, code: Option<u16>) {
        self.timeline.set_error(code);
        let generation = self.answering.as_str();
        self.because(match code {
            Some(code) => format!("{generation} reported an error in the stream (status {code})"),
            None => format!("{generation} reported an error in the stream"),
        });
    }

    /// Counts an event stream that is relayed unparsed because it is encoded.
    pub fn passes_encoded(&self) {
        self.context.metrics.encoded_stream(self.answering);
    }

    /// Counts, once, which generation responded, for requests that were split by weight. `now` is the time of the
    /// response.
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

    /// Records `events` events with content that are forwarded together.
    pub fn content(&mut self, now: Instant, events: u64) {
        if events == 0 {
            return;
        }
        self.recovered();
        self.answered = Some(self.answering);
        let metrics = &self.context.metrics;
        let gap = self.timeline.content(now, events);
        let first = gap.is_none();
        // The time without a server does not count as a gap of the server that continues the stream.
        let parts = self.parts.as_mut();
        let begins = parts.is_some_and(|parts| std::mem::take(&mut parts.begins));
        let gap = gap.filter(|_| !begins);
        if first {
            // A generation is not charged for the time that an earlier attempt took to fail.
            let after = now.saturating_duration_since(self.attempted);
            metrics.first_event(self.answering, after);
        }
        metrics.gaps(self.answering, gap, events - 1);
        let zeros = u32::try_from(events - 1).unwrap_or(u32::MAX);
        self.gap_sample.add(gap, zeros, fastrand::f64);
        if first {
            self.count_answer(now);
            self.first_answers();
            self.retry_over(Some(false));
            self.compare_first_event(now);
        }
    }

    /// Records the model of an event stream, if it is not known yet and an event's `data` names it. Not for every event: it
    /// searches the data.
    pub fn find_model(&mut self, data: &[u8]) {
        if self.model.is_none() {
            self.model = sse::model(data);
        }
    }

    /// Records the token counts and the model of a unary response, if `data` is its whole body, as it nearly always is.
    pub fn unary(&mut self, data: &[u8]) {
        let whole = self.timeline.bytes() == data.len() as u64;
        if !whole || self.is_sse || self.api == Api::Other || self.status != Some(StatusCode::OK) {
            return;
        }
        if let Some(usage) = sse::usage_of_json_body(data) {
            self.usage = usage;
        }
        self.find_model(data);
    }

    /// Forgets what a response said of itself, because the client gets another one instead.
    pub fn forget_answer(&mut self) {
        self.model = None;
        self.usage = Usage::default();
    }

    /// Records what went wrong, for the access line. Keeps the first reason.
    pub fn because(&mut self, why: impl Into<Box<str>>) {
        self.why.get_or_insert(why.into());
    }

    /// Records that the client did not get the last bytes.
    pub fn not_delivered(&mut self) {
        if let Some(End::Eof) = self.end {
            self.end = Some(End::Gone);
        }
    }

    /// Records how the body ended. Keeps the first end.
    pub fn ended(&mut self, end: End) {
        self.end.get_or_insert(end);
    }
}

/// A host without descriptors or ports fails both generations alike.
const fn is_of_server(cause: Cause) -> bool {
    !matches!(cause, Cause::Local | Cause::LocalPorts)
}

/// The trace ID of the W3C trace context (`traceparent`: version-traceid-parentid-flags).
pub fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(TRACEPARENT)?.to_str().ok()?;
    let id = value.split('-').nth(1)?;
    (id.len() == 32 && id.bytes().any(|digit| digit != b'0')).then_some(id)
}
