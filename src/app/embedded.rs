//! The proxy inside another program: the layer, what keeps its plan up to date, and a hold on it.
//!
//! Must not know how a process of its own is run.

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
use crate::discovery::News;
use crate::lifecycle::Lifecycle;
use crate::proxy::{ProxyContext, SplitLayer};
use crate::resource::{DynamoUpdateConfigSpec, Plan};
use crate::snapshot::Status;

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
        context: Arc::clone(&core.context),
        lifecycle: Lifecycle::default(),
        status: Arc::clone(core.publisher.status()),
        told: core.told.clone(),
    };
    Ok(Embedded {
        layer: SplitLayer::new(Arc::clone(&core.context)),
        handle,
        follow: Box::pin(async move { core.follow(&config, None).await }),
    })
}

impl SplitLayer {
    /// A layer by the sources of plans that the program has: flags, a file, a cluster. Without one all goes to old.
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

/// What a layer is made from; the last source that is named counts.
#[derive(Clone, Debug)]
pub struct Builder(Config);

impl Builder {
    /// By the spec that the flags of the program would make: for the life of the process, or until [`Handle::wants`].
    #[must_use]
    pub fn flags(self, spec: DynamoUpdateConfigSpec) -> Self {
        self.with(|config| config.plan = PlanSource::Flags(Box::new(spec)))
    }

    /// By a `DynamoUpdateConfig` manifest, watched.
    #[must_use]
    pub fn file(self, path: impl Into<PathBuf>) -> Self {
        self.with(|config| config.plan = PlanSource::File(path.into()))
    }

    /// By the update of one's own deployment in a cluster, watched.
    #[cfg(feature = "kube")]
    #[must_use]
    pub fn cluster(self, source: ClusterSource) -> Self {
        self.with(|config| config.plan = PlanSource::Cluster(source))
    }

    /// Changes whatever else counts of a [`Config`]: see [`embed`].
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.0);
        self
    }

    /// Makes it, on the runtime that serves.
    ///
    /// # Errors
    /// As [`embed`].
    pub async fn start(self) -> Result<Embedded, Error> {
        embed(self.0).await
    }
}

/// A hold on a running proxy, for those who run it in their own process.
#[derive(Clone)]
pub struct Handle {
    pub context: Arc<ProxyContext>,
    pub lifecycle: Lifecycle,
    /// How it stands with the source of plans: what was refused, since when it is out of reach, what there is to say.
    pub status: Arc<Status>,
    pub(super) told: mpsc::Sender<News>,
}

impl Handle {
    /// Sends the spans that wait, for at most `limit`, and no more after that. A [`super::Bound`] does it itself.
    pub async fn end_traces(&self, limit: Duration) {
        if let Some(tracer) = &self.context.tracer {
            Arc::clone(tracer).shut_down(limit).await;
        }
    }

    /// Puts a plan in force, soon.
    pub fn wants(&self, plan: Plan, source: &str) {
        let news = News::Plan {
            wanted: plan.into(),
            source: source.into(),
            heard: Instant::now(),
            done: None,
        };
        // A full channel is a flood of plans: the last of them is told again by whoever floods.
        let _ = self.told.try_send(news);
    }
}
