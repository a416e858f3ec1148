//! Managed updates with other strategies and faults: limits, roles, holds, aborts, and quotas.

use std::cell::Cell;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::*;
use crate::analysis::Clients;
use crate::fixture::long_tests_enabled;
use crate::prefill_decode::create_role;

/// Streams that last longer than the hand-over.
const LONG: Shape = Shape {
    words: 60,
    each_ms: 500,
};

impl Managed {
    /// Asserts that nothing is written for some seconds.
    async fn assert_no_writes(&self) {
        let written = || {
            let version = |kind: &str, name: &str| {
                let object = self.fixture().cluster.get(&[kind, name]);
                object["metadata"]["generation"].clone()
            };
            let names = self.names.iter().flatten();
            let mut all: Vec<_> = names.map(|name| version(self.kind, name)).collect();
            all.push(version("duc", NAME));
            all
        };
        let before = written();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            assert_eq!(written(), before);
            // A poll interval.
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until the status of the rollout contains this text.
    async fn wait_for_status_text(&self, what: &str) -> Value {
        let mut object = Value::Null;
        eventually(what, async || {
            object = self.fixture().cluster.get(&["dro", NAME]);
            object["status"].to_string().contains(what)
        })
        .await;
        object
    }
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn four_prefill_and_two_decode_workers_keep_their_proportion() {
    if !long_tests_enabled() {
        return;
    }
    let roles = ["prefill", "decode"];
    let managed = Managed {
        names: ["old", "new"]
            .map(|generation| roles.map(|role| format!("{generation}-{role}")).into()),
        // A unit is at most two workers.
        max_requested: 8,
        min_ready: 6,
        ..Managed::with_workers(0, 0, 0).await
    };
    for (role, full) in roles.into_iter().zip([4, 2]) {
        create_role(managed.fixture(), "old", role, full);
        create_role(managed.fixture(), "new", role, 0);
        managed.fixture().rolled_out(&format!("old-{role}"));
    }
    managed.fixture().with_model("old").await;
    let generation = |generation: &str| {
        let of = |role: &str| json!({"kind": "Deployment", "name": format!("{generation}-{role}")});
        json!({"roles": {"prefill": of("prefill"), "decode": of("decode")}})
    };
    let load = managed
        .begin(&json!({"source": generation("old"), "target": generation("new")}))
        .await;
    let keeps = async |managed: &Managed| {
        eventually("both generations are whole units", async || {
            let whole = [[0, 0], [1, 1], [2, 1], [3, 2], [4, 2]];
            let requested = managed.requested();
            requested
                .iter()
                .all(|generation| whole.iter().any(|unit| unit == &generation[..]))
        })
        .await;
    };
    managed.until_with("Complete", keeps).await;
    assert_eq!(managed.requested(), [vec![0, 0], vec![4, 2]]);
    let cluster = Cluster::around();
    managed.end(load).await;
    for generation in ["old", "new"] {
        for role in roles {
            let name = format!("{generation}-{role}");
            cluster.kubectl(&["delete", "deployment,service", &name, "--wait=false"]);
        }
    }
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn without_surge_a_worker_of_old_makes_room_for_each_of_new() {
    if !long_tests_enabled() {
        return;
    }
    let managed = Managed::with_workers(3, 0, 1).await;
    managed.retry_among_old(true).await;
    managed.fixture().with_model("old").await;
    let strategy = json!({"strategy": {"maxSurge": 0, "maxUnavailable": 1}});
    let load = managed.begin(&strategy).await;
    managed.until("Complete").await;
    assert_eq!(managed.requested(), [vec![0], vec![3]]);
    managed.end(load).await;
    managed.retry_among_old(false).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_partition_and_a_hold_stop_a_rollout_where_it_is() {
    if !long_tests_enabled() {
        return;
    }
    let managed = Managed::with_workers(4, 1, 0).await;
    let strategy = json!({"strategy": {"maxSurge": 1, "maxUnavailable": 0, "partition": 2}});
    let load = managed.begin(&strategy).await;
    managed.until("Partition").await;
    assert_eq!(managed.requested(), [vec![2], vec![2]]);
    managed.assert_no_writes().await;
    managed.edit(json!({"intent": "Hold", "strategy": {"partition": 0}}));
    managed.until("Held").await;
    managed.assert_no_writes().await;
    assert_eq!(managed.requested(), [vec![2], vec![2]]);
    managed.edit(json!({"intent": "Run"}));
    managed.until("Complete").await;
    assert_eq!(managed.requested(), [vec![0], vec![4]]);
    managed.end(load).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_rollout_can_be_aborted_at_each_step() {
    if !long_tests_enabled() {
        return;
    }
    let managed = Managed::with_workers(2, 1, 0).await;
    let load = managed.begin(&json!({})).await;
    // A step is identified by its sizes. An edit may come too late for a step that is over at once.
    for (old, new) in [(2, 1), (1, 1), (1, 2), (0, 2)] {
        let was_there = Cell::new(false);
        let abort = async |managed: &Managed| {
            if !was_there.get() && managed.requested() == [vec![old], vec![new]] {
                was_there.set(true);
                println!("aborting at {old} and {new}");
                managed.edit(json!({"intent": "Abort"}));
            }
        };
        managed
            .until_one_of(&["Complete", "RolledBack"], abort)
            .await;
        assert!(was_there.get(), "never {old} and {new}");
        managed.until("RolledBack").await;
        assert_eq!(managed.sizes(), [vec![(2, 2)], vec![(0, 0)]]);
        assert_eq!(managed.client_selector(), "old-frontend");
        managed.edit(json!({"intent": "Run"}));
    }
    managed.until("Complete").await;
    managed.edit(json!({"intent": "Abort"}));
    managed.until("RolledBack").await;
    assert_eq!(managed.sizes(), [vec![(2, 2)], vec![(0, 0)]]);
    managed.end(load).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_new_generation_that_fails_is_scaled_down_again() {
    if !long_tests_enabled() {
        return;
    }
    let managed = Managed::with_workers(2, 1, 0).await;
    let begun = Instant::now();
    let clients = Clients::of(managed.fixture());
    clients.fail();
    // The latencies on this machine are unknown, so their limits are high.
    let analysis = json!({"analysis": {
        "warmupSeconds": 0, "minSamples": 20, "ttftP95Ratio": 100, "gapP99Ratio": 100, "onFailure": "RollBack",
    }});
    managed.fixture().cluster.apply(&manifest(&analysis));
    let object = managed.until("RolledBack").await;
    assert_eq!(object["status"]["analysis"]["verdict"], "Fail", "{object}");
    assert_eq!(managed.sizes(), [vec![(2, 2)], vec![(0, 0)]]);
    managed.assert_no_writes().await;
    let requests = clients.end().await;
    managed.print_figures(begun.elapsed(), requests, 0).await;
    managed.remove();
}

/// A stream that is open at the hand-over stays on its frontend and worker until it ends.
#[tokio::test]
#[ignore = "in a cluster"]
async fn old_is_deleted_after_streams_that_are_longer_than_the_hand_over() {
    if !long_tests_enabled() {
        return;
    }
    let managed = Managed::with_workers(2, 1, 0).await;
    let load = Load::start_outside_phases(managed.fixture().address, 20, LONG);
    phase(&load, 0, 20).await;
    // The streams last longer than the grace period of the pods, which needs `allowShortGrace`.
    let more = json!({
        "strategy": {"maxSurge": 1, "maxUnavailable": 0, "allowShortGrace": true},
        "handover": {"clients": "Automatic", "retire": "Delete"},
    });
    managed.fixture().cluster.apply(&manifest(&more));
    assert!(managed.is_there("old-worker") && managed.is_there("old-frontend"));
    let begun = Instant::now();
    loop {
        let object = managed.fixture().cluster.get(&["dro", NAME]);
        if object["status"]["phase"] == "Complete" {
            break;
        }
        assert!(begun.elapsed() < 2 * LONGEST, "{:#}", object["status"]);
        sleep(Duration::from_millis(500)).await;
    }
    println!("old deleted after {}", since(begun));
    eventually("old is deleted", async || {
        !managed.is_there("old-worker") && !managed.is_there("old-frontend")
    })
    .await;
    assert!(managed.is_there("new-worker") && managed.is_there("new-frontend"));
    managed.end_after(load, 20).await;
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_worker_that_never_becomes_ready_takes_nothing_from_old() {
    if !long_tests_enabled() {
        return;
    }
    let managed = Managed::with_workers(2, 1, 0).await;
    let cluster = Cluster::around();
    let port = |port: u16| {
        let path = "/spec/template/spec/containers/0/readinessProbe/tcpSocket/port";
        let patch = json!([{"op": "replace", "path": path, "value": port}]).to_string();
        cluster.kubectl(&[
            "patch",
            "deployment",
            "new-worker",
            "--type=json",
            "-p",
            &patch,
        ]);
    };
    port(1);
    let strategy =
        json!({"strategy": {"maxSurge": 1, "maxUnavailable": 0, "readyTimeoutSeconds": 10}});
    let load = managed.begin(&strategy).await;
    managed.until("Stalled").await;
    assert_eq!(managed.sizes(), [vec![(2, 2)], vec![(1, 0)]]);
    let update = managed.fixture().cluster.get(&["duc", NAME]);
    assert_eq!(update["spec"]["trafficSplitPercent"], 0);
    managed.assert_no_writes().await;
    port(9091);
    managed.until("Complete").await;
    managed.end(load).await;
}

/// GPUs that the node offers and the workers request.
struct Gpus(Cluster);

const GPU: &str = "nvidia.com/gpu";

impl Gpus {
    fn each_worker_takes_one(node: u32) -> Self {
        let cluster = Cluster::around();
        let nodes = cluster.get(&["nodes"]);
        let name = nodes["items"][0]["metadata"]["name"]
            .as_str()
            .expect("a name");
        let patch = json!({"status": {"capacity": {GPU: node.to_string()}}}).to_string();
        let args = [
            "patch",
            "node",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        cluster.kubectl(&args);
        for generation in ["old", "new"] {
            let resources = json!({"limits": {GPU: "1"}, "requests": {GPU: "1"}});
            let containers = json!([{"name": "main", "resources": resources}]);
            let spec = json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
                "template": {"spec": {"containers": containers}}});
            let patch = json!({ "spec": spec }).to_string();
            cluster.kubectl(&[
                "patch",
                "deployment",
                &format!("{generation}-worker"),
                "-p",
                &patch,
            ]);
        }
        Self(cluster)
    }

    fn quota(&self, gpus: u32) {
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "default"},
            "spec": {"hard": {format!("requests.{GPU}"): gpus.to_string()}},
        });
        self.0.apply(&quota.to_string());
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        let workers = ["delete", "deployment", "old-worker", "new-worker"];
        self.0.try_kubectl(&workers, "");
        let quota = ["delete", "resourcequota", "gpus", "--ignore-not-found"];
        self.0.try_kubectl(&quota, "");
    }
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_budget_and_a_quota_of_gpus_limit_the_surge() {
    if !long_tests_enabled() {
        return;
    }
    // The surge allows three more workers, the GPU budget only one.
    let managed = Managed {
        max_requested: 4,
        ..Managed::with_workers(3, 1, 0).await
    };
    let gpus = Gpus::each_worker_takes_one(4);
    managed.fixture().rolled_out("old-worker");
    managed.fixture().settled().await;
    managed.fixture().with_model("old").await;
    gpus.quota(3);
    let strategy = json!({"maxSurge": 3, "maxUnavailable": 0, "gpuBudget": 4});
    let load = managed.begin(&json!({ "strategy": strategy })).await;
    let object = managed.until("Refused").await;
    println!("{}", object["status"]["message"]);
    managed.wait_for_status_text("quota").await;
    assert_eq!(managed.requested(), [vec![3], vec![0]]);
    gpus.quota(4);
    let object = managed.until("Complete").await;
    assert_eq!(managed.requested(), [vec![0], vec![3]]);
    assert_eq!(
        object["status"]["gpus"]["peak"], 4,
        "{:#}",
        object["status"]
    );
    managed.end(load).await;
}
