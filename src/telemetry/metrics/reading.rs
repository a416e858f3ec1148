//! Reads metrics for use inside the process.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use prometheus::core::{Collector, Metric};
use prometheus::{Histogram, IntCounter};

use super::{COMBINATIONS, Metrics, Reject};
use crate::continuation;
use crate::failover::Cause;
use crate::split::{Generation, Reason};
use crate::sse::{Api, Outcome};
use crate::telemetry::latency::{self, FIRST_EVENT_BOUNDS, GAP_BOUNDS};
use crate::telemetry::recent::{FIVE_MINUTES, MINUTE, Recent, Totals};

/// The values of a histogram at a point in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Upper bounds in seconds with cumulative counts. The last bound is infinite: its count is the total.
    pub buckets: Vec<(f64, u64)>,
    /// In seconds.
    pub sum: f64,
}

impl Metrics {
    #[must_use]
    pub fn recovered_total(&self) -> u64 {
        self.recovered_by_cause().map(|(_, count)| count).sum()
    }

    /// Requests that a retry recovered, by the cause of the last failed attempt.
    pub fn recovered_by_cause(&self) -> impl Iterator<Item = (Cause, u64)> {
        Cause::ALL.into_iter().map(|cause| {
            let moves = self
                .recovered_moves()
                .filter(|(_, _, why, _)| *why == cause);
            (cause, moves.map(|(.., count)| count).sum())
        })
    }

    /// The same, by the generation that failed them last, the generation that answered them, and the cause of the failure.
    /// Without zeros.
    pub fn recovered_moves(&self) -> impl Iterator<Item = (Generation, Generation, Cause, u64)> {
        let generations = || Generation::ALL.into_iter();
        let moves = generations().flat_map(move |from| generations().map(move |to| (from, to)));
        let labels = moves.flat_map(|(from, to)| Cause::ALL.map(|cause| (from, to, cause)));
        let counts = self.recovered_by.iter();
        let counts = counts.map(|counter| counter.get().map_or(0, IntCounter::get));
        labels
            .zip(counts)
            .map(|((from, to, cause), count)| (from, to, cause, count))
            .filter(|(.., count)| *count > 0)
    }

    /// Attempts that `generation` failed, by cause.
    pub fn failed_attempts(&self, generation: Generation) -> impl Iterator<Item = (Cause, u64)> {
        let counters = self.failed_attempts[generation.index()].iter();
        Cause::ALL.into_iter().zip(counters.map(IntCounter::get))
    }

    /// Streams that another server continued, by cause.
    pub fn continued_by_cause(
        &self,
    ) -> impl Iterator<Item = (continuation::ContinuationCause, u64)> {
        let outcome = continuation::ContinuationOutcome::Continued.as_str();
        continuation::ContinuationCause::ALL
            .into_iter()
            .map(move |cause| {
                let labels = [outcome, cause.as_str()];
                (cause, self.continuations.with_label_values(&labels).get())
            })
    }

    /// Streams that were not continued, by reason.
    #[must_use]
    pub fn not_continued_by_reason(&self) -> BTreeMap<String, u64> {
        let mut reasons = BTreeMap::new();
        // Read the exposed ones: requesting the counter of each reason would expose all of them.
        for family in self.continuations.collect() {
            for metric in family.get_metric() {
                let label = |name| {
                    let mut labels = metric.get_label().iter();
                    labels.find(|label| label.name() == name)
                };
                let (Some(outcome), Some(reason)) = (label("outcome"), label("reason")) else {
                    continue;
                };
                if outcome.value() != continuation::ContinuationOutcome::Continued.as_str() {
                    let count: &mut u64 = reasons.entry(reason.value().to_owned()).or_default();
                    // The counter contains whole numbers.
                    *count = count.saturating_add(metric.get_counter().get_value() as u64);
                }
            }
        }
        reasons
    }

    /// Requests rejected before a model server had received the whole request, or abandoned by their clients before they were assigned.
    pub fn rejects_by_cause(&self) -> impl Iterator<Item = (Reject, u64)> {
        Reject::ALL
            .into_iter()
            .zip(self.rejects.iter().map(IntCounter::get))
    }

    /// Exchanges with this outcome, over all reasons and classes, by their first assignment.
    #[must_use]
    pub fn outcomes(&self, generation: Generation, outcome: Outcome) -> u64 {
        self.exchanges(generation, |_, ended| ended == outcome)
    }

    /// Exchanges with this reason that have ended.
    #[must_use]
    pub fn ended_by_reason(&self, generation: Generation, reason: Reason) -> u64 {
        self.exchanges(generation, |why, _| why == reason)
    }

    fn exchanges(&self, generation: Generation, counts: impl Fn(Reason, Outcome) -> bool) -> u64 {
        let per_generation = COMBINATIONS / Generation::ALL.len();
        let labels = Reason::ALL.into_iter().flat_map(|reason| {
            // The layout of `Metrics::ended`.
            let outcomes = Api::ALL.map(|_| Outcome::ALL).into_iter().flatten();
            outcomes.map(move |outcome| (reason, outcome))
        });
        self.resolved[generation.index() * per_generation..]
            .iter()
            .zip(labels)
            .filter(|(_, (reason, outcome))| counts(*reason, *outcome))
            .filter_map(|(counter, _)| counter.get().map(IntCounter::get))
            .sum()
    }

