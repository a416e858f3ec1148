//! The observed state, in units.

use super::{
    Intent, OnFailure, RoleReplicas, RolloutSettings, Serves, Sizes, TrialVerdict, Wait,
    observation::{RemovalOrder, RolloutObservation, Side},
};
use crate::rollout::{Role, Sides};
use crate::split::{Generation, Weights};

/// The observation in units, and the direction of the rollout.
pub(super) struct Assessment<'a> {
    pub settings: &'a RolloutSettings,
    pub seen: &'a RolloutObservation,
    pub sides: Sides<Units>,
    /// The desired units of each side, at the end or at the current step.
    pub targets: Sides<u32>,
    /// Whether the rollout must go back to old.
    pub goes_back: bool,
    /// Whether new failed and is being rolled back.
    pub new_is_bad: bool,
}

/// One side in units.
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
    /// Ready units of a side that serves and is not known to be bad.
    pub capacity: u32,
    /// Usable units that have warmed up.
    pub usable: u32,
    /// Ready units that serve until they are replaced by those of the other side.
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
        let unit = |side: Generation| units(settings, seen.sides.of(side), side, new_is_bad);
        let sides = Sides {
            old: unit(Generation::Old),
            new: unit(Generation::New),
        };
        let goes_back = !is_forward || new_is_bad;
        let whole = settings.shape.units();
        let new = match goes_back {
            true => 0,
            false => forward_target(settings, seen, &sides),
        };
        Self {
            settings,
            seen,
            sides,
            targets: Sides {
                old: whole - new,
                new,
            },
            goes_back,
            new_is_bad,
        }
    }

    /// The units of `side`.
    pub const fn units(&self, side: Generation) -> &Units {
        self.sides.of(side)
    }

    /// The units that must stay ready.
    pub fn floor(&self) -> u32 {
        self.settings.shape.units() - self.settings.unavailable()
    }

    /// Whether the rollout has changed anything yet. New may already have workers: its owner decides how many it starts with.
    pub fn has_begun(&self) -> bool {
        let both = self.seen.sides.old.roles.values();
        let mut all = both.chain(self.seen.sides.new.roles.values());
        all.any(|role| role.recorded.is_some() || role.ours)
            || !self.seen.traffic.split.is_all_old()
    }

    /// Whether `side` can serve at all.
    pub fn can_serve(&self, side: Generation) -> bool {
        let units = self.units(side);
        units.ready + units.leaving > 0 && self.seen.sides.of(side).serves != Serves::No
    }

    /// Whether `side` is known not to serve, or to be bad.
    pub fn is_out(&self, side: Generation) -> bool {
        let is_bad = self.new_is_bad && side == Generation::New;
        is_bad || self.seen.sides.of(side).serves == Serves::No
    }

    /// The capacity of `side` if only this many of its units stay: the units that certainly remain ready.
    pub fn capacity_after(&self, side: Generation, sizes: &Sizes) -> u32 {
        let roles = &self.seen.sides.of(side).roles;
        let kept = roles.iter().map(|(role, workers)| {
            let size = sizes.get(role).copied().unwrap_or_default();
            (*role, ready_after(workers, size))
        });
        let kept = self.settings.shape.whole(side, &kept.collect());
        kept.min(self.units(side).capacity)
    }

    /// The side that gains.
    pub fn gaining(&self) -> Generation {
        let exceeds = self.units(Generation::New).begun > self.targets.new;
        match self.goes_back || exceeds {
            true => Generation::Old,
            false => Generation::New,
        }
    }

    /// The units of `side` that may get requests: a loss counts immediately, a gain once it is warm. A unit that is no longer
    /// requested may stay ready for a moment.
    pub fn counted(&self, side: Generation) -> u32 {
        let units = self.units(side);
        let ready = match side == self.gaining() {
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

fn units(settings: &RolloutSettings, seen: &Side, side: Generation, is_bad: bool) -> Units {
    let shape = &settings.shape;
    let of = |count: fn(&RoleReplicas) -> u32| -> Sizes {
        let roles = seen.roles.iter();
        roles
            .map(|(role, workers)| (*role, count(workers)))
            .collect()
    };
    let desired = of(|workers| workers.desired);
    let serves = seen.serves != Serves::No && !(is_bad && side == Generation::New);
    let of_serving = |count: fn(&RoleReplicas) -> u32| match serves {
        true => shape.whole(side, &of(count)),
        false => 0,
    };
    let leaving = seen.roles.values().flat_map(|workers| &workers.leaving);
    let leaving = leaving.filter(|pod| pod.ready).count() as u32;
    Units {
        desired: shape.whole(side, &desired),
        begun: shape.covering(side, &desired),
        occupied: shape.covering(side, &of(RoleReplicas::occupied)),
        ready: shape.whole(side, &of(|workers| workers.ready)),
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
    sides: &Sides<Units>,
) -> u32 {
    let whole = settings.shape.units();
    let end = whole - settings.strategy.partition.min(whole);
    if settings.intent == Intent::Promote {
        return end;
    }
    // The first step that has not ended. A step has ended if the sizes exceed it, or have stayed at it for long enough.
    let steps = settings.strategy.steps.iter();
    let (old, new) = (&sides.old, &sides.new);
    // A pod of new that should be replaced still counts for new: pausing at an earlier step would replace it twice, and wait for
    // clients that it serves.
    let roles = seen.sides.new.roles.values();
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
    each.sum()
}
