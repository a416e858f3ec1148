//! Damps capacity: losses count immediately, gains only after they have lasted.
//!
//! There is no other damping. It applies to the capacity of each generation, not to the split, so that one generation's loss
//! never waits for the other generation's gain.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Ratio, Timestamp};

/// A loss within this time after a gain is a flap. A later loss resets the count.
const FLAPPING: Duration = Duration::from_secs(600);
/// Upper limit of the doubled stable time, unless `stableSeconds` itself is longer.
const LONGEST: Duration = Duration::from_secs(120);
/// Maximum number of flaps that are counted.
const MAX_FLAPS: u32 = 16;

/// Maximum number of rises that are tracked. Beyond that, a new rise replaces the latest one.
const MAX_RISES: usize = 16;

/// The credit of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credit {
    /// The capacity that counts: never more than was observed at the last step.
    pub capacity: Ratio,
    /// Higher capacities that have been observed since, in increasing order. Capacity has not dropped below an entry since its
    /// `since`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub rises: Vec<Rise>,
    /// How many times in a row newly gained capacity was lost again. Each time after the first doubles how long a gain must last.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 16))]
    pub flaps: u32,
    /// When capacity was last gained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gained: Option<Timestamp>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A capacity that does not count yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rise {
    /// The capacity.
    pub capacity: Ratio,
    /// When this capacity was first observed.
    pub since: Timestamp,
}

impl Credit {
    /// A credit of `capacity`, with no rises.
    #[must_use]
    pub const fn of(capacity: Ratio) -> Self {
        Self {
            capacity,
            rises: Vec::new(),
            flaps: 0,
            gained: None,
        }
    }

    /// Sets the capacity without a wait and drops all rises. Keeps the flap count.
    pub(super) fn put(&mut self, capacity: Ratio) {
        self.capacity = capacity;
        self.rises.clear();
    }

    /// How long a gain must last: `stable`, doubled with each flap after the first, up to two minutes or `stable`,
    /// whichever is longer.
    #[must_use]
    pub fn patience(&self, stable: Duration) -> Duration {
        let doubled = stable.saturating_mul(1 << self.flaps.saturating_sub(1).min(MAX_FLAPS));
        doubled.min(LONGEST.max(stable))
    }

    /// Records the capacity seen at `now`. Returns whether credited capacity was lost.
    pub(super) fn observe(&mut self, seen: Ratio, now: Timestamp) -> bool {
        if seen <= self.capacity {
            let lost = seen < self.capacity;
            if lost {
                let just_gained = |gained: Timestamp| now.since(gained) < FLAPPING;
                let flaps = self.gained.take().map(just_gained);
                self.flaps = match flaps {
                    Some(true) => (self.flaps + 1).min(MAX_FLAPS),
                    Some(false) => 0,
                    // Consecutive losses without a gain in between count as one.
                    None => self.flaps,
                };
            }
            self.put(seen);
            return lost;
        }
        let kept = self.rises.partition_point(|rise| rise.capacity <= seen);
        // The capacity was higher since `fallen.since`, so it has been at least `seen` since then.
        let fallen = self.rises.drain(kept..).next();
        let top = self
            .rises
            .last()
            .map_or(self.capacity, |rise| rise.capacity);
        if seen > top {
            if self.rises.len() >= MAX_RISES {
                self.rises.pop();
            }
            self.rises.push(Rise {
                capacity: seen,
                since: fallen.map_or(now, |rise| rise.since),
            });
        }
        false
    }

    /// Credits the rises that have lasted long enough.
    pub(super) fn gain(&mut self, now: Timestamp, stable: Duration) {
        let patience = self.patience(stable);
        let lasted = |rise: &Rise| now.since(rise.since) >= patience;
        if let Some(last) = self.rises.iter().rposition(lasted) {
            self.capacity = self.rises[last].capacity;
            self.rises.drain(..=last);
            self.gained = Some(now);
        }
    }

    /// Whether `gain` would credit any capacity now.
    pub(super) fn lasted(&self, now: Timestamp, stable: Duration) -> bool {
        let rise = self.rises.first();
        rise.is_some_and(|rise| now.since(rise.since) >= self.patience(stable))
    }

