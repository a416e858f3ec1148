//! The main job: an update from its first percent to its last and back, by nothing but edits of the resource.

use crate::fixture::{Fixture, UPDATE, within_patience};
use crate::load::{Load, Shape, assert_all_well, share};

/// Streams that are open at any time.
const STREAMS: usize = 200;
const SHAPE: Shape = Shape {
    words: 10,
    each_ms: 200,
};

/// In each phase, new's share of the streams that began in it is exactly this.
fn assert_exact(ended: &[crate::load::Ended], percents: &[u8]) {
    for (phase, percent) in percents.iter().enumerate() {
        let (all, new) = share(ended, phase);
        let wanted = all as f64 * f64::from(*percent) / 100.0;
        println!("phase {phase}: {percent} %: {new} of {all} streams by new");
        assert!(all >= STREAMS, "phase {phase}: only {all} streams");
        assert!(
            (new as f64 - wanted).abs() <= 1.0,
            "phase {phase}: {new} of {all}, not {percent} %"
        );
    }
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_fade_by_kubectl_patch_loses_no_stream_and_its_shares_are_exact() {
    const PERCENTS: [u8; 5] = [0, 25, 50, 100, 0];
    let fixture = Fixture::ready().await;
    fixture.update(0).await;
    let load = Load::start(fixture.address, STREAMS, SHAPE);
    for (phase, percent) in PERCENTS.into_iter().enumerate() {
        load.leave().await;
        fixture.patch(percent).await;
        load.enter(phase);
        load.begun(STREAMS).await;
        assert!(load.open() > STREAMS / 2, "hundreds of streams");
    }
    let ended = load.finish();
    assert_all_well(&ended);
    assert_exact(&ended, &PERCENTS);
}

#[tokio::test]
#[ignore = "in a cluster"]
async fn a_resource_deleted_half_way_sends_all_back_to_old() {
    let fixture = Fixture::ready().await;
    fixture.update(50).await;
    let load = Load::aside(fixture.address, 50, SHAPE);
    within_patience("streams", async || load.open() == 50).await;
    fixture.cluster.kubectl(&["delete", "duc", UPDATE]);
    fixture.in_force(0).await;
    load.enter(0);
    load.begun(100).await;
    let ended = load.finish();
    assert_all_well(&ended);
    let (all, new) = share(&ended, 0);
    assert!(all >= 100 && new == 0, "{new} of {all} still by new");
}
