//! Tracks how long conditions have held, based on the times in the status. Pure.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::resource::rollout_status::{DynamoRolloutStatus, ResizingStatus, RolloutMemory};
use crate::rollout::PerGeneration;
use crate::scaling::{GenerationObservation, RolloutObservation};
use crate::split::Weights;

/// The memory after an observation at `now`, and the observation with the durations derived from it.
pub(super) fn advance(
    before: &DynamoRolloutStatus,
    mut seen: RolloutObservation,
    now: Timestamp,
) -> (RolloutMemory, RolloutObservation) {
    let old = before.memory.clone().unwrap_or_default();
    let since = |known: &Option<Time>, holds: bool| match known {
        Some(time) if holds => Some(time.clone()),
        _ => holds.then_some(Time(now)),
    };
    let is_same = sizes_are(before, &seen.generations);
    let is_complete = [&seen.generations.old, &seen.generations.new]
        .into_iter()
        .all(|generation| {
            generation
                .roles
                .values()
                .all(|role| role.ready >= role.desired)
        });
    let is_at_rest = is_complete
        && [&seen.generations.old, &seen.generations.new]
            .into_iter()
            .all(|generation| {
                { generation.roles.values() }.all(|role| {
                    role.observed && role.terminating == 0 && role.present == role.desired
                })
            });
    let is_applied = { seen.traffic.applied.iter() }
        .all(|applied| *applied == Some(seen.traffic.split))
        && !seen.traffic.applied.is_empty();
    let was = before.split.and_then(|split| split.exact());
    let is_same_split = was == Some(seen.traffic.split);
    let memory = RolloutMemory {
        unchanged_since: since(&old.unchanged_since.clone().filter(|_| is_same), true),
        at_rest_since: since(&old.at_rest_since.clone().filter(|_| is_same), is_at_rest),
        unready_since: since(&old.unready_since, !is_complete),
        applied_since: since(
            &old.applied_since.clone().filter(|_| is_same_split),
            is_applied,
        ),
        ..old
    };
    seen.unchanged_for = elapsed(&memory.unchanged_since, now);
    seen.at_rest_for = elapsed(&memory.at_rest_since, now);
    seen.unready_for = elapsed(&memory.unready_since, now);
    seen.traffic.applied_for = elapsed(&memory.applied_since, now);
    (memory, seen)
}

/// The sizes that were about to be written.
pub(super) fn resizing(before: &DynamoRolloutStatus) -> Option<&ResizingStatus> {
    before.memory.as_ref()?.resizing.as_ref()
}

fn elapsed(since: &Option<Time>, now: Timestamp) -> Duration {
    let since = since.as_ref().map(|since| now.duration_since(since.0));
    since.map_or(Duration::ZERO, |since| {
        Duration::try_from(since).unwrap_or_default()
    })
}

/// Whether the sizes are the same as in the last observation.
fn sizes_are(
    before: &DynamoRolloutStatus,
    generations: &PerGeneration<GenerationObservation>,
) -> bool {
    [
        (&before.source, &generations.old),
        (&before.target, &generations.new),
    ]
    .into_iter()
    .all(|(before, generation)| {
        let before = before.as_ref();
        generation.roles.iter().all(|(role, workers)| {
            let known = before.and_then(|before| before.roles.get(role.as_str()));
            known.is_some_and(|known| known.spec == workers.desired)
        })
    })
}

/// A split in the form of the status.
pub(super) fn split(weights: Weights) -> crate::resource::status::SplitStatus {
    crate::resource::status::SplitStatus {
        percent: weights.rounded_percent(),
        weights: Some(crate::resource::WeightsSpec {
            old: weights.old(),
            new: weights.new_weight(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::resource::rollout_status::{ScaledGenerationStatus, ScaledRoleStatus};
    use crate::rollout::Role;
    use crate::scaling::{ClientRouting, LastWorker, RoleReplicas, Traffic, TrialVerdict};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn workers(desired: u32, ready: u32) -> RoleReplicas {
        RoleReplicas {
            desired,
            observed: true,
            present: desired,
            ready,
            ..RoleReplicas::default()
        }
    }

    fn seen(old: RoleReplicas, new: RoleReplicas, applied: Weights) -> RolloutObservation {
        let generation = |workers| GenerationObservation {
            roles: [(Role::Worker, workers)].into(),
            ..GenerationObservation::default()
        };
        RolloutObservation {
            is_current: true,
            unfinished: Vec::new(),
            generations: PerGeneration {
                old: generation(old),
                new: generation(new),
            },
            traffic: Traffic {
                split: Weights::ALL_OLD,
                applied: vec![Some(applied)],
                applied_for: Duration::ZERO,
                open: None,
                p99: None,
            },
            verdict: TrialVerdict::Inconclusive,
            clients: ClientRouting {
                handed_over: false,
                service: None,
                selector_saved: false,
                direct_to_new: None,
                last_worker: LastWorker::Needed,
                safe_to_delete_old: false,
                retired: false,
            },
            unchanged_for: Duration::ZERO,
            at_rest_for: Duration::ZERO,
            unready_for: Duration::ZERO,
            quota_left: None,
            pods_left: None,
            resources_left: BTreeMap::new(),
            accepts_sizes: false,
            retire_obstacle: None,
        }
    }

    /// The status after an observation.
    fn status(seen: &RolloutObservation, memory: RolloutMemory) -> DynamoRolloutStatus {
        let generation = |generation: &GenerationObservation| {
            let roles = generation.roles.iter().map(|(role, workers)| {
                let reported = ScaledRoleStatus {
                    spec: workers.desired,
                    ..ScaledRoleStatus::default()
                };
                (role.as_str().to_owned(), reported)
            });
            Some(ScaledGenerationStatus {
                roles: roles.collect(),
                ..ScaledGenerationStatus::default()
            })
        };
        DynamoRolloutStatus {
            source: generation(&seen.generations.old),
            target: generation(&seen.generations.new),
            split: Some(split(seen.traffic.split)),
            memory: Some(memory),
            ..DynamoRolloutStatus::default()
        }
    }

    #[test]
    fn unchanged_values_keep_their_time_and_changed_ones_restart() {
        let at_rest = || seen(workers(4, 4), workers(0, 0), Weights::ALL_OLD);
        let (memory, first) = advance(&DynamoRolloutStatus::default(), at_rest(), at(0));
        assert_eq!(first.unchanged_for, Duration::ZERO);
        let before = status(&first, memory);
        let (memory, later) = advance(&before, at_rest(), at(20));
        let twenty = Duration::from_secs(20);
        assert_eq!((later.unchanged_for, later.at_rest_for), (twenty, twenty));
        assert_eq!(
            (later.traffic.applied_for, later.unready_for),
            (twenty, Duration::ZERO)
        );
        // New grows and is not ready yet.
        let before = status(&later, memory);
        let growing = || seen(workers(4, 4), workers(1, 0), Weights::ALL_NEW);
        let (memory, grown) = advance(&before, growing(), at(30));
        assert_eq!(
            (grown.unchanged_for, grown.at_rest_for),
            (Duration::ZERO, Duration::ZERO)
        );
        assert_eq!(grown.traffic.applied_for, Duration::ZERO);
        let before = status(&grown, memory);
        let (_, waiting) = advance(&before, growing(), at(40));
        let ten = Duration::from_secs(10);
        assert_eq!((waiting.unchanged_for, waiting.unready_for), (ten, ten));
        assert_eq!(waiting.at_rest_for, Duration::ZERO);
    }
}
