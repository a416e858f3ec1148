//! The metrics of a proxy: closed label sets, and handles that are resolved in advance.

mod names;
mod page;
mod reading;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use prometheus::{
    Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};

pub use self::names::dropped_lines;
pub use self::page::{Observed, ProofCounts};
pub use self::reading::Distribution;
use super::recent::Windows;
use super::sessions::Sessions;
use super::strata::Strata;
use super::{Window, latency, trace};
use crate::continuation;
use crate::failover::Cause;
use crate::memory::Budget;
use crate::split::{Assignment, Generation, Reason};
use crate::sse::{Api, Outcome, Usage};

/// Why crossfade rejected a request, or counts it as abandoned. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    MalformedHead,
    HeadTooLarge,
    HeadTimeout,
    BodyTooLarge,
    BodyTimeout,
    TooManyRequests,
    NoMemory,
    Loop,
    ShuttingDown,
    ClientGone,
}

impl Reject {
    pub const ALL: [Self; 10] = [
        Self::MalformedHead,
        Self::HeadTooLarge,
        Self::HeadTimeout,
        Self::BodyTooLarge,
        Self::BodyTimeout,
        Self::TooManyRequests,
        Self::NoMemory,
        Self::Loop,
        Self::ShuttingDown,
        Self::ClientGone,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MalformedHead => "malformed_head",
            Self::HeadTooLarge => "head_too_large",
            Self::HeadTimeout => "head_timeout",
            Self::BodyTooLarge => "body_too_large",
            Self::BodyTimeout => "body_timeout",
            Self::TooManyRequests => "too_many_requests",
            Self::NoMemory => "no_memory",
            Self::Loop => "loop",
            Self::ShuttingDown => "shutting_down",
            Self::ClientGone => "client_gone",
        }
    }
}

/// A timeout that a client exceeded after its request had begun. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// It stopped sending the request body.
    Body,
    /// It left data unread.
    Write,
    /// Its tunnel was idle.
    TunnelIdle,
}

impl Timeout {
    pub const ALL: [Self; 3] = [Self::Body, Self::Write, Self::TunnelIdle];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Write => "write",
            Self::TunnelIdle => "tunnel_idle",
        }
    }
}

/// The metric handles of one generation.
struct GenerationMetrics {
    /// The count that decisions read; the gauge shows it.
    open: AtomicI64,
    open_streams: IntGauge,
    first_event: Arc<latency::Histogram>,
    gap: Arc<latency::Histogram>,
    stream: Histogram,
    events: IntCounter,
    bytes: IntCounter,
    prompt_tokens: IntCounter,
    completion_tokens: IntCounter,
    encoded_streams: IntCounter,
    /// An encoded stream has been logged.
    encoded_logged: AtomicBool,
    /// Exchanges that were first assigned to it and have been completed although it had failed them.
    completed_by_another: AtomicU64,
}

/// Pairs of generations: where an attempt failed, and who recovered the request.
const GENERATION_PAIRS: usize = Generation::ALL.len() * Generation::ALL.len();

const COMBINATIONS: usize =
    Generation::ALL.len() * Reason::ALL.len() * Api::ALL.len() * Outcome::ALL.len();

/// All metrics of a proxy.
pub struct Metrics {
    registry: Registry,
    started: Instant,
    /// Assignments of the last minute.
    pub window: Window,
    /// Responses in the last minute, by the generation that responded.
    pub answered: Window,
    /// The second after the last request that a client may depend on; 0 if there was none.
    used_until: AtomicU64,
    /// Requests that have arrived in part.
    arriving: AtomicUsize,
    windows: Windows,
    requests: IntCounterVec,
    /// Resolved at first use, because most combinations never occur.
    resolved: [OnceLock<IntCounter>; COMBINATIONS],
    generations: [GenerationMetrics; 2],
    /// The counts for comparing both generations.
    pub strata: Strata,
    pub sessions: Sessions,
    recovered: IntCounterVec,
    /// Resolved at first use, like `resolved`.
    recovered_by: [OnceLock<IntCounter>; GENERATION_PAIRS * Cause::ALL.len()],
    failed_attempts: [Vec<IntCounter>; 2],
    rejects: Vec<IntCounter>,
    timeouts: Vec<IntCounter>,
    continuations: IntCounterVec,
    continuation_gap: Histogram,
    pub retries_refused: IntCounter,
    pub plans_rejected: IntCounter,
    pub plan_apply: Histogram,
    pub loop_lag: Histogram,
    /// Client connections: open, refused, and accept errors.
    pub connections: IntGauge,
    pub connections_refused: IntCounter,
    pub accept_errors: IntCounter,
    pub spans: trace::Counts,
    split: GaugeVec,
    plan_epoch: IntGauge,
    plan_generation: IntGauge,
    plan_age: Gauge,
    source_lost: Gauge,
    conflicts: IntGauge,
    analysis: IntGaugeVec,
    analysis_reason: IntGaugeVec,
    endpoints: IntGaugeVec,
    capability: IntGaugeVec,
    moving: IntGauge,
    /// Present once there is a data plane (the proxy serves).
    memory: OnceLock<Arc<Budget>>,
    memory_bytes: IntGaugeVec,
    memory_refused: IntCounterVec,
}

