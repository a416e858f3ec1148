//! Tests the share of each side by its workers: the minimum over its roles, relative to the accepted sizes.

use super::*;

#[test]
fn the_split_follows_worker_by_worker_from_one_side_to_the_other() {
    let mut scene = Scene::of_four();
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
        scene.scale_old(old).new_ready(new).settle();
        assert_eq!(scene.seen.split, weights, "{old} old, {new} new");
        assert_eq!(scene.seen.split.rounded_percent(), percent);
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
        let mut scene = Scene::of(source);
        scene.settle();
        for ((role, _), ready) in source.iter().zip(new) {
            scene.count(*role, None, Some(ready));
        }
        scene.settle();
        assert_eq!(scene.seen.split, weights, "{source:?}: {new:?}");
    }
}

#[test]
fn a_half_without_its_other_half_is_no_capacity() {
    for role in [Role::Prefill, Role::Decode] {
        let mut scene = Scene::of_four();
        scene.settings.full_sizes.new = [(role, 2)].into();
        scene.seen.workers.new = [(
            role,
            Workers {
                ready: 2,
                desired: 2,
            },
        )]
        .into();
        let decision = scene.settle();
        assert_eq!(
            (decision.rule, scene.seen.split),
            (Rule::NewCannotServe, Weights::ALL_OLD)
        );
    }
}

#[test]
fn the_full_size_is_the_sources_when_accepted_and_not_its_momentary_one() {
    let mut scene = Scene::of_four();
    scene.seen.workers.old.insert(
        Role::Worker,
        Workers {
            ready: 3,
            desired: 4,
        },
    );
    scene.settle();
    scene.scale_old(2).new_ready(2).settle();
    scene.seen.workers.new.insert(
        Role::Worker,
        Workers {
            ready: 2,
            desired: 2,
        },
    );
    assert_eq!(scene.memory.full_sizes, [(Role::Worker, 4)].into());
    assert_eq!(scene.settle().capacity.new.share, Ratio::new(1, 2).unwrap());
    assert_eq!(scene.seen.split, percent(50));
}

#[test]
fn a_stated_size_goes_before_the_accepted_one_and_old_speaks_for_new() {
    let mut scene = Scene::settled(4, 2);
    scene.settings.full_sizes.old = [(Role::Worker, 8)].into();
    scene.settle();
    assert_eq!(scene.seen.split, ratio(2, 1));
    scene.settings.full_sizes.new = [(Role::Worker, 2)].into();
    scene.settle();
    assert_eq!(scene.seen.split, ratio(1, 2));
}

#[test]
fn roles_that_the_source_does_not_have_count_once_a_person_says_how_many_make_it_whole() {
    let mut scene = Scene::of_four();
    let pair =
        |ready| [Role::Prefill, Role::Decode].map(|role| (role, Workers { ready, desired: 2 }));
    scene.seen.workers.new = pair(2).into();
    let decision = scene.settle();
    assert_eq!(
        (decision.rule, scene.seen.split),
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
    let mut outage = scene.clone();
    assert_eq!(outage.old_ready(0).next(), Weights::ALL_NEW);

    scene.settings.full_sizes.new = [(Role::Prefill, 2), (Role::Decode, 4)].into();
    scene.settle();
    assert_eq!(scene.seen.split, ratio(2, 1));
}

#[test]
fn what_comes_after_the_update_itself_counts_until_new_has_a_share() {
    let mut scene = Scene::of(&[(Role::Prefill, 1), (Role::Decode, 1)]);
    scene.settle();
    for (role, full) in [(Role::Prefill, 4), (Role::Decode, 2)] {
        let workers = Workers {
            ready: full,
            desired: full,
        };
        scene.seen.workers.old.insert(role, workers);
        scene.count(role, None, Some(1));
    }
    scene.settle();
    assert_eq!(scene.seen.split, ratio(4, 1));
    // From here on the full size is fixed.
    let more = Workers {
        ready: 8,
        desired: 8,
    };
    scene.seen.workers.old.insert(Role::Prefill, more);
    scene.settle();
    assert_eq!(scene.memory.full_sizes[&Role::Prefill], 4);
}

#[test]
fn another_subject_is_another_update() {
    let mut scene = Scene::settled(4, 2);
    scene.settings.subject = "older to new".to_owned();
    scene.seen.workers.old.insert(
        Role::Worker,
        Workers {
            ready: 2,
            desired: 2,
        },
    );
    scene.settle();
    assert_eq!(scene.memory.full_sizes, [(Role::Worker, 2)].into());
    assert_eq!(scene.seen.split, percent(50));
}
