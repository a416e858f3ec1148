//! The arguments of `crossfade controller`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};

use super::LogFormat;
use super::parse::{address, count, domain, host_name, kubernetes_name, lease, seconds_or_none};
use crate::app::controller::{ControllerConfig, Namespaces};
use crate::controller::{ControllerOptions, ProxyPods, UpdateLimits};
use crate::pages::Hosts;
use crate::telemetry::log::Level;

#[derive(Debug, Args)]
pub struct ControllerArgs {
    /// The namespace whose updates are managed [default: $POD_NAMESPACE, or that of the pod or kubeconfig]
    #[arg(
        long,
        env = "CROSSFADE_NAMESPACE",
        value_name = "NAME",
        value_parser = kubernetes_name,
        conflicts_with = "all_namespaces"
    )]
    namespace: Option<String>,
    /// Manage the updates of all namespaces
    #[arg(long, env = "CROSSFADE_ALL_NAMESPACES", value_parser = BoolishValueParser::new())]
    all_namespaces: bool,
    /// Print the actions instead of writing anything
    #[arg(long, env = "CROSSFADE_DRY_RUN", value_parser = BoolishValueParser::new())]
    dry_run: bool,
    /// Carry out every DynamoRollout, which scales workers; needs the permissions from deploy/rollout in each namespace
    #[arg(long, env = "CROSSFADE_ROLLOUTS", value_parser = BoolishValueParser::new())]
    rollouts: bool,
    /// Address for metrics, health checks, and the live page of all proxies
    #[arg(long, env = "CROSSFADE_ADMIN", default_value = "127.0.0.1:9465", value_name = "ADDR", value_parser = address)]
    admin: SocketAddr,
    /// Name of the Lease for leader election between replicas
    #[arg(
        long,
        env = "CROSSFADE_LEASE_NAME",
        default_value = "crossfade-controller",
        value_name = "NAME",
        value_parser = kubernetes_name
    )]
    lease_name: String,
    /// Namespace of the Lease [default: that of --namespace]
    #[arg(long, env = "CROSSFADE_LEASE_NAMESPACE", value_name = "NAME", value_parser = kubernetes_name)]
    lease_namespace: Option<String>,
    /// Time after which another replica takes over from a dead leader
    #[arg(long, env = "CROSSFADE_LEASE_SECONDS", default_value_t = 15, value_name = "DURATION", value_parser = lease)]
    lease_seconds: u64,
    /// Label selector of the pods with an update's proxies, where `{source}` stands for its sourceDeployment [default: the
    /// frontends of that graph, and the pods of that Deployment]
    #[arg(long, env = "CROSSFADE_PROXY_SELECTOR", value_name = "NAME=VALUE", value_delimiter = ',', value_parser = pair)]
    proxy_selector: Vec<(String, String)>,
    /// Name of the proxies' admin port in their pods
    #[arg(
        long,
        env = "CROSSFADE_PROXY_PORT",
        default_value = "crossfade",
        value_name = "NAME",
        value_parser = NonEmptyStringValueParser::new()
    )]
    proxy_port: String,
    /// Name of the old frontends' own port in their pods, for requests to /v1/models
    #[arg(
        long,
        env = "CROSSFADE_FRONTEND_PORT",
        default_value = "frontend",
        value_name = "NAME",
        value_parser = NonEmptyStringValueParser::new()
    )]
    frontend_port: String,
    /// Additional host name that the admin port accepts, besides IP addresses, localhost, and cluster-local names
    #[arg(long, env = "CROSSFADE_ADMIN_HOST", value_name = "NAME", value_delimiter = ',', value_parser = host_name)]
    admin_host: Vec<String>,
    /// Allow updates to name any target, not only Services of their namespace
    #[arg(long, env = "CROSSFADE_ALLOW_ANY_TARGET", value_parser = BoolishValueParser::new())]
    allow_any_target: bool,
    /// Assume that nothing in another namespace routes to frontends of --namespace: no route, no Service, and no update. Without
    /// it, a controller of one namespace reports that old can be deleted only if it may read all namespaces
    #[arg(long, env = "CROSSFADE_ASSUME_ISOLATED_NAMESPACE", conflicts_with = "all_namespaces", value_parser = BoolishValueParser::new())]
    assume_isolated_namespace: bool,
    /// Time without client requests to old's frontends before old can be deleted
    #[arg(long, env = "CROSSFADE_QUIET_PERIOD", default_value = "10", value_name = "DURATION", value_parser = seconds_or_none)]
    quiet_period: Duration,
    /// Maximum number of updates, and likewise of rollouts, to follow in one namespace; the oldest take precedence
    #[arg(long, env = "CROSSFADE_MAX_UPDATES_PER_NAMESPACE", default_value_t = 500, value_name = "COUNT", value_parser = count)]
    max_updates_per_namespace: usize,
    /// Maximum number of updates, and likewise of rollouts, to follow in all namespaces together; the oldest take precedence
    #[arg(long, env = "CROSSFADE_MAX_UPDATES", default_value_t = 2000, value_name = "COUNT", value_parser = count)]
    max_updates: usize,
    /// The cluster domain
    #[arg(long, env = "CROSSFADE_CLUSTER_DOMAIN", value_name = "DOMAIN", default_value = "cluster.local", value_parser = domain)]
    cluster_domain: String,
    /// Address to use for a target instead of resolving it, for a controller outside the cluster
    #[arg(long, env = "CROSSFADE_RESOLVE", value_name = "HOST:PORT=ADDR", value_delimiter = ',', value_parser = resolved)]
    resolve: Vec<(String, SocketAddr)>,
    /// off, error, warn, info, debug, trace, or target=level,…
    #[arg(
        long,
        env = "CROSSFADE_LOG",
        value_name = "LEVEL",
        default_value = "info"
    )]
    log: Level,
    /// Log format
    #[arg(
        long,
        env = "CROSSFADE_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    log_format: LogFormat,
}

