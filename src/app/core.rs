//! What every kind of proxy has: the first plan, the single writer of snapshots, and the state that requests share.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Error;
use crate::config::{Config, PlanSource};
#[cfg(feature = "kube")]
use crate::discovery::Cluster;
use crate::discovery::{self, PlanFile, Publisher, RequestedPlan, SourceEvent, State};
use crate::proxy::ProxyContext;
use crate::resource::{Identity, Plan, Problems};
use crate::telemetry::Metrics;
use crate::telemetry::trace::Tracer;
use crate::tls::{ClientFiles, Files, Reloading, ServerFiles};

/// How often host names are resolved again, and how often while one has no address at all.
const RESOLVE: Duration = Duration::from_secs(5);
const RESOLVE_UNKNOWN: Duration = Duration::from_millis(500);
/// How often certificate files are checked for changes.
const CERTIFICATES: Duration = Duration::from_secs(1);

/// The writer of snapshots, and the state that requests share.
pub(super) struct Core {
    pub(super) publisher: Publisher,
    pub(super) context: Arc<ProxyContext>,
    pub(super) events: mpsc::Sender<SourceEvent>,
    received: mpsc::Receiver<SourceEvent>,
    source: Source,
}

/// What is watched for plans.
enum Source {
    Nothing,
    File(PlanFile),
    #[cfg(feature = "kube")]
    Cluster(Box<Cluster>),
}

impl Source {
    /// Whether a plan that cannot be used is no fault of who starts the process.
    fn is_written_by_others(&self) -> bool {
        match self {
            Self::Nothing | Self::File(_) => false,
            #[cfg(feature = "kube")]
            Self::Cluster(_) => true,
        }
    }
}

impl Core {
    pub(super) async fn start(config: &Config) -> Result<Self, Error> {
        let state = config.state_dir.as_ref().map(|path| {
            State::open(path).map_err(|source| Error::State {
                path: path.clone(),
                source,
            })
        });
        let state = state.transpose()?;
        // Checked now, even if only a later plan needs them.
        if config.upstream_tls != ClientFiles::default() {
            config.upstream_tls.load()?;
        }
        let (first, source) = First::find(&config.plan, state.as_ref()).await?;
        let metrics = Arc::new(Metrics::default());
        let traces = config.traces.as_ref();
        let tracer = traces.map(|settings| Tracer::start(settings, metrics.spans.clone()));
        let tracer = tracer.transpose()?;
        let start = |first: First, state| {
            let metrics = Arc::clone(&metrics);
            Publisher::start(config, metrics, state, first.wanted, first.source)
        };
        let refused = first.refused.clone();
        let publisher = match start(first, state.clone()).await {
            // Where others write the plans, a bad one is no reason not to serve.
            Err(error) if source.is_written_by_others() => {
                tracing::error!(%error, "cannot use the plan; starting with all requests to old");
                start(First::all_old(), state).await?
            }
            started => started?,
        };
        if let (Some(problems), PlanSource::File(path)) = (refused, &config.plan) {
            publisher.reject(problems, path.display().to_string().into());
        }
        let snapshots = Arc::clone(publisher.snapshots());
        let phase = fastrand::u64(..);
        let context = ProxyContext::new(snapshots, metrics, tracer, config.proxy.clone(), phase);
        let (events, received) = mpsc::channel(16);
        Ok(Self {
            publisher,
            context,
            events,
            received,
            source,
        })
    }

