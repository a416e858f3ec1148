//! The trace data of a running exchange, and the spans that are built from it at the end.
//!
//! Names and attributes follow OpenTelemetry's semantic conventions where they exist; others start with `crossfade.`. Every
//! value is a number or from a closed set, except for the model's name and the short error description.

use std::borrow::Cow;
use std::time::{Duration, Instant, SystemTime};

use http::HeaderValue;
use opentelemetry::trace::{Event, SpanContext, SpanId, SpanKind, Status, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use opentelemetry_semantic_conventions::attribute;

use super::context;
use crate::failover::Cause;
use crate::split::{Assignment, Generation, Reason};
use crate::sse::{Api, Outcome, Usage};
use crate::telemetry::access::Line;

/// The conventions for generative AI.
#[expect(
    deprecated,
    reason = "they have moved to a repository that has no crate yet; the names stay"
)]
mod gen_ai {
    use super::attribute;

    pub const OPERATION_NAME: &str = attribute::GEN_AI_OPERATION_NAME;
    pub const RESPONSE_MODEL: &str = attribute::GEN_AI_RESPONSE_MODEL;
    pub const USAGE_INPUT_TOKENS: &str = attribute::GEN_AI_USAGE_INPUT_TOKENS;
    pub const USAGE_OUTPUT_TOKENS: &str = attribute::GEN_AI_USAGE_OUTPUT_TOKENS;
}

/// Maximum length of an error description, in characters.
const LONGEST: usize = 200;

/// The span of a running exchange.
#[derive(Debug)]
pub struct Span {
    context: SpanContext,
    parent: Option<SpanId>,
    /// When it started, by the wall clock and by the monotonic one.
    began: SystemTime,
    started: Instant,
    attempts: Vec<Attempt>,
    /// The index of the attempt whose response the client gets. Any later one that has not ended may take over.
    current: usize,
}

/// One attempt. Times count from the start of the exchange.
#[derive(Debug)]
struct Attempt {
    id: SpanId,
    generation: Generation,
    began: Duration,
    /// When it ended, if before the exchange, and why if it failed.
    ended: Option<(Duration, Option<Cause>)>,
}

impl Attempt {
    fn new(generation: Generation, began: Duration) -> Self {
        Self {
            id: RandomIdGenerator::default().new_span_id(),
            generation,
            began,
            ended: None,
        }
    }
}

impl Span {
    /// `context` is the span's own, `parent` the caller's span.
    pub(super) fn begin(
        context: SpanContext,
        parent: Option<SpanId>,
        generation: Generation,
        now: Instant,
    ) -> Self {
        Self {
            context,
            parent,
            // `now` is a little in the past.
            began: SystemTime::now() - now.elapsed(),
            started: now,
            attempts: vec![Attempt::new(generation, Duration::ZERO)],
            current: 0,
        }
    }

    /// The current attempt has failed and another one begins. Returns its `traceparent`.
    pub fn retried(&mut self, generation: Generation, cause: Cause, now: Instant) -> HeaderValue {
        self.end_attempt(self.current, Some(cause), now);
        let traceparent = self.begin_attempt(generation, now);
        self.current = self.attempts.len() - 1;
        traceparent
    }

    /// Another attempt begins, which should take over from the current one. Until it does, the current one continues. Returns its
    /// `traceparent`.
    pub fn begin_attempt(&mut self, generation: Generation, now: Instant) -> HeaderValue {
        let began = now.saturating_duration_since(self.started);
        let attempt = Attempt::new(generation, began);
        let traceparent = self.traceparent_of(attempt.id);
        self.attempts.push(attempt);
        traceparent
    }

    /// The attempt that should take over has done so. No effect if there is none.
    pub fn took_over(&mut self, now: Instant) {
        if let Some(pending) = self.pending_attempt() {
            self.end_attempt(self.current, None, now);
            self.current = pending;
        }
    }

    /// The attempt that should take over did not, because of `cause`, or because it was no longer needed. No effect if there is
    /// none.
    pub fn did_not_take_over(&mut self, cause: Option<Cause>, now: Instant) {
        if let Some(pending) = self.pending_attempt() {
            self.end_attempt(pending, cause, now);
        }
    }

