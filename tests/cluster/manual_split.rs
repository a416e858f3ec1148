//! Moves the split from 0 to 100 percent and back by editing the resource.

use crate::fixture::{Fixture, UPDATE, eventually};
use crate::load::{Load, Shape, assert_none_failed, share};

/// Streams that are open at any time.
const STREAMS: usize = 200;
const SHAPE: Shape = Shape {
    words: 10,
    each_ms: 200,
};

/// Asserts that new served exactly this share of the streams of each phase.
fn assert_exact(ended: &[crate::load::FinishedStream], percents: &[u8]) {
    for (phase, percent) in percents.iter().enumerate() {
        let (all, new) = share(ended, phase);
        let wanted = all as f64 * f64::from(*percent) / 100.0;
        println!("phase {phase}: {percent}%: new served {new} of {all} streams");
        assert!(all >= STREAMS, "phase {phase}: only {all} streams");
        assert!(
            (new as f64 - wanted).abs() <= 1.0,
            "phase {phase}: {new} of {all}, not {percent}%"
        );
    }
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn an_update_by_kubectl_patch_loses_no_stream_and_its_shares_are_exact() {
    const PERCENTS: [u8; 5] = [0, 25, 50, 100, 0];
    let fixture = Fixture::ready().await;
    fixture.update(0).await;
    let load = Load::start(fixture.address, STREAMS, SHAPE);
    for (phase, percent) in PERCENTS.into_iter().enumerate() {
        load.leave_phase().await;
        fixture.patch(percent).await;
        load.enter_phase(phase);
        load.wait_for_started(STREAMS).await;
        assert!(load.open() > STREAMS / 2, "too few open streams");
    }
    let ended = load.finish();
    assert_none_failed(&ended);
    assert_exact(&ended, &PERCENTS);
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn all_requests_go_to_old_after_the_resource_is_deleted_half_way() {
    let fixture = Fixture::ready().await;
    fixture.update(50).await;
    let load = Load::start_outside_phases(fixture.address, 50, SHAPE);
    eventually("streams", async || load.open() == 50).await;
    fixture.cluster.kubectl(&["delete", "duc", UPDATE]);
    fixture.in_force(0).await;
    load.enter_phase(0);
    load.wait_for_started(100).await;
    let ended = load.finish();
    assert_none_failed(&ended);
    let (all, new) = share(&ended, 0);
    assert!(all >= 100 && new == 0, "new still served {new} of {all}");
}
