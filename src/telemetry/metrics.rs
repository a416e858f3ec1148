//! The metrics of a proxy: names, closed label sets, and handles that the request path only has to touch.

mod reading;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

#[cfg(target_os = "linux")]
use prometheus::process_collector::ProcessCollector;

pub use self::reading::Distribution;
use super::{Window, trace};
use crate::rescue::Cause;
use crate::split::{Assignment, Generation, Reason};
use crate::sse::{Api, Outcome, Usage};

/// Bucket bounds of the time to the first event, in seconds: a cached prompt to a long queue.
const FIRST_EVENT_BUCKETS: [f64; 17] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0,
    64.0,
];
/// Bucket bounds of the gaps between events, in seconds: several events in one read to a stall.
const GAP_BUCKETS: [f64; 17] = [
    0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5,
    1.0, 4.0, 16.0,
];
/// Bucket bounds of how long streams last, in seconds: a short answer to a session of hours.
const STREAM_BUCKETS: [f64; 17] = [
    0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0,
    7200.0, 14400.0,
];
/// Bucket bounds of delays inside the process, in seconds.
const DELAY_BUCKETS: [f64; 11] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.03, 0.1, 0.5, 2.0,
];

/// Why something was refused before it became an exchange with an upstream. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    MalformedHead,
    HeadTooLarge,
    HeadTimeout,
    BodyTooLarge,
    TooManyRequests,
    Loop,
}

impl Reject {
    pub const ALL: [Self; 6] = [
        Self::MalformedHead,
        Self::HeadTooLarge,
        Self::HeadTimeout,
        Self::BodyTooLarge,
        Self::TooManyRequests,
        Self::Loop,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MalformedHead => "malformed_head",
            Self::HeadTooLarge => "head_too_large",
            Self::HeadTimeout => "head_timeout",
            Self::BodyTooLarge => "body_too_large",
            Self::TooManyRequests => "too_many_requests",
            Self::Loop => "loop",
        }
    }
}

/// What is only known when somebody asks for the metrics.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The share of new that the plan wants, 0 to 1.
    pub wanted: f64,
    pub epoch: u64,
    /// Which edit of its resource the plan is (`metadata.generation`); 0 where edits are not counted.
    pub plan_generation: i64,
    pub plan_age: Duration,
    /// How long the source of plans has been out of reach; zero while it is not.
    pub source_lost: Duration,
    /// Updates that do nothing, since another one rules.
    pub conflicts: usize,
    /// Healthy and all endpoints, per generation.
    pub endpoints: [(usize, usize); 2],
}

/// The handles of one generation.
struct Side {
    open_streams: IntGauge,
    first_event: Histogram,
    gap: Histogram,
    stream: Histogram,
    events: IntCounter,
    bytes: IntCounter,
    prompt_tokens: IntCounter,
    completion_tokens: IntCounter,
}

const COMBINATIONS: usize =
    Generation::ALL.len() * Reason::ALL.len() * Api::ALL.len() * Outcome::ALL.len();

