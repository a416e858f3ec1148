//! What the process tells about itself: metrics, access lines, logs.

pub mod access;
pub mod log;
mod metrics;
mod quantile;
mod window;

pub use metrics::{Distribution, Metrics, Observed, Reject};
pub use quantile::quantile;
pub use window::Window;
