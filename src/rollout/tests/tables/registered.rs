//! Tests workers that are ready but not yet registered with a frontend.

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

/// Four of four workers of old, all registered with its frontend.
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
    // One frontend has just started, so the other one's higher count is used.
    scene.seen.frontends.new.asked = vec![knows(1), knows(0)];
    let decision = scene.settle();
    assert_eq!(scene.seen.split, ratio(4, 1));
    assert!(decision.message.contains("1 more worker of new is ready"));
    scene.seen.frontends.new.asked = vec![knows(2)];
    scene.settle();
    assert_eq!(scene.seen.split, ratio(2, 1));
    // A deleted pod counts as gone before the frontend notices, and a worker that the frontend dropped counts as gone
    // although its pod is ready.
    assert_eq!(scene.new_ready(1).next(), ratio(4, 1));
    scene.new_ready(2).settle();
    scene.seen.frontends.new.asked = vec![knows(1)];
    assert_eq!(scene.next(), ratio(4, 1));
}

#[test]
fn what_is_not_told_or_told_otherwise_limits_nothing() {
    // One frontend of new does not report a count.
    let mut scene = known();
    scene.seen.frontends.new.asked = vec![knows(0), frontend(Answer::Heard)];
    scene.new_ready(2).settle();
    assert_eq!(scene.seen.split, ratio(2, 1));
    // The frontends of old never reported as many workers as are ready, so they count differently.
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
