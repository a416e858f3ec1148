//! A loss takes effect by what is already watched, and no decision is postponed for ever.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, pods, resource};
use crate::gateway::{Gateway, Withheld};

/// Four workers of each generation, which `workers` can count in another way, behind an API server that now responds to no list.
async fn without_lists(
    spec: Value,
    create: impl AsyncFn(&Fixture),
) -> (Fixture, Gateway, Controller) {
    let mut fixture = Fixture::with_update(spec).await;
    let gateway = Gateway::before(&fixture.client).await;
    fixture.kubeconfig = gateway.kubeconfig();
    // Before the controller: a generation without pods needs these lists, too.
    create(&fixture).await;
    let controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 1, 1).await;
    gateway.withhold(Withheld {
        lists: true,
        ..Withheld::default()
    });
    (fixture, gateway, controller)
}

async fn workers_of_new(fixture: &Fixture) {
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
}

async fn lose_new(fixture: &Fixture) {
    for i in 0..4 {
        fixture.delete(&pods(), &format!("new-worker-{i}")).await;
    }
    fixture.wait_for_split("up", 1, 0).await;
}

fn assert_no_list(gateway: &Gateway) {
    assert_eq!(gateway.withheld_lists(), 0, "it was waited for");
}

#[tokio::test]
async fn the_loss_of_all_pods_of_either_generation_needs_no_further_list() {
    let (fixture, gateway, _controller) = without_lists(json!({}), workers_of_new).await;
    lose_new(&fixture).await;
    assert_no_list(&gateway);
    // What routes to old is listed only once all requests go to new.
    let (fixture, _gateway, _controller) = without_lists(json!({}), workers_of_new).await;
    fixture.delete_old_workers().await;
    fixture.wait_for_split("up", 0, 1).await;
}

#[tokio::test]
async fn the_loss_of_pods_that_a_selector_finds_needs_no_further_list() {
    let graph = "nvidia.com/dynamo-graph-deployment-name";
    let workers = json!({"new": {"selector": {graph: "new"}}});
    let spec = json!({"workers": workers});
    let (fixture, gateway, _controller) = without_lists(spec, workers_of_new).await;
    lose_new(&fixture).await;
    assert_no_list(&gateway);
}

#[tokio::test]
async fn the_deletion_of_the_graph_of_new_needs_no_further_list() {
    let kind = "DynamoGraphDeployment";
    let graphs = resource("nvidia.com", "v1alpha1", kind, "dynamographdeployments");
    let services = json!({"A": {"componentType": "worker", "replicas": 4}});
    let create = async |fixture: &Fixture| {
        let graph = json!({"spec": {"services": services}});
        fixture.create(&graphs, "new", graph).await;
        workers_of_new(fixture).await;
    };
    let (fixture, gateway, _controller) = without_lists(json!({}), create).await;
    fixture.delete(&graphs, "new").await;
    lose_new(&fixture).await;
    assert_no_list(&gateway);
}

#[tokio::test]
async fn the_deletion_of_the_deployment_of_new_needs_no_further_list() {
    let kind = resource("apps", "v1", "Deployment", "deployments");
    let create = async |fixture: &Fixture| {
        let template = json!({
            "metadata": {"labels": {"app": "new"}}, "spec": {"containers": [{"name": "main", "image": "any"}]},
        });
        let selector = json!({"matchLabels": {"app": "new"}});
        let spec = json!({"replicas": 4, "selector": selector, "template": template});
        fixture.create(&kind, "new", json!({"spec": spec})).await;
        let status = json!({"replicas": 4, "readyReplicas": 4});
        fixture.status(&kind, "new", status).await;
    };
    let (fixture, gateway, _controller) = without_lists(json!({}), create).await;
    fixture.delete(&kind, "new").await;
    fixture.wait_for_split("up", 1, 0).await;
    assert_no_list(&gateway);
}

#[tokio::test]
async fn frontends_that_appear_again_and_again_do_not_postpone_a_decision_for_ever() {
    let fixture = Fixture::with_update(json!({"ackTimeoutSeconds": 1})).await;
    let _controller = fixture.controller(&[]).await;
    workers_of_new(&fixture).await;
    fixture.wait_for_split("up", 1, 1).await;
    // Each accepts connections and never responds, so for some time it may still respond.
    let appear = async {
        let mut silent = Vec::new();
        loop {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let name = format!("old-frontend-late-{}", silent.len());
            let labels = json!({
                "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
            });
            let ports = json!([{"name": "crossfade", "containerPort": port}]);
            fixture.pod(&name, labels, ports).await;
            fixture.pod_ready(&name, true).await;
            silent.push(listener);
            // The interval at which they appear.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let decide = async {
        fixture
            .until("up", "several have appeared", |object| {
                object["status"]["frontends"]["total"].as_u64() > Some(3)
            })
            .await;
        for paused in [true, false, true] {
            let edited = Instant::now();
            fixture.edit("up", json!({"paused": paused})).await;
            fixture
                .until("up", "the status is that of the edit", |object| {
                    let status = &object["status"];
                    let is_paused = status["phase"] == "Paused" || status["rule"] == "Paused";
                    is_paused == paused
                        && status["observedGeneration"] == object["metadata"]["generation"]
                })
                .await;
            eprintln!("decided {:?} after the edit", edited.elapsed());
        }
        let lost = Instant::now();
        lose_new(&fixture).await;
        eprintln!("lost {:?} ago", lost.elapsed());
    };
    tokio::select! {
        () = appear => {}
        () = decide => {}
    }
}
