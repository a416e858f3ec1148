//! Where plans come from: one trait, and one file per kind of source.
//!
//! A new kind of source is a file here, a variant of [`PlanSource`], and a line in [`open`].

#[cfg(feature = "kube")]
mod cluster;
mod file;
mod flags;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::source_event::{RequestedPlan, SourceEvent};
use super::state::State;
use crate::config::PlanSource;
use crate::resource::{Plan, Problems};
use crate::snapshot::{SnapshotStore, Status};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why a source has no plan to start with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot load plan {}:{}{problems}", path.display(), if problems.is_of_file() { " " } else { "\n" })]
    File { path: PathBuf, problems: Problems },
    #[error("cannot use the plan given by flags:\n{0}")]
    Flags(Problems),
    #[cfg(feature = "kube")]
    #[error("cannot watch the updates of the cluster")]
    Cluster(#[from] crate::k8s::Error),
}

/// A source of plans.
pub trait Source: Send {
    /// The plan to start with, or the one saved before a restart if the source has no usable plan.
    fn first<'a>(&'a mut self, saved: Option<&'a State>) -> BoxFuture<'a, Result<First, Error>>;

    /// Whether someone other than the user who starts the process writes the plans. If so, an unusable plan must not prevent the
    /// start.
    fn is_shared(&self) -> bool;

    /// Reports every change after the first plan, for as long as it is polled.
    fn follow(self: Box<Self>, context: Context) -> BoxFuture<'static, ()>;
}

/// The parameters that a source needs to follow its plans.
pub struct Context {
    /// The channel to the writer of snapshots.
    pub events: mpsc::Sender<SourceEvent>,
    pub snapshots: Arc<SnapshotStore>,
    pub status: Arc<Status>,
}

/// The plan that a proxy starts with.
pub struct First {
    pub wanted: RequestedPlan,
    /// Where it comes from, for users.
    pub source: Arc<str>,
    /// The problems of the plan that it replaces, and where that plan comes from.
    pub rejected: Option<(Problems, Arc<str>)>,
}

impl First {
    fn new(wanted: impl Into<RequestedPlan>, source: impl Into<Arc<str>>) -> Self {
        Self {
            wanted: wanted.into(),
            source: source.into(),
            rejected: None,
        }
    }

    /// All requests to old, until there is a plan.
    #[must_use]
    pub fn all_old() -> Self {
        Self::new(Plan::all_old(), "none")
    }
}

/// Opens the source that the settings name.
///
/// # Errors
/// If its settings cannot be used.
pub async fn open(settings: &PlanSource) -> Result<Box<dyn Source>, Error> {
    Ok(match settings {
        PlanSource::OnlyOld(spec) => Box::new(flags::Flags::only_old(spec)?),
        PlanSource::Flags(spec) => Box::new(flags::Flags::new(spec)?),
        PlanSource::File(path) => Box::new(file::PlanFile::new(path)),
        #[cfg(feature = "kube")]
        PlanSource::Cluster(settings) => Box::new(cluster::Cluster::open(settings).await?),
    })
}
