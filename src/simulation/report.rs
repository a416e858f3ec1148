//! The result of a simulation.

use std::time::Duration;

use super::cluster::Counts;
use crate::rollout::PerGeneration;
use crate::scaling::Progress;
use crate::split::Weights;

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationReport {
    /// What happened, in order.
    pub rows: Vec<Row>,
    /// Samples, one at each change.
    pub samples: Vec<Sample>,
    /// How it ended.
    pub ended: SimulationEnd,
    pub totals: Totals,
    /// Notes for its owner.
    pub notes: Vec<String>,
}

/// Whether the rollout came to an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimulationEnd {
    /// It did.
    At(Progress),
    /// Never, because it waits for this.
    Never(Progress, Vec<String>),
}

/// An action that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub at: Duration,
    pub action: String,
    /// Desired units after it.
    pub desired: PerGeneration<u32>,
    /// Ready ones.
    pub ready: PerGeneration<u32>,
    pub split: Weights,
    pub gpus: u64,
    /// The conditions that the next action waited for.
    pub waits: Vec<Waited>,
}

/// A wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waited {
    /// As it was first reported.
    pub what: String,
    pub time: Duration,
}

/// The state since `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub at: Duration,
    pub desired: PerGeneration<u32>,
    pub ready: PerGeneration<u32>,
    pub split: Weights,
    pub gpus: u64,
}

/// Sums and extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Totals {
    /// The time until the end, or until nothing more happened.
    pub time: Duration,
    pub gpu_hours: f64,
    /// What old alone would use in the same time.
    pub gpu_hours_of_old: f64,
    pub gpus_before: u64,
    pub gpus_peak: u64,
    pub streams_begun: u64,
    pub streams_moved: u64,
    pub streams_waited_for: u64,
    pub streams_cut: u64,
    pub requests_refused: u64,
}

impl Totals {
    pub(super) const fn streams(mut self, counts: Counts) -> Self {
        self.streams_begun = counts.begun;
        self.streams_moved = counts.moved;
        self.streams_waited_for = counts.waited_for;
        self.streams_cut = counts.cut;
        self.requests_refused = counts.refused;
        self
    }
}
