//! Limits how often something that may happen any number of times is logged.

use std::time::{Duration, Instant};

/// The minimum interval between log lines.
const EVERY: Duration = Duration::from_secs(1);

/// One kind of event.
#[derive(Debug, Default)]
pub struct LogThrottle {
    logged: Option<Instant>,
    times: u64,
}

impl LogThrottle {
    /// The event has happened at `now`. If it should be logged now, returns how many times it has happened since the last log line.
    pub fn record(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        let is_early = self
            .logged
            .is_some_and(|logged| now.saturating_duration_since(logged) < EVERY);
        if is_early {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_logged_once_a_second_with_the_number_of_times() {
        let mut throttle = LogThrottle::default();
        let now = Instant::now();
        assert_eq!(throttle.record(now), Some(1));
        for _ in 0..9 {
            assert_eq!(throttle.record(now), None);
        }
        assert_eq!(throttle.record(now + EVERY), Some(10));
    }
}
