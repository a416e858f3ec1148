//! Tests `drainOld`.

use super::*;

#[test]
fn old_is_emptied_while_it_still_has_workers_and_then_its_last_worker_may_go() {
    let mut scene = Scene::settled(4, 1);
    scene.settings.drain_old = true;
    scene.seen.resource_generation += 1;
    scene.open(0, 2, 0).applied();
    let decision = scene.step();
    assert_eq!(
        (decision.rule, decision.desired.split, decision.phase),
        (Rule::DrainOld, Weights::ALL_NEW, Phase::Progressing)
    );
    let decision = scene.settle();
    assert_eq!(
        (decision.phase, decision.desired.old_draining),
        (Phase::Draining, true)
    );
    assert!(!decision.last_old_worker_dispensable);
    let decision = scene.open(0, 0, 0).settle();
    assert_eq!(decision.phase, Phase::Complete);
    assert!(decision.last_old_worker_dispensable);
    // The last worker goes, and nothing changes.
    let decision = scene.scale_old(0).settle();
    assert_eq!(
        (decision.phase, decision.actions),
        (Phase::Complete, vec![])
    );
    assert!(decision.last_old_worker_dispensable);
}

#[test]
fn old_is_not_emptied_before_new_can_serve_and_serves_again_when_new_cannot() {
    let mut scene = Scene::settled(4, 0);
    scene.settings.drain_old = true;
    assert_eq!(scene.settle().rule, Rule::NewCannotServe);
    assert_eq!(scene.seen.split, Weights::ALL_OLD);
    scene.new_ready(4).step();
    assert_eq!(scene.seen.split, Weights::ALL_OLD, "its workers must last");
    assert_eq!(scene.settle().phase, Phase::Complete);
    let decision = scene.new_ready(0).step();
    assert_eq!(
        (decision.desired.split, decision.desired.old_draining),
        (Weights::ALL_OLD, false)
    );
    assert!(!decision.last_old_worker_dispensable);
}

#[test]
fn a_pause_and_the_cap_go_before_it_and_its_end_gives_old_its_share_again() {
    let mut scene = Scene::settled(4, 4);
    scene.settings.drain_old = true;
    scene.settings.cap_percent = Some(30);
    assert_eq!(scene.settle().rule, Rule::Cap);
    assert_eq!(scene.seen.split, percent(30));
    scene.settings.cap_percent = None;
    scene.settings.paused = true;
    assert_eq!(scene.settle().rule, Rule::Paused);
    assert_eq!(scene.seen.split, percent(30));
    scene.settings.paused = false;
    assert_eq!(scene.settle().phase, Phase::Complete);
    scene.settings.drain_old = false;
    let decision = scene.settle();
    assert_eq!(
        (scene.seen.split, decision.phase),
        (ratio(1, 1), Phase::Progressing)
    );
}
