//! Counts of both generations, by kind of request.

use std::collections::BTreeMap;

use crate::latency::Sketch;

/// Maximum number of strata that are compared. Only a misbehaving proxy reports more.
pub const MAX_STRATA: usize = 256;

/// A kind of request. Requests of one stratum are alike, so a different mix in the two generations does not affect the
/// verdict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stratum {
    /// The API class, as in metrics.
    pub class: Box<str>,
    /// The size class of the request's body.
    pub size: u8,
}

/// How the requests of one generation and one stratum went, without any times: cheap to add and to compare many times a
/// second.
///
/// Only first attempts of requests that the split assigned freely count, because only the split has decided on which
/// generation they started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// First attempts that started.
    pub started: u64,
    /// First attempts with a known result: they ended, or their response has started with content. The others have neither failed
    /// nor succeeded.
    pub decided: u64,
    /// First attempts that ended, in any way.
    pub ended: u64,
    /// First attempts whose response was complete and without an error.
    pub completed: u64,
    /// First attempts that failed, or whose response was cut or ended with an error.
    pub failed: u64,
    /// The part of `failed` without content, and with an error for which requests are retried on the other generation.
    pub unanswered: u64,
    /// Second attempts on this generation with a known result, after the other generation failed the first one without
    /// content.
    pub retried: u64,
    /// The part of `retried` that failed without content, too.
    pub retries_failed: u64,
}

impl Attempts {
    /// Applies `each` to every count of both.
    fn zip(self, other: Self, each: impl Fn(u64, u64) -> Option<u64>) -> Option<Self> {
        Some(Self {
            started: each(self.started, other.started)?,
            decided: each(self.decided, other.decided)?,
            ended: each(self.ended, other.ended)?,
            completed: each(self.completed, other.completed)?,
            failed: each(self.failed, other.failed)?,
            unanswered: each(self.unanswered, other.unanswered)?,
            retried: each(self.retried, other.retried)?,
            retries_failed: each(self.retries_failed, other.retries_failed)?,
        })
    }

    /// Adds the counts of another one.
    pub(super) fn add(&mut self, other: Self) {
        let sum = self.zip(other, |ours, theirs| Some(ours.saturating_add(theirs)));
        *self = sum.unwrap_or(*self);
    }

    /// The counts since `before`; `None` if a count has decreased, because then both cannot be from one series.
    fn since(self, before: Self) -> Option<Self> {
        self.zip(before, u64::checked_sub)
    }

    /// The counts since `before`. Decreasing counts are ignored.
    pub(super) fn saturating_since(self, before: Self) -> Self {
        let since = self.zip(before, |now, before| Some(now.saturating_sub(before)));
        since.unwrap_or_default()
    }
}

/// The counts of one generation for the requests of one stratum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenerationCounts {
    pub attempts: Attempts,
    /// From the attempt to the first event with content.
    pub first_event: Sketch,
    /// One randomly drawn gap between events per stream, because the gaps of one stream are not independent.
    pub gap: Sketch,
    /// The time per token of each stream with known usage.
    pub per_token: Sketch,
}

impl From<Attempts> for GenerationCounts {
    /// A generation without any times.
    fn from(attempts: Attempts) -> Self {
        Self {
            attempts,
            ..Self::default()
        }
    }
}

impl GenerationCounts {
    /// Adds the counts of another one.
    pub fn add(&mut self, other: &Self) {
        self.attempts.add(other.attempts);
        self.first_event.add(&other.first_event);
        self.gap.add(&other.gap);
        self.per_token.add(&other.per_token);
    }

    /// The counts since `before`; `None` if a count has decreased, because then both cannot be from one series.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        let times = |now: &Sketch, before: &Sketch| {
            let since = now.since(before);
            (now.count().checked_sub(before.count())? == since.count()).then_some(since)
        };
        Some(Self {
            attempts: self.attempts.since(before.attempts)?,
            first_event: times(&self.first_event, &before.first_event)?,
            gap: times(&self.gap, &before.gap)?,
            per_token: times(&self.per_token, &before.per_token)?,
        })
    }
}

/// The counts of both generations, old first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<Stratum, [GenerationCounts; 2]>);

impl Counts {
    /// Adds the counts of another one. Strata beyond [`MAX_STRATA`] are left out.
    pub fn add(&mut self, other: &Self) {
        for (stratum, theirs) in &other.0 {
            if !self.0.contains_key(stratum) {
                if self.0.len() >= MAX_STRATA {
                    continue;
                }
                self.0.insert(stratum.clone(), theirs.clone());
                continue;
            }
            let ours = self.0.entry(stratum.clone()).or_default();
            for (ours, theirs) in ours.iter_mut().zip(theirs) {
                ours.add(theirs);
            }
        }
    }

    /// The counts since `before`; `None` if a count has decreased.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        let none = Default::default();
        if before.0.keys().any(|known| !self.0.contains_key(known)) {
            return None;
        }
        let strata = self.0.iter().map(|(stratum, [old, new])| {
            let [old_before, new_before] = before.0.get(stratum).unwrap_or(&none);
            let generations = [old.since(old_before)?, new.since(new_before)?];
            Some((stratum.clone(), generations))
        });
        Some(Self(strata.collect::<Option<_>>()?))
    }

    /// The attempts of both generations over all strata: merging the times as well takes long.
    #[must_use]
    pub fn outcomes(&self) -> [Attempts; 2] {
        let mut total: [Attempts; 2] = Default::default();
        for generations in self.0.values() {
            for (total, generation) in total.iter_mut().zip(generations) {
                total.add(generation.attempts);
            }
        }
        total
    }

    /// Both generations over all strata.
    #[must_use]
    pub fn total(&self) -> [GenerationCounts; 2] {
        let mut total: [GenerationCounts; 2] = Default::default();
        for generations in self.0.values() {
            for (total, generation) in total.iter_mut().zip(generations) {
                total.add(generation);
            }
        }
        total
    }
}

/// For tests: requests of both generations, and how many of new's failed.
#[cfg(test)]
#[must_use]
pub fn requests(old: u64, new: u64, failed: u64) -> Counts {
    let generation = |started, failed| {
        GenerationCounts::from(Attempts {
            started,
            ended: started,
            completed: started - failed,
            decided: started,
            failed,
            ..Attempts::default()
        })
    };
    let class = "chat".into();
    Counts(
        [(
            Stratum { class, size: 1 },
            [generation(old, 0), generation(new, failed)],
        )]
        .into(),
    )
}
