//! Limits how long a connection to a Service is used. The cluster picks one of the servers behind the address per connection,
//! so a connection without a limit would stay with its first server forever.
//!
//! Does not read the clock: `now` is an argument.

use std::time::{Duration, Instant};

/// The limits of a connection to an address that several servers may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifetimeLimits {
    /// Maximum age at which the connection is reused; `None` means no limit.
    pub age: Option<Duration>,
    /// Maximum number of exchanges; `None` means no limit.
    pub exchanges: Option<u32>,
}

impl Default for LifetimeLimits {
    fn default() -> Self {
        Self {
            age: Some(Duration::from_secs(60)),
            exchanges: Some(16),
        }
    }
}

impl LifetimeLimits {
    /// The lifetime of a connection opened at `now`. `draw` scales the limits by a factor between 0.5 and 1, so that
    /// connections opened together do not end together.
    pub(super) fn begin(self, now: Instant, draw: u32) -> RemainingLifetime {
        let part = 0.5 + f64::from(draw) / f64::from(u32::MAX) / 2.0;
        RemainingLifetime {
            ends: self.age.map(|age| now + age.mul_f64(part)),
            // The cast cannot overflow: the result is at most `most`.
            left: self
                .exchanges
                .map(|most| ((f64::from(most) * part) as u32).max(1)),
        }
    }
}

/// The remaining lifetime of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RemainingLifetime {
    ends: Option<Instant>,
    left: Option<u32>,
}

impl RemainingLifetime {
    /// For a connection to a single server: no limit.
    pub(super) const ENDLESS: Self = Self {
        ends: None,
        left: None,
    };

    /// Counts one exchange. Returns false if it was the last one allowed.
    pub(super) fn spend(&mut self) -> bool {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
        }
        self.left != Some(0)
    }

    /// Whether the connection has reached its maximum age at `now`.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_retires_by_age_or_by_use_within_its_limits() {
        let limits = LifetimeLimits {
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
        let none = LifetimeLimits {
            age: None,
            exchanges: None,
        };
        for mut life in [RemainingLifetime::ENDLESS, none.begin(Instant::now(), 0)] {
            assert!((0..1000).all(|_| life.spend()));
            assert!(!life.is_over(Instant::now() + Duration::from_secs(1 << 30)));
        }
    }

    #[test]
    fn one_exchange_is_the_least() {
        let one = LifetimeLimits {
            age: None,
            exchanges: Some(1),
        };
        assert!(!one.begin(Instant::now(), 0).spend());
    }
}
