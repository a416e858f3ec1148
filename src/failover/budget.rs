//! Limits the retries of a process to a share of its requests, so that a failing generation never doubles the load.
//!
//! A token bucket, like Finagle's `RetryBudget`: every request adds `percent` hundredths of a retry, every retry takes a whole
//! one. The bucket holds the credit of [`DEPTH`] requests and starts full. An idle process is credited for [`FLOOR`] requests per
//! second, so that the few requests of a quiet hour can be retried, too.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Number of requests whose credit the bucket can hold.
const DEPTH: i64 = 300;
/// Minimum number of requests that are credited per second.
const FLOOR: u64 = 10;
/// A retry, in the bucket's unit: hundredths of a request.
const RETRY: i64 = 100;

/// The bucket of a process. A new plan changes the percentage, not the credit.
#[derive(Debug)]
pub struct RetryBudget {
    hundredths: AtomicI64,
    /// The second, since the process started, up to which the floor was credited.
    credited: AtomicU64,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            hundredths: AtomicI64::new(i64::MAX),
            credited: AtomicU64::new(0),
        }
    }
}

impl RetryBudget {
    /// Credits a request.
    pub fn earn(&self, percent: u8) {
        self.add(i64::from(percent), percent);
    }

    /// Whether a retry is allowed, `seconds` after the process started. If so, takes it from the bucket.
    pub fn spend(&self, percent: u8, seconds: u64) -> bool {
        let credited = self.credited.fetch_max(seconds, Ordering::Relaxed);
        let owed = seconds.saturating_sub(credited).min(DEPTH as u64) * FLOOR;
        self.add(owed as i64 * i64::from(percent), percent);
        self.hundredths
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                (left >= RETRY).then(|| left - RETRY)
            })
            .is_ok()
    }

    fn add(&self, hundredths: i64, percent: u8) {
        let full = DEPTH * i64::from(percent);
        let left = self.hundredths.load(Ordering::Relaxed);
        // A full bucket, which is the usual case, is not written, because all cores share its cache line.
        if left != full {
            let _ = self
                .hundredths
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    Some(left.saturating_add(hundredths).min(full))
                });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_beyond_the_bucket_are_a_share_of_the_requests() {
        let budget = RetryBudget::default();
        let retries = (0..10_000)
            .filter(|_| {
                budget.earn(20);
                budget.spend(20, 0)
            })
            .count();
        assert!((2000..=2060).contains(&retries), "{retries}");
    }

    #[test]
    fn a_percentage_of_0_allows_none() {
        let budget = RetryBudget::default();
        assert!((0..100).all(|second| {
            budget.earn(0);
            !budget.spend(0, second)
        }));
    }

    #[test]
    fn an_idle_process_earns_some_retries() {
        let budget = RetryBudget::default();
        budget.earn(20);
        while budget.spend(20, 0) {}
        assert!(!budget.spend(20, 0));
        assert!(budget.spend(20, 1) && budget.spend(20, 1) && !budget.spend(20, 1));
    }
}
