//! Puts a proxy process together: the only file that knows every room.

#[cfg(feature = "kube")]
pub mod controller;
mod core;
#[cfg(feature = "demo")]
pub mod demo;
mod embedded;
#[cfg(feature = "cli")]
pub mod hand;
mod stop;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::TcpListener;

pub use self::embedded::{Builder, Embedded, Handle, embed};

use self::core::Core;
use self::stop::Signals;
use crate::admin::{self, Admin, Local, Process};
use crate::config::Config;
use crate::discovery::TlsFault;
use crate::downstream::{self, Listener};
use crate::lifecycle::{Lifecycle, Phase};
use crate::proxy::{OldPool, Proxy};
use crate::resource::Problems;
use crate::telemetry::{Metrics, access};
use crate::tls::{Reloading, ServerFiles};
use crate::transport::accept;
use crate::upstream;

/// How often each thread writes its access lines and looks after its connections.
const TICK: Duration = Duration::from_millis(200);
/// What the admin port gets for its last answers.
const GOODBYE: Duration = Duration::from_millis(500);

/// Why a proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address}")]
    Listen {
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
    #[error("cannot load {}:\n{problems}", path.display())]
    Plan { path: PathBuf, problems: Problems },
    #[error("cannot use the flags as a plan:\n{0}")]
    Flags(Problems),
    #[error("cannot use the certificates")]
    Tls(#[from] crate::tls::Error),
    #[error("cannot use the plan's certificates")]
    PlanTls(#[from] TlsFault),
    #[error("cannot send traces")]
    Traces(#[from] crate::telemetry::trace::Error),
    #[cfg(feature = "kube")]
    #[error("cannot follow the updates of a cluster")]
    Cluster(#[from] crate::k8s::Error),
    #[error("cannot start a runtime")]
    Runtime(#[source] io::Error),
}

/// How a proxy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every stream came to its own end.
    Clean,
    /// Streams had to be ended.
    Cut,
}

/// A proxy whose sockets listen and whose plan is in force.
pub struct Bound {
    config: Config,
    listener: Listener,
    admin: std::net::TcpListener,
    runtime: tokio::runtime::Runtime,
    core: Core,
    lifecycle: Lifecycle,
    tls: Option<Arc<Reloading<ServerFiles>>>,
}

/// Makes everything that can fail.
///
/// # Errors
/// Why the proxy cannot start.
pub fn build(config: Config) -> Result<Bound, Error> {
    raise_file_limit();
    let runtime = runtime()?;
    let core = runtime.block_on(Core::start(&config))?;
    let tls = config
        .tls
        .clone()
        .map(Reloading::new)
        .transpose()?
        .map(Arc::new);
    let listen = |address| move |source| Error::Listen { address, source };
    // Later than the process itself looks: it knows more of why.
    let unread = config.limits.write_timeout * 3 / 2;
    let listener =
        Listener::bind(config.listen, config.threads, unread).map_err(listen(config.listen))?;
    let admin = std::net::TcpListener::bind(config.admin).map_err(listen(config.admin))?;
    admin.set_nonblocking(true).map_err(listen(config.admin))?;
    accept::keep_alive(&SockRef::from(&admin), unread).map_err(listen(config.admin))?;
    Ok(Bound {
        listener,
        admin,
        core,
        lifecycle: Lifecycle::default(),
        tls,
        config,
        runtime,
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(crate::transport::turn::end)
        .build()
        .map_err(Error::Runtime)
}

/// The name of this host, which in a pod is the pod's.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = name.or_else(|_| std::env::var("HOSTNAME").map_err(io::Error::other));
    name.unwrap_or_default().trim().to_owned()
}

/// Thousands of streams need thousands of descriptors; the soft limit is often 1,024.
fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls only read or write the struct that they are given.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

impl Bound {
    /// Where clients connect, with the real port.
    #[must_use]
    pub fn listens(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Where the admin port is.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin.local_addr().unwrap_or(self.config.admin)
    }

    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            context: Arc::clone(&self.core.context),
            lifecycle: self.lifecycle.clone(),
            status: Arc::clone(self.core.publisher.status()),
            told: self.core.told.clone(),
        }
    }

    /// Serves until it is told to stop and the last stream has ended.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be started.
    pub fn run(self) -> Result<Ended, Error> {
        let (listens, admin_address) = (self.listens(), self.admin());
        let Self {
            config,
            listener,
            admin,
            runtime,
            core,
            lifecycle,
            tls,
        } = self;
        let context = Arc::clone(&core.context);
        let limits = Arc::new(config.limits.clone());
        let mut threads = Vec::new();
        for socket in listener.into_sockets() {
            let runtime = self::runtime()?;
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
                    tokio::spawn(look_after(metrics));
                    // As a task: when the future that the runtime itself runs lets others go first, the runtime has a look at the
                    // sockets before it goes on.
                    match tokio::spawn(serving).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::error!(%error, "a thread cannot serve"),
                        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
                    }
                });
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
                hosts: config.admin_hosts.clone(),
            };
            let local = Local::bind(admin_address);
            if let Err(error) = &local {
                tracing::warn!(%error, "`crossfade drain` and `crossfade log-level` will not reach this process; signals do");
            }
            let serving = tokio::spawn(admin::serve(admin, local.ok(), page));
            let following = config.clone();
            tokio::spawn(async move { core.follow(&following, tls).await });
            // Before anyone is told that it serves: from then on a signal means a drain.
            let signals = match config.signals {
                true => Signals::listen(),
                false => Signals::none(),
            };
            lifecycle.advance(Phase::Ready);
            tracing::info!(listen = %listens, admin = %admin_address, "serving");
            let ended = stop::live(&config, &lifecycle, &context, threads, signals).await;
            // Who watches this process is told the end.
            lifecycle.advance(Phase::Ending);
            let _ = tokio::time::timeout(GOODBYE, serving).await;
            Ok(ended)
        });
        // Not waiting for threads that have streams they were told not to wait for.
        runtime.shutdown_background();
        ended
    }
}

/// The chores of a thread. Each measures how late its timer is: what blocks the thread delays every stream on it.
async fn look_after(metrics: Arc<Metrics>) {
    let mut ticks = 0u64;
    loop {
        let due = Instant::now() + TICK;
        tokio::time::sleep_until(due.into()).await;
        let now = Instant::now();
        // The timer itself is a millisecond coarse.
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
    use crate::transport::turn::tests::ready_at_once;

    #[test]
    fn a_thread_tells_of_its_turns() {
        let runtime = runtime().expect("a runtime");
        let told = runtime.block_on(async {
            for _ in 0..100 {
                if ready_at_once(2).await == "rrww" {
                    return true;
                }
                // Waits, mostly once, for another thread.
                let wait =
                    tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1)));
                wait.await.expect("no panic");
            }
            false
        });
        assert!(told, "two were ready in each turn");
    }
}
