//! The service `crossfade.v1.Proxy`: the current state, and its changes.

use std::time::Duration;

use futures_util::stream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::watcher;
use crate::admin::Admin;
use crate::admin::state_watch::StateWatch;
use crate::pages::Quota;
use crate::state_api::v1::proxy_server::Proxy;
use crate::state_api::v1::{CompareRequest, Comparison, GetRequest, State, WatchRequest};

/// The default and the minimum interval of a watch, in milliseconds.
const INTERVAL: u32 = 1000;
const SHORTEST: u32 = 100;

pub(super) struct Reader {
    admin: Admin,
    watchers: Quota,
}

impl Reader {
    pub(super) fn new(admin: Admin, watchers: Quota) -> Self {
        Self { admin, watchers }
    }
}

#[tonic::async_trait]
impl Proxy for Reader {
    async fn get(&self, _: Request<GetRequest>) -> Result<Response<State>, Status> {
        Ok(Response::new(self.admin.state().await))
    }

    async fn compare(
        &self,
        request: Request<CompareRequest>,
    ) -> Result<Response<Comparison>, Status> {
        let with_past = request.get_ref().with_past;
        Ok(Response::new(self.admin.comparison(with_past)))
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
        let interval = Duration::from_millis(interval.into());
        let permit = watcher(&self.watchers, &request)?;
        let watching = StateWatch::new(self.admin.clone(), interval);
        let states = stream::unfold((watching, permit), async |(mut watching, permit)| {
            Some((Ok(watching.next().await?), (watching, permit)))
        });
        Ok(Response::new(Box::pin(states)))
    }
}
