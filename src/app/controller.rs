//! Assembles a controller process.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;

use super::Error;
use super::shutdown::Signals;
use crate::controller::{Controller, ControllerSettings, Metrics, ProxyPods, UpdateLimits, serve};
use crate::k8s::{Connection, Lease, Reporter, Scope, may_read_all_namespaces};
use crate::pages::Hosts;

/// The updates that the controller manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// Those of one namespace.
    One,
    /// All.
    All,
}

/// Maximum number of Events that wait to be written: enough for hundreds of updates that change at the same time.
const NOTICES: usize = 4096;

/// The settings of a controller process.
#[derive(Clone, Debug)]
pub struct Config {
    pub namespaces: Namespaces,
    /// By default the namespace of the pod or of the kubeconfig.
    pub namespace: Option<String>,
    pub admin: SocketAddr,
    /// The host names for which the admin port answers.
    pub admin_hosts: Hosts,
    pub dry_run: bool,
    /// Whether it carries out rollouts, which scale workers.
    pub rollouts: bool,
    pub lease: String,
    /// By default the same as `namespace`.
    pub lease_namespace: Option<String>,
    pub lease_length: Duration,
    pub proxies: ProxyPods,
    pub frontend_port: String,
    pub domain: String,
    pub allow_any_target: bool,
    pub assume_isolated: bool,
    pub quiet_period: Duration,
    pub update_limits: UpdateLimits,
    pub resolve: HashMap<String, SocketAddr>,
}

/// Runs the controller until a signal arrives.
///
/// # Errors
/// Why it cannot start.
pub fn run(config: Config) -> Result<(), Error> {
    super::runtime()?.block_on(live(config))
}

async fn live(config: Config) -> Result<(), Error> {
    // First of all: without a handler, a process with the ID 1 gets no signal (pid_namespaces(7)).
    let mut signals = Signals::listen();
    let listen = |source| Error::Listen {
        flag: "--admin",
        address: config.admin,
        source,
    };
    let listener = TcpListener::bind(config.admin).await.map_err(listen)?;
    let connection = Connection::open(config.namespace.as_deref()).await?;
    let mut settings = settings(&config, connection.namespace());
    if settings.watched_scope != Scope::All {
        let may_read_all = tokio::select! {
            may = may_read_all_namespaces(&connection) => may,
            () = signals.first() => return Ok(()),
        };
        if may_read_all {
            settings.watched_scope = Scope::All;
        }
    }
    let (metrics, ready) = (
        Arc::new(Metrics::default()),
        Arc::new(AtomicBool::new(false)),
    );
    let (notices, reporter) = Reporter::with_room(&connection, NOTICES);
    let (mut lease, leading) = Lease::new(
        &connection,
        &settings.lease_namespace,
        &settings.lease,
        &settings.identity,
        settings.lease_length,
    );
    let admin = listener.local_addr().unwrap_or(config.admin);
    tracing::info!(%admin, identity = settings.identity, scope = ?settings.scope, sees = ?settings.watched_scope, dry_run = config.dry_run, "controls");
    let controller = Controller::new(settings, &connection, leading, notices, metrics, ready);
    let pages = serve(listener, controller.pages(config.admin_hosts));
    let leads = async {
        match config.dry_run {
            true => std::future::pending().await,
            false => lease.keep().await,
        }
    };
    tokio::select! {
        () = pages => {}
        () = controller.run() => {}
        () = reporter.write() => {}
        () = leads => {}
        () = signals.first() => {}
    }
    // All pending writes have been dropped, so another replica may lead now.
    lease.release().await;
    tracing::info!("ended");
    Ok(())
}

fn settings(config: &Config, namespace: &str) -> ControllerSettings {
    let host = std::env::var("POD_NAME")
        .ok()
        .filter(|name| !name.is_empty());
    let host = host.unwrap_or_else(super::host_name);
    let started = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let scope = match config.namespaces {
        Namespaces::One => Scope::Namespace(namespace.to_owned()),
        Namespaces::All => Scope::All,
    };
    ControllerSettings {
        watched_scope: scope.clone(),
        scope,
        dry_run: config.dry_run,
        rollouts: config.rollouts,
        lease: config.lease.clone(),
        lease_namespace: config
            .lease_namespace
            .clone()
            .unwrap_or_else(|| namespace.to_owned()),
        lease_length: config.lease_length,
        // Unique, even for two processes in one pod.
        identity: format!("{host}_{}_{}", std::process::id(), started.as_millis()),
        proxies: config.proxies.clone(),
        frontend_port: config.frontend_port.clone(),
        domain: config.domain.clone(),
        allow_any_target: config.allow_any_target,
        assume_isolated: config.assume_isolated,
        quiet_period: config.quiet_period,
        update_limits: config.update_limits,
        resolve: config.resolve.clone(),
    }
}
