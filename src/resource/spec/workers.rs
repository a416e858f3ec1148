//! Which workers a generation has and how many it has at full size, for the controller to count.
//!
//! Proxies ignore it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The kinds of objects whose workers can be counted; `Pod` counts pods by their labels.
pub const WORKER_KINDS: [&str; 9] = [
    "Pod",
    "Deployment",
    "StatefulSet",
    "LeaderWorkerSet",
    "PodClique",
    "PodCliqueScalingGroup",
    "ModelServing",
    "DynamoGraphDeployment",
    "DynamoWorkerMetadata",
];

/// How to find and count the workers of each generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkersSpec {
    /// The workers of the old generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<WorkerSourceSpec>,
    /// The workers of the new generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<WorkerSourceSpec>,
}

/// The workers of one generation, and their number at full size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerSourceSpec {
    /// The kind of the object that owns the workers, such as `Deployment` or `PodClique`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = WORKER_KINDS))]
    pub kind: Option<String>,
    /// The name of the object that owns the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// The revision or worker hash, if one object owns the workers of both generations.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub revision: Option<String>,
    /// Labels of the workers' pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub selector: BTreeMap<String, String>,
    /// How many ready workers of each role the full generation has, such as `{prefill: 4}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(
        extend("maxProperties" = 16),
        extend("additionalProperties" = {"type": "integer", "minimum": 0, "maximum": 1_000_000})
    )]
    pub replicas: BTreeMap<String, u32>,
}
