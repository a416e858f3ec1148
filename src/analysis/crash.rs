//! Does new crash from its first request on? This has a separate test, because each second of a crash costs more requests than
//! any other fault.
//!
//! Evidence from old's requests of the same moment is slow while new gets few requests: at a share of 10%, each failure of new
//! counts at most tenfold, no matter what old did before. So this test also uses how often old failed *before* new began.
//!
//! # What has to be true
//!
//! New fails if both are true after its `k`-th failure, `k ≥ 2`, within its first [`FIRST`] requests:
//!
//! - If new were not worse than old was before, this many failures would be too improbable. If no request of new fails with a
//!   higher probability than its stratum's bound, the number of failures is at most as probable to reach `k` as a Poisson
//!   variable whose mean is the sum of the bounds (Hoeffding, *On the distribution of the number of successes in independent
//!   trials*, Ann. Math. Statist. 27, 1956; Le Cam, Pacific J. Math. 10, 1960). The error is spent on the failures: a share of it
//!   on each `k`, as group-sequential trials spend theirs on looks (Lan, DeMets, *Discrete sequential boundaries for clinical
//!   trials*, Biometrika 70, 1983). The sum of the bounds only grows, so for each `k` there is one last request before which the
//!   `k`-th failure is too early, and the shares add up to the error, no matter how many looks there are.
//! - Old does not fail more at the same time. If both generations failed equally, each failure would be new's with a
//!   probability of new's share of the requests. This makes up for the first test's assumption, that old's failure rate is
//!   what it was before: if both begin to fail as new gets its first requests, new is failed with a probability of at most
//!   [`COINCIDENCE`].

use std::collections::BTreeMap;

use super::{Counts, Outcomes, Stratum};

/// The requests of new that are tested.
const FIRST: u64 = 20;
/// The shares of the error that are spent on the second failure, and on the third. The next ones get half of it each.
const SHARES: [f64; 2] = [0.65, 0.2];
/// The same for the probability that this large a part of the failures is new's if both generations fail equally.
const COINCIDENCE: f64 = 0.025;
const SHARES_OF_COINCIDENCE: [f64; 2] = [0.48, 0.36];
/// The minimum number of old's requests for an estimate, over all strata and per stratum.
const ENOUGH: u64 = 200;
const ENOUGH_OF_STRATUM: u64 = 20;
/// The weight of the rate over all strata in the estimate for one.
const POOLED: f64 = 10.0;

/// New's first requests.
#[derive(Clone, Debug)]
pub(super) struct Crash {
    /// Bounds of old's failure rates before new began.
    bounds: BTreeMap<Stratum, f64>,
    has_begun: bool,
    /// Requests and failures of both generations since, old first.
    requests: [u64; 2],
    failures: [u64; 2],
    /// The expected number of failures of new if it is not worse.
    expected: f64,
    p_value: f64,
}

impl Default for Crash {
    fn default() -> Self {
        Self {
            bounds: BTreeMap::new(),
            has_begun: false,
            requests: [0; 2],
            failures: [0; 2],
            expected: 0.0,
            p_value: 1.0,
        }
    }
}

impl Crash {
    /// Estimates how often old fails, until new begins.
    pub(super) fn learn(&mut self, known: &Counts) {
        if !self.has_begun {
            self.bounds = bounds(known);
        }
    }

    /// Adds the counts of both generations since the last call.
    pub(super) fn add(&mut self, outcomes: &Outcomes, margin: f64) {
        for (stratum, [old, new]) in &outcomes.0 {
            // A request that ends in this period may have begun before it.
            let begun = new.started.max(new.ended);
            self.has_begun |= begun > 0;
            let Some(bound) = self.bounds.get(stratum) else {
                continue;
            };
            if self.has_begun {
                let counted = [(old.started, old.failed), (begun, new.failed)];
                for (generation, (requests, failures)) in counted.into_iter().enumerate() {
                    self.requests[generation] = self.requests[generation].saturating_add(requests);
                    self.failures[generation] = self.failures[generation].saturating_add(failures);
                }
                self.expected += begun as f64 * (bound + margin).min(1.0);
            }
        }
        let [of_old, of_new] = self.requests;
        let [failures_of_old, failures] = self.failures;
        if failures < 2 || of_new > FIRST || of_old == 0 {
            return;
        }
        let share = of_new as f64 / (of_old + of_new) as f64;
        let all = failures.saturating_add(failures_of_old);
        let coincidence = at_least_of(failures, all, share);
        if coincidence <= COINCIDENCE * spent(failures, SHARES_OF_COINCIDENCE) {
            let p_value = at_least(failures, self.expected) / spent(failures, SHARES);
            self.p_value = self.p_value.min(p_value);
        }
    }

    /// An upper bound of the probability that this ever occurs although new is not worse than old was before.
    pub(super) const fn p_value(&self) -> f64 {
        self.p_value
    }
}

/// An upper bound of old's failure rate in each stratum in which it is known: at least its rate over all strata, plus one
/// standard deviation and one failure.
fn bounds(known: &Counts) -> BTreeMap<Stratum, f64> {
    let [all, _] = known.outcomes();
    if all.started < ENOUGH {
        return BTreeMap::new();
    }
    let failed = all.failed as f64;
    let pooled = (failed + 1.0 + failed.sqrt()) / all.started as f64;
    let strata = known.0.iter();
    let strata = strata.filter(|(_, [old, _])| old.attempts.started >= ENOUGH_OF_STRATUM);
    let strata = strata.map(|(stratum, [old, _])| {
        let old = old.attempts;
        let own = (old.failed as f64 + POOLED * pooled) / (old.started as f64 + POOLED);
        (stratum.clone(), own.max(pooled))
    });
    strata.collect()
}

