//! Graphs whose components have scaling adapters, with a fake operator that copies sizes from the adapters to the graphs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::super::fixture::{Fixture, pods, resource};
use super::Managed;
use super::operator::make_pods;
use crate::rig::POLL;

pub fn graphs() -> ApiResource {
    let plural = "dynamographdeployments";
    resource("nvidia.com", "v1alpha1", "DynamoGraphDeployment", plural)
}

fn adapters() -> ApiResource {
    let kind = "DynamoGraphDeploymentScalingAdapter";
    let plural = "dynamographdeploymentscalingadapters";
    resource("nvidia.com", "v1alpha1", kind, plural)
}

/// A fake operator that creates the pods of graphs with the sizes of their adapters, until it is dropped.
struct GraphOperator {
    task: JoinHandle<()>,
    /// Whether sizes are copied from adapters to graphs.
    follows: Arc<AtomicBool>,
    makes_ready: Arc<AtomicBool>,
}

impl Drop for GraphOperator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl GraphOperator {
    fn start(fixture: &Fixture) -> Self {
        let follows = Arc::new(AtomicBool::new(true));
        let makes_ready = Arc::new(AtomicBool::new(true));
        let (client, namespace) = (fixture.client.clone(), fixture.namespace.clone());
        let flags = (Arc::clone(&follows), Arc::clone(&makes_ready));
        let task = tokio::spawn(async move {
            loop {
                // Failures are retried in the next round.
                let flags = (
                    flags.0.load(Ordering::Relaxed),
                    flags.1.load(Ordering::Relaxed),
                );
                let _ = reconcile(&client, &namespace, flags).await;
                tokio::time::sleep(POLL).await;
            }
        });
        Self {
            task,
            follows,
            makes_ready,
        }
    }
}

async fn reconcile(
    client: &Client,
    namespace: &str,
    (follows, makes_ready): (bool, bool),
) -> kube::Result<()> {
    let of = |kind: ApiResource| -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &kind)
    };
    let (graphs, all) = (of(graphs()), of(pods()));
    let params = PatchParams::default();
    for adapter in of(adapters()).list(&ListParams::default()).await? {
        let spec = &adapter.data["spec"];
        let graph = spec["dgdRef"]["name"].as_str().unwrap();
        let component = spec["dgdRef"]["serviceName"].as_str().unwrap();
        if follows {
            let patch = json!({"spec": {"services": {component: {"replicas": spec["replicas"]}}}});
            graphs.patch(graph, &params, &Patch::Merge(patch)).await?;
        }
        let labels = json!({
            "nvidia.com/dynamo-graph-deployment-name": graph, "nvidia.com/dynamo-component-type": "worker",
            "nvidia.com/dynamo-component": component,
        });
        let graph = graphs.get(graph).await?;
        let wanted = graph.data["spec"]["services"][component]["replicas"].as_u64();
        let name = adapter.metadata.name.as_deref().unwrap();
        let wanted = wanted.unwrap_or(1);
        let (replicas, ready) = make_pods(&all, name, labels, wanted, makes_ready).await?;
        let status = json!({"status": {"components": {component: {
            "replicas": replicas, "readyReplicas": ready,
        }}}});
        let graph = graph.metadata.name.as_deref().unwrap();
        graphs
            .patch_status(graph, &params, &Patch::Merge(status))
            .await?;
    }
    Ok(())
}

impl Managed {
    /// Creates a graph with one worker component, and its adapter.
    async fn graph(&self, name: &str, replicas: u32) {
        let worker = json!({
            "componentType": "worker", "replicas": replicas, "scalingAdapter": {"enabled": true},
        });
        let spec = json!({"services": {
            "Frontend": {"componentType": "frontend", "replicas": 1}, "Decode": worker,
        }});
        self.fixture
            .create(&graphs(), name, json!({"spec": spec}))
            .await;
        let spec = json!({"replicas": replicas, "dgdRef": {"name": name, "serviceName": "Decode"}});
        let adapter = format!("{name}-decode");
        self.fixture
            .create(&adapters(), &adapter, json!({"spec": spec}))
            .await;
    }

