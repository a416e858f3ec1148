//! How far a side may grow now: the surge, the GPU budget and the quota, counting pods that terminate.

use super::{
    Sizes,
    assessment::{Assessment, gpus},
    wait::Wait,
};
use crate::split::Generation;

/// The sizes to which `side` can grow now, or what it waits for. `None` if it has reached its target.
pub(super) fn growth(assessment: &Assessment, side: Generation) -> Option<Result<Sizes, Wait>> {
    let own = assessment.units(side);
    let target = *assessment.targets.of(side);
    let shape = &assessment.settings.shape;
    let grown = |units: u32| -> Sizes {
        let mut sizes = shape.sizes(side, units);
        for (role, desired) in &own.sizes {
            let size = sizes.entry(*role).or_default();
            *size = (*size).max(*desired);
        }
        sizes
    };
    // In place, a side grows by what the other one loses.
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
        match admits(assessment, side, &sizes) {
            Ok(()) => return Some(Ok(sizes)),
            Err(wait) => refused = Some(wait),
        }
    }
    // What refuses the smallest growth is what to wait for.
    refused.map(Err)
}

/// Whether `side` may have these sizes.
fn admits(assessment: &Assessment, side: Generation, sizes: &Sizes) -> Result<(), Wait> {
    let settings = assessment.settings;
    let shape = &settings.shape;
    let roles = &assessment.seen.sides.of(side).roles;
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
    let other = assessment.units(side.other()).occupied;
    let total = u64::from(shape.covering(side, &own)) + u64::from(other);
    if total > limit {
        return Err(Wait::Surge {
            occupied: u64::from(assessment.units(side).occupied) + u64::from(other),
            limit,
        });
    }
    let more = gpus(settings.gpus.of(side), &own).saturating_sub(gpus_of(assessment, side));
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
    // A replica has at least one pod.
    let pods: u64 = own.values().map(|size| u64::from(*size)).sum();
    let occupied = roles.values().map(|workers| workers.occupied());
    let now: u64 = occupied.map(u64::from).sum();
    let more = pods.saturating_sub(now);
    match assessment.seen.pods_left {
        Some(left) if more > u64::from(left) => Err(Wait::PodQuota { more, left }),
        _ => Ok(()),
    }
}

fn gpus_of(assessment: &Assessment, side: Generation) -> u64 {
    let roles = assessment.seen.sides.of(side).roles.iter();
    let occupied = roles.map(|(role, workers)| (*role, workers.occupied()));
    gpus(assessment.settings.gpus.of(side), &occupied.collect())
}

/// The GPUs that both sides use or may use at any moment, terminating pods included.
pub(super) fn gpus_used(assessment: &Assessment) -> u64 {
    let sides = Generation::ALL.into_iter();
    let used = sides.map(|side| gpus_of(assessment, side)).sum();
    if !assessment.settings.in_place {
        return used;
    }
    // A replica ends before the one that takes its place begins.
    let whole = |side: Generation| {
        gpus(
            assessment.settings.gpus.of(side),
            assessment.settings.shape.full(side),
        )
    };
    used.min(whole(Generation::Old).max(whole(Generation::New)))
}
