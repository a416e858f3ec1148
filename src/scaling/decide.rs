//! One decision: the observed state in, at most one action out.

use super::{
    Intent, RolloutSettings, ScalingAction, Serves, Sizes, Wait,
    assessment::Assessment,
    ending,
    limits::{gpus_used, growth},
    observation::RolloutObservation,
    obstacles,
    progress::{Next, Progress},
    shrink::{Shrink, shrink, unobserved, verdict_wait},
    unfinished,
};
use crate::rollout::PerGeneration;
use crate::split::{Generation, Weights};

/// The next action, and the progress of the rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalingDecision {
    /// The next action, if any. Carry it out, observe, and decide again.
    pub action: Option<ScalingAction>,
    /// The conditions that the next action waits for. May be empty if there is an action.
    pub waits: Vec<Wait>,
    /// The progress of the rollout.
    pub progress: Progress,
    /// Whole desired units.
    pub desired: PerGeneration<u32>,
    /// Ready units.
    pub ready: PerGeneration<u32>,
    /// The desired units of each generation, at the end or at the current step.
    pub targets: PerGeneration<u32>,
    /// The GPUs in use, including those of terminating pods.
    pub gpus: u64,
}

/// Decides. The same arguments give the same decision.
#[must_use]
pub fn decide(settings: &RolloutSettings, seen: &RolloutObservation) -> ScalingDecision {
    let assessment = Assessment::of(settings, seen);
    let (progress, next) = next(&assessment);
    let (action, waits) = match next {
        Next::Act(action, waits) => (Some(action), waits),
        Next::Wait(waits) => (None, waits),
    };
    let both = |of: fn(&super::assessment::Units) -> u32| PerGeneration {
        old: of(&assessment.generations.old),
        new: of(&assessment.generations.new),
    };
    ScalingDecision {
        action,
        waits,
        progress,
        desired: both(|units| units.desired),
        ready: both(|units| units.ready),
        targets: assessment.targets,
        gpus: gpus_used(&assessment),
    }
}

fn next(assessment: &Assessment) -> (Progress, Next) {
    let on_its_way = match assessment.goes_back {
        true => Progress::Back,
        false => Progress::Forward,
    };
    if let Some(split) = emergency(assessment) {
        return (
            on_its_way,
            Next::Act(ScalingAction::Split(split), Vec::new()),
        );
    }
    if !assessment.seen.is_current {
        return (on_its_way, Next::Wait(vec![Wait::NotCurrent]));
    }
    let (progress, next) = planned(assessment, on_its_way);
    match unfinished::hold_back(assessment.seen, progress, next) {
        Next::Wait(waits) if waits == [Wait::EarlierLeader] => (on_its_way, Next::Wait(waits)),
        next => (progress, next),
    }
}

/// The progress and the next step, if all requests are where they can be served and the observation is current.
fn planned(assessment: &Assessment, on_its_way: Progress) -> (Progress, Next) {
    if assessment.settings.intent == Intent::Hold {
        return (Progress::Held, Next::Wait(vec![Wait::Hold]));
    }
    let missing = obstacles::missing(assessment);
    if !missing.is_empty() {
        return (Progress::Refused, Next::Wait(missing));
    }
    let lost = obstacles::lost(assessment);
    if !lost.is_empty() {
        return (Progress::Stalled, Next::Wait(lost));
    }
    let mut contested = obstacles::contested(assessment);
    contested.extend(obstacles::resized(assessment));
    if !contested.is_empty() {
        return (Progress::Contested, Next::Wait(contested));
    }
    let refused = obstacles::before_first_write(assessment);
    if !refused.is_empty() {
        return (Progress::Refused, Next::Wait(refused));
    }
    if let Some(next) = ending::clients_back(assessment) {
        return (on_its_way, next);
    }
    scale(assessment, on_its_way)
}

/// Moves traffic, grows and shrinks, in this order.
fn scale(assessment: &Assessment, on_its_way: Progress) -> (Progress, Next) {
    let mut waits = Vec::new();
    let shrunk = match shrink(assessment) {
        Some(Ok(shrink)) => Some(shrink),
        Some(Err(wait)) => {
            waits.push(wait);
            None
        }
        None => None,
    };
    let blocks = shrunk
        .as_ref()
        .map(|shrink| shrink.before_lowering(assessment));
    let is_free = blocks.as_ref().is_some_and(Vec::is_empty);
    let shrunk_now = shrunk.as_ref().filter(|_| is_free);
    if let Some(split) = traffic(assessment, shrunk_now) {
        return (on_its_way, Next::Act(ScalingAction::Split(split), waits));
    }
    match grow(assessment) {
        Ok(Some((generation, sizes))) => {
            return (
                on_its_way,
                Next::Act(ScalingAction::Grow { generation, sizes }, waits),
            );
        }
        Ok(None) => {}
        // If a generation has to shrink, that makes room.
        Err(grown) => waits.extend(
            grown
                .into_iter()
                .filter(|wait| shrunk.is_none() || !wait.is_room()),
        ),
    }
    if let Some(shrink) = shrunk {
        waits.extend(blocks.unwrap_or_default());
        if is_free {
            let blocks = shrink.before_shrinking(assessment);
            if blocks.is_empty() && shrink.is_lowered(assessment) {
                return (on_its_way, Next::Act(shrink.action(assessment), waits));
            }
            waits.extend(blocks);
        }
    }
    let unready = unready(assessment);
    let is_overdue = |wait: &Wait| matches!(wait, Wait::Ready { overdue: true, .. });
    let progress = match unready.iter().any(is_overdue) {
        true => Progress::Stalled,
        false => on_its_way,
    };
    waits.extend(unready);
    if !waits.is_empty() && waits.iter().all(Wait::is_room) && is_still(assessment) {
        waits.insert(0, Wait::Infeasible);
    }
    match ending::end(assessment) {
        Some((ended, next)) if waits.is_empty() => (ended.unwrap_or(progress), next),
        // Another client has moved the only worker.
        None if waits.is_empty()
            && assessment.settings.in_place
            && assessment.settings.unavailable() == 0 =>
        {
            (progress, Next::Wait(vec![Wait::InPlace]))
        }
        _ => (progress, Next::Wait(waits)),
    }
}

