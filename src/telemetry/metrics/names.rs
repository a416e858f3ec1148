//! Names, help texts and buckets of all metrics. Each is created and registered here, once.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Instant;

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

#[cfg(target_os = "linux")]
use prometheus::process_collector::ProcessCollector;

use super::{COMBINATIONS, GENERATION_PAIRS, GenerationMetrics, Metrics, Reject, Timeout};
use crate::continuation;
use crate::failover::Cause;
use crate::memory::Purpose;
use crate::split::Generation;
use crate::telemetry::latency::{self, Exposed, FIRST_EVENT_BOUNDS, GAP_BOUNDS};
use crate::telemetry::recent::Windows;
use crate::telemetry::strata::Strata;
use crate::telemetry::{Window, trace};

/// Buckets of stream durations, in seconds: from a short response to a session of hours.
const STREAM_BUCKETS: [f64; 17] = [
    0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0,
    7200.0, 14400.0,
];
/// Buckets of delays inside the process, in seconds.
const DELAY_BUCKETS: [f64; 11] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.03, 0.1, 0.5, 2.0,
];

/// Buckets of the time in which another server takes over a stream, in seconds: its prefill takes most of it.
const TAKEOVER_BUCKETS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0,
];

/// Dropped lines, by kind. All proxies of a process register this one, since they share one standard output.
#[must_use]
pub fn dropped_lines() -> IntCounterVec {
    static DROPPED: LazyLock<IntCounterVec> = LazyLock::new(|| {
        let options = Opts::new(
            "crossfade_log_lines_dropped_total",
            "Lines dropped because standard output was too slow or closed: access lines and logs",
        );
        IntCounterVec::new(options, &["kind"]).expect("the name and label are valid")
    });
    DROPPED.clone()
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let by_generation = Registered(&registry);
        let first_event = by_generation.latencies(
            "crossfade_time_to_first_event_seconds",
            "Time from the attempt to the first event with content, by the generation that answered",
            &FIRST_EVENT_BOUNDS,
        );
        let gap = by_generation.latencies(
            "crossfade_inter_event_seconds",
            "Time between two consecutive events that crossfade_events_total counts",
            &GAP_BOUNDS,
        );
        let stream = by_generation.histograms(
            "crossfade_stream_duration_seconds",
            "Time from the attempt to the end of an event stream, however it ended, by the generation that answered",
            &STREAM_BUCKETS,
        );
        let open = by_generation.add(IntGaugeVec::new(
            Opts::new(
                "crossfade_open_streams",
                "Open exchanges, by the generation that currently serves them",
            ),
            &["generation"],
        ));
        let events = by_generation.counters(
            "crossfade_events_total",
            "Forwarded events, starting with the first content, without errors and the terminal event",
            &["generation"],
        );
        let bytes = by_generation.counters(
            "crossfade_response_bytes_total",
            "Forwarded bytes of response bodies",
            &["generation"],
        );
        let tokens = by_generation.counters(
            "crossfade_tokens_total",
            "Tokens, as reported in the `usage` field of responses",
            &["generation", "kind"],
        );
        let encoded = by_generation.counters(
            "crossfade_encoded_streams_total",
            "Event streams that arrived compressed although the request did not allow it; forwarded without failover and error events",
            &["generation"],
        );
        let generations = Generation::ALL.map(|generation| {
            let label = [generation.as_str()];
            GenerationMetrics {
                open: AtomicI64::new(0),
                open_streams: open.with_label_values(&label),
                first_event: Arc::clone(&first_event[generation.index()]),
                gap: Arc::clone(&gap[generation.index()]),
                stream: stream.with_label_values(&label),
                events: events.with_label_values(&label),
                bytes: bytes.with_label_values(&label),
                prompt_tokens: tokens.with_label_values(&[generation.as_str(), "prompt"]),
                completion_tokens: tokens.with_label_values(&[generation.as_str(), "completion"]),
                encoded_streams: encoded.with_label_values(&label),
                encoded_logged: AtomicBool::new(false),
                completed_by_another: AtomicU64::default(),
            }
        });
        let recovered = by_generation.counters(
            "crossfade_recovered_requests_total",
            "Requests recovered by failover: the generation and the cause of the last failed attempt, and the generation that answered",
            &["from", "to", "cause"],
        );
        let failed_attempts = by_generation.counters(
            "crossfade_failed_attempts_total",
            "Failed attempts to answer a request or to continue a stream, and broken streams that other servers were asked to continue, by the generation that failed",
            &["generation", "cause"],
        );
        let rejects = by_generation.counters(
            "crossfade_rejected_requests_total",
            "Requests rejected before a model server had received the whole request, or abandoned by their clients before they were assigned",
            &["cause"],
        );
        let timeouts = by_generation.counters(
            "crossfade_client_timeouts_total",
            "Clients disconnected for exceeding a timeout after their request had begun, by the timeout",
            &["limit"],
        );
        let spans = by_generation.counters(
            "crossfade_spans_total",
            "Trace spans: exported to the collector, failed to export, dropped because the queue was full",
            &["result"],
        );
        let memory_bytes = by_generation.add(IntGaugeVec::new(
            Opts::new(
                "crossfade_memory_bytes",
                "Memory held for requests and responses, and the budget for it (`--replay-budget-bytes`)",
            ),
            &["kind"],
        ));
        let memory_refused = by_generation.counters(
            "crossfade_memory_refused_total",
            "Allocations denied by the memory budget, by purpose",
            &["purpose"],
        );
        let continuations = by_generation.counters(
            "crossfade_continuations_total",
            "Streams that broke after their first content or were due to be moved: whether another server continued them, and \
             the cause of the break or the reason why not",
            &["outcome", "reason"],
        );
        for cause in continuation::ContinuationCause::ALL {
            let continued = continuation::ContinuationOutcome::Continued.as_str();
            continuations.with_label_values(&[continued, cause.as_str()]);
        }
        for kind in ["used", "budget"] {
            memory_bytes.with_label_values(&[kind]).set(0);
        }
        for purpose in Purpose::ALL {
            memory_refused.with_label_values(&[purpose.as_str()]);
        }
        by_generation.add(Ok(dropped_lines()));
        let build = by_generation.add(IntGaugeVec::new(
            Opts::new("crossfade_build_info", "Always 1; the version is the label"),
            &["version"],
        ));
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        #[cfg(target_os = "linux")]
        registry
            .register(Box::new(ProcessCollector::for_self()))
            .expect("each name is registered once");
        let started = Instant::now();
        let metrics = Self {
            started,
            window: Window::default(),
            answered: Window::default(),
            used_until: AtomicU64::new(0),
            arriving: AtomicUsize::default(),
            windows: Windows::new(started),
            requests: by_generation.counters(
                "crossfade_requests_total",
                "Exchanges that have ended: generation and reason of the assignment, API family, outcome",
                &["generation", "reason", "class", "outcome"],
            ),
            resolved: [const { OnceLock::new() }; COMBINATIONS],
            generations,
            strata: Strata::new(started),
            sessions: Default::default(),
            recovered,
            recovered_by: [const { OnceLock::new() }; GENERATION_PAIRS * Cause::ALL.len()],
            failed_attempts: Generation::ALL.map(|generation| {
                let counter = |cause: Cause| {
                    failed_attempts.with_label_values(&[generation.as_str(), cause.as_str()])
                };
                Cause::ALL.map(counter).into()
            }),
            rejects: Reject::ALL.map(|cause| rejects.with_label_values(&[cause.as_str()])).into(),
            timeouts: Timeout::ALL.map(|limit| timeouts.with_label_values(&[limit.as_str()])).into(),
            continuations,
            continuation_gap: by_generation.add(Histogram::with_opts(
                HistogramOpts::new(
                    "crossfade_continuation_gap_seconds",
                    "Time from when a stream breaks, or starts to move, until the first content from the server that continues it",
                )
                .buckets(TAKEOVER_BUCKETS.to_vec()),
            )),
            retries_refused: by_generation.add(IntCounter::new(
                "crossfade_retries_refused_total",
                "Retries denied by the retry budget",
            )),
            plans_rejected: by_generation.add(IntCounter::new(
                "crossfade_plans_rejected_total",
                "Plans that were rejected, or could no longer be read; the last good plan stayed in force",
            )),
            plan_apply: by_generation.histogram(
                "crossfade_plan_apply_seconds",
                "Time from receiving a plan until it is in force",
            ),
            loop_lag: by_generation.histogram(
                "crossfade_event_loop_lag_seconds",
                "Delay of a timer on a proxy thread",
            ),
            connections: by_generation.add(IntGauge::new(
                "crossfade_connections",
                "Open client connections",
            )),
            connections_refused: by_generation.add(IntCounter::new(
                "crossfade_connections_refused_total",
                "Client connections closed immediately because of --max-connections or the open file limit",
            )),
            accept_errors: by_generation.add(IntCounter::new(
                "crossfade_accept_errors_total",
                "Errors while accepting client connections",
            )),
            spans: trace::Counts {
                exported: spans.with_label_values(&["exported"]),
                failed: spans.with_label_values(&["failed"]),
                dropped: spans.with_label_values(&["dropped"]),
            },
            split: by_generation.add(GaugeVec::new(
                Opts::new(
                    "crossfade_split_ratio",
                    "Share of new: wanted by the plan; observed among the assignments, or answered among the responses, of the last 60 s",
                ),
                &["kind"],
            )),
            plan_epoch: by_generation.add(IntGauge::new(
                "crossfade_plan_epoch",
                "Number of plans that this process has applied",
            )),
            plan_generation: by_generation.add(IntGauge::new(
                "crossfade_plan_generation",
                "The metadata.generation of the plan in force; 0 if it has none",
            )),
            plan_age: by_generation.add(Gauge::new(
                "crossfade_plan_age_seconds",
                "Age of the plan in force",
            )),
            source_lost: by_generation.add(Gauge::new(
                "crossfade_plan_source_lost_seconds",
                "Time since the last contact with the API server that the plan comes from; 0 while it responds or if there is none",
            )),
            conflicts: by_generation.add(IntGauge::new(
                "crossfade_plan_conflicts",
                "Updates of this deployment without effect because another one takes precedence",
            )),
            analysis: by_generation.add(IntGaugeVec::new(
                Opts::new(
                    "crossfade_analysis_verdict",
                    "1 for the verdict on new, if this proxy evaluates it on its own; absent without an analysis",
                ),
                &["verdict"],
            )),
            analysis_reason: by_generation.add(IntGaugeVec::new(
                Opts::new(
                    "crossfade_analysis_reason",
                    "1 for the reason of the verdict on new: the metric by which new fails, or what is missing for a verdict",
                ),
                &["reason"],
            )),
            endpoints: by_generation.add(IntGaugeVec::new(
                Opts::new("crossfade_pool_endpoints", "Known endpoints by health"),
                &["generation", "state"],
            )),
            capability: by_generation.add(IntGaugeVec::new(
                Opts::new(
                    "crossfade_continuation_capability",
                    "Pairs of endpoint and model, by API, and by whether the endpoint has proven that it can continue a text; \
                     0 while the plan does not enable continuation",
                ),
                &["generation", "api", "state"],
            )),
            moving: by_generation.add(IntGauge::new(
                "crossfade_moving_streams",
                "Streams on old that are waiting to be moved to new",
            )),
            memory: OnceLock::new(),
            memory_bytes,
            memory_refused,
            registry,
        };
        // They exist from the start, so that a rate includes the first one. Old recovers its own requests through its sibling
        // pods.
        for (from, to) in [
            (Generation::Old, Generation::New),
            (Generation::New, Generation::Old),
            (Generation::Old, Generation::Old),
        ] {
            for cause in Cause::ALL {
                metrics.recovered_by(from, to, cause);
            }
        }
        metrics
    }
}

/// Creates collectors and registers them. The names are constants of this file, so neither can fail.
struct Registered<'a>(&'a Registry);

impl Registered<'_> {
    fn add<C: Collector + Clone + 'static>(&self, collector: prometheus::Result<C>) -> C {
        let collector = collector.expect("the name and labels are valid");
        self.0
            .register(Box::new(collector.clone()))
            .expect("each name is registered once");
        collector
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// A histogram of latencies for each generation.
    fn latencies(
        &self,
        name: &str,
        help: &str,
        bounds: &'static [f64],
    ) -> [Arc<latency::Histogram>; 2] {
        let generations: [Arc<latency::Histogram>; 2] = Default::default();
        let exposed = Exposed::new(name, help, bounds, generations.clone());
        let exposed = exposed.expect("the name and labels are valid");
        self.0
            .register(Box::new(exposed))
            .expect("each name is registered once");
        generations
    }

    fn histograms(&self, name: &str, help: &str, buckets: &[f64]) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.add(HistogramVec::new(options, &["generation"]))
    }

    fn histogram(&self, name: &str, help: &str) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(DELAY_BUCKETS.to_vec());
        self.add(Histogram::with_opts(options))
    }
}
