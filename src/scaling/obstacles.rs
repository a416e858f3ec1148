//! Conditions that prevent any action of a rollout, no matter what its next step would be.

use super::{
    Retire, Wait,
    assessment::{Assessment, gpus},
    feasible_path,
    limits::growth,
};
use crate::split::Generation;

/// Accepted roles that are missing.
pub(super) fn missing(assessment: &Assessment) -> Vec<Wait> {
    let generations = Generation::ALL.into_iter();
    let roles = generations.flat_map(|generation| {
        let roles = assessment.settings.shape.full(generation).keys();
        roles.map(move |role| (generation, *role))
    });
    roles
        .filter(|(generation, role)| {
            !assessment
                .seen
                .generations
                .of(*generation)
                .roles
                .contains_key(role)
        })
        .map(|(generation, role)| Wait::RoleMissing(generation, role))
        .collect()
}

/// The sizes that another client has set since.
pub(super) fn contested(assessment: &Assessment) -> Vec<Wait> {
    let mut waits = Vec::new();
    for generation in Generation::ALL {
        let seen = assessment.seen.generations.of(generation);
        let scaler = seen.scaler.clone();
        waits.extend(scaler.map(|scaler| Wait::Scaler(generation, scaler)));
        if assessment.seen.accepts_sizes {
            continue;
        }
        for (role, workers) in &seen.roles {
            // Before the first write, old has the accepted size unless another one was specified, and new may have any size.
            let settings = assessment.settings;
            let expected = workers.recorded.or_else(|| {
                let is_known = generation == Generation::Old && !settings.given.contains(role);
                let full = settings.shape.full(generation);
                full.get(role).copied().filter(|_| is_known)
            });
            if !workers.ours && expected.is_some_and(|expected| expected != workers.desired) {
                waits.push(Wait::Contested {
                    generation,
                    role: *role,
                    desired: workers.desired,
                    recorded: workers.recorded,
                });
            }
        }
    }
    waits
}

/// A generation that needs more workers, but whose shared object no longer creates workers of its revision.
pub(super) fn lost(assessment: &Assessment) -> Vec<Wait> {
    let generations = Generation::ALL.into_iter();
    let is_short = |generation: &Generation| {
        assessment.units(*generation).desired < *assessment.targets.of(*generation)
    };
    let lost = generations.filter(|generation| {
        is_short(generation) || both(assessment) != assessment.settings.shape.units()
    });
    let lost =
        lost.filter_map(|generation| assessment.seen.generations.of(generation).lost.clone());
    lost.map(Wait::Lost).collect()
}

/// Whether the object of both generations has a different number of replicas than accepted. The owner cannot accept that,
/// because old and new together always have the full size.
pub(super) fn resized(assessment: &Assessment) -> Vec<Wait> {
    let (desired, full) = (both(assessment), assessment.settings.shape.units());
    let is_resized = assessment.settings.in_place && desired != full;
    Vec::from_iter(is_resized.then_some(Wait::Resized { desired, full }))
}

/// The desired sizes of both generations.
fn both(assessment: &Assessment) -> u32 {
    let generations = Generation::ALL.into_iter();
    let roles = generations
        .flat_map(|generation| assessment.seen.generations.of(generation).roles.values());
    roles
        .map(|workers| workers.desired)
        .fold(0, u32::saturating_add)
}

/// Why old cannot be retired as the rollout requests.
pub(super) fn retire_obstacle(assessment: &Assessment) -> Option<Wait> {
    let why = assessment.seen.retire_obstacle.clone();
    let is_requested =
        assessment.settings.handover.retire != Retire::Keep && !assessment.seen.clients.retired;
    why.filter(|_| is_requested).map(Wait::CannotRetire)
}

/// What prevents the first write.
pub(super) fn before_first_write(assessment: &Assessment) -> Vec<Wait> {
    if assessment.has_begun() || assessment.goes_back {
        return Vec::new();
    }
    let mut waits = Vec::from_iter(retire_obstacle(assessment));
    if feasible_path(assessment.settings, assessment.seen).is_none() {
        waits.push(match assessment.settings.in_place {
            true => Wait::InPlace,
            false => Wait::Infeasible,
        });
        // The rejected growth states the reason.
        waits.extend(growth(assessment, Generation::New).and_then(Result::err));
    }
    let strategy = &assessment.settings.strategy;
    // With a budget below what old needs, the rollout could not go back.
    let full = assessment.settings.shape.full(Generation::Old);
    let used = gpus(&assessment.settings.gpus.old, full);
    let least = { strategy.gpu_budget }.filter(|budget| used > (*budget).into());
    waits.extend(least.map(|budget| Wait::Budget {
        used,
        more: 0,
        budget,
    }));
    let p99 = assessment.seen.traffic.p99;
    if !strategy.continuation && !strategy.allow_short_grace {
        let mut roles = assessment.seen.generations.old.roles.values();
        let is_short = |grace| p99.is_some_and(|p99| grace < p99);
        let short = roles.find(|workers| workers.grace.is_some_and(is_short));
        waits.extend(short.map(|workers| Wait::Grace {
            generation: Generation::Old,
            grace: workers.grace,
            p99,
        }));
    }
    waits
}
