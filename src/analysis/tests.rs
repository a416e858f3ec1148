//! Tests what the verdict promises: by exact sums, by simulated rollouts with fixed seeds, and by single evaluations.

mod counting;
mod exact;
mod failures;
mod fixture;
mod rollouts;
mod simulator;
mod table;
mod verdicts;
