//! Latencies: counted finely, shown over sliding windows, exposed to Prometheus in few buckets.
//!
//! One [`Histogram`] counts every value once. Everything else is derived from it when somebody asks: the buckets of
//! `/metrics`, and by [`Windows`](super::recent::Windows) the values of the last minutes.

mod collector;
mod histogram;
mod scale;
mod sketch;

pub(in crate::telemetry) use collector::Exposed;
pub use histogram::Histogram;
pub use scale::{BUCKETS, FIRST_EVENT_BOUNDS, GAP_BOUNDS, Scale};
pub use sketch::{ENOUGH, Sketch};