    /// The attempt that should take over.
    fn pending_attempt(&self) -> Option<usize> {
        let last = self.attempts.len() - 1;
        (last > self.current && self.attempts[last].ended.is_none()).then_some(last)
    }

    fn end_attempt(&mut self, index: usize, cause: Option<Cause>, now: Instant) {
        let after = now.saturating_duration_since(self.started);
        self.attempts[index].ended = Some((after, cause));
    }

    /// The `traceparent` of the first attempt.
    pub(super) fn traceparent(&self) -> HeaderValue {
        self.traceparent_of(self.attempts[0].id)
    }

    fn traceparent_of(&self, attempt: SpanId) -> HeaderValue {
        let (trace, flags) = (self.context.trace_id(), self.context.trace_flags());
        context::traceparent(trace, attempt, flags)
    }

    /// The finished spans: one per attempt, then that of the exchange.
    pub(super) fn end(self, line: &Line<'_>) -> Vec<SpanData> {
        let mut spans: Vec<_> = (0..self.attempts.len())
            .map(|index| self.of_attempt(index, line))
            .collect();
        spans.push(self.of_exchange(line));
        spans
    }

    fn of_exchange(&self, line: &Line<'_>) -> SpanData {
        let mut attributes = vec![
            KeyValue::new(attribute::HTTP_REQUEST_METHOD, method(line.method)),
            KeyValue::new(attribute::HTTP_RESPONSE_BODY_SIZE, integer(line.bytes)),
            KeyValue::new(
                "crossfade.answered",
                line.answered.map_or("none", Generation::as_str),
            ),
            KeyValue::new("crossfade.class", line.class.as_str()),
            KeyValue::new("crossfade.attempts", i64::from(line.attempts)),
            KeyValue::new("crossfade.outcome", line.outcome.as_str()),
            KeyValue::new("crossfade.events", integer(line.events)),
        ];
        if let Some(Assignment { generation, reason }) = line.assignment {
            attributes.push(KeyValue::new("crossfade.generation", generation.as_str()));
            attributes.push(KeyValue::new("crossfade.reason", reason.as_str()));
        }
        let mut also = |name, value: Option<Value>| {
            attributes.extend(value.map(|value| KeyValue::new(name, value)));
        };
        also(
            attribute::HTTP_RESPONSE_STATUS_CODE,
            line.status.map(|status| i64::from(status).into()),
        );
        let route = route(line);
        also(attribute::HTTP_ROUTE, route.map(Into::into));
        // Only known methods are included: a client's text could identify someone.
        also(
            attribute::URL_PATH,
            route.filter(|route| *route == line.path).map(Into::into),
        );
        also(
            "crossfade.cause",
            line.cause.map(|cause| cause.as_str().into()),
        );
        let first = line.first_event;
        also(
            "crossfade.first_event_seconds",
            first.map(|first| first.as_secs_f64().into()),
        );
        also(
            gen_ai::OPERATION_NAME,
            operation(line.class).map(Into::into),
        );
        also(
            gen_ai::RESPONSE_MODEL,
            line.model.map(|model| model.to_owned().into()),
        );
        let usage = Some(line.usage).filter(|usage| *usage != Usage::default());
        also(
            gen_ai::USAGE_INPUT_TOKENS,
            usage.map(|usage| integer(usage.prompt_tokens).into()),
        );
        also(
            gen_ai::USAGE_OUTPUT_TOKENS,
            usage.map(|usage| integer(usage.completion_tokens).into()),
        );
        also(attribute::ERROR_TYPE, error_type(line));
        let mut events = SpanEvents::default();
        let event = |after| Event::new("first token", self.began + after, Vec::new(), 0);
        events.events.extend(first.map(event));
        SpanData {
            parent_span_id: self.parent.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: self.parent.is_some(),
            events,
            status: status(line),
            attributes,
            ..self.data(
                self.context.span_id(),
                SpanKind::Server,
                Duration::ZERO,
                line,
            )
        }
    }

