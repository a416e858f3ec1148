//! Limits of a report. A pod may have a process on its admin port that is not crossfade, and whoever reads reports of many pods must
//! not run out of memory because of them: an empty text takes two bytes in a message, and twelve times as much when it is decoded.

use std::collections::BTreeMap;

use super::v1;
use crate::analysis::MAX_STRATA;
use crate::latency::BUCKETS;

/// Maximum size of an encoded state, in bytes. With latencies spread over the whole scale, a state takes about 30 KiB.
pub(super) const MAX_STATE: usize = 256 << 10;
/// Maximum number of bounds of a histogram; crossfade has 17.
const MAX_BOUNDS: usize = 64;
/// Maximum number of causes or reasons by which something is counted, also in a total.
pub(super) const MAX_CAUSES: usize = 256;
/// Maximum number of remarks, also in a total.
pub(super) const MAX_REMARKS: usize = 256;
/// Maximum length of the remarks that a process reports, in bytes.
const MAX_REMARK_BYTES: usize = 64 << 10;
/// Maximum number of texts in a list. An update has at most this many targets, because of the length of `newFrontendService`.
const MAX_TEXTS: usize = 2048;
/// Maximum number of times for which a comparison has counts; crossfade has six.
const MAX_COUNTS: usize = 64;

/// The remarks that a report contains: as many as it may contain, and how many more there are.
#[must_use]
pub fn reported(texts: &[String]) -> Vec<String> {
    let mut bytes = 0;
    let fits = texts.iter().take(MAX_REMARKS).take_while(|text| {
        bytes += text.len();
        bytes <= MAX_REMARK_BYTES
    });
    let mut reported: Vec<String> = fits.cloned().collect();
    if reported.len() < texts.len() {
        // The last one makes room for this one.
        reported.truncate(MAX_REMARKS - 1);
        reported.push(format!("and {} more", texts.len() - reported.len()));
    }
    reported
}

/// What may be a report of a crossfade process.
pub(super) trait Limited {
    /// Whether the report has no more parts than a process can report.
    fn is_within_limits(&self) -> bool;
}

impl Limited for v1::State {
    fn is_within_limits(&self) -> bool {
        let generations = [&self.old, &self.new].into_iter().flatten();
        self.plan.as_ref().is_none_or(plan)
            && generations.into_iter().all(generation)
            && [&self.recovered_requests, &self.rejected_requests]
                .into_iter()
                .all(causes)
            && self.recovered.len() <= MAX_CAUSES
            && self
                .fixed_targets
                .as_ref()
                .is_none_or(|all| all.old.len() <= MAX_TEXTS && all.peers.len() <= MAX_TEXTS)
            && self
                .continuations
                .as_ref()
                .is_none_or(|all| [&all.continued, &all.not_continued].into_iter().all(causes))
    }
}

impl Limited for v1::Comparison {
    fn is_within_limits(&self) -> bool {
        let sample = |sample: &v1::Sample| {
            let times = [&sample.first_event, &sample.gap, &sample.time_per_token];
            times.into_iter().flatten().all(latencies)
        };
        let stratum = |one: &v1::Stratum| [&one.old, &one.new].into_iter().flatten().all(sample);
        let counts =
            |one: &v1::Counts| one.strata.len() <= MAX_STRATA && one.strata.iter().all(stratum);
        self.counts.len() <= MAX_COUNTS
            && self.counts.iter().all(counts)
            && self.new_targets.len() <= MAX_TEXTS
    }
}

fn plan(plan: &v1::Plan) -> bool {
    let problems = plan.refusal.as_ref().map_or(0, |one| one.problems.len());
    plan.new_targets.len().max(problems) <= MAX_TEXTS && plan.remarks.len() <= MAX_REMARKS
}

fn generation(generation: &v1::Generation) -> bool {
    let histograms = [
        &generation.first_event,
        &generation.gap,
        &generation.stream_duration,
    ];
    let recent = [&generation.last_minute, &generation.last_five_minutes];
    let recent = recent.into_iter().flatten();
    let times = recent.flat_map(|recent| [&recent.first_event, &recent.gap]);
    let failed = generation.failed_attempts.as_ref();
    histograms.into_iter().flatten().all(|histogram| {
        histogram.bounds.len() <= MAX_BOUNDS && histogram.cumulative_counts.len() <= MAX_BOUNDS
    }) && times.flatten().all(latencies)
        && failed.is_none_or(|failed| causes(&failed.counts))
}

fn latencies(times: &v1::Latencies) -> bool {
    times.buckets.len() <= BUCKETS && times.counts.len() <= BUCKETS
}

