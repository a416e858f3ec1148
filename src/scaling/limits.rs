//! Limits how far a generation may grow now: the surge, the GPU budget, and the quota, counting terminating pods.

use std::collections::BTreeMap;

use super::{
    RoleReplicas, RolloutObservation, RolloutSettings, Sizes,
    assessment::{Assessment, gpus},
    wait::Wait,
};
use crate::rollout::Role;
use crate::split::Generation;

/// The sizes to which `generation` can grow now, or what it waits for. `None` if it has reached its target.
pub(super) fn growth(
    assessment: &Assessment,
    generation: Generation,
) -> Option<Result<Sizes, Wait>> {
    let own = assessment.units(generation);
    let target = *assessment.targets.of(generation);
    let shape = &assessment.settings.shape;
    let grown = |units: u32| -> Sizes {
        let mut sizes = shape.sizes(generation, units);
        for (role, desired) in &own.sizes {
            let size = sizes.entry(*role).or_default();
            *size = (*size).max(*desired);
        }
        sizes
    };
    // In place, a generation gains what the other one loses.
    if target <= own.desired || assessment.settings.in_place {
        return None;
    }
    // From the largest downwards: the first that fits.
    let mut refused = None;
    for units in (own.desired + 1..=target).rev() {
        let sizes = grown(units);
        if sizes == own.sizes {
            break;
        }
        match admits(assessment, generation, &sizes) {
            Ok(()) => return Some(Ok(sizes)),
            Err(wait) => refused = Some(wait),
        }
    }
    // Wait for whatever prevents the smallest growth.
    refused.map(Err)
}

/// Whether `generation` may have these sizes.
fn admits(assessment: &Assessment, generation: Generation, sizes: &Sizes) -> Result<(), Wait> {
    let settings = assessment.settings;
    let shape = &settings.shape;
    let roles = &assessment.seen.generations.of(generation).roles;
    let occupied = |sizes: &Sizes| -> Sizes {
        let own = roles.iter().map(|(role, workers)| {
            let size = sizes.get(role).copied().unwrap_or_default();
            let size = size.max(workers.desired).max(workers.present);
            (*role, size.saturating_add(workers.terminating))
        });
        own.collect()
    };
    let own = occupied(sizes);
    let limit = u64::from(shape.units()) + u64::from(settings.surge());
    let other = assessment.units(generation.other()).occupied;
    let total = u64::from(shape.covering(generation, &own)) + u64::from(other);
    if total > limit {
        return Err(Wait::Surge {
            occupied: u64::from(assessment.units(generation).occupied) + u64::from(other),
            limit,
        });
    }
    let more =
        gpus(settings.gpus.of(generation), &own).saturating_sub(gpus_of(assessment, generation));
    if let Some(budget) = settings.strategy.gpu_budget {
        let used = gpus_used(assessment);
        if more > 0 && used + more > budget.into() {
            return Err(Wait::Budget { used, more, budget });
        }
    }
    if let Some(left) = assessment.seen.quota_left
        && more > u64::from(left)
    {
        return Err(Wait::Quota { more, left });
    }
    let (after, now) = (pods(&own), pods(&occupied_now(roles)));
    let more = after.saturating_sub(now);
    if let Some(left) = assessment.seen.pods_left
        && more > u64::from(left)
    {
        return Err(Wait::PodQuota { more, left });
    }
    let (after, now) = (
        resources(roles, &own),
        resources(roles, &occupied_now(roles)),
    );
    for (entry, left) in &assessment.seen.resources_left {
        let of = |all: &BTreeMap<String, u64>| all.get(entry).copied().unwrap_or_default();
        let more = of(&after).saturating_sub(of(&now));
        if more > *left {
            return Err(Wait::ResourceQuota {
                entry: entry.clone(),
                more,
                left: *left,
            });
        }
    }
    Ok(())
}

fn gpus_of(assessment: &Assessment, generation: Generation) -> u64 {
    let occupied = occupied_now(&assessment.seen.generations.of(generation).roles);
    gpus(assessment.settings.gpus.of(generation), &occupied)
}