    /// The time to the first event, by the generation that answered.
    #[must_use]
    pub fn first_event_times(&self, generation: Generation) -> Distribution {
        exposed(&self.of(generation).first_event, &FIRST_EVENT_BOUNDS)
    }

    /// The gaps between events.
    #[must_use]
    pub fn gap_times(&self, generation: Generation) -> Distribution {
        exposed(&self.of(generation).gap, &GAP_BOUNDS)
    }

    /// The counts of both generations in the last minute and in the last five.
    #[must_use]
    pub fn recent(&self, now: Instant) -> [Recent; 2] {
        let counted = Generation::ALL.map(|generation| Totals {
            outcomes: Outcome::ALL.map(|outcome| self.outcomes(generation, outcome)),
            completed_by_another: self
                .of(generation)
                .completed_by_another
                .load(Ordering::Relaxed),
            first_event: self.of(generation).first_event.sketch(),
            gap: self.of(generation).gap.sketch(),
        });
        self.strata.remember(now);
        self.windows.read(now, counted, [MINUTE, FIVE_MINUTES])
    }

    /// The duration of event streams, by the generation that answered.
    #[must_use]
    pub fn stream_times(&self, generation: Generation) -> Distribution {
        distribution(&self.of(generation).stream)
    }
}

/// A Prometheus histogram.
fn exposed(histogram: &latency::Histogram, bounds: &[f64]) -> Distribution {
    let sketch = histogram.sketch();
    Distribution {
        buckets: bounds
            .iter()
            .map(|bound| (*bound, sketch.count_up_to(*bound)))
            .chain([(f64::INFINITY, sketch.count())])
            .collect(),
        sum: sketch.sum() as f64 / 1e9,
    }
}

fn distribution(histogram: &Histogram) -> Distribution {
    let metric = histogram.metric();
    let histogram = metric.get_histogram();
    Distribution {
        buckets: histogram
            .get_bucket()
            .iter()
            .map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()))
            .chain([(f64::INFINITY, histogram.get_sample_count())])
            .collect(),
        sum: histogram.get_sample_sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Assignment;
    use std::time::Duration;

    #[test]
    fn exchanges_are_reported_by_outcome_and_by_reason_of_each_generation() {
        let metrics = Metrics::default();
        for (count, (generation, reason, class, outcome)) in [
            (
                Generation::Old,
                Reason::Weighted,
                Api::Chat,
                Outcome::Completed,
            ),
            (
                Generation::Old,
                Reason::Sticky,
                Api::Other,
                Outcome::Completed,
            ),
            (
                Generation::New,
                Reason::Weighted,
                Api::Chat,
                Outcome::Failed,
            ),
            (
                Generation::New,
                Reason::Models,
                Api::Other,
                Outcome::Cancelled,
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let assignment = Assignment { generation, reason };
            (0..=count).for_each(|_| metrics.ended(assignment, class, outcome));
        }
        let outcomes =
            |generation| Outcome::ALL.map(|outcome| metrics.outcomes(generation, outcome));
        assert_eq!(outcomes(Generation::Old), [3, 0, 0, 0]);
        assert_eq!(outcomes(Generation::New), [0, 0, 3, 4]);
        assert_eq!(metrics.ended_by_reason(Generation::Old, Reason::Sticky), 2);
        assert_eq!(
            metrics.ended_by_reason(Generation::New, Reason::Weighted),
            3
        );
        assert_eq!(metrics.ended_by_reason(Generation::New, Reason::Models), 4);
    }

    #[test]
    fn streams_that_were_continued_and_those_that_were_not_are_distinguished() {
        use continuation::{ContinuationCause, ContinuationOutcome, ContinuationReason};
        let metrics = Metrics::default();
        let gap = Duration::from_millis(3);
        metrics.continued(ContinuationCause::Connection, gap);
        metrics.continued(ContinuationCause::Connection, gap);
        metrics.not_continued(ContinuationOutcome::Ended, ContinuationReason::ToolCalls);
        metrics.not_continued(ContinuationOutcome::Stayed, ContinuationReason::ToolCalls);
        let continued: Vec<_> = metrics
            .continued_by_cause()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(continued, [(ContinuationCause::Connection, 2)]);
        let not = metrics.not_continued_by_reason();
        let reason = ContinuationReason::ToolCalls.as_str().to_owned();
        assert_eq!(not, [(reason, 2)].into());
    }

    #[test]
    fn a_distribution_includes_values_beyond_all_bounds() {
        let metrics = Metrics::default();
        metrics.gaps(Generation::New, None, 0);
        metrics.gaps(Generation::New, None, 1);
        metrics.gaps(Generation::New, Some(Duration::from_millis(4)), 2);
        metrics.gaps(Generation::New, Some(Duration::from_secs(100)), 0);
        let gaps = metrics.gap_times(Generation::New);
        assert_eq!(gaps.sum, 100.004);
        let at_most = |seconds| gaps.buckets.iter().find(|(bound, _)| *bound == seconds);
        assert_eq!(at_most(0.0025), Some(&(0.0025, 3)));
        assert_eq!(at_most(0.005), Some(&(0.005, 4)));
        assert_eq!(at_most(16.384), Some(&(16.384, 4)));
        assert_eq!(gaps.buckets.last(), Some(&(f64::INFINITY, 5)));
        assert_eq!(metrics.gap_times(Generation::Old).sum, 0.0);
    }
}
