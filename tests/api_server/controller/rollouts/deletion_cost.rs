//! Pod deletion cost: the workers with the fewest requests in their metrics are removed first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kube::api::{Api, DynamicObject, ListParams, PostParams};
use serde_json::json;

use super::super::fixture::{Fixture, pods};
use super::Managed;
use crate::rig::{Script, Upstream};

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// A Dynamo worker whose metrics report this number of requests.
async fn worker(fixture: &Fixture, name: &str, requests: &Arc<AtomicU64>) -> Upstream {
    let requests = Arc::clone(requests);
    let metrics = Upstream::start(move |_| {
        let requests = requests.load(Ordering::Relaxed);
        let text = format!(
            "# TYPE dynamo_component_inflight_requests gauge\n\
             dynamo_component_inflight_requests{{dynamo_endpoint=\"generate\"}} {requests}\n"
        );
        Script::new().answer(200, "text/plain; version=0.0.4", text)
    });
    let metrics = metrics.await;
    let port = json!({"name": "system", "containerPort": metrics.address.port()});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "v1", "made-by": "v1"}},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "any", "ports": [port]}],
        },
    });
    let pod: DynamicObject = serde_json::from_value(pod).unwrap();
    let api: Api<DynamicObject> = fixture.api(&pods());
    api.create(&PostParams::default(), &pod).await.unwrap();
    metrics
}

/// The pods with a deletion cost.
async fn marked(managed: &Managed) -> Vec<String> {
    let all = managed
        .fixture
        .api(&pods())
        .list(&ListParams::default())
        .await;
    let marked = all.unwrap().items.into_iter().filter(|pod| {
        let annotations = pod.metadata.annotations.as_ref();
        annotations.is_some_and(|all| all.get(COST).is_some_and(|cost| cost == "-1"))
    });
    marked.filter_map(|pod| pod.metadata.name).collect()
}

#[tokio::test]
async fn the_worker_with_the_fewest_requests_is_marked_before_old_shrinks() {
    let fixture = Fixture::start().await;
    let mut workers = Vec::new();
    for (index, requests) in [7, 9, 2, 5].into_iter().enumerate() {
        let requests = Arc::new(AtomicU64::new(requests));
        workers.push(worker(&fixture, &format!("v1-{index}"), &requests).await);
    }
    let mut managed = Managed::start_on(fixture, 4).await;
    managed.begin(json!({"strategy": {"partition": 3}})).await;
    let _controller = managed.controller().await;
    managed.phase("Partition").await;
    managed.rests_at(3, 1).await;
    assert_eq!(marked(&managed).await, ["v1-2"]);
    managed
        .wait_for_event("PodsMarked", "marking v1-2 of old to be removed first")
        .await;
}

/// The permission to mark pods is optional.
#[tokio::test]
async fn without_permission_to_mark_pods_a_rollout_continues() {
    let fixture = Fixture::start().await;
    let mut workers = Vec::new();
    for index in 0..4 {
        let requests = Arc::new(AtomicU64::new(index));
        workers.push(worker(&fixture, &format!("v1-{index}"), &requests).await);
    }
    let mut managed = Managed::start_on(fixture, 4).await;
    managed.begin(json!({"strategy": {"partition": 3}})).await;
    let _controller = managed.controller_with_own_rights("unmarkable").await;
    let namespace = managed.fixture.namespace.clone();
    let remove = r#"[{"op": "test", "path": "/rules/7/resources", "value": ["pods"]}, {"op": "replace", "path": "/rules/7/verbs", "value": ["delete"]}]"#;
    tokio::task::spawn_blocking(move || {
        let patch = [
            "patch",
            "role",
            "crossfade-rollouts",
            "-n",
            &namespace,
            "--type=json",
            "-p",
            remove,
        ];
        super::server().kubectl(&patch);
    })
    .await
    .unwrap();
    managed.fixture.proxy("chat").await;
    managed.phase("Partition").await;
    managed.rests_at(3, 1).await;
    assert_eq!(marked(&managed).await, [""; 0]);
}
