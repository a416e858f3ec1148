//! The arguments of `crossfade proxy`.

mod continuation;
mod sections;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use http::HeaderName;

pub use self::sections::LogFormat;
use self::sections::{
    ClusterArgs, LifeArgs, LimitArgs, PolicyArgs, TlsArgs, TraceArgs, UpstreamArgs,
};
use super::parse::{
    address, host_name, override_header, path_prefix, proxy_percent, repeated, secret, whole,
};
use crate::config::{Config, PlanSource};
use crate::downstream::Limits;
use crate::pages::Hosts;
use crate::proxy::{ProxySettings, Routes};
use crate::resource::{DynamoUpdateConfigSpec, TargetAddress};
use crate::telemetry::log::Level;
use crate::telemetry::{access, trace};
use crate::tls::{ClientFiles, ServerFiles};
use crate::upstream::{LifetimeLimits, PoolSettings};

/// Maximum number of affinity headers or fields, as in a plan file.
const MAX_AFFINITY_NAMES: usize = 32;

#[derive(Debug, Args)]
#[command(next_help_heading = "Traffic")]
pub struct ProxyArgs {
    /// Address for clients
    #[arg(long, env = "CROSSFADE_LISTEN", default_value = "0.0.0.0:8000", value_name = "ADDR", value_parser = address)]
    listen: SocketAddr,
    /// Address for metrics, health checks, and the plan in force; it cannot change the split
    #[arg(long, env = "CROSSFADE_ADMIN", default_value = "127.0.0.1:9464", value_name = "ADDR", value_parser = address)]
    admin: SocketAddr,
    /// Additional host name that the admin port accepts, besides IP addresses, localhost, and cluster-local names
    #[arg(long, env = "CROSSFADE_ADMIN_HOST", value_name = "NAME", value_delimiter = ',', value_parser = host_name)]
    admin_host: Vec<String>,
    /// The old generation: host:port, http://…, or https://…; repeat the flag or separate values with commas
    #[arg(
        long,
        env = "CROSSFADE_OLD",
        required = true,
        value_name = "URL",
        value_delimiter = ','
    )]
    old: Vec<TargetAddress>,
    /// The new generation, in the same form
    #[arg(
        long,
        env = "CROSSFADE_NEW",
        value_name = "URL",
        value_delimiter = ',',
        conflicts_with_all = ["plan", "kube"]
    )]
    new: Vec<TargetAddress>,
    /// Percentage of requests that go to new [default: 0]
    #[arg(long, env = "CROSSFADE_SPLIT", value_name = "PERCENT", requires = "new", conflicts_with_all = ["plan", "kube"],
          value_parser = proxy_percent)]
    split: Option<u8>,
    /// Read the new generation, the split, affinity, failover, and continuation from this DynamoUpdateConfig manifest, and watch
    /// it
    #[arg(
        long,
        env = "CROSSFADE_PLAN",
        value_name = "FILE",
        conflicts_with = "kube"
    )]
    plan: Option<PathBuf>,
    /// Service of the other frontends of old: the last fallback if this pod's frontend fails
    #[arg(
        long,
        env = "CROSSFADE_OLD_PEERS",
        value_name = "URL",
        value_delimiter = ','
    )]
    old_peers: Vec<TargetAddress>,
    /// Directory that keeps the last good plan, and whether new was rolled back, across restarts
    #[arg(long, env = "CROSSFADE_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Number of threads, each with its own listener and connections [default: one per core]
    #[arg(long, env = "CROSSFADE_THREADS", value_name = "N", value_parser = whole::<u16>(1..=512))]
    threads: Option<u16>,
    /// Path prefixes of requests that are split, if their method is POST
    #[arg(long, env = "CROSSFADE_INFERENCE_PREFIX", value_name = "PATH", value_delimiter = ',',
          default_values = ["/v1/", "/generate", "/inference/"], value_parser = path_prefix)]
    inference_prefix: Vec<String>,
    /// Header that selects the generation (old or new) of one request [default: off]
    #[arg(long, env = "CROSSFADE_OVERRIDE_HEADER", value_name = "NAME", value_parser = override_header)]
    override_header: Option<HeaderName>,
    /// Secret shared by the proxies of an update, so that clients cannot forge the guard header
    #[arg(
        long,
        env = "CROSSFADE_GUARD_KEY",
        value_name = "TEXT",
        hide_env_values = true,
        value_parser = secret
    )]
    guard_key: Option<String>,

    #[command(flatten)]
    kube: ClusterArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    upstream: UpstreamArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    traces: TraceArgs,
    #[command(flatten)]
    life: LifeArgs,
}

