//! The `DynamoUpdateConfig` as people write it: its fields, their defaults and bounds.
//!
//! The doc comments are what `kubectl explain` prints and the attributes are what the API server
//! and the reader of files enforce, so they are written for the person who writes the manifest.
//! Must not know files, lines, clusters, nor what a plan makes of the fields.
//!
//! What is here says what is updated to what, and how the split moves; what proxies do meanwhile and
//! which workers count is said in objects of their own.
//!
//! Beware: no `deny_unknown_fields` here. An unknown field is refused where a person can be told
//! (the reader of files, the API server); a proxy that meets a resource written for a newer one
//! must still be able to read the rest.

#![allow(
    clippy::duplicated_attributes,
    reason = "clippy takes the columns that `kubectl get` shows for one attribute given again"
)]

mod analysis;
mod continuation;
mod proxies;
mod workers;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    analysis::{AnalysisSpec, OnFailure},
    continuation::{ContinuationMode, ContinuationSpec, DrainSpec},
    proxies::{AffinitySpec, DEFAULT_AFFINITY_HEADERS, FailoverSpec, ProbeSpec, TlsSpec},
    workers::{WORKER_KINDS, WorkerSourceSpec, WorkersSpec},
};
#[cfg(feature = "kube")]
use super::status::DynamoUpdateConfigStatus;
use super::{rules, weights::WeightsSpec};

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
        // So that a proxy hears of the updates of its own deployment alone.
        selectable = ".spec.sourceDeployment",
        doc = "An update that moves the traffic of an old generation of frontends to a new one, without losing a stream.",
        printcolumn = r#"{"name": "Split", "type": "integer", "jsonPath": ".spec.trafficSplitPercent", "description": "The share of requests that is to go to the new generation, in percent"}"#,
        printcolumn = r#"{"name": "Weights", "type": "string", "jsonPath": ".spec.weights", "priority": 1, "description": "The split as an exact ratio, where it is given as one"}"#,
        printcolumn = r#"{"name": "Wanted", "type": "integer", "jsonPath": ".status.wanted.percent", "priority": 1, "description": "The share of requests that the controller wants for the new generation now, in percent"}"#,
        printcolumn = r#"{"name": "Observed", "type": "integer", "jsonPath": ".status.observed.percent", "description": "The share of requests that went to the new generation of late, in percent"}"#,
        printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase", "description": "Where the update stands"}"#,
        printcolumn = r#"{"name": "Old Ready", "type": "string", "jsonPath": ".status.old.workers", "description": "Ready and wanted workers of the old generation"}"#,
        printcolumn = r#"{"name": "New Ready", "type": "string", "jsonPath": ".status.new.workers", "description": "Ready and wanted workers of the new generation"}"#,
        printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
    )
)]
#[schemars(extend("x-kubernetes-validations" = rules::spec()))]
pub struct DynamoUpdateConfigSpec {
    /// The frontends of the new generation: `host:port`, `http://host[:port]` or
    /// `https://host[:port]`, or several of these separated by commas. Normally a Service.
    #[schemars(length(min = 1, max = 4096), extend("x-kubernetes-validations" = rules::targets()))]
    pub new_frontend_service: String,

    /// The share of requests that goes to the new generation, in percent: 0 is none, 100 is all.
    /// If `weights` is not given either, the controller sets both, and all requests go to the old
    /// generation until it has. A plan file must give one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub traffic_split_percent: Option<u8>,

    /// The split as an exact ratio. If `trafficSplitPercent` is given as well it must be this
    /// ratio rounded to a whole percentage, where 0 and 100 are only right if they are exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightsSpec>,

    /// A cap: the new generation gets at most this share, in percent, whatever the split says.
    /// It holds an update at a canary share. No cap by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub max_traffic_split_percent: Option<u8>,

    /// Hold the split where it is: the controller changes nothing, an edit by a person stays.
    /// Default false. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub paused: Option<bool>,

    /// Empty the old generation: all requests go to the new one as soon as it can serve, though the
    /// old one still has workers, and the old one drains. `paused` and the cap go before it. Default
    /// false. Cluster only.
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

    /// How to find and count the workers of each generation. By default they are found by the
    /// names of the deployments. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersSpec>,

    /// The models that the new generation must serve before it gets a request. By default all
    /// that the old one serves. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 512)))]
    pub models: Option<Vec<String>>,

    /// The Service that clients connect to. The old frontends may only be deleted when it leads to
    /// ready frontends of the new generation and to none of the old one. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = rules::object_name()))]
    pub client_service: Option<String>,

    /// How long the streams that still run on the old generation may take to end after its share
    /// has become 0, in seconds. No limit by default. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub drain_deadline_seconds: Option<u32>,

    /// The name of an older update of the same deployment that this one replaces. Without it the
    /// older one rules. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), extend("x-kubernetes-validations" = rules::object_name()))]
    pub supersedes: Option<String>,

    /// Keep `paused` even when the generation that it holds requests on cannot serve, and the cap
    /// even when the old one has no ready worker left. Default false. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub strict: Option<bool>,

    /// How long workers must have been ready before the split moves towards them, in seconds.
    /// Default 5. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400), extend("default" = 5))]
    pub stable_seconds: Option<u32>,

    /// How long the controller waits for all proxies to have applied one change of the split
    /// before it makes the next, in seconds. Default 30. Cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400), extend("default" = 30))]
    pub ack_timeout_seconds: Option<u32>,

    /// The old generation drains: while the new one has all requests, the old one is no longer a
    /// fallback for those that the new one fails. Default false.
    #[serde(default)]
    pub old_draining: bool,

    /// What keeps the requests of one session on one generation.
    #[serde(default)]
    pub affinity: AffinitySpec,

    /// What is done for a request whose generation fails it.
    #[serde(default)]
    pub failover: FailoverSpec,

    /// How the old generation is emptied of the streams that still run on it.
    #[serde(default)]
    pub drain: DrainSpec,

    /// Ask the frontends regularly whether they can serve. Off unless given; `{}` takes the
    /// defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeSpec>,

    /// How much worse than the old generation the new one may be; `{}` takes the defaults. See
    /// `crossfade judge`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<AnalysisSpec>,

    /// TLS to the new generation, for `https://` only. By default the certificate authorities of
    /// the system are trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,
}

impl DynamoUpdateConfigSpec {
    /// An update to the frontends at `new_frontend_service`, all else left at its default. The
    /// split has no default and must be set.
    #[must_use]
    pub fn to(new_frontend_service: impl Into<String>) -> Self {
        Self {
            new_frontend_service: new_frontend_service.into(),
            ..Self::default()
        }
    }

    /// Whether it says what the split is.
    #[must_use]
    pub fn gives_split(&self) -> bool {
        self.traffic_split_percent.is_some() || self.weights.is_some()
    }

    /// The fields that are given but only mean something in a cluster, in the order of this type.
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
            ("strict", self.strict.is_some()),
            ("stableSeconds", self.stable_seconds.is_some()),
            ("ackTimeoutSeconds", self.ack_timeout_seconds.is_some()),
        ]
        .into_iter()
        .filter_map(|(field, given)| given.then_some(field))
        .collect()
    }
}
