//! Draws one of a stream's gaps at random, with equal probability, without knowing how many there will be.
//!
//! Reservoir sampling of size one: gap number `n` replaces the current one with probability `1 / n`. The number of the next gap
//! that does so is drawn in advance (Li, *Reservoir-sampling algorithms of time complexity O(n (1 + log (N / n)))*, 1994), so an
//! event costs a comparison.

use std::time::Duration;

/// A gap drawn from those seen so far.
#[derive(Debug)]
pub struct GapSample {
    seen: u32,
    /// The number of the gap that is sampled next.
    next: u32,
    value: Option<Duration>,
}

impl Default for GapSample {
    fn default() -> Self {
        Self {
            seen: 0,
            next: 1,
            value: None,
        }
    }
}

impl GapSample {
    /// Adds a gap, if any, and then `zeros` gaps of length zero. `draw` returns a number from 0 to 1.
    pub fn add(&mut self, gap: Option<Duration>, zeros: u32, draw: impl Fn() -> f64) {
        if let Some(gap) = gap {
            self.seen = self.seen.saturating_add(1);
            if self.seen == self.next {
                self.take(gap, &draw);
            }
        }
        self.seen = self.seen.saturating_add(zeros);
        while self.next <= self.seen && self.next < u32::MAX {
            self.take(Duration::ZERO, &draw);
        }
    }

    fn take(&mut self, gap: Duration, draw: &impl Fn() -> f64) {
        self.value = Some(gap);
        // The next number is greater than `m` with probability `next / m`. A draw of 0 means never.
        let after = f64::from(self.next) / draw();
        self.next = self.next.max(after as u32).saturating_add(1);
    }

    /// The gap; `None` before the first one.
    pub const fn value(&self) -> Option<Duration> {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gap_is_drawn_equally_often_regardless_of_batching() {
        // Ten gaps: 1 ms, then 2 of no length, then 2 to 8 ms.
        let mut drawn = [0_u32; 9];
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let mut sample = GapSample::default();
            assert_eq!(sample.value(), None);
            let draws: Vec<f64> = (0..16).map(|_| random.f64()).collect();
            let number = std::cell::Cell::new(0);
            let draw = || {
                number.set(number.get() + 1);
                draws[number.get() - 1]
            };
            sample.add(None, 0, draw);
            sample.add(Some(Duration::from_millis(1)), 2, draw);
            for millis in 2..=8 {
                sample.add(Some(Duration::from_millis(millis)), 0, draw);
            }
            let millis = sample.value().unwrap().as_millis();
            drawn[usize::try_from(millis).unwrap()] += 1;
        }
        assert!((3800..4200).contains(&drawn[0]), "{drawn:?}");
        assert!(
            drawn[1..].iter().all(|count| (1800..2200).contains(count)),
            "{drawn:?}"
        );
    }
}
