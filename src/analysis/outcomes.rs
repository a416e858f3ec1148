//! How requests ended, without any times: cheap to count and to compare many times a second.

use std::collections::BTreeMap;

use super::{Counts, Side, Stratum};

/// How the requests of one generation ended; see [`Side`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub started: u64,
    pub ended: u64,
    pub failed: u64,
    pub unanswered: u64,
    pub retried: u64,
    pub retries_failed: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: Self) {
        self.started = self.started.saturating_add(other.started);
        self.ended = self.ended.saturating_add(other.ended);
        self.failed = self.failed.saturating_add(other.failed);
        self.unanswered = self.unanswered.saturating_add(other.unanswered);
        self.retried = self.retried.saturating_add(other.retried);
        self.retries_failed = self.retries_failed.saturating_add(other.retries_failed);
    }

    /// What was counted since `before`. A count that is lower now says nothing.
    fn since(self, before: Self) -> Self {
        Self {
            started: self.started.saturating_sub(before.started),
            ended: self.ended.saturating_sub(before.ended),
            failed: self.failed.saturating_sub(before.failed),
            unanswered: self.unanswered.saturating_sub(before.unanswered),
            retried: self.retried.saturating_sub(before.retried),
            retries_failed: self.retries_failed.saturating_sub(before.retries_failed),
        }
    }
}

impl From<&Side> for Tally {
    fn from(side: &Side) -> Self {
        Self {
            started: side.started,
            ended: side.ended,
            failed: side.failed,
            unanswered: side.unanswered,
            retried: side.retried,
            retries_failed: side.retries_failed,
        }
    }
}

/// How the requests of both generations ended, old first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes(pub BTreeMap<Stratum, [Tally; 2]>);

impl Outcomes {
    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let strata = self.0.iter().map(|(stratum, [old, new])| {
            let [before_old, before_new] = before.0.get(stratum).copied().unwrap_or_default();
            let sides = [old.since(before_old), new.since(before_new)];
            (stratum.clone(), sides)
        });
        Self(strata.collect())
    }
}

impl From<&Counts> for Outcomes {
    fn from(counts: &Counts) -> Self {
        let strata = counts.0.iter();
        Self(
            strata
                .map(|(stratum, sides)| (stratum.clone(), sides.each_ref().map(Tally::from)))
                .collect(),
        )
    }
}
