//! Deterministic random choices: the same numbers give the same choices, regardless of clock and scheduler.

use std::time::Duration;

/// A sequence of choices (SplitMix64).
#[derive(Clone)]
pub struct Draw(u64);

impl Draw {
    /// The sequence for `parts`.
    pub fn of(parts: &[u64]) -> Self {
        let mut draw = Self(0x9e37_79b9_7f4a_7c15);
        for part in parts {
            draw.0 ^= part.wrapping_mul(0xff51_afd7_ed55_8ccd);
            draw.next();
        }
        draw
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // Mix in the output, so that similar parts give different sequences.
        self.0 ^= mixed;
        mixed ^ (mixed >> 31)
    }

    /// A number within `range`, inclusive.
    pub fn within(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        let (start, end) = range.into_inner();
        let width = (end - start) as u64 + 1;
        start + usize::try_from(self.next() % width).unwrap()
    }

    /// True in `percent` of 100 cases.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.within(1..=100) <= percent
    }

    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.within(0..=all.len() - 1)]
    }

    pub fn millis(&mut self, range: std::ops::RangeInclusive<usize>) -> Duration {
        Duration::from_millis(self.within(range) as u64)
    }
}
