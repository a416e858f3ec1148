//! OpenTelemetry traces (OTLP): a server span for each exchange and below it a client span for each attempt. Off unless it is
//! asked for.
//!
//! While an exchange lives there is nothing but its [`Span`]: ids and moments. What it says is made at its end, from the same
//! record as the access line, and goes to a queue that loses spans rather than wait. So nothing here locks or waits on the
//! way of a request. Bodies, paths that are not known and header values are not in it.

mod context;
mod endpoint;
mod outbox;
mod settings;
mod span;

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanKind, TraceContextExt, TraceId, TraceState};
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample,
};

pub use self::context::TRACEPARENT;
use self::context::{Parent, TRACESTATE};
pub use self::endpoint::{BadEndpoint, Endpoint};
pub use self::outbox::Counts;
use self::outbox::Outbox;
pub use self::settings::{Error, Settings};
pub use self::span::Span;
use super::access::Line;
use crate::split::Generation;

/// Makes the spans of a process and sends them.
#[derive(Debug)]
pub struct Tracer {
    sampler: Sampler,
    outbox: Outbox,
}

impl Tracer {
    /// Makes one that sends from now on, in the background. Call it on the runtime that is to send.
    ///
    /// # Errors
    /// When the settings, or what the environment adds to them, cannot be used. Whether a collector is there is not asked.
    pub fn start(settings: &Settings, counts: Counts) -> Result<Arc<Self>, Error> {
        let outbox = Outbox::open(settings, counts)?;
        let sampler = settings.sampler.clone();
        tracing::info!(endpoint = %settings.endpoint, ?sampler, "sending traces");
        Ok(Arc::new(Self { sampler, outbox }))
    }

    /// An exchange begins: joins it to the trace that `headers` tell of, or begins one, and makes `headers` tell of it to who
    /// gets them next. `None` when it is not sampled.
    pub fn begin(
        &self,
        headers: &mut HeaderMap,
        generation: Generation,
        now: Instant,
    ) -> Option<Box<Span>> {
        let ids = RandomIdGenerator::default();
        let parent = context::parent(headers);
        if parent.is_none() {
            // It belongs to the trace that is not known (Trace Context §3.3.1.1).
            headers.remove(TRACESTATE);
        }
        let trace = parent.map_or_else(|| ids.new_trace_id(), |parent| parent.trace);
        let sampled = self.samples(parent, trace);
        let flags = parent.map(|parent| parent.flags).unwrap_or_default();
        let flags = flags.with_sampled(sampled);
        if !sampled {
            let traceparent = context::traceparent(trace, ids.new_span_id(), flags);
            headers.insert(TRACEPARENT, traceparent);
            return None;
        }
        let state = context::state(headers);
        let context = SpanContext::new(trace, ids.new_span_id(), flags, false, state);
        let parent = parent.map(|parent| parent.span);
        let span = Span::begin(context, parent, generation, now);
        headers.insert(TRACEPARENT, span.traceparent());
        Some(Box::new(span))
    }

    fn samples(&self, parent: Option<Parent>, trace: TraceId) -> bool {
        let parent = parent.map(|Parent { trace, span, flags }| {
            let remote = SpanContext::new(trace, span, flags, true, TraceState::default());
            Context::new().with_remote_span_context(remote)
        });
        let kind = SpanKind::Server;
        let sampling = self
            .sampler
            .should_sample(parent.as_ref(), trace, "", &kind, &[], &[]);
        sampling.decision == SamplingDecision::RecordAndSample
    }

    /// The exchange has ended: sends its spans, soon.
    pub fn end(&self, span: Span, line: &Line<'_>) {
        for span in span.end(line) {
            self.outbox.put(span);
        }
    }

    /// Sends what is left, for at most `limit`. Nothing is sent after it.
    pub async fn shut_down(self: Arc<Self>, limit: Duration) {
        // It blocks, and the connection to the collector may be driven by this very thread.
        let ended = tokio::task::spawn_blocking(move || self.outbox.shut_down(limit)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("not all spans could be sent before the end");
        }
    }
}
