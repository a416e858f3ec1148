//! The path that a rollout takes if nothing goes wrong. If there is none, the rollout reports that before the first write.

use super::{
    Intent, Settings, Sizes, Verdict,
    assessment::Assessment,
    limits::growth,
    seen::{Seen, Side},
    shrink::shrink,
};
use crate::rollout::Sides;
use crate::split::Generation;

/// The sizes that a rollout goes through if every worker becomes ready and nothing else happens. `None` if the limits do not let
/// it reach its end.
///
/// Without steps, which only say where it rests.
#[must_use]
pub fn way(settings: &Settings, seen: &Seen) -> Option<Vec<Sides<Sizes>>> {
    let mut settings = settings.clone();
    settings.intent = Intent::Promote;
    settings.superseded = false;
    let mut seen = seen.clone();
    seen.verdict = Verdict::Pass;
    let mut way = Vec::new();
    // Each size of each role is passed at most once on either side.
    let most = 4 * settings.shape.units() as usize + 4;
    for _ in 0..=most {
        ideal(&mut seen.sides.old);
        ideal(&mut seen.sides.new);
        let look = Assessment::of(&settings, &seen);
        way.push(Sides {
            old: look.sides.old.sizes.clone(),
            new: look.sides.new.sizes.clone(),
        });
        let is_there = |side: Generation| {
            let (own, target) = (look.units(side), *look.targets.of(side));
            own.asked >= target && look.settings.shape.sizes(side, target) == own.sizes
        };
        if Generation::ALL.into_iter().all(is_there) {
            return Some(way);
        }
        let grown = Generation::ALL.into_iter().rev().find_map(|side| {
            let grown = growth(&look, side)?.ok()?;
            Some((side, grown))
        });
        let shrunk = || {
            let shrunk = shrink(&look)?.ok()?;
            Some((shrunk.side, shrunk.sizes))
        };
        let (side, sizes) = grown.or_else(shrunk)?;
        for (role, size) in sizes {
            let mut ask = |side: Generation, size: u32| {
                let roles = &mut seen.sides.of_mut(side).roles;
                roles.entry(role).or_default().asked = size;
            };
            ask(side, size);
            if settings.in_place {
                ask(side.other(), settings.shape.units() - size);
            }
        }
    }
    None
}

/// Every worker that is asked for is there and ready, and no other.
fn ideal(side: &mut Side) {
    side.serves = super::Serves::Yes;
    for workers in side.roles.values_mut() {
        workers.observed = true;
        workers.present = workers.asked;
        workers.ready = workers.asked;
        workers.warm = workers.asked;
        workers.terminating = 0;
        workers.leaving.clear();
    }
}
