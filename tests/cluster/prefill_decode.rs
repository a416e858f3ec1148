//! Generations with prefill and decode workers: the scarcer role determines the split.

use serde_json::{Value, json};

use crate::fixture::{Fixture, UPDATE};
use crate::load::{Load, assert_none_failed};
use crate::rollout::{Rollout, SHAPE, assert_share, phase};

const STREAMS: usize = 100;

/// Creates copies of a generation's worker Deployment and Service for one role.
pub fn create_role(fixture: &Fixture, generation: &str, role: &str, replicas: u32) {
    let name = format!("{generation}-{role}");
    for kind in ["deployment", "service"] {
        let mut object = fixture
            .cluster
            .get(&[kind, &format!("{generation}-worker")]);
        let metadata = &object["metadata"];
        object["metadata"] = json!({"name": name, "labels": metadata["labels"]});
        object["status"] = Value::Null;
        object["metadata"]["labels"]["app"] = json!(name);
        object["metadata"]["labels"]["nvidia.com/dynamo-component-type"] = json!(role);
        let spec = &mut object["spec"];
        if kind == "service" {
            for given in ["clusterIP", "clusterIPs"] {
                spec[given] = Value::Null;
            }
            spec["selector"]["app"] = json!(name);
        } else {
            spec["replicas"] = json!(replicas);
            spec["selector"]["matchLabels"]["app"] = json!(name);
            let labels = &mut spec["template"]["metadata"]["labels"];
            labels["app"] = json!(name);
            labels["nvidia.com/dynamo-component-type"] = json!(role);
            let command = &mut spec["template"]["spec"]["containers"][0]["command"];
            let command = command.as_array_mut().expect("a command");
            command.extend(["--role", role].map(Into::into));
        }
        fixture.cluster.apply(&object.to_string());
    }
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_scarcer_of_the_prefill_and_decode_workers_counts() {
    let fixture = Fixture::with_controller([0, 0]).await;
    create_role(&fixture, "old", "prefill", 2);
    create_role(&fixture, "old", "decode", 1);
    for deployment in ["old-prefill", "old-decode"] {
        fixture.rolled_out(deployment);
    }
    fixture.with_model("old").await;
    let rollout = Rollout { fixture };
    let fixture = &rollout.fixture;
    rollout.update(UPDATE, "new", json!({}));
    fixture.in_force(0).await;
    let load = Load::start_outside_phases(fixture.address, STREAMS, SHAPE);

    // Prefill workers alone cannot serve.
    create_role(fixture, "new", "prefill", 1);
    fixture.rolled_out("new-prefill");
    let update = rollout
        .until(UPDATE, "the prefill worker is counted", |update| {
            update["status"]["new"]["roles"]["prefill"]["ready"] == 1
        })
        .await;
    assert_eq!(update["spec"]["trafficSplitPercent"], 0, "{update}");
    let message = update["status"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("no ready decode worker"), "{message}");
    phase(&load, 0, STREAMS).await;

    create_role(fixture, "new", "decode", 1);
    // Old has 2 prefill workers and 1 decode worker, new has 1 of each: half the capacity.
    rollout.wait_for_split(2, 1).await;
    phase(&load, 1, STREAMS).await;
    fixture.set_replicas("new-prefill", 2);
    rollout.wait_for_split(1, 1).await;
    phase(&load, 2, STREAMS).await;
    fixture.set_replicas("old-prefill", 1);
    rollout.wait_for_split(1, 2).await;
    fixture.settled().await;
    phase(&load, 3, STREAMS).await;
    fixture.set_replicas("new-decode", 0);
    let update = rollout.wait_for_split(1, 0).await;
    assert_eq!(update["status"]["rule"], "NewCannotServe", "{update}");

    let ended = load.finish();
    for generation in ["old", "new"] {
        for role in ["prefill", "decode"] {
            let name = format!("{generation}-{role}");
            let args = ["delete", "deployment,service", &name, "--wait=false"];
            fixture.cluster.kubectl(&args);
        }
    }
    assert_none_failed(&ended);
    for (phase, weights) in [[1, 0], [2, 1], [1, 1], [1, 2]].into_iter().enumerate() {
        assert_share(&ended, phase, weights, 1.0);
    }
}
