//! Groups outcomes into blocks, by which failures are compared.
//!
//! A block of a stratum is closed once both generations have begun a request. While new begins none, the block keeps old's
//! requests of the last one to two seconds, so that the first failures of a new generation are compared with enough of old's
//! requests from the same time.
//!
//! The end of a block depends only on when requests *began*, never on how they ended: if a failure could end a block, the
//! evidence would be biased.
//!
//! While old begins none at all, for example at a split of 100%, the control group consists of the second attempts that old gets
//! after new has failed the first. If requests fail because of their content, old fails them more often than others, which only
//! hides a difference. How many there are depends on how often new fails, so a second's attempts on old are compared with the
//! requests that new begins in the next one. Only failures without content count then, since only those are retried.

use std::collections::BTreeMap;
use std::time::Duration;

use super::evidence::Block;
use super::{Attempts, Counts, MAX_STRATA, Outcomes, Stratum};

/// The period for which requests are kept while the other generation has none to compare them with (up to two of these
/// periods).
const KEPT: Duration = Duration::from_secs(1);
/// The time over which requests that begin are compared with requests that end.
const FLOW: Duration = Duration::from_secs(5);
/// The number of requests with which the estimate of old's failure rate begins, and their rate.
const PRIOR: f64 = 100.0;
const PRIOR_RATE: f64 = 0.005;
/// The weight of the rate over all strata in the estimate for one.
const POOLED: f64 = 50.0;

/// Outcomes that have not been evaluated yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures {
    /// The time until which outcomes have been added.
    until: Duration,
    open: BTreeMap<Stratum, OpenBlock>,
    alone: BTreeMap<Stratum, SecondWithoutOld>,
    rates: Rates,
    flow: Flow,
}

/// A block that is not closed yet.
#[derive(Clone, Debug, Default)]
struct OpenBlock {
    /// Old's counts from before `since`.
    earlier: Attempts,
    generations: [Attempts; 2],
    since: Duration,
}

impl OpenBlock {
    /// Forgets counts that are too old to be compared with the current ones.
    fn age(&mut self, now: Duration) {
        let age = now.saturating_sub(self.since);
        let [old, new] = self.generations;
        // A block with requests of both generations is about to be closed.
        let has_both = new.started > 0 && old.started.max(self.earlier.started) > 0;
        if age < KEPT || has_both {
            return;
        }
        // All of a long look is too old.
        self.earlier = if new.started == 0 && age < KEPT * 2 {
            old
        } else {
            Attempts::default()
        };
        self.generations = Default::default();
        self.since = now;
    }
}

/// A second in which old began no request.
#[derive(Clone, Debug, Default)]
struct SecondWithoutOld {
    since: Duration,
    new: Attempts,
    /// Second attempts on old: those of the second before, and those of this one.
    before: Option<Attempts>,
    retries: Attempts,
}

impl SecondWithoutOld {
    /// Adds the counts of both generations until `now`, and closes a block once a second is over.
    fn add(&mut self, [old, new]: [Attempts; 2], now: Duration) -> Option<[Attempts; 2]> {
        self.retries.add(old);
        self.new.add(new);
        if now.saturating_sub(self.since) < KEPT {
            return None;
        }
        self.since = now;
        let new = std::mem::take(&mut self.new);
        let before = self.before.replace(std::mem::take(&mut self.retries))?;
        (before.retried > 0 && new.started > 0).then_some([before, new])
    }
}

