//! Observability: metrics, access lines, logs, traces.

pub mod access;
mod clock;
pub mod latency;
pub mod log;
mod metrics;
mod output;
mod quantile;
pub mod recent;
pub mod sessions;
pub mod strata;
pub mod trace;
mod window;

pub use metrics::{Distribution, Metrics, Observed, ProofCounts, Reject, Timeout, dropped_lines};
pub use quantile::quantile;
pub use window::Window;
