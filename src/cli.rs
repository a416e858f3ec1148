//! The command line: its arguments and what they mean together.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand};
use http::HeaderName;

use crate::config::{Config, PlanSource};
use crate::proxy::{Limits, ProxySettings, Routes};
use crate::resource::{DynamoUpdateConfigSpec, Target};
use crate::tls::{ClientFiles, ServerFiles};
use crate::upstream::{Protocol, Settings};

/// Fades live LLM traffic from an old generation of frontends to a new one without losing a stream.
#[derive(Debug, Parser)]
#[command(name = "crossfade", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Split requests between an old and a new generation of frontends
    Proxy(Box<ProxyArgs>),
    /// Judge plan files without running them: every problem, with its field and line
    Check(CheckArgs),
    /// Show the main job on this machine: two model servers, the real proxy, a load, a fade from 0 to 100 %
    Demo(DemoArgs),
    /// Tell the proxy on this machine to drain, as SIGTERM does, but to stay until it gets that signal: a preStop hook
    Drain(DrainArgs),
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Plan files: `DynamoUpdateConfig` manifests
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Length of the demo in seconds
    #[arg(long, env = "CROSSFADE_SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=3600))]
    pub seconds: u64,
    /// Concurrent streams of the load
    #[arg(long, env = "CROSSFADE_STREAMS", default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub streams: u16,
    /// Print plain lines, as without a terminal
    #[arg(long, env = "CROSSFADE_PLAIN", value_parser = BoolishValueParser::new())]
    pub plain: bool,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// The admin port of the proxy
    #[arg(long, env = "CROSSFADE_ADMIN", default_value = "127.0.0.1:9464", value_name = "ADDR", value_parser = address)]
    pub admin: SocketAddr,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Traffic")]
pub struct ProxyArgs {
    /// Where clients connect
    #[arg(long, env = "CROSSFADE_LISTEN", default_value = "0.0.0.0:8000", value_name = "ADDR", value_parser = address)]
    listen: SocketAddr,
    /// Where metrics, health and the plan in force are shown; nothing there changes the split
    #[arg(long, env = "CROSSFADE_ADMIN", default_value = "127.0.0.1:9464", value_name = "ADDR", value_parser = address)]
    admin: SocketAddr,
    /// The old generation: host:port, http://… or https://…; repeat it or separate by commas
    #[arg(
        long,
        env = "CROSSFADE_OLD",
        required = true,
        value_name = "URL",
        value_delimiter = ','
    )]
    old: Vec<Target>,
    /// The new generation, likewise
    #[arg(
        long,
        env = "CROSSFADE_NEW",
        value_name = "URL",
        value_delimiter = ',',
        conflicts_with = "plan"
    )]
    new: Vec<Target>,
    /// Share of requests that goes to new, in percent: 0 is none, 100 is all [default: 0]
    #[arg(long, env = "CROSSFADE_SPLIT", value_name = "PERCENT", requires = "new", conflicts_with = "plan",
          value_parser = clap::value_parser!(u8).range(0..=100))]
    split: Option<u8>,
    /// Take new, the split and all below from this DynamoUpdateConfig manifest, and watch it
    #[arg(long, env = "CROSSFADE_PLAN", value_name = "FILE")]
    plan: Option<PathBuf>,
    /// The Service of the sibling pods: a second refuge when the frontend of one's own pod cannot serve
    #[arg(
        long,
        env = "CROSSFADE_OLD_PEERS",
        value_name = "URL",
        value_delimiter = ','
    )]
    old_peers: Vec<Target>,
    /// Keep the last good plan here over a restart
    #[arg(long, env = "CROSSFADE_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Threads, each with its own listener and connections [default: one per core]
    #[arg(long, env = "CROSSFADE_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    threads: Option<u16>,
    /// What is posted below these paths is split
    #[arg(long, env = "CROSSFADE_INFERENCE_PREFIX", value_name = "PATH", value_delimiter = ',',
          default_values = ["/v1/", "/generate", "/inference/"], value_parser = path_prefix)]
    inference_prefix: Vec<String>,
    /// A header that chooses the generation (old or new) of one request [default: off]
    #[arg(long, env = "CROSSFADE_OVERRIDE_HEADER", value_name = "NAME")]
    override_header: Option<HeaderName>,
    /// A secret that the proxies of an update share, so that no client can forge the guard header
    #[arg(
        long,
        env = "CROSSFADE_GUARD_KEY",
        value_name = "TEXT",
        hide_env_values = true,
        default_value = ""
    )]
    guard_key: String,

    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    upstream: UpstreamArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    life: LifeArgs,
}

