//! The observed state, in units.

use super::{
    Intent, OnFailure, RoleReplicas, RolloutSettings, Serves, Sizes, TrialVerdict, Wait,
    observation::{GenerationObservation, RemovalOrder, RolloutObservation},
};
use crate::rollout::{PerGeneration, Role};
use crate::split::{Generation, Weights};

/// The observation in units, and the direction of the rollout.
pub(super) struct Assessment<'a> {
    pub settings: &'a RolloutSettings,
    pub seen: &'a RolloutObservation,
    pub generations: PerGeneration<Units>,
    /// The desired units of each generation, at the end or at the current step.
    pub targets: PerGeneration<u32>,
    /// Whether the rollout must go back to old.
    pub goes_back: bool,
    /// Whether new failed and is being rolled back.
    pub new_is_bad: bool,
}

/// One generation in units.
#[derive(Clone, Debug)]
pub(super) struct Units {
    /// Whole desired units.
    pub desired: u32,
    /// Units that are at least partly desired.
    pub begun: u32,
    /// Units that occupy capacity: desired, present or terminating.
    pub occupied: u32,
    /// Ready units.
    pub ready: u32,
    /// Ready units of a generation that serves and is not known to be bad.
    pub capacity: u32,
    /// Usable units that have warmed up.
    pub usable: u32,
    /// Ready units that serve until they are replaced by those of the other generation.
    pub leaving: u32,
    /// The desired sizes.
    pub sizes: Sizes,
}

impl<'a> Assessment<'a> {
    pub fn of(settings: &'a RolloutSettings, seen: &'a RolloutObservation) -> Self {
        let is_forward = settings.intent != Intent::Abort && !settings.superseded;
        let rolls_back = settings.strategy.analysis == Some(OnFailure::RollBack);
        let is_failed = settings.strategy.analysis.is_some()
            && settings.intent != Intent::Promote
            && seen.verdict == TrialVerdict::Fail;
        // With `Hold`, the owner decides whether to go back.
        let new_is_bad = is_failed && (rolls_back || !is_forward);
        let unit = |generation: Generation| {
            units(
                settings,
                seen.generations.of(generation),
                generation,
                new_is_bad,
            )
        };
        let generations = PerGeneration {
            old: unit(Generation::Old),
            new: unit(Generation::New),
        };
        let goes_back = !is_forward || new_is_bad;
        let whole = settings.shape.units();
        let new = match goes_back {
            true => 0,
            false => forward_target(settings, seen, &generations),
        };
        Self {
            settings,
            seen,
            generations,
            targets: PerGeneration {
                old: whole - new,
                new,
            },
            goes_back,
            new_is_bad,
        }
    }

    /// The units of `generation`.
    pub const fn units(&self, generation: Generation) -> &Units {
        self.generations.of(generation)
    }

    /// The units that must stay ready.
    pub fn floor(&self) -> u32 {
        self.settings.shape.units() - self.settings.unavailable()
    }

    /// Whether the rollout has changed anything yet. New may already have workers: its owner decides how many it starts with.
    pub fn has_begun(&self) -> bool {
        let both = self.seen.generations.old.roles.values();
        let mut all = both.chain(self.seen.generations.new.roles.values());
        all.any(|role| role.recorded.is_some() || role.ours)
            || !self.seen.traffic.split.is_all_old()
    }

    /// Whether `generation` can serve at all.
    pub fn can_serve(&self, generation: Generation) -> bool {
        let units = self.units(generation);
        units.ready + units.leaving > 0 && self.seen.generations.of(generation).serves != Serves::No
    }

    /// Whether `generation` is known not to serve, or to be bad.
    pub fn is_out(&self, generation: Generation) -> bool {
        let is_bad = self.new_is_bad && generation == Generation::New;
        is_bad || self.seen.generations.of(generation).serves == Serves::No
    }

    /// The capacity of `generation` if only this many of its units stay: the units that certainly remain ready.
    pub fn capacity_after(&self, generation: Generation, sizes: &Sizes) -> u32 {
        let roles = &self.seen.generations.of(generation).roles;
        let kept = roles.iter().map(|(role, workers)| {
            let size = sizes.get(role).copied().unwrap_or_default();
            (*role, ready_after(workers, size))
        });
        let kept = self.settings.shape.whole(generation, &kept.collect());
        kept.min(self.units(generation).capacity)
    }

    /// The generation that gains.
    pub fn gaining(&self) -> Generation {
        let exceeds = self.units(Generation::New).begun > self.targets.new;
        match self.goes_back || exceeds {
            true => Generation::Old,
            false => Generation::New,
        }
    }

