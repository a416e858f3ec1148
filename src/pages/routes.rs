//! The paths of an admin port.

use axum::Router;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use tonic::body::Body;
use tower::ServiceExt;

use super::{PageResponse, text};

/// The paths of an admin port. A request for another path gets 404, and one with another method 405 with `Allow` (RFC 9110
/// §15.5.6). Clones share the paths.
#[derive(Clone)]
pub struct Routes(Router);

impl Routes {
    #[must_use]
    pub fn new(paths: Router) -> Self {
        let unknown = async || text(StatusCode::NOT_FOUND, "no such page: see /\n");
        let not_allowed = async || text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
        Self(
            paths
                .fallback(unknown)
                .method_not_allowed_fallback(not_allowed),
        )
    }

    /// The response to `request`. Yields after each response, because Hyper would otherwise answer up to sixteen pipelined
    /// requests of a connection at a time, and a client could keep the kubelet waiting.
    pub async fn answer(&self, request: Request<Incoming>) -> PageResponse {
        tokio::task::yield_now().await;
        let Ok(answer) = self.0.clone().oneshot(request).await;
        answer.map(Body::new)
    }
}
