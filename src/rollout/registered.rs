//! The workers that frontends know of: a worker is ready before a frontend has taken it in, and gets no request until then.
//!
//! Must not know how a frontend is asked.

use std::collections::BTreeMap;

use super::{Answer, Frontends, Role, Sides, Workers};

/// How many workers a frontend can send requests to. None where it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Those that only read prompts.
    pub prefill: Option<u32>,
    /// All others.
    pub others: Option<u32>,
}

impl Registered {
    /// What the frontends of a side know, all together: one that has just begun learns of them one by one, so the one that
    /// knows most counts. Nothing if one of them does not say.
    pub(super) fn of(frontends: &Frontends) -> Self {
        let each = frontends.asked.iter();
        let heard = each.filter(|one| one.answer == Answer::Heard);
        let most = |of: fn(Self) -> Option<u32>| {
            let counts = heard.clone().map(|one| of(one.registered));
            let counts = counts.collect::<Option<Vec<u32>>>()?;
            counts.into_iter().max()
        };
        Self {
            prefill: most(|one| one.prefill),
            others: most(|one| one.others),
        }
    }

    /// How many workers of `role` it says there are, where `workers` are all of that side.
    fn count(self, role: Role, workers: &BTreeMap<Role, Workers>) -> Option<u32> {
        let is_one = !(workers.contains_key(&Role::Worker) && workers.contains_key(&Role::Decode));
        match role {
            Role::Prefill => self.prefill,
            // What only decodes and what does all is not told apart there.
            Role::Worker | Role::Decode => self.others.filter(|_| is_one),
        }
    }

    /// Does a frontend count as is counted here? Several processes of one replica, or workers that serve no model of their
    /// own, are counted otherwise.
    pub(super) fn agrees(self, workers: &BTreeMap<Role, Workers>) -> bool {
        let same = |(role, counted): (&Role, &Workers)| {
            counted.ready > 0 && self.count(*role, workers) == Some(counted.ready)
        };
        !workers.is_empty() && workers.iter().all(same)
    }

    /// `workers`, of which only those are ready that frontends know of.
    pub(super) fn limit(self, workers: &BTreeMap<Role, Workers>) -> BTreeMap<Role, Workers> {
        let limited = workers.iter().map(|(role, counted)| {
            let known = self.count(*role, workers).unwrap_or(u32::MAX);
            let ready = counted.ready.min(known);
            (*role, Workers { ready, ..*counted })
        });
        limited.collect()
    }
}

/// The workers of both sides without those that no frontend knows of, if frontends were found to count as is counted here.
pub(super) fn known(
    workers: &Sides<BTreeMap<Role, Workers>>,
    frontends: &Sides<Frontends>,
    is_counted_alike: bool,
) -> Sides<BTreeMap<Role, Workers>> {
    if !is_counted_alike {
        return workers.clone();
    }
    Sides {
        old: Registered::of(&frontends.old).limit(&workers.old),
        new: Registered::of(&frontends.new).limit(&workers.new),
    }
}
