//! The objects that a rollout scales, and the frontends that belong to them.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use crate::resource::rules as shared;

/// The kinds of objects that a rollout can scale.
pub const SCALED_KINDS: [&str; 7] = [
    "Deployment",
    "StatefulSet",
    "LeaderWorkerSet",
    "PodClique",
    "PodCliqueScalingGroup",
    "ModelServing",
    "DynamoGraphDeployment",
];

/// The kinds whose objects can hold the workers of both generations, distinguished by revision and `partition`.
pub const IN_PLACE_KINDS: [&str; 3] = ["StatefulSet", "LeaderWorkerSet", "ModelServing"];

/// The workers of a generation: one object, or one for each role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::generation()))]
pub struct GenerationSpec {
    /// The kind of the object that owns the workers. In a `DynamoGraphDeployment`, each worker component is a role.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = SCALED_KINDS))]
    pub kind: Option<String>,
    /// The name of the object that owns the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = shared::object_name()))]
    pub name: Option<String>,
    /// How many replicas the full generation has. By default, the number that the larger generation has when the rollout is
    /// accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub replicas: Option<u32>,
    /// Instead of `kind` and `name`: the object of each role (`prefill`, `decode`, or `worker`). The
    /// roles keep their proportion.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 3), extend("x-kubernetes-validations" = rules::roles()))]
    pub roles: BTreeMap<String, WorkloadSpec>,
}

impl fmt::Display for GenerationSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(kind), Some(name)) = (&self.kind, &self.name) {
            return write!(f, "{kind} {name}");
        }
        for (index, (role, workload)) in self.roles.iter().enumerate() {
            let joint = if index > 0 { " and " } else { "" };
            write!(f, "{joint}{} {} ({role})", workload.kind, workload.name)?;
        }
        Ok(())
    }
}

/// The object that owns the workers of one role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSpec {
    /// The kind of the object.
    #[schemars(extend("enum" = SCALED_KINDS))]
    pub kind: String,
    /// The name of the object.
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = shared::object_name()))]
    pub name: String,
    /// How many replicas of this role the full generation has. By default, the number that the larger generation has when the
    /// rollout is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub replicas: Option<u32>,
}

/// The frontends of both generations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrontendsSpec {
    /// The frontends of the old generation, whose proxies split the requests: the name of a
    /// `DynamoGraphDeployment` or, failing that, of a Deployment.
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = shared::object_name()))]
    pub source: String,
    /// The frontends of the new generation, named in the same way.
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = shared::object_name()))]
    pub target: String,
    /// The Service of the new generation's frontends, to which the old frontends forward requests.
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = shared::object_name()))]
    pub service: String,
    /// The port of `service`. Default 8000.
    #[serde(default = "port")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: u16,
}

const fn port() -> u16 {
    8000
}
