//! The interface to the proxy that the demo shows.

use std::net::SocketAddr;
use std::time::Duration;

/// The proxy of the demo.
pub trait ProxyControl {
    /// The address that clients connect to.
    fn address(&self) -> SocketAddr;
    /// Puts a plan in force that sends `percent` (0 to 100) to the new generation.
    fn set_percent(&self, percent: u8);
    /// Its current figures. Called some twenty times per second.
    fn sample(&self) -> Sample;
}

/// The proxy's own figures. Pairs are in the order of [`Generation::ALL`](crate::split::Generation::ALL).
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Share of the new generation that the plan wants, 0 to 1.
    pub wanted: f64,
    /// Share of the new generation among the latest assignments, 0 to 1; `None` without traffic.
    ///
    /// The window should be a few seconds, or start with the plan, since it is shown next to `wanted`.
    pub observed: Option<f64>,
    /// Streams open now.
    pub open: [i64; 2],
    /// From the request to its first content, in the last minute.
    pub first_event: [Percentiles; 2],
    /// From one event to the next, in the last minute.
    pub gap: [Percentiles; 2],
    /// Exchanges by generation, then by outcome: completed, truncated, failed, cancelled.
    pub outcomes: [[u64; 4]; 2],
    /// Requests that a retry recovered.
    pub recovered: u64,
    /// Streams that another server continued.
    pub continued: u64,
    /// Number of the plan in force.
    pub epoch: u64,
}

/// Percentiles of a time; `None` with too few measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// Median.
    pub p50: Option<Duration>,
    /// 95th percentile.
    pub p95: Option<Duration>,
    /// 99th percentile.
    pub p99: Option<Duration>,
    /// Number of measurements.
    pub count: u64,
}
