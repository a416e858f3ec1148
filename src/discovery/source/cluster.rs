//! The cluster as a source of plans: follows the update of this proxy's own deployment through edits, conflicts and deletion.
//!
//! This file holds the observed state, at startup and after it. Publishes no snapshot itself.

mod endpoint_watch;
mod follower;
mod view;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::endpoint_watch::EndpointWatches;
use self::view::View;
use super::{BoxFuture, Context, First, Source};
use crate::config::ClusterSource;
use crate::discovery::{RequestedPlan, State};
use crate::k8s::{Connection, Error, Notices, Reporter, Watch, WatchEvent};
use crate::resource::{Identity, TargetScope};

/// How long startup waits for the API server before it continues with what it has.
const STARTUP_WAIT: Duration = Duration::from_secs(1);

/// The observed updates of a namespace.
pub(super) struct Cluster {
    watch: Watch,
    /// The watches on the addresses behind Services, if enabled.
    endpoints: Option<EndpointWatches>,
    notices: Notices,
    reporter: Option<Reporter>,
    own: Vec<String>,
    scope: TargetScope,
    view: View,
    /// Whether the view reflects a complete list.
    listed: bool,
    lost: Option<Instant>,
}

impl Source for Cluster {
    fn first<'a>(
        &'a mut self,
        saved: Option<&'a State>,
    ) -> BoxFuture<'a, Result<First, super::Error>> {
        Box::pin(async move {
            let first = match self.observed().await {
                Some(observed) => Some(observed),
                // Validate it again, because the allowed targets may have been restricted since it was saved.
                None => saved.and_then(|state| self.saved(state)),
            };
            Ok(first.map_or_else(First::all_old, |(wanted, source)| {
                First::new(wanted, source)
            }))
        })
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn follow(self: Box<Self>, context: Context) -> BoxFuture<'static, ()> {
        Box::pin((*self).run(context))
    }
}

impl Cluster {
    /// Reads how to reach the API server. Fails if there is no usable configuration.
    pub async fn open(settings: &ClusterSource) -> Result<Self, Error> {
        let connection = Connection::open(settings.namespace.as_deref()).await?;
        let (notices, reporter) = Reporter::new(&connection);
        Ok(Self {
            watch: Watch::new(&connection, &settings.deployments),
            endpoints: settings
                .endpoints
                .then(|| EndpointWatches::new(connection.clone(), &settings.domain)),
            notices,
            reporter: Some(reporter),
            own: settings.deployments.clone(),
            scope: TargetScope {
                namespace: connection.namespace().to_owned(),
                domain: settings.domain.clone(),
                anywhere: settings.allow_any_target,
            },
            view: View::default(),
            listed: false,
            lost: None,
        })
    }

    /// The initial plan, if there is one and the API server returns it within a second.
    async fn observed(&mut self) -> Option<(RequestedPlan, Arc<str>)> {
        match tokio::time::timeout(STARTUP_WAIT, self.watch.next()).await {
            Ok(seen) => {
                self.apply(seen);
            }
            Err(_) => self.lose("it has not responded yet", Instant::now()),
        }
        let active = self.view.resolve(&self.own, &self.scope).active?;
        let source = source(&active.identity);
        Some((active.best()?.into(), source))
    }

    /// The plan that was saved before a restart, if its update is still one to follow.
    fn saved(&self, state: &State) -> Option<(RequestedPlan, Arc<str>)> {
        let update = state.update()?;
        let is_own = view::is_own(&update, &self.own);
        if !is_own || update.identity.namespace.as_ref() != Some(&self.scope.namespace) {
            tracing::warn!("ignored the saved plan, which belongs to another deployment");
            return None;
        }
        match update.plan(&self.scope) {
            Ok(plan) => Some((plan.into(), state.file().display().to_string().into())),
            Err(problems) => {
                tracing::error!(%problems, "cannot use the saved plan");
                None
            }
        }
    }

    /// Applies a watch event. Returns true if the updates may have changed.
    fn apply(&mut self, seen: WatchEvent) -> bool {
        match seen {
            WatchEvent::Disconnected {
                cause,
                last_contact,
            } => {
                self.lose(&cause, last_contact.into_std());
                return false;
            }
            WatchEvent::Reconnected => {
                self.find();
                return false;
            }
            WatchEvent::Replaced(all) => {
                self.view.replace(all);
                self.listed = true;
            }
            WatchEvent::Applied(update) => self.view.set(update),
            WatchEvent::Deleted(name) => self.view.remove(&name),
        }
        self.find();
        self.listed
    }

    fn find(&mut self) {
        if let Some(since) = self.lost.take() {
            let seconds = since.elapsed().as_secs_f64();
            tracing::info!(seconds, "the watch on updates has recovered");
        }
    }

    fn lose(&mut self, cause: &str, last_contact: Instant) {
        tracing::warn!(
            cause,
            "cannot watch updates; the last good plan stays in force"
        );
        self.lost.get_or_insert(last_contact);
    }
}

/// The source of a plan, in a form for users.
fn source(identity: &Identity) -> Arc<str> {
    identity.source().into()
}
