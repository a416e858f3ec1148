//! Stops the API server under load and starts it again.
//!
//! Tests run in the order of their names, so this module comes last: Dynamo's own discovery needs time to recover, and the other
//! scenarios should not wait for it.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::load::{Load, assert_none_failed};
use crate::rollout::{Rollout, SHAPE, assert_share, phase, processes, signal, since, workers};

/// How long the API server is away: longer than the lease of the leading controller, which is killed meanwhile.
const OUTAGE: Duration = Duration::from_secs(20);

#[tokio::test]
#[ignore = "in a cluster"]
async fn the_share_stays_and_it_follows_again_once_it_is_back() {
    let rollout = Rollout::start([2, 2], json!({})).await;
    let fixture = &rollout.fixture;
    if !fixture.cluster.is_own() {
        println!("skipped: the API server of this cluster cannot be stopped");
        return;
    }
    rollout.wait_for_split(1, 1).await;
    let sidecar = fixture.sidecars()[0];
    let leader = format!("POD_NAME={}\0", rollout.leader());
    let one = [workers("new")[0]];
    let load = Load::start(fixture.address, 50, SHAPE);
    fixture.cluster.api("stop");
    signal(&processes("\0controller\0", &leader), libc::SIGKILL);
    // The outage must last this long. Meanwhile, nothing changes that the test could wait for.
    tokio::time::sleep(OUTAGE).await;
    let plan = fixture.plan(sidecar).await;
    let lost = plan["sourceLostSeconds"].as_f64();
    assert!(lost.is_some_and(|seconds| seconds > 10.0), "{plan}");
    assert_eq!(plan["weights"], json!({"old": 1, "new": 1}), "{plan}");
    load.leave_phase().await;
    fixture.cluster.api("start");
    let back = Instant::now();
    signal(&one, libc::SIGUSR1);
    rollout.wait_for_split(2, 1).await;
    println!(
        "the API server is back: a loss is followed {} later",
        since(back)
    );
    phase(&load, 1, 100).await;
    signal(&one, libc::SIGUSR1);
    rollout.wait_for_split(1, 1).await;
    let ended = load.finish();
    assert_none_failed(&ended);
    assert_share(&ended, 0, [1, 1], 1.0);
    assert_share(&ended, 1, [2, 1], 1.0);
}
