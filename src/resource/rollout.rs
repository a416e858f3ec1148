//! The `DynamoRollout` as users write it: a managed update, which also scales both generations.
//!
//! The doc comments are what `kubectl explain` prints. Does not depend on how a rollout is decided or carried out.

#![allow(
    clippy::duplicated_attributes,
    reason = "clippy takes the columns that `kubectl get` shows for one attribute given again"
)]

mod amount;
mod file;
mod handover;
mod problems;
pub(super) mod rules;
#[cfg(feature = "kube")]
pub mod status;
mod strategy;
mod traffic;
mod workers;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) use self::file::read;
#[cfg(feature = "kube")]
use self::status::DynamoRolloutStatus;
pub use self::{
    amount::{Amount, AmountSpec},
    file::{RolloutManifest, load_rollout, rollout_schema},
    handover::{ClientHandover, Handover, Intent, Retire},
    strategy::{ScaleStepSpec, StrategySpec},
    traffic::TrafficSpec,
    workers::{FrontendsSpec, GenerationSpec, IN_PLACE_KINDS, SCALED_KINDS, WorkloadSpec},
};
use super::{rules as shared, spec::AnalysisSpec};

/// The kind of the resource.
pub const ROLLOUT_KIND: &str = "DynamoRollout";

/// A managed update from an old generation of frontends and workers to a new one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(
    feature = "kube",
    derive(kube::CustomResource),
    kube(
        group = "nvidia.com",
        version = "v1alpha1",
        kind = "DynamoRollout",
        namespaced,
        shortname = "dro",
        status = "DynamoRolloutStatus",
        derive = "PartialEq",
        doc = "A managed update: an old generation of workers is scaled down and a new one up, and the traffic moves with them. A controller with `--rollouts` carries it out.",
        printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase", "description": "The phase of the rollout"}"#,
        printcolumn = r#"{"name": "Old", "type": "string", "jsonPath": ".status.source.workers", "description": "Ready and desired workers of the old generation"}"#,
        printcolumn = r#"{"name": "New", "type": "string", "jsonPath": ".status.target.workers", "description": "Ready and desired workers of the new generation"}"#,
        printcolumn = r#"{"name": "Split", "type": "integer", "jsonPath": ".status.split.percent", "description": "The share of requests that goes to the new generation, in percent"}"#,
        printcolumn = r#"{"name": "Verdict", "type": "string", "jsonPath": ".status.analysis.verdict", "priority": 1, "description": "The result of the analysis of the new generation"}"#,
        printcolumn = r#"{"name": "GPUs", "type": "integer", "jsonPath": ".status.gpus.used", "priority": 1, "description": "The GPUs of both generations, including those of terminating pods"}"#,
        printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.message", "description": "What the rollout is doing and waiting for"}"#,
        printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
    )
)]
#[schemars(extend("x-kubernetes-validations" = rules::spec()))]
pub struct DynamoRolloutSpec {
    /// The workers of the old generation. Cannot be changed while the rollout is under way.
    pub source: GenerationSpec,

    /// The workers of the new generation. Their objects must exist, with any number of replicas, including 0. If this is the
    /// same object as `source`, it has the workers of both generations, and the rollout moves its `partition`.
    pub target: GenerationSpec,

    /// The frontends of both generations.
    pub frontends: FrontendsSpec,

    /// The Service that clients connect to. With `handover.clients: Automatic`, the controller makes it select the new frontends
    /// at the end.
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = shared::object_name()))]
    pub client_service: String,

    /// The speed and the resource limits of the rollout.
    #[serde(default)]
    pub strategy: StrategySpec,

    /// How much worse than the old generation the new one may be, and what happens if it is worse; `{}` uses the defaults.
    /// Without it, the new generation is not analysed. With `onFailure: RollBack`, the new generation is scaled down again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<AnalysisSpec>,

    /// The sizes of the new generation at which the rollout pauses for a while, in percent of its full size, in increasing
    /// order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-validations" = shared::steps()))]
    pub steps: Vec<ScaleStepSpec>,

    /// What the rollout should do now. `Run` moves to the new generation. `Hold` changes neither sizes nor split, except to
    /// move requests away from a generation that cannot serve. `Promote` moves to the new generation without analysis and
    /// steps. `Abort` goes back to the old generation.
    #[serde(default)]
    pub intent: Intent,

    /// What happens once the new generation serves everything.
    #[serde(default)]
    pub handover: Handover,

    /// What proxies do with the requests of this rollout.
    #[serde(default)]
    pub traffic: TrafficSpec,

    /// Return to this revision from `status.revisions`, even after the rollout has ended. While this is set, `target` has no
    /// effect. 0, the default, means no undo.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub undo_to: Option<i64>,

    /// How many revisions are kept for `undoTo`, besides those of the current rollout. Deleting a revision does not delete its
    /// objects.
    #[serde(default = "revision_history_limit")]
    #[schemars(range(min = 0, max = 100))]
    pub revision_history_limit: u32,
}

/// The default of [`DynamoRolloutSpec::revision_history_limit`], the same as for a Deployment.
const fn revision_history_limit() -> u32 {
    10
}

impl DynamoRolloutSpec {
    /// The revision to go back to.
    #[must_use]
    pub fn undo(&self) -> Option<i64> {
        self.undo_to.filter(|revision| *revision > 0)
    }
}

impl DynamoRolloutSpec {
    /// Whether `source` and `target` name the same object, which then has the workers of both generations.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let (one, other) = (&self.source, &self.target);
        one.name.is_some() && one.name == other.name && one.kind == other.kind
    }
}

impl fmt::Display for DynamoRolloutSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, target) = (&self.source, &self.target);
        write!(
            f,
            "a rollout from {source} to {target}, for the clients of Service {}",
            self.client_service
        )
    }
}
