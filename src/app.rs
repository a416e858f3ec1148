//! Assembles the processes: the proxy, the controller, the demo, and the commands for updates.

#[cfg(feature = "cli")]
pub mod commands;
#[cfg(feature = "kube")]
pub mod controller;
mod core;
#[cfg(feature = "demo")]
pub mod demo;
mod embedded;
mod shutdown;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use socket2::SockRef;
use tokio::net::TcpListener;

pub use self::embedded::{Builder, Embedded, Handle, embed};

use self::core::Core;
use self::shutdown::{Signals, Threads};
use crate::admin::{self, Admin, Local, Process};
use crate::config::Config;
use crate::discovery::{self, TlsFault};
use crate::downstream::{self, Limits, Listener};
use crate::lifecycle::ProcessPhase;
use crate::proxy::{OldPool, Proxy};
use crate::resource::TargetAddress;
use crate::state_api::v1::FixedTargets;
use crate::telemetry::{Metrics, access};
use crate::tls::{Reloading, ServerFiles};
use crate::transport::accept;
use crate::transport::descriptors::{self, Shares};
use crate::upstream;

/// How often each thread flushes its access lines and sweeps its connections.
const TICK: Duration = Duration::from_millis(200);
/// How long the admin port may take for its last responses.
const ADMIN_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Why a proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address} ({flag})")]
    Listen {
        flag: &'static str,
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("cannot use the state directory {}", path.display())]
    State {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Plan(#[from] discovery::Error),
    #[error("cannot load the certificates")]
    Tls(#[from] crate::tls::Error),
    #[error("cannot load the plan's certificates")]
    PlanTls(#[from] TlsFault),
    #[error("cannot start tracing")]
    Traces(#[from] crate::telemetry::trace::Error),
    #[cfg(feature = "kube")]
    #[error("cannot connect to the cluster")]
    Cluster(#[from] crate::k8s::Error),
    #[error("cannot start a runtime")]
    Runtime(#[source] io::Error),
}

/// How a proxy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyExit {
    /// All streams have ended by themselves.
    Clean,
    /// Streams had to be cut.
    StreamsCut,
}

/// A proxy that listens and has a plan in force, but does not serve yet.
pub struct BoundProxy {
    config: Config,
    listener: Listener,
    admin: std::net::TcpListener,
    runtime: tokio::runtime::Runtime,
    core: Core,
    tls: Option<Arc<Reloading<ServerFiles>>>,
    signals: Signals,
}

/// Does everything that can fail at startup.
///
/// # Errors
/// Why the proxy cannot start.
pub fn build(config: Config) -> Result<BoundProxy, Error> {
    raise_file_limit();
    disable_huge_pages();
    let runtime = runtime()?;
    // First of all: without a handler, a process with the ID 1 gets no signal (pid_namespaces(7)).
    let signals = {
        let _entered = runtime.enter();
        match config.signals {
            true => Signals::listen(),
            false => Signals::none(),
        }
    };
    let core = runtime.block_on(Core::start(&config))?;
    let tls = config
        .tls
        .clone()
        .map(Reloading::new)
        .transpose()?
        .map(Arc::new);
    let listen = |flag, address| {
        move |source| Error::Listen {
            flag,
            address,
            source,
        }
    };
    let of_admin = || listen("--admin", config.admin);
    // Later than the process's own timeout, whose log line says more.
    let unread = config.limits.write_timeout * 3 / 2;
    let listener = Listener::bind(config.listen, config.threads, unread)
        .map_err(listen("--listen", config.listen))?;
    let admin = std::net::TcpListener::bind(config.admin).map_err(of_admin())?;
    admin.set_nonblocking(true).map_err(of_admin())?;
    accept::keep_alive(&SockRef::from(&admin), unread).map_err(of_admin())?;
    Ok(BoundProxy {
        listener,
        admin,
        core,
        tls,
        config,
        runtime,
        signals,
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(crate::transport::batching::end)
        .build()
        .map_err(Error::Runtime)
}

/// The name of this host; in a pod, the name of the pod.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = name.or_else(|_| std::env::var("HOSTNAME").map_err(io::Error::other));
    name.unwrap_or_default().trim().to_owned()
}

/// Raises the open file limit: each stream needs descriptors, there can be thousands of streams, and the soft limit is often
/// 1,024.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "cannot raise the open file limit");
    }
}

/// Turns off transparent huge pages for this process: with them, the first byte that a thread writes to a part of the heap takes
/// 2 MiB, and a process with many threads uses more memory than docs/behaviour.md states.
fn disable_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot turn off huge pages");
    }
}

/// Logs that fewer clients can connect than they are allowed to.
fn warn_about_scarce_descriptors(limits: &Limits) {
    let clients = Shares::now().clients;
    if clients < limits.max_connections {
        tracing::info!(
            descriptors = descriptors::limit(),
            clients,
            max_connections = limits.max_connections,
            "the open file limit allows fewer client connections than --max-connections"
        );
    }
}

impl BoundProxy {
    /// The address for clients, with the actual port.
    #[must_use]
    pub fn listens(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The address of the admin port.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin.local_addr().unwrap_or(self.config.admin)
    }

    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            context: Arc::clone(&self.core.context),
            lifecycle: self.core.context.lifecycle.clone(),
            status: Arc::clone(self.core.publisher.status()),
            events: self.core.events.clone(),
        }
    }

    /// Serves until shutdown, and then until the last stream has ended.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be started.
    pub fn run(self) -> Result<ProxyExit, Error> {
        let (listens, admin_address) = (self.listens(), self.admin());
        let Self {
            config,
            listener,
            admin,
            runtime,
            core,
            tls,
            mut signals,
        } = self;
        if runtime.block_on(signals.have_arrived()) {
            tracing::info!("a signal has ended the start");
            return Ok(ProxyExit::Clean);
        }
        let context = Arc::clone(&core.context);
        let lifecycle = context.lifecycle.clone();
        let limits = Arc::new(config.limits.clone());
        let sockets = listener.into_sockets().into_iter();
        let sockets = sockets.map(|socket| Ok((socket, self::runtime()?)));
        let sockets = sockets.collect::<Result<Vec<_>, Error>>()?;
        // The process has opened what it needs, and has no client yet.
        descriptors::share(&admin).map_err(Error::Runtime)?;
        warn_about_scarce_descriptors(&limits);
        let mut threads = Vec::new();
        let (abandon, abandoned) = tokio::sync::watch::channel(false);
        for (socket, runtime) in sockets {
            let mut abandoned = abandoned.clone();
            let proxy = Proxy::new(Arc::clone(&context), OldPool);
            let serving = downstream::serve(
                socket,
                proxy,
                Arc::clone(&limits),
                tls.clone(),
                lifecycle.clone(),
            );
            let metrics = Arc::clone(&context.metrics);
            threads.push(std::thread::spawn(move || {
                runtime.block_on(async {
                    tokio::spawn(run_periodic_work(metrics));
                    // Spawned, since the runtime polls its sockets between tasks, but not while the future passed to `block_on`
                    // yields to itself.
                    let served = tokio::select! {
                        served = tokio::spawn(serving) => served,
                        _ = abandoned.wait_for(|is_abandoned| *is_abandoned) => return,
                    };
                    match served {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::error!(%error, "a thread cannot serve"),
                        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
                    }
                });
                // Drops the streams that are still open, which completes their records.
                runtime.shutdown_background();
                access::flush();
            }));
        }
        let ended = runtime.block_on(async {
            let admin = TcpListener::from_std(admin).map_err(Error::Runtime)?;
            let page = Admin {
                snapshots: Arc::clone(core.publisher.snapshots()),
                status: Arc::clone(core.publisher.status()),
                metrics: Arc::clone(&context.metrics),
                lifecycle: lifecycle.clone(),
                process: Process::starts(&host_name()),
                fixed_targets: Arc::new(fixed_targets(&config)),
                hosts: config.admin_hosts.clone(),
            };
            let local = Local::bind(admin_address);
            if let Err(error) = &local {
                tracing::warn!(%error, "no local admin socket: `crossfade drain` and `crossfade log-level` will not reach this process, use signals instead");
            }
            let serving = tokio::spawn(admin::serve(admin, local.ok(), page));
            let following = config.clone();
            tokio::spawn(async move { core.follow(&following, tls).await });
            lifecycle.advance(ProcessPhase::Ready);
            tracing::info!(listen = %listens, admin = %admin_address, "serving");
            let threads = Threads::new(threads, abandon);
            let ended = shutdown::run(&config, &lifecycle, &context, threads, signals).await;
            // Watchers of the state are sent the final phase.
            lifecycle.advance(ProcessPhase::Ending);
            let _ = tokio::time::timeout(ADMIN_CLOSE_TIMEOUT, serving).await;
            Ok(ended)
        });
        // Do not wait for threads whose streams were abandoned.
        runtime.shutdown_background();
        ended
    }
}