/// All metrics of a proxy.
pub struct Metrics {
    registry: Registry,
    started: Instant,
    /// Assignments of the last minute.
    pub window: Window,
    requests: IntCounterVec,
    /// Resolved at first use: most of the combinations never happen.
    resolved: [OnceLock<IntCounter>; COMBINATIONS],
    sides: [Side; 2],
    saves: Vec<IntCounter>,
    rejects: Vec<IntCounter>,
    pub retries_refused: IntCounter,
    pub plans_rejected: IntCounter,
    pub plan_apply: Histogram,
    pub loop_lag: Histogram,
    pub spans: trace::Counts,
    split: GaugeVec,
    plan_epoch: IntGauge,
    plan_generation: IntGauge,
    plan_age: Gauge,
    source_lost: Gauge,
    conflicts: IntGauge,
    endpoints: IntGaugeVec,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let by_generation = Registered(&registry);
        let first_event = by_generation.histograms(
            "crossfade_time_to_first_event_seconds",
            "From the attempt to the first event with content, by the generation that answered",
            &FIRST_EVENT_BUCKETS,
        );
        let gap = by_generation.histograms(
            "crossfade_inter_event_seconds",
            "Every gap between two events with content",
            &GAP_BUCKETS,
        );
        let stream = by_generation.histograms(
            "crossfade_stream_duration_seconds",
            "From the attempt to the end of an event stream, however it ended, by the generation that answered",
            &STREAM_BUCKETS,
        );
        let open = by_generation.add(IntGaugeVec::new(
            Opts::new("crossfade_open_streams", "Exchanges that are open now"),
            &["generation"],
        ));
        let events = by_generation.counters(
            "crossfade_events_total",
            "Events with content that were forwarded",
            &["generation"],
        );
        let bytes = by_generation.counters(
            "crossfade_response_bytes_total",
            "Bytes of answers' bodies that were forwarded",
            &["generation"],
        );
        let tokens = by_generation.counters(
            "crossfade_tokens_total",
            "Tokens as the answers' usage reports them",
            &["generation", "kind"],
        );
        let sides = Generation::ALL.map(|generation| {
            let label = [generation.as_str()];
            Side {
                open_streams: open.with_label_values(&label),
                first_event: first_event.with_label_values(&label),
                gap: gap.with_label_values(&label),
                stream: stream.with_label_values(&label),
                events: events.with_label_values(&label),
                bytes: bytes.with_label_values(&label),
                prompt_tokens: tokens.with_label_values(&[generation.as_str(), "prompt"]),
                completion_tokens: tokens.with_label_values(&[generation.as_str(), "completion"]),
            }
        });
        let saves = by_generation.counters(
            "crossfade_saves_total",
            "Requests that another place answered after their first one failed, by why it failed",
            &["cause"],
        );
        let rejects = by_generation.counters(
            "crossfade_rejected_requests_total",
            "Requests refused before any upstream saw them",
            &["cause"],
        );
        let spans = by_generation.counters(
            "crossfade_spans_total",
            "Spans of traces: exported to the collector, failed to be, dropped for want of room",
            &["result"],
        );
        let build = by_generation.add(IntGaugeVec::new(
            Opts::new("crossfade_build_info", "Always 1; the version is the label"),
            &["version"],
        ));
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        #[cfg(target_os = "linux")]
        registry
            .register(Box::new(ProcessCollector::for_self()))
            .expect("each name is registered once");
        Self {
            started: Instant::now(),
            window: Window::default(),
            requests: by_generation.counters(
                "crossfade_requests_total",
                "Exchanges that ended: generation and reason of the assignment, API family, outcome",
                &["generation", "reason", "class", "outcome"],
            ),
            resolved: [const { OnceLock::new() }; COMBINATIONS],
            sides,
            saves: Cause::ALL.map(|cause| saves.with_label_values(&[cause.as_str()])).into(),
            rejects: Reject::ALL.map(|cause| rejects.with_label_values(&[cause.as_str()])).into(),
            retries_refused: by_generation.add(IntCounter::new(
                "crossfade_retries_refused_total",
                "Saves that the retry budget did not allow",
            )),
            plans_rejected: by_generation.add(IntCounter::new(
                "crossfade_plans_rejected_total",
                "Plans that were refused; the last good one stayed in force",
            )),
            plan_apply: by_generation.histogram(
                "crossfade_plan_apply_seconds",
                "From the news of a plan to its being in force",
            ),
            loop_lag: by_generation.histogram(
                "crossfade_event_loop_lag_seconds",
                "How much later than due a timer of a proxy thread fired",
            ),
            spans: trace::Counts {
                exported: spans.with_label_values(&["exported"]),
                failed: spans.with_label_values(&["failed"]),
                dropped: spans.with_label_values(&["dropped"]),
            },
            split: by_generation.add(GaugeVec::new(
                Opts::new(
                    "crossfade_split_ratio",
                    "Share of new: wanted by the plan, and observed among the first assignments open to the split in the last 60 s",
                ),
                &["kind"],
            )),
            plan_epoch: by_generation.add(IntGauge::new(
                "crossfade_plan_epoch",
                "Plans put in force by this process",
            )),
            plan_generation: by_generation.add(IntGauge::new(
                "crossfade_plan_generation",
                "Edit of the resource (metadata.generation) that is in force; 0 without one",
            )),
            plan_age: by_generation.add(Gauge::new(
                "crossfade_plan_age_seconds",
                "Time since the plan in force came in force",
            )),
            source_lost: by_generation.add(Gauge::new(
                "crossfade_plan_source_lost_seconds",
                "Time since the API server that tells the plan was last heard; 0 while it answers, and without one",
            )),
            conflicts: by_generation.add(IntGauge::new(
                "crossfade_plan_conflicts",
                "Updates of this deployment in the cluster that do nothing, since another one rules",
            )),
            endpoints: by_generation.add(IntGaugeVec::new(
                Opts::new("crossfade_pool_endpoints", "Known endpoints by health"),
                &["generation", "state"],
            )),
            registry,
        }
    }
}

