//! The metrics of a proxy: closed label sets, and handles that the request path only has to touch.
//!
//! Must not know what a metric is called, nor who reads it.

mod names;
mod page;
mod reading;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use prometheus::{
    Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};

pub use self::page::Observed;
pub use self::reading::Distribution;
use super::{Window, trace};
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

    /// Events came together, `gap` after what came before them, if anything did. Between them lie `more` gaps of no length.
    pub fn gaps(&self, generation: Generation, gap: Option<Duration>, more: u64) {
        let gaps = &self.side(generation).gap;
        if more == 0 {
            if let Some(gap) = gap {
                gaps.observe(gap.as_secs_f64());
            }
            return;
        }
        // Added up first: the histogram is every thread's, and to touch it costs several atomic operations.
        let sum = gaps.local();
        if let Some(gap) = gap {
            sum.observe(gap.as_secs_f64());
        }
        for _ in 0..more {
            sum.observe(0.0);
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

    pub fn saved(&self, cause: Cause) {
        self.saves[cause as usize].inc();
    }

    pub fn rejected(&self, cause: Reject) {
        self.rejects[cause as usize].inc();
    }
}