fn fixed_targets(config: &Config) -> FixedTargets {
    let shown = |targets: &[TargetAddress]| targets.iter().map(ToString::to_string).collect();
    FixedTargets {
        old: shown(&config.old),
        peers: shown(&config.peers),
    }
}

/// The periodic work of a thread. Each thread also measures how late its timer fires, because anything that blocks the thread
/// delays all its streams.
async fn run_periodic_work(metrics: Arc<Metrics>) {
    let mut ticks = 0u64;
    loop {
        let due = Instant::now() + TICK;
        tokio::time::sleep_until(due.into()).await;
        let now = Instant::now();
        // The timer itself has a resolution of a millisecond.
        let late = now
            .saturating_duration_since(due)
            .saturating_sub(Duration::from_millis(1));
        metrics.loop_lag.observe(late.as_secs_f64());
        access::flush();
        ticks += 1;
        if ticks.is_multiple_of(10) {
            upstream::sweep(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::batching::tests::ready_at_once;

    #[test]
    fn a_thread_reports_the_end_of_its_iterations() {
        let runtime = runtime().expect("a runtime");
        let ready = runtime.block_on(async {
            for _ in 0..100 {
                if ready_at_once(2).await == "rrww" {
                    return true;
                }
                // Waits for another thread, usually once.
                let wait =
                    tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1)));
                wait.await.expect("no panic");
            }
            false
        });
        assert!(ready, "two were ready in each turn");
    }
}
