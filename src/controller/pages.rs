//! The admin port of a controller: `/livez`, `/readyz`, `/metrics`.
//!
//! Must not know what the controller does.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::Metrics;

/// What a request's head may take.
const HEAD: Duration = Duration::from_secs(10);

/// Serves for as long as it is polled. Ready is who has seen the updates.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, ready: Arc<AtomicBool>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(open(
                stream,
                Arc::clone(&metrics),
                Arc::clone(&ready),
            ))),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn open(stream: TcpStream, metrics: Arc<Metrics>, ready: Arc<AtomicBool>) {
    let service = service_fn(|request| {
        let answer = answer(&request, &metrics, &ready);
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let _ = builder
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn answer(
    request: &Request<Incoming>,
    metrics: &Metrics,
    ready: &AtomicBool,
) -> Response<Full<Bytes>> {
    let (status, body) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, metrics.render()),
        "/livez" => (StatusCode::OK, b"alive\n".to_vec()),
        "/readyz" if ready.load(Ordering::Relaxed) => (StatusCode::OK, b"ready\n".to_vec()),
        "/readyz" => (
            StatusCode::SERVICE_UNAVAILABLE,
            b"not ready: the updates are not listed yet\n".to_vec(),
        ),
        "/" => (
            StatusCode::OK,
            b"crossfade controller: /metrics /livez /readyz\n".to_vec(),
        ),
        _ => (StatusCode::NOT_FOUND, b"no such page: see /\n".to_vec()),
    };
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    answer
}
