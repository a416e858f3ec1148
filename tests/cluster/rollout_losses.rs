//! The new generation's workers go away half-way: by a crash, or because a person goes back.

use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{UPDATE, within_patience};
use crate::load::{BETWEEN, Load, assert_all_well};
use crate::rollout::{Rollout, SHAPE, assert_share, phase, signal, since, workers};

const STREAMS: usize = 100;

#[tokio::test]
#[ignore = "in a cluster"]
async fn new_workers_that_crash_lose_their_share_at_once_and_get_it_again() {
    let rollout = Rollout::begun([2, 2], json!({})).await;
    let fixture = &rollout.fixture;
    if !fixture.cluster.is_own() {
        return println!("skipped: no processes of this cluster can be killed");
    }
    rollout.splits(1, 1).await;
    let load = Load::aside(fixture.address, STREAMS, SHAPE);
    // All clients are amid a stream.
    load.begun(2 * STREAMS).await;
    within_patience("streams on new", async || {
        fixture.only_plan().await["openStreams"]["new"].as_u64() > Some(STREAMS as u64 / 3)
    })
    .await;
    signal(&workers("new"), libc::SIGKILL);
    let crashed = Instant::now();
    // From the crash on: whoever comes now is saved, or not sent there at all.
    load.enter(0);
    let is_all_old = |plan: &serde_json::Value| plan["weights"]["new"] == 0;
    fixture.until_all("all to old", is_all_old).await;
    println!("new's workers crashed: all to old {} later", since(crashed));
    assert!(crashed.elapsed().as_secs() < 30, "{}", since(crashed));
    // Kubernetes starts them again, and the share returns by itself.
    rollout.splits(1, 1).await;
    println!("half to new again {} after the crash", since(crashed));
    load.leave().await;
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
async fn workers_of_new_that_are_taken_away_give_their_share_back_and_no_stream_ends() {
    let rollout = Rollout::begun([2, 2], json!({})).await;
    let fixture = &rollout.fixture;
    rollout.splits(1, 1).await;
    let load = Load::aside(fixture.address, STREAMS, SHAPE);
    load.begun(2 * STREAMS).await;
    let begun = Instant::now();
    fixture.wants("new-worker", 0);
    let update = rollout.splits(1, 0).await;
    println!(
        "new's workers were taken away: all to old {} later",
        since(begun)
    );
    assert_eq!(update["status"]["rule"], "NewCannotServe", "{update}");
    assert_eq!(update["status"]["phase"], "Pending", "{update}");
    fixture.settled().await;
    phase(&load, 0, STREAMS).await;
    let ended = load.finish();
    assert_all_well(&ended);
    assert_share(&ended, 0, [1, 0], 0.0);
    assert_eq!(rollout.get(UPDATE)["spec"]["oldDraining"], json!(false));
}
