//! The admin port: metrics, health, the plan in force, a live page, and the same state over gRPC. It can only change the log
//! level and start a drain, and only through the [`local`] socket, which cannot be forwarded.

pub mod client;
mod grpc;
mod live;
mod local;
mod plan_page;
mod routes;
mod server;
mod state;
mod state_watch;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub use local::Local;
pub use server::serve;
pub use state::Process;

use crate::continuation::{Mode, Probe};
#[cfg(test)]
use crate::guard::Guard;
use crate::lifecycle::{Lifecycle, ProcessPhase};
use crate::pages::Hosts;
#[cfg(test)]
use crate::resource::Plan;
use crate::snapshot::{Snapshot, SnapshotStore, Status};
#[cfg(test)]
use crate::split::{SplitPolicy, Weights};
use crate::state_api::v1;
use crate::telemetry::{Metrics, Observed, ProofCounts};

/// The state behind the admin port.
#[derive(Clone)]
pub struct Admin {
    pub snapshots: Arc<SnapshotStore>,
    pub status: Arc<Status>,
    pub metrics: Arc<Metrics>,
    pub lifecycle: Lifecycle,
    pub process: Process,
    /// The targets that do not come from a plan.
    pub fixed_targets: Arc<v1::FixedTargets>,
    /// The host names for which the admin port answers.
    pub hosts: Hosts,
}

impl Admin {
    /// Whether it serves, and can reach either generation.
    async fn is_ready(&self) -> bool {
        self.lifecycle.phase() == ProcessPhase::Ready && self.snapshots.load().can_serve().await
    }

    /// The metrics that are read from the snapshot at each scrape.
    fn observed(&self) -> Observed {
        let (snapshot, now) = (self.snapshots.load(), Instant::now());
        let manifest = snapshot.manifest.as_ref();
        Observed {
            wanted: snapshot.plan.weights.share_of_new(),
            epoch: snapshot.epoch,
            plan_generation: manifest
                .and_then(|manifest| manifest.identity.generation)
                .unwrap_or(0),
            plan_age: snapshot.since_instant.elapsed(),
            source_lost: self.status.lost_for(),
            conflicts: self.status.conflicts.load(Ordering::Relaxed),
            verdict: self
                .status
                .analysis_result(&snapshot.plan)
                .map(|result| (result.verdict, result.reason)),
            endpoints: endpoints(&snapshot, now),
            proofs: proofs(&snapshot),
            moving: self.snapshots.moving(),
        }
    }
}

/// The number of healthy endpoints, and of all endpoints, per generation.
fn endpoints(snapshot: &Snapshot, now: Instant) -> [(usize, usize); 2] {
    [&snapshot.old, &snapshot.new].map(|pool| {
        let endpoints = pool.as_ref().map_or(&[][..], |pool| pool.endpoints());
        let healthy = endpoints.iter().filter(|endpoint| endpoint.is_healthy(now));
        (healthy.count(), endpoints.len())
    })
}

/// What the endpoints of each generation have proven about continuations. Empty while the plan does not continue streams, since
/// endpoints are not asked then.
fn proofs(snapshot: &Snapshot) -> [ProofCounts; 2] {
    let mut proofs = [ProofCounts::default(); 2];
    if snapshot.plan.failover.continuation.mode == Mode::Off {
        return proofs;
    }
    let now = Instant::now();
    for (target, pool) in snapshot.pools() {
        let proofs = &mut proofs[target.generation().index()];
        for endpoint in pool.endpoints() {
            for probe in Probe::ALL {
                for (_, capability) in endpoint.capabilities(probe, now) {
                    proofs.add(probe, capability);
                }
            }
        }
    }
    proofs
}

#[cfg(test)]
impl Admin {
    /// The state of a process that does not serve yet and has no model server.
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
                split: SplitPolicy::new(Weights::ALL_OLD, 0),
            }),
            status: Arc::default(),
            metrics: Arc::default(),
            lifecycle: Lifecycle::default(),
            process: Process::starts("a-host"),
            fixed_targets: Arc::default(),
            hosts: Hosts::default(),
        }
    }
}