fn causes(counts: &BTreeMap<String, u64>) -> bool {
    counts.len() <= MAX_CAUSES
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn full() -> v1::State {
        let times = v1::Latencies {
            buckets: (0..).take(BUCKETS).collect(),
            counts: vec![1 << 20; BUCKETS],
            sum_nanos: u64::MAX,
        };
        let recent = v1::Recent {
            first_event: Some(times.clone()),
            gap: Some(times),
            ..v1::Recent::default()
        };
        let generation = v1::Generation {
            stream_duration: Some(v1::Histogram {
                bounds: vec![1.0; 17],
                cumulative_counts: vec![1 << 20; 17],
                ..v1::Histogram::default()
            }),
            last_minute: Some(recent.clone()),
            last_five_minutes: Some(recent),
            ..v1::Generation::default()
        };
        v1::State {
            plan: Some(v1::Plan {
                new_targets: vec!["http://new.production.svc.cluster.local:8000".into(); 16],
                ..v1::Plan::default()
            }),
            old: Some(generation.clone()),
            new: Some(generation),
            ..v1::State::default()
        }
    }

    #[test]
    fn a_state_with_latencies_of_every_length_is_within_the_limits_with_a_margin() {
        assert!(full().is_within_limits());
        assert!(
            full().encoded_len() < MAX_STATE / 4,
            "{}",
            full().encoded_len()
        );
    }

    #[test]
    fn as_many_remarks_are_reported_as_are_within_the_limits() {
        let texts = |count: usize, length| vec!["x".repeat(length); count];
        for (count, length, whole) in [(0, 1, 0), (256, 1, 256), (257, 1, 255), (9, 30_000, 2)] {
            let reported = reported(&texts(count, length));
            let more = count - whole;
            assert_eq!(reported.len(), whole + usize::from(more > 0), "{count}");
            assert!(more == 0 || reported[whole] == format!("and {more} more"));
            let mut state = full();
            state.plan.as_mut().unwrap().remarks = reported;
            assert!(state.is_within_limits() && state.encoded_len() < MAX_STATE);
        }
    }

    #[test]
    fn a_report_with_more_parts_than_a_process_has_is_not() {
        let many = || (0..10_000).map(|i| (i.to_string(), 1)).collect();
        let texts = vec![String::new(); 10_000];
        type Forge = Box<dyn Fn(&mut v1::State)>;
        let plan = |edit: fn(&mut v1::Plan, Vec<String>)| -> Forge {
            let texts = texts.clone();
            Box::new(move |state| edit(state.plan.as_mut().unwrap(), texts.clone()))
        };
        let old = |edit: fn(&mut v1::Generation)| -> Forge {
            Box::new(move |state| edit(state.old.as_mut().unwrap()))
        };
        let cases: [Forge; 11] = [
            Box::new(|state| {
                state.fixed_targets = Some(v1::FixedTargets {
                    old: Vec::new(),
                    peers: vec![String::new(); 10_000],
                });
            }),
            plan(|plan, texts| plan.new_targets = texts),
            plan(|plan, texts| plan.remarks = texts),
            plan(|plan, texts| {
                plan.refusal = Some(v1::Refusal {
                    problems: vec![v1::Problem::default(); texts.len()],
                    ..v1::Refusal::default()
                });
            }),
            old(|old| old.stream_duration.as_mut().unwrap().bounds = vec![1.0; 65]),
            old(|old| old.stream_duration.as_mut().unwrap().cumulative_counts = vec![1; 65]),
            old(|old| {
                let recent = old.last_minute.as_mut().unwrap();
                recent.gap.as_mut().unwrap().counts = vec![1; BUCKETS + 1];
            }),
            Box::new(move |state| state.recovered_requests = many()),
            Box::new(move |state| state.rejected_requests = many()),
            Box::new(|state| state.recovered = vec![v1::Recovered::default(); 10_000]),
            Box::new(move |state| {
                state.continuations = Some(v1::Continuations {
                    not_continued: many(),
                    ..v1::Continuations::default()
                });
            }),
        ];
        for (i, forge) in cases.iter().enumerate() {
            let mut state = full();
            forge(&mut state);
            assert!(!state.is_within_limits(), "case {i}");
        }
    }

    #[test]
    fn a_comparison_with_more_parts_than_a_process_has_is_not() {
        let of = |counts, strata| v1::Comparison {
            counts: vec![
                v1::Counts {
                    strata: vec![v1::Stratum::default(); strata],
                    ..v1::Counts::default()
                };
                counts
            ],
            ..v1::Comparison::default()
        };
        assert!(of(6, MAX_STRATA).is_within_limits());
        assert!(!of(65, 0).is_within_limits());
        assert!(!of(1, MAX_STRATA + 1).is_within_limits());
        let mut long = of(1, 1);
        long.counts[0].strata[0].new = Some(v1::Sample {
            gap: Some(v1::Latencies {
                buckets: vec![1; BUCKETS + 1],
                ..v1::Latencies::default()
            }),
            ..v1::Sample::default()
        });
        assert!(!long.is_within_limits());
    }
}
