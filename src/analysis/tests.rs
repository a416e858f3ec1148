//! Tests what the verdict promises: with exact sums, with simulated rollouts with fixed seeds, and with single looks.

mod counting;
mod exact;
mod failures;
mod fixture;
mod rollouts;
mod simulator;
mod table;
mod verdicts;
