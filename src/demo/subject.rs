//! What the demo needs of the proxy that it demonstrates.
//!
//! Must not know how the proxy is built, nor anything about terminals.

use std::net::SocketAddr;
use std::time::Duration;

/// The proxy under demonstration.
pub trait Subject {
    /// Where clients connect.
    fn address(&self) -> SocketAddr;
    /// Puts a plan in force that sends `percent` (0 to 100) to the new generation.
    fn set_percent(&self, percent: u8);
    /// Its own figures now. Asked for some twenty times a second.
    fn sample(&self) -> Sample;
}

/// What the proxy says of itself. Pairs are in the order of [`Generation::ALL`](crate::split::Generation::ALL).
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Share of the new generation that the plan wants, 0 to 1.
    pub wanted: f64,
    /// Share of the new generation among the latest assignments, 0 to 1; none without traffic.
    ///
    /// The window should be some seconds at most, or begin with the plan: it is shown beside `wanted`.
    pub observed: Option<f64>,
    /// Streams open now.
    pub open: [i64; 2],
    /// From the request to its first content, in the last minute.
    pub first_event: [Percentiles; 2],
    /// From one event to the next, in the last minute.
    pub gap: [Percentiles; 2],
    /// Exchanges by generation, then by outcome: completed, truncated, failed, cancelled.
    pub outcomes: [[u64; 4]; 2],
    /// Requests that were saved on another place than their first.
    pub saves: u64,
    /// Number of the plan in force.
    pub epoch: u64,
}

/// Percentiles of a time; none where too little was measured to tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// Median.
    pub p50: Option<Duration>,
    /// 95th percentile.
    pub p95: Option<Duration>,
    /// 99th percentile.
    pub p99: Option<Duration>,
    /// How many times were measured.
    pub count: u64,
}
