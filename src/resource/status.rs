//! The `status` of a `DynamoUpdateConfig`, which the controller writes for users.
//!
//! `kubectl explain` prints the doc comments. Does not depend on how the values are determined.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub use super::last_valid::LastValidStatus;
pub use super::phase::UpdatePhase;
use super::weights::{WeightsSpec, requested_split};
use crate::rollout::{Memory, TrialVerdict};
use crate::split::Weights;

/// The state of the update. The controller writes it; without a controller, it stays empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DynamoUpdateConfigStatus {
    /// The generation of the `spec` (`metadata.generation`) that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The phase of the update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<UpdatePhase>,
    /// A message for users: what is happening, and what the update is waiting for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// The rule that decided the split.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub rule: Option<String>,
    /// The desired split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<SplitStatus>,
    /// The split observed in the last minute, over the requests of all frontends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<SplitStatus>,
    /// The old generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<GenerationStatus>,
    /// The new generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<GenerationStatus>,
    /// The frontends of the old generation, whose proxies should follow this update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frontends: Option<FrontendsStatus>,
    /// Whether the old generation can be deleted without a stream or a client losing its server. If true, it is valid only until
    /// `validUntil`; after that, the state is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safe_to_delete_old: Option<bool>,
    /// Whether the last worker of the old generation can be removed: no stream uses it, and no new one can reach it. If true, it
    /// is valid only until `validUntil`; after that, the state is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_old_worker_dispensable: Option<bool>,
    /// When the controller last observed the evidence for `safeToDeleteOld` and `lastOldWorkerDispensable`, while one of them is
    /// true.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub observed_at: Option<Time>,
    /// The time until which `safeToDeleteOld` and `lastOldWorkerDispensable` are valid, while one of them is true. The controller
    /// renews it twice a minute; after that time, both are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub valid_until: Option<Time>,
    /// The missing evidence for deleting the old generation, for users. Set once the update is complete.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 1024)))]
    pub missing_for_deletion: Vec<String>,
    /// The cap, in percent, that the proxies exceed while all requests must go to the new generation because the old one has no
    /// ready worker. They respect any other cap, and a split that gives the old generation a share.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub lifted_cap_percent: Option<u8>,
    /// The last valid spec, which the controller uses to react to losses of capacity while the current spec is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_valid: Option<LastValidStatus>,
    /// What the update is waiting for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub waiting_for: Vec<WaitStatus>,
    /// The estimated time until the streams on the old generation have ended, in seconds, based on the durations of past streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub estimated_drain_seconds: Option<i64>,
    /// When the phase last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub last_transition_time: Option<Time>,
    /// The analysis result of the new generation. Set while it is analysed or has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<AnalysisStatus>,
    /// The step of `spec.steps` that the split may not exceed yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<StepStatus>,
    /// The conditions of the update: Accepted, NewFrontendReady, Progressing, Paused, Complete, Degraded; AnalysisFailed, while
    /// the new generation is analysed or has failed; and for generic tools, one of Ready (complete or held), Reconciling, and
    /// Stalled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        schema_with = "conditions",
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// The controller's memory, from which a restarted controller continues. Not for users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// What a flag of a status says at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagState {
    /// The flag is true and valid.
    True,
    /// The flag is false.
    False,
    /// Unknown: the flag is true, but no longer valid.
    Expired,
}

/// How far the controller's clock may be ahead of a reader's.
const SKEW: Duration = Duration::from_secs(30);

/// The maximum time after `observedAt` for which a flag is valid, no matter what else the status says.
pub const VALIDITY: Duration = Duration::from_secs(90);

impl DynamoUpdateConfigStatus {
    /// The verdict on the new generation, if the controller has observed the update's current `generation`: a later one may have
    /// a different new generation.
    #[must_use]
    pub fn verdict(&self, generation: Option<i64>) -> Option<&AnalysisStatus> {
        let analysis = self.analysis.as_ref();
        analysis.filter(|_| self.observed_generation == generation)
    }

    /// The state of `safeToDeleteOld` at `now`, if `metadata.generation` is `generation`; none if it was never set.
    #[must_use]
    pub fn old_may_be_deleted(&self, generation: Option<i64>, now: Timestamp) -> Option<FlagState> {
        self.flag(self.safe_to_delete_old, generation, now)
    }

    /// The same for `lastOldWorkerDispensable`.
    #[must_use]
    pub fn last_old_worker_may_go(
        &self,
        generation: Option<i64>,
        now: Timestamp,
    ) -> Option<FlagState> {
        self.flag(self.last_old_worker_dispensable, generation, now)
    }

