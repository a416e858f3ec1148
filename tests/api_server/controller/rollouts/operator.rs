//! A fake Deployment controller, whose pods are ready as soon as they exist.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::super::fixture::{Fixture, pods, resource};
use crate::rig::POLL;

pub fn deployments() -> kube::api::ApiResource {
    resource("apps", "v1", "Deployment", "deployments")
}

/// Creates pods until it is dropped.
pub struct Operator {
    task: JoinHandle<()>,
    /// Whether pods become ready.
    pub makes_ready: Arc<AtomicBool>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Operator {
    pub fn start(fixture: &Fixture) -> Self {
        let makes_ready = Arc::new(AtomicBool::new(true));
        let ready = Arc::clone(&makes_ready);
        let (client, namespace) = (fixture.client.clone(), fixture.namespace.clone());
        let task = tokio::spawn(async move {
            loop {
                // Failures are retried in the next round.
                let _ = reconcile(&client, &namespace, &ready).await;
                tokio::time::sleep(POLL).await;
            }
        });
        Self { task, makes_ready }
    }
}

async fn reconcile(client: &Client, namespace: &str, ready: &AtomicBool) -> kube::Result<()> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &deployments());
    let all: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &pods());
    for deployment in api.list(&ListParams::default()).await? {
        let name = deployment.metadata.name.clone().unwrap();
        let wanted = deployment.data["spec"]["replicas"].as_u64().unwrap_or(1);
        let labels = deployment.data["spec"]["template"]["metadata"]["labels"].clone();
        // The tests create the pods of frontends together with their proxies.
        if labels["nvidia.com/dynamo-component-type"] == "frontend" {
            continue;
        }
        let is_ready = ready.load(Ordering::Relaxed);
        let (replicas, ready) = make_pods(&all, &name, labels, wanted, is_ready).await?;
        let status = json!({"status": {
            "observedGeneration": deployment.metadata.generation,
            "replicas": replicas,
            "readyReplicas": ready,
        }});
        // Do not take processor time from the controller under test.
        if status["status"] != deployment.data["status"] {
            api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
                .await?;
        }
    }
    Ok(())
}

/// Creates the wanted pods of `name`, ready if `ready`, and returns the numbers of existing and ready pods.
pub async fn make_pods(
    all: &Api<DynamicObject>,
    name: &str,
    labels: Value,
    wanted: u64,
    makes_ready: bool,
) -> kube::Result<(usize, usize)> {
    let selector = format!("made-by={name}");
    let own = all.list(&ListParams::default().labels(&selector)).await?;
    let is_ready = |pod: &DynamicObject| pod.data["status"]["conditions"][0]["status"] == "True";
    let own: BTreeMap<String, bool> = { own.items.iter() }
        .filter_map(|pod| Some((pod.metadata.name.clone()?, is_ready(pod))))
        .collect();
    for i in 0..wanted {
        let pod = format!("{name}-{i}");
        let was_ready = own.get(&pod).copied();
        if was_ready.is_none() {
            make(all, &pod, name, labels.clone()).await?;
        }
        if was_ready.is_none() || makes_ready && was_ready == Some(false) {
            let is_ready = if makes_ready { "True" } else { "False" };
            // All pods share this address with the old frontends. The updates of other tests use other ports.
            let status = json!({"status": {
                "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
                "conditions": [{"type": "Ready", "status": is_ready}],
            }});
            all.patch_status(&pod, &PatchParams::default(), &Patch::Merge(status))
                .await?;
        }
    }
    for pod in own.keys() {
        let index = pod
            .rsplit('-')
            .next()
            .and_then(|index| index.parse::<u64>().ok());
        if index.is_none_or(|index| index >= wanted) {
            all.delete(pod, &DeleteParams::default().grace_period(0))
                .await?;
        }
    }
    let pods = all.list(&ListParams::default().labels(&selector)).await?;
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    Ok((pods.items.len(), ready))
}

/// Creates one pod.
pub async fn make(
    all: &Api<DynamicObject>,
    pod: &str,
    of: &str,
    mut labels: Value,
) -> kube::Result<()> {
    labels["made-by"] = json!(of);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "labels": labels},
        "spec": {
            "automountServiceAccountToken": false, "containers": [{"name": "main", "image": "any"}],
        },
    });
    let pod: DynamicObject = serde_json::from_value(pod).unwrap();
    all.create(&PostParams::default(), &pod).await.map(|_| ())
}