    /// The units of `generation` that may get requests: a loss counts immediately, a gain once it is warm. A unit that is no
    /// longer requested may stay ready for a moment.
    pub fn counted(&self, generation: Generation) -> u32 {
        let units = self.units(generation);
        let ready = match generation == self.gaining() {
            true => units.usable,
            false => units.capacity,
        };
        ready.min(units.desired)
    }

    /// Whether every proxy has applied the split in the resource. Without a proxy there is no confirmation.
    pub fn is_applied(&self) -> bool {
        let traffic = &self.seen.traffic;
        let applied = |proxy: &Option<Weights>| *proxy == Some(traffic.split);
        !traffic.applied.is_empty() && traffic.applied.iter().all(applied)
    }

    /// The proxies that have not applied the split.
    pub fn unapplied(&self) -> Wait {
        let traffic = &self.seen.traffic;
        let applied = |proxy: &&Option<Weights>| **proxy == Some(traffic.split);
        Wait::Proxies {
            applied: traffic.applied.iter().filter(applied).count(),
            all: traffic.applied.len(),
        }
    }
}

fn units(
    settings: &RolloutSettings,
    seen: &GenerationObservation,
    generation: Generation,
    is_bad: bool,
) -> Units {
    let shape = &settings.shape;
    let of = |count: fn(&RoleReplicas) -> u32| -> Sizes {
        let roles = seen.roles.iter();
        roles
            .map(|(role, workers)| (*role, count(workers)))
            .collect()
    };
    let desired = of(|workers| workers.desired);
    let serves = seen.serves != Serves::No && !(is_bad && generation == Generation::New);
    let of_serving = |count: fn(&RoleReplicas) -> u32| match serves {
        true => shape.whole(generation, &of(count)),
        false => 0,
    };
    let leaving = seen.roles.values().flat_map(|workers| &workers.leaving);
    let leaving = leaving.filter(|pod| pod.ready).count() as u32;
    Units {
        desired: shape.whole(generation, &desired),
        begun: shape.covering(generation, &desired),
        occupied: shape.covering(generation, &of(RoleReplicas::occupied)),
        ready: shape.whole(generation, &of(|workers| workers.ready)),
        capacity: of_serving(|workers| workers.ready),
        usable: of_serving(|workers| workers.warm.min(workers.ready)),
        leaving: if serves { leaving } else { 0 },
        sizes: desired,
    }
}

/// The current target of new, in units.
fn forward_target(
    settings: &RolloutSettings,
    seen: &RolloutObservation,
    generations: &PerGeneration<Units>,
) -> u32 {
    let whole = settings.shape.units();
    let end = whole - settings.strategy.partition.min(whole);
    if settings.intent == Intent::Promote {
        return end;
    }
    // The first step that has not ended. A step has ended if the sizes exceed it, or have stayed at it for long enough.
    let steps = settings.strategy.steps.iter();
    let (old, new) = (&generations.old, &generations.new);
    // A pod of new that should be replaced still counts for new: pausing at an earlier step would replace it twice, and wait for
    // clients that it serves.
    let roles = seen.generations.new.roles.values();
    let leaving: usize = roles.map(|workers| workers.leaving.len()).sum();
    let has = new.desired.saturating_add(leaving as u32);
    let is_over = |size: u32, hold| {
        let has_passed = has > size || old.begun + size < whole;
        has_passed || new.desired == size && new.ready >= size && seen.at_rest_for >= hold
    };
    let mut sizes = steps.map(|step| (step.new.up(whole), step.hold));
    let next = sizes.find(|(size, hold)| !is_over(*size, *hold));
    next.map_or(end, |(size, _)| size.min(end))
}

impl RoleReplicas {
    /// Replicas that occupy capacity or may soon.
    pub(super) fn occupied(&self) -> u32 {
        self.desired
            .max(self.present)
            .saturating_add(self.terminating)
    }
}

/// How many replicas are certainly ready after a role has shrunk to `size`.
fn ready_after(workers: &RoleReplicas, size: u32) -> u32 {
    match workers.removes {
        RemovalOrder::Unready | RemovalOrder::Marked(_) => workers.ready.min(size),
        // If all existing replicas are ready, so are those that stay.
        RemovalOrder::Last if workers.ready >= workers.present => workers.ready.min(size),
        RemovalOrder::Last => {
            let removed = workers.present.saturating_sub(size);
            workers.ready.saturating_sub(removed)
        }
    }
}

/// The GPUs of these numbers of replicas per role.
pub(super) fn gpus(of: &std::collections::BTreeMap<Role, u32>, replicas: &Sizes) -> u64 {
    let each = replicas.iter().map(|(role, count)| {
        let gpus = of.get(role).copied().unwrap_or_default();
        u64::from(gpus) * u64::from(*count)
    });
    each.fold(0, u64::saturating_add)
}
