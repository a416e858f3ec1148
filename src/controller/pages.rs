//! The admin port of the controller: `/livez`, `/readyz`, `/metrics`, and the live page over all proxies.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::MissedTickBehavior;

use super::Metrics;
use super::dashboard::Dashboard;
use crate::pages::{
    Connections, Hosts, LivePage, MAX_HEAD, PageResponse, Peer, Routes, limited, metrics, text,
};
use crate::transport::accept::AcceptErrors;

/// Timeout for reading a request head.
const HEAD: Duration = Duration::from_secs(10);

const ABOUT: &str = "crossfade controller: /metrics /livez /readyz, /live?update=NAMESPACE/NAME, a page for browsers\n";

/// The state behind the controller's admin port.
#[derive(Clone)]
pub struct Pages {
    pub(super) metrics: Arc<Metrics>,
    /// True once the updates are listed.
    pub(super) ready: Arc<AtomicBool>,
    pub(super) dashboard: Arc<Dashboard>,
    pub(super) live: LivePage,
    /// The host names for which the admin port answers.
    pub(super) hosts: Hosts,
}

/// Serves the admin port for as long as it is polled, and samples the dashboard once a second.
pub async fn serve(listener: TcpListener, pages: Pages) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (seats, mut errors) = (Connections::default(), AcceptErrors::default());
    let (hosts, dashboard) = (pages.hosts.clone(), Arc::clone(&pages.dashboard));
    let routes = pages.routes();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    errors.cleared();
                    if let Some(seat) = seats.take(peer.ip()) {
                        let open = open(stream, peer.ip().into(), hosts.clone(), routes.clone());
                        tokio::spawn(async move {
                            open.await;
                            drop(seat);
                        });
                    }
                }
                Err(error) => tokio::time::sleep(errors.pause(&error, Instant::now())).await,
            },
            _ = seconds.tick() => dashboard.sample(),
        }
    }
}

impl Pages {
    fn routes(self) -> Routes {
        let paths = Router::new()
            .route("/", get(about))
            .route("/live", get(stream))
            .route("/metrics", get(exposition))
            .route("/livez", get(async || text(StatusCode::OK, "alive\n")))
            .route("/readyz", get(readiness))
            .with_state(self);
        Routes::new(paths)
    }
}

async fn open(stream: TcpStream, peer: Peer, hosts: Hosts, routes: Routes) {
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let (hosts, routes) = (&hosts, &routes);
        async move {
            Ok::<_, Infallible>(match hosts.refusal(&request) {
                Some(refusal) => refusal,
                None => routes.answer(request).await,
            })
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .max_buf_size(MAX_HEAD)
        .header_read_timeout(HEAD);
    let _ = builder
        .serve_connection(TokioIo::new(limited(stream)), service)
        .await;
}

async fn about(State(pages): State<Pages>, headers: HeaderMap) -> PageResponse {
    let document = pages.live.document_for(&headers);
    document.unwrap_or_else(|| text(StatusCode::OK, ABOUT))
}

async fn stream(State(pages): State<Pages>, request: axum::extract::Request) -> PageResponse {
    match pages.dashboard.states(request.uri().query()) {
        Ok(states) => pages.live.stream(request.extensions(), states),
        Err(refusal) => refusal.into(),
    }
}

async fn exposition(State(pages): State<Pages>) -> PageResponse {
    metrics(pages.metrics.render())
}

async fn readiness(State(pages): State<Pages>) -> PageResponse {
    if pages.ready.load(Ordering::Relaxed) {
        return text(StatusCode::OK, "ready\n");
    }
    text(
        StatusCode::SERVICE_UNAVAILABLE,
        "not ready: the updates are not listed yet\n",
    )
}
