//! Builds the status of an update from a decision, with messages for users. Writes nothing.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff;

use super::observer::Observed;
use super::parsed::ParsedUpdate;
use crate::resource::status::{
    AnalysisStatus, FrontendsStatus, GenerationStatus, RoleStatus, SplitStatus, StepStatus,
    UpdatePhase, VALIDITY, WaitStatus, condition,
};
use crate::resource::{DynamoUpdateConfigStatus, Problems, WeightsSpec};
use crate::rollout::{
    self, Capacity, ConditionKind, Decision, DeletionRequirement, OnFailure, PerGeneration, Rule,
    Timestamp, TrialVerdict, Waiting,
};
use crate::split::{Generation, Weights};

/// Maximum length of a message, in bytes.
const MAX_MESSAGE: usize = 4096;

/// The reason of an update beyond the limits.
pub(super) const TOO_MANY: &str = "TooManyUpdates";

/// How often the validity of the flags in a status is renewed.
pub(super) const RENEWAL_INTERVAL: Duration = Duration::from_secs(30);

/// The status after `decision`, for the spec's `generation`.
pub(super) fn status(
    parsed: &ParsedUpdate,
    seen: &Observed,
    decision: &Decision,
    generation: Option<i64>,
    now: jiff::Timestamp,
) -> DynamoUpdateConfigStatus {
    let wanted = decision.desired.split;
    let before = &parsed.status;
    let phase = phase(decision);
    let changed = before.phase != Some(phase);
    let conditions = decision.conditions.iter().map(|reported| Condition {
        type_: reported.kind.as_str().to_owned(),
        status: if reported.holds { "True" } else { "False" }.to_owned(),
        reason: reported.reason.to_owned(),
        message: reported.message.clone(),
        observed_generation: generation,
        last_transition_time: Time(now),
    });
    let proxies = &seen.observation.proxies;
    let applied = proxies.iter().filter(|proxy| {
        let state = proxy.state.as_ref();
        state.is_ok_and(|state| state.applied >= seen.observation.resource_generation)
    });
    let of = |generation| generation_status(seen, decision, generation);
    let status = DynamoUpdateConfigStatus {
        observed_generation: generation,
        phase: Some(phase),
        message: Some(truncate_message(&decision.message)),
        rule: Some(decision.rule.as_str().to_owned()),
        wanted: Some(split(wanted)),
        observed: observed(seen.assigned),
        old: Some(of(Generation::Old)),
        new: Some(of(Generation::New)),
        frontends: Some(FrontendsStatus {
            total: i32::try_from(proxies.len()).unwrap_or(i32::MAX),
            applied: i32::try_from(applied.count()).unwrap_or(i32::MAX),
        }),
        safe_to_delete_old: Some(decision.safe_to_delete_old),
        last_old_worker_dispensable: Some(decision.last_old_worker_dispensable),
        observed_at: None,
        valid_until: None,
        missing_for_deletion: missing(seen, decision),
        lifted_cap_percent: parsed
            .spec
            .max_traffic_split_percent
            .filter(|_| decision.rule == Rule::OldCannotServe && wanted.is_all_new()),
        last_valid: None,
        waiting_for: decision.waiting_for.iter().map(wait).collect(),
        estimated_drain_seconds: decision
            .drain_estimate
            .and_then(|left| i64::try_from(left.as_secs()).ok()),
        last_transition_time: match &before.last_transition_time {
            Some(time) if !changed => Some(time.clone()),
            _ => Some(Time(now)),
        },
        analysis: decision.analysis.as_ref().map(analysis),
        step: decision.step.map(|step| StepStatus {
            percent: step.percent,
            since: step.since.map(time),
            hold_until: step.hold_until.map(time),
        }),
        conditions: conditions
            .map(|new| since(new, &before.conditions))
            .collect(),
        memory: Some(decision.memory.clone()),
    };
    limit_validity(status, before, now)
}

