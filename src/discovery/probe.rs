//! Actively probes whether each endpoint can serve, which a frontend's `/health` does not show.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header::HOST};
use http_body_util::{BodyExt, Limited};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::memory::Budget;
use crate::model_list;
use crate::request_body::RequestBody;
use crate::resource::{Probe, ProbeKind};
use crate::snapshot::{Snapshot, SnapshotStore};
use crate::transport::deadline;
use crate::upstream::{self, AddedFields, Endpoint, Head, Outgoing, Pool};

/// The largest list of models that is read, in bytes.
const MAX_LIST: usize = 4 * 1024 * 1024;
/// The path where a frontend lists its models.
const MODELS: &str = "/v1/models";
/// The timeout of a probe if the plan configures none.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Probes all endpoints of the plan in force for the life of the process. `default` is the interval for plans that do not
/// configure probes.
pub async fn probe(snapshots: Arc<SnapshotStore>, default: Option<Duration>) {
    // Subscribe before the first load, so that no later snapshot is missed.
    let mut changes = snapshots.changes();
    loop {
        let snapshot = snapshots.load();
        if let Some(probe) = wanted(&snapshot, default) {
            // Do not keep the pools of this snapshot alive.
            drop(snapshot);
            probe_with(&snapshots, &mut changes, default, &probe).await;
            continue;
        }
        // Nothing else would revoke the result of an earlier plan's probe.
        endpoints(&snapshot).for_each(|(_, endpoint)| endpoint.forget_probe());
        drop(snapshot);
        changed(&mut changes).await;
    }
}

/// Probes all endpoints with `probe`, each on its own schedule, until a plan wants another probe. An endpoint that is added is
/// probed at once.
async fn probe_with(
    snapshots: &Arc<SnapshotStore>,
    changes: &mut watch::Receiver<()>,
    default: Option<Duration>,
    probe: &Probe,
) {
    let mut probed = HashSet::new();
    let mut tasks = JoinSet::new();
    loop {
        while let Some(Ok(removed)) = tasks.try_join_next() {
            probed.remove(&removed);
        }
        let snapshot = snapshots.load();
        if wanted(&snapshot, default).as_ref() != Some(probe) {
            break;
        }
        for (_, endpoint) in endpoints(&snapshot) {
            if probed.insert(endpoint.id) {
                tasks.spawn(keep_probing(
                    Arc::clone(snapshots),
                    endpoint.id,
                    probe.clone(),
                ));
            }
        }
        drop(snapshot);
        changed(changes).await;
    }
    // No result of this probe may follow that of the next one.
    tasks.shutdown().await;
}

/// Probes one endpoint until it is removed, and returns its ID.
async fn keep_probing(snapshots: Arc<SnapshotStore>, id: u64, probe: Probe) -> u64 {
    // A snapshot with other settings for connections has another pool with the same endpoint.
    let find = || {
        let snapshot = snapshots.load();
        let mut found = endpoints(&snapshot).filter(|(_, endpoint)| endpoint.id == id);
        let (pool, endpoint) = found.next()?;
        Some((Arc::clone(pool), Arc::clone(endpoint)))
    };
    while let Some((pool, endpoint)) = find() {
        send_probe(pool, endpoint, &probe).await;
        tokio::time::sleep(probe.interval).await;
    }
    id
}

fn endpoints(snapshot: &Snapshot) -> impl Iterator<Item = (&Arc<Pool>, &Arc<Endpoint>)> {
    let pools = [&snapshot.old, &snapshot.new].into_iter().flatten();
    pools.flat_map(|pool| {
        let endpoints = pool.endpoints().iter();
        endpoints.map(move |endpoint| (pool, endpoint))
    })
}

async fn changed(changes: &mut watch::Receiver<()>) {
    let changed = changes.changed().await;
    changed.expect("the sender lives in the snapshot store, which the caller holds");
}

/// How to probe under a plan, if at all.
fn wanted(snapshot: &Snapshot, default: Option<Duration>) -> Option<Probe> {
    let own = default.map(|interval| Probe {
        kind: ProbeKind::AnyModel,
        interval,
        timeout: TIMEOUT,
    });
    snapshot.plan.probe.clone().or(own)
}

/// Probes all endpoints of `pool` concurrently, no matter what probe the plan has, and returns whether any of them can serve
/// requests. Does not change their health.
///
/// Any response counts, even status 404, except for a server error or an empty list of models: an endpoint that reports that
/// it cannot serve must not get all requests.
#[cfg(feature = "kube")]
pub async fn any_answers(pool: &Arc<Pool>) -> bool {
    let mut probes = JoinSet::new();
    for endpoint in pool.endpoints() {
        let (pool, endpoint) = (Arc::clone(pool), Arc::clone(endpoint));
        probes.spawn(async move {
            let answer = get(&pool, &endpoint, MODELS).await;
            answer.is_ok_and(|(status, body)| {
                !status.is_server_error() && model_list::has_entry(&body) != Some(false)
            })
        });
    }
    while let Some(answer) = probes.join_next().await {
        if answer.unwrap_or(false) {
            return true;
        }
    }
    false
}

