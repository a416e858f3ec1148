//! A second update to a third generation supersedes the first update before that has completed.

use serde_json::json;

use crate::fixture::{UPDATE, generation};
use crate::load::{Load, assert_none_failed, share, share_of};
use crate::rollout::{Rollout, SHAPE, assert_share, phase};

const STREAMS: usize = 100;
const NEXT: &str = "my-next-update";

#[tokio::test]
#[ignore = "in a cluster"]
async fn an_update_that_supersedes_another_continues_from_where_that_was() {
    let rollout = Rollout::start([2, 2], json!({})).await;
    let fixture = &rollout.fixture;
    rollout.wait_for_split(1, 1).await;
    let load = Load::start_outside_phases(fixture.address, STREAMS, SHAPE);
    phase(&load, 0, STREAMS).await;

    fixture.apply(&generation(
        &fixture.cluster,
        "newer",
        "dynamo-v3",
        1,
        false,
    ));
    for deployment in ["newer-worker", "newer-frontend"] {
        fixture.rolled_out(deployment);
    }
    fixture.with_model("newer").await;
    rollout.update(NEXT, "newer", json!({"supersedes": UPDATE}));
    rollout.wait_for_split_by(NEXT, 2, 1).await;
    let first = rollout
        .until(UPDATE, "superseded", |update| {
            update["status"]["phase"] == "Superseded"
        })
        .await;
    let message = first["status"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(NEXT), "{message}");
    assert_eq!(first["spec"]["weights"], json!({"old": 1, "new": 1}));
    phase(&load, 1, STREAMS).await;
    // Scaling down the second generation has no effect on clients.
    fixture.set_replicas("new-worker", 0);
    fixture.set_replicas("newer-worker", 2);
    rollout.wait_for_split_by(NEXT, 1, 1).await;
    phase(&load, 2, STREAMS).await;
    let ended = load.finish();
    let args = ["delete", "deployment,service", "-l", "generation=newer"];
    fixture.cluster.kubectl(&args);

    assert_none_failed(&ended);
    assert_share(&ended, 0, [1, 1], 1.0);
    for (phase, weights) in [(1, [2, 1]), (2, [1, 1])] {
        let (all, newer) = share_of("newer", &ended, phase);
        let wanted = all as f64 * f64::from(weights[1]) / f64::from(weights[0] + weights[1]);
        println!("{weights:?}: newer served {newer} of {all} streams");
        assert!((newer as f64 - wanted).abs() <= 1.0, "{newer} of {all}");
        assert_eq!(
            share(&ended, phase).1,
            0,
            "the second generation served streams"
        );
    }
}
