//! Time, a histogram of durations, and medians.

use std::time::Duration;

/// Nanoseconds on the monotonic clock, which is one for all processes of a machine.
pub fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("a bench lasts less than centuries")
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub fn count(number: u64) -> f64 {
    number as f64
}

/// Steps per power of two: values are kept to 0.8%.
const STEPS: u64 = 128;

/// Durations in nanoseconds.
#[derive(Clone)]
pub struct Histogram {
    counts: Vec<u32>,
    total: u64,
}

impl Histogram {
    pub fn new() -> Self {
        Self {
            counts: vec![0; 40 * 128],
            total: 0,
        }
    }

    pub fn record(&mut self, nanos: u64) {
        let last = self.counts.len() - 1;
        self.counts[slot(nanos).min(last)] += 1;
        self.total += 1;
    }

    /// The value in microseconds below which a share of `part` lies; 0 when nothing was recorded.
    pub fn quantile(&self, part: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let wanted = self.total as f64 * part;
        let mut seen = 0.0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += f64::from(*count);
            if seen >= wanted && *count > 0 {
                return middle(slot) / 1000.0;
            }
        }
        0.0
    }
}

fn slot(nanos: u64) -> usize {
    let shift = (nanos | STEPS).ilog2() - STEPS.ilog2();
    let steps = nanos >> shift;
    usize::try_from(u64::from(shift) * STEPS + steps).expect("below 64 * 128")
}

#[expect(
    clippy::cast_precision_loss,
    reason = "durations are far below 2^52 ns"
)]
fn middle(slot: usize) -> f64 {
    let slot = slot as u64;
    let shift = (slot / STEPS).saturating_sub(1);
    let steps = slot - shift * STEPS;
    ((steps << shift) as f64) + ((1_u64 << shift) as f64 - 1.0) / 2.0
}

/// The median of `values`, 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}
