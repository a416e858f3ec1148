//! What keeps an update going fails: the controller, a sidecar.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{UPDATE, within_patience};
use crate::load::{Load, assert_all_well};
use crate::rollout::{Rollout, SHAPE, assert_share, phase, processes, signal, since, workers};

const STREAMS: usize = 100;

#[tokio::test]
#[ignore = "in a cluster"]
async fn when_the_leading_controller_is_killed_another_continues_where_it_was() {
    let rollout = Rollout::begun([2, 2], json!({})).await;
    let fixture = &rollout.fixture;
    if !fixture.cluster.is_own() {
        return println!("skipped: no processes of this cluster can be killed");
    }
    rollout.splits(1, 1).await;
    let load = Load::aside(fixture.address, STREAMS, SHAPE);
    assert_eq!(rollout.controllers().len(), 2, "two replicas");
    let killed_one = rollout.holder();
    let own = format!("POD_NAME={}\0", rollout.leader());
    signal(&processes("\0controller\0", &own), libc::SIGKILL);
    let killed = Instant::now();
    // Nothing moves while nobody leads, whatever the workers do.
    signal(&workers("new")[..1], libc::SIGUSR1);
    load.enter(0);
    load.begun(STREAMS).await;
    rollout.splits(2, 1).await;
    println!(
        "the leader was killed: a loss of a worker is followed {} later",
        since(killed)
    );
    assert_ne!(rollout.holder(), killed_one, "another leads");
    signal(&workers("new")[..1], libc::SIGUSR1);
    rollout.splits(1, 1).await;
    load.leave().await;
    phase(&load, 1, STREAMS).await;
    // What was killed is there again, and ready.
    within_patience("both are ready", async || {
        let mut ready = 0;
        for (_, address) in rollout.controllers() {
            let address = address.parse().expect("an address");
            ready += usize::from(crate::fixture::answers(address, "/readyz").await);
        }
        ready == 2
    })
    .await;
    let ended = load.finish();
    assert_all_well(&ended);
    assert_share(&ended, 1, [1, 1], 1.0);
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_sidecar_that_does_not_answer_is_named_and_waited_for_no_longer_than_configured() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let more = json!({"ackTimeoutSeconds": PATIENCE.as_secs(), "maxTrafficSplitPercent": 10});
    let rollout = Rollout::begun([2, 2], more).await;
    let fixture = &rollout.fixture;
    if !fixture.cluster.is_own() {
        return println!("skipped: no processes of this cluster can be stopped");
    }
    fixture.scale("old-frontend", 2);
    rollout.splits(9, 1).await;
    let load = Load::aside(fixture.address, STREAMS, SHAPE);
    load.begun(2 * STREAMS).await;
    load.leave().await;
    let pods = fixture.old_pods();
    let mute = pods[0]["metadata"]["name"].as_str().expect("a name");
    let sidecar = processes("\0proxy\0", &format!("HOSTNAME={mute}\0"));
    signal(&sidecar, libc::SIGSTOP);
    let stopped = Instant::now();
    rollout.edit(&json!({"maxTrafficSplitPercent": 40}));
    // A pod that was just added may have lagged, too.
    let said = rollout.happens_with("ProxiesLag", mute).await;
    println!("{} after it fell silent: {said}", since(stopped));
    rollout
        .until(UPDATE, "it goes on", |update| {
            update["spec"]["weights"] == json!({"old": 3, "new": 2})
        })
        .await;
    println!("and it went on {} after", since(stopped));
    assert!(stopped.elapsed() >= PATIENCE, "{}", since(stopped));
    signal(&sidecar, libc::SIGCONT);
    rollout.splits(3, 2).await;
    rollout
        .until(UPDATE, "nobody lags", |update| {
            update["status"]["frontends"] == json!({"total": 2, "applied": 2})
        })
        .await;
    phase(&load, 0, STREAMS).await;
    let ended = load.finish();
    assert_all_well(&ended);
    assert_share(&ended, 0, [3, 2], 2.0);
}
