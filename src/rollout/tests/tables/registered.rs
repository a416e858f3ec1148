//! Workers that are ready and that no frontend knows of yet.

use super::*;

fn knows(others: u32) -> Frontend {
    Frontend {
        registered: Registered {
            prefill: None,
            others: Some(others),
        },
        ..frontend(Answer::Heard)
    }
}

/// Four of four workers of old, all of them known to its frontend.
fn known() -> Scene {
    let mut scene = Scene::of_four();
    scene.seen.frontends.old.asked = vec![knows(4)];
    scene.seen.frontends.new.asked = vec![knows(0)];
    scene.settle();
    scene
}

#[test]
fn only_workers_that_a_frontend_knows_of_count() {
    let mut scene = known();
    let decision = scene.new_ready(2).settle();
    assert_eq!(scene.seen.split, Weights::ALL_OLD);
    assert!(
        decision
            .message
            .contains("2 more workers of new are ready, but not registered"),
        "{}",
        decision.message
    );
    // One frontend has just begun: the other knows more.
    scene.seen.frontends.new.asked = vec![knows(1), knows(0)];
    let decision = scene.settle();
    assert_eq!(scene.seen.split, ratio(4, 1));
    assert!(decision.message.contains("1 more worker of new is ready"));
    scene.seen.frontends.new.asked = vec![knows(2)];
    scene.settle();
    assert_eq!(scene.seen.split, ratio(2, 1));
    // A pod that is gone is gone before the frontend knows, and one that left the frontend is gone though its pod is ready.
    assert_eq!(scene.new_ready(1).next(), ratio(4, 1));
    scene.new_ready(2).settle();
    scene.seen.frontends.new.asked = vec![knows(1)];
    assert_eq!(scene.next(), ratio(4, 1));
}

#[test]
fn what_is_not_told_or_told_otherwise_limits_nothing() {
    // A frontend of new that does not say.
    let mut scene = known();
    scene.seen.frontends.new.asked = vec![knows(0), frontend(Answer::Heard)];
    scene.new_ready(2).settle();
    assert_eq!(scene.seen.split, ratio(2, 1));
    // The frontends of old never knew of as many as are counted: theirs is another number.
    for old in [knows(2), knows(8), frontend(Answer::Heard)] {
        let mut scene = Scene::of_four();
        scene.seen.frontends.old.asked = vec![old];
        scene.seen.frontends.new.asked = vec![knows(1)];
        scene.new_ready(2).settle();
        assert_eq!(scene.seen.split, ratio(2, 1));
    }
}

#[test]
fn halves_are_known_each_for_itself() {
    let knows = |prefill, decode| Frontend {
        registered: Registered {
            prefill: Some(prefill),
            others: Some(decode),
        },
        ..frontend(Answer::Heard)
    };
    let mut scene = Scene::of(&[(Role::Prefill, 4), (Role::Decode, 2)]);
    scene.seen.frontends.old.asked = vec![knows(4, 2)];
    scene.seen.frontends.new.asked = vec![knows(1, 2)];
    scene.settle();
    scene.count(Role::Prefill, None, Some(4));
    scene.count(Role::Decode, None, Some(2));
    scene.settle();
    assert_eq!(scene.seen.split, ratio(4, 1));
}
