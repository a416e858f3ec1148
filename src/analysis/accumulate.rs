//! Turns the counts of each proxy since its start into the counts of all proxies between two looks.
//!
//! Proxies come, go and restart, and may be too old to report counts. Nothing is counted twice, and unknown counts are not
//! treated as zero:
//!
//! - A proxy process is identified by its name and its start time, and each series of its counts by the number of the series.
//!   The counts from before a series was first seen are ignored, unless it began after the comparison.
//! - If a proxy is not seen for some time, its counts continue from the last ones seen. The counts of the gap are included late.
//! - If a count of the same process decreases, the counts in between are ignored.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Counts;

/// The most proxy processes that are remembered.
const MAX_PROCESSES: usize = 4096;
/// A process that was not seen for this long is forgotten.
const FORGET: Duration = Duration::from_secs(900);

/// The counts of one proxy process.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Its name: a pod or an address.
    pub proxy: String,
    /// Distinguishes the processes of a proxy, and their series: the start time by the proxy's own clock, and the number of the
    /// series.
    pub process: String,
    /// How long ago the series began.
    pub uptime: Duration,
    /// All counts since then.
    pub counts: Counts,
}

/// The last reading of each process.
#[derive(Clone, Debug, Default)]
pub struct Accumulator {
    /// When the comparison began, by the caller's clock.
    began: Option<Duration>,
    last: BTreeMap<(String, String), Seen>,
}

#[derive(Clone, Debug)]
struct Seen {
    at: Duration,
    counts: Counts,
}

impl Accumulator {
    /// The counts since the last look. `now` may be from any monotonic clock.
    pub fn since_last(
        &mut self,
        readings: impl IntoIterator<Item = Reading>,
        now: Duration,
    ) -> Counts {
        let began = *self.began.get_or_insert(now);
        let mut all = Counts::default();
        let since_began = now.saturating_sub(began);
        for reading in readings {
            let key = (reading.proxy, reading.process);
            let delta = match self.last.get(&key) {
                Some(seen) => reading.counts.since(&seen.counts),
                // No room to remember it, so it would be counted again at the next look.
                None if self.last.len() >= MAX_PROCESSES => continue,
                // It started after the comparison began, and cannot have been seen and forgotten.
                None if reading.uptime < since_began.min(FORGET) => Some(reading.counts.clone()),
                None => None,
            };
            if let Some(delta) = delta {
                all.add(&delta);
            }
            let counts = reading.counts;
            self.last.insert(key, Seen { at: now, counts });
        }
        self.last
            .retain(|_, seen| now.saturating_sub(seen.at) < FORGET);
        all
    }
}
