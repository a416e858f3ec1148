//! Tests what users write: pauses, caps, and splits of their own.

use super::*;

#[test]
fn a_pause_keeps_an_edit_and_its_end_returns_to_capacity() {
    let mut scene = Scene::settled(4, 2);
    scene.settings.paused = true;
    scene.edit(percent(50));
    let decision = scene.settle();
    assert_eq!(
        (decision.rule, scene.seen.split),
        (Rule::Paused, percent(50))
    );
    assert_eq!(holds(&decision, ConditionKind::Paused), (true, "Paused"));
    assert_eq!(
        holds(&decision, ConditionKind::Progressing),
        (false, "Paused")
    );

    // Ending the pause with one more edit is no contested edit either.
    scene.settings.paused = false;
    scene.edit(percent(60));
    let decision = scene.settle();
    assert_eq!(
        (decision.rule, scene.seen.split),
        (Rule::Capacity, ratio(2, 1))
    );
    assert!(!decision.memory.contested);
}

#[test]
fn what_a_pause_holds_returns_after_an_emergency() {
    for (old, new, emergency) in [(4, 0, Weights::ALL_OLD), (0, 2, Weights::ALL_NEW)] {
        let mut scene = Scene::settled(4, 2);
        scene.settings.paused = true;
        scene.edit(percent(10)).settle();
        assert_eq!(scene.old_ready(old).new_ready(new).next(), emergency);
        assert_eq!(scene.wait(seconds(90)).applied().next(), emergency);
        assert_eq!(scene.old_ready(4).new_ready(2).next(), emergency);
        assert_eq!(scene.wait(seconds(5)).next(), percent(10));
        // A user's edit in the meantime replaces the held split.
        scene.old_ready(old).new_ready(new).step();
        scene.edit(percent(30)).step();
        assert_eq!(scene.seen.split, emergency);
        scene.old_ready(4).new_ready(2).settle();
        assert_eq!(scene.seen.split, percent(30));
    }
}

#[test]
fn an_edit_without_a_pause_is_taken_back_and_told_once() {
    let mut scene = Scene::settled(4, 2);
    for reported in [true, false] {
        let decision = scene.edit(percent(90)).step();
        assert_eq!(scene.seen.split, ratio(2, 1));
        assert_eq!(reasons(&decision).contains(&"SplitContested"), reported);
        assert_eq!(scene.settle().actions, []);
    }
    scene.settings.paused = true;
    scene.settle();
    scene.settings.paused = false;
    scene.settle();
    let decision = scene.edit(percent(90)).step();
    assert!(
        reasons(&decision).contains(&"SplitContested"),
        "a pause begins anew"
    );
}

#[test]
fn an_edit_to_what_is_right_and_a_first_split_are_not_contested() {
    let mut scene = Scene::settled(4, 2);
    scene.edit(ratio(2, 1));
    assert_eq!(
        (scene.settle().memory.contested, scene.seen.split),
        (false, ratio(2, 1))
    );

    let mut scene = Scene::of_four();
    scene.seen.split = percent(25);
    let decision = scene.step();
    assert_eq!(
        (decision.desired.split, decision.memory.contested),
        (Weights::ALL_OLD, false)
    );
}

#[test]
fn a_lowered_cap_holds_at_once_and_a_raised_one_waits_for_the_proxies() {
    let mut scene = Scene::settled(4, 4);
    scene.settings.cap_percent = Some(10);
    scene.seen.resource_generation += 1;
    assert_eq!(scene.next(), percent(10));
    scene.applied().step();
    scene.settings.cap_percent = Some(30);
    scene.seen.resource_generation += 1;
    assert_eq!(scene.next(), percent(10));
    assert_eq!(scene.applied().next(), percent(30));
}

#[test]
fn the_cap_holds_an_update_as_a_pause_does() {
    let mut scene = Scene::settled(4, 4);
    scene.settings.cap_percent = Some(10);
    let decision = scene.settle();
    assert_eq!(holds(&decision, ConditionKind::Paused), (true, "Cap"));
    scene.settings.cap_percent = None;
    let decision = scene.settle();
    assert_eq!(
        holds(&decision, ConditionKind::Paused),
        (false, "NotPaused")
    );
}