/// The share of the `k`-th failure, from the second one on. All shares add up to 1.
fn spent(k: u64, [second, third]: [f64; 2]) -> f64 {
    match k {
        0 | 1 => 0.0,
        2 => second,
        3 => third,
        k => {
            let halvings = i32::try_from(k - 3).unwrap_or(i32::MAX);
            (1.0 - second - third) * 0.5_f64.powi(halvings)
        }
    }
}

/// The probability that a Poisson variable reaches `k`.
fn at_least(k: u64, mean: f64) -> f64 {
    let mut term = (-mean).exp();
    let mut below = 0.0;
    for i in 0..k {
        below += term;
        term *= mean / (i + 1) as f64;
    }
    (1.0 - below).max(0.0)
}

/// The probability of at least `k` hits in `n` trials with the probability `share`.
fn at_least_of(k: u64, n: u64, share: f64) -> f64 {
    let rest = 1.0 - share;
    let mut term = (n as f64 * rest.ln()).exp();
    let mut below = 0.0;
    for i in 0..k {
        below += term;
        term *= (n - i) as f64 / (i + 1) as f64 * share / rest;
    }
    (1.0 - below).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{Attempts, GenerationCounts};

    fn stratum(size: u8) -> Stratum {
        let class = "chat".into();
        Stratum { class, size }
    }

    /// The p-value after each of `steps` (requests and failures of both generations), given `known` requests of old and how
    /// many of them failed.
    fn p_values(known: [u64; 2], margin: f64, steps: &[[[u64; 2]; 2]]) -> Vec<f64> {
        let mut crash = Crash::default();
        let [started, failed] = known;
        let old = Attempts {
            started,
            failed,
            ..Attempts::default()
        };
        let generations = [old.into(), GenerationCounts::default()];
        crash.learn(&Counts([(stratum(1), generations)].into()));
        let p_values = steps.iter().map(|generations| {
            let generations = generations.map(|[started, failed]| Attempts {
                started,
                ended: started,
                failed,
                ..Attempts::default()
            });
            crash.add(&Outcomes([(stratum(1), generations)].into()), margin);
            crash.p_value()
        });
        p_values.collect()
    }

    #[test]
    fn probabilities_are_those_of_the_tables() {
        assert!((at_least(2, 0.1) - 0.004_678_84).abs() < 1e-8);
        assert!((at_least_of(2, 3, 0.1) - 0.028).abs() < 1e-12);
        assert!((at_least_of(3, 3, 0.1) - 0.001).abs() < 1e-12);
        for shares in [SHARES, SHARES_OF_COINCIDENCE] {
            let all: f64 = (0..200).map(|k| spent(k, shares)).sum();
            assert!((all - 1.0).abs() < 1e-12, "{all}");
        }
    }

    #[test]
    fn two_failures_among_the_first_requests_are_a_crash_and_one_is_not() {
        let p_values = p_values([3000, 15], 0.005, &[[[9, 0], [1, 1]], [[18, 0], [2, 1]]]);
        assert!(p_values[0] >= 1.0, "{p_values:?}");
        assert!(p_values[1] < 0.002, "{p_values:?}");
    }

    #[test]
    fn simultaneous_failures_of_old_are_not_a_crash() {
        for failures_of_old in [2, 9] {
            let steps = [[[27, failures_of_old], [3, 2]]];
            let p_values = p_values([3000, 15], 0.005, &steps);
            assert!(p_values[0] >= 1.0, "{failures_of_old} {p_values:?}");
        }
        // With half of the requests, two failures in a row are chance.
        assert!(p_values([3000, 15], 0.005, &[[[3, 0], [3, 2]]])[0] >= 1.0);
    }

    #[test]
    fn nothing_is_tested_without_knowing_old_or_after_the_first_requests() {
        let crash = [[[90, 0], [10, 10]]];
        assert!(p_values([3000, 15], 0.005, &crash)[0] < 1e-6);
        assert!(p_values([199, 0], 0.005, &crash)[0] >= 1.0);
        let late = [[[180, 0], [20, 0]], [[90, 0], [10, 10]]];
        assert!(p_values([3000, 15], 0.005, &late)[1] >= 1.0);
        // Nor in strata in which old is not known.
        let mut known = Crash::default();
        known.add(
            &Outcomes(
                [(
                    stratum(2),
                    [10, 10].map(|failed| Attempts {
                        started: 10,
                        failed,
                        ..Attempts::default()
                    }),
                )]
                .into(),
            ),
            0.005,
        );
        assert!(known.p_value() >= 1.0);
    }

    /// The true probability of a failure that is found, summed over all ways in which new's first requests may fail, old's rate being
    /// what it was.
    #[test]
    fn new_that_is_as_bad_as_the_margin_allows_is_failed_no_more_often_than_the_level() {
        const LEVEL: f64 = 0.004;
        for (known, rate, margin) in [([3000, 15], 0.01, 0.005), ([3000, 150], 0.05, 0.0)] {
            // The probabilities of each number of failures, without a crash having been found.
            let mut open = vec![1.0];
            let mut found = 0.0;
            for requests in 1..=FIRST {
                let mut next = vec![0.0; open.len() + 1];
                for (failures, probability) in open.iter().enumerate() {
                    next[failures] += probability * (1.0 - rate);
                    next[failures + 1] += probability * rate;
                }
                for (failures, probability) in next.iter_mut().enumerate() {
                    let steps = [[[9 * requests, 0], [requests, failures as u64]]];
                    if p_values(known, margin, &steps)[0] <= LEVEL {
                        found += std::mem::take(probability);
                    }
                }
                open = next;
            }
            assert!(found <= LEVEL, "{known:?} {found}");
        }
    }
}
