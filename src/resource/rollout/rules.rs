//! CEL rules of a `DynamoRollout`, with their messages; [`super::problems`] rejects the same in a file.

use serde_json::{Value as Json, json};

use super::IN_PLACE_KINDS;
use crate::resource::rules::rule;

/// The highest number that an amount can be.
pub(super) const MAX_COUNT: u32 = 1_000_000;

/// Why both limits must not be 0.
pub(super) const NO_ROOM: &str =
    "maxSurge and maxUnavailable must not both be 0: nothing could be moved";

/// Why a generation is rejected.
pub(super) const SIDE: &str = "name one object by kind and name, or one for each role by roles";

/// Why `replicas` are rejected.
pub(super) const REPLICAS: &str = "with roles, set the replicas of each role";

/// Why `roles` are rejected.
pub(super) const ROLES: &str = "roles are prefill, decode, and worker";

/// The kind whose objects can hold workers of several roles, each with its own size.
pub(super) const SEVERAL_ROLES: &str = "DynamoGraphDeployment";

/// Why the objects of `roles` are rejected.
pub(super) const SAME_ROLES: &str =
    "two roles have the same object: only a DynamoGraphDeployment has a size for each role";

/// Why the Services are rejected.
pub(super) const SAME_SERVICE: &str = "clientService and frontends.service are the same Service: clients use the first until the new generation serves \
     everything, and the old frontends reach the new ones by the second";

/// Why an amount is rejected.
pub(super) const AMOUNT: &str =
    "must be a whole number of at least 0, or a percentage from 0% to 100%";

/// Why both generations are rejected.
pub(super) const SAME_WORKERS: &str = "source and target are the same workers; only one StatefulSet, LeaderWorkerSet, or ModelServing, named by kind and name, can have those of both generations";

/// Why the limits of a rollout within one object are rejected.
pub(super) const IN_PLACE_LIMITS: &str = "source and target are one object, which replaces a worker of the old generation with one of the new: set maxSurge to 0 and maxUnavailable to 1 or more";

/// Why the replicas of a rollout within one object are rejected.
pub(super) const IN_PLACE_REPLICAS: &str =
    "source and target are one object: leave out replicas, which are those of the object";

/// The reasons that compare both generations.
pub(super) const REASONS_ABOUT_BOTH_SIDES: [&str; 3] =
    [SAME_WORKERS, IN_PLACE_LIMITS, IN_PLACE_REPLICAS];

/// Why the frontends are rejected.
pub(super) const SAME_FRONTENDS: &str =
    "frontends.source and frontends.target are the same: each generation needs its own frontends";

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
            "spec.strategy.partition exceeds status.accepted.units",
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
            "!has(self.source.roles) || !has(self.target.roles) || !self.source.roles.exists(one, \
             self.target.roles.exists(other, self.source.roles[one].name == self.target.roles[other].name \
             && self.source.roles[one].kind == self.target.roles[other].kind))",
            SAME_WORKERS,
        ),
        rule(&in_roles("source", "target"), SAME_WORKERS),
        rule(&in_roles("target", "source"), SAME_WORKERS),
        rule("self.frontends.service != self.clientService", SAME_SERVICE),
        rule(
            "self.frontends.source != self.frontends.target",
            SAME_FRONTENDS
        ),
    ])
}

/// A condition: the single object of `generation` is not one of those that `other` names by role.
fn in_roles(generation: &str, other: &str) -> String {
    format!(
        "!has(self.{generation}.name) || !has(self.{generation}.kind) || !has(self.{other}.roles) || !self.{other}.roles.exists(role, \
         self.{other}.roles[role].name == self.{generation}.name && self.{other}.roles[role].kind == self.{generation}.kind)"
    )
}

/// Rules for `source` and `target`.
pub(super) fn generation() -> Json {
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
    json!([
        rule(
            "self.all(role, role in ['prefill', 'decode', 'worker'])",
            ROLES
        ),
        rule(
            &format!(
                "self.all(one, self.all(other, one == other || self[one].kind == '{SEVERAL_ROLES}' \
                 || self[one].kind != self[other].kind || self[one].name != self[other].name))"
            ),
            SAME_ROLES,
        ),
    ])
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
            "type(self) == int ? self >= 0 && self <= {MAX_COUNT} : string(self).matches('^(100|[0-9]{{1,2}})%$')"
        ),
        AMOUNT,
    )])
}
