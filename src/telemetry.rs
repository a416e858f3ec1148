//! What the process tells about itself: metrics, access lines, logs, traces.

pub mod access;
pub mod log;
mod metrics;
mod quantile;
pub mod trace;
mod window;

pub use metrics::{Distribution, Metrics, Observed, Reject};
pub use quantile::quantile;
pub use window::Window;
