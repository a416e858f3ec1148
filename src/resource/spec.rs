//! The `DynamoUpdateConfig` as users write it: its fields, their defaults and bounds.
//!
//! `kubectl explain` prints the doc comments, so they are written for the author of a manifest. The API server and the reader of
//! files enforce the attributes. Does not depend on files, lines or clusters, nor on how a plan uses the fields.
//!
//! These fields define what is updated to what, and how the split moves. The behaviour of proxies and the counting of workers are
//! defined in separate objects.
//!
//! Beware: do not use `deny_unknown_fields` here. The reader of files and the API server reject unknown fields, because they can
//! tell the user; a proxy that reads a resource written for a newer version must still be able to read the rest.

#![allow(
    clippy::duplicated_attributes,
    reason = "clippy takes the columns that `kubectl get` shows for one attribute given again"
)]

mod analysis;
mod continuation;
mod proxies;
mod steps;
mod workers;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    analysis::{AnalysisSpec, OnFailure, RETRIED_AT},
    continuation::{ContinuationMode, ContinuationSpec, DrainSpec},
    proxies::{AffinitySpec, DEFAULT_AFFINITY_HEADERS, FailoverSpec, ProbeSpec, TlsSpec},
    steps::StepSpec,
    workers::{WORKER_KINDS, WorkerSourceSpec, WorkersSpec},
};
use super::rules;
#[cfg(feature = "kube")]
use super::status::DynamoUpdateConfigStatus;
use super::weights::{WeightsSpec, requested_split};
use crate::split::Weights;

/// An update that moves the traffic of an old generation of frontends to a new one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(
    feature = "kube",
    derive(kube::CustomResource),
    kube(
        group = "nvidia.com",
        version = "v1alpha1",
        kind = "DynamoUpdateConfig",
        namespaced,
        shortname = "duc",
        status = "DynamoUpdateConfigStatus",
        derive = "PartialEq",
        // This lets a proxy receive only the updates of its own deployment.
        selectable = ".spec.sourceDeployment",
        doc = "An update that moves the traffic of an old generation of frontends to a new one, without losing a stream.",
        printcolumn = r#"{"name": "Split", "type": "integer", "jsonPath": ".spec.trafficSplitPercent", "description": "The share of requests that should go to the new generation, in percent"}"#,
        printcolumn = r#"{"name": "Weights", "type": "string", "jsonPath": ".spec.weights", "priority": 1, "description": "The split as an exact ratio, if it is given in this form"}"#,
        printcolumn = r#"{"name": "Wanted", "type": "integer", "jsonPath": ".status.wanted.percent", "priority": 1, "description": "The desired share of the new generation as decided by the controller, in percent"}"#,
        printcolumn = r#"{"name": "Observed", "type": "integer", "jsonPath": ".status.observed.percent", "description": "The share of requests that went to the new generation in the last minute, in percent"}"#,
        printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase", "description": "The phase of the update"}"#,
        printcolumn = r#"{"name": "Old Ready", "type": "string", "jsonPath": ".status.old.workers", "description": "Ready and desired workers of the old generation"}"#,
        printcolumn = r#"{"name": "New Ready", "type": "string", "jsonPath": ".status.new.workers", "description": "Ready and desired workers of the new generation"}"#,
        printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
    )
)]
#[schemars(extend("x-kubernetes-validations" = rules::spec()))]
pub struct DynamoUpdateConfigSpec {
    /// The frontends of the new generation: `host:port`, `http://host[:port]`, or
    /// `https://host[:port]`, or several of these separated by commas. Normally a Service.
    #[schemars(length(min = 1, max = 4096), extend("x-kubernetes-validations" = rules::targets()))]
    pub new_frontend_service: String,

    /// The share of requests that goes to the new generation, in percent: 0 is none, 100 is all. If `weights` is not set either,
    /// the controller sets both; until then, all requests go to the old generation. A plan file must set one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub traffic_split_percent: Option<u8>,

    /// The split as an exact ratio. If `trafficSplitPercent` is set as well, it must be this ratio rounded to a whole percentage;
    /// 0 and 100 are only allowed if they are exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightsSpec>,

    /// A cap: the new generation gets at most this share, in percent, no matter what the split is. Use it to hold an update at a
    /// canary share. No cap by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub max_traffic_split_percent: Option<u8>,

    /// Hold the split where it is: the controller does not change it, and manual edits stay. Default false. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub paused: Option<bool>,

    /// Drain the old generation: all requests go to the new one as soon as it can serve, even if the old one still has workers.
    /// `paused`, the cap, `steps`, and a failed analysis take precedence. Default false. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub drain_old: Option<bool>,

    /// The Dynamo namespace of the workers of the new generation. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub new_dynamo_namespace: Option<String>,