    fn of_attempt(&self, index: usize, line: &Line<'_>) -> SpanData {
        let attempt = &self.attempts[index];
        let mut attributes = vec![KeyValue::new(
            attribute::HTTP_REQUEST_METHOD,
            method(line.method),
        )];
        // A request for both generations' models belongs to both.
        let is_of_both = line
            .assignment
            .is_some_and(|assignment| assignment.reason == Reason::Models);
        if !is_of_both {
            let generation = attempt.generation.as_str();
            attributes.push(KeyValue::new("crossfade.generation", generation));
        }
        if index > 0 {
            attributes.push(KeyValue::new(
                attribute::HTTP_REQUEST_RESEND_COUNT,
                integer(index as u64),
            ));
        }
        let (ended, error, status) = match attempt.ended {
            Some((ended, None)) => (ended, None, Status::Unset),
            Some((ended, Some(cause))) => {
                attributes.push(KeyValue::new("crossfade.cause", cause.as_str()));
                (
                    ended,
                    Some(cause.as_str().into()),
                    Status::error(cause.as_str()),
                )
            }
            None => (line.duration, error_type(line), status(line)),
        };
        attributes.extend(error.map(|error| KeyValue::new(attribute::ERROR_TYPE, error)));
        SpanData {
            end_time: self.began + ended,
            parent_span_id: self.context.span_id(),
            status,
            attributes,
            ..self.data(attempt.id, SpanKind::Client, attempt.began, line)
        }
    }

    /// The attributes that all spans of the exchange share.
    fn data(&self, id: SpanId, kind: SpanKind, began: Duration, line: &Line<'_>) -> SpanData {
        let context = &self.context;
        let (trace, flags) = (context.trace_id(), context.trace_flags());
        let state: TraceState = context.trace_state().clone();
        SpanData {
            span_context: SpanContext::new(trace, id, flags, false, state),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: kind,
            name: name(line),
            start_time: self.began + began,
            end_time: self.began + line.duration,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        }
    }
}

fn name(line: &Line<'_>) -> Cow<'static, str> {
    let method = match method(line.method) {
        OTHER_METHOD => "HTTP",
        method => method,
    };
    match route(line) {
        Some(route) => format!("{method} {route}").into(),
        None => method.into(),
    }
}

/// Replaces an unknown method, because clients may invent any number of them.
const OTHER_METHOD: &str = "_OTHER";

fn method(method: &str) -> &'static str {
    const KNOWN: [&str; 9] = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT",
    ];
    let known = KNOWN.into_iter().find(|known| *known == method);
    known.unwrap_or(OTHER_METHOD)
}

/// A low-cardinality name of the path: the route of an API family, with any prefix, or a known page of frontends. The operation
/// in the sense of the conventions for generative AI; `None` if it is unknown.
fn operation(api: Api) -> Option<&'static str> {
    match api {
        Api::Chat | Api::Responses | Api::Messages => Some("chat"),
        Api::Completions => Some("text_completion"),
        Api::Other => None,
    }
}

