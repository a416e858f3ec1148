//! The leading controller is killed, or a sidecar stops responding, during an update.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{UPDATE, eventually};
use crate::load::{Load, assert_none_failed};
use crate::rollout::{Rollout, SHAPE, assert_share, phase, processes, signal, since, workers};

const STREAMS: usize = 100;

#[tokio::test]
#[ignore = "in a cluster"]
async fn when_the_leading_controller_is_killed_another_continues_where_it_was() {
    let rollout = Rollout::start([2, 2], json!({})).await;
    let fixture = &rollout.fixture;
    if !fixture.cluster.is_own() {
        return println!("skipped: no processes of this cluster can be killed");
    }
    rollout.wait_for_split(1, 1).await;
    let load = Load::start_outside_phases(fixture.address, STREAMS, SHAPE);
    assert_eq!(rollout.controllers().len(), 2, "two replicas");
    let killed_one = rollout.holder();
    let own = format!("POD_NAME={}\0", rollout.leader());
    signal(&processes("\0controller\0", &own), libc::SIGKILL);
    let killed = Instant::now();
    // The split does not change while there is no leader.
    signal(&workers("new")[..1], libc::SIGUSR1);
    load.enter_phase(0);
    load.wait_for_started(STREAMS).await;
    rollout.wait_for_split(2, 1).await;
    println!(
        "the leader was killed; the split followed a lost worker {} later",
        since(killed)
    );
    assert_ne!(rollout.holder(), killed_one, "another replica leads");
    signal(&workers("new")[..1], libc::SIGUSR1);
    rollout.wait_for_split(1, 1).await;
    load.leave_phase().await;
    phase(&load, 1, STREAMS).await;
    // The killed replica has restarted and is ready.
    eventually("both are ready", async || {
        let mut ready = 0;
        for (_, address) in rollout.controllers() {
            let address = address.parse().expect("an address");
            ready += usize::from(crate::fixture::answers(address, "/readyz").await);
        }
        ready == 2
    })
    .await;
    let ended = load.finish();
    assert_none_failed(&ended);
    assert_share(&ended, 1, [1, 1], 1.0);
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_sidecar_that_does_not_answer_is_named_and_waited_for_no_longer_than_configured() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let more = json!({"ackTimeoutSeconds": PATIENCE.as_secs(), "maxTrafficSplitPercent": 10});
    let rollout = Rollout::start([2, 2], more).await;
    let fixture = &rollout.fixture;
    if !fixture.cluster.is_own() {
        return println!("skipped: no processes of this cluster can be stopped");
    }
    fixture.scale("old-frontend", 2);
    rollout.wait_for_split(9, 1).await;
    let load = Load::start_outside_phases(fixture.address, STREAMS, SHAPE);
    load.wait_for_started(2 * STREAMS).await;
    load.leave_phase().await;
    let pods = fixture.old_pods();
    let mute = pods[0]["metadata"]["name"].as_str().expect("a name");
    let sidecar = processes("\0proxy\0", &format!("HOSTNAME={mute}\0"));
    signal(&sidecar, libc::SIGSTOP);
    let stopped = Instant::now();
    rollout.edit(&json!({"maxTrafficSplitPercent": 40}));
    // The pod that was just added may have lagged, too.
    let message = rollout.wait_for_event_with("ProxiesLag", mute).await;
    println!("{} after it was stopped: {message}", since(stopped));
    rollout
        .until(UPDATE, "the update continues", |update| {
            update["spec"]["weights"] == json!({"old": 3, "new": 2})
        })
        .await;
    println!("the update continued {} after", since(stopped));
    assert!(stopped.elapsed() >= PATIENCE, "{}", since(stopped));
    signal(&sidecar, libc::SIGCONT);
    rollout.wait_for_split(3, 2).await;
    rollout
        .until(UPDATE, "no proxy lags", |update| {
            update["status"]["frontends"] == json!({"total": 2, "applied": 2})
        })
        .await;
    phase(&load, 0, STREAMS).await;
    let ended = load.finish();
    assert_none_failed(&ended);
    assert_share(&ended, 0, [3, 2], 2.0);
}