/// Moves all requests away from a generation that cannot serve, immediately and regardless of the intent.
fn emergency(assessment: &Assessment) -> Option<Weights> {
    let split = assessment.seen.traffic.split;
    let (old, new) = (Generation::Old, Generation::New);
    let is_known = assessment.seen.generations.new.serves == Serves::Yes;
    if !assessment.can_serve(old) && assessment.can_serve(new) && is_known {
        return (!split.is_all_new()).then_some(Weights::ALL_NEW);
    }
    let new_must_go = !assessment.can_serve(new) || assessment.new_is_bad;
    (new_must_go && assessment.can_serve(old) && !split.is_all_old()).then_some(Weights::ALL_OLD)
}

/// The split, if it has to change: each generation gets requests in proportion to its units; a generation that is about to
/// shrink, in proportion to the units that stay.
fn traffic(assessment: &Assessment, shrink: Option<&Shrink>) -> Option<Weights> {
    let (old, new) = (Generation::Old, Generation::New);
    let split = match shrink {
        Some(shrink) => shrink.split,
        None => by_capacity(assessment),
    }?;
    let is = assessment.seen.traffic.split;
    let gains = gives_new_less(is, split);
    // A generation that is not known to serve gains nothing.
    let gaining = match gains {
        true => new,
        false => old,
    };
    let is_known = assessment.seen.generations.of(gaining).serves != Serves::Unknown;
    // A failed analysis also holds the split.
    let is_held = gains && assessment.gaining() == new && verdict_wait(assessment, true).is_some();
    (split != is && is_known && !is_held).then_some(split)
}

/// The split by the capacity of both generations. Pods that have to be replaced keep their requests until then, but get no
/// more.
fn by_capacity(assessment: &Assessment) -> Option<Weights> {
    let counted = |generation| {
        (
            assessment.counted(generation),
            assessment.units(generation).leaving,
        )
    };
    let ((old, old_leaving), (new, new_leaving)) =
        (counted(Generation::Old), counted(Generation::New));
    let is = assessment.seen.traffic.split;
    let least = Weights::new(old + old_leaving, new).ok();
    let most = Weights::new(old, new + new_leaving).ok();
    match (least, most) {
        (Some(least), Some(_)) if gives_new_less(is, least) => Some(least),
        (Some(_), Some(most)) if gives_new_less(most, is) => Some(most),
        (Some(_), Some(_)) => Some(is),
        (least, most) => least.or(most),
    }
}

fn gives_new_less(one: Weights, other: Weights) -> bool {
    u64::from(one.new_weight()) * u64::from(other.old())
        < u64::from(other.new_weight()) * u64::from(one.old())
}

/// The generation to grow and its sizes.
fn grow(assessment: &Assessment) -> Result<Option<(Generation, Sizes)>, Vec<Wait>> {
    let first = assessment.gaining();
    let mut waits = Vec::new();
    for generation in [first, first.other()] {
        let grown = match growth(assessment, generation) {
            None => continue,
            Some(Err(wait)) => {
                waits.push(wait);
                continue;
            }
            Some(Ok(sizes)) => sizes,
        };
        let mut blocks = unobserved(assessment);
        if generation == Generation::New {
            blocks.extend(verdict_wait(assessment, true));
            if assessment.has_begun()
                && assessment.seen.unchanged_for < assessment.settings.strategy.step_interval
            {
                blocks.push(Wait::Interval);
            }
            if assessment.seen.unready_for >= assessment.settings.strategy.ready_timeout {
                blocks.extend(unready(assessment));
            }
        }
        if blocks.is_empty() {
            return Ok(Some((generation, grown)));
        }
        waits.extend(blocks);
    }
    match waits.is_empty() {
        true => Ok(None),
        false => Err(waits),
    }
}

/// The generations with fewer ready units than desired.
fn unready(assessment: &Assessment) -> Vec<Wait> {
    let overdue = assessment.seen.unready_for >= assessment.settings.strategy.ready_timeout;
    let generations = Generation::ALL.into_iter();
    generations
        .filter(|generation| {
            assessment.counted(*generation) < assessment.units(*generation).desired
        })
        .map(|generation| Wait::Ready {
            generation,
            usable: assessment.counted(generation),
            desired: assessment.units(generation).desired,
            overdue,
        })
        .collect()
}

/// Whether all existing pods stay.
fn is_still(assessment: &Assessment) -> bool {
    let generations = Generation::ALL.into_iter();
    let mut roles = generations
        .flat_map(|generation| assessment.seen.generations.of(generation).roles.values());
    roles.all(|workers| workers.terminating == 0 && workers.present <= workers.desired)
}
