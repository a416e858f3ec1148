//! A managed update: a `DynamoRollout` moves four workers from old to new and back, beneath clients that never pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::load::{Load, Shape, assert_all_well};
use crate::rollout::{Rollout, phase, processes, signal, since};
use crate::stage::{CONTROLLER, Stage};

const NAME: &str = "chat";
/// Streams that are open at any time.
const STREAMS: usize = 60;
const SHAPE: Shape = Shape {
    words: 10,
    each_ms: 100,
};
/// How long the rollout may take in one direction.
const LONGEST: Duration = Duration::from_secs(240);
const SURGE: u64 = 1;
const FULL: u64 = 4;

/// What a person or Git owns.
fn manifest() -> String {
    json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoRollout",
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {
            "source": {"kind": "Deployment", "name": "old-worker"},
            "target": {"kind": "Deployment", "name": "new-worker"},
            "frontends": {"source": "dgd-old", "target": "dgd-new", "service": "new"},
            "clientService": "old",
            "strategy": {"maxSurge": SURGE, "maxUnavailable": 0},
            "handover": {"clients": "Automatic"},
        },
    })
    .to_string()
}

/// A controller that carries out rollouts, with the permissions in `deploy/`.
async fn stage() -> Stage {
    let stage = Stage::with_controller([4, 0]).await;
    let kubectl = |args: &[&str]| stage.cluster.kubectl(args);
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/rollout");
    kubectl(&["delete", "dynamorollouts", "--all"]);
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
    stage
}

/// What is asked for, and what is ready, of old and new.
fn sizes(stage: &Stage) -> [(u64, u64); 2] {
    ["old-worker", "new-worker"].map(|name| {
        let deployment = stage.cluster.get(&["deployment", name]);
        let ready = deployment["status"]["readyReplicas"].as_u64();
        let asked = deployment["spec"]["replicas"].as_u64();
        (asked.expect("a number"), ready.unwrap_or(0))
    })
}

/// Waits until the rollout is in this phase, and checks its limits meanwhile. Kills the leading controller at each new size,
/// up to `kills` times.
async fn until(rollout: &Rollout, wanted: &str, generation: u64, mut kills: usize) -> Value {
    let begun = Instant::now();
    let mut last = sizes(&rollout.stage).map(|(asked, _)| asked);
    loop {
        let object = rollout.stage.cluster.get(&["dro", NAME]);
        let status = &object["status"];
        assert_eq!(object["metadata"]["generation"], generation, "{object}");
        if status["phase"] == wanted && status["observedGeneration"] == generation {
            println!("{wanted} after {}", since(begun));
            return object;
        }
        let [old, new] = sizes(&rollout.stage);
        assert!(old.0 + new.0 <= FULL + SURGE, "{old:?} {new:?}: {status}");
        assert!(old.1 + new.1 >= FULL, "{old:?} {new:?}: {status}");
        let now = [old.0, new.0];
        if now != last {
            last = now;
            println!("{:>7} {now:?}: {}", since(begun), status["message"]);
            if kills > 0 {
                kills -= 1;
                let own = format!("POD_NAME={}\0", rollout.leader());
                signal(&processes("\0controller\0", &own), libc::SIGKILL);
            }
        }
        assert!(
            begun.elapsed() < LONGEST,
            "never {wanted}: {now:?}: {status}"
        );
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_managed_update_goes_to_its_end_and_back_and_loses_no_stream() {
    let rollout = Rollout {
        stage: stage().await,
    };
    let load = Load::aside(rollout.stage.address, STREAMS, SHAPE);
    phase(&load, 0, STREAMS).await;
    rollout.stage.cluster.apply(&manifest());

    // A tool that applies what is in Git, again and again.
    let stop = Arc::new(AtomicBool::new(false));
    let applying = std::thread::spawn({
        let (stop, cluster) = (Arc::clone(&stop), Cluster::around());
        move || {
            while !stop.load(Ordering::Relaxed) {
                cluster.apply(&manifest());
                std::thread::sleep(Duration::from_secs(3));
            }
        }
    });
    let object = until(&rollout, "Complete", 1, 2).await;
    stop.store(true, Ordering::Relaxed);
    applying.join().expect("each apply succeeds");
    println!("{}", rollout.stage.cluster.kubectl(&["get", "dro"]));
    assert_eq!(sizes(&rollout.stage), [(0, 0), (FULL, FULL)]);
    assert_eq!(
        object["status"]["previousSelector"],
        json!({"app": "old-frontend"})
    );
    let service = rollout.stage.cluster.get(&["service", "old"]);
    assert_eq!(service["spec"]["selector"]["app"], "new-frontend");
    phase(&load, 1, STREAMS).await;

    // And back, clients included.
    let undo = json!({"spec": {"undoTo": 1}}).to_string();
    rollout
        .stage
        .cluster
        .kubectl(&["patch", "dro", NAME, "--type=merge", "-p", &undo]);
    until(&rollout, "RolledBack", 2, 0).await;
    assert_eq!(sizes(&rollout.stage), [(FULL, FULL), (0, 0)]);
    let service = rollout.stage.cluster.get(&["service", "old"]);
    assert_eq!(service["spec"]["selector"]["app"], "old-frontend");
    phase(&load, 2, STREAMS).await;

    let ended = load.finish();
    assert_all_well(&ended);
    println!("{} streams, none failed or cut", ended.len());
    rollout.stage.cluster.kubectl(&["delete", "dro", NAME]);
}