/// Makes collectors and registers them; the names are constants of this file, so neither can fail.
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

    fn histograms(&self, name: &str, help: &str, buckets: &[f64]) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.add(HistogramVec::new(options, &["generation"]))
    }

    fn histogram(&self, name: &str, help: &str) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(DELAY_BUCKETS.to_vec());
        self.add(Histogram::with_opts(options))
    }
}

impl Metrics {
    /// Seconds since the process began to count.
    #[must_use]
    pub fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_secs()
    }

    fn side(&self, generation: Generation) -> &Side {
        &self.sides[generation.index()]
    }

    pub fn opened(&self, generation: Generation) {
        self.side(generation).open_streams.inc();
    }

    pub fn closed(&self, generation: Generation) {
        self.side(generation).open_streams.dec();
    }

    #[must_use]
    pub fn open_streams(&self, generation: Generation) -> i64 {
        self.side(generation).open_streams.get()
    }

    pub fn first_event(&self, generation: Generation, after: Duration) {
        self.side(generation)
            .first_event
            .observe(after.as_secs_f64());
    }

    pub fn gap(&self, generation: Generation, gap: Duration) {
        self.side(generation).gap.observe(gap.as_secs_f64());
    }

    /// An event stream ended.
    pub fn streamed(&self, generation: Generation, lasted: Duration) {
        self.side(generation).stream.observe(lasted.as_secs_f64());
    }

    /// An exchange ended.
    pub fn ended(&self, assignment: Assignment, class: Api, outcome: Outcome) {
        let index = ((assignment.generation.index() * Reason::ALL.len()
            + assignment.reason as usize)
            * Api::ALL.len()
            + class as usize)
            * Outcome::ALL.len()
            + outcome as usize;
        self.resolved[index]
            .get_or_init(|| {
                self.requests.with_label_values(&[
                    assignment.generation.as_str(),
                    assignment.reason.as_str(),
                    class.as_str(),
                    outcome.as_str(),
                ])
            })
            .inc();
    }

    /// What a generation delivered in one exchange.
    pub fn delivered(&self, generation: Generation, events: u64, bytes: u64, usage: Usage) {
        let side = self.side(generation);
        for (counter, by) in [
            (&side.events, events),
            (&side.bytes, bytes),
            (&side.prompt_tokens, usage.prompt_tokens),
            (&side.completion_tokens, usage.completion_tokens),
        ] {
            // Most exchanges lack some of them, and a counter is shared by all threads.
            if by > 0 {
                counter.inc_by(by);
            }
        }
    }

    pub fn saved(&self, cause: Cause) {
        self.saves[cause as usize].inc();
    }

    pub fn rejected(&self, cause: Reject) {
        self.rejects[cause as usize].inc();
    }

    /// The text that `/metrics` answers (Prometheus text format 0.0.4).
    #[must_use]
    pub fn render(&self, observed: &Observed) -> Vec<u8> {
        self.split
            .with_label_values(&["wanted"])
            .set(observed.wanted);
        match self.window.share(self.second(Instant::now())) {
            Some(share) => self.split.with_label_values(&["observed"]).set(share),
            // Absent rather than a made-up number. An error only says that it was absent already.
            None => drop(self.split.remove_label_values(&["observed"])),
        }
        self.plan_epoch.set(observed.epoch.cast_signed());
        self.plan_generation.set(observed.plan_generation);
        self.plan_age.set(observed.plan_age.as_secs_f64());
        self.source_lost.set(observed.source_lost.as_secs_f64());
        self.conflicts
            .set(i64::try_from(observed.conflicts).unwrap_or(i64::MAX));
        for generation in Generation::ALL {
            let (healthy, all) = observed.endpoints[generation.index()];
            for (state, count) in [("healthy", healthy), ("ejected", all - healthy)] {
                self.endpoints
                    .with_label_values(&[generation.as_str(), state])
                    .set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&self.registry.gather(), &mut text)
            .expect("a Vec takes every write and the families are valid");
        text
    }
}
