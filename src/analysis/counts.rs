//! What each generation did, by kind of request.

use std::collections::BTreeMap;

use crate::latency::Sketch;

/// The most strata that are compared. More come only from a proxy that makes them up.
pub const MAX_STRATA: usize = 256;

/// A kind of request: requests of one stratum are alike, so a different mix on the two sides decides nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stratum {
    /// The API class, as in metrics.
    pub class: Box<str>,
    /// The size class of the request's body.
    pub size: u8,
}

/// What one generation did with the requests of one stratum. Only first attempts of requests that were open to the split
/// count: on which side one of those began was left to the split, and not to what had happened to it before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// First attempts that began.
    pub started: u64,
    /// First attempts of which is known how they go: they are over, or the response has begun with content. The others have
    /// neither failed nor succeeded.
    pub decided: u64,
    /// First attempts that are over, however they ended.
    pub ended: u64,
    /// Those that were answered completely, without an error.
    pub completed: u64,
    /// Those that failed, or whose response was cut or ended with an error.
    pub failed: u64,
    /// Those among them that failed without content, and in a way for which requests are tried on the other side.
    pub unanswered: u64,
    /// Second attempts on this side, after the other side failed the first one without content, of which is known how they go.
    pub retried: u64,
    /// Those among them that failed, too, without content.
    pub retries_failed: u64,
    /// From the attempt to the first event with content.
    pub first_event: Sketch,
    /// Of each stream, one of its gaps between events, drawn at random: gaps of one stream are not independent.
    pub gap: Sketch,
    /// Of each stream with known usage, its time per token.
    pub per_token: Sketch,
}

impl Side {
    /// Adds what another one counted.
    pub fn add(&mut self, other: &Self) {
        self.add_outcomes(other);
        self.first_event.add(&other.first_event);
        self.gap.add(&other.gap);
        self.per_token.add(&other.per_token);
    }

    fn add_outcomes(&mut self, other: &Self) {
        self.started = self.started.saturating_add(other.started);
        self.decided = self.decided.saturating_add(other.decided);
        self.ended = self.ended.saturating_add(other.ended);
        self.completed = self.completed.saturating_add(other.completed);
        self.failed = self.failed.saturating_add(other.failed);
        self.unanswered = self.unanswered.saturating_add(other.unanswered);
        self.retried = self.retried.saturating_add(other.retried);
        self.retries_failed = self.retries_failed.saturating_add(other.retries_failed);
    }

    /// What was counted since `before`; `None` if a count is lower now, so that both cannot be of one series.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        let times = |now: &Sketch, before: &Sketch| {
            let since = now.since(before);
            (now.count().checked_sub(before.count())? == since.count()).then_some(since)
        };
        Some(Self {
            started: self.started.checked_sub(before.started)?,
            decided: self.decided.checked_sub(before.decided)?,
            ended: self.ended.checked_sub(before.ended)?,
            completed: self.completed.checked_sub(before.completed)?,
            failed: self.failed.checked_sub(before.failed)?,
            unanswered: self.unanswered.checked_sub(before.unanswered)?,
            retried: self.retried.checked_sub(before.retried)?,
            retries_failed: self.retries_failed.checked_sub(before.retries_failed)?,
            first_event: times(&self.first_event, &before.first_event)?,
            gap: times(&self.gap, &before.gap)?,
            per_token: times(&self.per_token, &before.per_token)?,
        })
    }
}

/// What both generations did, old first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<Stratum, [Side; 2]>);

impl Counts {
    /// Adds what another one counted. Strata beyond [`MAX_STRATA`] are left out.
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

    /// What was counted since `before`; `None` if a count is lower now.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        let none = Default::default();
        if before.0.keys().any(|known| !self.0.contains_key(known)) {
            return None;
        }
        let strata = self.0.iter().map(|(stratum, [old, new])| {
            let [old_before, new_before] = before.0.get(stratum).unwrap_or(&none);
            let sides = [old.since(old_before)?, new.since(new_before)?];
            Some((stratum.clone(), sides))
        });
        Some(Self(strata.collect::<Option<_>>()?))
    }

    /// Both sides over all strata, without their times: merging those takes long.
    #[must_use]
    pub fn outcomes(&self) -> [Side; 2] {
        let mut total: [Side; 2] = Default::default();
        for sides in self.0.values() {
            for (total, side) in total.iter_mut().zip(sides) {
                total.add_outcomes(side);
            }
        }
        total
    }

    /// Both sides over all strata.
    #[must_use]
    pub fn total(&self) -> [Side; 2] {
        let mut total: [Side; 2] = Default::default();
        for sides in self.0.values() {
            for (total, side) in total.iter_mut().zip(sides) {
                total.add(side);
            }
        }
        total
    }
}
