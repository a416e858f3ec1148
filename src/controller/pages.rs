//! The admin port of the controller: `/livez`, `/readyz`, `/metrics`, and the live page over all proxies.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::MissedTickBehavior;

use super::Metrics;
use super::dashboard::Dashboard;
use crate::pages::{
    Answer, Connections, Hosts, LivePage, Peer, limited, metrics, not_allowed, not_found, reads,
    text,
};
use crate::transport::accept::AcceptErrors;

/// Timeout for reading a request head.
const HEAD: Duration = Duration::from_secs(10);

/// What the admin port serves.
#[derive(Clone)]
pub struct Pages {
    pub(super) metrics: Arc<Metrics>,
    /// True once the updates are listed.
    pub(super) ready: Arc<AtomicBool>,
    pub(super) dashboard: Arc<Dashboard>,
    pub(super) live: LivePage,
    /// The host names that requests may use.
    pub(super) hosts: Hosts,
}

/// Serves the admin port for as long as it is polled, and samples the dashboard once a second.
pub async fn serve(listener: TcpListener, pages: Pages) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (seats, mut errors) = (Connections::default(), AcceptErrors::default());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    errors.cleared();
                    if let Some(seat) = seats.take(peer.ip()) {
                        let open = pages.clone().open(stream, peer.ip().into());
                        tokio::spawn(async move {
                            open.await;
                            drop(seat);
                        });
                    }
                }
                Err(error) => tokio::time::sleep(errors.pause(&error, Instant::now())).await,
            },
            _ = seconds.tick() => pages.dashboard.sample(),
        }
    }
}

impl Pages {
    async fn open(self, stream: TcpStream, peer: Peer) {
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            let answer = self.answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
        let _ = builder
            .serve_connection(TokioIo::new(limited(stream)), service)
            .await;
    }

    fn answer(&self, request: &Request<Incoming>) -> Answer {
        if let Some(refusal) = self.hosts.refusal(request) {
            return refusal;
        }
        let tellings = |query: Option<&str>| self.dashboard.tellings(query);
        if let Some(answer) = self.live.answer(request, tellings) {
            return answer;
        }
        let path = request.uri().path();
        if !matches!(path, "/metrics" | "/livez" | "/readyz" | "/") {
            return not_found();
        }
        if !reads(request.method()) {
            return not_allowed("GET, HEAD");
        }
        match path {
            "/metrics" => metrics(self.metrics.render()),
            "/livez" => text(StatusCode::OK, "alive\n"),
            "/readyz" if self.ready.load(Ordering::Relaxed) => text(StatusCode::OK, "ready\n"),
            "/readyz" => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "not ready: the updates are not listed yet\n",
            ),
            _ => text(
                StatusCode::OK,
                "crossfade controller: /metrics /livez /readyz, /live?update=NAMESPACE/NAME, a page for browsers\n",
            ),
        }
    }
}
