//! The proxy inside another program: the tower layer, the future that keeps its plan up to date, and a handle.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Error;
use super::core::Core;
#[cfg(feature = "kube")]
use crate::config::ClusterSource;
use crate::config::{Config, PlanSource};
use crate::discovery::SourceEvent;
use crate::lifecycle::Lifecycle;
use crate::proxy::{ProxyContext, SplitLayer};
use crate::resource::{DynamoUpdateConfigSpec, Plan};
use crate::snapshot::Status;

/// A proxy inside a frontend.
pub struct Embedded {
    /// Wraps the frontend's own service, which is the old generation.
    pub layer: SplitLayer,
    pub handle: Handle,
    /// Follows the sources of plans. Spawn it.
    pub follow: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Builds a proxy for embedding. It uses the plan, the policies and the upstream settings of `config`. Call it on the
/// runtime that serves.
///
/// # Errors
/// Why there is no first plan.
pub async fn embed(config: Config) -> Result<Embedded, Error> {
    let core = Core::start(&config).await?;
    let handle = Handle {
        context: Arc::clone(&core.context),
        lifecycle: core.context.lifecycle.clone(),
        status: Arc::clone(core.publisher.status()),
        events: core.events.clone(),
    };
    Ok(Embedded {
        layer: SplitLayer::new(Arc::clone(&core.context)),
        handle,
        follow: Box::pin(async move { core.follow(&config, None).await }),
    })
}

impl SplitLayer {
    /// Builds a layer from the program's own sources of plans: flags, a file or a cluster. Without one, all requests go to
    /// old.
    ///
    /// ```no_run
    /// # async fn example(frontend: axum::Router) -> Result<(), Box<dyn std::error::Error>> {
    /// use crossfade::config::ClusterSource;
    /// use crossfade::proxy::SplitLayer;
    ///
    /// let source = ClusterSource::of(["dgd-old"]);
    /// let embedded = SplitLayer::builder().cluster(source).start().await?;
    /// tokio::spawn(embedded.follow);
    /// let frontend = frontend.layer(embedded.layer);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn builder() -> Builder {
        Builder(Config::default())
    }
}

/// The configuration of a layer. The last source given wins.
#[derive(Clone, Debug)]
pub struct Builder(Config);

impl Builder {
    /// Uses this spec, for the life of the process or until [`Handle::set_plan`].
    #[must_use]
    pub fn flags(self, spec: DynamoUpdateConfigSpec) -> Self {
        self.with(|config| config.plan = PlanSource::Flags(Box::new(spec)))
    }

    /// Uses a `DynamoUpdateConfig` manifest and watches it.
    #[must_use]
    pub fn file(self, path: impl Into<PathBuf>) -> Self {
        self.with(|config| config.plan = PlanSource::File(path.into()))
    }

    /// Uses the update of the program's own deployment in a cluster and watches it.
    #[cfg(feature = "kube")]
    #[must_use]
    pub fn cluster(self, source: ClusterSource) -> Self {
        self.with(|config| config.plan = PlanSource::Cluster(source))
    }

    /// Changes any other settings that [`embed`] uses.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.0);
        self
    }

    /// Builds it, on the runtime that serves.
    ///
    /// # Errors
    /// The same as [`embed`].
    pub async fn start(self) -> Result<Embedded, Error> {
        embed(self.0).await
    }
}

/// A handle to a running proxy, for programs that run it in their own process.
#[derive(Clone)]
pub struct Handle {
    pub context: Arc<ProxyContext>,
    pub lifecycle: Lifecycle,
    /// The state of the plan source: the last rejected plan, since when the source has been unreachable, and remarks.
    pub status: Arc<Status>,
    pub(super) events: mpsc::Sender<SourceEvent>,
}

impl Handle {
    /// Sends the spans that are still queued, for at most `limit`, and stops tracing. A [`super::BoundProxy`] does so itself.
    pub async fn end_traces(&self, limit: Duration) {
        if let Some(tracer) = &self.context.tracer {
            Arc::clone(tracer).shut_down(limit).await;
        }
    }

    /// Puts a plan in force asynchronously.
    pub fn set_plan(&self, plan: Plan, source: &str) {
        let event = SourceEvent::Plan {
            wanted: plan.into(),
            source: source.into(),
            received: Instant::now(),
            done: None,
        };
        // A full channel means a flood of plans, and the sender repeats the last one.
        let _ = self.events.try_send(event);
    }
}
