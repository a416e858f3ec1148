//! The figures of both generations, for display.
//!
//! Old's figures are weighted by new's mix of requests: each stratum of old has the weight that it has among new's requests.
//! Strata that only one generation has are omitted.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Attempts, Counts, Margins, Metric};
use crate::latency::{Scale, Sketch};

/// One metric of both generations, old first.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub metric: Metric,
    /// A share of requests, 0 to 1, or seconds; `None` without values.
    pub figures: [Option<f64>; 2],
    /// Requests or values.
    pub samples: [u64; 2],
    /// The highest figure of new that is within the margin.
    pub limit: Option<f64>,
    /// The confidence that new is worse than the margin allows, 0 to 1, over all looks.
    pub confidence: f64,
    /// The time that the figures cover.
    pub covers: Duration,
}

impl Row {
    /// Whether new's figure exceeds the limit. This alone is not evidence.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        let [_, new] = self.figures;
        new.zip(self.limit).is_some_and(|(new, limit)| new > limit)
    }
}

/// The row of a metric, from the counts of a window.
pub(super) fn row(
    metric: Metric,
    margins: &Margins,
    (counts, covers): (&Counts, Duration),
    confidence: f64,
) -> Row {
    let (figures, samples) = match metric {
        Metric::Failures => rates(counts),
        _ => quantiles(counts, metric),
    };
    let limit = figures[0].map(|old| match metric {
        Metric::Failures => old + margins.max_failure_rate_increase,
        _ => old * metric.ratio(margins),
    });
    Row {
        metric,
        figures,
        samples,
        limit,
        confidence,
        covers,
    }
}

type Figures = ([Option<f64>; 2], [u64; 2]);

fn rates(counts: &Counts) -> Figures {
    let (mut weight, mut old_rate, mut new_failed) = (0.0, 0.0, 0.0);
    for generations in counts.0.values() {
        let [old, new] = generations
            .each_ref()
            .map(|generation| &generation.attempts);
        if old.decided == 0 || new.decided == 0 {
            continue;
        }
        let decided = new.decided as f64;
        weight += decided;
        old_rate += decided * rate(old);
        new_failed += decided * rate(new);
    }
    let [old, new] = counts.outcomes();
    if old.started == 0 && old.retried > 0 {
        return without_old(&old, &new);
    }
    let samples = [old.decided, new.decided];
    if weight > 0.0 {
        return (
            [Some(old_rate / weight), Some(new_failed / weight)],
            samples,
        );
    }
    let alone = |generation: &Attempts| (generation.decided > 0).then(|| rate(generation));
    ([alone(&old), alone(&new)], samples)
}

/// Old began no request, so its rate is that of its second attempts.
fn without_old(old: &Attempts, new: &Attempts) -> Figures {
    let rate = |failed: u64, of: u64| (of > 0).then(|| failed as f64 / of as f64);
    let figures = [
        rate(old.retries_failed, old.retried),
        rate(new.unanswered, new.decided),
    ];
    (figures, [old.retried, new.decided])
}

/// Requests in flight do not dilute it.
fn rate(generation: &Attempts) -> f64 {
    (generation.failed as f64 / generation.decided as f64).min(1.0)
}

fn quantiles(counts: &Counts, metric: Metric) -> Figures {
    let mut samples = [0_u64; 2];
    let mut buckets: [BTreeMap<usize, f64>; 2] = Default::default();
    for generations in counts.0.values() {
        let [Some(old), Some(new)] =
            [&generations[0], &generations[1]].map(|generation| metric.values(generation))
        else {
            continue;
        };
        let both = [old.count(), new.count()];
        for (samples, count) in samples.iter_mut().zip(both) {
            *samples = samples.saturating_add(count);
        }
        let [old_count, new_count] = both;
        if old_count == 0 || new_count == 0 {
            continue;
        }
        let weights = [new_count as f64 / old_count as f64, 1.0];
        for ((buckets, values), weight) in buckets.iter_mut().zip([old, new]).zip(weights) {
            for (bucket, count) in values.buckets() {
                *buckets.entry(bucket).or_default() += weight * count as f64;
            }
        }
    }
    let figures = if buckets[0].is_empty() {
        let total = counts.total();
        [&total[0], &total[1]].map(|generation| {
            let values = metric
                .values(generation)
                .unwrap_or(const { &Sketch::EMPTY });
            values.quantile(metric.quantile())
        })
    } else {
        buckets.map(|buckets| Some(quantile(&buckets, metric.quantile())))
    };
    (figures, samples)
}

/// In seconds, linear within a bucket.
fn quantile(buckets: &BTreeMap<usize, f64>, q: f64) -> f64 {
    let rank = q * buckets.values().sum::<f64>();
    let mut below = 0.0;
    let mut highest = 0.0;
    for (&bucket, &count) in buckets {
        let lower = Scale::lower(bucket);
        highest = Scale::lower(bucket + 1);
        if below + count >= rank {
            return lower + (highest - lower) * (rank - below) / count;
        }
        below += count;
    }
    highest
}
