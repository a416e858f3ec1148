//! The admin port: metrics, health, the plan in force, a live page, and the same state over gRPC. It changes nothing but the
//! log level and the start of a drain, and these only through the [`local`] socket, which nobody can forward.

pub mod client;
mod grpc;
mod live;
mod local;
mod plan_page;
mod server;
mod state;
mod state_watch;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::header::ORIGIN;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

pub use local::Local;
pub use server::serve;
pub use state::Process;

use crate::continuation::Mode;
#[cfg(test)]
use crate::guard::Guard;
use crate::lifecycle::{Lifecycle, Phase};
use crate::pages::{Answer, Hosts, metrics, not_allowed, not_found, page, reads, text};
#[cfg(test)]
use crate::resource::Plan;
use crate::snapshot::{Snapshot, SnapshotStore, Status};
use crate::split::Generation;
use crate::telemetry::{Metrics, Observed, Proofs, log};

/// What the admin port shows.
#[derive(Clone)]
pub struct Admin {
    pub snapshots: Arc<SnapshotStore>,
    pub status: Arc<Status>,
    pub metrics: Arc<Metrics>,
    pub lifecycle: Lifecycle,
    pub process: Process,
    /// The host names under which it answers.
    pub hosts: Hosts,
}

/// Timeout for a request's body.
const BODY: Duration = Duration::from_secs(10);

/// How long `/drained` waits for a drain to begin. The caller and whoever begins the drain learn of the pod's end at the same
/// time, but on a busy node it takes seconds to start a program in a container, and a caller that is answered too early ends
/// with streams open. Without a drain, a hung frontend that is restarted waits this long too: half of its grace period.
const DRAIN_BEGINS: Duration = Duration::from_secs(15);

impl Admin {
    async fn answer(&self, request: Request<Incoming>, is_local: bool) -> Answer {
        let method = request.method().clone();
        let reads = reads(&method);
        match request.uri().path() {
            "/metrics" if reads => {
                let observed = Observed {
                    moving: self.snapshots.moving(),
                    ..observed(&self.snapshots.load(), &self.status)
                };
                metrics(self.metrics.render(&observed))
            }
            "/livez" if reads => text(StatusCode::OK, "alive\n"),
            "/readyz" if reads => match self.lifecycle.phase() {
                _ if self.is_ready().await => text(StatusCode::OK, "ready\n"),
                Phase::Ready => text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "not ready: cannot reach any model server\n",
                ),
                phase => text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    &format!("not ready: {}\n", phase.as_str()),
                ),
            },
            "/plan" if reads => page("application/json", plan_page::render(self)),
            // A page of a stranger may be open on this machine, and DNS rebinding can make the browser take it for ours.
            // Browsers send an origin with every PUT.
            "/log-level" | "/drain" if request.headers().contains_key(ORIGIN) => {
                text(StatusCode::FORBIDDEN, "not allowed from a browser\n")
            }
            "/log-level" if method == Method::PUT => set_log_level(request, is_local).await,
            "/drain" if method == Method::PUT && is_local => self.drain(),
            "/drain" if method == Method::PUT => forbidden("crossfade drain"),
            "/drained" if reads => self.drained().await,
            "/" if reads => text(
                StatusCode::OK,
                "crossfade: /metrics, /livez, /readyz, /plan, /drained, /live, a page for browsers, gRPC crossfade.v1; `crossfade drain` and `crossfade log-level` in the same container\n",
            ),
            "/metrics" | "/livez" | "/readyz" | "/plan" | "/drained" | "/" => {
                not_allowed("GET, HEAD")
            }
            "/log-level" | "/drain" => not_allowed("PUT"),
            _ => not_found(),
        }
    }

    /// Begins a drain like SIGTERM, but the process stays until it gets that signal.
    fn drain(&self) -> Answer {
        self.lifecycle.advance(Phase::Settling);
        text(StatusCode::OK, "draining\n")
    }

    /// Responds once the last stream has ended. A model server beside this process must not end before.
    async fn drained(&self) -> Answer {
        let begun = self.lifecycle.reached(Phase::Settling);
        if tokio::time::timeout(DRAIN_BEGINS, begun).await.is_err() {
            return text(StatusCode::CONFLICT, "not draining\n");
        }
        self.lifecycle.until_drained().await;
        text(StatusCode::OK, "drained\n")
    }
}

impl Admin {
    /// Does it serve, and can it reach either generation?
    async fn is_ready(&self) -> bool {
        self.lifecycle.phase() == Phase::Ready && self.snapshots.load().can_serve().await
    }
}

/// The metrics that are read off the snapshot at each scrape.
fn observed(snapshot: &Snapshot, status: &Status) -> Observed {
    let now = Instant::now();
    let manifest = snapshot.manifest.as_ref();
    let pools = Generation::ALL.map(|generation| match generation {
        Generation::Old => &snapshot.old,
        Generation::New => &snapshot.new,
    });
    Observed {
        wanted: snapshot.plan.weights.share_of_new(),
        epoch: snapshot.epoch,
        plan_generation: manifest
            .and_then(|manifest| manifest.identity.generation)
            .unwrap_or(0),
        plan_age: snapshot.since_instant.elapsed(),
        source_lost: status.lost_for(),
        conflicts: status.conflicts.load(Ordering::Relaxed),
        endpoints: pools.map(|pool| {
            let endpoints = pool.as_ref().map_or(&[][..], |pool| pool.endpoints());
            let healthy = endpoints
                .iter()
                .filter(|endpoint| endpoint.is_healthy(now))
                .count();
            (healthy, endpoints.len())
        }),
        proofs: proofs(snapshot),
        moving: 0,
    }
}

/// What the endpoints of each generation have proven about continuations. Nothing counts while the plan continues no stream,
/// since no endpoint is asked then.
fn proofs(snapshot: &Snapshot) -> [Proofs; 2] {
    let mut proofs = [Proofs::default(); 2];
    if snapshot.plan.failover.continuation.mode == Mode::Off {
        return proofs;
    }
    let now = Instant::now();
    for (target, pool) in snapshot.pools() {
        let proofs = &mut proofs[target.generation().index()];
        for endpoint in pool.endpoints() {
            for (_, capability) in endpoint.capabilities(now) {
                proofs.add(capability);
            }
        }
    }
    proofs
}

async fn set_log_level(request: Request<Incoming>, is_local: bool) -> Answer {
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

/// The response to a client over TCP, where a forwarded port or a relay looks like this machine.
fn forbidden(verb: &str) -> Answer {
    let hint = format!(
        "not over the network, nor over a forwarded port: run `{verb}` in the same container (kubectl exec), or send SIGTERM to \
         end the process\n"
    );
    text(StatusCode::FORBIDDEN, &hint)
}

#[cfg(test)]
impl Admin {
    /// That of a process that does not serve yet and has no model server.
    fn idle() -> Self {
        let source = "a test".into();
        Self {
            snapshots: SnapshotStore::new(Snapshot {
                epoch: 1,
                plan: Arc::new(Plan::all_old()),
                manifest: None,
                old: None,
                new: None,
                peers: None,
                since: std::time::SystemTime::now(),
                since_instant: Instant::now(),
                source,
                guard: Guard::new(&[], &Default::default(), &[]),
            }),
            status: Arc::default(),
            metrics: Arc::default(),
            lifecycle: Lifecycle::default(),
            process: Process::starts("a-host"),
            hosts: Hosts::default(),
        }
    }
}
