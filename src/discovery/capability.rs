//! Probes endpoints in advance for whether they can continue a text, and renews the results.
//!
//! Sends no probes while the plan does not enable continuation.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use tokio::task::JoinSet;

use crate::continuation::{Mode, Probe};
use crate::guard::{GUARD, GuardCheck};
use crate::http1::NameFilter;
use crate::snapshot::{Snapshot, SnapshotStore};
use crate::upstream::{Demand, Endpoint, GuardField, ModelDemand, Pool};

/// Maximum number of concurrent probes, in total and per endpoint: a server that hangs must not delay the others.
const MAX_CONCURRENT: usize = 16;
const MAX_PER_ENDPOINT: usize = 2;
/// How often to check for probes that are due.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A probe of an endpoint: for its list of models, or about one model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProbeTask {
    endpoint: u64,
    about: Option<ModelDemand>,
}

/// Probes for the life of the process, about the models that endpoints list and those in `demand`.
pub async fn prove_continuations(snapshots: Arc<SnapshotStore>, demand: Arc<Demand>) {
    // Subscribe before the first load, so that no later snapshot is missed.
    let mut changes = snapshots.changes();
    let mut probes: JoinSet<ProbeTask> = JoinSet::new();
    let mut open = HashSet::new();
    // Clients can name models, so at most one new model is added per check.
    let (mut wanted, mut checked) = (demand.take(), Instant::now());
    loop {
        let snapshot = snapshots.load();
        if snapshot.plan.failover.continuation.mode == Mode::Off {
            // Wait for a plan that continues streams, without keeping the pools of this one alive.
            drop(snapshot);
            probes.shutdown().await;
            open.clear();
            let changed = changes.changed().await;
            changed.expect("the sender lives in `snapshots`, which is held here");
            continue;
        }
        if checked.elapsed() >= CHECK_INTERVAL {
            (wanted, checked) = (demand.take(), Instant::now());
        }
        probe_what_is_due(&snapshot, &wanted, &mut probes, &mut open);
        drop(snapshot);
        tokio::select! {
            changed = changes.changed() => {
                changed.expect("the sender lives in `snapshots`, which is held here");
            }
            Some(done) = probes.join_next(), if !probes.is_empty() => match done {
                Ok(task) => {
                    open.remove(&task);
                }
                // It is not known here which probe panicked.
                Err(_) => open.clear(),
            },
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
        }
    }
}

fn probe_what_is_due(
    snapshot: &Snapshot,
    wanted: &[ModelDemand],
    probes: &mut JoinSet<ProbeTask>,
    open: &mut HashSet<ProbeTask>,
) {
    let now = Instant::now();
    let guard = guard(snapshot);
    for (_, pool) in snapshot.pools() {
        for endpoint in pool.endpoints() {
            for task in due(endpoint, wanted, now, snapshot.epoch) {
                let here = open.iter().filter(|open| open.endpoint == endpoint.id);
                if open.len() >= MAX_CONCURRENT || here.count() >= MAX_PER_ENDPOINT {
                    break;
                }
                if !open.insert(task.clone()) {
                    continue;
                }
                let (pool, endpoint) = (Arc::clone(pool), Arc::clone(endpoint));
                probes.spawn(probe(pool, endpoint, task, guard.clone(), snapshot.epoch));
            }
        }
    }
}

/// The probes of `endpoint` that are due at `now`. None while it is ejected, since it would not respond.
fn due(endpoint: &Endpoint, wanted: &[ModelDemand], now: Instant, plan: u64) -> Vec<ProbeTask> {
    if !endpoint.is_healthy(now) {
        return Vec::new();
    }
    let of = |about| ProbeTask {
        endpoint: endpoint.id,
        about,
    };
    let list = endpoint.is_list_due(now, plan).then(|| of(None));
    let mut due: Vec<_> = list.into_iter().collect();
    for probe in Probe::ALL {
        let models = endpoint.models_to_probe(probe, wanted).into_iter();
        let models = models.filter(|model| endpoint.is_proof_due(probe, model, now, plan));
        due.extend(models.map(|model| of(Some((probe, model)))));
    }
    due
}

async fn probe(
    pool: Arc<Pool>,
    endpoint: Arc<Endpoint>,
    task: ProbeTask,
    guard: Option<GuardField>,
    plan: u64,
) -> ProbeTask {
    match &task.about {
        Some((probe, model)) => {
            let proof = pool.prove(&endpoint, (*probe, model), guard.as_ref(), plan);
            proof.await;
        }
        None => pool.list(&endpoint, guard.as_ref(), plan).await,
    }
    task
}

/// The guard header of the plan, so that another proxy of the update responds to a probe itself.
fn guard(snapshot: &Snapshot) -> Option<GuardField> {
    let none = HeaderMap::new();
    match snapshot.guard.check(&none, NameFilter::of(&none)) {
        GuardCheck::Forward(value) => Some((GUARD, value)),
        GuardCheck::AlreadyForwarded | GuardCheck::Loop => None,
    }
}
