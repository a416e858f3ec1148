//! Tests what users write: pauses, caps, and manual splits.

use super::*;

#[test]
fn a_pause_keeps_an_edit_and_its_end_returns_to_capacity() {
    let mut fixture = Fixture::settled(4, 2);
    fixture.settings.paused = true;
    fixture.edit(percent(50));
    let decision = fixture.settle();
    assert_eq!(
        (decision.rule, fixture.seen.split),
        (Rule::Paused, percent(50))
    );
    assert_eq!(holds(&decision, ConditionKind::Paused), (true, "Paused"));
    assert_eq!(
        holds(&decision, ConditionKind::Progressing),
        (false, "Paused")
    );

    // Ending the pause with another edit is not a contested edit either.
    fixture.settings.paused = false;
    fixture.edit(percent(60));
    let decision = fixture.settle();
    assert_eq!(
        (decision.rule, fixture.seen.split),
        (Rule::Capacity, ratio(2, 1))
    );
    assert!(!decision.memory.contested);
}

#[test]
fn a_paused_split_returns_after_an_emergency() {
    for (old, new, emergency) in [(4, 0, Weights::ALL_OLD), (0, 2, Weights::ALL_NEW)] {
        let mut fixture = Fixture::settled(4, 2);
        fixture.settings.paused = true;
        fixture.edit(percent(10)).settle();
        assert_eq!(fixture.old_ready(old).new_ready(new).next(), emergency);
        assert_eq!(fixture.wait(seconds(90)).applied().next(), emergency);
        assert_eq!(fixture.old_ready(4).new_ready(2).next(), emergency);
        assert_eq!(fixture.wait(seconds(5)).next(), percent(10));
        // A user's edit in the meantime replaces the held split.
        fixture.old_ready(old).new_ready(new).step();
        fixture.edit(percent(30)).step();
        assert_eq!(fixture.seen.split, emergency);
        fixture.old_ready(4).new_ready(2).settle();
        assert_eq!(fixture.seen.split, percent(30));
    }
}

#[test]
fn an_edit_without_a_pause_is_taken_back_and_reported_once() {
    let mut fixture = Fixture::settled(4, 2);
    for reported in [true, false] {
        let decision = fixture.edit(percent(90)).step();
        assert_eq!(fixture.seen.split, ratio(2, 1));
        assert_eq!(reasons(&decision).contains(&"SplitContested"), reported);
        assert_eq!(fixture.settle().actions, []);
    }
    fixture.settings.paused = true;
    fixture.settle();
    fixture.settings.paused = false;
    fixture.settle();
    let decision = fixture.edit(percent(90)).step();
    assert!(
        reasons(&decision).contains(&"SplitContested"),
        "a pause begins anew"
    );
}

#[test]
fn an_edit_to_what_is_right_and_a_first_split_are_not_contested() {
    let mut fixture = Fixture::settled(4, 2);
    fixture.edit(ratio(2, 1));
    assert_eq!(
        (fixture.settle().memory.contested, fixture.seen.split),
        (false, ratio(2, 1))
    );

    let mut fixture = Fixture::of_four();
    fixture.seen.split = percent(25);
    let decision = fixture.step();
    assert_eq!(
        (decision.desired.split, decision.memory.contested),
        (Weights::ALL_OLD, false)
    );
}

#[test]
fn a_lowered_cap_holds_at_once_and_a_raised_one_waits_for_the_proxies() {
    let mut fixture = Fixture::settled(4, 4);
    fixture.settings.cap_percent = Some(10);
    fixture.seen.resource_generation += 1;
    assert_eq!(fixture.next(), percent(10));
    fixture.applied().step();
    fixture.settings.cap_percent = Some(30);
    fixture.seen.resource_generation += 1;
    assert_eq!(fixture.next(), percent(10));
    assert_eq!(fixture.applied().next(), percent(30));
}

#[test]
fn the_cap_holds_an_update_as_a_pause_does() {
    let mut fixture = Fixture::settled(4, 4);
    fixture.settings.cap_percent = Some(10);
    let decision = fixture.settle();
    assert_eq!(holds(&decision, ConditionKind::Paused), (true, "Cap"));
    fixture.settings.cap_percent = None;
    let decision = fixture.settle();
    assert_eq!(
        holds(&decision, ConditionKind::Paused),
        (false, "NotPaused")
    );
}
