//! How long a connection to a Service is used: behind one address are several servers, and it is with each new
//! connection that the cluster chooses among them. One that lives for ever would stay with the first choice.
//!
//! Must not know what the connection is, nor read a clock.

use std::time::{Duration, Instant};

/// The limits of a connection to an address behind which there may be several servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The greatest age at which it takes another exchange; none is no limit.
    pub age: Option<Duration>,
    /// The greatest number of exchanges; none is no limit.
    pub exchanges: Option<u32>,
}

impl Default for Lifetime {
    fn default() -> Self {
        Self {
            age: Some(Duration::from_secs(60)),
            exchanges: Some(16),
        }
    }
}

impl Lifetime {
    /// The life of a connection that is opened at `now`: a part of the limits chosen by `draw`, from a half to the whole,
    /// so that connections opened together do not end together.
    pub(super) fn begin(self, now: Instant, draw: u32) -> Life {
        let part = 0.5 + f64::from(draw) / f64::from(u32::MAX) / 2.0;
        Life {
            ends: self.age.map(|age| now + age.mul_f64(part)),
            // At most the limit, so that it fits.
            left: self
                .exchanges
                .map(|most| ((f64::from(most) * part) as u32).max(1)),
        }
    }
}

/// What is left of a connection's life.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    ends: Option<Instant>,
    left: Option<u32>,
}

impl Life {
    /// Of a connection to one server: as long as it holds.
    pub(super) const ENDLESS: Self = Self {
        ends: None,
        left: None,
    };

    /// One exchange less. False when that was the last.
    pub(super) fn spend(&mut self) -> bool {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
        }
        self.left != Some(0)
    }

    /// Is it too old at `now`?
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_ends_by_age_or_by_use_within_its_limits() {
        let limits = Lifetime {
            age: Some(Duration::from_secs(60)),
            exchanges: Some(16),
        };
        let now = Instant::now();
        for (draw, seconds, uses) in [(0, 30, 8), (u32::MAX, 60, 16)] {
            let mut life = limits.begin(now, draw);
            assert!(!life.is_over(now + Duration::from_millis(seconds * 1000 - 1)));
            assert!(life.is_over(now + Duration::from_secs(seconds)));
            for _ in 1..uses {
                assert!(life.spend());
            }
            assert!(!life.spend());
        }
    }

    #[test]
    fn without_limits_it_does_not_end() {
        let none = Lifetime {
            age: None,
            exchanges: None,
        };
        for mut life in [Life::ENDLESS, none.begin(Instant::now(), 0)] {
            assert!((0..1000).all(|_| life.spend()));
            assert!(!life.is_over(Instant::now() + Duration::from_secs(1 << 30)));
        }
    }

    #[test]
    fn one_exchange_is_the_least() {
        let one = Lifetime {
            age: None,
            exchanges: Some(1),
        };
        assert!(!one.begin(Instant::now(), 0).spend());
    }
}
