//! Builds the status of a rollout from a decision, with messages for its owner. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value as Json;

use super::super::status::truncate_message;
use super::conditions::{conditions, standard};
use super::memory;
use crate::printable::counted;
use crate::resource::rollout_status::{
    AcceptedStatus, DynamoRolloutStatus, GpuStatus, RevisionStatus, RolloutMemory, RolloutPhase,
    RolloutStepStatus, ScaledGenerationStatus, ScaledRoleStatus,
};
use crate::resource::status::{AnalysisStatus, WaitStatus};
use crate::rollout::{PerGeneration, Role};
use crate::scaling::{
    GenerationObservation, Progress, Retire, RolloutObservation, ScalingAction, ScalingDecision,
    Sizes, Wait,
};
use crate::split::Generation;

/// The input for a status.
pub(super) struct StatusInput<'a> {
    pub before: &'a DynamoRolloutStatus,
    pub accepted: &'a AcceptedStatus,
    pub update: &'a str,
    pub seen: &'a RolloutObservation,
    pub decision: &'a ScalingDecision,
    pub memory: RolloutMemory,
    pub analysis: Option<AnalysisStatus>,
    pub revisions: Vec<RevisionStatus>,
    pub generation: Option<i64>,
    pub now: Timestamp,
}

/// The status after a decision.
pub(super) fn status(reported: StatusInput) -> DynamoRolloutStatus {
    let StatusInput {
        before,
        seen,
        decision,
        now,
        ..
    } = reported;
    let phase = phase(decision.progress);
    let message = message(decision);
    let peak = before.gpus.map_or(0, |gpus| gpus.peak);
    let open = |generation| seen.traffic.open.map(|open| *open.of(generation));
    let scaled = |generation, before| {
        generation_status(seen.generations.of(generation), before, open(generation))
    };
    let status = DynamoRolloutStatus {
        observed_generation: reported.generation,
        phase: Some(phase),
        conditions: conditions(phase, decision, &message, reported.generation, now),
        message: Some(message),
        update: Some(reported.update.to_owned()),
        accepted: Some(reported.accepted.clone()),
        source: Some(scaled(Generation::Old, &before.source)),
        target: Some(scaled(Generation::New, &before.target)),
        split: Some(memory::split(seen.traffic.split)),
        step: Some(RolloutStepStatus {
            old: decision.desired.old,
            new: decision.desired.new,
            next: decision.targets.new,
        }),
        waiting_for: waiting_for(&decision.waits, before, now),
        analysis: reported.analysis,
        gpus: Some(GpuStatus {
            used: decision.gpus,
            peak: peak.max(decision.gpus),
        }),
        previous_selector: before.previous_selector.clone(),
        revisions: reported.revisions,
        memory: Some(reported.memory),
    };
    settled(status, before)
}

/// The status of a rollout that cannot make progress because of `message`.
pub(super) fn refused(
    before: &DynamoRolloutStatus,
    reason: &str,
    message: String,
    generation: Option<i64>,
    now: Timestamp,
) -> DynamoRolloutStatus {
    let has_begun = before.accepted.is_some() && before.phase != Some(RolloutPhase::Refused);
    let phase = match has_begun {
        true => RolloutPhase::Stalled,
        false => RolloutPhase::Refused,
    };
    let message = truncate_message(&message);
    let status = DynamoRolloutStatus {
        observed_generation: generation,
        phase: Some(phase),
        conditions: standard(phase, reason, &message, generation, now),
        message: Some(message),
        waiting_for: Vec::new(),
        ..before.clone()
    };
    settled(status, before)
}

/// Conditions that have not changed keep the time of their last transition.
fn settled(mut status: DynamoRolloutStatus, before: &DynamoRolloutStatus) -> DynamoRolloutStatus {
    for condition in &mut status.conditions {
        let known = before
            .conditions
            .iter()
            .find(|known| known.type_ == condition.type_ && known.status == condition.status);
        if let Some(known) = known {
            condition.last_transition_time = known.last_transition_time.clone();
        }
    }
    status
}

const fn phase(progress: Progress) -> RolloutPhase {
    match progress {
        Progress::Refused => RolloutPhase::Refused,
        Progress::Forward => RolloutPhase::Progressing,
        Progress::Back => RolloutPhase::RollingBack,
        Progress::Held => RolloutPhase::Held,
        Progress::Contested => RolloutPhase::Contested,
        Progress::Stalled => RolloutPhase::Stalled,
        Progress::Partition => RolloutPhase::Partition,
        Progress::Complete => RolloutPhase::Complete,
        Progress::RolledBack => RolloutPhase::RolledBack,
    }
}

