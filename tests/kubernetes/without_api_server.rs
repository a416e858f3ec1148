//! The API server goes away and comes back, under load. Tests run in the order of their names, so this one is the last: what
//! Dynamo's own discovery needs to recover is not the others' to wait for.

use std::time::Duration;

use serde_json::json;

use crate::load::{Load, Shape, assert_all_well, share};
use crate::rollout::{Rollout, phase, processes, signal, since, workers};
use crate::stage::Stage;

const SHAPE: Shape = Shape {
    words: 10,
    each_ms: 200,
};

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_share_stays_and_it_follows_again_once_it_is_back() {
    const GONE: Duration = Duration::from_secs(20);
    let stage = Stage::ready().await;
    if !stage.cluster.is_own() {
        println!("skipped: this API server is not ours to stop");
        return;
    }
    stage.update(50).await;
    let sidecar = stage.sidecars()[0];
    let load = Load::start(stage.address, 50, SHAPE);
    load.enter(0);
    stage.cluster.api("stop");
    tokio::time::sleep(GONE).await;
    let plan = stage.plan(sidecar).await;
    let lost = plan["sourceLostSeconds"].as_f64();
    assert!(lost.is_some_and(|seconds| seconds > 10.0), "{plan}");
    load.leave().await;
    stage.cluster.api("start");
    stage.patch(25).await;
    load.enter(1);
    load.begun(100).await;
    let ended = load.finish();
    assert_all_well(&ended);
    for (phase, percent) in [(0, 50.0), (1, 25.0)] {
        let (all, new) = share(&ended, phase);
        let wanted = all as f64 * percent / 100.0;
        assert!((new as f64 - wanted).abs() <= 1.0, "{new} of {all}");
    }
}

/// The same with the controller, of which one replica dies meanwhile.
#[tokio::test]
#[ignore = "in a cluster"]
async fn what_the_controller_decided_stays_and_it_goes_on_once_it_is_back() {
    const GONE: Duration = Duration::from_secs(20);
    let rollout = Rollout::begun([2, 2], json!({})).await;
    let stage = &rollout.stage;
    if !stage.cluster.is_own() {
        println!("skipped: this API server is not ours to stop");
        return;
    }
    rollout.splits(1, 1).await;
    let sidecar = stage.sidecars()[0];
    let leader = format!("POD_NAME={}\0", rollout.leader());
    let one = workers("new").remove(0);
    let load = Load::start(stage.address, 50, SHAPE);
    load.enter(0);
    stage.cluster.api("stop");
    signal(&processes("\0controller\0", &leader), libc::SIGKILL);
    tokio::time::sleep(GONE).await;
    let plan = stage.plan(sidecar).await;
    assert_eq!(plan["weights"], json!({"old": 1, "new": 1}), "{plan}");
    load.leave().await;
    stage.cluster.api("start");
    let back = tokio::time::Instant::now();
    signal(&[one], libc::SIGUSR1);
    rollout.splits(2, 1).await;
    println!(
        "the API server is back: a loss is followed {} later",
        since(back)
    );
    signal(&[one], libc::SIGUSR1);
    rollout.splits(1, 1).await;
    load.leave().await;
    phase(&load, 1, 100).await;
    let ended = load.finish();
    assert_all_well(&ended);
    for at in [0, 1] {
        let (all, new) = share(&ended, at);
        assert!(
            (new as f64 - all as f64 / 2.0).abs() <= 1.0,
            "{new} of {all}"
        );
    }
}
