//! The capacity that counts: what is lost is lost at once, what is gained counts when it has lasted.
//!
//! This is all the damping there is. It lies on the capacity of each side and not on the split, so that one side's loss
//! never waits for the other side's gain. Must not know what the capacities are compared for.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Moment, Ratio};

/// How many rises are told apart. Beyond that the youngest are taken as one.
const MAX_RISES: usize = 16;

/// What a side is credited with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credit {
    /// What counts. Never more than was seen at the last step.
    pub capacity: Ratio,
    /// What has been seen above it: each capacity higher than the one before, and never less was seen since its moment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub rises: Vec<Rise>,
}

/// A capacity that does not count yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rise {
    /// How much there is.
    pub capacity: Ratio,
    /// Since when there has been so much.
    pub since: Moment,
}

impl Credit {
    /// `capacity`, and nothing above it.
    #[must_use]
    pub const fn of(capacity: Ratio) -> Self {
        Self {
            capacity,
            rises: Vec::new(),
        }
    }

    /// Takes in what is seen now; was anything lost?
    pub(super) fn see(&mut self, seen: Ratio, now: Moment) -> bool {
        if seen <= self.capacity {
            let lost = seen < self.capacity;
            *self = Self::of(seen);
            return lost;
        }
        let kept = self.rises.partition_point(|rise| rise.capacity <= seen);
        // Where it was higher it has been at least so high for as long.
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

    /// Counts what has lasted for `stable`.
    pub(super) fn gain(&mut self, now: Moment, stable: Duration) {
        let lasted = |rise: &Rise| now.since(rise.since) >= stable;
        if let Some(last) = self.rises.iter().rposition(lasted) {
            self.capacity = self.rises[last].capacity;
            self.rises.drain(..=last);
        }
    }

    /// Would something count now, if it were allowed to?
    pub(super) fn lasted(&self, now: Moment, stable: Duration) -> bool {
        let rise = self.rises.first();
        rise.is_some_and(|rise| now.since(rise.since) >= stable)
    }

    /// Takes moments that lie ahead of `now` for now.
    pub(super) fn clamp(&mut self, now: Moment) {
        for rise in &mut self.rises {
            rise.since = rise.since.min(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STABLE: Duration = Duration::from_secs(5);

    fn quarters(of: u64) -> Ratio {
        Ratio::new(of, 4).unwrap()
    }

    fn at(second: u64) -> Moment {
        Moment::from_unix_millis(1000 * second)
    }

    /// What counts after each of `seen`, as (second, quarters seen, quarters counted).
    fn follow(seen: &[(u64, u64, u64)]) {
        let mut credit = Credit::of(Ratio::ZERO);
        for (second, of, counted) in seen {
            credit.see(quarters(*of), at(*second));
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
    fn what_is_left_of_a_rise_has_lasted_as_long_as_the_rise() {
        follow(&[(0, 4, 0), (3, 2, 0), (5, 2, 2)]);
        follow(&[(0, 1, 0), (1, 4, 0), (3, 2, 0), (5, 2, 1), (6, 2, 2)]);
    }

    #[test]
    fn more_rises_than_are_told_apart_only_take_longer() {
        let mut credit = Credit::of(Ratio::ZERO);
        for second in 0..40 {
            credit.see(quarters(second + 1), at(second));
        }
        assert_eq!(credit.rises.len(), MAX_RISES);
        credit.gain(at(43), STABLE);
        assert_eq!(credit.capacity, quarters(15));
        credit.gain(at(44), STABLE);
        assert_eq!(credit.capacity, quarters(40));
    }
}
