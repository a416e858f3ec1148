//! Conditions that keep a rollout from any action, whatever its next step would be.

use super::{
    Retire, Wait,
    assessment::{Assessment, gpus},
    feasible,
    limits::growth,
};
use crate::split::Generation;

/// The roles of the accepted shape that are not there.
pub(super) fn missing(look: &Assessment) -> Vec<Wait> {
    let sides = Generation::ALL.into_iter();
    let roles = sides.flat_map(|side| {
        let roles = look.settings.shape.full(side).keys();
        roles.map(move |role| (side, *role))
    });
    roles
        .filter(|(side, role)| !look.seen.sides.of(*side).roles.contains_key(role))
        .map(|(side, role)| Wait::RoleMissing(side, role))
        .collect()
}

/// The sizes that somebody else has set since.
pub(super) fn contested(look: &Assessment) -> Vec<Wait> {
    let mut waits = Vec::new();
    for side in Generation::ALL {
        let seen = look.seen.sides.of(side);
        let scaler = seen.scaler.clone();
        waits.extend(scaler.map(|scaler| Wait::Scaler(side, scaler)));
        if look.seen.accepts_sizes {
            continue;
        }
        for (role, workers) in &seen.roles {
            // Before the first write, old has the size that was accepted, and new any.
            let expected = workers.recorded.or_else(|| {
                let is_old = side == Generation::Old;
                let full = look.settings.shape.full(side);
                full.get(role).copied().filter(|_| is_old)
            });
            if !workers.ours && expected.is_some_and(|expected| expected != workers.asked) {
                waits.push(Wait::Contested {
                    side,
                    role: *role,
                    asked: workers.asked,
                    recorded: workers.recorded,
                });
            }
        }
    }
    waits
}

/// A side of which the object of both makes no more workers, although it is to have more, or the object makes others.
pub(super) fn lost(look: &Assessment) -> Vec<Wait> {
    let sides = Generation::ALL.into_iter();
    let is_short = |side: &Generation| look.units(*side).asked < *look.targets.of(*side);
    let lost = sides.filter(|side| is_short(side) || both(look) != look.settings.shape.units());
    let lost = lost.filter_map(|side| look.seen.sides.of(side).lost.clone());
    lost.map(Wait::Lost).collect()
}

/// Whether the object of both sides has another number of replicas than was accepted: the owner cannot accept that, since old and
/// new together are always the full size.
pub(super) fn resized(look: &Assessment) -> Vec<Wait> {
    let (asked, full) = (both(look), look.settings.shape.units());
    let is_resized = look.settings.in_place && asked != full;
    Vec::from_iter(is_resized.then_some(Wait::Resized { asked, full }))
}

/// What is asked for of both sides.
fn both(look: &Assessment) -> u32 {
    let sides = Generation::ALL.into_iter();
    let roles = sides.flat_map(|side| look.seen.sides.of(side).roles.values());
    roles.map(|workers| workers.asked).sum()
}

/// Why old cannot be retired as the rollout asks.
pub(super) fn unretirable(look: &Assessment) -> Option<Wait> {
    let why = look.seen.unretirable.clone();
    let is_asked = look.settings.handover.retire != Retire::Keep && !look.seen.clients.retired;
    why.filter(|_| is_asked).map(Wait::Unretirable)
}

/// What forbids the first write.
pub(super) fn before_first_write(look: &Assessment) -> Vec<Wait> {
    if look.has_begun() || look.goes_back {
        return Vec::new();
    }
    let mut waits = Vec::from_iter(unretirable(look));
    if feasible::way(look.settings, look.seen).is_none() {
        waits.push(match look.settings.in_place {
            true => Wait::InPlace,
            false => Wait::Infeasible,
        });
        // The growth that is refused says why.
        waits.extend(growth(look, Generation::New).and_then(Result::err));
    }
    let strategy = &look.settings.strategy;
    // With a budget below what old needs there is no way back.
    let full = look.settings.shape.full(Generation::Old);
    let used = gpus(&look.settings.gpus.old, full);
    let least = { strategy.gpu_budget }.filter(|budget| used > (*budget).into());
    waits.extend(least.map(|budget| Wait::Budget {
        used,
        more: 0,
        budget,
    }));
    let p99 = look.seen.traffic.p99;
    if !strategy.continuation && !strategy.allow_short_grace {
        let mut roles = look.seen.sides.old.roles.values();
        let is_short = |grace| p99.is_some_and(|p99| grace < p99);
        let short = roles.find(|workers| workers.grace.is_some_and(is_short));
        waits.extend(short.map(|workers| Wait::Grace {
            side: Generation::Old,
            grace: workers.grace,
            p99,
        }));
    }
    waits
}
