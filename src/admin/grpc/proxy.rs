//! The service `crossfade.v1.Proxy`: the state now, and whenever it changes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::watcher;
use crate::admin::Admin;
use crate::lifecycle::Phase;
use crate::state_api::v1::proxy_server::Proxy;
use crate::state_api::v1::{self, GetRequest, State, WatchRequest};

/// The interval of a watch that names none, and the shortest one, in milliseconds.
const INTERVAL: u32 = 1000;
const SHORTEST: u32 = 100;

pub(super) struct Reader {
    admin: Admin,
    watchers: Arc<Semaphore>,
}

impl Reader {
    pub(super) fn new(admin: Admin, watchers: Arc<Semaphore>) -> Self {
        Self { admin, watchers }
    }
}

#[tonic::async_trait]
impl Proxy for Reader {
    async fn get(&self, _: Request<GetRequest>) -> Result<Response<State>, Status> {
        Ok(Response::new(self.admin.state().await))
    }

    type WatchStream = BoxStream<State>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let interval = match request.get_ref().interval_ms {
            0 => INTERVAL,
            wanted => wanted.max(SHORTEST),
        };
        let watching = Watching {
            plans: self.admin.world.changes(),
            phases: self.admin.lifecycle.changes(),
            admin: self.admin.clone(),
            interval: Duration::from_millis(interval.into()),
            last: None,
            is_over: false,
            _permit: watcher(&self.watchers)?,
        };
        let states = stream::unfold(watching, Watching::next);
        Ok(Response::new(Box::pin(states)))
    }
}

/// A watch. It reads the state when its client has taken the one before: what a client does not take costs nothing.
struct Watching {
    admin: Admin,
    plans: watch::Receiver<()>,
    phases: watch::Receiver<Phase>,
    interval: Duration,
    /// When the last state was read.
    last: Option<Instant>,
    is_over: bool,
    _permit: OwnedSemaphorePermit,
}

impl Watching {
    async fn next(mut self) -> Option<(Result<State, Status>, Self)> {
        if self.is_over {
            return None;
        }
        if let Some(last) = self.last {
            tokio::select! {
                _ = self.plans.changed() => {}
                _ = self.phases.changed() => {}
                () = tokio::time::sleep_until(last + self.interval) => {}
            }
        }
        self.last = Some(Instant::now());
        let state = self.admin.state().await;
        self.is_over = state.phase() == v1::Phase::Ending;
        Some((Ok(state), self))
    }
}