    /// Moves timestamps that are later than `now` back to `now`.
    pub(super) fn clamp(&mut self, now: Timestamp) {
        for rise in &mut self.rises {
            rise.since = rise.since.min(now);
        }
        self.gained = self.gained.map(|gained| gained.min(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STABLE: Duration = Duration::from_secs(5);

    fn quarters(of: u64) -> Ratio {
        Ratio::new(of, 4).unwrap()
    }

    fn at(second: u64) -> Timestamp {
        Timestamp::from_unix_millis(1000 * second)
    }

    /// Checks the credited capacity after each of `seen`, given as (second, quarters seen, quarters credited).
    fn follow(seen: &[(u64, u64, u64)]) {
        let mut credit = Credit::of(Ratio::ZERO);
        for (second, of, counted) in seen {
            credit.observe(quarters(*of), at(*second));
            credit.gain(at(*second), STABLE);
            assert_eq!(credit.capacity, quarters(*counted), "at {second} s");
        }
    }

    #[test]
    fn each_gain_counts_when_it_has_itself_lasted() {
        follow(&[
            (0, 1, 0),
            (3, 2, 0),
            (4, 2, 0),
            (5, 2, 1),
            (7, 2, 1),
            (8, 2, 2),
        ]);
    }

    #[test]
    fn a_steady_rise_is_not_starved() {
        let rise: Vec<_> = (0..20_u64)
            .map(|second| (second, second, second.saturating_sub(5)))
            .collect();
        follow(&rise);
    }

    #[test]
    fn a_loss_counts_at_once_and_what_returns_must_last_again() {
        follow(&[
            (0, 3, 0),
            (5, 3, 3),
            (6, 1, 1),
            (7, 3, 1),
            (11, 3, 1),
            (12, 3, 3),
            (13, 0, 0),
        ]);
    }

    #[test]
    fn flapping_capacity_must_last_twice_as_long_each_time() {
        let mut credit = Credit::of(Ratio::ZERO);
        let (mut gains, mut counted) = (Vec::new(), quarters(0));
        // Ready for 30 s, gone for 10 s, repeated for 20 minutes.
        for second in 0..1200 {
            credit.observe(quarters(u64::from(second % 40 < 30)), at(second));
            credit.gain(at(second), STABLE);
            if credit.capacity > counted {
                gains.push(second);
            }
            counted = credit.capacity;
        }
        assert_eq!(gains, [5, 45, 90, 140], "then never within half a minute");
        // It is credited again after lasting longer, but the wait never exceeds two minutes.
        credit.observe(quarters(1), at(1200));
        credit.gain(at(1239), STABLE);
        assert_eq!(credit.capacity, quarters(0));
        credit.gain(at(1240), STABLE);
        assert_eq!(credit.capacity, quarters(1));
        credit.flaps = MAX_FLAPS;
        assert_eq!(credit.patience(STABLE), LONGEST);
        assert_eq!(credit.patience(2 * LONGEST), 2 * LONGEST);
        assert_eq!(credit.patience(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn neither_a_single_late_loss_nor_a_gradual_removal_is_flapping() {
        let mut credit = Credit::of(Ratio::ZERO);
        credit.observe(quarters(4), at(0));
        credit.gain(at(5), STABLE);
        credit.observe(quarters(3), at(700));
        assert_eq!(credit.flaps, 0);
        credit.observe(quarters(4), at(701));
        credit.gain(at(706), STABLE);
        for (lost, second) in [(3, 710), (2, 711), (1, 712)] {
            credit.observe(quarters(lost), at(second));
        }
        assert_eq!(credit.flaps, 1);
    }

    #[test]
    fn the_rest_of_a_rise_keeps_its_start_time() {
        follow(&[(0, 4, 0), (3, 2, 0), (5, 2, 2)]);
        follow(&[(0, 1, 0), (1, 4, 0), (3, 2, 0), (5, 2, 1), (6, 2, 2)]);
    }

    #[test]
    fn more_rises_than_can_be_tracked_only_take_longer() {
        let mut credit = Credit::of(Ratio::ZERO);
        for second in 0..40 {
            credit.observe(quarters(second + 1), at(second));
        }
        assert_eq!(credit.rises.len(), MAX_RISES);
        credit.gain(at(43), STABLE);
        assert_eq!(credit.capacity, quarters(15));
        credit.gain(at(44), STABLE);
        assert_eq!(credit.capacity, quarters(40));
    }
}
