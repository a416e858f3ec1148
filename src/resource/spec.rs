//! The `DynamoUpdateConfig` as people write it: its fields, their defaults and bounds.
//!
//! The doc comments are what `kubectl explain` prints and the attributes are what the API server
//! and the reader of files enforce, so they are written for the person who writes the manifest.
//! Must not know files, lines, clusters, nor what a plan makes of the fields.
//!
//! Beware: no `deny_unknown_fields` here. An unknown field is refused where a person can be told
//! (the reader of files, the API server); a proxy that meets a resource written for a newer one
//! must still be able to read the rest.

#![allow(
    clippy::duplicated_attributes,
    reason = "clippy takes the columns that `kubectl get` shows for one attribute given again"
)]

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{rules, status::DynamoUpdateConfigStatus};

/// Request headers that name a session, the first one present counts.
pub const DEFAULT_AFFINITY_HEADERS: [&str; 5] = [
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "thread-id",
    "session-id",
    "x-session-id",
];

/// The kinds of objects whose workers can be counted; `Pod` counts pods that carry labels.
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

/// An update that moves the traffic of an old generation of frontends to a new one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "nvidia.com",
    version = "v1alpha1",
    kind = "DynamoUpdateConfig",
    namespaced,
    shortname = "duc",
    status = "DynamoUpdateConfigStatus",
    derive = "PartialEq",
    doc = "An update that moves the traffic of an old generation of frontends to a new one, without losing a stream.",
    printcolumn = r#"{"name": "Split", "type": "integer", "jsonPath": ".spec.trafficSplitPercent", "description": "The share of requests that is to go to the new generation, in percent"}"#,
    printcolumn = r#"{"name": "Weights", "type": "string", "jsonPath": ".spec.weights", "priority": 1, "description": "The split as an exact ratio, where it is given as one"}"#,
    printcolumn = r#"{"name": "Wanted", "type": "integer", "jsonPath": ".status.wanted.percent", "priority": 1, "description": "The share of requests that the controller wants for the new generation now, in percent"}"#,
    printcolumn = r#"{"name": "Observed", "type": "integer", "jsonPath": ".status.observed.percent", "description": "The share of requests that went to the new generation of late, in percent"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase", "description": "Where the update stands"}"#,
    printcolumn = r#"{"name": "Old Ready", "type": "string", "jsonPath": ".status.old.workers", "description": "Ready and wanted workers of the old generation"}"#,
    printcolumn = r#"{"name": "New Ready", "type": "string", "jsonPath": ".status.new.workers", "description": "Ready and wanted workers of the new generation"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[schemars(extend("x-kubernetes-validations" = rules::spec()))]
pub struct DynamoUpdateConfigSpec {
    /// The frontends of the new generation: `host:port`, `http://host[:port]` or
    /// `https://host[:port]`, or several of these separated by commas. Normally a Service.
    #[schemars(length(min = 1, max = 4096), extend("x-kubernetes-validations" = rules::targets()))]
    pub new_frontend_service: String,

    /// The share of requests that goes to the new generation, in percent: 0 is none, 100 is all.
    /// Required unless `weights` is given.
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

    /// The Service that clients connect to. The old frontends may only be deleted when it no
    /// longer selects them. Cluster only.
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
    /// refuge for those that the new one fails. Default false.
    #[serde(default)]
    pub old_draining: bool,

    /// What keeps the requests of one session on one generation.
    #[serde(default)]
    pub affinity: AffinitySpec,

    /// What is done for a request whose generation fails it.
    #[serde(default)]
    pub failover: FailoverSpec,

    /// Ask the frontends regularly whether they can serve. Off unless given; `{}` takes the
    /// defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeSpec>,

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

    /// The fields that are given but only mean something in a cluster, in the order of this type.
    #[must_use]
    pub fn cluster_only(&self) -> Vec<&'static str> {
        [
            ("paused", self.paused.is_some()),
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

/// The split as an exact ratio, for example `{old: 3, new: 1}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::weights()))]
pub struct WeightsSpec {
    /// The part of the old generation. Not both parts may be 0.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub old: u32,
    /// The part of the new generation. Not both parts may be 0.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub new: u32,
}

/// What keeps the requests of one session on one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AffinitySpec {
    /// Names of request headers that name a session; the first one present counts. A list given
    /// replaces the default, an empty one switches this off.
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)), extend("x-kubernetes-validations" = rules::header_names()))]
    pub headers: Vec<String>,
    /// Top-level text fields of the request's JSON body that name a session, such as
    /// `prompt_cache_key` or `user`; looked at when no header is present. None by default.
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)), extend("x-kubernetes-validations" = rules::no_name_twice()))]
    pub body_fields: Vec<String>,
}

