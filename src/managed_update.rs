//! A `DynamoRollout` in terms of [`crate::scaling`]: the requested state, and the objects that it moves.
//!
//! Has no clock and does no I/O, so a rollout can be simulated with the inputs that a controller would have.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::continuation::Mode;
use crate::resource::{DynamoRolloutSpec, GenerationSpec};
use crate::rollout::{PerGeneration, Role};
use crate::scaling::{Amount, Intent, RolloutSettings, ScaleStep, Shape, Sizes, Strategy};

/// The sizes and GPUs that a rollout moves, as accepted when it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// The full size of each role.
    pub full: PerGeneration<Sizes>,
    /// The GPUs of one replica of each role.
    pub gpus: PerGeneration<BTreeMap<Role, u32>>,
}

/// Why the full sizes of a rollout are unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error("{0} has no workers: name the objects that own them")]
    NoRole(&'static str),
    #[error("source has no replicas of the role {0} now: set source.replicas to its full size")]
    NoSize(Role),
    #[error("target has the role {0}, which source does not have: set its full size in target")]
    NoCounterpart(Role),
    #[error(
        "{0}.replicas is set, but it has several roles: use roles to name the object of each role"
    )]
    SeveralRoles(&'static str),
}

/// The full sizes of both generations; `now` are the current sizes of their objects.
///
/// # Errors
/// The sizes that the spec must specify, because they cannot be taken from the other generation.
pub fn full_sizes(
    spec: &DynamoRolloutSpec,
    now: &PerGeneration<Sizes>,
) -> Result<PerGeneration<Sizes>, SizeError> {
    match (now.old.is_empty(), now.new.is_empty()) {
        (true, _) => return Err(SizeError::NoRole("source")),
        (_, true) => return Err(SizeError::NoRole("target")),
        _ => {}
    }
    let mut old = Sizes::new();
    let stated_old = stated("source", &spec.source, &now.old)?;
    for (role, size) in &now.old {
        // If an earlier rollout between the two was deleted half-way, new may already have most of the workers.
        let larger = (*size).max(now.new.get(role).copied().unwrap_or_default());
        // The size of a source without workers must be stated.
        let present = if *size == 0 { 0 } else { larger };
        let full = stated_old.get(role).copied().unwrap_or(present);
        if full == 0 {
            return Err(SizeError::NoSize(*role));
        }
        old.insert(*role, full);
    }
    let stated_new = stated("target", &spec.target, &now.new)?;
    let mut new = Sizes::new();
    for role in now.new.keys() {
        let full = stated_new.get(role).or_else(|| old.get(role));
        let full = full.ok_or(SizeError::NoCounterpart(*role))?;
        new.insert(*role, *full);
    }
    Ok(PerGeneration { old, new })
}

/// The full sizes that a generation specifies.
fn stated(
    generation: &'static str,
    spec: &GenerationSpec,
    now: &Sizes,
) -> Result<Sizes, SizeError> {
    if let Some(replicas) = spec.replicas {
        return match now.len() {
            0 | 1 => Ok(now.keys().map(|role| (*role, replicas)).collect()),
            _ => Err(SizeError::SeveralRoles(generation)),
        };
    }
    let roles = spec.roles.iter();
    let stated = roles.filter_map(|(name, workload)| Some((role(name)?, workload.replicas?)));
    Ok(stated.collect())
}

/// The role of this name.
#[must_use]
pub fn role(name: &str) -> Option<Role> {
    let roles = [Role::Worker, Role::Prefill, Role::Decode];
    roles.into_iter().find(|role| role.as_str() == name)
}

/// The direction of a rollout, in addition to `spec.intent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// According to `spec.intent`.
    AsSpecified,
    /// Back to the old generation, because it is the revision in `undoTo`.
    RollBack,
    /// Back to the old generation, because the spec requests a different new generation.
    Superseded,
    /// None: the requested change is impossible.
    Impossible,
}

/// The settings of a rollout. `None` if one generation has no workers to move, or an amount is invalid.
#[must_use]
pub fn settings(
    spec: &DynamoRolloutSpec,
    accepted: &Accepted,
    direction: Direction,
) -> Option<RolloutSettings> {
    Some(RolloutSettings {
        shape: Shape::of(accepted.full.clone())?,
        given: given(&spec.source, &accepted.full.old),
        gpus: accepted.gpus.clone(),
        strategy: strategy(spec)?,
        intent: match (spec.intent, direction) {
            (Intent::Hold, _) | (_, Direction::Impossible) => Intent::Hold,
            (_, Direction::RollBack) => Intent::Abort,
            (intent, Direction::AsSpecified | Direction::Superseded) => intent,
        },
        superseded: direction == Direction::Superseded,
        handover: spec.handover,
        in_place: spec.is_in_place(),
    })
}

/// The roles of a generation whose full size the spec specifies.
fn given(generation: &GenerationSpec, full: &Sizes) -> BTreeSet<Role> {
    let is_given = |role: &&Role| {
        let of_role = generation.roles.get(role.as_str());
        generation.replicas.is_some() || of_role.is_some_and(|workload| workload.replicas.is_some())
    };
    full.keys().filter(is_given).copied().collect()
}

fn strategy(spec: &DynamoRolloutSpec) -> Option<Strategy> {
    let strategy = &spec.strategy;
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let steps = spec.steps.iter().map(|step| ScaleStep {
        new: Amount::Percent(step.percent.into()),
        hold: seconds(step.hold_seconds),
    });
    let continuation = Mode::from(spec.traffic.failover.continuation.mode);
    Some(Strategy {
        max_surge: strategy.max_surge.read()?,
        max_unavailable: strategy.max_unavailable.read()?,
        partition: strategy.partition,
        steps: steps.collect(),
        gpu_budget: strategy.gpu_budget,
        ready_timeout: seconds(strategy.ready_timeout_seconds),
        step_interval: seconds(strategy.step_interval_seconds),
        drain_deadline: strategy.drain_deadline_seconds.map(seconds),
        analysis: spec.analysis.as_ref().map(|analysis| analysis.on_failure),
        continuation: continuation != Mode::Off,
        allow_short_grace: strategy.allow_short_grace,
    })
}

#[cfg(test)]
mod tests;