    /// The old generation: the name of a `DynamoGraphDeployment` or, failing that, of a Deployment.
    /// Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = rules::object_name()))]
    pub source_deployment: Option<String>,

    /// The new generation: the name of a `DynamoGraphDeployment` or, failing that, of a Deployment.
    /// Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = rules::object_name()))]
    pub target_deployment: Option<String>,

    /// How to find and count the workers of each generation. By default, they are found by the names of the deployments.
    /// Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersSpec>,

    /// The models that the new generation must serve before it gets requests. By default, all models that the old one serves.
    /// Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 512)))]
    pub models: Option<Vec<String>>,

    /// The Service that clients connect to. The old frontends may only be deleted once it routes to ready frontends of the new
    /// generation and to none of the old one. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = rules::object_name()))]
    pub client_service: Option<String>,

    /// How long streams on the old generation may continue after its share has become 0, in seconds. No limit by default.
    /// Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub drain_deadline_seconds: Option<u32>,

    /// The name of an older update of the same deployment that this one replaces. Without it, the older one is in force.
    /// Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = rules::object_name()))]
    pub supersedes: Option<String>,

    /// Respect `paused` even if a generation that still gets requests cannot serve, and the cap even if the old one has no ready
    /// worker left. Default false. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub strict: Option<bool>,

    /// How long workers must have been ready before they get a larger share, in seconds. Default 5. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400), extend("default" = 5))]
    pub stable_seconds: Option<u32>,

    /// How long the controller waits for all proxies to apply a change of the split before it makes the next one, in seconds.
    /// Default 30. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400), extend("default" = 30))]
    pub ack_timeout_seconds: Option<u32>,

    /// The old generation drains: while the new one gets all requests, requests that fail on the new one are no longer retried on
    /// the old one. Default false.
    #[serde(default)]
    pub old_draining: bool,

    /// How the requests of a session are kept on one generation.
    #[serde(default)]
    pub affinity: AffinitySpec,

    /// What happens to a request when its generation fails.
    #[serde(default)]
    pub failover: FailoverSpec,

    /// What happens to streams that are still open on the old generation.
    #[serde(default)]
    pub drain: DrainSpec,

    /// Regular probes that check whether the frontends can serve. Off by default; `{}` enables them with the defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeSpec>,

    /// How much worse than the old generation the new one may be, and what happens if it is worse; `{}` uses the defaults.
    /// Without it, the new generation is not analysed. `crossfade judge` makes the same comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<AnalysisSpec>,

    /// The shares at which to try the new generation, in increasing order. The split passes a step after it has stayed there for
    /// `holdSeconds` and, if there is an `analysis`, after the new generation has passed it with requests from that time. Ready
    /// workers remain the upper bound. If the old generation has no ready worker left, the split does not wait for steps.
    /// Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), extend("x-kubernetes-validations" = rules::steps()))]
    pub steps: Option<Vec<StepSpec>>,

    /// TLS to the new generation, for `https://` only. By default, the certificate authorities of the system are trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,
}

impl DynamoUpdateConfigSpec {
    /// An update to the frontends at `new_frontend_service`, with defaults for everything else. The split has no default and must
    /// be set.
    #[must_use]
    pub fn to(new_frontend_service: impl Into<String>) -> Self {
        Self {
            new_frontend_service: new_frontend_service.into(),
            ..Self::default()
        }
    }

    /// Whether it sets the split.
    #[must_use]
    pub fn gives_split(&self) -> bool {
        self.traffic_split_percent.is_some() || self.weights.is_some()
    }

    /// The split that it sets, before any cap.
    #[must_use]
    pub fn split(&self) -> Option<Weights> {
        requested_split(self.weights, self.traffic_split_percent)
    }

    /// The fields that are set but only have an effect in a cluster, in the order of this type.
    #[must_use]
    pub fn cluster_only(&self) -> Vec<&'static str> {
        [
            ("paused", self.paused.is_some()),
            ("drainOld", self.drain_old.is_some()),
            ("newDynamoNamespace", self.new_dynamo_namespace.is_some()),
            ("sourceDeployment", self.source_deployment.is_some()),
            ("targetDeployment", self.target_deployment.is_some()),
            ("workers", self.workers.is_some()),
            ("models", self.models.is_some()),
            ("clientService", self.client_service.is_some()),
            (
                "drainDeadlineSeconds",
                self.drain_deadline_seconds.is_some(),
            ),
            ("supersedes", self.supersedes.is_some()),
            ("steps", self.steps.is_some()),
            ("strict", self.strict.is_some()),
            ("stableSeconds", self.stable_seconds.is_some()),
            ("ackTimeoutSeconds", self.ack_timeout_seconds.is_some()),
        ]
        .into_iter()
        .filter_map(|(field, given)| given.then_some(field))
        .collect()
    }
}
