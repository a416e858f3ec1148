//! Ages that are never too small, even if the machine sleeps or the clock is set.

use std::time::{Duration, Instant, SystemTime};

/// A point in time by both clocks. The monotonic clock stops while the machine sleeps, and the other one may be set.
#[derive(Clone, Copy, Debug)]
pub struct BothClocks(pub(super) Instant, pub(super) SystemTime);

impl BothClocks {
    /// The present.
    #[must_use]
    pub fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    /// How long before `now` this was, by the clock that measured the longer time.
    #[must_use]
    pub fn elapsed(self, now: Self) -> Duration {
        let by_wall = now.1.duration_since(self.1).unwrap_or_default();
        now.0.saturating_duration_since(self.0).max(by_wall)
    }
}