async fn send_probe(pool: Arc<Pool>, endpoint: Arc<Endpoint>, probe: &Probe) {
    let answered = deadline::timeout(probe.timeout, can_serve(&pool, &endpoint, &probe.kind)).await;
    let was = endpoint.is_healthy(std::time::Instant::now());
    let is = match answered {
        // This host could not connect, which says nothing about the endpoint.
        Some(None) => return,
        Some(Some(is)) => is,
        None => false,
    };
    endpoint.probed(is);
    if was != is {
        tracing::info!(endpoint = %endpoint.address, healthy = is, "probe");
    }
}

/// Whether an endpoint can serve; `None` if this host cannot open a connection.
async fn can_serve(pool: &Pool, endpoint: &Arc<Endpoint>, question: &ProbeKind) -> Option<bool> {
    let path = match question {
        ProbeKind::AnyModel => MODELS.to_owned(),
        ProbeKind::Model(model) => format!("/v1/models/{model}/ready"),
        ProbeKind::Path(path) => path.to_string(),
    };
    let (status, body) = match get(pool, endpoint, &path).await {
        Ok(answer) => answer,
        Err(NoResponse::LocalExhaustion) => return None,
        Err(NoResponse::Endpoint) => return Some(false),
    };
    let lists = || model_list::has_entry(&body) == Some(true);
    Some(status == StatusCode::OK && (!matches!(question, ProbeKind::AnyModel) || lists()))
}

/// Why there is no response.
enum NoResponse {
    /// This host cannot open a connection.
    LocalExhaustion,
    /// The endpoint does not respond, or the response is too long.
    Endpoint,
}

/// Sends a GET request to an endpoint and reads the whole response.
async fn get(
    pool: &Pool,
    endpoint: &Arc<Endpoint>,
    path: &str,
) -> Result<(StatusCode, Bytes), NoResponse> {
    let mut headers = HeaderMap::new();
    if let Ok(host) = HeaderValue::try_from(endpoint.address.to_string()) {
        headers.insert(HOST, host);
    }
    let head = Head {
        method: Method::GET,
        uri: path.parse::<Uri>().map_err(|_| NoResponse::Endpoint)?,
        headers,
        added: AddedFields::default(),
        expects_continue: false,
    };
    let outgoing = Outgoing {
        head: &head,
        extra: None,
        memory: &Budget::new(2 * MAX_LIST),
    };
    let response = pool.send_to(endpoint, outgoing, RequestBody::empty()).await;
    let response = response.map_err(|error| match error {
        upstream::Error::Exhausted { .. } => NoResponse::LocalExhaustion,
        _ => NoResponse::Endpoint,
    })?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_LIST).collect().await;
    let body = body.map_err(|_| NoResponse::Endpoint)?;
    Ok((status, body.to_bytes()))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Wake, Waker};
    use std::time::{Instant, SystemTime};

    use super::*;
    use crate::guard::Guard;
    use crate::resource::Plan;
    use crate::split::{SplitPolicy, Weights};

    /// A snapshot without servers.
    fn snapshot(probe: Option<Probe>) -> Snapshot {
        let plan = Plan {
            probe,
            ..Plan::all_old()
        };
        Snapshot {
            epoch: 1,
            plan: Arc::new(plan),
            manifest: None,
            old: None,
            new: None,
            peers: None,
            since: SystemTime::now(),
            since_instant: Instant::now(),
            source: "a test".into(),
            guard: Guard::new(&[], &Default::default(), &[]),
            split: SplitPolicy::new(Weights::ALL_OLD, 0),
        }
    }

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn until_a_plan_wants_probes_only_the_news_of_a_plan_wakes_and_no_clock() {
        let snapshots = SnapshotStore::new(snapshot(None));
        let woken = Arc::new(Woken::default());
        let wakes = || woken.0.swap(0, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let mut probing = pin!(probe(Arc::clone(&snapshots), None));
        // There is no runtime in this test, so a timer would panic.
        let mut poll = || assert!(probing.as_mut().poll(&mut cx).is_pending());
        poll();
        snapshots.store(snapshot(None));
        assert_eq!(wakes(), 1);
        poll();
        assert_eq!(wakes(), 0, "a snapshot that was seen is no longer new");
        snapshots.store(snapshot(Some(Probe {
            kind: ProbeKind::AnyModel,
            interval: TIMEOUT,
            timeout: TIMEOUT,
        })));
        assert_eq!(wakes(), 1);
    }
}
