//! Computes the capacity of a generation as a fraction of a whole generation: the minimum, over the roles it needs, of ready
//! workers ÷ full size.

use std::{collections::BTreeMap, collections::BTreeSet, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PerGeneration, Ratio};

/// The role of a worker.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Prefill and decode, or only decode if other workers prefill.
    Worker,
    /// Only prefill: processes prompts.
    Prefill,
    /// Only decode: generates answers.
    Decode,
}

impl Role {
    /// The name, as in Dynamo's component types.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// The workers of this role, as text for users.
    #[must_use]
    pub const fn workers(self) -> &'static str {
        match self {
            Self::Worker => "workers",
            Self::Prefill => "prefill workers",
            Self::Decode => "decode workers",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The workers of one role. A replica that spans several nodes is one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workers {
    /// Ready replicas.
    pub ready: u32,
    /// Desired replicas; 0 when scaled down. Not the full size, because it changes while an update runs.
    pub desired: u32,
}

impl Workers {
    /// The current size of the role, or `None` if it has no workers.
    pub(super) fn size(self) -> Option<u32> {
        Some(self.desired.max(self.ready)).filter(|size| *size > 0)
    }
}

/// The capacity of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The fraction of the whole source. It exceeds 1 for a larger generation: an exact ratio loads every worker equally, and
    /// capping it at 1 would overload the smaller generation.
    pub share: Ratio,
    /// Whether every role it needs has a ready worker. Can be true although `share` is 0, if a full size is unknown.
    pub serves: bool,
    /// The roles it needs; empty only if nothing is known about either generation.
    pub roles: BTreeMap<Role, RoleCapacity>,
}

/// One role within the capacity of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleCapacity {
    /// Ready workers.
    pub ready: u32,
    /// The full size. `None` if neither the source nor the user defines it.
    pub full: Option<u32>,
}

impl Capacity {
    fn of(roles: BTreeMap<Role, RoleCapacity>) -> Self {
        let share = |role: &RoleCapacity| match role.full {
            Some(full) => Ratio::new(role.ready.into(), full.into()).unwrap_or(Ratio::ZERO),
            None => Ratio::ZERO,
        };
        Self {
            share: roles.values().map(share).min().unwrap_or(Ratio::ZERO),
            serves: !roles.is_empty() && roles.values().all(|role| role.ready > 0),
            roles,
        }
    }

    /// The roles without a ready worker.
    pub fn missing(&self) -> impl Iterator<Item = Role> {
        let roles = self.roles.iter();
        roles.filter_map(|(role, counts)| (counts.ready == 0).then_some(*role))
    }

    /// The roles whose full size is unknown.
    pub fn unmeasured(&self) -> impl Iterator<Item = Role> {
        let roles = self.roles.iter();
        roles.filter_map(|(role, counts)| counts.full.is_none().then_some(*role))
    }
}

/// Computes the capacity of both generations.
///
/// `accepted` is the source's size when the update was accepted. Sizes in `stated` take precedence, and those stated
/// for old also apply to new.
pub(super) fn of_both(
    workers: &PerGeneration<BTreeMap<Role, Workers>>,
    accepted: &BTreeMap<Role, u32>,
    stated: &PerGeneration<BTreeMap<Role, u32>>,
) -> PerGeneration<Capacity> {
    let source = overlaid(accepted, &stated.old);
    let target = overlaid(&source, &stated.new);
    let old_roles = completed(source.keys().copied().chain(present(&workers.old)));
    let own_roles: BTreeSet<Role> = present(&workers.new)
        .chain(stated.new.keys().copied())
        .collect();
    // If new's roles all occur in the source, new has the source's shape and needs all of the source's roles.
    let new_roles = if own_roles.is_subset(&old_roles) {
        old_roles.clone()
    } else {
        completed(own_roles.into_iter())
    };
    PerGeneration {
        old: counted(&old_roles, &workers.old, &source),
        new: counted(&new_roles, &workers.new, &target),
    }
}

fn counted(
    needed: &BTreeSet<Role>,
    workers: &BTreeMap<Role, Workers>,
    full: &BTreeMap<Role, u32>,
) -> Capacity {
    let role = |role: &Role| RoleCapacity {
        ready: workers.get(role).map_or(0, |workers| workers.ready),
        full: full.get(role).copied(),
    };
    Capacity::of(needed.iter().map(|key| (*key, role(key))).collect())
}

fn present(workers: &BTreeMap<Role, Workers>) -> impl Iterator<Item = Role> {
    let sizes = workers.iter();
    sizes.filter_map(|(role, workers)| workers.size().map(|_| *role))
}

/// Adds the missing counterpart of prefill or decode: a frontend cannot serve with only one of them.
fn completed(roles: impl Iterator<Item = Role>) -> BTreeSet<Role> {
    let mut roles: BTreeSet<Role> = roles.collect();
    if !roles.is_empty() && !roles.contains(&Role::Worker) {
        roles.extend([Role::Prefill, Role::Decode]);
    }
    roles
}

/// `below`, overridden by `above`. A size of 0 does not override anything.
fn overlaid(below: &BTreeMap<Role, u32>, above: &BTreeMap<Role, u32>) -> BTreeMap<Role, u32> {
    let sizes = below.iter().chain(above.iter());
    sizes
        .filter(|(_, size)| **size > 0)
        .map(|(role, size)| (*role, *size))
        .collect()
}
