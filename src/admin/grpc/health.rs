//! The standard health service (`grpc.health.v1`): serving while `/readyz` says ready.

use std::time::Duration;

use futures_util::stream;
use tokio::sync::watch;
use tonic::codegen::BoxStream;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

use super::watcher;
use crate::admin::Admin;
use crate::lifecycle::Phase;
use crate::pages::{Share, Shares};
use crate::state_api::v1::proxy_server::ProxyServer;

/// How often a watch looks.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Health {
    admin: Admin,
    watchers: Shares,
}

impl Health {
    pub(super) fn new(admin: Admin, watchers: Shares) -> Self {
        Self { admin, watchers }
    }
}

/// The process as a whole, or the service that tells of it: they are healthy together.
fn is_known(service: &str) -> bool {
    service.is_empty() || service == <ProxyServer<super::proxy::Reader> as NamedService>::NAME
}

async fn status(admin: &Admin) -> ServingStatus {
    if admin.is_ready().await {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !is_known(&request.get_ref().service) {
            return Err(Status::not_found("no such service"));
        }
        Ok(Response::new(response(status(&self.admin).await)))
    }

    type WatchStream = BoxStream<HealthCheckResponse>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watching = Watching {
            phases: self.admin.lifecycle.changes(),
            admin: self.admin.clone(),
            is_known: is_known(&request.get_ref().service),
            told: None,
            _share: watcher(&self.watchers, &request)?,
        };
        let statuses = stream::unfold(watching, Watching::next);
        Ok(Response::new(Box::pin(statuses)))
    }
}

struct Watching {
    admin: Admin,
    phases: watch::Receiver<Phase>,
    is_known: bool,
    told: Option<ServingStatus>,
    _share: Share,
}

impl Watching {
    /// The next status that differs from the one that was told.
    async fn next(mut self) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        loop {
            let phase = *self.phases.borrow_and_update();
            let now = match self.is_known {
                true => status(&self.admin).await,
                // As the protocol wants it: a watch of what does not exist (yet) is no error.
                false => ServingStatus::ServiceUnknown,
            };
            if self.told != Some(now) {
                self.told = Some(now);
                return Some((Ok(response(now)), self));
            }
            if phase == Phase::Ending {
                return None;
            }
            tokio::select! {
                _ = self.phases.changed() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}
