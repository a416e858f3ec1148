//! What every form of the proxy has: the first plan, the one writer of plans, and what all requests share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Error;
use crate::config::{Config, PlanSource};
use crate::discovery::{self, News, PlanFile, Publisher, State, Wanted};
use crate::proxy::Shared;
use crate::resource::{Identity, Plan, Problems};
use crate::telemetry::Metrics;
use crate::tls::{ClientFiles, Files, Reloading, ServerFiles};

/// How often names are resolved again, and while one is not known at all.
const RESOLVE: Duration = Duration::from_secs(5);
const RESOLVE_UNKNOWN: Duration = Duration::from_millis(500);
/// How often certificate files are looked at.
const CERTIFICATES: Duration = Duration::from_secs(1);

/// What every form of the proxy has: the writer of plans, and what requests share.
pub(super) struct Core {
    pub(super) publisher: Publisher,
    pub(super) shared: Arc<Shared>,
    pub(super) told: mpsc::Sender<News>,
    news: mpsc::Receiver<News>,
    file: Option<PlanFile>,
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
    pub(super) async fn follow(self, config: &Config, tls: Option<Arc<Reloading<ServerFiles>>>) {
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
