//! The manifests that `crossfade plan` generates are repeatedly applied from Git while a rollout scales their workers.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crossfade::inject::manifests;
use crossfade::next_generation::{Request, plan};
use serde_json::{Value, json};

use super::super::fixture::server;
use super::Managed;
use super::operator::deployments;

const TODAY: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: old}
spec:
  selector: {matchLabels: {app: old}}
  template:
    metadata: {labels: {app: old}}
    spec:
      containers: [{name: main, image: any, command: [python3, -m, dynamo.frontend], ports: [{containerPort: 8000}]}]
---
apiVersion: v1
kind: Service
metadata: {name: clients}
spec: {selector: {app: old}, ports: [{port: 8000}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: v1}
spec:
  replicas: 4
  selector: {matchLabels: {app: v1}}
  template:
    metadata: {labels: {app: v1}}
    spec:
      containers: [{name: main, image: any, command: [python3, -m, dynamo.mocker]}]
";

/// The workers that `plan` generates for an edit, with the name that the rollout in these tests uses.
fn workers() -> Value {
    let edited = TODAY.replace("dynamo.mocker]", "dynamo.mocker, --new]");
    let request = Request {
        from: TODAY,
        to: &edited,
        image: Some("crossfade:test"),
        ..Request::default()
    };
    let planned = plan(&request).unwrap();
    let objects = manifests(&planned.text).unwrap().into_iter();
    let mut objects = objects.flat_map(|manifest| manifest.objects);
    let is_workers = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap();
        object["kind"] == "Deployment" && name.starts_with("v1-")
    };
    let mut workers = objects.find(is_workers).unwrap();
    workers["metadata"]["name"] = json!("v2");
    workers
}

/// Applies the manifests and returns the output of kubectl.
fn apply(namespace: &str, how: &[&str], text: &str) -> String {
    let args = [&["apply", "-n", namespace, "-f", "-"], how].concat();
    let output = server().try_kubectl(&args, text);
    let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{printed}");
    printed
}

async fn assert_reapplying_keeps_sizes(how: &'static [&'static str]) {
    let mut managed = Managed::start(4).await;
    managed.fixture.delete(&deployments(), "v2").await;
    let rollout = json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoRollout", "metadata": {"name": "chat"},
        "spec": managed.spec(json!({})),
    });
    let text = format!("{}\n---\n{rollout}\n", workers());
    let namespace = managed.fixture.namespace.clone();
    let (over, is_over) = mpsc::channel::<()>();
    let applying = tokio::task::spawn_blocking(move || {
        let mut output = vec![apply(&namespace, how, &text)];
        while is_over.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
            output.push(apply(&namespace, how, &text));
        }
        output
    });
    crate::rig::eventually("it is applied", async || {
        let api = managed.fixture.api(&super::rollouts());
        api.get_opt("chat").await.unwrap().is_some()
    })
    .await;
    let _controller = managed.controller().await;
    let is_moved = |status: &Value| {
        assert_ne!(status["phase"], "Contested", "{status:#}");
        status["waitingFor"]
            .to_string()
            .contains("clients to be routed")
    };
    managed.until("all new", is_moved).await;
    managed.rests_at(0, 4).await;
    drop(over);
    let output = applying.await.unwrap();
    assert!(output.len() > 2, "{output:?}");
    if how.is_empty() {
        let again = &output[1..];
        assert!(
            again
                .iter()
                .all(|output| output.matches("unchanged").count() == 2),
            "{again:?}"
        );
    }
    assert_eq!(managed.sizes().await, (0, 4, 4));
}

#[tokio::test]
async fn client_side_apply_of_the_same_manifests_keeps_the_sizes() {
    assert_reapplying_keeps_sizes(&[]).await;
}

#[tokio::test]
async fn server_side_apply_of_the_same_manifests_keeps_the_sizes() {
    assert_reapplying_keeps_sizes(&["--server-side"]).await;
}
