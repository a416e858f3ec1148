//! The arguments of `crossfade proxy` other than addresses and split, grouped as in its help.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;
use http::HeaderName;

use crate::cli::parse::{
    body_field, comment_interval, count, domain, hold, kubernetes_name, limit, object_name,
    probe_interval, seconds, seconds_or_none, size, whole,
};
use crate::config::ClusterSource;
use crate::telemetry::log::Level;
use crate::telemetry::trace::Endpoint;
use crate::upstream::Protocol;

#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// Read the new generation, the split, and the policies from the DynamoUpdateConfig of this pod's deployment, and watch it
    #[arg(long, env = "CROSSFADE_KUBE", requires = "kube_deployment", value_parser = BoolishValueParser::new())]
    pub(super) kube: bool,
    /// The deployment of this pod, as in spec.sourceDeployment; separate several names with commas
    #[arg(
        long,
        env = "CROSSFADE_KUBE_DEPLOYMENT",
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = object_name
    )]
    kube_deployment: Vec<String>,
    /// The namespace of the DynamoUpdateConfig [default: $POD_NAMESPACE, or that of the pod or kubeconfig]
    #[arg(long, env = "CROSSFADE_KUBE_NAMESPACE", value_name = "NAME", value_parser = kubernetes_name)]
    kube_namespace: Option<String>,
    /// Allow the DynamoUpdateConfig to name any target, not only Services of its namespace
    #[arg(long, env = "CROSSFADE_KUBE_ALLOW_ANY_TARGET", value_parser = BoolishValueParser::new())]
    kube_allow_any_target: bool,
    /// Balance requests by load across the addresses behind the target's Service; needs permission to watch EndpointSlices
    #[arg(long, env = "CROSSFADE_KUBE_ENDPOINTS", value_parser = BoolishValueParser::new())]
    kube_endpoints: bool,
    /// The cluster domain
    #[arg(long, env = "CROSSFADE_CLUSTER_DOMAIN", value_name = "DOMAIN", default_value = "cluster.local", value_parser = domain)]
    cluster_domain: String,
}

impl ClusterArgs {
    pub(super) fn domain(&self) -> &str {
        &self.cluster_domain
    }

    pub(super) fn source(&self) -> ClusterSource {
        let of_pod = || std::env::var("POD_NAMESPACE").ok();
        let namespace = self.kube_namespace.clone().or_else(of_pod);
        ClusterSource {
            namespace: namespace.filter(|name| !name.is_empty()),
            deployments: self.kube_deployment.clone(),
            allow_any_target: self.kube_allow_any_target,
            endpoints: self.kube_endpoints,
            domain: self.cluster_domain.clone(),
        }
    }
}

/// Upper bound of `--max-replay-bytes`, as in a plan file.
const MAX_REPLAY_BYTES: u64 = 1 << 30;

