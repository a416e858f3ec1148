//! The settings of a controller process.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use super::UpdateLimits;
use crate::k8s::Scope;

/// The settings of a controller: what its user chose, and what follows from the cluster and the process.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    pub options: ControllerOptions,
    /// The namespaces whose updates it reconciles.
    pub scope: Scope,
    /// The namespaces in which it looks for what leads to old: at least those of `scope`.
    pub watched_scope: Scope,
    /// The namespace of the Lease for leader election.
    pub lease_namespace: String,
    /// The identity of this process in leader election.
    pub identity: String,
}

/// What the user of a controller chose.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// Only log decisions, write nothing.
    pub dry_run: bool,
    /// Whether it carries out rollouts, which scale workers.
    pub rollouts: bool,
    /// The name of the Lease for leader election.
    pub lease: String,
    /// How long a Lease that is no longer renewed keeps other replicas from leading.
    pub lease_length: Duration,
    pub proxies: ProxyPods,
    /// The name of the port on which old frontends are polled for their models.
    pub frontend_port: String,
    /// The DNS domain of the cluster, such as `cluster.local`.
    pub domain: String,
    /// Whether targets may be anywhere, not only Services of the update's namespace.
    pub allow_any_target: bool,
    /// Whether, according to the user, nothing in other namespaces leads to frontends in the only managed one.
    pub assume_isolated: bool,
    /// How long old's frontends must have had no request from a client before old may be deleted.
    pub quiet_period: Duration,
    /// How many updates are followed, and how many rollouts.
    pub update_limits: UpdateLimits,
    /// Addresses of targets, by `host:port`, that override name resolution.
    pub resolve: HashMap<String, SocketAddr>,
}

impl ControllerSettings {
    /// Whether the updates of this namespace are reconciled.
    #[must_use]
    pub fn manages(&self, namespace: &str) -> bool {
        match &self.scope {
            Scope::All => true,
            Scope::Namespace(own) => own == namespace,
        }
    }
}

/// How to find the proxies of an update.
#[derive(Clone, Debug)]
pub struct ProxyPods {
    /// Pod labels, where `{source}` stands for `spec.sourceDeployment`. If empty, the frontends of the graph or the pods of
    /// the Deployment of that name.
    pub selector: BTreeMap<String, String>,
    /// The name of the admin port. A pod without this port cannot be polled and counts as a silent proxy.
    pub port: String,
}
