//! What the proxies do under an update besides splitting: sessions, failed requests, probes, TLS.
//!
//! The controller reads only the TLS settings, which it also uses for its own requests to the new frontends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ContinuationSpec;
use crate::resource::rules;

/// Request headers that name a session; the first header that is present is used.
pub const DEFAULT_AFFINITY_HEADERS: [&str; 5] = [
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "thread-id",
    "session-id",
    "x-session-id",
];

/// How the requests of a session are kept on one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AffinitySpec {
    /// Names of request headers that name a session; the first header that is present is used. A list replaces the default; with
    /// an empty list, no header names a session.
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)), extend("x-kubernetes-validations" = rules::header_names()))]
    pub headers: Vec<String>,
    /// Top-level text fields of the request's JSON body that name a session, such as `prompt_cache_key` or `user`; used if no
    /// header is present. None by default.
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

/// What happens to a request when its generation fails.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailoverSpec {
    /// Whether a request that fails before its first content is retried on the other generation.
    pub enabled: bool,
    /// The largest request body that is kept for a retry, in bytes. A larger body is streamed, and its request is not retried.
    #[schemars(range(min = 0, max = 1_073_741_824))]
    pub max_replay_bytes: u64,
    /// How long the first event with content may take before the request is retried on the other generation, in seconds;
    /// fractions are allowed. No limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001, max = 86_400), extend("x-kubernetes-validations" = rules::more_than_zero()))]
    pub first_event_timeout_seconds: Option<f64>,
    /// How long a stream may be silent after its first content, in seconds; fractions are allowed. After that, it is continued,
    /// or ended with an error. No limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001, max = 86_400), extend("x-kubernetes-validations" = rules::more_than_zero()))]
    pub gap_timeout_seconds: Option<f64>,
    /// The maximum number of retries, as a percentage of all requests, so that a failing generation does not double the load.
    #[schemars(range(min = 0, max = 100))]
    pub retry_budget_percent: u8,
    /// How long events without content are held back so that the request can still be retried on the other generation, in
    /// seconds; fractions are allowed, and 0 disables holding.
    #[schemars(range(min = 0, max = 86_400))]
    pub hold_seconds: f64,
    /// Whether a request that was answered with status 529 (overloaded) is retried on the other generation.
    pub retry_overloaded: bool,
    /// Whether a request that the old generation answered with status 500 is retried on the new one. Beware: a request that
    /// crashes servers then reaches both generations.
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

/// Regular probes that check whether the frontends can serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::probe()))]
pub struct ProbeSpec {
    /// The path for GET requests; any response with status 200 is a success. By default, `/v1/models`, whose list must not be
    /// empty. Cannot be combined with `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: Option<String>,
    /// The model that must be ready, according to `/v1/models/{model}/ready`. Cannot be combined with `path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub model: Option<String>,
    /// The time from one probe to the next, in seconds; fractions are allowed.
    #[schemars(range(min = 0.1, max = 86_400), extend("x-kubernetes-validations" = rules::more_than_zero()))]
    pub interval_seconds: f64,
    /// How long a response may take, in seconds; fractions are allowed.
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
    /// A PEM file, at this path on the proxies and in the controller's pods, with the certificate authorities to trust instead of
    /// the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub ca_file: Option<String>,
    /// The name that the server's certificate must contain. By default, the host of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub server_name: Option<String>,
    /// A PEM file, at this path on the proxies and in the controller's pods, with the client certificate; requires `clientKeyFile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub client_cert_file: Option<String>,
    /// A PEM file, at this path on the proxies and in the controller's pods, with the key of the client certificate; requires
    /// `clientCertFile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub client_key_file: Option<String>,
}