/// The fields `affinity` and `failover` of a plan file.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Affinity and failover (not with a plan file or a cluster, which set these)"
)]
pub(super) struct PolicyArgs {
    /// Headers that name a session; the first header that is present is used [default: the plan's default list]
    #[arg(
        long,
        env = "CROSSFADE_AFFINITY_HEADER",
        value_name = "NAME",
        value_delimiter = ',',
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) affinity_header: Option<Vec<HeaderName>>,
    /// Fields of the JSON body that name a session, used if no header does
    #[arg(
        long,
        env = "CROSSFADE_AFFINITY_BODY_FIELD",
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = body_field,
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) affinity_body_field: Vec<String>,
    /// Largest request body that is kept for a retry, in bytes [default: 8388608]
    #[arg(
        long,
        env = "CROSSFADE_MAX_REPLAY_BYTES",
        value_name = "N",
        value_parser = size::<u64>(0..=MAX_REPLAY_BYTES),
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) max_replay_bytes: Option<u64>,
    /// Retry budget, as a percentage of all requests [default: 20]
    #[arg(
        long,
        env = "CROSSFADE_RETRY_BUDGET_PERCENT",
        value_name = "N",
        value_parser = whole::<u8>(0..=100),
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) retry_budget_percent: Option<u8>,
    /// Maximum time until the first event with content [default: off]
    #[arg(
        long,
        env = "CROSSFADE_FIRST_EVENT_TIMEOUT",
        value_name = "DURATION",
        value_parser = limit,
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) first_event_timeout: Option<f64>,
    /// Maximum time without data after the first content; after that, the stream is continued or ended with an error [default:
    /// off]
    #[arg(
        long,
        env = "CROSSFADE_GAP_TIMEOUT",
        value_name = "DURATION",
        value_parser = limit,
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) gap_timeout: Option<f64>,
    /// Time for which events without content are held so that the request can still be retried [default: 5]
    #[arg(
        long,
        env = "CROSSFADE_HOLD",
        value_name = "DURATION",
        value_parser = hold,
        conflicts_with_all = ["plan", "kube"]
    )]
    pub(super) hold: Option<f64>,
    /// Also retry on the other generation after a 529
    #[arg(long, env = "CROSSFADE_RETRY_OVERLOADED", conflicts_with_all = ["plan", "kube"], value_parser = BoolishValueParser::new())]
    pub(super) retry_overloaded: bool,
    /// Also retry on new after a 500 from old
    #[arg(long, env = "CROSSFADE_RETRY_OLD_SERVER_ERRORS", conflicts_with_all = ["plan", "kube"], value_parser = BoolishValueParser::new())]
    pub(super) retry_old_server_errors: bool,
    #[command(flatten)]
    pub(super) continuation: super::continuation::ContinuationArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// Largest request head, in bytes; larger ones get a 431
    #[arg(long, env = "CROSSFADE_MAX_HEADER_BYTES", value_name = "N", default_value_t = 65_536,
          value_parser = size::<u32>(256..=1_048_576))]
    pub(super) max_header_bytes: u32,
    /// Largest request body, in bytes; larger ones get a 413
    #[arg(
        long,
        env = "CROSSFADE_MAX_BODY_BYTES",
        value_name = "N",
        default_value_t = 268_435_456,
        value_parser = size::<u64>(0..=u64::MAX)
    )]
    pub(super) max_body_bytes: u64,
    /// Maximum number of concurrent requests; more get a 503 with Retry-After
    #[arg(
        long,
        env = "CROSSFADE_MAX_REQUESTS",
        value_name = "N",
        default_value_t = 100_000,
        value_parser = count
    )]
    pub(super) max_requests: usize,
    /// Maximum number of client connections; more are closed immediately. The file descriptor limit also applies: a connection
    /// may need two, and some are reserved
    #[arg(long, env = "CROSSFADE_MAX_CONNECTIONS", value_name = "N", default_value_t = 100_000, value_parser = count)]
    pub(super) max_connections: usize,
    /// Memory for all held parts of requests and responses, in bytes
    #[arg(
        long,
        env = "CROSSFADE_REPLAY_BUDGET_BYTES",
        value_name = "N",
        default_value_t = 268_435_456,
        value_parser = size::<usize>(0..=usize::MAX)
    )]
    pub(super) replay_budget_bytes: usize,
    /// Time limit for receiving a request head
    #[arg(long, env = "CROSSFADE_HEAD_TIMEOUT", value_name = "DURATION", default_value = "10", value_parser = seconds)]
    pub(super) head_timeout: Duration,
    /// Maximum time for which a client's connection may be idle between two requests
    #[arg(long, env = "CROSSFADE_IDLE_TIMEOUT", value_name = "DURATION", default_value = "90", value_parser = seconds)]
    pub(super) idle_timeout: Duration,
    /// How long a request body may stall before the client gets a 408; for a body with a Content-Length of up to 64 KiB, the
    /// total time that it may take. For any other body, the stalls in each 64 KiB may add up to ten times as long
    #[arg(long, env = "CROSSFADE_BODY_TIMEOUT", value_name = "DURATION", default_value = "60", value_parser = seconds)]
    pub(super) body_timeout: Duration,
    /// Reset the connection of a client that reads nothing of its response for this long
    #[arg(long, env = "CROSSFADE_WRITE_TIMEOUT", value_name = "DURATION", default_value = "300", value_parser = seconds)]
    pub(super) write_timeout: Duration,
    /// Maximum time without data in either direction after an upgrade (WebSocket)
    #[arg(long, env = "CROSSFADE_TUNNEL_IDLE_TIMEOUT", value_name = "DURATION", default_value = "3600", value_parser = seconds)]
    pub(super) tunnel_idle_timeout: Duration,
    /// Send an SSE comment, between events, to a client that has received nothing for this time [default: off]
    #[arg(long, env = "CROSSFADE_KEEP_ALIVE_COMMENTS", value_name = "DURATION", value_parser = comment_interval)]
    pub(super) keep_alive_comments: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Model servers")]
