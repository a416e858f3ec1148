//! Workers of both generations in one StatefulSet: a managed update moves its partition forward and back.

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::*;
use crate::fixture::long_tests_enabled;

pub(super) const SET: &str = "workers";
const SIZE: u64 = 3;

/// The pod template of a generation's Deployment, for the set.
pub(super) fn template(cluster: &Cluster, generation: &str) -> Value {
    let name = format!("{generation}-worker");
    let deployment = cluster.get(&["deployment", &name]);
    let mut template = deployment["spec"]["template"].clone();
    template["metadata"]["labels"]["app"] = json!(SET);
    // The worker terminates only after the frontends have removed it.
    let sleep = json!({"preStop": {"sleep": {"seconds": 5}}});
    template["spec"]["containers"][0]["lifecycle"] = sleep;
    template
}

/// The manifest of the StatefulSet with this template, as a user applies it.
fn set(template: &Value) -> String {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": SET, "namespace": "default"},
        "spec": {
            "replicas": SIZE, "serviceName": SET, "selector": {"matchLabels": {"app": SET}},
            "podManagementPolicy": "Parallel", "template": template,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": SIZE}},
        },
    })
    .to_string()
}

/// The Service through which Dynamo discovers the workers of a generation.
pub(super) fn discovery(cluster: &Cluster, generation: &str) -> String {
    let service = cluster.get(&["service", &format!("{generation}-worker")]);
    let labels = service["metadata"]["labels"].clone();
    let namespace = labels["nvidia.com/dynamo-namespace"].clone();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("{generation}-{SET}"), "namespace": "default", "labels": labels},
        "spec": {
            "selector": {"app": SET, "nvidia.com/dynamo-namespace": namespace},
            "ports": [{"name": "system", "port": 9090}],
        },
    })
    .to_string()
}

/// The ready replicas and the partition of the StatefulSet, and the number of its pods in each Dynamo namespace.
fn pods(fixture: &Fixture) -> (u64, u64, [usize; 2]) {
    let set = fixture.cluster.get(&["statefulset", SET]);
    let partition = &set["spec"]["updateStrategy"]["rollingUpdate"]["partition"];
    let ready = set["status"]["readyReplicas"].as_u64().unwrap_or(0);
    let list = fixture.cluster.get(&["pods", "-l", &format!("app={SET}")]);
    let items = list["items"].as_array().expect("a list");
    let of = |namespace: &str| {
        let label =
            |pod: &&Value| pod["metadata"]["labels"]["nvidia.com/dynamo-namespace"] == namespace;
        items.iter().filter(label).count()
    };
    (
        ready,
        partition.as_u64().unwrap_or(0),
        [of("dynamo-v1"), of("dynamo-v2")],
    )
}

/// Waits until the rollout is in this phase with its current spec. Meanwhile, at most one worker may be missing, and there may not
/// be too many.
async fn until(managed: &Managed, wanted: &str) -> Value {
    let begun = Instant::now();
    let mut last = None;
    loop {
        let object = managed.fixture().cluster.get(&["dro", NAME]);
        let status = &object["status"];
        let is_seen = status["observedGeneration"] == object["metadata"]["generation"];
        if status["phase"] == wanted && is_seen {
            println!("{wanted} after {}", since(begun));
            return object;
        }
        let (ready, partition, generations) = pods(managed.fixture());
        assert!(
            ready + 1 >= SIZE,
            "{ready} ready: {generations:?}: {status}"
        );
        assert!(
            generations.iter().sum::<usize>() as u64 <= SIZE,
            "{generations:?}: {status}"
        );
        if last != Some((partition, generations)) {
            println!(
                "{:>7} {partition} {generations:?}: {}",
                since(begun),
                status["message"]
            );
            last = Some((partition, generations));
        }
        assert!(
            begun.elapsed() < LONGEST,
            "never {wanted}: {last:?}: {status}"
        );
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn one_stateful_set_goes_from_old_to_new_and_half_way_back_and_cuts_no_stream() {
    if !long_tests_enabled() {
        return;
    }
    let managed = Managed::with_workers(0, 0, 0).await;
    managed.retry_among_old(true).await;
    let fixture = managed.fixture();
    for generation in ["old", "new"] {
        fixture
            .cluster
            .apply(&discovery(&fixture.cluster, generation));
    }
    fixture
        .cluster
        .apply(&set(&template(&fixture.cluster, "old")));
    eventually("the set is whole", async || pods(fixture).0 == SIZE).await;
    fixture.with_model("old").await;
    let load = Load::start_outside_phases(fixture.address, STREAMS, SHAPE);
    phase(&load, 0, STREAMS).await;

    fixture
        .cluster
        .apply(&set(&template(&fixture.cluster, "new")));
    let one = json!({"kind": "StatefulSet", "name": SET});
    let strategy =
        |partition: u32| json!({"maxSurge": 0, "maxUnavailable": 1, "partition": partition});
    let begun = json!({"source": one, "target": one, "strategy": strategy(1)});
    fixture.cluster.apply(&manifest(&begun));
    until(&managed, "Partition").await;
    assert_eq!(pods(fixture), (SIZE, 1, [1, 2]));

    // Back: the StatefulSet keeps the old revision as long as it has a pod of old.
    managed.edit(json!({"intent": "Abort"}));
    until(&managed, "RolledBack").await;
    assert_eq!(pods(fixture), (SIZE, SIZE, [3, 0]));
    phase(&load, 1, STREAMS).await;

    managed.edit(json!({"intent": "Run", "strategy": {"partition": 0}}));
    until(&managed, "Complete").await;
    assert_eq!(pods(fixture), (SIZE, 0, [0, 3]));
    assert_eq!(managed.client_selector(), "new-frontend");
    managed.end(load).await;
    managed.retry_among_old(false).await;
    let services = ["old", "new"].map(|generation| format!("service/{generation}-{SET}"));
    let set = format!("statefulset/{SET}");
    fixture
        .cluster
        .kubectl(&["delete", &set, &services[0], &services[1]]);
}
