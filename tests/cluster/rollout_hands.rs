//! People take a hand in an update: hold it, limit it, edit it, take it away.

use std::process::Command;

use serde_json::json;

use crate::fixture::{UPDATE, within_patience};
use crate::load::{Load, assert_all_well};
use crate::rollout::{Rollout, SHAPE, assert_share, phase, signal, workers};

const STREAMS: usize = 100;

/// `crossfade` as a person runs it.
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
async fn an_update_is_capped_paused_edited_resumed_and_taken_away_half_way() {
    let rollout = Rollout::begun([2, 2], json!({"maxTrafficSplitPercent": 10})).await;
    let fixture = &rollout.fixture;
    let load = Load::aside(fixture.address, STREAMS, SHAPE);

    let update = rollout.splits(9, 1).await;
    assert_eq!(update["status"]["rule"], "Cap", "{update}");
    phase(&load, 0, STREAMS).await;

    // An edit of one who did not pause is taken back, and told.
    rollout.edit(&json!({"trafficSplitPercent": 5, "weights": null}));
    let said = rollout.happens("SplitContested").await;
    assert!(said.contains("set spec.paused"), "{said}");
    rollout.splits(9, 1).await;

    crossfade(&rollout, &["set", "--split", "7"]);
    fixture.in_force(7).await;
    rollout
        .until(UPDATE, "paused", |update| {
            let status = &update["status"];
            status["rule"] == "Paused" && status["wanted"]["percent"] == 7
        })
        .await;
    // What the workers do is looked at, and moves nothing.
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
    rollout.splits(1, 1).await;
    phase(&load, 2, STREAMS).await;

    fixture.cluster.kubectl(&["delete", "duc", UPDATE]);
    fixture.in_force(0).await;
    phase(&load, 3, STREAMS).await;
    within_patience("the controller has no update", async || {
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
    assert_all_well(&ended);
    assert_share(&ended, 0, [9, 1], 1.0);
    assert_share(&ended, 1, [93, 7], 1.0);
    assert_share(&ended, 2, [1, 1], 1.0);
    assert_share(&ended, 3, [1, 0], 0.0);
}