/// What a plan file says under `affinity` and `failover`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Affinity and failover (a plan file says these itself)")]
struct PolicyArgs {
    /// Headers that name a session, the first present counts [default: the plan's default list]
    #[arg(
        long,
        env = "CROSSFADE_AFFINITY_HEADER",
        value_name = "NAME",
        value_delimiter = ',',
        conflicts_with = "plan"
    )]
    affinity_header: Option<Vec<String>>,
    /// Fields of the JSON body that name a session, looked at after the headers
    #[arg(
        long,
        env = "CROSSFADE_AFFINITY_BODY_FIELD",
        value_name = "NAME",
        value_delimiter = ',',
        conflicts_with = "plan"
    )]
    affinity_body_field: Vec<String>,
    /// Largest request body that is kept for another attempt, in bytes [default: 8388608]
    #[arg(
        long,
        env = "CROSSFADE_MAX_REPLAY_BYTES",
        value_name = "N",
        conflicts_with = "plan"
    )]
    max_replay_bytes: Option<u64>,
    /// Other attempts allowed, in percent of all requests [default: 20]
    #[arg(
        long,
        env = "CROSSFADE_RETRY_BUDGET_PERCENT",
        value_name = "N",
        conflicts_with = "plan"
    )]
    retry_budget_percent: Option<u8>,
    /// Limit for the first event with content [default: off]
    #[arg(
        long,
        env = "CROSSFADE_FIRST_EVENT_TIMEOUT",
        value_name = "SECONDS",
        conflicts_with = "plan"
    )]
    first_event_timeout: Option<f64>,
    /// Limit for silence after the first content [default: off]
    #[arg(
        long,
        env = "CROSSFADE_GAP_TIMEOUT",
        value_name = "SECONDS",
        conflicts_with = "plan"
    )]
    gap_timeout: Option<f64>,
    /// How long events without content are held, so that the request can still be saved [default: 5]
    #[arg(
        long,
        env = "CROSSFADE_HOLD",
        value_name = "SECONDS",
        conflicts_with = "plan"
    )]
    hold: Option<f64>,
    /// Also try a 529 on the other generation
    #[arg(long, env = "CROSSFADE_RETRY_OVERLOADED", conflicts_with = "plan", value_parser = BoolishValueParser::new())]
    retry_overloaded: bool,
    /// Also try a 500 of old on new
    #[arg(long, env = "CROSSFADE_RETRY_OLD_SERVER_ERRORS", conflicts_with = "plan", value_parser = BoolishValueParser::new())]
    retry_old_server_errors: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Largest request head, in bytes; beyond it 431
    #[arg(long, env = "CROSSFADE_MAX_HEADER_BYTES", value_name = "N", default_value_t = 65_536,
          value_parser = clap::value_parser!(u32).range(256..=1_048_576))]
    max_header_bytes: u32,
    /// Largest request body, in bytes; beyond it 413
    #[arg(
        long,
        env = "CROSSFADE_MAX_BODY_BYTES",
        value_name = "N",
        default_value_t = 268_435_456
    )]
    max_body_bytes: u64,
    /// Most requests that are open at once; beyond it 503 with Retry-After
    #[arg(
        long,
        env = "CROSSFADE_MAX_REQUESTS",
        value_name = "N",
        default_value_t = 100_000
    )]
    max_requests: usize,
    /// Bytes that all request bodies kept for another attempt may take
    #[arg(
        long,
        env = "CROSSFADE_REPLAY_BUDGET_BYTES",
        value_name = "N",
        default_value_t = 268_435_456
    )]
    replay_budget_bytes: usize,
    /// Time that a request head may take
    #[arg(long, env = "CROSSFADE_HEAD_TIMEOUT", value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    head_timeout: Duration,
    /// Time that a client's connection may rest between two requests
    #[arg(long, env = "CROSSFADE_IDLE_TIMEOUT", value_name = "SECONDS", default_value = "90", value_parser = seconds)]
    idle_timeout: Duration,
    /// Send a client that hears nothing for so long an SSE comment, between events [default: off]
    #[arg(long, env = "CROSSFADE_KEEP_ALIVE_COMMENTS", value_name = "SECONDS", value_parser = seconds)]
    keep_alive_comments: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Model servers")]