pub(super) struct UpstreamArgs {
    /// Time limit for opening a connection
    #[arg(long, env = "CROSSFADE_CONNECT_TIMEOUT", value_name = "DURATION", default_value = "2", value_parser = seconds)]
    pub(super) connect_timeout: Duration,
    /// Time limit for a response head [default: off]
    #[arg(long, env = "CROSSFADE_UPSTREAM_HEAD_TIMEOUT", value_name = "DURATION", value_parser = seconds)]
    pub(super) upstream_head_timeout: Option<Duration>,
    /// HTTP version for model servers; auto is HTTP/1.1, or with TLS the one that ALPN selects
    #[arg(
        long,
        env = "CROSSFADE_UPSTREAM_PROTOCOL",
        value_name = "PROTOCOL",
        default_value = "auto"
    )]
    pub(super) upstream_protocol: Protocol,
    /// Certificate authorities to trust instead of the system's (PEM); reloaded when the file changes
    #[arg(long, env = "CROSSFADE_UPSTREAM_CA", value_name = "FILE")]
    pub(super) upstream_ca: Option<PathBuf>,
    /// Client certificate for model servers (PEM)
    #[arg(
        long,
        env = "CROSSFADE_UPSTREAM_CERT",
        value_name = "FILE",
        requires = "upstream_key"
    )]
    pub(super) upstream_cert: Option<PathBuf>,
    /// Key of the client certificate (PEM)
    #[arg(
        long,
        env = "CROSSFADE_UPSTREAM_KEY",
        value_name = "FILE",
        requires = "upstream_cert"
    )]
    pub(super) upstream_key: Option<PathBuf>,
    /// Maximum age of a connection to a host name, which may stand for several servers; 0 means no limit
    #[arg(long, env = "CROSSFADE_UPSTREAM_MAX_AGE", value_name = "DURATION", default_value = "60", value_parser = seconds_or_none)]
    pub(super) upstream_max_age: Duration,
    /// Maximum number of exchanges on such a connection; 0 means no limit
    #[arg(
        long,
        env = "CROSSFADE_UPSTREAM_MAX_EXCHANGES",
        value_name = "N",
        default_value_t = 16,
        value_parser = whole::<u32>(0..=u32::MAX)
    )]
    pub(super) upstream_max_exchanges: u32,
    /// Interval at which each endpoint is probed for a model in /v1/models [default: off]
    #[arg(long, env = "CROSSFADE_PROBE_INTERVAL", value_name = "DURATION", value_parser = probe_interval)]
    pub(super) probe_interval: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "TLS for clients")]
pub(super) struct TlsArgs {
    /// Server certificate for clients (PEM); reloaded when the file changes
    #[arg(
        long,
        env = "CROSSFADE_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key"
    )]
    pub(super) tls_cert: Option<PathBuf>,
    /// Key of the server certificate (PEM)
    #[arg(
        long,
        env = "CROSSFADE_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub(super) tls_key: Option<PathBuf>,
    /// Require client certificates signed by one of these certificate authorities (PEM)
    #[arg(
        long,
        env = "CROSSFADE_TLS_CLIENT_CA",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    pub(super) tls_client_ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Traces")]
pub(super) struct TraceArgs {
    /// Send OpenTelemetry spans of all exchanges to this collector, with OTLP over gRPC, or over HTTP if
    /// OTEL_EXPORTER_OTLP_PROTOCOL is `http/protobuf` [default: off, or $OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, env = "CROSSFADE_OTLP_ENDPOINT", value_name = "URL")]
    pub(super) otlp_endpoint: Option<Endpoint>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Shutdown and logs")]
pub(super) struct LifeArgs {
    /// After SIGTERM: how long requests are still accepted while /readyz fails
    #[arg(long, env = "CROSSFADE_SETTLE", value_name = "DURATION", default_value = "5", value_parser = seconds_or_none)]
    pub(super) settle: Duration,
    /// After SIGTERM and --settle: how long open streams may continue before they end with an error event
    #[arg(long, env = "CROSSFADE_DRAIN", value_name = "DURATION", default_value = "3600", value_parser = seconds_or_none)]
    pub(super) drain: Duration,
    /// off, error, warn, info, debug, trace, or target=level,…
    #[arg(
        long,
        env = "CROSSFADE_LOG",
        value_name = "LEVEL",
        default_value = "info"
    )]
    pub(super) log: Level,
    /// Log format
    #[arg(
        long,
        env = "CROSSFADE_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub(super) log_format: LogFormat,
    /// Write no access lines
    #[arg(long, env = "CROSSFADE_NO_ACCESS_LOG", value_parser = BoolishValueParser::new())]
    pub(super) no_access_log: bool,
    /// Omit the addresses of clients from access lines
    #[arg(long, env = "CROSSFADE_NO_CLIENT_ADDRESS", value_parser = BoolishValueParser::new())]
    pub(super) no_client_address: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}
