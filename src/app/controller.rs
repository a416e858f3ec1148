//! Assembles a controller process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;

use super::Error;
use super::shutdown::Signals;
use crate::controller::{Controller, ControllerOptions, ControllerSettings, Metrics, serve};
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

/// The configuration of a controller process.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    pub namespaces: Namespaces,
    /// By default the namespace of the pod or of the kubeconfig.
    pub namespace: Option<String>,
    /// The namespace of the Lease, by default the same as `namespace`.
    pub lease_namespace: Option<String>,
    pub admin: SocketAddr,
    /// The host names for which the admin port answers.
    pub admin_hosts: Hosts,
    pub options: ControllerOptions,
}

/// Runs the controller until a signal arrives.
///
/// # Errors
/// Why it cannot start.
pub fn run(config: ControllerConfig) -> Result<(), Error> {
    super::runtime()?.block_on(live(config))
}

async fn live(config: ControllerConfig) -> Result<(), Error> {
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
        &settings.options.lease,
        &settings.identity,
        settings.options.lease_length,
    );
    let admin = listener.local_addr().unwrap_or(config.admin);
    tracing::info!(%admin, identity = settings.identity, scope = ?settings.scope, sees = ?settings.watched_scope, dry_run = config.options.dry_run, "controls");
    let controller = Controller::new(settings, &connection, leading, notices, metrics, ready);
    let pages = serve(listener, controller.pages(config.admin_hosts));
    let leads = async {
        match config.options.dry_run {
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

fn settings(config: &ControllerConfig, namespace: &str) -> ControllerSettings {
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
        options: config.options.clone(),
        watched_scope: scope.clone(),
        scope,
        lease_namespace: config
            .lease_namespace
            .clone()
            .unwrap_or_else(|| namespace.to_owned()),
        // Unique, even for two processes in one pod.
        identity: format!("{host}_{}_{}", std::process::id(), started.as_millis()),
    }
}
