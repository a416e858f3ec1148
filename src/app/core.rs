//! The parts of every kind of proxy: the first plan, the single writer of snapshots, and the state that requests share.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Error;
use crate::config::Config;
use crate::discovery::{self, Context, First, Publisher, Source, SourceEvent, State};
use crate::error_chain::error_chain;
use crate::proxy::ProxyContext;
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
    source: Box<dyn Source>,
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
        let mut source = discovery::open(&config.plan).await?;
        let first = source.first(state.as_ref()).await?;
        let metrics = Arc::new(Metrics::default());
        let traces = config.traces.as_ref();
        let tracer = traces.map(|settings| Tracer::start(settings, metrics.spans.clone()));
        let tracer = tracer.transpose()?;
        // In a cluster, the controller evaluates new, because it sets the split.
        let analyses = !source.is_shared();
        let start = |first: First, state| {
            let metrics = Arc::clone(&metrics);
            Publisher::start(config, metrics, state, first.wanted, first.source, analyses)
        };
        let rejected = first.rejected.clone();
        let publisher = match start(first, state.clone()).await {
            // If others write the plans, an invalid plan must not prevent serving.
            Err(error) if source.is_shared() => {
                tracing::error!(%error, "cannot use the plan; starting with all requests to old");
                start(First::all_old(), state).await?
            }
            started => started?,
        };
        if let Some((problems, source)) = rejected {
            publisher.reject(problems, source);
        }
        let snapshots = Arc::clone(publisher.snapshots());
        let context = ProxyContext::new(snapshots, metrics, tracer, config.proxy.clone());
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
        let proving = discovery::prove_continuations(
            Arc::clone(self.publisher.snapshots()),
            Arc::clone(&self.context.demand),
        );
        let context = Context {
            events: self.events.clone(),
            snapshots: Arc::clone(self.publisher.snapshots()),
            status: Arc::clone(self.publisher.status()),
        };
        let analyses = !self.source.is_shared();
        let analysing = {
            let (snapshots, status) = (Arc::clone(&context.snapshots), Arc::clone(&context.status));
            let (metrics, events) = (Arc::clone(&self.context.metrics), self.events.clone());
            async move {
                if analyses {
                    discovery::analyse(snapshots, metrics, status, events).await;
                }
            }
        };
        let watching = self.source.follow(context);
        tokio::join!(
            probing,
            proving,
            analysing,
            watching,
            publish(self.publisher, self.received, tls)
        );
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
                Some(event) => publisher.handle(event).await,
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
                publisher.update_addresses(answers);
                resolved = Instant::now();
            }
            _ = certificates.tick() => {
                publisher.refresh_tls();
                publisher.retry_rejected().await;
                match tls.as_ref().map(|tls| tls.refresh()) {
                    None | Some(Ok(false)) => {}
                    Some(Ok(true)) => tracing::info!("reloaded the server certificate"),
                    Some(Err(error)) => tracing::error!(error = error_chain(&error), "cannot reload the server certificate; the previous one stays in use"),
                }
            }
        }
    }
}
