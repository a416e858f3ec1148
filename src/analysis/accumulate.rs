//! Turns the counts of each proxy since its start into the counts of all proxies between two looks.
//!
//! Proxies come, go and restart, and may be too old to report counts. Nothing is counted twice, and unknown counts are not
//! treated as zero:
//!
//! - A proxy process is identified by its name and its start time, and each series of its counts by the number of the series.
//!   The counts from before a series was first seen are ignored, unless it began after the comparison.
//! - If a proxy does not report for some time, it is unknown when in this time its requests were received. The
//!   counts of a gap of [`FORGET`] that began before the last look, or of one that began before the time in question, are
//!   ignored: they may be older than a window, and the split may have changed in between.
//! - If a count of the same process decreases, the counts in between are ignored.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Counts;

/// The most proxy processes that are remembered.
const MAX_PROCESSES: usize = 4096;
/// A process that has not reported for this long is forgotten. Proxies are polled at least every 10 seconds.
const FORGET: Duration = Duration::from_secs(15);

/// The counts of one proxy process.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Its name: a pod or an address.
    pub proxy: String,
    /// Distinguishes the processes of a proxy, and their series: the start time by the proxy's own clock, and the number of the
    /// series.
    pub process: String,
    /// How old the reading is.
    pub age: Duration,
    /// How long before the reading the series began.
    pub uptime: Duration,
    /// All counts since then.
    pub counts: Counts,
}

/// The last reading of each process.
#[derive(Clone, Debug, Default)]
pub struct Accumulator {
    /// When the comparison began, by the caller's clock.
    began: Option<Duration>,
    /// The time of the last look.
    last_look: Duration,
    last: BTreeMap<(String, String), Seen>,
}

#[derive(Clone, Debug)]
struct Seen {
    /// When it was reported.
    at: Duration,
    counts: Counts,
}

impl Accumulator {
    /// The counts since the last look: for each time in `from`, those that were certainly counted since then. Times may be from
    /// any monotonic clock.
    pub fn since_last<const N: usize>(
        &mut self,
        readings: impl IntoIterator<Item = Reading>,
        now: Duration,
        from: [Duration; N],
    ) -> [Counts; N] {
        let began = *self.began.get_or_insert(now);
        let mut all = [const { Counts(BTreeMap::new()) }; N];
        let previous = std::mem::replace(&mut self.last_look, now);
        let is_recent = |at: Duration| at >= previous || now.saturating_sub(at) < FORGET;
        for reading in readings {
            let at = now.saturating_sub(reading.age);
            let key = (reading.proxy, reading.process);
            // The time in which it was counted begins at the previous reading, or with the series.
            let delta = match self.last.get(&key) {
                Some(seen) if !is_recent(seen.at) => None,
                Some(seen) => { reading.counts.since(&seen.counts) }.map(|delta| (seen.at, delta)),
                // No room to remember it, so it would be counted again at the next look.
                None if self.last.len() >= MAX_PROCESSES => continue,
                // It started after the comparison began, and cannot have been seen and forgotten.
                None => at
                    .checked_sub(reading.uptime)
                    .filter(|start| *start > began && is_recent(*start))
                    .map(|start| (start, reading.counts.clone())),
            };
            if let Some((begin, delta)) = delta {
                for (sum, from) in all.iter_mut().zip(from) {
                    if begin >= from {
                        sum.add(&delta);
                    }
                }
            }
            let counts = reading.counts;
            self.last.insert(key, Seen { at, counts });
        }
        self.last.retain(|_, seen| is_recent(seen.at));
        all
    }
}
