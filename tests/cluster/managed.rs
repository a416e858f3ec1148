//! A managed update: a `DynamoRollout` moves workers from old to new and back while clients send requests.
//!
//! The scenarios in the modules below take most of an hour and run only with `make rollouts`.

mod crashes;
mod in_place;
mod kinds;
mod strategies;

use std::cell::Cell;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::fixture::{CONTROLLER, Fixture, eventually, page};
use crate::load::{Load, Shape, assert_none_failed};
use crate::official_clients::OfficialClients;
use crate::rig::proxy::Metrics;
use crate::rollout::{Rollout, phase, processes, signal, since};

const NAME: &str = "chat";
/// Streams that are open at any time.
const STREAMS: usize = 60;
const SHAPE: Shape = Shape {
    words: 10,
    each_ms: 100,
};
/// How long the rollout may take in one direction.
const LONGEST: Duration = Duration::from_secs(240);

/// A rollout, its fixture, and the limits that must hold at any time.
struct Managed {
    rollout: Rollout,
    /// The kind of the workers, as an argument of kubectl.
    kind: &'static str,
    /// The objects with the workers of old and new, one per role.
    names: [Vec<String>; 2],
    /// Where such an object has its number of requested and of ready workers.
    paths: [&'static str; 2],
    /// The maximum number of requested workers.
    max_requested: u64,
    /// The minimum number of ready workers.
    min_ready: u64,
    /// What the leaders that were killed had written to the API server.
    written: Cell<f64>,
}

/// The requested and the ready workers of each role of old and new.
type Sizes = [Vec<(u64, u64)>; 2];

impl Managed {
    /// One role with `full` workers, and a controller that runs rollouts.
    async fn with_workers(full: u32, surge: u64, unavailable: u64) -> Self {
        Self {
            rollout: Rollout {
                fixture: fixture(full).await,
            },
            kind: "deployment",
            names: ["old", "new"].map(|generation| vec![format!("{generation}-worker")]),
            paths: ["/spec/replicas", "/status/readyReplicas"],
            max_requested: u64::from(full) + surge,
            min_ready: u64::from(full) - unavailable,
            written: Cell::new(0.0),
        }
    }

    fn fixture(&self) -> &Fixture {
        &self.rollout.fixture
    }

    fn sizes(&self) -> Sizes {
        let size = |name: &String| {
            let object = self.fixture().cluster.get(&[self.kind, name]);
            let [requested, ready] = self.paths.map(|path| object.pointer(path)?.as_u64());
            (requested.expect("a number"), ready.unwrap_or(0))
        };
        let [old, new] = &self.names;
        [old, new].map(|names| names.iter().map(size).collect())
    }

    /// The requested workers of each role of old and new.
    fn requested(&self) -> [Vec<u64>; 2] {
        let requested = |generation: Vec<(u64, u64)>| {
            generation
                .into_iter()
                .map(|(requested, _)| requested)
                .collect()
        };
        self.sizes().map(requested)
    }

    /// Asserts that there are neither too few ready nor too many requested workers.
    fn assert_limits(&self, status: &Value) {
        let sizes = self.sizes();
        let sum = |of: fn(&(u64, u64)) -> u64| sizes.iter().flatten().map(of).sum::<u64>();
        let requested = sum(|(requested, _)| *requested);
        assert!(requested <= self.max_requested, "{sizes:?}: {status}");
        let ready = sum(|(_, ready)| *ready);
        assert!(ready >= self.min_ready, "{sizes:?}: {status}");
    }

    /// Edits the spec, as a user does.
    fn edit(&self, spec: Value) {
        let patch = json!({ "spec": spec }).to_string();
        let args = ["patch", "dro", NAME, "--type=merge", "-p", &patch];
        self.fixture().cluster.kubectl(&args);
    }

    /// Waits until the rollout is in this phase with its current spec.
    async fn until(&self, wanted: &str) -> Value {
        self.until_with(wanted, async |_| {}).await
    }

    /// Like [`Self::until`], and calls `at_step` after each change of size.
    async fn until_with(&self, wanted: &str, at_step: impl AsyncFnMut(&Self)) -> Value {
        self.until_one_of(&[wanted], at_step).await
    }

