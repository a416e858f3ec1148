//! The results of the probes of an endpoint.
//!
//! Whether a result may be used, and when to probe again, are pure functions of the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::backoff::Backoff;
use crate::continuation::{Capability, Probe};

/// How long a result may be used.
pub(super) const LIFE: Duration = Duration::from_secs(600);
/// The age at which a probe is repeated, so that there is always a usable result.
pub(super) const RENEWAL: Duration = Duration::from_secs(240);
/// The delays after probes without a response.
pub(super) const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(10),
};

/// A probe and its result.
#[derive(Clone, Debug)]
pub(super) struct ProbeRecord<T> {
    /// The last result, and its time.
    pub answer: Option<(T, Instant)>,
    /// When the probe was last sent.
    pub at: Instant,
    /// How many times in a row it was sent without a result.
    pub failures: u32,
    /// The plan and the run of the server for which it was sent.
    plan: u64,
    run: u32,
}

impl<T: Clone> ProbeRecord<T> {
    /// The state after a probe at `now`; `answer` is `None` if there was no result.
    pub fn next(
        previous: Option<&Self>,
        answer: Option<T>,
        now: Instant,
        plan: u64,
        run: u32,
    ) -> Self {
        let failures = match &answer {
            Some(_) => 0,
            None => previous
                .map_or(0, |previous| previous.failures)
                .saturating_add(1),
        };
        // A server that does not respond keeps its proofs until they are too old.
        let kept = || {
            previous
                .filter(|previous| previous.run == run)?
                .answer
                .clone()
        };
        Self {
            answer: answer.map(|answer| (answer, now)).or_else(kept),
            at: now,
            failures,
            plan,
            run,
        }
    }

    /// The result, if it may be used at `now`.
    pub fn usable(&self, now: Instant, run: u32) -> Option<&T> {
        let (answer, given) = self.answer.as_ref()?;
        let valid = self.run == run && now.saturating_duration_since(*given) < LIFE;
        valid.then_some(answer)
    }

    /// Whether the probe should be repeated at `now`.
    pub fn is_due(&self, now: Instant, plan: u64, run: u32) -> bool {
        let waited = now.saturating_duration_since(self.at);
        match self.failures {
            0 => self.run != run || self.plan != plan || waited >= RENEWAL,
            failures => waited >= pause(failures),
        }
    }
}

/// The pause after `failures` probes in a row without a result.
fn pause(failures: u32) -> Duration {
    BACKOFF.delay(failures.saturating_sub(1))
}

pub(super) type Models = Arc<[Arc<str>]>;
type ByModel = BTreeMap<Arc<str>, ProbeRecord<Capability>>;

/// The proofs of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    chat: ArcSwap<ByModel>,
    messages: ArcSwap<ByModel>,
    pub models: ArcSwap<Option<ProbeRecord<Models>>>,
    /// Counts the times that the server may have restarted.
    pub runs: AtomicU32,
}

impl Proofs {
    pub const fn of(&self, probe: Probe) -> &ArcSwap<ByModel> {
        match probe {
            Probe::Chat => &self.chat,
            Probe::Messages => &self.messages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_between_probes_grow_up_to_a_limit() {
        let pauses: Vec<_> = (1..7).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        assert_eq!(pause(u32::MAX), BACKOFF.longest);
    }
}