struct UpstreamArgs {
    /// Time that a connection may take
    #[arg(long, env = "CROSSFADE_CONNECT_TIMEOUT", value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    connect_timeout: Duration,
    /// Time that a response head may take [default: off]
    #[arg(long, env = "CROSSFADE_UPSTREAM_HEAD_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    upstream_head_timeout: Option<Duration>,
    /// HTTP towards model servers; auto is HTTP/1.1, or what ALPN chooses with TLS
    #[arg(
        long,
        env = "CROSSFADE_UPSTREAM_PROTOCOL",
        value_name = "PROTOCOL",
        default_value = "auto"
    )]
    upstream_protocol: Protocol,
    /// Authorities to trust instead of the system's (PEM); read again when the file changes
    #[arg(long, env = "CROSSFADE_UPSTREAM_CA", value_name = "FILE")]
    upstream_ca: Option<PathBuf>,
    /// Certificate to show to model servers (PEM)
    #[arg(
        long,
        env = "CROSSFADE_UPSTREAM_CERT",
        value_name = "FILE",
        requires = "upstream_key"
    )]
    upstream_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(
        long,
        env = "CROSSFADE_UPSTREAM_KEY",
        value_name = "FILE",
        requires = "upstream_cert"
    )]
    upstream_key: Option<PathBuf>,
    /// Ask each endpoint this often whether /v1/models lists a model [default: off]
    #[arg(long, env = "CROSSFADE_PROBE_INTERVAL", value_name = "SECONDS", value_parser = seconds)]
    probe_interval: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "TLS towards clients")]
struct TlsArgs {
    /// Certificate to show to clients (PEM); read again when the file changes
    #[arg(
        long,
        env = "CROSSFADE_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key"
    )]
    tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(
        long,
        env = "CROSSFADE_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,
    /// Authorities that clients must be signed by (PEM)
    #[arg(
        long,
        env = "CROSSFADE_TLS_CLIENT_CA",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_client_ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Life and logs")]
struct LifeArgs {
    /// After SIGTERM: how long it still takes requests, not ready, until the word is out
    #[arg(long, env = "CROSSFADE_SETTLE", value_name = "SECONDS", default_value = "5", value_parser = seconds_or_none)]
    settle: Duration,
    /// After that: how long open streams may still run, before they are ended with an error event
    #[arg(long, env = "CROSSFADE_DRAIN", value_name = "SECONDS", default_value = "3600", value_parser = seconds_or_none)]
    drain: Duration,
    /// error, warn, info, debug, trace, or target=level,…
    #[arg(
        long,
        env = "CROSSFADE_LOG",
        value_name = "LEVEL",
        default_value = "info"
    )]
    log: String,
    /// How logs are written
    #[arg(
        long,
        env = "CROSSFADE_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    log_format: LogFormat,
    /// Write no access lines
    #[arg(long, env = "CROSSFADE_NO_ACCESS_LOG", value_parser = BoolishValueParser::new())]
    no_access_log: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

impl ProxyArgs {
    /// How logs are wanted: level, format, access lines.
    #[must_use]
    pub fn log(&self) -> (&str, LogFormat, bool) {
        (
            &self.life.log,
            self.life.log_format,
            !self.life.no_access_log,
        )
    }

