//! The path of a rollout if nothing goes wrong. If there is none, the rollout reports that before the first write.

use std::time::Duration;

use super::{
    Intent, RolloutSettings, Sizes, TrialVerdict,
    assessment::Assessment,
    limits::{Usage, growth},
    observation::{RolloutObservation, Side},
    shrink::shrink,
};
use crate::rollout::Sides;
use crate::split::Generation;

/// The sizes that a rollout goes through if every worker becomes ready and nothing else happens. `None` if the limits prevent it
/// from reaching its end. It does not pause at steps, but a step may end where the limits leave no room for the next size.
#[must_use]
pub fn feasible_path(
    settings: &RolloutSettings,
    seen: &RolloutObservation,
) -> Option<Vec<Sides<Sizes>>> {
    let mut settings = settings.clone();
    if settings.intent != Intent::Promote {
        settings.intent = Intent::Run;
    }
    settings.superseded = false;
    let mut seen = seen.clone();
    seen.verdict = TrialVerdict::Pass;
    seen.at_rest_for = Duration::MAX;
    let admitted = Usage::admitted(&settings, &seen);
    let mut path = Vec::new();
    // Each size of each role is passed at most once on either side.
    let most = 4 * settings.shape.units() as usize + 4;
    for _ in 0..=most {
        ideal(&mut seen.sides.old);
        ideal(&mut seen.sides.new);
        admitted.leave(&settings, &mut seen);
        let assessment = Assessment::of(&settings, &seen);
        path.push(Sides {
            old: assessment.sides.old.sizes.clone(),
            new: assessment.sides.new.sizes.clone(),
        });
        let is_there = |side: Generation| {
            let (own, target) = (assessment.units(side), *assessment.targets.of(side));
            own.desired >= target && assessment.settings.shape.sizes(side, target) == own.sizes
        };
        if Generation::ALL.into_iter().all(is_there) {
            return Some(path);
        }
        let grown = Generation::ALL.into_iter().rev().find_map(|side| {
            let grown = growth(&assessment, side)?.ok()?;
            Some((side, grown))
        });
        let shrunk = || {
            let shrunk = shrink(&assessment)?.ok()?;
            Some((shrunk.side, shrunk.sizes))
        };
        let (side, sizes) = grown.or_else(shrunk)?;
        for (role, size) in sizes {
            let mut resize = |side: Generation, size: u32| {
                let roles = &mut seen.sides.of_mut(side).roles;
                roles.entry(role).or_default().desired = size;
            };
            resize(side, size);
            if settings.in_place {
                resize(side.other(), settings.shape.units() - size);
            }
        }
    }
    None
}

/// Exactly the requested workers exist, and they are ready.
fn ideal(side: &mut Side) {
    side.serves = super::Serves::Yes;
    for workers in side.roles.values_mut() {
        workers.observed = true;
        workers.present = workers.desired;
        workers.ready = workers.desired;
        workers.warm = workers.desired;
        workers.terminating = 0;
        workers.leaving.clear();
    }
}
