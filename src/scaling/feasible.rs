//! The path of a rollout if nothing goes wrong. If there is none, the rollout reports that before the first write.

use std::time::Duration;

use super::{
    Intent, RolloutSettings, Sizes, TrialVerdict,
    assessment::Assessment,
    limits::{Usage, growth},
    observation::{GenerationObservation, RolloutObservation},
    shrink::shrink,
};
use crate::rollout::PerGeneration;
use crate::split::Generation;

/// The sizes that a rollout goes through if every worker becomes ready and nothing else happens. `None` if the limits prevent it
/// from reaching its end. It does not pause at steps, but a step may end where the limits leave no room for the next size.
#[must_use]
pub fn feasible_path(
    settings: &RolloutSettings,
    seen: &RolloutObservation,
) -> Option<Vec<PerGeneration<Sizes>>> {
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
    // Each size of each role is passed at most once in either generation.
    let most = 4 * settings.shape.units() as usize + 4;
    for _ in 0..=most {
        ideal(&mut seen.generations.old);
        ideal(&mut seen.generations.new);
        admitted.leave(&settings, &mut seen);
        let assessment = Assessment::of(&settings, &seen);
        path.push(PerGeneration {
            old: assessment.generations.old.sizes.clone(),
            new: assessment.generations.new.sizes.clone(),
        });
        let is_there = |generation: Generation| {
            let (own, target) = (
                assessment.units(generation),
                *assessment.targets.of(generation),
            );
            own.desired >= target
                && assessment.settings.shape.sizes(generation, target) == own.sizes
        };
        if Generation::ALL.into_iter().all(is_there) {
            return Some(path);
        }
        let grown = Generation::ALL.into_iter().rev().find_map(|generation| {
            let grown = growth(&assessment, generation)?.ok()?;
            Some((generation, grown))
        });
        let shrunk = || {
            let shrunk = shrink(&assessment)?.ok()?;
            Some((shrunk.generation, shrunk.sizes))
        };
        let (generation, sizes) = grown.or_else(shrunk)?;
        for (role, size) in sizes {
            let mut resize = |generation: Generation, size: u32| {
                let roles = &mut seen.generations.of_mut(generation).roles;
                roles.entry(role).or_default().desired = size;
            };
            resize(generation, size);
            if settings.in_place {
                resize(generation.other(), settings.shape.units() - size);
            }
        }
    }
    None
}

/// Exactly the requested workers exist, and they are ready.
fn ideal(generation: &mut GenerationObservation) {
    generation.serves = super::Serves::Yes;
    for workers in generation.roles.values_mut() {
        workers.observed = true;
        workers.present = workers.desired;
        workers.ready = workers.desired;
        workers.warm = workers.desired;
        workers.terminating = 0;
        workers.leaving.clear();
    }
}
