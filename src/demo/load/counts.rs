//! The observations of all clients: counts and times. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Ending, RequestReport};
use crate::split::Generation;

/// All reports so far.
#[derive(Clone, Debug, Default)]
pub(in crate::demo) struct Counts {
    begun: u64,
    /// By generation (old, new, none), then by ending.
    endings: [[u64; Ending::ALL.len()]; 3],
    /// Not completed, at a time when no upstream was down.
    lost_without_outage: u64,
    /// From the request to the first token, by generation.
    pub(in crate::demo) first_token: [Times; 2],
    /// From token to token, by generation.
    pub(in crate::demo) gap: [Times; 2],
    /// Responses by generation, under the split (in percent) that was in force when they were requested.
    pub(in crate::demo) by_split: BTreeMap<u8, [u64; 2]>,
}

impl Counts {
    /// A request is about to be sent.
    pub(in crate::demo) fn begin(&mut self) {
        self.begun += 1;
    }

    /// It ended. `percent` is the split at its start; `outage` says whether an upstream was down.
    pub(in crate::demo) fn end(&mut self, report: &RequestReport, percent: u8, outage: bool) {
        let generation = report.generation.map_or(2, Generation::index);
        self.endings[generation][report.ending as usize] += 1;
        if report.ending != Ending::Completed && !outage {
            self.lost_without_outage += 1;
        }
        if let Some(generation) = report.generation.map(Generation::index) {
            self.by_split.entry(percent).or_default()[generation] += 1;
            self.first_token[generation].0.extend(report.first_token);
            self.gap[generation].0.extend(&report.gaps);
        }
    }

    /// Requests that ended this way, by the generation whose text came back; `None`: no text came.
    pub(in crate::demo) fn count(&self, generation: Option<Generation>, ending: Ending) -> u64 {
        self.endings[generation.map_or(2, Generation::index)][ending as usize]
    }

    /// Requests that ended this way.
    pub(in crate::demo) fn total(&self, ending: Ending) -> u64 {
        self.endings
            .iter()
            .map(|counts| counts[ending as usize])
            .sum()
    }

    /// Requests that ended.
    pub(in crate::demo) fn ended(&self) -> u64 {
        self.endings.iter().flatten().sum()
    }

    /// Requests that are still open.
    pub(in crate::demo) fn open(&self) -> u64 {
        self.begun - self.ended()
    }

    /// Requests that were not completed: all, and those without an outage.
    pub(in crate::demo) fn lost(&self) -> (u64, u64) {
        (
            self.ended() - self.total(Ending::Completed),
            self.lost_without_outage,
        )
    }
}

/// Times, to be sorted when they are read.
#[derive(Clone, Debug, Default)]
pub(in crate::demo) struct Times(Vec<Duration>);

impl Times {
    /// The percentiles `wanted` (0 to 100) by nearest rank; `None` without times.
    pub(in crate::demo) fn percentiles<const N: usize>(
        &self,
        wanted: [usize; N],
    ) -> Option<[Duration; N]> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        Some(wanted.map(|percent| {
            sorted[(sorted.len() * percent)
                .div_ceil(100)
                .saturating_sub(1)
                .min(last)]
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ending: Ending, generation: Option<Generation>) -> RequestReport {
        RequestReport {
            ending,
            generation,
            first_token: None,
            gaps: Vec::new(),
        }
    }

    #[test]
    fn endings_are_counted_by_speaker_and_every_request_is_somewhere() {
        let mut counts = Counts::default();
        for (ending, generation, outage) in [
            (Ending::Completed, Some(Generation::Old), false),
            (Ending::Completed, Some(Generation::New), true),
            (Ending::Failed, Some(Generation::New), true),
            (Ending::Unreachable, None, false),
        ] {
            counts.begin();
            counts.end(&report(ending, generation), 50, outage);
        }
        counts.begin();
        assert_eq!(
            (counts.ended(), counts.open(), counts.lost()),
            (4, 1, (2, 1))
        );
        assert_eq!(counts.count(Some(Generation::New), Ending::Failed), 1);
        assert_eq!(counts.count(None, Ending::Unreachable), 1);
        assert_eq!(counts.total(Ending::Completed), 2);
        assert_eq!(counts.by_split[&50], [1, 2]);
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let times = Times((1..=200).rev().map(Duration::from_millis).collect());
        assert_eq!(
            times.percentiles([50, 99]),
            Some([100, 198].map(Duration::from_millis))
        );
        assert_eq!(
            Times(vec![Duration::ZERO]).percentiles([0, 100]),
            Some([Duration::ZERO; 2])
        );
        assert_eq!(Times::default().percentiles([50]), None);
    }
}