    /// Follows the sources of plans and addresses while it is polled.
    pub(super) async fn follow(self, config: &Config, tls: Option<Arc<Reloading<ServerFiles>>>) {
        let probing = discovery::probe(
            Arc::clone(self.publisher.snapshots()),
            config.probe_interval,
        );
        #[cfg(feature = "kube")]
        let (snapshots, status) = (
            Arc::clone(self.publisher.snapshots()),
            Arc::clone(self.publisher.status()),
        );
        let watching = async {
            match self.source {
                Source::Nothing => {}
                Source::File(file) => {
                    if let Err(error) = file.watch(self.events.clone()).await {
                        tracing::error!(%error, "cannot watch the plan file");
                    }
                }
                #[cfg(feature = "kube")]
                Source::Cluster(cluster) => {
                    cluster.follow(self.events.clone(), snapshots, status).await;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::join!(
            probing,
            watching,
            publish(self.publisher, self.received, tls)
        );
    }
}

/// The first plan, and the problems of the plan that it stands in for, if any.
struct First {
    wanted: RequestedPlan,
    source: Arc<str>,
    refused: Option<Problems>,
}

impl First {
    fn good(wanted: RequestedPlan, source: impl Into<Arc<str>>) -> Self {
        Self {
            wanted,
            source: source.into(),
            refused: None,
        }
    }

    fn plan(plan: Plan, source: &str) -> Self {
        Self::good(plan.into(), source)
    }

    /// All requests to old, until there is a plan.
    fn all_old() -> Self {
        Self::plan(Plan::all_old(), "none")
    }

    /// The last good plan, if one was saved.
    fn kept(state: Option<&State>) -> Option<Self> {
        let state = state?;
        let wanted = discovery::read(state.file()).ok()?;
        Some(Self::good(wanted, state.file().display().to_string()))
    }

    async fn find(source: &PlanSource, state: Option<&State>) -> Result<(Self, Source), Error> {
        match source {
            PlanSource::Flags(spec) => {
                let plan = Plan::of(Identity::default(), spec).map_err(Error::Flags)?;
                Ok((Self::plan(plan, "flags"), Source::Nothing))
            }
            PlanSource::OnlyOld(spec) => {
                let plan = Plan::only_old(spec).map_err(Error::Flags)?;
                Ok((Self::plan(plan, "none"), Source::Nothing))
            }
            PlanSource::File(path) => {
                let mut file = PlanFile::new(path);
                let first = match file.read() {
                    Ok(wanted) => Self::good(wanted, path.display().to_string()),
                    Err(problems) => {
                        let path = path.clone();
                        match Self::kept(state) {
                            Some(kept) => Self {
                                refused: Some(problems),
                                ..kept
                            },
                            None => return Err(Error::Plan { path, problems }),
                        }
                    }
                };
                Ok((first, Source::File(file)))
            }
            #[cfg(feature = "kube")]
            PlanSource::Cluster(settings) => {
                let mut cluster = Cluster::open(settings).await?;
                let first = match cluster.first().await {
                    Some((wanted, source)) => Self::good(wanted, source),
                    // Validated again, since the permissions may have become narrower since it was saved.
                    None => match state.and_then(|state| cluster.kept(state)) {
                        Some((wanted, source)) => Self::good(wanted, source),
                        None => Self::all_old(),
                    },
                };
                Ok((first, Source::Cluster(Box::new(cluster))))
            }
        }
    }
}

/// Applies what the sources report to the snapshot.
async fn publish(
    mut publisher: Publisher,
    mut received: mpsc::Receiver<SourceEvent>,
    tls: Option<Arc<Reloading<ServerFiles>>>,
) {
    let mut resolved = Instant::now();
    // Concurrent with everything else: a slow resolver must not delay a plan.
    let mut resolving: Option<Pin<Box<dyn Future<Output = _> + Send>>> = None;
    let mut certificates = tokio::time::interval(CERTIFICATES);
    loop {
        let pause = if publisher.knows_all_addresses() {
            RESOLVE
        } else {
            RESOLVE_UNKNOWN
        };
        tokio::select! {
            event = received.recv() => match event {
                Some(event) => publisher.hear(event).await,
                None => return,
            },
            () = tokio::time::sleep_until((resolved + pause).into()), if resolving.is_none() => {
                resolving = Some(Box::pin(discovery::resolve(publisher.names())));
            }
            answers = poll_fn(|context| match &mut resolving {
                Some(resolving) => resolving.as_mut().poll(context),
                None => Poll::Pending,
            }) => {
                resolving = None;
                publisher.learn(answers);
                resolved = Instant::now();
            }
            _ = certificates.tick() => {
                publisher.refresh_tls();
                publisher.reconsider().await;
                match tls.as_ref().map(|tls| tls.refresh()) {
                    None | Some(Ok(false)) => {}
                    Some(Ok(true)) => tracing::info!("reloaded the server certificate"),
                    Some(Err(error)) => tracing::error!(%error, "cannot reload the server certificate; the previous one stays in use"),
                }
            }
        }
    }
}