    /// The settings of the process.
    #[must_use]
    pub fn config(self) -> Config {
        let plan = self.plan_source();
        let threads = self.threads.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            usize::from,
        );
        let UpstreamArgs {
            connect_timeout,
            upstream_head_timeout,
            upstream_protocol,
            upstream_ca,
            upstream_cert,
            upstream_key,
            probe_interval,
        } = self.upstream;
        Config {
            listen: self.listen,
            admin: self.admin,
            old: self.old,
            peers: self.old_peers,
            plan,
            state_dir: self.state_dir,
            threads,
            proxy: ProxySettings {
                routes: Routes::new(self.inference_prefix),
                override_header: self.override_header,
                max_requests: self.limits.max_requests,
                max_body: self.limits.max_body_bytes,
                replay_budget: self.limits.replay_budget_bytes,
                comments: self.limits.keep_alive_comments,
            },
            limits: Limits {
                max_head: self.limits.max_header_bytes as usize,
                head_timeout: self.limits.head_timeout,
                idle_timeout: self.limits.idle_timeout,
            },
            upstream: Settings {
                protocol: upstream_protocol,
                connect_timeout,
                head_timeout: upstream_head_timeout,
            },
            upstream_tls: ClientFiles {
                ca: upstream_ca,
                identity: upstream_cert.zip(upstream_key),
            },
            tls: self
                .tls
                .tls_cert
                .zip(self.tls.tls_key)
                .map(|(certificate, key)| ServerFiles {
                    certificate,
                    key,
                    client_ca: self.tls.tls_client_ca,
                }),
            probe_interval,
            guard_key: self.guard_key.into_bytes(),
            settle: self.life.settle,
            drain: self.life.drain,
            signals: true,
        }
    }

    /// Flags are made into the resource that a file would hold, so that both are judged alike.
    fn plan_source(&self) -> PlanSource {
        if let Some(path) = &self.plan {
            return PlanSource::File(path.clone());
        }
        let targets: Vec<String> = self.new.iter().map(Target::to_string).collect();
        let mut spec = DynamoUpdateConfigSpec::to(targets.join(","));
        spec.traffic_split_percent = Some(self.split.unwrap_or(0));
        let policy = &self.policy;
        if let Some(headers) = &policy.affinity_header {
            spec.affinity.headers.clone_from(headers);
        }
        spec.affinity
            .body_fields
            .clone_from(&policy.affinity_body_field);
        let failover = &mut spec.failover;
        if let Some(bytes) = policy.max_replay_bytes {
            failover.max_replay_bytes = bytes;
        }
        if let Some(percent) = policy.retry_budget_percent {
            failover.retry_budget_percent = percent;
        }
        if let Some(hold) = policy.hold {
            failover.hold_seconds = hold;
        }
        failover.first_event_timeout_seconds = policy.first_event_timeout;
        failover.gap_timeout_seconds = policy.gap_timeout;
        failover.retry_overloaded = policy.retry_overloaded;
        failover.retry_old_server_errors = policy.retry_old_server_errors;
        if self.new.is_empty() {
            return PlanSource::OnlyOld(Box::new(spec));
        }
        PlanSource::Flags(Box::new(spec))
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let hint = "give IP:PORT, [IPv6]:PORT, HOST:PORT or :PORT";
    let text = match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => text.to_owned(),
    };
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| format!("{error}; {hint}"))?;
    found.next().ok_or_else(|| hint.to_owned())
}

fn path_prefix(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err("a path begins with '/'".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match seconds_or_none(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        duration => Ok(duration),
    }
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| "is no number of seconds".to_owned())?;
    if !(0.0..=86_400.0 * 30.0).contains(&number) {
        return Err("must be from 0 to 2592000 seconds".to_owned());
    }
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_flag_of_the_proxy_has_a_variable() {
        let command = Cli::command();
        command.clone().debug_assert();
        for sub in command
            .get_subcommands()
            .filter(|sub| sub.get_name() != "check")
        {
            for argument in sub
                .get_arguments()
                .filter(|argument| argument.get_id() != "help")
            {
                let name = argument.get_long().expect("has a long name");
                let expected = format!("CROSSFADE_{}", name.to_uppercase().replace('-', "_"));
                assert_eq!(
                    argument.get_env().and_then(|env| env.to_str()),
                    Some(&*expected)
                );
                assert!(argument.get_help().is_some(), "{name}");
            }
        }
    }
}
