//! What a controller is told at its start.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use crate::k8s::Scope;

/// The settings of a controller.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// Whose updates it looks after.
    pub scope: Scope,
    /// It only says what it would do.
    pub dry_run: bool,
    /// The Lease by which one of several replicas leads, and its namespace.
    pub lease: String,
    pub lease_namespace: String,
    /// How long a leader that says nothing more keeps the others from leading.
    pub lease_length: Duration,
    /// What this process is called among the replicas.
    pub identity: String,
    pub proxies: ProxyPods,
    /// The name of the port at which the old frontends themselves are asked for their models.
    pub frontend_port: String,
    /// The domain of the cluster, such as `cluster.local`.
    pub domain: String,
    /// Whether updates may lead anywhere, not only to Services of their namespace.
    pub any_target: bool,
    /// Addresses of targets that no resolver is asked for, by `host:port`.
    pub resolve: HashMap<String, SocketAddr>,
}

/// How the proxies of an update are found.
#[derive(Clone, Debug)]
pub struct ProxyPods {
    /// Labels of their pods, where `{source}` stands for `spec.sourceDeployment`; empty for the frontends of the graph or
    /// the pods of the Deployment of that name.
    pub selector: BTreeMap<String, String>,
    /// The name of their admin port. A pod without such a port cannot be asked; it counts as one whose proxy is silent.
    pub port: String,
}