/// The GPUs that both generations use or may use at any moment, including those of terminating pods.
pub(super) fn gpus_used(assessment: &Assessment) -> u64 {
    let generations = Generation::ALL.into_iter();
    let used = generations
        .map(|generation| gpus_of(assessment, generation))
        .fold(0, u64::saturating_add);
    if !assessment.settings.in_place {
        return used;
    }
    // A replica ends before its replacement starts.
    let whole = |generation: Generation| {
        gpus(
            assessment.settings.gpus.of(generation),
            assessment.settings.shape.full(generation),
        )
    };
    used.min(whole(Generation::Old).max(whole(Generation::New)))
}

/// The replicas that occupy capacity or may soon.
fn occupied_now(roles: &BTreeMap<Role, RoleReplicas>) -> Sizes {
    let occupied = roles
        .iter()
        .map(|(role, workers)| (*role, workers.occupied()));
    occupied.collect()
}

/// A replica has at least one pod.
fn pods(replicas: &Sizes) -> u64 {
    replicas.values().map(|size| u64::from(*size)).sum()
}

/// What these numbers of replicas consume from the entries of a quota.
fn resources(roles: &BTreeMap<Role, RoleReplicas>, replicas: &Sizes) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (role, workers) in roles {
        let count = u64::from(replicas.get(role).copied().unwrap_or_default());
        for (entry, of_one) in &workers.resources {
            let sum: &mut u64 = all.entry(entry.clone()).or_default();
            *sum = sum.saturating_add(of_one.saturating_mul(count));
        }
    }
    all
}

/// What a quota counts.
#[derive(Default)]
pub(super) struct Usage {
    gpus: u64,
    pods: u64,
    /// By the entry of the quota, in thousandths.
    resources: BTreeMap<String, u64>,
}

impl Usage {
    /// What both generations use.
    fn of(settings: &RolloutSettings, seen: &RolloutObservation) -> Self {
        let mut used = Self::default();
        for generation in Generation::ALL {
            let roles = &seen.generations.of(generation).roles;
            let occupied = occupied_now(roles);
            used.add(&Self {
                gpus: gpus(settings.gpus.of(generation), &occupied),
                pods: pods(&occupied),
                resources: resources(roles, &occupied),
            });
        }
        used
    }

    /// What the quotas allow for both generations together. Unlike the remaining amount, it does not change with the sizes.
    pub fn admitted(settings: &RolloutSettings, seen: &RolloutObservation) -> Self {
        let mut admitted = Self {
            gpus: seen.quota_left.map_or(0, u64::from),
            pods: seen.pods_left.map_or(0, u64::from),
            resources: seen.resources_left.clone(),
        };
        admitted.add(&Self::of(settings, seen));
        admitted
    }

    /// Sets the remaining amounts to what both generations, as observed in `seen`, do not use.
    pub fn leave(&self, settings: &RolloutSettings, seen: &mut RolloutObservation) {
        let used = Self::of(settings, seen);
        let left =
            |all: u64, used: u64| u32::try_from(all.saturating_sub(used)).unwrap_or(u32::MAX);
        if let Some(gpus) = &mut seen.quota_left {
            *gpus = left(self.gpus, used.gpus);
        }
        if let Some(pods) = &mut seen.pods_left {
            *pods = left(self.pods, used.pods);
        }
        for (entry, left) in &mut seen.resources_left {
            let of = |all: &Self| all.resources.get(entry).copied().unwrap_or_default();
            *left = of(self).saturating_sub(of(&used));
        }
    }

    fn add(&mut self, other: &Self) {
        self.gpus = self.gpus.saturating_add(other.gpus);
        self.pods = self.pods.saturating_add(other.pods);
        for (entry, more) in &other.resources {
            let sum = self.resources.entry(entry.clone()).or_default();
            *sum = sum.saturating_add(*more);
        }
    }
}
