//! What the verdict promises: by exact sums, by simulated rollouts with fixed seeds, and by single looks.

mod counting;
mod exact;
mod simulator;
mod table;
mod verdicts;