impl ProxyArgs {
    /// Checks combinations of flags.
    ///
    /// # Errors
    /// A message that names the flag.
    pub(super) fn check(&self) -> Result<(), String> {
        let headers = self.policy.affinity_header.as_deref().unwrap_or_default();
        let fields = &self.policy.affinity_body_field;
        let twice = |flag: &str, name: &str| Err(format!("{flag} names '{name}' twice"));
        if let Some(name) = repeated(headers) {
            return twice("--affinity-header", name.as_str());
        }
        if let Some(name) = repeated(fields) {
            return twice("--affinity-body-field", name);
        }
        for (flag, count) in [
            ("--affinity-header", headers.len()),
            ("--affinity-body-field", fields.len()),
        ] {
            if count > MAX_AFFINITY_NAMES {
                return Err(format!("{flag} takes at most {MAX_AFFINITY_NAMES} names"));
            }
        }
        let continuation = &self.policy.continuation;
        if continuation.move_after.is_some() && !continuation.may_move() {
            return Err("--move-after needs --continuation any-generation".to_owned());
        }
        Ok(())
    }

    /// Level and format of the logs.
    #[must_use]
    pub fn log(&self) -> (&Level, LogFormat) {
        (&self.life.log, self.life.log_format)
    }

    /// What access lines contain.
    #[must_use]
    pub fn access(&self) -> access::AccessLogSettings {
        access::AccessLogSettings {
            form: match (self.life.no_access_log, self.life.log_format) {
                (true, _) => access::AccessFormat::Off,
                (false, LogFormat::Text) => access::AccessFormat::Text,
                (false, LogFormat::Json) => access::AccessFormat::Json,
            },
            client: !self.life.no_client_address,
        }
    }

    /// The settings of the process.
    ///
    /// # Errors
    /// When an OpenTelemetry variable has an unsupported value.
    pub fn config(self) -> Result<Config, trace::Error> {
        let variable = |name: &str| std::env::var(name).ok();
        let traces = trace::TraceSettings::read(self.traces.otlp_endpoint.clone(), variable)?;
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
            upstream_max_age,
            upstream_max_exchanges,
            probe_interval,
        } = self.upstream;
        Ok(Config {
            listen: self.listen,
            admin: self.admin,
            admin_hosts: Hosts::new(self.kube.domain(), self.admin_host),
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
                body_timeout: self.limits.body_timeout,
                comments: self.limits.keep_alive_comments,
            },
            limits: Limits {
                max_head: self.limits.max_header_bytes as usize,
                head_timeout: self.limits.head_timeout,
                idle_timeout: self.limits.idle_timeout,
                write_timeout: self.limits.write_timeout,
                tunnel_idle_timeout: self.limits.tunnel_idle_timeout,
                max_connections: self.limits.max_connections,
            },
            upstream: PoolSettings {
                protocol: upstream_protocol,
                connect_timeout,
                head_timeout: upstream_head_timeout,
                lifetime: LifetimeLimits {
                    age: Some(upstream_max_age).filter(|age| !age.is_zero()),
                    exchanges: Some(upstream_max_exchanges).filter(|most| *most > 0),
                },
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
            traces,
            guard_key: self.guard_key.unwrap_or_default().into_bytes(),
            settle: self.life.settle,
            drain: self.life.drain,
            signals: true,
        })
    }

    /// Builds the resource that a plan file would contain, so that both are validated alike.
    fn plan_source(&self) -> PlanSource {
        if let Some(path) = &self.plan {
            return PlanSource::File(path.clone());
        }
        if self.kube.kube {
            return PlanSource::Cluster(self.kube.source());
        }
        let targets: Vec<String> = self.new.iter().map(TargetAddress::to_string).collect();
        let mut spec = DynamoUpdateConfigSpec::to(targets.join(","));
        spec.traffic_split_percent = Some(self.split.unwrap_or(0));
        let policy = &self.policy;
        if let Some(headers) = &policy.affinity_header {
            spec.affinity.headers = headers.iter().map(HeaderName::to_string).collect();
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
        policy.continuation.apply(&mut spec);
        if self.new.is_empty() {
            return PlanSource::OnlyOld(Box::new(spec));
        }
        PlanSource::Flags(Box::new(spec))
    }
}
