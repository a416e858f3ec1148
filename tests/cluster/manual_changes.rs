//! A user caps, pauses, edits, resumes and deletes an update.

use std::process::Command;

use serde_json::json;

use crate::fixture::{UPDATE, eventually};
use crate::load::{Load, assert_none_failed};
use crate::rollout::{Rollout, SHAPE, assert_share, phase, signal, workers};

const STREAMS: usize = 100;

/// Runs `crossfade` as a user does.
fn crossfade(rollout: &Rollout, args: &[&str]) {
    let mut command = Command::new(crate::program());
    command.args(args).args([UPDATE, "-n", "default", "--yes"]);
    if let Some(kubeconfig) = rollout.fixture.cluster.kubeconfig() {
        command.env("KUBECONFIG", kubeconfig);
    }
    let output = command.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "crossfade {args:?}: {errors}");
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn an_update_is_capped_paused_edited_resumed_and_deleted_half_way() {
    let rollout = Rollout::start([2, 2], json!({"maxTrafficSplitPercent": 10})).await;
    let fixture = &rollout.fixture;
    let load = Load::start_outside_phases(fixture.address, STREAMS, SHAPE);

    let update = rollout.wait_for_split(9, 1).await;
    assert_eq!(update["status"]["rule"], "Cap", "{update}");
    phase(&load, 0, STREAMS).await;

    // Without a pause, the controller reverts an edit of the split and reports it.
    rollout.edit(&json!({"trafficSplitPercent": 5, "weights": null}));
    let message = rollout.wait_for_event("SplitContested").await;
    assert!(message.contains("set spec.paused"), "{message}");
    rollout.wait_for_split(9, 1).await;

    crossfade(&rollout, &["set", "--split", "7"]);
    fixture.in_force(7).await;
    rollout
        .until(UPDATE, "paused", |update| {
            let status = &update["status"];
            status["rule"] == "Paused" && status["wanted"]["percent"] == 7
        })
        .await;
    // The controller counts the workers, but does not move the split.
    if fixture.cluster.is_own() {
        let one = &workers("new")[..1];
        for ready in ["1/2", "2/2"] {
            signal(one, libc::SIGUSR1);
            let update = rollout
                .until(UPDATE, ready, |update| {
                    update["status"]["new"]["workers"] == ready
                })
                .await;
            assert_eq!(update["spec"]["trafficSplitPercent"], 7, "{update}");
        }
    }
    phase(&load, 1, STREAMS).await;

    rollout.edit(&json!({"maxTrafficSplitPercent": null}));
    crossfade(&rollout, &["resume"]);
    rollout.wait_for_split(1, 1).await;
    phase(&load, 2, STREAMS).await;

    fixture.cluster.kubectl(&["delete", "duc", UPDATE]);
    fixture.in_force(0).await;
    phase(&load, 3, STREAMS).await;
    eventually("the controller has no update", async || {
        let counts = rollout.counts().await;
        counts.sum("crossfade_controller_updates", &[]) == 0.0
    })
    .await;
    assert!(
        fixture.cluster.get(&["duc"])["items"]
            .as_array()
            .is_some_and(Vec::is_empty)
    );

    let ended = load.finish();
    assert_none_failed(&ended);
    assert_share(&ended, 0, [9, 1], 1.0);
    assert_share(&ended, 1, [93, 7], 1.0);
    assert_share(&ended, 2, [1, 1], 1.0);
    assert_share(&ended, 3, [1, 0], 0.0);
}
