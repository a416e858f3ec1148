//! The last minutes, a sample a second, so that who opens the page late sees them too.
//!
//! Must not know how they are drawn.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::admin::Admin;
use crate::split::Generation;
use crate::sse::Outcome;

/// How many samples are kept: five minutes.
const LENGTH: usize = 300;
/// The observed split of a sample is of so many seconds: a minute would hide a fade.
const RECENT: u64 = 5;

/// One moment. Counters are since the process started.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    /// Milliseconds since 1970.
    at: u64,
    wanted: f64,
    observed: Option<f64>,
    open: [i64; 2],
    epoch: u64,
    refused_plans: u64,
    saves: u64,
    /// Exchanges that were truncated or failed.
    broken: u64,
}

impl Sample {
    fn now(admin: &Admin) -> Self {
        let snapshot = admin.world.load();
        let metrics = &admin.metrics;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let broken = |side| {
            let count = |outcome| metrics.outcomes(side, outcome);
            count(Outcome::Truncated) + count(Outcome::Failed)
        };
        Self {
            at: u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX),
            wanted: snapshot.plan.weights.share_of_new(),
            observed: metrics
                .window
                .share_over(metrics.second(Instant::now()), RECENT),
            open: Generation::ALL.map(|side| metrics.open_streams(side)),
            epoch: snapshot.epoch,
            refused_plans: metrics.plans_rejected.get(),
            saves: metrics.saves(),
            broken: Generation::ALL.into_iter().map(broken).sum(),
        }
    }

    fn json(&self) -> Value {
        let [old, new] = self.open;
        json!({
            "at": self.at,
            "wanted": self.wanted,
            "observed": self.observed,
            "old": old,
            "new": new,
            "epoch": self.epoch,
            "refused": self.refused_plans,
            "saves": self.saves,
            "broken": self.broken,
        })
    }
}

/// A ring of samples. Each has a number, counted from 0 since the process started.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    samples: VecDeque<Sample>,
    /// The number of the next sample.
    next: usize,
}

impl History {
    /// Takes a sample of now.
    pub(super) fn sample(&self, admin: &Admin) {
        self.push(Sample::now(admin));
    }

    fn push(&self, sample: Sample) {
        let mut ring = self.ring();
        if ring.samples.len() == LENGTH {
            ring.samples.pop_front();
        }
        ring.samples.push_back(sample);
        ring.next += 1;
    }

    /// The samples from number `from` on that are kept, and the number that comes next.
    pub(super) fn since(&self, from: usize) -> (Vec<Value>, usize) {
        let ring = self.ring();
        let oldest = ring.next - ring.samples.len();
        let samples = ring.samples.iter().skip(from.saturating_sub(oldest));
        (samples.map(Sample::json).collect(), ring.next)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // Nobody panics half-way through a change of it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(history: &History, from: usize) -> (Vec<u64>, usize) {
        let (samples, next) = history.since(from);
        let at = |sample: &Value| sample["at"].as_u64().unwrap();
        (samples.iter().map(at).collect(), next)
    }

    #[test]
    fn who_comes_late_gets_what_is_kept_and_then_only_what_is_new() {
        let history = History::default();
        assert_eq!(moments(&history, 0), (vec![], 0));
        let sample = Sample::now(&Admin::idle());
        let push = |at| {
            history.push(Sample {
                at,
                ..sample.clone()
            });
        };
        push(0);
        push(1);
        assert_eq!(moments(&history, 0), (vec![0, 1], 2));
        assert_eq!(moments(&history, 2), (vec![], 2));
        (2..=LENGTH as u64).for_each(push);
        let (all, next) = moments(&history, 0);
        assert_eq!((all.len(), all[0], next), (LENGTH, 1, LENGTH + 1));
        assert_eq!(moments(&history, LENGTH), (vec![LENGTH as u64], LENGTH + 1));
    }
}
