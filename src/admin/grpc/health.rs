//! The standard health service (`grpc.health.v1`): `SERVING` while `/readyz` says ready.

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
use crate::lifecycle::ProcessPhase;
use crate::pages::{Quota, QuotaGuard};
use crate::state_api::v1::proxy_server::ProxyServer;

/// How often a watch checks for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Health {
    admin: Admin,
    watchers: Quota,
}

impl Health {
    pub(super) fn new(admin: Admin, watchers: Quota) -> Self {
        Self { admin, watchers }
    }
}

/// Checks the name of the service: the process as a whole, or the service that serves its state. Both have the same health.
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
        let watching = HealthWatch {
            phases: self.admin.lifecycle.changes(),
            admin: self.admin.clone(),
            is_known: is_known(&request.get_ref().service),
            last: None,
            _share: watcher(&self.watchers, &request)?,
        };
        let statuses = stream::unfold(watching, HealthWatch::next);
        Ok(Response::new(Box::pin(statuses)))
    }
}

struct HealthWatch {
    admin: Admin,
    phases: watch::Receiver<ProcessPhase>,
    is_known: bool,
    last: Option<ServingStatus>,
    _share: QuotaGuard,
}

impl HealthWatch {
    /// The next status that differs from the last one sent.
    async fn next(mut self) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        loop {
            let phase = *self.phases.borrow_and_update();
            let now = match self.is_known {
                true => status(&self.admin).await,
                // As the protocol requires, watching a service that does not exist (yet) is not an error.
                false => ServingStatus::ServiceUnknown,
            };
            if self.last != Some(now) {
                self.last = Some(now);
                return Some((Ok(response(now)), self));
            }
            if phase == ProcessPhase::Ending {
                return None;
            }
            tokio::select! {
                _ = self.phases.changed() => {}
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
        }
    }
}
