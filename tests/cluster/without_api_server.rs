//! The API server goes away and comes back, under load. Tests run in the order of their names, so this one is the last: what
//! Dynamo's own discovery needs to recover is not the others' to wait for.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::load::{Load, assert_all_well};
use crate::rollout::{Rollout, SHAPE, assert_share, phase, processes, signal, since, workers};

/// Longer than the lease of a controller, of which the leading replica dies meanwhile.
const GONE: Duration = Duration::from_secs(20);

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_share_stays_and_it_follows_again_once_it_is_back() {
    let rollout = Rollout::begun([2, 2], json!({})).await;
    let fixture = &rollout.fixture;
    if !fixture.cluster.is_own() {
        println!("skipped: this API server is not ours to stop");
        return;
    }
    rollout.splits(1, 1).await;
    let sidecar = fixture.sidecars()[0];
    let leader = format!("POD_NAME={}\0", rollout.leader());
    let one = [workers("new")[0]];
    let load = Load::start(fixture.address, 50, SHAPE);
    fixture.cluster.api("stop");
    signal(&processes("\0controller\0", &leader), libc::SIGKILL);
    tokio::time::sleep(GONE).await;
    let plan = fixture.plan(sidecar).await;
    let lost = plan["sourceLostSeconds"].as_f64();
    assert!(lost.is_some_and(|seconds| seconds > 10.0), "{plan}");
    assert_eq!(plan["weights"], json!({"old": 1, "new": 1}), "{plan}");
    load.leave().await;
    fixture.cluster.api("start");
    let back = Instant::now();
    signal(&one, libc::SIGUSR1);
    rollout.splits(2, 1).await;
    println!(
        "the API server is back: a loss is followed {} later",
        since(back)
    );
    phase(&load, 1, 100).await;
    signal(&one, libc::SIGUSR1);
    rollout.splits(1, 1).await;
    let ended = load.finish();
    assert_all_well(&ended);
    assert_share(&ended, 0, [1, 1], 1.0);
    assert_share(&ended, 1, [2, 1], 1.0);
}
