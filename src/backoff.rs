//! Exponential backoff: delays that double with each failure, up to a maximum.
//!
//! `backon` can also produce delays as an iterator, but its jitter draws from its own generator, and its state is not the number
//! of failures. Here, a delay is a function of the failure count and a random draw. Pure: the randomness is an argument.

use std::time::Duration;

/// How long to wait after an error.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The delay after the first error.
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    /// The delay after an error that follows `failures` others.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.min(16));
        doubled.min(self.longest)
    }

    /// The same, with jitter, so that many clients do not retry at the same time: from half of the delay to all of it, for a
    /// `chance` from 0 to 1.
    #[must_use]
    pub fn jittered(&self, failures: u32, chance: f64) -> Duration {
        self.delay(failures).mul_f64(0.5 + chance / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let backoff = Backoff {
            first: Duration::from_millis(200),
            longest: Duration::from_secs(1),
        };
        let delays = [0, 1, 2, 3, u32::MAX].map(|failures| backoff.delay(failures).as_millis());
        assert_eq!(delays, [200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.jittered(0, 0.0), Duration::from_millis(100));
        assert_eq!(backoff.jittered(0, 1.0), Duration::from_millis(200));
    }
}
