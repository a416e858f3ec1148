//! The `status` of a `DynamoRollout`, which the controller writes for users.
//!
//! `kubectl explain` prints the doc comments. Does not depend on how the values are determined.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resource::status::{AnalysisStatus, SplitStatus, WaitStatus, conditions, time};

/// The state of the rollout. The controller writes it; without a controller, it stays empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DynamoRolloutStatus {
    /// The generation of the `spec` (`metadata.generation`) that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The phase of the rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<RolloutPhase>,
    /// A message for users: what is happening, and what the rollout is waiting for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// The `DynamoUpdateConfig` that the controller has created for this rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub update: Option<String>,
    /// What the rollout moves, as accepted when it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<AcceptedStatus>,
    /// The workers of the old generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<ScaledGenerationStatus>,
    /// The workers of the new generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<ScaledGenerationStatus>,
    /// The split of requests that the rollout has set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitStatus>,
    /// The current step of the rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<RolloutStepStatus>,
    /// What the next step is waiting for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub waiting_for: Vec<WaitStatus>,
    /// The analysis result of the new generation. Set while it is analysed or has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<AnalysisStatus>,
    /// The GPUs of both generations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuStatus>,
    /// The selector that `clientService` had before the controller changed it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub previous_selector: BTreeMap<String, String>,
    /// The sources and targets of the rollout that are kept for `spec.undoTo`, in increasing order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub revisions: Vec<RevisionStatus>,
    /// The conditions of the rollout: Ready (ended, or held by the user), Reconciling, and Stalled; and ScaleContested while
    /// another client changes the sizes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        schema_with = "conditions",
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// The controller's memory, from which a restarted controller continues. Not for users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<RolloutMemory>,
}

/// The types of the [`DynamoRolloutStatus::conditions`].
pub mod condition {
    /// It has ended, or is held by the user, and nothing is wrong.
    pub const READY: &str = "Ready";
    /// It is moving, or waiting for something that will happen.
    pub const RECONCILING: &str = "Reconciling";
    /// It cannot continue by itself.
    pub const STALLED: &str = "Stalled";
    /// Another client has set a size.
    pub const SCALE_CONTESTED: &str = "ScaleContested";
}

/// The phase of a rollout.
// No doc comments on the variants: the schema is then a plain list of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutPhase {
    // Not observed yet.
    Pending,
    // Nothing was written, and nothing will be until the named problem is fixed.
    Refused,
    Progressing,
    RollingBack,
    Held,
    // Another client changes the sizes.
    Contested,
    // A worker did not become ready in time, or something cannot be observed or written.
    Stalled,
    // The units beyond the partition are new.
    Partition,
    Complete,
    RolledBack,
}

impl RolloutPhase {
    /// Every phase.
    pub const ALL: [Self; 10] = [
        Self::Pending,
        Self::Refused,
        Self::Progressing,
        Self::RollingBack,
        Self::Held,
        Self::Contested,
        Self::Stalled,
        Self::Partition,
        Self::Complete,
        Self::RolledBack,
    ];

    /// The name in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Refused => "Refused",
            Self::Progressing => "Progressing",
            Self::RollingBack => "RollingBack",
            Self::Held => "Held",
            Self::Contested => "Contested",
            Self::Stalled => "Stalled",
            Self::Partition => "Partition",
            Self::Complete => "Complete",
            Self::RolledBack => "RolledBack",
        }
    }

    /// Whether a rollout in this phase has ended.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Complete | Self::RolledBack)
    }
}

/// What the rollout moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AcceptedStatus {
    /// When it was accepted. Sizes that were set before then do not count as changes by another client.
    #[schemars(schema_with = "time")]
    pub at: Time,
    /// The units of a whole generation.
    #[schemars(range(min = 1))]
    pub units: u32,
    /// The old generation.
    pub source: AcceptedGeneration,
    /// The new generation.
    pub target: AcceptedGeneration,
    /// The Service and port of the new frontends.
    #[schemars(length(max = 300))]
    pub service: String,
    /// The revision of the old generation, if the rollout returns to it after the new generation has received all requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub undo_to: Option<i64>,
}