fn route(line: &Line<'_>) -> Option<&'static str> {
    const PAGES: [&str; 9] = [
        "/v1/models",
        "/v1/embeddings",
        "/v1/realtime",
        "/v1/messages/count_tokens",
        "/generate",
        "/inference/v1/generate",
        "/health",
        "/live",
        "/metrics",
    ];
    let page = || match line.path.starts_with("/v1/models/") {
        true => Some("/v1/models/{model}"),
        false => PAGES.into_iter().find(|page| *page == line.path),
    };
    line.class.route().or_else(page)
}

/// As the conventions require: the status if it shows the error, else a word from a closed set.
fn error_type(line: &Line<'_>) -> Option<Value> {
    match line.outcome {
        Outcome::Completed | Outcome::Cancelled => None,
        outcome => match line.status {
            Some(status @ 500..) => Some(status.to_string().into()),
            _ => Some(outcome.as_str().into()),
        },
    }
}

/// A client that disconnects is not a server error.
fn status(line: &Line<'_>) -> Status {
    match line.outcome {
        Outcome::Completed | Outcome::Cancelled => Status::Unset,
        outcome => {
            let why = line.why.unwrap_or(outcome.as_str());
            Status::error(why.chars().take(LONGEST).collect::<String>())
        }
    }
}

fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Assignment;
    use crate::sse::Api;
    use opentelemetry::trace::{TraceFlags, TraceId};

    fn line<'a>(method: &'a str, path: &'a str, class: Api) -> Line<'a> {
        Line {
            client: None,
            request_id: "request-7",
            model: Some("tiny"),
            endpoint: None,
            assignment: Some(Assignment {
                generation: Generation::New,
                reason: Reason::Weighted,
            }),
            answered: Some(Generation::Old),
            method,
            path,
            class,
            status: Some(200),
            attempts: 2,
            cause: Some(Cause::Connect),
            outcome: Outcome::Truncated,
            continued: 0,
            not_continued: None,
            first_event: None,
            duration: Duration::from_secs(3),
            events: 0,
            bytes: 0,
            usage: Usage::default(),
            why: None,
            trace: None,
        }
    }

    fn span(now: Instant) -> Span {
        let (trace, id) = (TraceId::from(1u128), SpanId::from(2u64));
        let flags = TraceFlags::SAMPLED;
        let context = SpanContext::new(trace, id, flags, false, TraceState::default());
        Span::begin(context, None, Generation::New, now)
    }

    #[test]
    fn names_are_few_whatever_clients_ask_for() {
        for (method, path, class, expected) in [
            (
                "POST",
                "/x/v1/chat/completions",
                Api::Chat,
                "POST /v1/chat/completions",
            ),
            ("POST", "/v1/messages", Api::Messages, "POST /v1/messages"),
            ("POST", "/v1/embeddings", Api::Other, "POST /v1/embeddings"),
            ("POST", "/v1/embeddings/x", Api::Other, "POST"),
            (
                "GET",
                "/v1/models/a/b",
                Api::Other,
                "GET /v1/models/{model}",
            ),
            ("GET", "/", Api::Other, "GET"),
            ("get", "/health", Api::Other, "HTTP /health"),
            ("X", "/x", Api::Other, "HTTP"),
        ] {
            assert_eq!(name(&line(method, path, class)), expected);
        }
    }

    #[test]
    fn attempts_follow_one_another_within_the_exchange() {
        let now = Instant::now();
        let mut span = span(now);
        let first = span.traceparent();
        let at = now + Duration::from_secs(1);
        let second = span.retried(Generation::Old, Cause::Connect, at);
        assert_ne!(first, second);
        let began = span.began;
        let spans = span.end(&line("POST", "/v1/completions", Api::Completions));
        let times = spans.iter().map(|span| {
            let after = |time: SystemTime| time.duration_since(began).expect("later").as_secs();
            (after(span.start_time), after(span.end_time))
        });
        assert_eq!(times.collect::<Vec<_>>(), [(0, 1), (1, 3), (0, 3)]);
        let exchange = spans[2].span_context.span_id();
        assert_eq!(spans[0].parent_span_id, exchange);
        assert_eq!(spans[1].parent_span_id, exchange);
        assert_eq!(spans[0].status, Status::error("connect"));
        assert_eq!(spans[1].status, Status::error("truncated"));
    }

    #[test]
    fn an_attempt_that_is_asked_to_take_over_does_not_end_the_current_one() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut span = span(now);
        let first = span.traceparent();
        let pending = span.begin_attempt(Generation::New, at(1));
        assert_ne!(first, pending);
        span.did_not_take_over(Some(Cause::ServerError), at(2));
        span.begin_attempt(Generation::New, at(3));
        span.took_over(at(4));
        // No attempt is pending.
        span.took_over(at(5));
        span.did_not_take_over(Some(Cause::Broken), at(5));
        span.retried(Generation::New, Cause::Broken, at(6));
        let began = span.began;
        let mut line = line("POST", "/v1/completions", Api::Completions);
        line.outcome = Outcome::Completed;
        line.duration = Duration::from_secs(9);
        let spans = span.end(&line);
        let seen = spans.iter().map(|span| {
            let after = |time: SystemTime| time.duration_since(began).expect("later").as_secs();
            let status = span.status.clone();
            (after(span.start_time), after(span.end_time), status)
        });
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [
                (0, 4, Status::Unset),
                (1, 2, Status::error("server_error")),
                (3, 6, Status::error("broken")),
                (6, 9, Status::Unset),
                (0, 9, Status::Unset),
            ]
        );
    }

    #[test]
    fn words_are_cut_and_a_client_that_left_is_no_error() {
        let long = "ä".repeat(1000);
        let mut line = line("POST", "/", Api::Other);
        line.why = Some(&long);
        assert_eq!(status(&line), Status::error("ä".repeat(LONGEST)));
        line.outcome = Outcome::Cancelled;
        assert_eq!((status(&line), error_type(&line)), (Status::Unset, None));
    }
}
