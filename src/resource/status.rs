//! The `status` of a `DynamoUpdateConfig`: what the controller writes and people read.
//!
//! The doc comments are what `kubectl explain` prints. Must not know how any of it is found out.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub use super::last_valid::LastValidStatus;
pub use super::phase::Phase;
use super::weights::WeightsSpec;
use crate::rollout::Memory;
use crate::split::Weights;

/// Where the update stands. Written by the controller; without one it stays empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DynamoUpdateConfigStatus {
    /// The generation of the `spec` (`metadata.generation`) that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where the update stands, in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What happens now and what is waited for, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// The rule that decided the split, when several could.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub rule: Option<String>,
    /// The split that is wanted now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<SplitStatus>,
    /// The split that was seen over the last minute, in requests of all frontends together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<SplitStatus>,
    /// The old generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<GenerationStatus>,
    /// The new generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<GenerationStatus>,
    /// The frontends of the old generation, whose proxies are to follow this update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frontends: Option<FrontendsStatus>,
    /// Whether the old generation can be deleted without a stream or a client losing its server.
    /// True holds only until `validUntil`: after that it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safe_to_delete_old: Option<bool>,
    /// Whether the last worker of the old generation can go: no stream runs on it any more, and none
    /// can come to it. True holds only until `validUntil`: after that it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_old_worker_dispensable: Option<bool>,
    /// When the controller saw last what `safeToDeleteOld` and `lastOldWorkerDispensable` say, while
    /// one of them is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub observed_at: Option<Time>,
    /// Until when `safeToDeleteOld` and `lastOldWorkerDispensable` hold, while one of them is true.
    /// The controller renews it twice a minute; once it is past, neither is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub valid_until: Option<Time>,
    /// What has to be seen before the old generation can be deleted and was not, for people. Said
    /// of an update that is complete.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 1024)))]
    pub missing_for_deletion: Vec<String>,
    /// The cap, in percent, that the proxies go over while all requests are to go to the new generation, because the old
    /// one has no ready worker. Another cap, or a split that leaves the old generation something, is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub lifted_cap_percent: Option<u8>,
    /// While the spec cannot be used: the last one that could. Losses of either generation are followed by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_valid: Option<LastValidStatus>,
    /// What is waited for now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub waiting_for: Vec<WaitStatus>,
    /// How long the streams that still run on the old generation will probably take to end, in
    /// seconds, by the lengths of those that have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub estimated_drain_seconds: Option<i64>,
    /// When the phase last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub last_transition_time: Option<Time>,
    /// What holds of the update, with reasons: Accepted, NewFrontendReady, Progressing, Paused,
    /// Complete, Degraded; and, for tools that know nothing of updates, one of Ready (complete or held),
    /// Reconciling and Stalled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        schema_with = "conditions",
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// What the controller must remember, so that one that starts anew goes on from here. Not for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// What is known of something that a status promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It holds.
    Holds,
    /// It does not.
    DoesNotHold,
    /// Nobody vouches for it any more: it was said to hold, and that is past its time.
    Expired,
}

/// So far may the controller's clock be ahead of a reader's.
const SKEW: Duration = Duration::from_secs(30);

/// So long after `observedAt` a promise holds, whatever else a status says.
pub const PROMISED: Duration = Duration::from_secs(90);

impl DynamoUpdateConfigStatus {
    /// What is known at `now` of `safeToDeleteOld`, where `metadata.generation` is `generation`; none if nobody has said
    /// anything.
    #[must_use]
    pub fn old_may_be_deleted(&self, generation: Option<i64>, now: Timestamp) -> Option<Promise> {
        self.promise(self.safe_to_delete_old, generation, now)
    }

    /// The same of `lastOldWorkerDispensable`.
    #[must_use]
    pub fn last_old_worker_may_go(
        &self,
        generation: Option<i64>,
        now: Timestamp,
    ) -> Option<Promise> {
        self.promise(self.last_old_worker_dispensable, generation, now)
    }

    fn promise(
        &self,
        said: Option<bool>,
        generation: Option<i64>,
        now: Timestamp,
    ) -> Option<Promise> {
        // The proxies follow an edit at once, also where no controller looks at it.
        let is_of_this_edit = self.observed_generation == generation;
        // What was said by a clock that is far ahead would hold for far too long.
        let after = |time: Timestamp, long| time.checked_add(long).unwrap_or(Timestamp::MAX);
        let at = self.observed_at.as_ref();
        let is_said = at.is_some_and(|at| at.0 <= after(now, SKEW) && now < after(at.0, PROMISED));
        let is_valid = self.valid_until.as_ref().is_some_and(|until| now < until.0);
        Some(match said? {
            false => Promise::DoesNotHold,
            true if is_of_this_edit && is_said && is_valid => Promise::Holds,
            true => Promise::Expired,
        })
    }
}

