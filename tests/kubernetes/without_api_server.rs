//! The API server goes away and comes back, under load. Tests run in the order of their names, so this one is the last: what
//! Dynamo's own discovery needs to recover is not the others' to wait for.

use std::time::Duration;

use crate::load::{Load, Shape, assert_all_well, share};
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
