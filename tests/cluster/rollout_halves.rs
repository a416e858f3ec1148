//! Generations of which each has halves: Dynamo's prefill and decode workers, and the scarcer half counts.

use serde_json::{Value, json};

use crate::fixture::{Fixture, UPDATE};
use crate::load::{Load, assert_all_well};
use crate::rollout::{Rollout, SHAPE, assert_share, phase};

const STREAMS: usize = 100;

/// Makes, beside a generation's worker Deployment and Service, the same for one half of the work.
pub fn half(fixture: &Fixture, generation: &str, role: &str, replicas: u32) {
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
async fn of_prefill_and_decode_workers_the_scarcer_half_counts() {
    let fixture = Fixture::with_controller([0, 0]).await;
    half(&fixture, "old", "prefill", 2);
    half(&fixture, "old", "decode", 1);
    for deployment in ["old-prefill", "old-decode"] {
        fixture.rolled_out(deployment);
    }
    fixture.with_model("old").await;
    let rollout = Rollout { fixture };
    let fixture = &rollout.fixture;
    rollout.update(UPDATE, "new", json!({}));
    fixture.in_force(0).await;
    let load = Load::aside(fixture.address, STREAMS, SHAPE);

    // One half alone serves nobody.
    half(fixture, "new", "prefill", 1);
    fixture.rolled_out("new-prefill");
    let update = rollout
        .until(UPDATE, "half of it is seen", |update| {
            update["status"]["new"]["roles"]["prefill"]["ready"] == 1
        })
        .await;
    assert_eq!(update["spec"]["trafficSplitPercent"], 0, "{update}");
    let said = update["status"]["message"].as_str().unwrap_or_default();
    assert!(said.contains("no ready decode worker"), "{said}");
    phase(&load, 0, STREAMS).await;

    half(fixture, "new", "decode", 1);
    // 1 of 2 prefill and 1 of 1 decode workers: half of a whole.
    rollout.splits(2, 1).await;
    phase(&load, 1, STREAMS).await;
    fixture.wants("new-prefill", 2);
    rollout.splits(1, 1).await;
    phase(&load, 2, STREAMS).await;
    fixture.wants("old-prefill", 1);
    rollout.splits(1, 2).await;
    fixture.settled().await;
    phase(&load, 3, STREAMS).await;
    fixture.wants("new-decode", 0);
    let update = rollout.splits(1, 0).await;
    assert_eq!(update["status"]["rule"], "NewCannotServe", "{update}");

    let ended = load.finish();
    for generation in ["old", "new"] {
        for role in ["prefill", "decode"] {
            let name = format!("{generation}-{role}");
            let args = ["delete", "deployment,service", &name, "--wait=false"];
            fixture.cluster.kubectl(&args);
        }
    }
    assert_all_well(&ended);
    for (phase, weights) in [[1, 0], [2, 1], [1, 1], [1, 2]].into_iter().enumerate() {
        assert_share(&ended, phase, weights, 1.0);
    }
}
