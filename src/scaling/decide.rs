//! One decision: the observed state in, at most one action out.

use super::{
    Action, Intent, Serves, Settings, Sizes, Wait,
    assessment::Assessment,
    ending,
    limits::{gpus_used, growth},
    obstacles,
    progress::{Next, Progress},
    seen::Seen,
    shrink::{Shrink, judgement, shrink, unobserved},
};
use crate::rollout::Sides;
use crate::split::{Generation, Weights};

/// What to do now, and where the rollout is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The one thing to do. Do it, read again, decide again.
    pub action: Option<Action>,
    /// What the next action waits for. May be empty beside an action.
    pub waits: Vec<Wait>,
    /// Where the rollout is.
    pub progress: Progress,
    /// Whole units asked for.
    pub asked: Sides<u32>,
    /// Ready units.
    pub ready: Sides<u32>,
    /// The units that each side is to have in the end, or at the step at hand.
    pub targets: Sides<u32>,
    /// The GPUs in use, terminating pods included.
    pub gpus: u64,
}

/// Decides. The same arguments give the same decision.
#[must_use]
pub fn decide(settings: &Settings, seen: &Seen) -> Decision {
    let look = Assessment::of(settings, seen);
    let (progress, next) = next(&look);
    let (action, waits) = match next {
        Next::Act(action, waits) => (Some(action), waits),
        Next::Wait(waits) => (None, waits),
    };
    let both = |of: fn(&super::assessment::Units) -> u32| Sides {
        old: of(&look.sides.old),
        new: of(&look.sides.new),
    };
    Decision {
        action,
        waits,
        progress,
        asked: both(|units| units.asked),
        ready: both(|units| units.ready),
        targets: look.targets,
        gpus: gpus_used(&look),
    }
}

fn next(look: &Assessment) -> (Progress, Next) {
    let on_its_way = match look.goes_back {
        true => Progress::Back,
        false => Progress::Forward,
    };
    if let Some(split) = emergency(look) {
        return (on_its_way, Next::Act(Action::Split(split), Vec::new()));
    }
    if !look.seen.is_current {
        return (on_its_way, Next::Wait(vec![Wait::NotCurrent]));
    }
    if look.settings.intent == Intent::Hold {
        return (Progress::Held, Next::Wait(vec![Wait::Hold]));
    }
    let missing = obstacles::missing(look);
    if !missing.is_empty() {
        return (Progress::Refused, Next::Wait(missing));
    }
    let lost = obstacles::lost(look);
    if !lost.is_empty() {
        return (Progress::Stalled, Next::Wait(lost));
    }
    let mut contested = obstacles::contested(look);
    contested.extend(obstacles::resized(look));
    if !contested.is_empty() {
        return (Progress::Contested, Next::Wait(contested));
    }
    let refused = obstacles::before_first_write(look);
    if !refused.is_empty() {
        return (Progress::Refused, Next::Wait(refused));
    }
    if let Some(next) = ending::clients_back(look) {
        return (on_its_way, next);
    }
    scale(look, on_its_way)
}

/// Moves traffic, grows and shrinks, in this order.
fn scale(look: &Assessment, on_its_way: Progress) -> (Progress, Next) {
    let mut waits = Vec::new();
    let shrunk = match shrink(look) {
        Some(Ok(shrink)) => Some(shrink),
        Some(Err(wait)) => {
            waits.push(wait);
            None
        }
        None => None,
    };
    let blocks = shrunk.as_ref().map(|shrink| shrink.before_lowering(look));
    let is_free = blocks.as_ref().is_some_and(Vec::is_empty);
    let shrunk_now = shrunk.as_ref().filter(|_| is_free);
    if let Some(split) = traffic(look, shrunk_now) {
        return (on_its_way, Next::Act(Action::Split(split), waits));
    }
    match grow(look) {
        Ok(Some((side, sizes))) => {
            return (on_its_way, Next::Act(Action::Grow { side, sizes }, waits));
        }
        Ok(None) => {}
        // Where a side is to shrink, it makes the room.
        Err(grown) => waits.extend(
            grown
                .into_iter()
                .filter(|wait| shrunk.is_none() || !wait.is_room()),
        ),
    }
    if let Some(shrink) = shrunk {
        waits.extend(blocks.unwrap_or_default());
        if is_free {
            let blocks = shrink.before_shrinking(look);
            if blocks.is_empty() && shrink.is_lowered(look) {
                return (on_its_way, Next::Act(shrink.action(look), waits));
            }
            waits.extend(blocks);
        }
    }
    let unready = unready(look);
    let is_overdue = |wait: &Wait| matches!(wait, Wait::Ready { overdue: true, .. });
    let progress = match unready.iter().any(is_overdue) {
        true => Progress::Stalled,
        false => on_its_way,
    };
    waits.extend(unready);
    if !waits.is_empty() && waits.iter().all(Wait::is_room) && is_still(look) {
        waits.insert(0, Wait::Infeasible);
    }
    match ending::end(look) {
        Some((ended, next)) if waits.is_empty() => (ended.unwrap_or(progress), next),
        // Somebody else has moved the one worker that there is.
        None if waits.is_empty() && look.settings.in_place && look.settings.unavailable() == 0 => {
            (progress, Next::Wait(vec![Wait::InPlace]))
        }
        _ => (progress, Next::Wait(waits)),
    }
}

