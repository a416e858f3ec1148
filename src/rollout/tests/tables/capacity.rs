//! Tests the share of each generation by its workers: the minimum over its roles, relative to the accepted sizes.

use super::*;

#[test]
fn the_split_follows_worker_by_worker_from_one_generation_to_the_other() {
    let mut fixture = Fixture::of_four();
    for (old, new, weights, percent) in [
        (4, 0, ratio(1, 0), 0),
        (4, 1, ratio(4, 1), 20),
        (3, 1, ratio(3, 1), 25),
        (3, 2, ratio(3, 2), 40),
        (2, 2, ratio(1, 1), 50),
        (2, 3, ratio(2, 3), 60),
        (1, 3, ratio(1, 3), 75),
        (1, 4, ratio(1, 4), 80),
        (0, 4, ratio(0, 1), 100),
    ] {
        fixture.scale_old(old).new_ready(new).settle();
        assert_eq!(fixture.seen.split, weights, "{old} old, {new} new");
        assert_eq!(fixture.seen.split.rounded_percent(), percent);
    }
}

#[test]
fn capacity_is_the_least_of_the_roles_by_the_full_size_of_each() {
    use Role::{Decode, Prefill, Worker};
    let split_roles: &[(Role, u32)] = &[(Prefill, 4), (Decode, 2)];
    let mixed_roles: &[(Role, u32)] = &[(Prefill, 4), (Worker, 2)];
    for (source, new, weights) in [
        (split_roles, [1, 1], ratio(4, 1)),
        (split_roles, [4, 1], ratio(2, 1)),
        (split_roles, [3, 2], ratio(4, 3)),
        (split_roles, [4, 0], ratio(1, 0)),
        (split_roles, [0, 2], ratio(1, 0)),
        (split_roles, [8, 4], ratio(1, 2)),
        (mixed_roles, [1, 1], ratio(4, 1)),
        (mixed_roles, [4, 0], ratio(1, 0)),
    ] {
        let mut fixture = Fixture::of(source);
        fixture.settle();
        for ((role, _), ready) in source.iter().zip(new) {
            fixture.count(*role, None, Some(ready));
        }
        fixture.settle();
        assert_eq!(fixture.seen.split, weights, "{source:?}: {new:?}");
    }
}

#[test]
fn an_incomplete_unit_is_not_capacity() {
    for role in [Role::Prefill, Role::Decode] {
        let mut fixture = Fixture::of_four();
        fixture.settings.full_sizes.new = [(role, 2)].into();
        fixture.seen.workers.new = [(
            role,
            Workers {
                ready: 2,
                desired: 2,
            },
        )]
        .into();
        let decision = fixture.settle();
        assert_eq!(
            (decision.rule, fixture.seen.split),
            (Rule::NewCannotServe, Weights::ALL_OLD)
        );
    }
}

#[test]
fn the_full_size_is_the_sources_when_accepted_and_not_its_momentary_one() {
    let mut fixture = Fixture::of_four();
    fixture.seen.workers.old.insert(
        Role::Worker,
        Workers {
            ready: 3,
            desired: 4,
        },
    );
    fixture.settle();
    fixture.scale_old(2).new_ready(2).settle();
    fixture.seen.workers.new.insert(
        Role::Worker,
        Workers {
            ready: 2,
            desired: 2,
        },
    );
    assert_eq!(fixture.memory.full_sizes, [(Role::Worker, 4)].into());
    assert_eq!(
        fixture.settle().capacity.new.share,
        Ratio::new(1, 2).unwrap()
    );
    assert_eq!(fixture.seen.split, percent(50));
}

#[test]
fn a_stated_size_overrides_the_accepted_one_and_old_determines_new() {
    let mut fixture = Fixture::settled(4, 2);
    fixture.settings.full_sizes.old = [(Role::Worker, 8)].into();
    fixture.settle();
    assert_eq!(fixture.seen.split, ratio(2, 1));
    fixture.settings.full_sizes.new = [(Role::Worker, 2)].into();
    fixture.settle();
    assert_eq!(fixture.seen.split, ratio(1, 2));
}

#[test]
fn roles_that_the_source_does_not_have_count_once_a_user_says_how_many_make_it_whole() {
    let mut fixture = Fixture::of_four();
    let pair =
        |ready| [Role::Prefill, Role::Decode].map(|role| (role, Workers { ready, desired: 2 }));
    fixture.seen.workers.new = pair(2).into();
    let decision = fixture.settle();
    assert_eq!(
        (decision.rule, fixture.seen.split),
        (Rule::Capacity, Weights::ALL_OLD)
    );
    assert!(
        decision
            .message
            .contains("spec.workers.new.replicas.prefill"),
        "{}",
        decision.message
    );
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "FullSizeUnknown")
    );

    // In an outage of old, new still gets all traffic.
    let mut outage = fixture.clone();
    assert_eq!(outage.old_ready(0).next(), Weights::ALL_NEW);

    fixture.settings.full_sizes.new = [(Role::Prefill, 2), (Role::Decode, 4)].into();
    fixture.settle();
    assert_eq!(fixture.seen.split, ratio(2, 1));
}

#[test]
fn workers_that_appear_later_count_until_new_has_a_share() {
    let mut fixture = Fixture::of(&[(Role::Prefill, 1), (Role::Decode, 1)]);
    fixture.settle();
    for (role, full) in [(Role::Prefill, 4), (Role::Decode, 2)] {
        let workers = Workers {
            ready: full,
            desired: full,
        };
        fixture.seen.workers.old.insert(role, workers);
        fixture.count(role, None, Some(1));
    }
    fixture.settle();
    assert_eq!(fixture.seen.split, ratio(4, 1));
    // From here on the full size is fixed.
    let more = Workers {
        ready: 8,
        desired: 8,
    };
    fixture.seen.workers.old.insert(Role::Prefill, more);
    fixture.settle();
    assert_eq!(fixture.memory.full_sizes[&Role::Prefill], 4);
}

#[test]
fn another_subject_is_another_update() {
    let mut fixture = Fixture::settled(4, 2);
    fixture.settings.subject = "older to new".to_owned();
    fixture.seen.workers.old.insert(
        Role::Worker,
        Workers {
            ready: 2,
            desired: 2,
        },
    );
    fixture.settle();
    assert_eq!(fixture.memory.full_sizes, [(Role::Worker, 2)].into());
    assert_eq!(fixture.seen.split, percent(50));
}
