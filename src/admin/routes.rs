//! The paths of a proxy's admin port, apart from gRPC.

use std::time::Duration;

use axum::Router;
use axum::extract::{FromRef, Request, State};
use axum::routing::{get, put};
use http::header::ORIGIN;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Limited};

use super::live::Live;
use super::{Admin, plan_page};
use crate::lifecycle::ProcessPhase;
use crate::pages::{PageResponse, Peer, Routes, metrics, page, text};
use crate::telemetry::log;

/// Timeout for a request's body.
const BODY: Duration = Duration::from_secs(10);

/// How long `/drained` waits for a drain to begin. The caller and the process that starts the drain are notified at the same time
/// that the pod terminates. But on a busy node, it takes seconds to start a program in a container, and a caller that gets its
/// answer too early exits with open streams. A hung frontend that is restarted without a drain also waits this long, which is
/// half of its grace period.
const DRAIN_BEGINS: Duration = Duration::from_secs(15);

const ABOUT: &str = "crossfade: /metrics, /livez, /readyz, /plan, /drained, /live, a page for browsers, gRPC crossfade.v1; \
                     `crossfade drain` and `crossfade log-level` in the same container\n";

#[derive(Clone)]
struct RouteState {
    admin: Admin,
    live: Live,
}

impl FromRef<RouteState> for Admin {
    fn from_ref(shown: &RouteState) -> Self {
        shown.admin.clone()
    }
}

impl FromRef<RouteState> for Live {
    fn from_ref(shown: &RouteState) -> Self {
        shown.live.clone()
    }
}

pub(super) fn routes(admin: Admin, live: Live) -> Routes {
    let paths = Router::new()
        .route("/", get(about))
        .route("/live", get(stream))
        .route("/metrics", get(exposition))
        .route("/livez", get(async || text(StatusCode::OK, "alive\n")))
        .route("/readyz", get(readiness))
        .route("/plan", get(plan))
        .route("/drained", get(drained))
        .route("/drain", put(drain))
        .route("/log-level", put(set_log_level))
        .with_state(RouteState { admin, live });
    Routes::new(paths)
}

async fn about(State(live): State<Live>, headers: HeaderMap) -> PageResponse {
    let document = live.document_for(&headers);
    document.unwrap_or_else(|| text(StatusCode::OK, ABOUT))
}

async fn stream(State(live): State<Live>, request: Request) -> PageResponse {
    live.stream(request.extensions())
}

async fn exposition(State(admin): State<Admin>) -> PageResponse {
    metrics(admin.metrics.render(&admin.observed()))
}

async fn readiness(State(admin): State<Admin>) -> PageResponse {
    let why = match admin.lifecycle.phase() {
        _ if admin.is_ready().await => return text(StatusCode::OK, "ready\n"),
        ProcessPhase::Ready => "cannot reach any model server",
        phase => phase.as_str(),
    };
    text(
        StatusCode::SERVICE_UNAVAILABLE,
        &format!("not ready: {why}\n"),
    )
}

async fn plan(State(admin): State<Admin>) -> PageResponse {
    page("application/json", plan_page::render(&admin))
}

/// Begins a drain, like SIGTERM, but the process keeps running until it gets that signal.
async fn drain(State(admin): State<Admin>, request: Request) -> PageResponse {
    if let Some(refusal) = from_a_browser(&request) {
        return refusal;
    }
    if !is_local(&request) {
        return forbidden("crossfade drain");
    }
    admin.lifecycle.advance(ProcessPhase::Settling);
    text(StatusCode::OK, "draining\n")
}

/// Responds once the last stream has ended. A model server in the same pod must not exit earlier.
async fn drained(State(admin): State<Admin>) -> PageResponse {
    let begun = admin.lifecycle.reached(ProcessPhase::Settling);
    if tokio::time::timeout(DRAIN_BEGINS, begun).await.is_err() {
        return text(StatusCode::CONFLICT, "not draining\n");
    }
    admin.lifecycle.until_drained().await;
    text(StatusCode::OK, "drained\n")
}

async fn set_log_level(request: Request) -> PageResponse {
    if let Some(refusal) = from_a_browser(&request) {
        return refusal;
    }
    let is_local = is_local(&request);
    let body = Limited::new(request.into_body(), 1024).collect();
    let Ok(body) = tokio::time::timeout(BODY, body).await else {
        return text(StatusCode::REQUEST_TIMEOUT, "timed out reading the level\n");
    };
    let Ok(body) = body else {
        return text(StatusCode::PAYLOAD_TOO_LARGE, "the level is too long\n");
    };
    let level = String::from_utf8_lossy(&body.to_bytes()).parse::<log::Level>();
    match level {
        Err(error) => text(StatusCode::BAD_REQUEST, &format!("{error}\n")),
        Ok(_) if !is_local => forbidden("crossfade log-level"),
        Ok(level) => match log::set_level(&level) {
            Ok(()) => text(StatusCode::OK, "set\n"),
            Err(error) => text(StatusCode::CONFLICT, &format!("{error}\n")),
        },
    }
}

/// Whether the request arrived over the local socket. Clients over TCP are peers.
fn is_local(request: &Request) -> bool {
    request.extensions().get::<Peer>().is_none()
}

/// Rejects requests from browsers, because DNS rebinding can make a browser treat a malicious page as ours. Browsers send an
/// `Origin` with every PUT.
fn from_a_browser(request: &Request) -> Option<PageResponse> {
    let has_origin = request.headers().contains_key(ORIGIN);
    has_origin.then(|| text(StatusCode::FORBIDDEN, "not available from a browser\n"))
}

/// The response to a client over TCP, where a forwarded port or a relay looks like this machine.
fn forbidden(verb: &str) -> PageResponse {
    let hint = format!(
        "not available over the network or a forwarded port: run `{verb}` in the same container (kubectl exec), or send SIGTERM to \
         end the process\n"
    );
    text(StatusCode::FORBIDDEN, &hint)
}
