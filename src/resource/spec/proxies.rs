//! What the proxies do under an update beside the split: sessions, requests that fail, probes, TLS.
//!
//! The controller reads none of it but for the TLS, by which it asks the new frontends, too.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ContinuationSpec;
use crate::resource::rules;

/// Request headers that name a session, the first one present counts.
pub const DEFAULT_AFFINITY_HEADERS: [&str; 5] = [
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "thread-id",
    "session-id",
    "x-session-id",
];

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
    /// What happens to a stream that breaks after its first content.
    pub continuation: ContinuationSpec,
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
            continuation: ContinuationSpec::default(),
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