    fn flag(
        &self,
        flag: Option<bool>,
        generation: Option<i64>,
        now: Timestamp,
    ) -> Option<FlagState> {
        // The proxies follow an edit immediately, even if no controller has processed it.
        let is_of_this_edit = self.observed_generation == generation;
        // A flag with a time from a clock that is far ahead would be valid for too long.
        let after = |time: Timestamp, long| time.checked_add(long).unwrap_or(Timestamp::MAX);
        let at = self.observed_at.as_ref();
        let is_recent =
            at.is_some_and(|at| at.0 <= after(now, SKEW) && now < after(at.0, VALIDITY));
        let is_valid = self.valid_until.as_ref().is_some_and(|until| now < until.0);
        Some(match flag? {
            false => FlagState::False,
            true if is_of_this_edit && is_recent && is_valid => FlagState::True,
            true => FlagState::Expired,
        })
    }
}

/// The schema of a [`Time`], without k8s-openapi's feature `schemars`, which contains the schemas of all kinds.
pub(super) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

/// The schema of [`Condition`]s, as Kubernetes describes them.
pub(super) fn conditions(generator: &mut SchemaGenerator) -> Schema {
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
    /// The `spec` is valid and in force for its deployment.
    pub const ACCEPTED: &str = "Accepted";
    /// The new generation can serve every required model.
    pub const NEW_FRONTEND_READY: &str = "NewFrontendReady";
    /// The split is moving, or waiting for workers or proxies.
    pub const PROGRESSING: &str = "Progressing";
    /// A user or the cap holds the split.
    pub const PAUSED: &str = "Paused";
    /// The old generation has no requests or streams left.
    pub const COMPLETE: &str = "Complete";
    /// The new generation has failed the analysis.
    pub const ANALYSIS_FAILED: &str = "AnalysisFailed";
    /// A problem prevents the update from making progress.
    pub const DEGRADED: &str = "Degraded";
    /// It is complete, or held, and nothing is wrong. Exactly one of this and the next two is true.
    pub const READY: &str = "Ready";
    /// It is moving, or waiting for something that will happen.
    pub const RECONCILING: &str = "Reconciling";
    /// It cannot continue by itself.
    pub const STALLED: &str = "Stalled";
}

/// A split of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SplitStatus {
    /// The share of the new generation, rounded to a whole percentage; 0 and 100 are exact.
    #[schemars(range(min = 0, max = 100))]
    pub percent: u8,
    /// The exact ratio; for an observed split, the numbers of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightsSpec>,
}

impl SplitStatus {
    /// The exact ratio, if known; `None` if it is not a split.
    #[must_use]
    pub fn exact(&self) -> Option<Weights> {
        requested_split(self.weights, Some(self.percent))
    }
}

/// One generation of frontends and workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GenerationStatus {
    /// Ready and desired workers of all roles together, such as `3/4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub workers: Option<String>,
    /// The workers of each role, such as `prefill`, `decode`, or `worker`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub roles: BTreeMap<String, RoleStatus>,
    /// The capacity of the generation, in percent of its full size: the capacity of the role that has the least.
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
    /// Open streams that are waiting to be moved to the new generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub moving_streams: Option<i64>,
}

/// Something that an update is waiting for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitStatus {
    /// What it is waiting for, as text for users.
    #[schemars(length(max = 4096))]
    pub what: String,
    /// When the wait began.
    #[schemars(schema_with = "time")]
    pub since: Time,
    /// When the wait ends at the latest. Without it, the wait has no time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub until: Option<Time>,
}

/// The result of comparing the new generation with the old one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AnalysisStatus {
    /// The verdict. A `Fail` stays until you retry (with `crossfade retry`; for a DynamoRollout, with
    /// `crossfade rollout retry`) or the spec names a different new generation.
    pub verdict: TrialVerdict,
    /// The reason in one sentence, with the figures.
    #[schemars(length(max = 4096))]
    pub message: String,
    /// When the new generation failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub failed_at: Option<Time>,
    /// Whether all requests go to the old generation because the new one failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rolled_back: bool,
}

/// A step that has not been passed yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepStatus {
    /// The maximum share of the new generation, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub percent: u8,
    /// When the split reached the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub since: Option<Time>,
    /// The earliest time at which it may leave the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub hold_until: Option<Time>,
}

/// The workers of one role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleStatus {
    /// Workers that are ready.
    #[schemars(range(min = 0))]
    pub ready: i32,
    /// Workers that their object currently requests.
    #[schemars(range(min = 0))]
    pub desired: i32,
    /// The number of workers at full size: that of the old generation when the update was accepted, or the number in
    /// `spec.workers`. It stays the same for the whole update.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub full_size: Option<i32>,
}

/// The frontends of the old generation, whose proxies should follow the update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FrontendsStatus {
    /// All frontends, including those without a proxy or with an unreachable one.
    #[schemars(range(min = 0))]
    pub total: i32,
    /// Frontends whose proxy has applied this generation of the `spec`.
    #[schemars(range(min = 0))]
    pub applied: i32,
}