impl Failures {
    /// Adds the counts of both generations until `now`, and closes blocks. `interim` says that the next outcomes follow soon:
    /// a block then waits until no request of new has just begun, so that its failure is not missed.
    pub(super) fn add(&mut self, outcomes: &Outcomes, now: Duration, interim: bool) -> Vec<Block> {
        let before = std::mem::replace(&mut self.until, now);
        let step = now.saturating_sub(before);
        let stands_for = self.flow.add(outcomes, step);
        let mut blocks = Vec::new();
        for (stratum, [old, new]) in &outcomes.0 {
            if !self.open.contains_key(stratum) {
                if self.open.len() >= MAX_STRATA {
                    continue;
                }
                let open = OpenBlock {
                    since: before,
                    ..OpenBlock::default()
                };
                self.open.insert(stratum.clone(), open);
            }
            let Some(open) = self.open.get_mut(stratum) else {
                continue;
            };
            open.generations[0].add(*old);
            open.generations[1].add(*new);
            let mut of_old = open.earlier;
            of_old.add(open.generations[0]);
            let of_new = open.generations[1];
            if of_old.started > 0 && of_new.started > 0 && !(interim && new.started > 0) {
                let begun = of_new.started as f64 * stands_for;
                blocks.push(Block {
                    n: [of_old.started as f64, begun],
                    k: [of_old.failed as f64, (of_new.failed as f64).min(begun)],
                    a: self.rates.of(stratum),
                });
                *open = OpenBlock {
                    since: now,
                    ..OpenBlock::default()
                };
            }
        }
        for open in self.open.values_mut() {
            open.age(now);
        }
        blocks.extend(self.without_old(outcomes, before, stands_for));
        blocks
    }

    /// Closes blocks of strata in which old begins no request.
    fn without_old(
        &mut self,
        outcomes: &Outcomes,
        before: Duration,
        stands_for: f64,
    ) -> Vec<Block> {
        let mut blocks = Vec::new();
        for (stratum, generations) in &outcomes.0 {
            let Some(open) = self.open.get_mut(stratum) else {
                continue;
            };
            let [old, _] = generations;
            if old.started > 0 {
                self.alone.remove(stratum);
                continue;
            }
            let alone = self
                .alone
                .entry(stratum.clone())
                .or_insert_with(|| SecondWithoutOld {
                    since: before,
                    ..SecondWithoutOld::default()
                });
            if let Some([retries, new]) = alone.add(*generations, self.until) {
                // They count only once.
                open.generations[1] = Attempts::default();
                let begun = new.started as f64 * stands_for;
                blocks.push(Block {
                    n: [retries.retried as f64, begun],
                    k: [
                        retries.retries_failed as f64,
                        (new.unanswered as f64).min(begun),
                    ],
                    a: self.rates.of(stratum),
                });
            }
        }
        blocks
    }

    /// Estimates old's rates for the blocks to come.
    pub(super) fn learn(&mut self, known: &Counts) {
        self.rates = Rates::of_old(known);
    }
}

/// Old's failure rates, as estimated from earlier looks.
#[derive(Clone, Debug, Default)]
struct Rates {
    pooled: Option<f64>,
    strata: BTreeMap<Stratum, f64>,
}

impl Rates {
    fn of_old(known: &Counts) -> Self {
        let [all, _] = known.outcomes();
        let pooled = (all.failed as f64 + PRIOR * PRIOR_RATE) / (all.started as f64 + PRIOR);
        let strata = known.0.iter().map(|(stratum, [old, _])| {
            let old = old.attempts;
            let failed = old.failed as f64 + POOLED * pooled;
            let rate = failed / (old.started as f64 + POOLED);
            (stratum.clone(), rate.min(0.9))
        });
        Self {
            pooled: Some(pooled),
            strata: strata.collect(),
        }
    }

    fn of(&self, stratum: &Stratum) -> f64 {
        let pooled = self.pooled.unwrap_or(PRIOR_RATE).min(0.9);
        self.strata.get(stratum).copied().unwrap_or(pooled)
    }
}

/// New's requests that began and that ended lately.
#[derive(Clone, Debug, Default)]
struct Flow {
    started: f64,
    ended: f64,
}

