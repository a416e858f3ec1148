//! The arguments of `crossfade controller`, and the settings they make together.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::LogFormat;
use super::parse::{address, domain, host_name, lease};
use crate::app::controller::{Config, Where};
use crate::controller::ProxyPods;
use crate::pages::Hosts;
use crate::telemetry::log::Level;

#[derive(Debug, Args)]
pub struct ControllerArgs {
    /// The namespace whose updates it looks after [default: $POD_NAMESPACE, or that of the pod or kubeconfig]
    #[arg(
        long,
        env = "CROSSFADE_NAMESPACE",
        value_name = "NAME",
        conflicts_with = "all_namespaces"
    )]
    namespace: Option<String>,
    /// Look after the updates of all namespaces
    #[arg(long, env = "CROSSFADE_ALL_NAMESPACES", value_parser = BoolishValueParser::new())]
    all_namespaces: bool,
    /// Write nothing, and print what it would do
    #[arg(long, env = "CROSSFADE_DRY_RUN", value_parser = BoolishValueParser::new())]
    dry_run: bool,
    /// Where metrics, health and the live page over all proxies are shown
    #[arg(long, env = "CROSSFADE_ADMIN", default_value = "127.0.0.1:9465", value_name = "ADDR", value_parser = address)]
    admin: SocketAddr,
    /// The Lease by which one of several replicas leads
    #[arg(
        long,
        env = "CROSSFADE_LEASE_NAME",
        default_value = "crossfade-controller",
        value_name = "NAME"
    )]
    lease_name: String,
    /// The namespace of the Lease [default: as for --namespace]
    #[arg(long, env = "CROSSFADE_LEASE_NAMESPACE", value_name = "NAME")]
    lease_namespace: Option<String>,
    /// How long a leader that has died keeps the others from leading
    #[arg(long, env = "CROSSFADE_LEASE_SECONDS", default_value_t = 15, value_name = "DURATION", value_parser = lease)]
    lease_seconds: u64,
    /// Labels of the pods that carry the proxies of an update, `{source}` for its sourceDeployment [default: the frontends of
    /// that graph, and the pods of that Deployment]
    #[arg(long, env = "CROSSFADE_PROXY_SELECTOR", value_name = "NAME=VALUE", value_delimiter = ',', value_parser = pair)]
    proxy_selector: Vec<(String, String)>,
    /// The name of the proxies' admin port in their pods
    #[arg(
        long,
        env = "CROSSFADE_PROXY_PORT",
        default_value = "crossfade",
        value_name = "NAME"
    )]
    proxy_port: String,
    /// The name of the old frontends' own port in their pods, where they are asked for their models
    #[arg(
        long,
        env = "CROSSFADE_FRONTEND_PORT",
        default_value = "frontend",
        value_name = "NAME"
    )]
    frontend_port: String,
    /// A name by which the admin port may be asked for, beside addresses, localhost and names of the cluster
    #[arg(long, env = "CROSSFADE_ADMIN_HOST", value_name = "NAME", value_delimiter = ',', value_parser = host_name)]
    admin_host: Vec<String>,
    /// Let updates name targets anywhere, not only Services of their namespace
    #[arg(long, env = "CROSSFADE_ALLOW_ANY_TARGET", value_parser = BoolishValueParser::new())]
    allow_any_target: bool,
    /// The domain of the cluster
    #[arg(long, env = "CROSSFADE_CLUSTER_DOMAIN", value_name = "DOMAIN", default_value = "cluster.local", value_parser = domain)]
    cluster_domain: String,
    /// Where a target is, in place of what a resolver says: for a controller outside of the cluster
    #[arg(long, env = "CROSSFADE_RESOLVE", value_name = "HOST:PORT=ADDR", value_delimiter = ',', value_parser = resolved)]
    resolve: Vec<(String, SocketAddr)>,
    /// error, warn, info, debug, trace, or target=level,…
    #[arg(
        long,
        env = "CROSSFADE_LOG",
        value_name = "LEVEL",
        default_value = "info"
    )]
    log: Level,
    /// How logs are written
    #[arg(
        long,
        env = "CROSSFADE_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    log_format: LogFormat,
}

impl ControllerArgs {
    /// How logs are wanted: level and format.
    #[must_use]
    pub fn log(&self) -> (&Level, LogFormat) {
        (&self.log, self.log_format)
    }

    /// The settings of the process.
    #[must_use]
    pub fn config(self) -> Config {
        let of_pod = || std::env::var("POD_NAMESPACE").ok();
        let namespace = self
            .namespace
            .or_else(of_pod)
            .filter(|name| !name.is_empty());
        Config {
            place: match self.all_namespaces {
                true => Where::Everywhere,
                false => Where::Namespace,
            },
            namespace,
            admin: self.admin,
            admin_hosts: Hosts::new(&self.cluster_domain, self.admin_host),
            dry_run: self.dry_run,
            lease: self.lease_name,
            lease_namespace: self.lease_namespace,
            lease_length: Duration::from_secs(self.lease_seconds),
            proxies: ProxyPods {
                selector: self.proxy_selector.into_iter().collect::<BTreeMap<_, _>>(),
                port: self.proxy_port,
            },
            frontend_port: self.frontend_port,
            domain: self.cluster_domain,
            any_target: self.allow_any_target,
            resolve: self.resolve.into_iter().collect(),
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a label is NAME=VALUE".to_owned()),
    }
}

fn resolved(text: &str) -> Result<(String, SocketAddr), String> {
    let hint = "give HOST:PORT=IP:PORT";
    let (name, place) = text.split_once('=').ok_or(hint)?;
    match name.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => {}
        _ => return Err(hint.to_owned()),
    }
    let place = place.parse().map_err(|_| hint.to_owned())?;
    Ok((name.to_owned(), place))
}
