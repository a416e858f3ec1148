//! The static settings of a proxy process, from flags and the environment, checked before anything starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::downstream::Limits;
use crate::pages::Hosts;
use crate::proxy::ProxySettings;
use crate::resource::{DynamoUpdateConfigSpec, TargetAddress};
use crate::telemetry::trace;
use crate::tls::{ClientFiles, ServerFiles};
use crate::upstream;

/// Where the plan comes from.
#[derive(Clone, Debug)]
pub enum PlanSource {
    /// None: all requests go to old, with the policies of this spec.
    OnlyOld(Box<DynamoUpdateConfigSpec>),
    /// The command line, for the life of the process.
    Flags(Box<DynamoUpdateConfigSpec>),
    /// A manifest, which is watched.
    File(PathBuf),
    /// The update of the proxy's own deployment in a cluster, which is watched.
    #[cfg(feature = "kube")]
    Cluster(ClusterSource),
}

/// Which update of a cluster is followed, and which targets it may name.
#[cfg(feature = "kube")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSource {
    /// The namespace. By default that of the pod or of the kubeconfig.
    pub namespace: Option<String>,
    /// The names of the proxy's own deployment in `spec.sourceDeployment`.
    pub deployments: Vec<String>,
    /// Allows any target, not only Services of the namespace.
    pub allow_any_target: bool,
    /// Watches the addresses behind the targets' Services instead of using the Services' own.
    pub endpoints: bool,
    /// The domain of the cluster, such as `cluster.local`.
    pub domain: String,
}

#[cfg(feature = "kube")]
impl ClusterSource {
    /// The source for a deployment with these names, with the defaults of the command line.
    #[must_use]
    pub fn of<N: Into<String>>(deployments: impl IntoIterator<Item = N>) -> Self {
        Self {
            namespace: None,
            deployments: deployments.into_iter().map(Into::into).collect(),
            allow_any_target: false,
            endpoints: false,
            domain: "cluster.local".to_owned(),
        }
    }
}

/// The settings of a proxy.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    /// The host names for which the admin port answers.
    pub admin_hosts: Hosts,
    pub old: Vec<TargetAddress>,
    pub peers: Vec<TargetAddress>,
    pub plan: PlanSource,
    /// Where the last good plan is kept across restarts.
    pub state_dir: Option<PathBuf>,
    pub threads: usize,
    pub proxy: ProxySettings,
    pub limits: Limits,
    pub upstream: upstream::PoolSettings,
    pub upstream_tls: ClientFiles,
    pub tls: Option<ServerFiles>,
    /// Interval of active probes, if the plan sets none.
    pub probe_interval: Option<Duration>,
    /// Where traces are sent; `None`: nowhere.
    pub traces: Option<trace::TraceSettings>,
    /// Shared by the proxies of an update, so that clients cannot forge the guard header.
    pub guard_key: Vec<u8>,
    /// Time between reporting not ready and closing the listeners.
    pub settle: Duration,
    /// Time that open streams may take after that.
    pub drain: Duration,
    /// Whether the process handles SIGTERM and SIGINT.
    pub signals: bool,
}

impl Default for Config {
    /// Defaults for a program that embeds the proxy. The command line has other ones for addresses, threads, and signals.
    fn default() -> Self {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Self {
            listen: loopback(0),
            admin: loopback(0),
            admin_hosts: Hosts::default(),
            old: Vec::new(),
            peers: Vec::new(),
            plan: PlanSource::OnlyOld(Box::default()),
            state_dir: None,
            threads: 1,
            proxy: ProxySettings::default(),
            limits: Limits::default(),
            upstream: upstream::PoolSettings::default(),
            upstream_tls: ClientFiles::default(),
            tls: None,
            probe_interval: None,
            traces: None,
            guard_key: Vec::new(),
            settle: Duration::from_secs(5),
            drain: Duration::from_secs(3600),
            signals: false,
        }
    }
}
