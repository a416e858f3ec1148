//! The clients, on real sockets of this machine.

use super::*;
use crate::demo::ModelServer;
use crate::split::Generation;

/// Waits until the counts is as wanted. The time limit is generous, since the machine may be busy.
async fn until(load: &Load, wanted: impl Fn(&Counts) -> bool) {
    tokio::time::timeout(Duration::from_secs(30), async {
        while !load.counts(&wanted) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the counts gets there");
}

#[tokio::test]
async fn clients_count_what_came_back_and_stop_on_request() {
    let server = ModelServer::start(Generation::New).unwrap();
    let load = Load::start(server.address(), 8, 4).unwrap();
    load.set_percent(100);
    until(&load, |counts| counts.ended() >= 8).await;
    load.stop();
    until(&load, |counts| counts.open() == 0).await;
    let counts = load.counts(Counts::clone);
    assert_eq!(
        counts.count(Some(Generation::New), Ending::Completed),
        counts.ended()
    );
    assert_eq!(counts.lost(), (0, 0));
    assert!(counts.gap[1].percentiles([50]).is_some());
}

#[tokio::test]
async fn a_server_killed_in_mid_stream_breaks_its_streams_and_is_unreachable_after() {
    let mut server = ModelServer::start(Generation::Old).unwrap();
    let load = Load::start(server.address(), 8, 120).unwrap();
    until(&load, |counts| counts.open() == 8).await;
    load.set_outage(true);
    server.kill();
    until(&load, |counts| counts.total(Ending::Unreachable) >= 8).await;
    assert_eq!(load.counts(Counts::lost).1, 0);
    server.restart().unwrap();
    until(&load, |counts| counts.total(Ending::Completed) >= 1).await;
    // At least those that could not connect; a stream may have completed just before the kill.
    assert!(load.counts(Counts::lost).0 >= 8);
}