    /// Like [`Self::until_with`], for one of several phases. Checks the limits while it waits.
    async fn until_one_of(&self, wanted: &[&str], mut at_step: impl AsyncFnMut(&Self)) -> Value {
        let begun = Instant::now();
        let mut last = self.requested();
        loop {
            let object = self.fixture().cluster.get(&["dro", NAME]);
            let status = &object["status"];
            let phase = status["phase"].as_str().unwrap_or_default();
            let is_seen = status["observedGeneration"] == object["metadata"]["generation"];
            if wanted.contains(&phase) && is_seen {
                println!("{phase} after {}", since(begun));
                return object;
            }
            self.assert_limits(status);
            let now = self.requested();
            if now != last {
                println!("{:>7} {now:?}: {}", since(begun), status["message"]);
                last = now;
                at_step(self).await;
            }
            let is_late = begun.elapsed() >= LONGEST;
            assert!(!is_late, "never {wanted:?}: {last:?}: {status}");
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Starts a load and then the rollout.
    async fn begin(&self, more: &Value) -> Load {
        let load = Load::start_outside_phases(self.fixture().address, STREAMS, SHAPE);
        phase(&load, 0, STREAMS).await;
        self.fixture().cluster.apply(&manifest(more));
        load
    }

    /// Ends the load, asserts that all its streams completed, prints the figures, and deletes the rollout.
    async fn end(&self, load: Load) {
        self.end_after(load, STREAMS).await;
    }

    /// Like [`Self::end`], after this number of streams has started.
    async fn end_after(&self, load: Load, streams: usize) {
        phase(&load, 1, streams).await;
        let took = load.started.elapsed();
        let ended = load.finish();
        assert_none_failed(&ended);
        self.print_figures(took, ended.len(), 0).await;
        self.remove();
    }

    /// Prints the figures of the scenario.
    async fn print_figures(&self, took: Duration, requests: usize, lost: usize) {
        let written = self.written.get() + self.written_by_leader().await;
        println!(
            "figures: {:.1} s, {requests} requests, {lost} lost, {written} writes to the API server",
            took.as_secs_f64()
        );
    }

    /// What the leader has written to the API server since its process started.
    async fn written_by_leader(&self) -> f64 {
        let leader = self.rollout.leader();
        let controllers = self.rollout.controllers();
        let mut all = controllers.iter();
        let Some((_, address)) = all.find(|(name, _)| *name == leader) else {
            return 0.0;
        };
        let address = address.parse().expect("an address");
        // A process that does not respond has just been started again.
        let metrics = page(address, "/metrics").await.unwrap_or_default();
        Metrics::parse(&metrics).sum("crossfade_controller_writes_total", &[])
    }

    async fn kill_the_leader(&self) {
        let written = self.written.get() + self.written_by_leader().await;
        self.written.set(written);
        let own = format!("POD_NAME={}\0", self.rollout.leader());
        signal(&processes("\0controller\0", &own), libc::SIGKILL);
    }

    /// The value of `app` in the selector of the client Service.
    fn client_selector(&self) -> Value {
        let service = self.fixture().cluster.get(&["service", "old"]);
        service["spec"]["selector"]["app"].clone()
    }

    /// Whether there is a Deployment of this name.
    fn is_there(&self, name: &str) -> bool {
        let args = ["get", "deployment", name, "--ignore-not-found"];
        let output = self.fixture().cluster.kubectl(&args);
        !output.trim().is_empty()
    }

    /// Lets the old frontends retry requests on each other (`--old-peers`), or no longer. Dynamo responds with 503 to a request that it
    /// routes to a worker just as that terminates. While new has no worker, nothing else can take the request.
    async fn retry_among_old(&self, retry: bool) {
        const PEERS: &str = "old-peers";
        let cluster = &self.fixture().cluster;
        let mut variable = json!({"name": "CROSSFADE_OLD_PEERS"});
        if retry {
            let service = json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": PEERS, "namespace": "default"},
                "spec": {"selector": {"app": "old-frontend"}, "ports": [{"port": 8000, "targetPort": "http"}]},
            });
            cluster.apply(&service.to_string());
            variable["value"] = json!(format!("http://{PEERS}.default.svc.cluster.local:8000"));
        } else {
            variable["$patch"] = json!("delete");
            cluster.kubectl(&["delete", "service", PEERS]);
        }
        let containers = json!([{"name": "crossfade", "env": [variable]}]);
        let spec = json!({"template": {"spec": {"initContainers": containers}}});
        let patch = json!({ "spec": spec }).to_string();
        cluster.kubectl(&["patch", "deployment", "old-frontend", "-p", &patch]);
        self.fixture().rolled_out("old-frontend");
        self.fixture().settled().await;
    }

