//! Latencies: recorded with high resolution, reported over sliding windows, and exposed to Prometheus in few buckets.
//!
//! A [`Histogram`] records every value once. The buckets of `/metrics` and, through
//! [`Windows`](super::recent::Windows), the values of the last minutes are derived from it on request.

mod collector;
mod histogram;

pub(in crate::telemetry) use collector::Exposed;
pub use histogram::Histogram;

pub use crate::latency::{BUCKETS, ENOUGH, FIRST_EVENT_BOUNDS, GAP_BOUNDS, Scale, Sketch};
