//! Does new begin to fail most requests at any time? This has a separate test, because each second of a crash costs more requests
//! than any other fault.
//!
//! [`super::evidence`] mixes products that begin at every look. After an hour, the weight of each is so small that it takes ten
//! failures to detect a crash. Here, a product begins only where failures cluster. There are few of those, so each has a large
//! weight: an e-detector (Shin, Ramdas, Rinaldo, *E-detectors: a nonparametric framework for sequential change detection*, NEJSDS
//! 2024) whose e-processes begin at stopping times.
//!
//! - A crash is *suspected* when a cumulative sum of new's failures reaches [`SUSPECTED`] (Page, *Continuous inspection schemes*,
//!   Biometrika 41, 1954): with the second of two failures, if at most one request in between did not fail. The failures that
//!   raised the suspicion are not evidence.
//! - The `t`-th suspicion begins a product of the e-variables of the looks that follow, with the weight `1 / (t (t + 1))`. The
//!   product is abandoned once it has fallen below [`GIVEN_UP`].
//!
//! Whether a product begins or is abandoned depends only on earlier looks, and all weights add up to 1. Therefore, the sum of the
//! weighted products is an e-process: if new is not worse, it ever reaches `1 / α` with a probability of at most `α`, by Ville's
//! inequality. Only requests of the same time are compared: if both generations fail, products begin and are abandoned, no
//! matter what the rates are.

use std::time::Duration;

use super::evidence::{Block, Law};

/// New's failure rate in the alternative: between those of a partial and of a full crash.
const RATE: f64 = 0.75;
/// By how much each request of new lowers the sum. A failure raises it by 1.
const ALLOWED: f64 = 0.3;
/// The sum from which on a crash is suspected.
const SUSPECTED: f64 = 1.0;
/// The logarithm of the product below which it is abandoned.
const GIVEN_UP: f64 = -3.5;
/// The logarithm of the largest factor of a look, and what each second of it adds: requests that fail at the same moment often
/// have the same cause, such as the end of a single pod.
const MAX_FACTOR: f64 = 4.0;
const MAX_FACTOR_PER_SECOND: f64 = 8.0;

/// The evidence that new crashes.
#[derive(Clone, Debug, Default)]
pub(super) struct LateCrash {
    /// When blocks were last added.
    until: Duration,
    sum: f64,
    suspicions: u32,
    /// The logarithm of the product that began last.
    product: Option<f64>,
    /// The logarithm of the highest value of the weighted products.
    highest: f64,
}

impl LateCrash {
    /// Adds the blocks that a look has closed.
    pub(super) fn add(&mut self, blocks: &[Block], margin: f64, now: Duration) {
        let seconds = now.saturating_sub(self.until).as_secs_f64();
        self.until = now;
        let Some(product) = &mut self.product else {
            self.suspect(blocks);
            return;
        };
        let law = Law::Failed { margin };
        let log_e: f64 = blocks.iter().map(|block| law.log_e(block, RATE)).sum();
        *product += log_e.min(MAX_FACTOR + MAX_FACTOR_PER_SECOND * seconds);
        let t = f64::from(self.suspicions);
        self.highest = self.highest.max(*product - (t * (t + 1.0)).ln());
        if *product < GIVEN_UP {
            self.product = None;
            self.sum = 0.0;
        }
    }

    fn suspect(&mut self, blocks: &[Block]) {
        for Block { n, k, .. } in blocks {
            self.sum = (self.sum + k[1] - ALLOWED * n[1]).max(0.0);
        }
        if self.sum >= SUSPECTED {
            self.suspicions = self.suspicions.saturating_add(1);
            self.product = Some(0.0);
        }
    }

    /// An upper bound of the probability that evidence this strong ever occurs although new is not worse: an always-valid
    /// p-value.
    pub(super) fn p_value(&self) -> f64 {
        (-self.highest).exp().min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Failures of each generation among nine requests of old and one of new.
    fn block([old, new]: [u64; 2]) -> Block {
        Block {
            n: [9.0, 1.0],
            k: [old as f64, new as f64],
            a: 0.005,
        }
    }

    /// The p-value after each look, 50 ms apart.
    fn p_values(failures: &[[u64; 2]]) -> Vec<f64> {
        let mut crash = LateCrash::default();
        let looks = (1..).zip(failures);
        let p_values = looks.map(|(number, failures)| {
            let now = Duration::from_millis(50) * number;
            crash.add(&[block(*failures)], 0.005, now);
            crash.p_value()
        });
        p_values.collect()
    }

    #[test]
    fn five_failures_in_a_row_are_a_crash_even_after_a_long_good_run() {
        let mut failures = vec![[0, 0]; 10_000];
        failures.extend([[0, 1]; 5]);
        let p_values = p_values(&failures);
        assert!(p_values[10_001] >= 1.0, "the second only raises suspicion");
        assert!(p_values[10_003] > 0.003, "{}", p_values[10_003]);
        assert!(p_values[10_004] < 0.003, "{}", p_values[10_004]);
    }

    #[test]
    fn distant_failures_are_not_a_crash() {
        let failures: Vec<_> = (0..10_000).map(|n| [0, u64::from(n % 5 == 0)]).collect();
        assert!(p_values(&failures).iter().all(|p| *p >= 1.0));
    }

    #[test]
    fn a_failure_on_both_generations_is_not_a_crash() {
        for failures in [[9, 1], [5, 1]] {
            assert!(p_values(&[failures; 50])[49] > 0.1, "{failures:?}");
        }
    }

    /// A pod that ends cuts its streams, no matter how many there are.
    #[test]
    fn one_look_decides_nothing() {
        let all = Block {
            n: [90.0, 90.0],
            k: [0.0, 90.0],
            a: 0.005,
        };
        let mut crash = LateCrash::default();
        for number in 1..=2 {
            crash.add(&[all], 0.005, Duration::from_millis(50) * number);
        }
        assert!(crash.p_value() > 0.01, "{}", crash.p_value());
    }

    /// A false suspicion leaves less weight for the next ones.
    #[test]
    fn each_suspicion_has_less_weight_than_the_one_before() {
        let after = |suspicions: usize| {
            let mut failures = Vec::new();
            for _ in 0..suspicions {
                failures.extend([[0, 1], [0, 1]]);
                failures.extend([[0, 0]; 20]);
            }
            failures.extend([[0, 1]; 5]);
            let p_values = p_values(&failures);
            p_values[p_values.len() - 1]
        };
        let ratios = [after(1) / after(0), after(2) / after(0)];
        assert!((ratios[0] - 3.0).abs() < 1e-9, "{ratios:?}");
        assert!((ratios[1] - 6.0).abs() < 1e-9, "{ratios:?}");
    }
}
