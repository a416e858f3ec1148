//! The writes that the API server rejected, and when they may be tried again.
//!
//! Each kind of action and the status back off separately, and a different split is tried immediately: moving traffic away must
//! not wait because another write was rejected. Pure: `now` and the jitter are arguments.

use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::rollout::Action;

/// The delays after rejected writes.
pub(super) const WRITES: Backoff = Backoff {
    first: Duration::from_millis(500),
    longest: Duration::from_secs(60),
};

/// The parts that one request writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Action(Action),
    Status,
}

impl Part {
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Action(one), Self::Action(other)) => one.is_like(other),
            (Self::Status, Self::Status) => true,
            _ => false,
        }
    }
}

/// The last rejected write of each kind, for one update.
#[derive(Debug, Default)]
pub(super) struct RejectedWrites(Vec<RejectedWrite>);

#[derive(Debug)]
struct RejectedWrite {
    part: Part,
    until: Instant,
    failures: u32,
}

impl RejectedWrites {
    /// When `part` may be written again; `None` if it may be written now.
    pub fn until(&self, part: &Part, now: Instant) -> Option<Instant> {
        let rejected = self.0.iter().find(|rejected| rejected.part == *part)?;
        Some(rejected.until).filter(|until| *until > now)
    }

    /// When each of `actions` may be carried out; `None` if it may be now.
    pub fn of_actions(&self, actions: Vec<Action>, now: Instant) -> Vec<(Action, Option<Instant>)> {
        let until = |action| {
            let is_it = |rejected: &&RejectedWrite| matches!(&rejected.part, Part::Action(other) if *other == action);
            let rejected = self.0.iter().find(is_it);
            let until = rejected.map(|rejected| rejected.until);
            (action, until.filter(|until| *until > now))
        };
        actions.into_iter().map(until).collect()
    }

    /// Records that `part` was rejected. Returns when it may be tried again.
    pub fn record_rejection(&mut self, part: Part, now: Instant, chance: f64) -> Instant {
        let before = self.0.iter().find(|rejected| rejected.part.is_like(&part));
        let failures = before.map_or(0, |before| before.failures + 1);
        let until = now + WRITES.jittered(failures, chance);
        self.record_success(&part);
        self.0.push(RejectedWrite {
            part,
            until,
            failures,
        });
        until
    }

    /// Resets the backoff of `part` after a successful write.
    pub fn record_success(&mut self, part: &Part) {
        self.0.retain(|rejected| !rejected.part.is_like(part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::DesiredSplit;
    use crate::split::Weights;

    fn spec(split: Weights) -> Part {
        Part::Action(Action::SetSplit(DesiredSplit {
            split,
            old_draining: false,
        }))
    }

    #[test]
    fn a_rejected_write_delays_only_its_own_kind() {
        let (mut rejected_writes, now) = (RejectedWrites::default(), Instant::now());
        let (to_new, to_old) = (spec(Weights::ALL_NEW), spec(Weights::ALL_OLD));
        let until = rejected_writes.record_rejection(to_new.clone(), now, 1.0);
        assert_eq!(until, now + WRITES.first);
        assert_eq!(rejected_writes.until(&to_new, now), Some(until));
        assert_eq!(rejected_writes.until(&to_new, until), None);
        assert_eq!(
            rejected_writes.until(&to_old, now),
            None,
            "moves away immediately"
        );
        assert_eq!(rejected_writes.until(&Part::Status, now), None);
        rejected_writes.record_rejection(Part::Status, now, 1.0);
        rejected_writes.record_success(&to_new);
        assert_eq!(rejected_writes.until(&to_new, now), None);
        assert!(rejected_writes.until(&Part::Status, now).is_some());
    }

    #[test]
    fn delays_grow_up_to_a_limit() {
        let (mut rejected_writes, now) = (RejectedWrites::default(), Instant::now());
        let mut before = Duration::ZERO;
        for i in 0..12 {
            let part = spec(Weights::percent(i).unwrap());
            let pause = rejected_writes.record_rejection(part, now, 1.0) - now;
            assert!(pause > before || pause == WRITES.longest, "{pause:?}");
            before = pause;
        }
        assert_eq!(before, WRITES.longest);
        let half = rejected_writes.record_rejection(Part::Status, now, 0.0) - now;
        assert_eq!(half, WRITES.first / 2);
    }
}
