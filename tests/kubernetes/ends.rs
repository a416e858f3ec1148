//! Pods that end while streams run through them: deleted, or replaced by an upgrade.

use std::time::Duration;

use crate::load::{Load, Shape, assert_all_well};
use crate::stage::{SETTLE, Stage, within_patience};
use serde_json::Value;

const SHORT: Shape = Shape {
    words: 5,
    each_ms: 100,
};
/// Far longer than the proxy settles, and than Dynamo lets streams run by default once it is told to end.
const LONG: Shape = Shape {
    words: 75,
    each_ms: 200,
};

/// A pod as it was last seen before it was gone.
async fn until_gone(stage: &Stage, pod: &str) -> Value {
    let mut last = Value::Null;
    within_patience("the pod is gone", async || {
        let args = ["get", "pod", pod, "-o", "json", "--ignore-not-found"];
        let text = stage.cluster.kubectl(&args);
        match serde_json::from_str(&text) {
            Ok(seen) => {
                last = seen;
                false
            }
            Err(_) => true,
        }
    })
    .await;
    last
}

fn state<'a>(pod: &'a Value, kind: &str, name: &str) -> &'a Value {
    let containers = pod["status"][kind].as_array().expect("containers");
    let mut containers = containers.iter();
    let container = containers.find(|container| container["name"] == name);
    &container.expect("the container")["state"]
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_deleted_pod_ends_after_its_last_stream_and_the_frontend_before_the_sidecar() {
    let stage = Stage::ready().await;
    // All by old: every stream runs through the frontend that must not end before it.
    stage.update(0).await;
    stage.scale("old-frontend", 2);
    stage.in_force(0).await;
    let long = Load::once(stage.address, 40, LONG);
    let pods = stage.old_pods();
    let pod = pods[0]["metadata"]["name"].as_str().expect("a name");
    let admin = format!(
        "{}:9464",
        pods[0]["status"]["podIP"].as_str().expect("an address")
    );
    let admin = admin.parse().expect("an address");
    within_patience("long streams through the pod", async || {
        let plan = stage.plan(admin).await;
        plan["openStreams"]["old"].as_u64() >= Some(10)
    })
    .await;
    let load = Load::start(stage.address, 20, SHORT);
    let began = tokio::time::Instant::now();
    stage
        .cluster
        .kubectl(&["delete", "pod", pod, "--wait=false"]);
    let last = until_gone(&stage, pod).await;
    let took = began.elapsed();
    println!("the pod took {took:?}");
    assert_all_well(&long.finish());
    assert_all_well(&load.finish());
    // Longer than it settles and shorter than its drain limit: the streams decided.
    assert!(took > Duration::from_secs(SETTLE + 6), "{took:?}");
    assert!(took < Duration::from_secs(40), "{took:?}");
    let main = &state(&last, "containerStatuses", "main")["terminated"];
    let sidecar = &state(&last, "initContainerStatuses", "crossfade")["terminated"];
    println!("main: {main}\nsidecar: {sidecar}");
    assert!(main["finishedAt"].is_string(), "{last}");
    if sidecar["finishedAt"].is_string() {
        assert_eq!(sidecar["exitCode"], 0, "{last}");
        assert!(main["finishedAt"].as_str() <= sidecar["finishedAt"].as_str());
    }
    stage.scale("old-frontend", 1);
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn an_upgrade_of_crossfade_itself_loses_no_stream() {
    let stage = Stage::ready().await;
    stage.update(50).await;
    let load = Load::start(stage.address, 50, SHORT);
    let long = Load::once(stage.address, 20, LONG);
    within_patience("long streams", async || {
        let plan = stage.only_plan().await;
        plan["openStreams"]["old"].as_u64() >= Some(10)
    })
    .await;
    // Any change of the sidecar's container is an upgrade to Kubernetes.
    let patch = r#"{"spec":{"template":{"spec":{"initContainers":[
        {"name":"crossfade","env":[{"name":"CROSSFADE_LOG","value":"debug"}]}]}}}}"#;
    let args = [
        "patch",
        "deployment",
        "old-frontend",
        "--type=strategic",
        "-p",
        patch,
    ];
    stage.cluster.kubectl(&args);
    stage.rolled_out("old-frontend");
    stage.in_force(50).await;
    assert_all_well(&long.finish());
    assert_all_well(&load.finish());
}
