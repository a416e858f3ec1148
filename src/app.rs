//! Puts a proxy process together: the only file that knows every room.

pub mod demo;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::admin::{self, Admin};
use crate::config::{Config, PlanSource};
use crate::discovery::{self, News, PlanFile, Publisher, State, TlsFault, Wanted};
use crate::lifecycle::{Lifecycle, Phase};
use crate::proxy::{self, Listener, OldPool, Proxy, Shared, SplitLayer};
use crate::resource::{Identity, Plan, Problems};
use crate::telemetry::{Metrics, access};
use crate::tls::{ClientFiles, Files, Reloading, ServerFiles};
use crate::upstream::idle;

/// How often each thread writes its access lines and looks after its connections.
const TICK: Duration = Duration::from_millis(200);
/// How often names are resolved again, and while one is not known at all.
const RESOLVE: Duration = Duration::from_secs(5);
const RESOLVE_UNKNOWN: Duration = Duration::from_millis(500);
/// How often certificate files are looked at.
const CERTIFICATES: Duration = Duration::from_secs(1);
/// What ended streams get to be written out.
const LAST_WORDS: Duration = Duration::from_secs(2);

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
    #[error("{} is no plan:\n{problems}", path.display())]
    Plan { path: PathBuf, problems: Problems },
    #[error("the flags make no plan:\n{0}")]
    Flags(Problems),
    #[error("cannot use the certificates")]
    Tls(#[from] crate::tls::Error),
    #[error("cannot use the plan's certificates")]
    PlanTls(#[from] TlsFault),
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
    let listener = Listener::bind(config.listen, config.threads).map_err(listen(config.listen))?;
    let admin = std::net::TcpListener::bind(config.admin).map_err(listen(config.admin))?;
    admin.set_nonblocking(true).map_err(listen(config.admin))?;
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

/// What every form of the proxy has: the writer of plans, and what requests share.
struct Core {
    publisher: Publisher,
    shared: Arc<Shared>,
    told: mpsc::Sender<News>,
    news: mpsc::Receiver<News>,
    file: Option<PlanFile>,
}

impl Core {
    async fn start(config: &Config) -> Result<Self, Error> {
        let state = config.state_dir.as_ref().map(|path| {
            State::open(path).map_err(|source| Error::State {
                path: path.clone(),
                source,
            })
        });
        let state = state.transpose()?;
        // Checked now, though it may be a later plan that needs it.
        if config.upstream_tls != ClientFiles::default() {
            config.upstream_tls.load()?;
        }
        let mut file = match &config.plan {
            PlanSource::File(path) => Some(PlanFile::new(path)),
            _ => None,
        };
        let first = First::find(&config.plan, file.as_mut(), state.as_ref())?;
        let metrics = Arc::new(Metrics::default());
        let (wanted, source) = (first.wanted, first.source);
        let publisher =
            Publisher::start(config, Arc::clone(&metrics), state, wanted, source).await?;
        if let (Some(problems), PlanSource::File(path)) = (first.refused, &config.plan) {
            publisher.reject(problems, path.display().to_string().into());
        }
        let world = Arc::clone(publisher.world());
        let shared = Shared::new(world, metrics, config.proxy.clone(), fastrand::u64(..));
        let (told, news) = mpsc::channel(16);
        Ok(Self {
            publisher,
            shared,
            told,
            news,
            file,
        })
    }

    /// Follows the sources of plans and addresses for as long as it is polled.
    async fn follow(self, config: &Config, tls: Option<Arc<Reloading<ServerFiles>>>) {
        let probing = discovery::probe(Arc::clone(self.publisher.world()), config.probe_interval);
        let watching = async {
            if let Some(file) = self.file
                && let Err(error) = file.watch(self.told.clone()).await
            {
                tracing::error!(%error, "the plan file cannot be watched");
            }
            std::future::pending::<()>().await;
        };
        tokio::join!(probing, watching, publish(self.publisher, self.news, tls));
    }
}

/// A proxy inside a frontend: the layer, and what keeps its plan up to date.
pub struct Embedded {
    /// Wraps the frontend's own service, which is the old generation.
    pub layer: SplitLayer,
    pub handle: Handle,
    /// Follows the sources of plans; spawn it.
    pub follow: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Makes a proxy to be embedded: of `config` the plan, the policies and what concerns model servers count. Call it on the
/// runtime that serves.
///
/// # Errors
/// Why there is no plan to begin with.
pub async fn embed(config: Config) -> Result<Embedded, Error> {
    let core = Core::start(&config).await?;
    let handle = Handle {
        shared: Arc::clone(&core.shared),
        lifecycle: Lifecycle::default(),
        told: core.told.clone(),
    };
    Ok(Embedded {
        layer: SplitLayer::new(Arc::clone(&core.shared)),
        handle,
        follow: Box::pin(async move { core.follow(&config, None).await }),
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)
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

/// The plan to begin with, and what was wrong with the one that should have been.
struct First {
    wanted: Wanted,
    source: Arc<str>,
    refused: Option<Problems>,
}

impl First {
    fn good(wanted: Wanted, source: impl Into<Arc<str>>) -> Self {
        Self {
            wanted,
            source: source.into(),
            refused: None,
        }
    }

    fn plan(plan: Plan, source: &str) -> Self {
        let plan = Arc::new(plan);
        Self::good(
            Wanted {
                plan,
                manifest: None,
            },
            source,
        )
    }

    fn find(
        source: &PlanSource,
        file: Option<&mut PlanFile>,
        state: Option<&State>,
    ) -> Result<Self, Error> {
        match (source, file) {
            (PlanSource::Flags(spec), _) => {
                let plan = Plan::of(Identity::default(), spec).map_err(Error::Flags)?;
                Ok(Self::plan(plan, "flags"))
            }
            (PlanSource::File(path), Some(file)) => {
                let refused = match file.read() {
                    Ok(wanted) => return Ok(Self::good(wanted, path.display().to_string())),
                    Err(problems) => problems,
                };
                let kept =
                    state.and_then(|state| Some((discovery::read(state.file()).ok()?, state)));
                let Some((wanted, state)) = kept else {
                    let path = path.clone();
                    return Err(Error::Plan {
                        path,
                        problems: refused,
                    });
                };
                let first = Self::good(wanted, state.file().display().to_string());
                Ok(Self {
                    refused: Some(refused),
                    ..first
                })
            }
            (PlanSource::OnlyOld(spec), _) => {
                let plan = Plan::only_old(spec).map_err(Error::Flags)?;
                Ok(Self::plan(plan, "none"))
            }
            (PlanSource::File(_), None) => unreachable!("a plan file is opened before it is read"),
        }
    }
}

/// A hold on a running proxy, for those who run it in their own process.
#[derive(Clone)]
pub struct Handle {
    pub shared: Arc<Shared>,
    pub lifecycle: Lifecycle,
    told: mpsc::Sender<News>,
}

impl Handle {
    /// Puts a plan in force, soon.
    pub fn wants(&self, plan: Plan, source: &str) {
        let wanted = Wanted {
            plan: Arc::new(plan),
            manifest: None,
        };
        let news = News::Plan {
            wanted,
            source: source.into(),
            heard: Instant::now(),
        };
        // A full channel is a flood of plans: the last of them is told again by whoever floods.
        let _ = self.told.try_send(news);
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
            shared: Arc::clone(&self.core.shared),
            lifecycle: self.lifecycle.clone(),
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
        let shared = Arc::clone(&core.shared);
        let limits = Arc::new(config.limits.clone());
        let mut threads = Vec::new();
        for socket in listener.into_sockets() {
            let runtime = self::runtime()?;
            let proxy = Proxy::new(Arc::clone(&shared), OldPool);
            let serving = proxy::serve(
                socket,
                proxy,
                Arc::clone(&limits),
                tls.clone(),
                lifecycle.clone(),
            );
            let metrics = Arc::clone(&shared.metrics);
            threads.push(std::thread::spawn(move || {
                runtime.block_on(async {
                    tokio::spawn(look_after(metrics));
                    if let Err(error) = serving.await {
                        tracing::error!(%error, "a thread cannot serve");
                    }
                });
                access::flush();
            }));
        }
        let ended = runtime.block_on(async {
            let admin = TcpListener::from_std(admin).map_err(Error::Runtime)?;
            let page = Admin {
                world: Arc::clone(core.publisher.world()),
                status: Arc::clone(core.publisher.status()),
                metrics: Arc::clone(&shared.metrics),
                lifecycle: lifecycle.clone(),
            };
            tokio::spawn(admin::serve(admin, page));
            let following = config.clone();
            tokio::spawn(async move { core.follow(&following, tls).await });
            lifecycle.advance(Phase::Ready);
            tracing::info!(listen = %listens, admin = %admin_address, "serving");
            Ok(live(&config, &lifecycle, &shared, threads).await)
        });
        // Not waiting for threads that have streams they were told not to wait for.
        runtime.shutdown_background();
        ended
    }
}

/// Stops as it is told: not ready, settle, drain, end.
async fn live(
    config: &Config,
    lifecycle: &Lifecycle,
    shared: &Shared,
    threads: Vec<std::thread::JoinHandle<()>>,
) -> Ended {
    let mut signals = config.signals.then(Signals::new);
    tokio::select! {
        () = Signals::next(&mut signals) => {
            lifecycle.advance(Phase::Settling);
            tracing::info!(seconds = config.settle.as_secs_f64(), "not ready any more; settling");
            tokio::select! {
                () = tokio::time::sleep(config.settle) => {}
                () = Signals::next(&mut signals) => return cut_at_once(shared),
            }
        }
        // Told from within the process.
        () = lifecycle.reached(Phase::Draining) => {}
    }
    lifecycle.advance(Phase::Draining);
    tracing::info!(open = shared.open(), "draining");
    let mut joined = std::pin::pin!(tokio::task::spawn_blocking(move || {
        for thread in threads {
            let _ = thread.join();
        }
    }));
    tokio::select! {
        _ = joined.as_mut() => return Ended::Clean,
        () = tokio::time::sleep(config.drain) => {}
        () = Signals::next(&mut signals) => return cut_at_once(shared),
    }
    let open = shared.open();
    tracing::warn!(open, "the time to drain is over: ending what is open");
    lifecycle.advance(Phase::Ending);
    let _ = tokio::time::timeout(LAST_WORDS, joined).await;
    if open == 0 { Ended::Clean } else { Ended::Cut }
}

fn cut_at_once(shared: &Shared) -> Ended {
    let open = shared.open();
    tracing::warn!(open, "told to stop once more: ending at once");
    if open == 0 { Ended::Clean } else { Ended::Cut }
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Self {
        let listen = |kind| signal(kind).expect("the handler of an ordinary signal can be set");
        Self {
            terminate: listen(SignalKind::terminate()),
            interrupt: listen(SignalKind::interrupt()),
        }
    }

    async fn next(signals: &mut Option<Self>) {
        match signals {
            Some(signals) => {
                tokio::select! {
                    _ = signals.terminate.recv() => {}
                    _ = signals.interrupt.recv() => {}
                }
            }
            None => std::future::pending().await,
        }
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
            idle::sweep(now);
        }
    }
}

/// Folds what the sources tell into snapshots.
async fn publish(
    mut publisher: Publisher,
    mut news: mpsc::Receiver<News>,
    tls: Option<Arc<Reloading<ServerFiles>>>,
) {
    let mut resolve = Instant::now();
    let mut certificates = tokio::time::interval(CERTIFICATES);
    loop {
        let pause = if publisher.knows_all_addresses() {
            RESOLVE
        } else {
            RESOLVE_UNKNOWN
        };
        tokio::select! {
            told = news.recv() => match told {
                Some(told) => publisher.hear(told).await,
                None => return,
            },
            () = tokio::time::sleep_until((resolve + pause).into()) => {
                publisher.refresh_addresses().await;
                resolve = Instant::now();
            }
            _ = certificates.tick() => {
                publisher.refresh_tls();
                match tls.as_ref().map(|tls| tls.refresh()) {
                    None | Some(Ok(false)) => {}
                    Some(Ok(true)) => tracing::info!("certificates towards clients were read again"),
                    Some(Err(error)) => tracing::error!(%error, "certificates towards clients cannot be used; the last good ones stay"),
                }
            }
        }
    }
}
