//! The observed split: the share of new among the last minute's assignments that were open to the split.

use std::sync::atomic::{AtomicU64, Ordering};

/// Length of the window in seconds.
pub const SECONDS: u64 = 60;
/// Bits of each count in a slot.
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// One slot per second: the second's low 16 bits, the count of all, the count of new.
#[derive(Debug)]
pub struct Window([AtomicU64; 64]);

impl Default for Window {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; 64])
    }
}

impl Window {
    /// Counts an assignment in `second`, from any monotonic clock.
    pub fn count(&self, second: u64, to_new: bool) {
        let one = 1 << COUNT_BITS | u64::from(to_new);
        let stamp = stamp(second);
        let slot = &self.0[(second % 64) as usize];
        let counted = |old: u64| {
            if old >> 48 != stamp {
                return Some(stamp << 48 | one);
            }
            // A full slot stays unchanged instead of overflowing into the next one.
            (old >> COUNT_BITS & COUNT_MASK != COUNT_MASK).then(|| old + one)
        };
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
    }

    /// The assignments in the last `seconds` up to `second`, at most a minute, and how many of them went to new.
    #[must_use]
    pub fn totals(&self, second: u64, seconds: u64) -> (u64, u64) {
        let oldest = (second + 1).saturating_sub(seconds.min(SECONDS));
        (oldest..=second).fold((0, 0), |(all, new), second| {
            let slot = self.0[(second % 64) as usize].load(Ordering::Relaxed);
            if slot >> 48 != stamp(second) {
                return (all, new);
            }
            (
                all + (slot >> COUNT_BITS & COUNT_MASK),
                new + (slot & COUNT_MASK),
            )
        })
    }

    /// The share of new in the last minute; `None` without traffic.
    #[must_use]
    pub fn share(&self, second: u64) -> Option<f64> {
        self.share_over(second, SECONDS)
    }

    /// Like [`Window::share`], over the last `seconds`.
    #[must_use]
    pub fn share_over(&self, second: u64, seconds: u64) -> Option<f64> {
        let (all, new) = self.totals(second, seconds);
        (all > 0).then(|| new as f64 / all as f64)
    }
}

/// Never 0, which marks an unused slot.
fn stamp(second: u64) -> u64 {
    second % 0xffff + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_last_minute_only() {
        let window = Window::default();
        assert_eq!(window.share(0), None);
        window.count(0, true);
        for second in 0..200 {
            for request in 0..4 {
                window.count(second, request == 0 && second >= 100);
            }
        }
        assert_eq!(window.totals(199, 60), (240, 60));
        assert_eq!(window.share(258), Some(0.25));
        assert_eq!(window.share(259), None);
    }
}