/// A generation that was the source or the target of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevisionStatus {
    /// The number of the revision, for `spec.undoTo`. The number of a generation never changes.
    #[schemars(range(min = 1))]
    pub revision: i64,
    /// Which generation of the current rollout this revision is: `old` or `new`; absent if neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["old", "new"]))]
    pub generation: Option<String>,
    /// The kinds and names of the objects that own the workers.
    #[schemars(length(max = 1024))]
    pub workers: String,
    /// The object of the frontends: a `DynamoGraphDeployment` or a Deployment.
    #[schemars(length(max = 253))]
    pub frontends: String,
    /// When a rollout to or from this revision began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub at: Option<Time>,
    /// Whether the objects of this revision still exist, so that `undoTo` can return to it.
    pub exists: bool,
}

/// One generation, as accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AcceptedGeneration {
    /// The object of each role.
    #[schemars(extend("maxProperties" = 3))]
    pub roles: BTreeMap<String, AcceptedRole>,
    /// The frontends: a `DynamoGraphDeployment` or a Deployment.
    #[schemars(length(max = 253))]
    pub frontends: String,
    /// The graph to which its workers belong, if several objects own them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub graph: Option<String>,
}

/// The object of a role, as accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AcceptedRole {
    /// The kind of the object.
    #[schemars(length(max = 253))]
    pub kind: String,
    /// The name of the object.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The component of the object, if each of its components has its own size.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub component: Option<String>,
    /// The UID of the object. A different object with the same name is not scaled.
    #[schemars(length(max = 253))]
    pub uid: String,
    /// The revision of the object, such as that of a Deployment, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub revision: Option<String>,
    /// How many replicas the full generation has.
    #[schemars(range(min = 0))]
    pub replicas: u32,
    /// The GPUs of one replica.
    #[schemars(range(min = 0))]
    pub gpus: u32,
}

/// The workers of one generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScaledGenerationStatus {
    /// Ready and desired workers of all roles together, such as `3/4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub workers: Option<String>,
    /// The workers of each role.
    #[schemars(extend("maxProperties" = 3))]
    pub roles: BTreeMap<String, ScaledRoleStatus>,
    /// Frontends that are ready.
    #[schemars(range(min = 0))]
    pub ready_frontends: u32,
    /// Open streams, if all proxies report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub open_streams: Option<u64>,
}

/// The workers of one role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScaledRoleStatus {
    /// Replicas that are requested.
    #[schemars(range(min = 0))]
    pub spec: u32,
    /// Replicas that are ready.
    #[schemars(range(min = 0))]
    pub ready: u32,
    /// Replicas that are terminating.
    #[schemars(range(min = 0))]
    pub terminating: u32,
    /// The size that this rollout wrote last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub recorded: Option<u32>,
}

/// Where the rollout is, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStepStatus {
    /// Units of the old generation.
    #[schemars(range(min = 0))]
    pub old: u32,
    /// Units of the new generation.
    #[schemars(range(min = 0))]
    pub new: u32,
    /// The target number of units of the new generation, in the end or at the next of `spec.steps`.
    #[schemars(range(min = 0))]
    pub next: u32,
}

/// The GPUs of both generations, including those of terminating pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuStatus {
    /// GPUs in use now.
    #[schemars(range(min = 0))]
    pub used: u64,
    /// The peak number of GPUs in use since the rollout was accepted.
    #[schemars(range(min = 0))]
    pub peak: u64,
}

/// Sizes of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResizingStatus {
    /// `old` or `new`.
    #[schemars(extend("enum" = ["old", "new"]))]
    pub generation: String,
    /// The replicas of each role.
    #[schemars(extend("maxProperties" = 3))]
    pub sizes: BTreeMap<String, u32>,
}

/// The controller's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutMemory {
    /// The generation of the `spec` for which sizes were last recorded. A later edit accepts the sizes that another client has
    /// set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_generation: Option<i64>,
    /// When a size last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub unchanged_since: Option<Time>,
    /// Since this time, no size has changed and every worker has been ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub at_rest_since: Option<Time>,
    /// Since this time, at least one worker that should be ready has not been.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub unready_since: Option<Time>,
    /// Since this time, every proxy has applied the split.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub applied_since: Option<Time>,
    /// The sizes that were written last, or that are about to be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resizing: Option<ResizingStatus>,
    /// Whether everything, including the clients, has moved to the new generation. From then on, the objects of the old
    /// generation may be deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub handed_over: bool,
    /// Whether retiring the old generation has begun, or is about to begin.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub retiring: bool,
    /// Whether the old generation has been retired as requested.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
}