/// Sets the end of the validity of the flags in a status. Keeps the previous one if the flags are the same and it is recent.
fn limit_validity(
    mut status: DynamoUpdateConfigStatus,
    before: &DynamoUpdateConfigStatus,
    now: jiff::Timestamp,
) -> DynamoUpdateConfigStatus {
    let flags = |status: &DynamoUpdateConfigStatus| {
        let flags = [
            status.safe_to_delete_old,
            status.last_old_worker_dispensable,
        ];
        flags.map(|flag| flag == Some(true))
    };
    if flags(&status) == [false; 2] {
        return status;
    }
    let observed_at = before.observed_at.as_ref().map(|time| time.0);
    let is_fresh = observed_at.is_some_and(|at| at <= now && now < after(at, RENEWAL_INTERVAL));
    // If someone else changed this time, it does not count.
    let until = before.valid_until.as_ref().map(|time| time.0);
    let is_ours = until.is_some() && until == observed_at.map(|at| after(at, VALIDITY));
    if is_fresh && is_ours && flags(&status) == flags(before) {
        status.observed_at.clone_from(&before.observed_at);
        status.valid_until.clone_from(&before.valid_until);
    } else {
        // Whole seconds, the precision that the API server keeps.
        let now = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
        status.observed_at = Some(Time(now));
        status.valid_until = Some(Time(after(now, VALIDITY)));
    }
    status
}

fn after(time: jiff::Timestamp, duration: Duration) -> jiff::Timestamp {
    time.checked_add(duration).unwrap_or(jiff::Timestamp::MAX)
}

/// The conditions that are missing before old can be deleted. Empty until the update is complete, because until then its
/// completion is missing.
fn missing(seen: &Observed, decision: &Decision) -> Vec<String> {
    if decision.phase != rollout::Phase::Complete {
        return Vec::new();
    }
    let reported = decision.missing.iter().map(|requirement| {
        let seen = &seen.observation;
        let (found, what) = match requirement {
            DeletionRequirement::NoOtherRoute => (
                &seen.clients.other_ways,
                "these route to the frontends of old",
            ),
            DeletionRequirement::NoUpdateToOld => (
                &seen.updates_to_old,
                "these updates and proxies route to the frontends of old",
            ),
            DeletionRequirement::NoBypass => (
                &seen.clients.bypasses,
                "these route to the frontends of old and bypass their proxies",
            ),
            DeletionRequirement::NewNotOwnedByOld => (
                &seen.clients.deleted_with_old,
                "clients or new need these, which may not outlive old",
            ),
            _ => return requirement.missing().to_owned(),
        };
        match found {
            Some(found) => truncate(&format!("{what}: {}", found.join(", ")), 1024),
            None => requirement.missing().to_owned(),
        }
    });
    reported.collect()
}

/// How an update with an invalid spec is handled. `is_followed` if an earlier valid spec is known and the cluster can be
/// observed by it.
pub(super) const fn invalid_spec_note(is_followed: bool) -> &'static str {
    match is_followed {
        true => {
            "Until then, the controller follows the last valid spec, and only reacts to losses of capacity."
        }
        false => {
            "Until then, nothing changes, even if a generation loses capacity, because this update has no earlier valid spec to follow."
        }
    }
}

/// The status of an update with an invalid spec. All other fields are those of `shown`.
pub(super) fn invalid(
    shown: DynamoUpdateConfigStatus,
    before: &DynamoUpdateConfigStatus,
    problems: &Problems,
    note: &str,
    generation: Option<i64>,
    now: jiff::Timestamp,
) -> DynamoUpdateConfigStatus {
    let message = truncate_message(&format!("the spec cannot be used: {problems}. {note}"));
    refused(shown, before, "Invalid", message, generation, now)
}