    async fn adapter_asks(&self, name: &str) -> u64 {
        let adapter = self.fixture.api(&adapters()).get(name).await.unwrap();
        adapter.data["spec"]["replicas"].as_u64().unwrap()
    }

    /// Creates two graphs instead of Deployments, and the rollout.
    async fn begin_graphs(&mut self) -> GraphOperator {
        self.graph("old", 4).await;
        self.graph("new", 0).await;
        let operator = GraphOperator::start(&self.fixture);
        let generation = |name: &str| json!({"kind": "DynamoGraphDeployment", "name": name});
        self.begin(json!({"source": generation("old"), "target": generation("new")}))
            .await;
        operator
    }
}

#[tokio::test]
async fn graphs_are_scaled_by_their_adapters() {
    let mut managed = Managed::start(0).await;
    let _operator = managed.begin_graphs().await;
    let _controller = managed.controller().await;
    // The graph follows the adapter later, which does not count as a change by another client.
    let is_moved = |status: &Value| {
        assert_ne!(status["phase"], "Contested", "{status:#}");
        status["waitingFor"]
            .to_string()
            .contains("clients to be routed")
    };
    managed.until("all new", is_moved).await;
    assert_eq!(managed.adapter_asks("old-decode").await, 0);
    assert_eq!(managed.adapter_asks("new-decode").await, 4);
}

#[tokio::test]
async fn a_size_that_a_user_gives_an_adapter_is_not_overwritten() {
    let mut managed = Managed::start(0).await;
    let operator = managed.begin_graphs().await;
    operator.makes_ready.store(false, Ordering::Relaxed);
    managed.whole("old-decode", &operator).await;
    let _controller = managed.controller().await;
    managed.waits_for("new to be ready: 0 of 1").await;
    // The operator has not yet copied it to the graph when new becomes ready and old would be scaled down.
    operator.follows.store(false, Ordering::Relaxed);
    managed
        .patch(&adapters(), "old-decode", json!({"spec": {"replicas": 5}}))
        .await;
    operator.makes_ready.store(true, Ordering::Relaxed);
    managed.phase("Contested").await;
    assert_eq!(managed.adapter_asks("old-decode").await, 5);
}

#[tokio::test]
async fn a_component_that_is_removed_from_a_graph_is_named() {
    let mut managed = Managed::start(0).await;
    let operator = managed.begin_graphs().await;
    managed.edit(json!({"strategy": {"partition": 2}})).await;
    let _controller = managed.controller().await;
    managed.phase("Partition").await;
    operator.follows.store(false, Ordering::Relaxed);
    let component = json!({"componentType": "worker", "replicas": 2});
    let services = json!({"Decode": null, "Other": component});
    managed
        .patch(&graphs(), "old", json!({"spec": {"services": services}}))
        .await;
    let object = managed.phase("Stalled").await;
    let conditions = object["status"]["conditions"].to_string();
    let expected = "DynamoGraphDeployment old no longer has the component Decode";
    assert!(conditions.contains(expected), "{conditions}");
    managed.edit(json!({"strategy": {"partition": 0}})).await;
    let generation = managed.rollout().await["metadata"]["generation"].clone();
    let is_seen = |status: &Value| status["observedGeneration"] == generation;
    let object = managed.until("the edit seen", is_seen).await;
    assert_eq!(object["status"]["phase"], "Stalled");
    let graph = managed.fixture.api(&graphs()).get("old").await.unwrap();
    assert_eq!(graph.data["spec"]["services"]["Other"]["replicas"], 2);
}

impl Managed {
    /// Waits until the pods of this adapter are ready, and keeps later pods from becoming ready.
    async fn whole(&self, adapter: &str, operator: &GraphOperator) {
        operator.makes_ready.store(true, Ordering::Relaxed);
        let graph = adapter.trim_end_matches("-decode");
        crate::rig::eventually("old has all workers", async || {
            let graph = self.fixture.api(&graphs()).get(graph).await.unwrap();
            graph.data["status"]["components"]["Decode"]["readyReplicas"] == 4
        })
        .await;
        operator.makes_ready.store(false, Ordering::Relaxed);
    }
}