impl Metrics {
    /// Seconds since the process started counting.
    #[must_use]
    pub fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_secs()
    }

    /// Records a request that a client may depend on.
    pub fn used(&self, now: Instant) {
        let until = self.second(now) + 1;
        // Write only once per second, so that otherwise the threads share the cache line.
        if self.used_until.load(Ordering::Relaxed) < until {
            self.used_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// Records a request that begins to arrive. Call [`Self::arrived`] once for it.
    pub fn arrives(&self) {
        self.arriving.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a request has arrived, or will not arrive.
    pub fn arrived(&self) {
        self.arriving.fetch_sub(1, Ordering::Release);
    }

    /// The time since a client last sent a request that it may depend on, or a part of any request: the actual time is up to a
    /// second longer.
    #[must_use]
    pub fn quiet_for(&self, now: Instant) -> Duration {
        if self.arriving.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        let used_until = Duration::from_secs(self.used_until.load(Ordering::Relaxed));
        let running = now.saturating_duration_since(self.started);
        running.saturating_sub(used_until)
    }

    /// Reports the use of `memory`.
    pub fn watch(&self, memory: &Arc<Budget>) {
        self.memory.get_or_init(|| Arc::clone(memory));
    }

    fn of(&self, generation: Generation) -> &GenerationMetrics {
        &self.generations[generation.index()]
    }

    pub fn opened(&self, generation: Generation) {
        self.of(generation).open.fetch_add(1, Ordering::Relaxed);
    }

    pub fn closed(&self, generation: Generation) {
        self.of(generation).open.fetch_sub(1, Ordering::Relaxed);
    }

    #[must_use]
    pub fn open_streams(&self, generation: Generation) -> i64 {
        self.of(generation).open.load(Ordering::Relaxed)
    }

    pub fn first_event(&self, generation: Generation, after: Duration) {
        self.of(generation).first_event.observe(after);
    }

    /// Events arrived together, `gap` after the previous ones, if any. There are `more` gaps of zero length between them.
    pub fn gaps(&self, generation: Generation, gap: Option<Duration>, more: u64) {
        let gaps = &self.of(generation).gap;
        if let Some(gap) = gap {
            gaps.observe(gap);
        }
        if more > 0 {
            gaps.observe_zeros(more);
        }
    }

    /// An event stream ended.
    pub fn streamed(&self, generation: Generation, lasted: Duration) {
        self.of(generation).stream.observe(lasted.as_secs_f64());
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

    /// The output of a generation in one exchange.
    pub fn delivered(&self, generation: Generation, events: u64, bytes: u64, usage: Usage) {
        let own = self.of(generation);
        for (counter, by) in [
            (&own.events, events),
            (&own.bytes, bytes),
            (&own.prompt_tokens, usage.prompt_tokens),
            (&own.completion_tokens, usage.completion_tokens),
        ] {
            // Most exchanges lack some of them, and counters are shared by all threads.
            if by > 0 {
                counter.inc_by(by);
            }
        }
    }

    /// An event stream of `generation` was compressed. The first one is logged.
    pub fn encoded_stream(&self, generation: Generation) {
        let own = self.of(generation);
        if !own.encoded_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(%generation, "a model server compresses event streams although the request does not allow it: they are forwarded without failover and error events");
        }
        own.encoded_streams.inc();
    }

    /// An attempt on `generation` failed.
    pub fn failed_attempt(&self, generation: Generation, cause: Cause) {
        self.failed_attempts[generation.index()][cause as usize].inc();
    }

    /// An exchange that was first assigned to `generation`, which failed it, has been completed by another attempt.
    pub fn completed_by_another(&self, generation: Generation) {
        let own = self.of(generation);
        own.completed_by_another.fetch_add(1, Ordering::Relaxed);
    }

    /// `to` answered a request after its last attempt, on `from`, had failed because of `cause`.
    pub fn recovered(&self, from: Generation, to: Generation, cause: Cause) {
        self.recovered_by(from, to, cause).inc();
    }

    fn recovered_by(&self, from: Generation, to: Generation, cause: Cause) -> &IntCounter {
        let moved = from.index() * Generation::ALL.len() + to.index();
        self.recovered_by[moved * Cause::ALL.len() + cause as usize].get_or_init(|| {
            self.recovered
                .with_label_values(&[from.as_str(), to.as_str(), cause.as_str()])
        })
    }

    /// Another server continues a stream, `gap` after it broke or started to move.
    pub fn continued(&self, cause: continuation::ContinuationCause, gap: Duration) {
        let outcome = continuation::ContinuationOutcome::Continued.as_str();
        let labels = [outcome, cause.as_str()];
        self.continuations.with_label_values(&labels).inc();
        self.continuation_gap.observe(gap.as_secs_f64());
    }

    /// A stream that broke, or had to move, is not continued.
    pub fn not_continued(
        &self,
        outcome: continuation::ContinuationOutcome,
        reason: continuation::ContinuationReason,
    ) {
        let labels = [outcome.as_str(), reason.as_str()];
        self.continuations.with_label_values(&labels).inc();
    }

    /// The counter of clients that exceeded `limit`.
    #[must_use]
    pub fn timed_out(&self, limit: Timeout) -> IntCounter {
        self.timeouts[limit as usize].clone()
    }

    pub fn rejected(&self, cause: Reject) {
        self.rejects[cause as usize].inc();
    }
}
