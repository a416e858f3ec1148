//! Tests workers that are ready but not yet registered with a frontend.

use super::*;

fn knows(others: u32) -> Frontend {
    Frontend {
        registered: Registered {
            prefill: None,
            others: Some(others),
        },
        ..frontend(QueryResult::Responded)
    }
}

/// Four of four workers of old, all registered with its frontend.
fn known() -> Fixture {
    let mut fixture = Fixture::of_four();
    fixture.seen.frontends.old.queried = vec![knows(4)];
    fixture.seen.frontends.new.queried = vec![knows(0)];
    fixture.settle();
    fixture
}

#[test]
fn only_workers_that_a_frontend_knows_of_count() {
    let mut fixture = known();
    let decision = fixture.new_ready(2).settle();
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);
    assert!(
        decision
            .message
            .contains("2 more workers of new are ready, but not registered"),
        "{}",
        decision.message
    );
    // One frontend has just started, so the other one's higher count is used.
    fixture.seen.frontends.new.queried = vec![knows(1), knows(0)];
    let decision = fixture.settle();
    assert_eq!(fixture.seen.split, ratio(4, 1));
    assert!(decision.message.contains("1 more worker of new is ready"));
    fixture.seen.frontends.new.queried = vec![knows(2)];
    fixture.settle();
    assert_eq!(fixture.seen.split, ratio(2, 1));
    // A deleted pod counts as gone before the frontend notices, and a worker that the frontend dropped counts as gone
    // although its pod is ready.
    assert_eq!(fixture.new_ready(1).next(), ratio(4, 1));
    fixture.new_ready(2).settle();
    fixture.seen.frontends.new.queried = vec![knows(1)];
    assert_eq!(fixture.next(), ratio(4, 1));
}

#[test]
fn missing_or_malformed_values_limit_nothing() {
    // One frontend of new does not report a count.
    let mut fixture = known();
    fixture.seen.frontends.new.queried = vec![knows(0), frontend(QueryResult::Responded)];
    fixture.new_ready(2).settle();
    assert_eq!(fixture.seen.split, ratio(2, 1));
    // The frontends of old never reported as many workers as are ready, so they count differently.
    for old in [knows(2), knows(8), frontend(QueryResult::Responded)] {
        let mut fixture = Fixture::of_four();
        fixture.seen.frontends.old.queried = vec![old];
        fixture.seen.frontends.new.queried = vec![knows(1)];
        fixture.new_ready(2).settle();
        assert_eq!(fixture.seen.split, ratio(2, 1));
    }
}

#[test]
fn each_half_is_recognized_separately() {
    let knows = |prefill, decode| Frontend {
        registered: Registered {
            prefill: Some(prefill),
            others: Some(decode),
        },
        ..frontend(QueryResult::Responded)
    };
    let mut fixture = Fixture::of(&[(Role::Prefill, 4), (Role::Decode, 2)]);
    fixture.seen.frontends.old.queried = vec![knows(4, 2)];
    fixture.seen.frontends.new.queried = vec![knows(1, 2)];
    fixture.settle();
    fixture.count(Role::Prefill, None, Some(4));
    fixture.count(Role::Decode, None, Some(2));
    fixture.settle();
    assert_eq!(fixture.seen.split, ratio(4, 1));
}
