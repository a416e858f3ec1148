//! Half-way through an update, the workers of new crash, or a user scales them to zero.

use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{UPDATE, eventually};
use crate::load::{BETWEEN, Load, assert_none_failed};
use crate::rollout::{Rollout, SHAPE, assert_share, phase, signal, since, workers};

const STREAMS: usize = 100;

#[tokio::test]
#[ignore = "in a cluster"]
async fn new_workers_that_crash_lose_their_share_at_once_and_regain_it() {
    let rollout = Rollout::start([2, 2], json!({})).await;
    let fixture = &rollout.fixture;
    if !fixture.cluster.is_own() {
        return println!("skipped: no processes of this cluster can be killed");
    }
    rollout.wait_for_split(1, 1).await;
    let load = Load::start_outside_phases(fixture.address, STREAMS, SHAPE);
    // All clients have an open stream.
    load.wait_for_started(2 * STREAMS).await;
    eventually("streams on new", async || {
        fixture.only_plan().await["openStreams"]["new"].as_u64() > Some(STREAMS as u64 / 3)
    })
    .await;
    signal(&workers("new"), libc::SIGKILL);
    let crashed = Instant::now();
    // From now on, requests fail over or are not sent to new.
    load.enter_phase(0);
    let is_all_old = |plan: &serde_json::Value| plan["weights"]["new"] == 0;
    fixture.until_all("all to old", is_all_old).await;
    println!("new's workers crashed: all to old {} later", since(crashed));
    assert!(crashed.elapsed().as_secs() < 30, "{}", since(crashed));
    // Kubernetes restarts the workers, and new regains its share without an edit.
    rollout.wait_for_split(1, 1).await;
    println!("new had half again {} after the crash", since(crashed));
    load.leave_phase().await;
    phase(&load, 1, STREAMS).await;
    let ended = load.finish();
    let cut = ended.iter().filter(|(_, end)| end.is_err());
    for (phase, error) in cut
        .clone()
        .map(|(phase, end)| (phase, end.as_ref().unwrap_err()))
    {
        assert_eq!(*phase, BETWEEN, "after the crash: {error}");
        assert!(
            error.contains("of new") && error.contains(r#""error""#),
            "{error}"
        );
    }
    let (cut, all) = (cut.count(), ended.len());
    println!("{cut} of {all} streams were cut, all by new's crash, each with an error event");
    assert!(cut > 0 && cut <= STREAMS / 2 + 2, "{cut} were cut");
    assert_share(&ended, 1, [1, 1], 1.0);
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn new_workers_that_are_scaled_down_return_their_share_and_no_stream_is_cut() {
    let rollout = Rollout::start([2, 2], json!({})).await;
    let fixture = &rollout.fixture;
    rollout.wait_for_split(1, 1).await;
    let load = Load::start_outside_phases(fixture.address, STREAMS, SHAPE);
    load.wait_for_started(2 * STREAMS).await;
    let begun = Instant::now();
    fixture.set_replicas("new-worker", 0);
    let update = rollout.wait_for_split(1, 0).await;
    println!(
        "new's workers were taken away: all to old {} later",
        since(begun)
    );
    assert_eq!(update["status"]["rule"], "NewCannotServe", "{update}");
    assert_eq!(update["status"]["phase"], "Pending", "{update}");
    fixture.settled().await;
    phase(&load, 0, STREAMS).await;
    let ended = load.finish();
    assert_none_failed(&ended);
    assert_share(&ended, 0, [1, 0], 0.0);
    assert_eq!(rollout.get(UPDATE)["spec"]["oldDraining"], json!(false));
}
