//! Tests `drainOld`.

use super::*;

#[test]
fn old_is_emptied_while_it_still_has_workers_and_then_its_last_worker_may_go() {
    let mut fixture = Fixture::settled(4, 1);
    fixture.settings.drain_old = true;
    fixture.seen.resource_generation += 1;
    fixture.open(0, 2, 0).applied();
    let decision = fixture.step();
    assert_eq!(
        (decision.rule, decision.desired.split, decision.phase),
        (Rule::DrainOld, Weights::ALL_NEW, Phase::Progressing)
    );
    let decision = fixture.settle();
    assert_eq!(
        (decision.phase, decision.desired.old_draining),
        (Phase::Draining, true)
    );
    assert!(!decision.last_old_worker_dispensable);
    let decision = fixture.open(0, 0, 0).settle();
    assert_eq!(decision.phase, Phase::Complete);
    assert!(decision.last_old_worker_dispensable);
    // The last worker goes, and nothing changes.
    let decision = fixture.scale_old(0).settle();
    assert_eq!(
        (decision.phase, decision.actions),
        (Phase::Complete, vec![])
    );
    assert!(decision.last_old_worker_dispensable);
}

#[test]
fn old_is_not_emptied_before_new_can_serve_and_serves_again_when_new_cannot() {
    let mut fixture = Fixture::settled(4, 0);
    fixture.settings.drain_old = true;
    assert_eq!(fixture.settle().rule, Rule::NewCannotServe);
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);
    fixture.new_ready(4).step();
    assert_eq!(
        fixture.seen.split,
        Weights::ALL_OLD,
        "its workers must last"
    );
    assert_eq!(fixture.settle().phase, Phase::Complete);
    let decision = fixture.new_ready(0).step();
    assert_eq!(
        (decision.desired.split, decision.desired.old_draining),
        (Weights::ALL_OLD, false)
    );
    assert!(!decision.last_old_worker_dispensable);
}

#[test]
fn a_pause_and_the_cap_take_precedence_and_its_end_returns_the_share_to_old() {
    let mut fixture = Fixture::settled(4, 4);
    fixture.settings.drain_old = true;
    fixture.settings.cap_percent = Some(30);
    assert_eq!(fixture.settle().rule, Rule::Cap);
    assert_eq!(fixture.seen.split, percent(30));
    fixture.settings.cap_percent = None;
    fixture.settings.paused = true;
    assert_eq!(fixture.settle().rule, Rule::Paused);
    assert_eq!(fixture.seen.split, percent(30));
    fixture.settings.paused = false;
    assert_eq!(fixture.settle().phase, Phase::Complete);
    fixture.settings.drain_old = false;
    let decision = fixture.settle();
    assert_eq!(
        (fixture.seen.split, decision.phase),
        (ratio(1, 1), Phase::Progressing)
    );
}
