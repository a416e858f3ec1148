//! The gRPC services of the admin port: `crossfade.v1`, the standard health service and reflection. All are read-only.

mod health;
mod proxy;

use std::convert::Infallible;
use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{Request, Response, Version};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic_health::pb::health_server::HealthServer;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

use super::Admin;
use crate::pages::{Quota, QuotaGuard};
use crate::state_api::DESCRIPTORS;
use crate::state_api::v1::proxy_server::ProxyServer;

/// Maximum number of watches in total. The state is read separately for each one.
const MAX_WATCHERS: usize = 128;
/// Maximum number of watches per peer, so that other clients cannot take those that the controller needs.
const MAX_WATCHERS_PER_PEER: usize = 8;
/// Requests are a few bytes long.
const LARGEST_REQUEST: usize = 64 * 1024;

type BoxedService = BoxCloneSyncService<Request<Incoming>, Response<Body>, Infallible>;

/// The services by their full names.
#[derive(Clone)]
pub(super) struct Grpc(Arc<[(&'static str, BoxedService)]>);

impl Grpc {
    pub(super) fn new(admin: &Admin) -> Self {
        let watchers = Quota::new(MAX_WATCHERS, MAX_WATCHERS_PER_PEER);
        let proxy = proxy::Reader::new(admin.clone(), watchers.clone());
        let health = health::Health::new(admin.clone(), watchers);
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let broken = "the descriptors come from a compiler";
        Self(Arc::new([
            named(ProxyServer::new(proxy).max_decoding_message_size(LARGEST_REQUEST)),
            named(HealthServer::new(health).max_decoding_message_size(LARGEST_REQUEST)),
            named(
                reflection()
                    .build_v1()
                    .expect(broken)
                    .max_decoding_message_size(LARGEST_REQUEST),
            ),
            // For older tools.
            named(
                reflection()
                    .build_v1alpha()
                    .expect(broken)
                    .max_decoding_message_size(LARGEST_REQUEST),
            ),
        ]))
    }

    /// Whether it is a gRPC request. gRPC needs HTTP/2. Its browser variants (`application/grpc-web`) are not supported.
    pub(super) fn is_meant_by<B>(request: &Request<B>) -> bool {
        let kind = request.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let rest = kind.strip_prefix("application/grpc");
        request.version() == Version::HTTP_2
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
    }

    pub(super) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        let service = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let service = service.and_then(|(wanted, _)| {
            let found = self.0.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, service)| service.clone())
        });
        match service {
            Some(service) => {
                let Ok(answer) = service.oneshot(request).await;
                answer
            }
            None => Status::unimplemented(format!("unknown method {path}")).into_http(),
        }
    }
}

fn named<S>(service: S) -> (&'static str, BoxedService)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    (S::NAME, BoxCloneSyncService::new(service))
}

/// A permit for the sender of `request` to watch, for as long as the permit is held.
fn watcher<T>(watchers: &Quota, request: &tonic::Request<T>) -> Result<QuotaGuard, Status> {
    let share = watchers.take(request.extensions());
    share.ok_or_else(|| {
        Status::resource_exhausted(format!(
            "too many watches: at most {MAX_WATCHERS_PER_PEER} per address and {MAX_WATCHERS} in total"
        ))
    })
}
