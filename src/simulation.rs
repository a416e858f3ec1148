//! Runs the decisions of a managed update on a modelled cluster, so that its duration and cost are known before it begins.
//!
//! The model covers how long workers take to start, how long streams last (log-normal with a given 99th percentile, and at most
//! twice as long), and a steady load. Everything else is real: every second, [`scaling::decide`] observes the modelled cluster,
//! and its action is carried out there. The same scenario always gives the same report.
//!
//! Nothing fails in a modelled cluster: new passes its analysis as soon as there are enough requests, and manual steps happen
//! immediately. So the reported end is the earliest possible one.
//!
//! [`scaling::decide`]: crate::scaling::decide

mod cluster;
mod json;
mod lengths;
mod observation;
mod pods;
mod report;
mod run;
mod streams;
mod svg;
mod text;
mod traffic;

use std::time::Duration;

pub use self::{
    json::json,
    report::{Row, Sample, SimulationEnd, SimulationReport, Totals, Waited},
    run::run,
    svg::svg,
    text::text,
};
use crate::scaling::{RolloutSettings, Sizes};

/// The most replicas of a role that are modelled.
pub const MAX_REPLICAS: u32 = 1000;

/// The most GPUs of a worker that are modelled.
pub const MAX_GPUS: u32 = 100_000;

/// The scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The rollout.
    pub settings: RolloutSettings,
    /// The sizes that new has before the first step. Its workers start with the rollout.
    pub begun: Sizes,
    /// How long a worker takes until it is ready.
    pub startup: Duration,
    /// How long a worker must be ready before it counts.
    pub stable: Duration,
    /// How long the proxies take to apply a split.
    pub apply: Duration,
    /// How long an idle worker takes to terminate.
    pub stop: Duration,
    /// The `terminationGracePeriodSeconds` of the workers.
    pub grace: Duration,
    /// How new is analysed, if it is.
    pub analysis: Option<Samples>,
    /// How long the frontends of old must have had no clients before old is safe to delete.
    pub quiet: Duration,
    /// Requests per second.
    pub rate: f64,
    /// The 99th percentile of the stream durations.
    pub stream_p99: Duration,
    /// Whether it is possible to choose which workers are removed first, as for a Deployment.
    pub chooses: bool,
    /// When streams are moved off old after all requests go to new, if they are continued.
    pub moves: Option<Moves>,
}

/// When streams are moved off old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moves {
    /// The time after all requests go to new.
    pub after: Duration,
    /// The number of streams per second.
    pub rate: u64,
}

/// The requirements of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    /// The requests that each generation must have received.
    pub count: u64,
    /// The window within which they must have been received.
    pub window: Duration,
}

#[cfg(test)]
mod tests;