/// The schema of a [`Time`]. Without the feature `schemars` of k8s-openapi, which has schemas of all kinds there are.
fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

/// That of [`Condition`]s, in the words of Kubernetes.
fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let text = |description: &str| json_schema!({"type": "string", "description": description});
    let mut since = time(generator);
    since.insert(
        "description".into(),
        "lastTransitionTime is the last time the condition transitioned from one status to another. This should be when the underlying condition changed.  If that is not known, then using the time when the API field changed is acceptable.".into(),
    );
    json_schema!({
        "type": "array",
        "items": {
            "description": "Condition contains details for one aspect of the current state of this API Resource.",
            "type": "object",
            "properties": {
                "lastTransitionTime": since,
                "message": text("message is a human readable message indicating details about the transition. This may be an empty string."),
                "observedGeneration": {
                    "description": "observedGeneration represents the .metadata.generation that the condition was set based upon. For instance, if .metadata.generation is currently 12, but the .status.conditions[x].observedGeneration is 9, the condition is out of date with respect to the current state of the instance.",
                    "type": "integer",
                    "format": "int64",
                },
                "reason": text("reason contains a programmatic identifier indicating the reason for the condition's last transition. Producers of specific condition types may define expected values and meanings for this field, and whether the values are considered a guaranteed API. The value should be a CamelCase string. This field may not be empty."),
                "status": text("status of the condition, one of True, False, Unknown."),
                "type": text("type of condition in CamelCase or in foo.example.com/CamelCase."),
            },
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        },
    })
}

/// The types of the [`DynamoUpdateConfigStatus::conditions`].
pub mod condition {
    /// The `spec` can be used and rules its deployment.
    pub const ACCEPTED: &str = "Accepted";
    /// The new generation can serve every model that is wanted.
    pub const NEW_FRONTEND_READY: &str = "NewFrontendReady";
    /// The split moves or waits for workers or proxies.
    pub const PROGRESSING: &str = "Progressing";
    /// A person or the cap holds the split.
    pub const PAUSED: &str = "Paused";
    /// Nothing is left on the old generation.
    pub const COMPLETE: &str = "Complete";
    /// Something keeps the update from going on.
    pub const DEGRADED: &str = "Degraded";
    /// It is complete, or held, and nothing is wrong. One of this and the next two holds.
    pub const READY: &str = "Ready";
    /// It moves, or will when what it waits for comes.
    pub const RECONCILING: &str = "Reconciling";
    /// It does not get on by itself.
    pub const STALLED: &str = "Stalled";
}

/// A split of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SplitStatus {
    /// The share of the new generation, rounded to a whole percentage; 0 and 100 are exact.
    #[schemars(range(min = 0, max = 100))]
    pub percent: u8,
    /// The exact ratio; of an observed split the numbers of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightsSpec>,
}

impl SplitStatus {
    /// The exact ratio, as far as it is told; none if it is no split.
    #[must_use]
    pub fn exact(&self) -> Option<Weights> {
        let ratio = self.weights.map(|ratio| Weights::new(ratio.old, ratio.new));
        let exact = ratio.unwrap_or_else(|| Weights::percent(self.percent));
        exact.ok()
    }
}

/// One generation of frontends and workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GenerationStatus {
    /// Ready and wanted workers of all roles together, such as `3/4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub workers: Option<String>,
    /// The workers of each role, such as `prefill`, `decode` or `worker`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub roles: BTreeMap<String, RoleStatus>,
    /// What the generation can bear of its full size, in percent: the scarcest role counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub capacity_percent: Option<i32>,
    /// Frontends that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ready_frontends: Option<i32>,
    /// Streams that are open now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub open_streams: Option<i64>,
    /// Those of them that are to be moved to the new generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub moving_streams: Option<i64>,
}

/// Something that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitStatus {
    /// What, for people.
    #[schemars(length(max = 4096))]
    pub what: String,
    /// Since when.
    #[schemars(schema_with = "time")]
    pub since: Time,
    /// Until when at most. Without it only the thing itself ends the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub until: Option<Time>,
}

/// The workers of one role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleStatus {
    /// Workers that are ready.
    #[schemars(range(min = 0))]
    pub ready: i32,
    /// Workers that their object wants now.
    #[schemars(range(min = 0))]
    pub desired: i32,
    /// Workers that make the generation whole: those of the old one when the update was accepted,
    /// or what `spec.workers` states. Kept for the whole update.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub full_size: Option<i32>,
}

/// The frontends of the old generation, whose proxies are to follow the update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FrontendsStatus {
    /// All of them, also those that have no proxy or one that cannot be asked.
    #[schemars(range(min = 0))]
    pub total: i32,
    /// Those that have applied this generation of the `spec`.
    #[schemars(range(min = 0))]
    pub applied: i32,
}
