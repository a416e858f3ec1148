//! The figures of a round.

/// A figure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Microseconds of the proxy's CPU per event.
    CpuEvent,
    /// The same per request.
    CpuRequest,
    /// Requests per second of the proxy's CPU.
    PerCore,
    /// Responses per second, as the load side saw them.
    Rate,
    /// Events per second, as the load side saw them.
    Events,
    LatencyP50,
    LatencyP99,
    GapP99,
    ReplyP50,
    ReplyP99,
    FirstP50,
    FirstP99,
    /// Resident memory per stream in KiB.
    Memory,
    /// The 99th percentile of gaps while plans change.
    GapP99Changing,
    /// From the change of the file to the first request served by the plan, in milliseconds.
    InForceP50,
    InForceMax,
}

impl Metric {
    pub fn label(self) -> &'static str {
        match self {
            Self::CpuEvent => "CPU, µs per event",
            Self::CpuRequest => "CPU, µs per request",
            Self::PerCore => "requests per second of CPU",
            Self::Rate => "requests per second",
            Self::Events => "events per second",
            Self::LatencyP50 => "latency of an event, p50, µs",
            Self::LatencyP99 => "latency of an event, p99, µs",
            Self::GapP99 => "gap between events, p99, µs",
            Self::ReplyP50 => "latency of a reply, p50, µs",
            Self::ReplyP99 => "latency of a reply, p99, µs",
            Self::FirstP50 => "time to first event, p50, µs",
            Self::FirstP99 => "time to first event, p99, µs",
            Self::Memory => "memory, KiB per stream",
            Self::GapP99Changing => "gap while plans change, p99, µs",
            Self::InForceP50 => "plan in force after, p50, ms",
            Self::InForceMax => "plan in force after, max, ms",
        }
    }

    /// Is it a time of which the load side has its part, so that what a proxy adds is the difference to none?
    pub fn is_added(self) -> bool {
        matches!(
            self,
            Self::LatencyP50
                | Self::LatencyP99
                | Self::GapP99
                | Self::ReplyP50
                | Self::ReplyP99
                | Self::FirstP50
                | Self::FirstP99
        )
    }

    /// Its name in the JSON.
    pub fn key(self) -> &'static str {
        match self {
            Self::CpuEvent => "cpu_us_per_event",
            Self::CpuRequest => "cpu_us_per_request",
            Self::PerCore => "requests_per_cpu_second",
            Self::Rate => "requests_per_second",
            Self::Events => "events_per_second",
            Self::LatencyP50 => "latency_p50_us",
            Self::LatencyP99 => "latency_p99_us",
            Self::GapP99 => "gap_p99_us",
            Self::ReplyP50 => "reply_p50_us",
            Self::ReplyP99 => "reply_p99_us",
            Self::FirstP50 => "first_event_p50_us",
            Self::FirstP99 => "first_event_p99_us",
            Self::Memory => "memory_kib_per_stream",
            Self::GapP99Changing => "gap_p99_us_changing",
            Self::InForceP50 => "in_force_p50_ms",
            Self::InForceMax => "in_force_max_ms",
        }
    }
}
