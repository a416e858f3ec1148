//! Converts our types to messages. Total: a value too large for its field becomes the largest that fits.

use std::time::Duration;

use super::v1;
use crate::analysis::{self, Attempts, Counts, GenerationCounts, MAX_STRATA, Reading, Stratum};
use crate::continuation::Mode;
use crate::lifecycle::ProcessPhase;
use crate::resource::{Identity, Problem};
use crate::split::Weights;
use crate::telemetry::Distribution;
use crate::telemetry::latency::Sketch;

impl From<ProcessPhase> for v1::Phase {
    fn from(phase: ProcessPhase) -> Self {
        match phase {
            ProcessPhase::Starting => Self::Starting,
            ProcessPhase::Ready => Self::Ready,
            ProcessPhase::Settling => Self::Settling,
            ProcessPhase::Draining => Self::Draining,
            ProcessPhase::Ending => Self::Ending,
        }
    }
}

impl From<Mode> for v1::ContinuationMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Off => Self::Off,
            Mode::SameGeneration => Self::SameGeneration,
            Mode::AnyGeneration => Self::AnyGeneration,
        }
    }
}

impl From<Weights> for v1::Weights {
    fn from(weights: Weights) -> Self {
        Self {
            old: weights.old(),
            new: weights.new_weight(),
        }
    }
}

impl From<&Identity> for v1::Resource {
    fn from(identity: &Identity) -> Self {
        Self {
            namespace: identity.namespace.clone(),
            name: identity.name.clone(),
            uid: identity.uid.clone(),
            generation: identity.generation,
        }
    }
}

impl From<&Problem> for v1::Problem {
    fn from(problem: &Problem) -> Self {
        Self {
            path: problem.path.clone(),
            line: problem
                .line
                .map(|line| u32::try_from(line).unwrap_or(u32::MAX)),
            message: problem.message.clone(),
        }
    }
}

impl From<Distribution> for v1::Histogram {
    fn from(distribution: Distribution) -> Self {
        let count = distribution.buckets.last().map_or(0, |(_, count)| *count);
        let finite = distribution.buckets.into_iter();
        let finite = finite.filter(|(bound, _)| bound.is_finite());
        let (bounds, cumulative_counts) = finite.unzip();
        Self {
            bounds,
            cumulative_counts,
            count,
            sum: distribution.sum,
        }
    }
}

impl From<&Sketch> for v1::Latencies {
    fn from(sketch: &Sketch) -> Self {
        let buckets = sketch.buckets();
        let (buckets, counts) = buckets
            .map(|(bucket, count)| (u32::try_from(bucket).unwrap_or(u32::MAX), count))
            .unzip();
        Self {
            buckets,
            counts,
            sum_nanos: sketch.sum(),
        }
    }
}

impl From<&v1::Latencies> for Sketch {
    /// Leaves out buckets that are not ascending or not on the scale.
    fn from(latencies: &v1::Latencies) -> Self {
        let mut next = 0;
        let counts = latencies.buckets.iter().zip(&latencies.counts);
        let counts = counts.filter_map(|(bucket, count)| {
            let bucket = usize::try_from(*bucket).ok()?;
            (bucket >= next).then(|| next = bucket.saturating_add(1))?;
            Some((bucket, *count))
        });
        Self::new(counts, latencies.sum_nanos)
    }
}

impl From<&GenerationCounts> for v1::Sample {
    fn from(generation: &GenerationCounts) -> Self {
        let attempts = generation.attempts;
        Self {
            started: attempts.started,
            ended: attempts.ended,
            failed: attempts.failed,
            first_event: Some((&generation.first_event).into()),
            gap: Some((&generation.gap).into()),
            time_per_token: Some((&generation.per_token).into()),
            decided: Some(attempts.decided),
            unanswered: attempts.unanswered,
            retried: attempts.retried,
            retries_failed: attempts.retries_failed,
            completed: Some(attempts.completed),
        }
    }
}

impl From<&v1::Sample> for GenerationCounts {
    fn from(sample: &v1::Sample) -> Self {
        let times =
            |times: &Option<v1::Latencies>| times.as_ref().map(Sketch::from).unwrap_or_default();
        // The value that an older proxy reports instead. It may include requests that clients abandoned.
        let without_failed = sample.ended.saturating_sub(sample.failed);
        let attempts = Attempts {
            started: sample.started,
            // It is unknown for an older proxy.
            decided: sample.decided.unwrap_or(sample.started),
            ended: sample.ended,
            completed: sample.completed.unwrap_or(without_failed),
            failed: sample.failed,
            unanswered: sample.unanswered,
            retried: sample.retried,
            retries_failed: sample.retries_failed,
        };
        Self {
            attempts,
            first_event: times(&sample.first_event),
            gap: times(&sample.gap),
            per_token: times(&sample.time_per_token),
        }
    }
}

impl v1::Counts {
    /// The counts of a process, `age` ago.
    #[must_use]
    pub fn new(age: prost_types::Duration, counts: &Counts) -> Self {
        let strata = counts.0.iter();
        let strata = strata.map(|(stratum, [old, new])| v1::Stratum {
            class: stratum.class.to_string(),
            body_size: stratum.size.into(),
            old: Some(old.into()),
            new: Some(new.into()),
        });
        Self {
            age: Some(age),
            strata: strata.collect(),
        }
    }