/// The status of an update that cannot be followed until the user fixes something. All other fields are those of `shown`.
pub(super) fn refused(
    shown: DynamoUpdateConfigStatus,
    before: &DynamoUpdateConfigStatus,
    reason: &str,
    message: String,
    generation: Option<i64>,
    now: jiff::Timestamp,
) -> DynamoUpdateConfigStatus {
    let mut status = shown;
    // A flag is no longer valid when its conditions are not observed.
    status.safe_to_delete_old = before.safe_to_delete_old.map(|_| false);
    status.last_old_worker_dispensable = before.last_old_worker_dispensable.map(|_| false);
    (status.observed_at, status.valid_until) = (None, None);
    status.missing_for_deletion.clear();
    status.observed_generation = generation;
    status.message = Some(message.clone());
    status.phase = Some(UpdatePhase::Degraded);
    status.last_transition_time = match &before.last_transition_time {
        Some(time) if before.phase == Some(UpdatePhase::Degraded) => Some(time.clone()),
        _ => Some(Time(now)),
    };
    let accepted = !matches!(reason, "Invalid" | TOO_MANY);
    for (kind, holds) in [
        (condition::ACCEPTED, accepted),
        (condition::DEGRADED, true),
        (condition::READY, false),
        (condition::RECONCILING, false),
        (condition::STALLED, true),
    ] {
        let reported = Condition {
            type_: kind.to_owned(),
            status: if holds { "True" } else { "False" }.to_owned(),
            reason: reason.to_owned(),
            message: message.clone(),
            observed_generation: generation,
            last_transition_time: Time(now),
        };
        let reported = since(reported, &before.conditions);
        status.conditions.retain(|other| other.type_ != kind);
        status.conditions.push(reported);
    }
    status
}

fn wait(wait: &Waiting) -> WaitStatus {
    WaitStatus {
        what: truncate_message(&wait.what.to_string()),
        since: time(wait.since),
        until: wait.until.map(time),
    }
}

fn analysis(analysis: &rollout::Analysis) -> AnalysisStatus {
    let failure = analysis.failure.as_ref();
    AnalysisStatus {
        verdict: analysis.verdict,
        message: truncate_message(&analysis.sentence),
        failed_at: failure.map(|failure| time(failure.at)),
        rolled_back: failure.is_some_and(|failure| failure.on_failure == OnFailure::RollBack),
    }
}

/// Whole seconds, the precision of the API server; otherwise the status would always differ.
fn time(at: Timestamp) -> Time {
    let seconds = i64::try_from(at.unix_millis() / 1000).unwrap_or(i64::MAX);
    Time(jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX))
}

/// A status without the fields that change all the time although nothing happens.
pub(super) fn without_figures(status: &DynamoUpdateConfigStatus) -> DynamoUpdateConfigStatus {
    let mut still = status.clone();
    still.observed = None;
    still.estimated_drain_seconds = None;
    // A borderline verdict changes with every look.
    still.analysis = still
        .analysis
        .filter(|analysis| analysis.verdict == TrialVerdict::Fail);
    let is_verdict = |reported: &&mut Condition| {
        reported.type_ == condition::ANALYSIS_FAILED && reported.status == "False"
    };
    if let Some(reported) = still.conditions.iter_mut().find(is_verdict) {
        (reported.reason, reported.message) = Default::default();
    }
    for generation in [&mut still.old, &mut still.new].into_iter().flatten() {
        generation.open_streams = None;
    }
    still
}

/// Keeps the transition time of a condition while its status stays the same.
fn since(mut new: Condition, before: &[Condition]) -> Condition {
    let known = before
        .iter()
        .find(|old| old.type_ == new.type_ && old.status == new.status);
    if let Some(known) = known {
        new.last_transition_time = known.last_transition_time.clone();
    }
    new
}

/// The phase for users. Degraded and Paused hide how far the update is, but not that old drains or that the update is
/// complete or superseded.
fn phase(decision: &Decision) -> UpdatePhase {
    let is_degraded = decision
        .conditions
        .iter()
        .any(|reported| reported.kind == ConditionKind::Degraded && reported.holds);
    match decision.phase {
        rollout::Phase::Superseded => UpdatePhase::Superseded,
        rollout::Phase::Draining => UpdatePhase::Draining,
        rollout::Phase::Complete => UpdatePhase::Complete,
        _ if is_degraded => UpdatePhase::Degraded,
        _ if matches!(decision.rule, Rule::Paused | Rule::Cap) => UpdatePhase::Paused,
        rollout::Phase::Pending => UpdatePhase::Pending,
        rollout::Phase::Progressing => UpdatePhase::Progressing,
    }
}

