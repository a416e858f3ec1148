//! CEL rules of a `DynamoRollout`, with their messages; [`super::problems`] rejects the same in a file.

use serde_json::{Value as Json, json};

use super::IN_PLACE_KINDS;
use crate::resource::rules::rule;

/// The highest number that an amount can be.
pub(super) const MOST: u32 = 1_000_000;

/// Why both limits must not be 0.
pub(super) const NO_ROOM: &str =
    "maxSurge and maxUnavailable must not both be 0: nothing could be moved";

/// Why a side is refused.
pub(super) const SIDE: &str = "name one object by kind and name, or one for each role by roles";

/// Why `replicas` are refused.
pub(super) const REPLICAS: &str = "with roles, set the replicas of each role";

/// Why `roles` are refused.
pub(super) const ROLES: &str = "roles are prefill, decode and worker";

/// Why an amount is refused.
pub(super) const AMOUNT: &str =
    "must be a whole number of at least 0, or a percentage from 0% to 100%";

/// Why both sides are refused.
pub(super) const SAME_WORKERS: &str = "source and target are the same workers; only one StatefulSet or LeaderWorkerSet, named by kind and name, can have those of both generations";

/// Why the limits of a rollout within one object are refused.
pub(super) const IN_PLACE_LIMITS: &str = "source and target are one object, which replaces a worker of the old generation with one of the new: set maxSurge to 0 and maxUnavailable to 1 or more";

/// Why the replicas of a rollout within one object are refused.
pub(super) const IN_PLACE_REPLICAS: &str =
    "source and target are one object: leave out replicas, which are those of the object";

/// Why the frontends are refused.
pub(super) const SAME_FRONTENDS: &str = "frontends.source and frontends.target are the same: each generation needs frontends of its own";

/// Rules for the whole resource: what cannot be changed while a rollout is in progress.
#[cfg(feature = "kube")]
pub(in crate::resource) fn resource() -> Json {
    let is_over = "!has(self.status) || !has(self.status.phase) \
         || self.status.phase in ['Pending', 'Refused', 'Complete', 'RolledBack'] \
         || has(self.status.memory) && has(self.status.memory.handedOver) && self.status.memory.handedOver";
    json!([
        rule(
            &format!("self.spec.source == oldSelf.spec.source || {is_over}"),
            "spec.source cannot be changed while the rollout is under way: abort it first",
        ),
        rule(
            "self.spec.strategy.partition == oldSelf.spec.strategy.partition || !has(self.status) \
             || !has(self.status.accepted) || self.spec.strategy.partition <= self.status.accepted.units",
            "spec.strategy.partition is more than the units in status.accepted.units",
        ),
    ])
}

/// Rules for `spec`.
pub(super) fn spec() -> Json {
    let in_place = "has(self.source.name) && has(self.target.name) && self.source.name == self.target.name \
         && has(self.source.kind) && has(self.target.kind) && self.source.kind == self.target.kind";
    let kinds = IN_PLACE_KINDS.map(|kind| format!("'{kind}'")).join(", ");
    json!([
        rule(
            &format!("!({in_place}) || self.source.kind in [{kinds}]"),
            SAME_WORKERS,
        ),
        rule(
            &format!(
                "!({in_place}) || string(self.strategy.maxSurge).matches('^0+%?$') \
                 && !string(self.strategy.maxUnavailable).matches('^0+%?$')"
            ),
            IN_PLACE_LIMITS,
        ),
        rule(
            &format!("!({in_place}) || !has(self.source.replicas) && !has(self.target.replicas)"),
            IN_PLACE_REPLICAS,
        ),
        rule(
            "!has(self.source.roles) || !has(self.target.roles) || !self.source.roles.exists(role, \
             role in self.target.roles && self.source.roles[role].name == self.target.roles[role].name \
             && self.source.roles[role].kind == self.target.roles[role].kind)",
            SAME_WORKERS,
        ),
        rule(
            "self.frontends.source != self.frontends.target",
            SAME_FRONTENDS
        ),
    ])
}

/// Rules for `source` and `target`.
pub(super) fn side() -> Json {
    json!([
        rule(
            "has(self.kind) == has(self.name) && has(self.kind) != (has(self.roles) && size(self.roles) > 0)",
            SIDE,
        ),
        rule(
            "!has(self.replicas) || !has(self.roles) || size(self.roles) == 0",
            REPLICAS,
        ),
    ])
}

/// Rules for `roles`.
pub(super) fn roles() -> Json {
    json!([rule(
        "self.all(role, role in ['prefill', 'decode', 'worker'])",
        ROLES
    )])
}

/// Rules for `strategy`.
pub(super) fn strategy() -> Json {
    json!([rule(
        "!(string(self.maxSurge).matches('^0+%?$') && string(self.maxUnavailable).matches('^0+%?$'))",
        NO_ROOM,
    )])
}

/// Rules for an amount.
pub(super) fn amount() -> Json {
    json!([rule(
        &format!(
            "type(self) == int ? self >= 0 && self <= {MOST} : string(self).matches('^(100|[0-9]{{1,2}})%$')"
        ),
        AMOUNT,
    )])
}