    fn remove(&self) {
        self.fixture().cluster.kubectl(&["delete", "dro", NAME]);
    }
}

/// The manifest that the user or Git owns.
fn manifest(more: &Value) -> String {
    let mut spec = json!({
        "source": {"kind": "Deployment", "name": "old-worker"},
        "target": {"kind": "Deployment", "name": "new-worker"},
        "frontends": {"source": "dgd-old", "target": "dgd-new", "service": "new"},
        "clientService": "old",
        "strategy": {"maxSurge": 1, "maxUnavailable": 0},
        "handover": {"clients": "Automatic"},
    });
    for (field, value) in more.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoRollout",
        "metadata": {"name": NAME, "namespace": "default"}, "spec": spec,
    })
    .to_string()
}

/// A controller that runs rollouts with the permissions in `deploy/`, and this number of old workers.
async fn fixture(workers: u32) -> Fixture {
    // A rollout that a failed scenario has left would go on, and the frontends would discover its workers. There may be no such kind yet.
    let cluster = Cluster::around();
    cluster.try_kubectl(&["delete", "dynamorollouts", "--all"], "");
    let set = format!("statefulset/{}", in_place::SET);
    cluster.kubectl(&["delete", &set, "--ignore-not-found"]);
    cluster.kubectl(&["delete", "deployments", "-l", kinds::OBJECT]);
    let fixture = Fixture::with_controller([workers, 0]).await;
    let kubectl = |args: &[&str]| fixture.cluster.kubectl(args);
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/rollout");
    kubectl(&["apply", "-k", deploy]);
    kubectl(&[
        "apply",
        "-n",
        "default",
        "-f",
        &format!("{deploy}/namespace.yaml"),
    ]);
    let [namespace, name] = CONTROLLER;
    let place = "/spec/template/spec/containers/0/args/-";
    let flag = json!([{"op": "add", "path": place, "value": "--rollouts"}]).to_string();
    let deployment = format!("deployment/{name}");
    kubectl(&[
        "patch",
        &deployment,
        "-n",
        namespace,
        "--type=json",
        "-p",
        &flag,
    ]);
    kubectl(&[
        "rollout",
        "status",
        &deployment,
        "-n",
        namespace,
        "--timeout=90s",
    ]);
    fixture
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_managed_update_goes_to_its_end_and_back_and_loses_no_stream() {
    let managed = Managed::with_workers(4, 1, 0).await;
    let load = Load::start_outside_phases(managed.fixture().address, STREAMS, SHAPE);
    phase(&load, 0, STREAMS).await;
    let clients = OfficialClients::start(managed.fixture().address);
    managed.fixture().cluster.apply(&manifest(&json!({})));

    // Like a GitOps tool, applies the same manifest again and again.
    let (over, is_over) = mpsc::channel::<()>();
    let cluster = Cluster::around();
    let applying = std::thread::spawn(move || {
        while is_over.recv_timeout(Duration::from_secs(3)) == Err(RecvTimeoutError::Timeout) {
            cluster.apply(&manifest(&json!({})));
        }
    });
    let mut kills = 2;
    let kill = async |managed: &Managed| {
        if kills > 0 {
            kills -= 1;
            managed.kill_the_leader().await;
        }
    };
    let object = managed.until_with("Complete", kill).await;
    drop(over);
    applying.join().expect("each apply succeeds");
    assert_eq!(object["metadata"]["generation"], 1, "the spec was edited");
    println!("{}", managed.fixture().cluster.kubectl(&["get", "dro"]));
    assert_eq!(managed.sizes(), [vec![(0, 0)], vec![(4, 4)]]);
    let status = &object["status"];
    assert_eq!(status["previousSelector"], json!({"app": "old-frontend"}));
    assert_eq!(managed.client_selector(), "new-frontend");
    phase(&load, 1, STREAMS).await;

    // And back, clients included.
    managed.edit(json!({"undoTo": 1}));
    managed.until("RolledBack").await;
    assert_eq!(managed.sizes(), [vec![(4, 4)], vec![(0, 0)]]);
    assert_eq!(managed.client_selector(), "old-frontend");
    println!("{} responses to the official library", clients.finish());
    managed.end(load).await;
}