fn generation_status(
    generation: &GenerationObservation,
    before: &Option<ScaledGenerationStatus>,
    open: Option<u64>,
) -> ScaledGenerationStatus {
    let roles = generation.roles.iter().map(|(role, workers)| {
        let before = before
            .as_ref()
            .and_then(|generation| generation.roles.get(role.as_str()));
        let reported = ScaledRoleStatus {
            spec: workers.desired,
            ready: workers.ready,
            terminating: workers.terminating,
            // A write of this rollout may not have been recorded.
            recorded: match workers.ours {
                true => Some(workers.desired),
                false => before.and_then(|before| before.recorded),
            },
        };
        (role.as_str().to_owned(), reported)
    });
    let sum = |of: fn(&crate::scaling::RoleReplicas) -> u32| -> u32 {
        let sizes = generation.roles.values().map(of);
        sizes.fold(0, u32::saturating_add)
    };
    ScaledGenerationStatus {
        workers: Some(format!(
            "{}/{}",
            sum(|workers| workers.ready),
            sum(|workers| workers.desired)
        )),
        roles: roles.collect(),
        ready_frontends: generation.frontends,
        // The API server has no larger integers, and a proxy may report anything.
        open_streams: open.filter(|open| i64::try_from(*open).is_ok()),
    }
}

/// Records the sizes that were written.
pub(super) fn record(
    status: &mut DynamoRolloutStatus,
    generation: Generation,
    written: &Sizes,
    resource_generation: Option<i64>,
) {
    let generation = match generation {
        Generation::Old => &mut status.source,
        Generation::New => &mut status.target,
    };
    for (role, size) in written {
        let roles = &mut generation.get_or_insert_default().roles;
        let role = roles.entry(role.as_str().to_owned()).or_default();
        role.recorded = Some(*size);
    }
    status.memory.get_or_insert_default().recorded_generation = resource_generation;
}

/// Adopts the sizes that others have set, because the owner of the rollout has edited it since.
pub(super) fn accept_sizes(
    status: &mut DynamoRolloutStatus,
    generations: &PerGeneration<GenerationObservation>,
    resource_generation: Option<i64>,
) {
    for generation in Generation::ALL {
        let roles = &generations.of(generation).roles;
        let known = roles
            .iter()
            .filter(|(_, workers)| workers.recorded.is_some());
        let sizes = known
            .map(|(role, workers)| (*role, workers.desired))
            .collect();
        record(status, generation, &sizes, resource_generation);
    }
}

fn waiting_for(waits: &[Wait], before: &DynamoRolloutStatus, now: Timestamp) -> Vec<WaitStatus> {
    let waits = waits.iter().take(32).map(|wait| {
        let what = wait.to_string();
        let known = before.waiting_for.iter().find(|known| known.what == what);
        WaitStatus {
            since: known.map_or(Time(now), |known| known.since.clone()),
            what,
            until: None,
        }
    });
    waits.collect()
}

fn message(decision: &ScalingDecision) -> String {
    if let Some(action) = &decision.action {
        return action_text(action);
    }
    if !decision.waits.is_empty() {
        let waits: Vec<_> = decision.waits.iter().map(Wait::to_string).collect();
        return truncate_message(&format!("waiting for {}", waits.join("; and for ")));
    }
    match decision.progress {
        Progress::Complete => "new serves everything",
        Progress::RolledBack => "old serves everything",
        Progress::Partition => "all units above the partition are new",
        _ => "up to date",
    }
    .to_owned()
}

/// Describes an action.
pub(super) fn action_text(action: &ScalingAction) -> String {
    let sizes = |sizes: &Sizes| {
        let sizes: Vec<_> = sizes
            .iter()
            .map(|(role, size)| match role {
                Role::Worker => counted((*size).into(), "worker"),
                half => format!("{size} {half}"),
            })
            .collect();
        sizes.join(", ")
    };
    match action {
        ScalingAction::Split(split) => {
            format!(
                "sending {}% of the requests to new",
                split.rounded_percent()
            )
        }
        ScalingAction::Grow {
            generation,
            sizes: to,
        } => format!("growing {generation} to {}", sizes(to)),
        ScalingAction::Mark {
            generation, pods, ..
        } => {
            format!(
                "marking {} of {generation} to be removed first",
                pods.join(", ")
            )
        }
        ScalingAction::Replace {
            generation, pods, ..
        } => {
            format!(
                "replacing {} of {generation} with {}",
                pods.join(", "),
                generation.other()
            )
        }
        ScalingAction::Shrink {
            generation,
            sizes: to,
        } => format!("shrinking {generation} to {}", sizes(to)),
        ScalingAction::SaveSelector => "saving the selector of clientService".to_owned(),
        ScalingAction::Retarget(generation) => {
            format!("routing clients to the frontends of {generation}")
        }
        ScalingAction::Retire(Retire::Delete) => "deleting old".to_owned(),
        ScalingAction::Retire(_) => "scaling the frontends of old to zero".to_owned(),
    }
}

/// A status without the fields that change all the time.
pub(super) fn without_figures(status: &DynamoRolloutStatus) -> Json {
    let mut status = status.clone();
    let generations = [&mut status.source, &mut status.target];
    for generation in generations.into_iter().flatten() {
        generation.open_streams = None;
    }
    if let Some(analysis) = &mut status.analysis {
        analysis.message.clear();
    }
    let remove_digits = |text: &mut String| text.retain(|letter| !letter.is_ascii_digit());
    status.message.iter_mut().for_each(remove_digits);
    for wait in &mut status.waiting_for {
        remove_digits(&mut wait.what);
    }
    for condition in &mut status.conditions {
        remove_digits(&mut condition.message);
    }
    let mut status = serde_json::json!(status);
    let waits = status["waitingFor"].as_array_mut().into_iter().flatten();
    for wait in waits {
        wait["since"] = Json::Null;
    }
    status
}