impl Flow {
    /// The number of requests, at least 1, that each request counts for if it began now.
    ///
    /// A failure is counted later than the start of its request. While new gets more and more requests, this only delays
    /// failures. If it gets fewer than before, the failures of earlier requests must not count against the few that begin now;
    /// then more requests end than begin, by more than chance explains (two standard deviations).
    fn add(&mut self, outcomes: &Outcomes, step: Duration) -> f64 {
        let mut new = Attempts::default();
        for [_, of_new] in outcomes.0.values() {
            new.add(*of_new);
        }
        let kept = (1.0 - step.as_secs_f64() / FLOW.as_secs_f64()).max(0.0);
        self.started = self.started * kept + new.started as f64;
        self.ended = self.ended * kept + new.ended as f64;
        if self.started <= 0.0 {
            return 1.0;
        }
        let by_chance = 2.0 * (self.started + self.ended).sqrt();
        1.0 + (self.ended - self.started - by_chance).max(0.0) / self.started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What both generations began and failed, 50 ms apart.
    fn blocks(steps: &[[[u64; 2]; 2]]) -> Vec<Vec<[f64; 4]>> {
        let mut failures = Failures::default();
        let blocks = (1..).zip(steps).map(|(number, generations)| {
            let stratum = Stratum {
                class: "chat".into(),
                size: 1,
            };
            let generations = generations.map(|[started, failed]| Attempts {
                started,
                ended: started,
                failed,
                ..Attempts::default()
            });
            let outcomes = Outcomes([(stratum, generations)].into());
            let closed = failures.add(&outcomes, Duration::from_millis(50) * number, true);
            let flat = |Block { n, k, .. }: &Block| [n[0], k[0], n[1], k[1]];
            closed.iter().map(flat).collect()
        });
        blocks.collect()
    }

    #[test]
    fn a_block_closes_once_both_generations_started_a_request_and_no_request_of_new_is_recent() {
        let steps = [
            [[2, 0], [1, 0]],
            // It fails only now.
            [[1, 1], [0, 1]],
            [[0, 0], [1, 0]],
            [[0, 0], [0, 0]],
            [[3, 0], [0, 0]],
        ];
        let none = Vec::new;
        let closed = [
            none(),
            vec![[3.0, 1.0, 1.0, 1.0]],
            none(),
            none(),
            vec![[3.0, 0.0, 1.0, 0.0]],
        ];
        assert_eq!(blocks(&steps), closed);
    }

    #[test]
    fn old_requests_of_the_last_one_to_two_seconds_are_compared_with_the_first_of_new() {
        let mut steps = vec![[[1, 0], [0, 0]]; 70];
        steps.extend([[[0, 0], [1, 1]], [[0, 0], [0, 0]]]);
        let closed = blocks(&steps);
        assert!(closed[..71].iter().all(Vec::is_empty));
        // What came before the second second is too old by then.
        assert_eq!(closed[71], [[30.0, 0.0, 1.0, 1.0]]);
        // The second is over just as the first one of new begins.
        let mut steps = vec![[[1, 0], [0, 0]]; 59];
        steps.extend([[[0, 0], [1, 1]], [[0, 0], [0, 0]]]);
        assert_eq!(blocks(&steps)[60], [[39.0, 0.0, 1.0, 1.0]]);
    }

    #[test]
    fn second_attempts_on_old_are_compared_with_the_next_requests_of_new_while_old_begins_none() {
        let mut failures = Failures::default();
        let mut closed = Vec::new();
        for step in 1..=65 {
            let stratum = Stratum {
                class: "chat".into(),
                size: 1,
            };
            let old = Attempts {
                retried: 1,
                retries_failed: u64::from(step % 10 == 0),
                ..Attempts::default()
            };
            let new = Attempts {
                started: 2,
                ended: 2,
                failed: 2,
                unanswered: 1,
                ..Attempts::default()
            };
            // In the end, old gets requests again.
            let old = if step > 60 {
                Attempts { started: 1, ..old }
            } else {
                old
            };
            let outcomes = Outcomes([(stratum, [old, new])].into());
            for Block { n, k, .. } in
                failures.add(&outcomes, Duration::from_millis(50) * step, false)
            {
                closed.push((step, [n[0], k[0], n[1], k[1]]));
            }
        }
        assert_eq!(
            closed[..3],
            [
                (40, [20.0, 2.0, 40.0, 20.0]),
                (60, [20.0, 2.0, 40.0, 20.0]),
                (61, [1.0, 0.0, 2.0, 2.0]),
            ]
        );
    }

    #[test]
    fn requests_of_new_that_have_none_of_old_beside_them_are_not_kept() {
        let mut steps = vec![[[0, 0], [1, 1]]; 40];
        steps.extend([[[0, 0], [0, 0]], [[1, 0], [0, 0]]]);
        assert!(blocks(&steps).iter().all(Vec::is_empty));
    }
}
