//! OpenTelemetry traces (OTLP): a server span for each exchange with a client span for each attempt. Off by default.
//!
//! While an exchange runs, there is only its [`Span`]: IDs and times. The rest is built at the end, from the same record as the
//! access line, and goes to a queue that drops spans instead of waiting, so nothing here locks or waits on the request path.
//! Bodies, unknown paths and header values are not included.

mod context;
mod endpoint;
#[cfg(feature = "otlp")]
mod exporter;
#[cfg(not(feature = "otlp"))]
mod no_exporter;
mod protocol;
mod queue;
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
pub use self::protocol::Protocol;
pub use self::queue::Counts;
use self::queue::SpanQueue;
pub use self::settings::{Error, TraceSettings};
pub use self::span::Span;
use super::access::Line;
use crate::split::Generation;

/// Builds and exports the spans of a process.
#[derive(Debug)]
pub struct Tracer {
    sampler: Sampler,
    queue: SpanQueue,
}

impl Tracer {
    /// Starts exporting in the background. Call it on the runtime that should export.
    ///
    /// # Errors
    /// When the settings or the environment are invalid. The collector need not be reachable.
    pub fn start(settings: &TraceSettings, counts: Counts) -> Result<Arc<Self>, Error> {
        let queue = SpanQueue::open(settings, counts)?;
        let sampler = settings.sampler.clone();
        tracing::info!(url = settings.url()?, protocol = %settings.protocol, ?sampler, "exporting traces");
        Ok(Arc::new(Self { sampler, queue }))
    }

    /// Starts the span of an exchange: joins the trace in `headers` or begins one, and updates `headers` for the next hop.
    /// `None` if it is not sampled.
    pub fn begin(
        &self,
        headers: &mut HeaderMap,
        generation: Generation,
        now: Instant,
    ) -> Option<Box<Span>> {
        let ids = RandomIdGenerator::default();
        let parent = context::parent(headers);
        if parent.is_none() {
            // `tracestate` belongs to the unknown trace (Trace Context §3.3.1.1).
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

    /// Ends the span of an exchange and queues it.
    pub fn end(&self, span: Span, line: &Line<'_>) {
        for span in span.end(line) {
            self.queue.put(span);
        }
    }

    /// Exports what is queued, for at most `limit`, and stops.
    pub async fn shut_down(self: Arc<Self>, limit: Duration) {
        // It blocks, and this thread may drive the connection to the collector.
        let ended = tokio::task::spawn_blocking(move || self.queue.shut_down(limit)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("some spans could not be exported before the process ended");
        }
    }
}
