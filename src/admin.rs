//! The admin port: metrics, health, and the plan in force. Nothing here changes anything, save the log level, and that
//! from this machine only.

mod plan_page;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use crate::lifecycle::{Lifecycle, Phase};
use crate::snapshot::{Status, World};
use crate::split::Generation;
use crate::telemetry::{Metrics, Observed, log};

/// What the admin port shows.
#[derive(Clone)]
pub struct Admin {
    pub world: Arc<World>,
    pub status: Arc<Status>,
    pub metrics: Arc<Metrics>,
    pub lifecycle: Lifecycle,
}

type Answer = Response<Full<Bytes>>;

/// Serves the admin port for the life of the process.
pub async fn serve(listener: TcpListener, admin: Admin) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let admin = admin.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let admin = admin.clone();
                async move { Ok::<_, Infallible>(admin.answer(request, peer).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(10))
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%peer, %error, "an admin connection ended");
            }
        });
    }
}

impl Admin {
    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Answer {
        let method = request.method().clone();
        let reads = method == Method::GET || method == Method::HEAD;
        match request.uri().path() {
            "/metrics" if reads => {
                let text = self.metrics.render(&observed(&self.world, &self.status));
                page("text/plain; version=0.0.4; charset=utf-8", text)
            }
            "/livez" if reads => text(StatusCode::OK, "alive\n"),
            "/readyz" if reads => match self.lifecycle.phase() {
                Phase::Ready if self.world.load().can_serve().await => {
                    text(StatusCode::OK, "ready\n")
                }
                Phase::Ready => text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "not ready: no model server can be reached\n",
                ),
                phase => text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    &format!("not ready: {}\n", phase.as_str()),
                ),
            },
            "/plan" if reads => page("application/json", plan_page::render(self)),
            "/log-level" if method == Method::PUT => set_log_level(request, peer).await,
            "/" if reads => text(
                StatusCode::OK,
                "crossfade: /metrics /livez /readyz /plan, PUT /log-level from this machine\n",
            ),
            "/metrics" | "/livez" | "/readyz" | "/plan" | "/" => not_allowed("GET, HEAD"),
            "/log-level" => not_allowed("PUT"),
            _ => text(StatusCode::NOT_FOUND, "no such page: see /\n"),
        }
    }
}

/// What is read off the snapshot when someone asks.
#[must_use]
pub fn observed(world: &World, status: &Status) -> Observed {
    let snapshot = world.load();
    let now = Instant::now();
    let pools = Generation::ALL.map(|generation| match generation {
        Generation::Old => &snapshot.old,
        Generation::New => &snapshot.new,
    });
    Observed {
        wanted: snapshot.plan.weights.share_of_new(),
        epoch: snapshot.epoch,
        plan_age: snapshot.since_instant.elapsed(),
        source_lost: status.lost_for(),
        endpoints: pools.map(|pool| {
            let endpoints = pool.as_ref().map_or(&[][..], |pool| pool.endpoints());
            let healthy = endpoints
                .iter()
                .filter(|endpoint| endpoint.is_healthy(now))
                .count();
            (healthy, endpoints.len())
        }),
    }
}

async fn set_log_level(request: Request<Incoming>, peer: SocketAddr) -> Answer {
    if !peer.ip().to_canonical().is_loopback() {
        return text(
            StatusCode::FORBIDDEN,
            "the log level is set from this machine only\n",
        );
    }
    let Ok(body) = Limited::new(request.into_body(), 1024).collect().await else {
        return text(
            StatusCode::PAYLOAD_TOO_LARGE,
            "a level is a few bytes long\n",
        );
    };
    match log::set_level(&String::from_utf8_lossy(&body.to_bytes())) {
        Ok(()) => text(StatusCode::OK, "set\n"),
        Err(error) => text(StatusCode::BAD_REQUEST, &format!("{error}\n")),
    }
}

fn page(kind: &'static str, body: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

fn text(status: StatusCode, body: &str) -> Answer {
    let mut answer = page("text/plain; charset=utf-8", body.into());
    *answer.status_mut() = status;
    answer
}

fn not_allowed(methods: &'static str) -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "not allowed here\n");
    answer
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(methods));
    answer
}
