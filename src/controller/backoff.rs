//! Backoff after writes that the API server refused.
//!
//! The split and the status back off separately, and a different split is tried at once: moving traffic away must not wait
//! because another write was refused. Pure: `now` and the jitter are arguments.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Key;
use super::apply::DesiredSplit;

/// Delay after the first error, doubled with each further error, and its maximum.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];

/// Delay after `failures` earlier errors. `chance`, from 0 to 1, sets the jitter: half of the delay to all of it.
pub(super) fn pause(failures: u32, chance: f64) -> Duration {
    let whole = PAUSES[1].min(PAUSES[0] * 2u32.pow(failures.min(10)));
    whole.mul_f64(0.5 + chance / 2.0)
}

/// What one request writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Spec(DesiredSplit),
    Status,
}

#[derive(Debug, Default)]
pub(super) struct Backoffs(HashMap<Key, Refused>);

#[derive(Debug, Default)]
struct Refused {
    spec: Option<(DesiredSplit, Backoff)>,
    status: Option<Backoff>,
}

#[derive(Clone, Copy, Debug)]
struct Backoff {
    until: Instant,
    failures: u32,
}

impl Backoffs {
    /// When `part` may be written again; `None` if it may be written now.
    pub fn until(&self, key: &Key, part: Part, now: Instant) -> Option<Instant> {
        let refused = self.0.get(key)?;
        let pause = match part {
            Part::Spec(wanted) => refused.spec.filter(|(other, _)| *other == wanted)?.1,
            Part::Status => refused.status?,
        };
        Some(pause.until).filter(|until| *until > now)
    }

    /// Records that `part` was refused. Returns when it may be tried again.
    pub fn refused(&mut self, key: &Key, part: Part, now: Instant, chance: f64) -> Instant {
        let refused = self.0.entry(key.clone()).or_default();
        let before = match part {
            Part::Spec(_) => refused.spec.map(|(_, pause)| pause),
            Part::Status => refused.status,
        };
        let failures = before.map_or(0, |before| before.failures + 1);
        let until = now + pause(failures, chance);
        let pause = Backoff { until, failures };
        match part {
            Part::Spec(wanted) => refused.spec = Some((wanted, pause)),
            Part::Status => refused.status = Some(pause),
        }
        until
    }

    /// Resets the backoff of `part` after a successful write.
    pub fn written(&mut self, key: &Key, part: Part) {
        if let Some(refused) = self.0.get_mut(key) {
            match part {
                Part::Spec(_) => refused.spec = None,
                Part::Status => refused.status = None,
            }
        }
    }

    pub fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Drops all backoffs, which belong to an earlier term as leader.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Weights;

    fn key() -> Key {
        Key {
            namespace: "default".into(),
            name: "a".into(),
        }
    }

    fn spec(split: Weights) -> Part {
        Part::Spec(DesiredSplit {
            split,
            old_draining: false,
        })
    }

    #[test]
    fn a_refusal_holds_up_the_same_again_and_nothing_else() {
        let (mut backoffs, now) = (Backoffs::default(), Instant::now());
        let (to_new, to_old) = (spec(Weights::ALL_NEW), spec(Weights::ALL_OLD));
        let until = backoffs.refused(&key(), to_new, now, 1.0);
        assert_eq!(until, now + PAUSES[0]);
        assert_eq!(backoffs.until(&key(), to_new, now), Some(until));
        assert_eq!(backoffs.until(&key(), to_new, until), None);
        assert_eq!(backoffs.until(&key(), to_old, now), None, "away at once");
        assert_eq!(backoffs.until(&key(), Part::Status, now), None);
        backoffs.refused(&key(), Part::Status, now, 1.0);
        backoffs.written(&key(), to_new);
        assert_eq!(backoffs.until(&key(), to_new, now), None);
        assert!(backoffs.until(&key(), Part::Status, now).is_some());
        backoffs.clear();
        assert_eq!(backoffs.until(&key(), Part::Status, now), None);
    }

    #[test]
    fn each_pause_is_longer_to_a_limit() {
        let (mut backoffs, now) = (Backoffs::default(), Instant::now());
        let mut before = Duration::ZERO;
        for i in 0..12 {
            let part = spec(Weights::percent(i).unwrap());
            let pause = backoffs.refused(&key(), part, now, 1.0) - now;
            assert!(pause > before || pause == PAUSES[1], "{pause:?}");
            before = pause;
        }
        assert_eq!(before, PAUSES[1]);
        let half = backoffs.refused(&key(), Part::Status, now, 0.0) - now;
        assert_eq!(half, PAUSES[0] / 2);
    }
}
