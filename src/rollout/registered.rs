//! Limits ready workers to those that frontends have registered. A worker is ready before a frontend registers it, and
//! gets no request until then.

use std::collections::BTreeMap;

use super::{Frontends, PerGeneration, QueryResult, Role, Workers};

/// The number of workers to which a frontend can send requests. `None` if it does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Prefill-only workers.
    pub prefill: Option<u32>,
    /// All other workers.
    pub others: Option<u32>,
}

impl Registered {
    /// The workers that the frontends of a generation have registered. A frontend that has just started registers workers one
    /// by one, so the highest count is used. `None` if one of them does not report a count.
    pub(super) fn of(frontends: &Frontends) -> Self {
        let each = frontends.queried.iter();
        let responding = each.filter(|one| one.answer == QueryResult::Responded);
        let most = |of: fn(Self) -> Option<u32>| {
            let counts = responding.clone().map(|one| of(one.registered));
            let counts = counts.collect::<Option<Vec<u32>>>()?;
            counts.into_iter().max()
        };
        Self {
            prefill: most(|one| one.prefill),
            others: most(|one| one.others),
        }
    }

    /// The registered workers of `role`, where `workers` are all workers of that generation.
    fn count(self, role: Role, workers: &BTreeMap<Role, Workers>) -> Option<u32> {
        let is_one = !(workers.contains_key(&Role::Worker) && workers.contains_key(&Role::Decode));
        match role {
            Role::Prefill => self.prefill,
            // Frontends do not distinguish decode-only workers from full workers.
            Role::Worker | Role::Decode => self.others.filter(|_| is_one),
        }
    }

    /// Whether the frontends count exactly the ready workers. They count differently if a replica runs several processes, or if
    /// workers do not serve a model themselves.
    pub(super) fn agrees(self, workers: &BTreeMap<Role, Workers>) -> bool {
        let same = |(role, counted): (&Role, &Workers)| {
            counted.ready > 0 && self.count(*role, workers) == Some(counted.ready)
        };
        !workers.is_empty() && workers.iter().all(same)
    }

    /// `workers`, with the ready ones limited to those that are registered.
    pub(super) fn limit(self, workers: &BTreeMap<Role, Workers>) -> BTreeMap<Role, Workers> {
        let limited = workers.iter().map(|(role, counted)| {
            let known = self.count(*role, workers).unwrap_or(u32::MAX);
            let ready = counted.ready.min(known);
            (*role, Workers { ready, ..*counted })
        });
        limited.collect()
    }
}

/// The workers of both generations, limited to registered ones if the frontends were found to count as the controller does.
pub(super) fn known(
    workers: &PerGeneration<BTreeMap<Role, Workers>>,
    frontends: &PerGeneration<Frontends>,
    is_counted_alike: bool,
) -> PerGeneration<BTreeMap<Role, Workers>> {
    if !is_counted_alike {
        return workers.clone();
    }
    PerGeneration {
        old: Registered::of(&frontends.old).limit(&workers.old),
        new: Registered::of(&frontends.new).limit(&workers.new),
    }
}