impl Default for AffinitySpec {
    fn default() -> Self {
        Self {
            headers: DEFAULT_AFFINITY_HEADERS.map(str::to_owned).to_vec(),
            body_fields: Vec::new(),
        }
    }
}

/// What is done for a request whose generation fails it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailoverSpec {
    /// Whether a request that fails before its first content is tried on the other generation.
    pub enabled: bool,
    /// The largest request body that is kept for a second try, in bytes. A larger one is passed
    /// on as it comes and its request is not tried again.
    #[schemars(range(min = 0, max = 1_073_741_824))]
    pub max_replay_bytes: u64,
    /// How long the first event with content may take before the request is tried on the other
    /// generation, in seconds; fractions are allowed. No limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001, max = 86_400), extend("x-kubernetes-validations" = rules::more_than_zero()))]
    pub first_event_timeout_seconds: Option<f64>,
    /// How long a stream may be silent after its first event before it is ended with an error, in
    /// seconds; fractions are allowed. No limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001, max = 86_400), extend("x-kubernetes-validations" = rules::more_than_zero()))]
    pub gap_timeout_seconds: Option<f64>,
    /// How many second tries there may be, in percent of all requests, so that a dying generation
    /// does not double the load.
    #[schemars(range(min = 0, max = 100))]
    pub retry_budget_percent: u8,
    /// How long events without content are held back so that the request can still be tried on
    /// the other generation, in seconds; fractions are allowed, 0 holds nothing back.
    #[schemars(range(min = 0, max = 86_400))]
    pub hold_seconds: f64,
    /// Whether a request answered with status 529 (overloaded) is tried on the other generation.
    pub retry_overloaded: bool,
    /// Whether a request that the old generation answered with status 500 is tried on the new one.
    /// Beware: a request that crashes servers then meets both generations.
    pub retry_old_server_errors: bool,
}

impl Default for FailoverSpec {
    fn default() -> Self {
        Self {
            enabled: true,
            max_replay_bytes: 8 * 1024 * 1024,
            first_event_timeout_seconds: None,
            gap_timeout_seconds: None,
            retry_budget_percent: 20,
            hold_seconds: 5.0,
            retry_overloaded: false,
            retry_old_server_errors: false,
        }
    }
}

/// Regular questions to the frontends whether they can serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::probe()))]
pub struct ProbeSpec {
    /// The path that is asked for by GET; any answer of status 200 is good. By default
    /// `/v1/models`, whose list must not be empty. Not beside `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: Option<String>,
    /// The model that must be ready: asks `/v1/models/{model}/ready`. Not beside `path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub model: Option<String>,
    /// The time from one question to the next, in seconds; fractions are allowed.
    #[schemars(range(min = 0.1, max = 86_400), extend("x-kubernetes-validations" = rules::more_than_zero()))]
    pub interval_seconds: f64,
    /// How long an answer may take, in seconds; fractions are allowed.
    #[schemars(range(min = 0.001, max = 86_400), extend("x-kubernetes-validations" = rules::more_than_zero()))]
    pub timeout_seconds: f64,
}

impl Default for ProbeSpec {
    fn default() -> Self {
        Self {
            path: None,
            model: None,
            interval_seconds: 5.0,
            timeout_seconds: 2.0,
        }
    }
}

/// TLS to the new generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::tls()))]
pub struct TlsSpec {
    /// A file of the proxy with the certificate authorities to trust instead of the system's, PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub ca_file: Option<String>,
    /// The name that the server's certificate must carry. By default the host of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub server_name: Option<String>,
    /// A file of the proxy with the certificate it shows to the server, PEM; with `clientKeyFile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub client_cert_file: Option<String>,
    /// A file of the proxy with the key of its certificate, PEM; with `clientCertFile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub client_key_file: Option<String>,
}

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

/// Where the workers of one generation are, and how many make it whole.
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
    /// The revision or worker hash, where the workers of both generations live in one object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub revision: Option<String>,
    /// Labels that the pods of the workers carry.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub selector: BTreeMap<String, String>,
    /// How many ready workers of each role make the generation whole, such as `{prefill: 4}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(
        extend("maxProperties" = 16),
        extend("additionalProperties" = {"type": "integer", "minimum": 0, "maximum": 1_000_000})
    )]
    pub replicas: BTreeMap<String, u32>,
}