fn split(weights: Weights) -> SplitStatus {
    SplitStatus {
        percent: weights.rounded_percent(),
        weights: Some(WeightsSpec {
            old: weights.old(),
            new: weights.new_weight(),
        }),
    }
}

fn observed(assigned: PerGeneration<u64>) -> Option<SplitStatus> {
    let part = |count| u32::try_from(count).unwrap_or(u32::MAX);
    let (old, new) = (part(assigned.old), part(assigned.new));
    let weights = Weights::new(old, new).ok()?;
    Some(SplitStatus {
        percent: weights.rounded_percent(),
        weights: Some(WeightsSpec { old, new }),
    })
}

fn generation_status(
    seen: &Observed,
    decision: &Decision,
    generation: Generation,
) -> GenerationStatus {
    let whole = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let capacity = decision.capacity.of(generation);
    let counts = seen.observation.workers.of(generation);
    let roles = capacity.roles.iter().map(|(role, counted)| {
        let desired = counts.get(role).map_or(0, |workers| workers.desired);
        let status = RoleStatus {
            ready: whole(counted.ready),
            desired: whole(desired),
            full_size: counted.full.map(whole),
        };
        (role.as_str().to_owned(), status)
    });
    // The counts come from fields that anyone may have written.
    let sum = |of: fn(&crate::rollout::Workers) -> u32| {
        counts.values().map(of).fold(0, u32::saturating_add)
    };
    let (ready, desired) = (sum(|workers| workers.ready), sum(|workers| workers.desired));
    let open = decision.open_streams.map(|open| *open.of(generation));
    GenerationStatus {
        workers: Some(format!("{ready}/{desired}")),
        roles: roles.collect(),
        capacity_percent: Some(percent(capacity)),
        ready_frontends: Some(whole(seen.observation.frontends.of(generation).endpoints)),
        open_streams: open.and_then(|open| i64::try_from(open).ok()),
        moving_streams: match generation {
            Generation::Old => i64::try_from(decision.moving_streams).ok(),
            Generation::New => None,
        }
        .filter(|moving| *moving > 0),
    }
}

/// Rounded down, so that only full capacity is 100.
fn percent(capacity: &Capacity) -> i32 {
    let (of, whole) = capacity.share.parts();
    i32::try_from(u128::from(of) * 100 / u128::from(whole)).unwrap_or(i32::MAX)
}

/// A message without what exceeds the maximum length.
pub(super) fn truncate_message(message: &str) -> String {
    truncate(message, MAX_MESSAGE)
}

fn truncate(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_limit_of_a_flag_is_renewed_when_due_and_after_a_foreign_change() {
        let now: jiff::Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let status = |at: &str, until: &str| DynamoUpdateConfigStatus {
            safe_to_delete_old: Some(true),
            observed_at: Some(Time(at.parse().unwrap())),
            valid_until: Some(Time(until.parse().unwrap())),
            ..DynamoUpdateConfigStatus::default()
        };
        let promised = DynamoUpdateConfigStatus {
            safe_to_delete_old: Some(true),
            ..DynamoUpdateConfigStatus::default()
        };
        let fresh = status("2026-01-01T00:01:00Z", "2026-01-01T00:02:30Z");
        let earlier = status("2026-01-01T00:00:40Z", "2026-01-01T00:02:10Z");
        for (before, expected) in [
            (earlier.clone(), &earlier),
            (DynamoUpdateConfigStatus::default(), &fresh),
            (
                status("2026-01-01T00:00:30Z", "2026-01-01T00:02:00Z"),
                &fresh,
            ),
            // Written by a clock that is ahead.
            (
                status("2026-01-01T00:01:10Z", "2026-01-01T00:02:40Z"),
                &fresh,
            ),
            // By hand.
            (
                status("2026-01-01T00:00:40Z", "2036-01-01T00:00:00Z"),
                &fresh,
            ),
        ] {
            assert_eq!(&limit_validity(promised.clone(), &before, now), expected);
        }
        let nothing = DynamoUpdateConfigStatus::default();
        assert_eq!(limit_validity(nothing.clone(), &earlier, now), nothing);
    }
}
