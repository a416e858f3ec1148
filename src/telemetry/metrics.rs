//! The metrics of a proxy: closed label sets, and handles that the request path only has to touch.
//!
//! Must not know what a metric is called, nor who reads it.

mod names;
mod page;
mod reading;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use prometheus::{
    Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};

pub use self::names::dropped_lines;
pub use self::page::Observed;
pub use self::reading::Distribution;
use super::recent::Windows;
use super::{Window, latency, trace};
use crate::memory::Budget;
use crate::rescue::Cause;
use crate::split::{Assignment, Generation, Reason};
use crate::sse::{Api, Outcome, Usage};

/// Why something was refused before it became an exchange with an upstream. A closed set.
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
}

impl Reject {
    pub const ALL: [Self; 8] = [
        Self::MalformedHead,
        Self::HeadTooLarge,
        Self::HeadTimeout,
        Self::BodyTooLarge,
        Self::BodyTimeout,
        Self::TooManyRequests,
        Self::NoMemory,
        Self::Loop,
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
        }
    }
}

/// A limit of time that a client passed once its request had begun. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// It sent nothing of a request's body.
    Body,
    /// It read nothing of what it was sent.
    Write,
    /// Nothing passed through its tunnel.
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

/// The handles of one generation.
struct Side {
    open_streams: IntGauge,
    first_event: Arc<latency::Histogram>,
    gap: Arc<latency::Histogram>,
    stream: Histogram,
    events: IntCounter,
    bytes: IntCounter,
    prompt_tokens: IntCounter,
    completion_tokens: IntCounter,
    encoded_streams: IntCounter,
}

const COMBINATIONS: usize =
    Generation::ALL.len() * Reason::ALL.len() * Api::ALL.len() * Outcome::ALL.len();

/// All metrics of a proxy.
pub struct Metrics {
    registry: Registry,
    started: Instant,
    /// Assignments of the last minute.
    pub window: Window,
    /// Those of them that were answered in the last minute, by who answered.
    pub answered: Window,
    windows: Windows,
    requests: IntCounterVec,
    /// Resolved at first use: most of the combinations never happen.
    resolved: [OnceLock<IntCounter>; COMBINATIONS],
    sides: [Side; 2],
    saves: Vec<IntCounter>,
    rejects: Vec<IntCounter>,
    timeouts: Vec<IntCounter>,
    pub retries_refused: IntCounter,
    pub plans_rejected: IntCounter,
    pub plan_apply: Histogram,
    pub loop_lag: Histogram,
    /// Connections of clients: open now, closed at once, errors while accepting them.
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
    endpoints: IntGaugeVec,
    /// Present once there is a data plane.
    memory: OnceLock<Arc<Budget>>,
    memory_bytes: IntGaugeVec,
    memory_refused: IntCounterVec,
}

impl Metrics {
    /// Seconds since the process began to count.
    #[must_use]
    pub fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_secs()
    }

    /// Shows what is taken out of `memory`.
    pub fn watch(&self, memory: &Arc<Budget>) {
        self.memory.get_or_init(|| Arc::clone(memory));
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
        self.side(generation).first_event.observe(after);
    }

    /// Events came together, `gap` after what came before them, if anything did. Between them lie `more` gaps of no length.
    pub fn gaps(&self, generation: Generation, gap: Option<Duration>, more: u64) {
        let gaps = &self.side(generation).gap;
        if let Some(gap) = gap {
            gaps.observe(gap);
        }
        if more > 0 {
            gaps.observe_zeros(more);
        }
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

    /// An event stream of `generation` came compressed. The first one is logged.
    pub fn encoded_stream(&self, generation: Generation) {
        let counter = &self.side(generation).encoded_streams;
        if counter.get() == 0 {
            tracing::warn!(%generation, "a model server compresses event streams though asked not to: they pass as they are, without failover and error events");
        }
        counter.inc();
    }

    pub fn saved(&self, cause: Cause) {
        self.saves[cause as usize].inc();
    }

    /// Where it is counted that a client passed `limit`.
    #[must_use]
    pub fn timed_out(&self, limit: Timeout) -> IntCounter {
        self.timeouts[limit as usize].clone()
    }

    pub fn rejected(&self, cause: Reject) {
        self.rejects[cause as usize].inc();
    }
}
