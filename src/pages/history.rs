//! The samples of the last minutes, one per second, for users who open the page late.

use std::collections::VecDeque;
use std::ops::{Add, Sub};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::resource::UpdatePhase;
use crate::state_api::v1;

/// How many samples are kept: five minutes of them.
const LENGTH: usize = 300;

/// One second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Milliseconds since 1970.
    pub at: u64,
    /// The desired share of new, and the share observed in the last 5 seconds, since a minute would hide a rollout.
    pub wanted: Option<f64>,
    pub observed: Option<f64>,
    /// Open streams of old and new.
    pub open: Option<[u64; 2]>,
    /// The number of the plan in force; 0 if unknown.
    pub plan: u64,
    pub counters: Counters,
    /// If the state is a sum: the number of proxies that responded, and of all proxies.
    pub proxies: Option<[usize; 2]>,
    /// The phase of the update.
    pub phase: Option<UpdatePhase>,
}

/// Counters, of which the page shows the increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub refused_plans: u64,
    pub recovered: u64,
    /// Exchanges that were truncated or failed.
    pub broken: u64,
    /// Exchanges of old and new that ended.
    pub ended: [u64; 2],
}

impl Sample {
    /// The sample of a state, at `now`.
    #[must_use]
    pub fn of(state: &v1::State, now: SystemTime) -> Self {
        let plan = state.plan.as_ref();
        let recent = state.assigned_last_five_seconds.as_ref();
        let open = |generation: &Option<v1::Generation>| {
            generation
                .as_ref()
                .map(|generation| generation.open_streams)
        };
        let open = open(&state.old).zip(open(&state.new));
        Self {
            wanted: plan.and_then(v1::Plan::share_of_new),
            observed: recent.and_then(v1::Requests::share_of_new),
            open: open.map(Into::into),
            plan: plan.map_or(0, |plan| plan.epoch),
            counters: Counters::of(state),
            ..Self::at(now)
        }
    }

    /// A sample without data.
    #[must_use]
    pub fn at(now: SystemTime) -> Self {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            at: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            ..Self::default()
        }
    }

    fn json(&self) -> Value {
        let Self {
            at,
            wanted,
            observed,
            open,
            plan,
            counters,
            proxies,
            phase,
        } = self;
        json!({
            "at": at,
            "wanted": wanted,
            "observed": observed,
            "old": open.map(|[old, _]| old),
            "new": open.map(|[_, new]| new),
            "plan": plan,
            "refused": counters.refused_plans,
            "recovered": counters.recovered,
            "broken": counters.broken,
            "oldEnded": counters.ended[0],
            "newEnded": counters.ended[1],
            "proxies": proxies,
            "phase": phase,
        })
    }
}

impl Counters {
    /// The counters of a state.
    #[must_use]
    pub fn of(state: &v1::State) -> Self {
        let broken = |generation: &Option<v1::Generation>| {
            let outcomes = generation
                .as_ref()
                .and_then(|generation| generation.outcomes);
            outcomes.map_or(0, |outcomes| {
                outcomes.truncated.saturating_add(outcomes.failed)
            })
        };
        Self {
            refused_plans: state.plan.as_ref().map_or(0, |plan| plan.refused_total),
            recovered: { state.recovered_requests.values() }
                .fold(0, |sum, count| sum.saturating_add(*count)),
            broken: broken(&state.old).saturating_add(broken(&state.new)),
            ended: [&state.old, &state.new].map(|generation| {
                let outcomes = generation
                    .as_ref()
                    .and_then(|generation| generation.outcomes);
                outcomes.map_or(0, |outcomes| outcomes.count())
            }),
        }
    }
}

impl Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            refused_plans: self.refused_plans.saturating_add(other.refused_plans),
            recovered: self.recovered.saturating_add(other.recovered),
            broken: self.broken.saturating_add(other.broken),
            ended: [0, 1]
                .map(|generation| self.ended[generation].saturating_add(other.ended[generation])),
        }
    }
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            refused_plans: self.refused_plans.saturating_sub(other.refused_plans),
            recovered: self.recovered.saturating_sub(other.recovered),
            broken: self.broken.saturating_sub(other.broken),
            ended: [0, 1]
                .map(|generation| self.ended[generation].saturating_sub(other.ended[generation])),
        }
    }
}

/// A ring of samples, numbered from 0.
#[derive(Debug, Default)]
pub struct History(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    samples: VecDeque<Sample>,
    /// The number of the next sample.
    next: usize,
}

impl History {
    /// Adds a sample. Call it once per second.
    pub fn push(&self, sample: Sample) {
        let mut ring = self.ring();
        if ring.samples.len() == LENGTH {
            ring.samples.pop_front();
        }
        ring.samples.push_back(sample);
        ring.next += 1;
    }

    /// The samples from number `from` on that are still kept, as JSON, and the number of the next one.
    #[must_use]
    pub fn since(&self, from: usize) -> (Vec<Value>, usize) {
        let ring = self.ring();
        let oldest = ring.next - ring.samples.len();
        let samples = ring.samples.iter().skip(from.saturating_sub(oldest));
        (samples.map(Sample::json).collect(), ring.next)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // No panic can occur in the middle of a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(history: &History, from: usize) -> (Vec<u64>, usize) {
        let (samples, next) = history.since(from);
        let at = |sample: &Value| sample["at"].as_u64().unwrap();
        (samples.iter().map(at).collect(), next)
    }

    #[test]
    fn late_subscribers_get_the_history_and_then_new_events() {
        let history = History::default();
        assert_eq!(times(&history, 0), (vec![], 0));
        let push = |at| {
            history.push(Sample {
                at,
                ..Sample::default()
            });
        };
        push(0);
        push(1);
        assert_eq!(times(&history, 0), (vec![0, 1], 2));
        assert_eq!(times(&history, 2), (vec![], 2));
        (2..=LENGTH as u64).for_each(push);
        let (all, next) = times(&history, 0);
        assert_eq!((all.len(), all[0], next), (LENGTH, 1, LENGTH + 1));
        assert_eq!(times(&history, LENGTH), (vec![LENGTH as u64], LENGTH + 1));
    }

    #[test]
    fn a_sample_has_the_values_of_the_state_and_null_for_missing_ones() {
        let generation = |open_streams| {
            Some(v1::Generation {
                open_streams,
                outcomes: Some(v1::Outcomes {
                    truncated: 1,
                    failed: 2,
                    ..Default::default()
                }),
                ..Default::default()
            })
        };
        let state = v1::State {
            plan: Some(v1::Plan {
                epoch: 7,
                weights: Some(v1::Weights { old: 3, new: 1 }),
                ..Default::default()
            }),
            assigned_last_minute: Some(v1::Requests { old: 1, new: 1 }),
            assigned_last_five_seconds: Some(v1::Requests { old: 0, new: 2 }),
            old: generation(5),
            new: generation(6),
            recovered_requests: [("connect".to_owned(), 2), ("status".to_owned(), 3)].into(),
            ..Default::default()
        };
        let now = UNIX_EPOCH + std::time::Duration::from_millis(1500);
        let json = Sample::of(&state, now).json();
        let wanted = json!({
            "at": 1500, "wanted": 0.25, "observed": 1.0, "old": 5, "new": 6, "plan": 7, "refused": 0, "recovered": 5,
            "broken": 6, "oldEnded": 3, "newEnded": 3, "proxies": null, "phase": null,
        });
        assert_eq!(json, wanted);
        let json = Sample::of(&v1::State::default(), now).json();
        for unknown in ["wanted", "observed", "old", "new"] {
            assert_eq!(json[unknown], Value::Null, "{unknown}");
        }
    }
}