    /// The counts. Leaves out strata beyond [`MAX_STRATA`] and duplicates.
    #[must_use]
    pub fn read(&self) -> Counts {
        let mut counts = Counts::default();
        for one in self.strata.iter().take(MAX_STRATA) {
            let stratum = Stratum {
                class: one.class.as_str().into(),
                size: u8::try_from(one.body_size).unwrap_or(u8::MAX),
            };
            let generations = [&one.old, &one.new];
            let generations = generations.map(|generation| {
                generation
                    .as_ref()
                    .map(GenerationCounts::from)
                    .unwrap_or_default()
            });
            counts.0.entry(stratum).or_insert(generations);
        }
        counts
    }
}

impl From<&analysis::Margins> for v1::Margins {
    fn from(margins: &analysis::Margins) -> Self {
        Self {
            window: prost_types::Duration::try_from(margins.window).ok(),
            min_samples: margins.min_samples,
            max_failure_rate_increase: margins.max_failure_rate_increase,
            ttft_ratio: margins.ttft_ratio,
            gap_ratio: margins.gap_ratio,
            confidence: margins.confidence,
        }
    }
}

impl v1::Margins {
    /// `None` if a value is outside the bounds of a plan.
    #[must_use]
    pub fn to_analysis(&self) -> Option<analysis::Margins> {
        let margins = analysis::Margins {
            window: self.window.map(from_proto)?,
            min_samples: self.min_samples,
            max_failure_rate_increase: self.max_failure_rate_increase,
            ttft_ratio: self.ttft_ratio,
            gap_ratio: self.gap_ratio,
            confidence: self.confidence,
        };
        margins.is_valid().then_some(margins)
    }
}

impl v1::Comparison {
    /// The counts of the proxy `name`, as of this report; `None` if it does not identify its process.
    #[must_use]
    pub fn reading(&self, name: &str) -> Option<Reading> {
        let process = self.process.as_ref()?;
        let started = process.started?;
        let counts = self.counts.last();
        Some(Reading {
            proxy: name.to_owned(),
            process: format!("{}.{}/{}", started.seconds, started.nanos, self.series),
            age: Duration::ZERO,
            uptime: from_proto(self.series_age.or(process.uptime)?),
            counts: counts.map_or_else(Default::default, v1::Counts::read),
        })
    }

    /// Counts at several times, with their ages, oldest first.
    #[must_use]
    pub fn past(&self) -> Vec<(Duration, Counts)> {
        let age = |counts: &v1::Counts| counts.age.map(from_proto).unwrap_or_default();
        let past = self.counts.iter();
        past.map(|counts| (age(counts), counts.read())).collect()
    }
}

/// A duration in a message; the longest one that it can hold if it is longer.
#[must_use]
pub fn proto_duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: duration.subsec_nanos().cast_signed(),
    }
}

/// A duration from a message; zero if it is negative.
fn from_proto(duration: prost_types::Duration) -> Duration {
    Duration::try_from(duration).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_survive_the_wire_and_what_is_made_up_is_bounded() {
        let attempts = |started| Attempts {
            started,
            decided: started - 1,
            ended: started - 2,
            completed: started - 4,
            failed: 1,
            unanswered: 1,
            retried: 3,
            retries_failed: 2,
        };
        let started = |started| GenerationCounts {
            attempts: attempts(started),
            first_event: Sketch::new([(40, 7)], 5),
            gap: Sketch::new([(41, 7)], 6),
            per_token: Sketch::new([(42, 7)], 7),
        };
        let stratum = |class: &str, size| Stratum {
            class: class.into(),
            size,
        };
        let counts = Counts(
            [
                (stratum("chat", 3), [started(5), started(6)]),
                (
                    stratum("messages", 0),
                    [started(7), GenerationCounts::default()],
                ),
            ]
            .into(),
        );
        let sent = v1::Counts::new(prost_types::Duration::default(), &counts);
        assert_eq!(sent.read(), counts);
        let mut older = sent;
        let sample = older.strata[0].new.as_mut().unwrap();
        (sample.decided, sample.completed) = (None, None);
        let [_, new] = &older.read().0[&stratum("chat", 3)];
        let new = new.attempts;
        assert_eq!((new.started, new.decided, new.completed), (6, 6, 3));
        let many = (0..1000).map(|number| v1::Stratum {
            class: number.to_string(),
            body_size: u32::MAX,
            ..Default::default()
        });
        let made_up = v1::Counts {
            strata: many.collect(),
            ..Default::default()
        };
        assert_eq!(made_up.read().0.len(), MAX_STRATA);
    }

    #[test]
    fn margins_survive_the_wire_and_what_is_made_up_is_left_out() {
        let margins = analysis::Margins::default();
        let sent = v1::Margins::from(&margins);
        assert_eq!(sent.to_analysis(), Some(margins));
        for made_up in [
            v1::Margins {
                confidence: 1.0,
                ..sent
            },
            v1::Margins {
                ttft_ratio: f64::NAN,
                ..sent
            },
            v1::Margins {
                min_samples: 0,
                ..sent
            },
            v1::Margins {
                window: None,
                ..sent
            },
        ] {
            assert_eq!(made_up.to_analysis(), None, "{made_up:?}");
        }
    }

    #[test]
    fn latencies_survive_the_wire_and_what_is_made_up_is_left_out() {
        let sketch = Sketch::new([(0, 3), (40, 7), (672, 1)], 5_000_000);
        assert_eq!(Sketch::from(&v1::Latencies::from(&sketch)), sketch);
        let made_up = v1::Latencies {
            buckets: vec![5, 5, 3, 9, 700, u32::MAX],
            counts: vec![1, 10, 100, 1000, 10_000],
            sum_nanos: 0,
        };
        assert_eq!(Sketch::from(&made_up), Sketch::new([(5, 1), (9, 1000)], 0));
    }
}
