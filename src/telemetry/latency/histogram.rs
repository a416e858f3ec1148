//! Records values on the [`Scale`], from all threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{BUCKETS, Scale, Sketch};

/// The values since the process started. Recording one costs two relaxed atomic additions.
pub struct Histogram {
    counts: Box<[AtomicU64; BUCKETS]>,
    /// In nanoseconds; enough for 584 years of latencies.
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: Box::new([const { AtomicU64::new(0) }; BUCKETS]),
            sum: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Records one value.
    pub fn observe(&self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.counts[Scale::index(nanos)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Records `count` values of zero.
    pub fn observe_zeros(&self, count: u64) {
        self.counts[0].fetch_add(count, Ordering::Relaxed);
    }

    /// The current contents.
    #[must_use]
    pub fn sketch(&self) -> Sketch {
        let counts = self.counts.iter().enumerate();
        let counts = counts.map(|(index, count)| (index, count.load(Ordering::Relaxed)));
        Sketch::new(counts, self.sum.load(Ordering::Relaxed))
    }
}