/// All requests away from a side that cannot serve, at once, whatever was asked for.
fn emergency(look: &Assessment) -> Option<Weights> {
    let split = look.seen.traffic.split;
    let (old, new) = (Generation::Old, Generation::New);
    let is_known = look.seen.sides.new.serves == Serves::Yes;
    if !look.can_serve(old) && look.can_serve(new) && is_known {
        return (!split.is_all_new()).then_some(Weights::ALL_NEW);
    }
    let new_must_go = !look.can_serve(new) || look.new_is_bad;
    (new_must_go && look.can_serve(old) && !split.is_all_old()).then_some(Weights::ALL_OLD)
}

/// The split, if it has to change: each side gets what its units carry, the one that is about to shrink what those that stay carry.
fn traffic(look: &Assessment, shrink: Option<&Shrink>) -> Option<Weights> {
    let (old, new) = (Generation::Old, Generation::New);
    let split = match shrink {
        Some(shrink) => shrink.split,
        None => Weights::new(look.counted(old), look.counted(new)).ok(),
    }?;
    let is = look.seen.traffic.split;
    let gains = u64::from(split.new_weight()) * u64::from(is.old())
        > u64::from(is.new_weight()) * u64::from(split.old());
    // Nothing is gained by what is not known to serve.
    let gaining = match gains {
        true => new,
        false => old,
    };
    let is_known = look.seen.sides.of(gaining).serves != Serves::Unknown;
    // What a failed judgement holds, holds the split.
    let is_held = gains && look.gaining() == new && judgement(look, true).is_some();
    (split != is && is_known && !is_held).then_some(split)
}

/// The side to grow and its sizes.
fn grow(look: &Assessment) -> Result<Option<(Generation, Sizes)>, Vec<Wait>> {
    let first = look.gaining();
    let mut waits = Vec::new();
    for side in [first, first.other()] {
        let grown = match growth(look, side) {
            None => continue,
            Some(Err(wait)) => {
                waits.push(wait);
                continue;
            }
            Some(Ok(sizes)) => sizes,
        };
        let mut blocks = unobserved(look);
        if side == Generation::New {
            blocks.extend(judgement(look, true));
            if look.has_begun() && look.seen.unchanged_for < look.settings.strategy.step_interval {
                blocks.push(Wait::Interval);
            }
            if look.seen.unready_for >= look.settings.strategy.ready_timeout {
                blocks.extend(unready(look));
            }
        }
        if blocks.is_empty() {
            return Ok(Some((side, grown)));
        }
        waits.extend(blocks);
    }
    match waits.is_empty() {
        true => Ok(None),
        false => Err(waits),
    }
}

/// The sides of which less is ready than asked for.
fn unready(look: &Assessment) -> Vec<Wait> {
    let overdue = look.seen.unready_for >= look.settings.strategy.ready_timeout;
    let sides = Generation::ALL.into_iter();
    sides
        .filter(|side| look.counted(*side) < look.units(*side).asked)
        .map(|side| Wait::Ready {
            side,
            usable: look.counted(side),
            asked: look.units(side).asked,
            overdue,
        })
        .collect()
}

/// Whether every pod that exists is to stay.
fn is_still(look: &Assessment) -> bool {
    let sides = Generation::ALL.into_iter();
    let mut roles = sides.flat_map(|side| look.seen.sides.of(side).roles.values());
    roles.all(|workers| workers.terminating == 0 && workers.present <= workers.asked)
}