impl ControllerArgs {
    /// Level and format of the logs.
    #[must_use]
    pub fn log(&self) -> (&Level, LogFormat) {
        (&self.log, self.log_format)
    }

    /// The configuration of the process.
    #[must_use]
    pub fn config(self) -> ControllerConfig {
        let of_pod = || std::env::var("POD_NAMESPACE").ok();
        let namespace = self
            .namespace
            .or_else(of_pod)
            .filter(|name| !name.is_empty());
        ControllerConfig {
            namespaces: match self.all_namespaces {
                true => Namespaces::All,
                false => Namespaces::One,
            },
            namespace,
            lease_namespace: self.lease_namespace,
            admin: self.admin,
            admin_hosts: Hosts::new(&self.cluster_domain, self.admin_host),
            options: ControllerOptions {
                dry_run: self.dry_run,
                rollouts: self.rollouts,
                lease: self.lease_name,
                lease_length: Duration::from_secs(self.lease_seconds),
                proxies: ProxyPods {
                    selector: self.proxy_selector.into_iter().collect::<BTreeMap<_, _>>(),
                    port: self.proxy_port,
                },
                frontend_port: self.frontend_port,
                domain: self.cluster_domain,
                allow_any_target: self.allow_any_target,
                assume_isolated: self.assume_isolated_namespace,
                quiet_period: self.quiet_period,
                update_limits: UpdateLimits {
                    per_namespace: self.max_updates_per_namespace,
                    total: self.max_updates,
                },
                resolve: self.resolve.into_iter().collect(),
            },
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a label must be NAME=VALUE".to_owned()),
    }
}

fn resolved(text: &str) -> Result<(String, SocketAddr), String> {
    let hint = "use HOST:PORT=IP:PORT";
    let (name, address) = text.split_once('=').ok_or(hint)?;
    match name.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => {}
        _ => return Err(hint.to_owned()),
    }
    let address = address.parse().map_err(|_| hint.to_owned())?;
    Ok((name.to_owned(), address))
}
