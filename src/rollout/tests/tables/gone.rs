//! Tests whether old is gone or only down: an outage, a mistyped name and an intended end look alike.

use super::*;

#[test]
fn an_outage_of_old_is_not_the_end() {
    let mut fixture = Fixture::settled(4, 1);
    let decision = fixture.old_ready(0).settle();
    assert_eq!(
        (decision.rule, fixture.seen.split),
        (Rule::OldCannotServe, Weights::ALL_NEW)
    );
    assert_eq!(
        (decision.phase, decision.desired.old_draining),
        (Phase::Progressing, false)
    );
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "OldCannotServe")
    );
    assert_eq!(fixture.old_ready(4).next(), Weights::ALL_NEW);
    assert_eq!(fixture.wait(seconds(5)).next(), ratio(4, 1));
}

#[test]
fn a_pause_during_an_outage_prevents_completion() {
    let mut fixture = Fixture::settled(4, 4);
    fixture.old_ready(0).settle();
    fixture.settings.paused = true;
    let decision = fixture.settle();
    assert_eq!(
        (decision.phase, fixture.seen.split),
        (Phase::Progressing, Weights::ALL_NEW)
    );
    // A user who wants the end edits the split.
    assert_eq!(
        fixture.edit(Weights::ALL_NEW).settle().phase,
        Phase::Complete
    );
}

#[test]
fn an_old_generation_of_which_nothing_was_ever_found_stays_a_fallback() {
    let mut fixture = Fixture::of_four();
    fixture.seen.workers.old.clear();
    fixture.seen.split = percent(10);
    let decision = fixture.new_ready(4).settle();
    assert_eq!(
        (decision.rule, fixture.seen.split),
        (Rule::OldCannotServe, Weights::ALL_NEW)
    );
    // Old's name may be mistyped.
    assert_eq!(
        (decision.phase, decision.desired.old_draining),
        (Phase::Progressing, false)
    );
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "OldCannotServe")
    );
    assert!(
        decision
            .message
            .contains("correct spec.sourceDeployment or spec.workers.old"),
        "{}",
        decision.message
    );
    // Once corrected, old gets its share back, and the update may end like any other.
    fixture.scale_old(4);
    assert_eq!(fixture.settle().rule, Rule::Capacity);
    assert_eq!(fixture.scale_old(0).settle().phase, Phase::Complete);
}

#[test]
fn the_update_ends_if_old_is_known_to_be_gone_although_it_was_never_found() {
    let mut fixture = Fixture::of_four();
    fixture.seen.workers.old.clear();
    fixture.settings.paused = true;
    assert_eq!(fixture.new_ready(4).settle().phase, Phase::Progressing);
    assert_eq!(
        fixture.edit(Weights::ALL_NEW).settle().phase,
        Phase::Complete
    );
}

#[test]
fn an_old_generation_that_is_there_without_workers_is_gone() {
    let mut fixture = Fixture::of_four();
    let decision = fixture.scale_old(0).new_ready(4).settle();
    assert_eq!(
        (decision.rule, fixture.seen.split),
        (Rule::OldCannotServe, Weights::ALL_NEW)
    );
}
