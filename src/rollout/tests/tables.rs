//! Each sentence of the rules, by example.

use super::*;

/// Events by reason.
fn reasons(decision: &Decision) -> Vec<&'static str> {
    decision.events.iter().map(|event| event.reason).collect()
}

fn holds(decision: &Decision, kind: ConditionKind) -> (bool, &'static str) {
    let mut conditions = decision.conditions.iter();
    let condition = conditions.find(|condition| condition.kind == kind);
    condition
        .map(|condition| (condition.holds, condition.reason))
        .expect("all are always there")
}

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

    // It is better than nothing all the same.
    let mut outage = scene.clone();
    assert_eq!(outage.old_ready(0).next(), Weights::ALL_NEW);

    scene.settings.full_sizes.new = [(Role::Prefill, 2), (Role::Decode, 4)].into();
    scene.settle();
    assert_eq!(scene.seen.split, ratio(2, 1));
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

#[test]
fn a_side_that_lost_capacity_loses_its_share_at_once_and_with_proxies_that_lag() {
    for (old, new, weights) in [
        (4, 1, ratio(4, 1)),
        (2, 3, ratio(2, 3)),
        (1, 2, ratio(1, 2)),
        (4, 0, ratio(1, 0)),
        (0, 3, ratio(0, 1)),
    ] {
        let mut scene = Scene::settled(4, 3);
        scene.edit(scene.seen.split);
        assert_eq!(
            scene.old_ready(old).new_ready(new).next(),
            weights,
            "{old} old, {new} new"
        );
    }
}

#[test]
fn the_loss_of_one_side_does_not_hurry_the_gain_of_the_other() {
    let mut scene = Scene::settled(4, 1);
    assert_eq!(scene.old_ready(3).new_ready(4).next(), ratio(3, 1));
    assert_eq!(scene.applied().wait(seconds(5)).next(), ratio(3, 4));

    // Not even one that has lasted and only waits for the proxies.
    let mut scene = Scene::settled(4, 1);
    scene.new_ready(4).seen.resource_generation += 1;
    scene.step();
    assert_eq!(scene.wait(seconds(5)).next(), ratio(4, 1));
    assert_eq!(scene.old_ready(3).next(), ratio(3, 1));
    assert_eq!(scene.applied().next(), ratio(3, 4));
}

#[test]
fn a_gain_counts_after_it_has_lasted() {
    let mut scene = Scene::settled(4, 1);
    scene.new_ready(2);
    let decision = scene.step();
    assert_eq!(decision.split, None);
    assert_eq!(decision.wake_at, Some(scene.now.after(seconds(5))));
    assert!(
        decision
            .message
            .ends_with("waiting for the workers of new to stay ready")
    );
    assert_eq!(scene.wait(Duration::from_millis(4999)).next(), ratio(4, 1));
    assert_eq!(scene.wait(Duration::from_millis(1)).next(), ratio(2, 1));

    // The same for old; and a worker that comes and goes earns nothing.
    let mut scene = Scene::settled(2, 2);
    scene.old_ready(4);
    assert_eq!(scene.next(), percent(50));
    scene.wait(seconds(4)).old_ready(2).step();
    scene.wait(seconds(1)).old_ready(4).step();
    assert_eq!(scene.wait(seconds(4)).next(), percent(50));
    assert_eq!(scene.wait(seconds(1)).next(), ratio(2, 1));
}

#[test]
fn a_gain_waits_for_every_ready_proxy_and_no_longer_than_the_timeout() {
    let mut scene = Scene::settled(4, 1);
    scene.new_ready(2).step();
    scene.wait(seconds(5)).step();
    assert_eq!(scene.seen.split, ratio(2, 1));
    let wake_at = scene.step().wake_at;
    assert_eq!(
        wake_at,
        Some(scene.now.after(seconds(30))),
        "to tell who lags"
    );
    // Proxy b hears nothing of it.
    scene.applied().seen.proxies[1].state = Err(Silence::NoAnswer);
    scene.new_ready(3).step();
    let decision = scene.wait(seconds(10)).step();
    assert_eq!(decision.split, None);
    let expected = "waiting for 1 proxy to apply the last change: b (does not answer)";
    assert!(decision.message.ends_with(expected), "{}", decision.message);
    assert_eq!(decision.wake_at, Some(scene.now.after(seconds(20))));

    let mut without = scene.clone();
    without.seen.proxies[1].ready = false;
    assert_eq!(without.next(), ratio(4, 3));

    let decision = scene.wait(seconds(20)).step();
    assert_eq!(decision.split, Some(ratio(4, 3)));
    assert_eq!(reasons(&decision), ["SplitChanged", "ProxiesLag"]);
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "ProxiesLag")
    );
    assert!(!reasons(&scene.step()).contains(&"ProxiesLag"), "once");
}

#[test]
fn new_gets_nothing_before_it_can_serve_and_loses_all_when_it_cannot() {
    type Break = fn(&mut Scene);
    let breaks: [(Break, &str); 4] = [
        (
            |scene| scene.seen.frontends.new.endpoints = 0,
            "its frontend service has no ready endpoint",
        ),
        (
            |scene| scene.seen.frontends.new.models = ["other".to_owned()].into(),
            "the model llama is not served there",
        ),
        (
            |scene| {
                scene.settings.models = Some(["a".to_owned(), "b".to_owned()].into());
            },
            "the models a, b are not served there",
        ),
        (|scene| _ = scene.new_ready(0), "it has no ready worker"),
    ];
    for (break_it, why) in breaks {
        let mut scene = Scene::settled(4, 0);
        break_it(scene.new_ready(2));
        let decision = scene.settle();
        assert_eq!(
            (decision.rule, scene.seen.split),
            (Rule::NewCannotServe, Weights::ALL_OLD)
        );
        assert_eq!(decision.phase, Phase::Pending);
        assert!(decision.message.contains(why), "{}", decision.message);
        assert!(!holds(&decision, ConditionKind::NewFrontendReady).0);
        assert!(!holds(&decision, ConditionKind::Degraded).0);

        let mut scene = Scene::settled(4, 2);
        assert_eq!(scene.seen.split, ratio(2, 1));
        break_it(&mut scene);
        assert_eq!(scene.next(), Weights::ALL_OLD);
    }
}

#[test]
fn what_old_served_is_wanted_of_new_also_when_old_is_gone() {
    let mut scene = Scene::settled(4, 0);
    scene.seen.frontends.old = Frontends::default();
    scene.seen.frontends.new.models = ["other".to_owned()].into();
    scene.new_ready(4).scale_old(0);
    assert_eq!(scene.settle().rule, Rule::NeitherCanServe);
    scene.settings.models = Some(["other".to_owned()].into());
    assert_eq!(scene.settle().rule, Rule::OldCannotServe);
}

#[test]
fn without_wanted_models_new_must_serve_one_at_least() {
    let mut scene = Scene::of_four();
    scene.seen.frontends.old.models.clear();
    scene.seen.frontends.new.models.clear();
    assert_eq!(scene.new_ready(4).settle().obstacles, [Obstacle::NoModel]);
    scene.seen.frontends.new = frontends();
    assert!(scene.settle().obstacles.is_empty());
}

#[test]
fn a_frontend_that_cannot_be_asked_is_told_by_what_is_in_the_way_and_not_by_its_models() {
    let mut scene = Scene::of_four();
    scene.seen.frontends.new = Frontends {
        endpoints: 1,
        trouble: Some("new:8000 cannot be reached: refused".to_owned()),
        ..Frontends::default()
    };
    let decision = scene.new_ready(4).settle();
    assert_eq!(decision.rule, Rule::NewCannotServe);
    assert!(
        decision
            .message
            .contains("its frontend cannot be asked for its models: new:8000 cannot be reached"),
        "{}",
        decision.message
    );
    assert!(!decision.message.contains(MODEL), "{}", decision.message);
    let gate = holds(&decision, ConditionKind::NewFrontendReady);
    assert_eq!(gate, (false, "NoAnswer"));
}

#[test]
fn the_rules_are_asked_in_their_order() {
    use Rule::{Cap, Capacity, NeitherCanServe, NewCannotServe, OldCannotServe, Paused};
    // old and new ready, paused, strict, cap; from 50 %.
    for (old, new, paused, strict, cap, rule, split) in [
        (0, 0, false, false, None, NeitherCanServe, percent(50)),
        (0, 0, true, false, Some(10), NeitherCanServe, percent(50)),
        (0, 0, true, true, Some(10), NeitherCanServe, percent(50)),
        (4, 0, false, false, None, NewCannotServe, Weights::ALL_OLD),
        (
            4,
            0,
            true,
            false,
            Some(10),
            NewCannotServe,
            Weights::ALL_OLD,
        ),
        (
            4,
            0,
            false,
            true,
            Some(10),
            NewCannotServe,
            Weights::ALL_OLD,
        ),
        (4, 0, true, true, None, Paused, percent(50)),
        (0, 4, false, false, None, OldCannotServe, Weights::ALL_NEW),
        (0, 4, true, false, None, OldCannotServe, Weights::ALL_NEW),
        (
            0,
            4,
            false,
            false,
            Some(10),
            OldCannotServe,
            Weights::ALL_NEW,
        ),
        (
            0,
            4,
            true,
            false,
            Some(10),
            OldCannotServe,
            Weights::ALL_NEW,
        ),
        (0, 4, false, true, None, OldCannotServe, Weights::ALL_NEW),
        (0, 4, false, true, Some(10), Cap, percent(10)),
        (0, 4, true, true, None, Paused, percent(50)),
        (4, 1, true, false, None, Paused, percent(50)),
        (4, 1, true, true, Some(10), Paused, percent(50)),
        (4, 4, false, false, Some(10), Cap, percent(10)),
        (4, 1, false, true, Some(10), Cap, percent(10)),
        (4, 4, false, false, Some(50), Capacity, percent(50)),
        (4, 1, false, false, Some(30), Capacity, ratio(4, 1)),
        (4, 4, false, false, Some(0), Cap, Weights::ALL_OLD),
        (4, 1, false, false, None, Capacity, ratio(4, 1)),
    ] {
        let mut scene = Scene::settled(4, 4);
        scene.settings.paused = paused;
        scene.settings.strict = strict;
        scene.settings.cap_percent = cap;
        let decision = scene.old_ready(old).new_ready(new).step();
        let given = (old, new, paused, strict, cap);
        assert_eq!(
            (decision.rule, scene.seen.split),
            (rule, split),
            "{given:?}"
        );
        assert_eq!(decision.memory.rule, Some(rule));
    }
}

#[test]
fn an_old_side_of_which_nothing_was_ever_found_has_no_worker_either() {
    use Rule::{Cap, NeitherCanServe, OldCannotServe, Paused};
    // new ready, paused, strict, cap; from 50 %.
    for (new, paused, strict, cap, rule, split) in [
        (4, false, false, None, OldCannotServe, Weights::ALL_NEW),
        (4, false, false, Some(10), OldCannotServe, Weights::ALL_NEW),
        (4, false, true, None, OldCannotServe, Weights::ALL_NEW),
        (4, false, true, Some(10), Cap, percent(10)),
        (4, true, false, None, OldCannotServe, Weights::ALL_NEW),
        (4, true, true, None, Paused, percent(50)),
        (0, false, false, None, NeitherCanServe, percent(50)),
        (0, true, true, Some(10), NeitherCanServe, percent(50)),
    ] {
        let mut scene = Scene::of_four();
        scene.seen.workers.old.clear();
        scene.seen.split = percent(50);
        scene.settings.paused = paused;
        scene.settings.strict = strict;
        scene.settings.cap_percent = cap;
        let decision = scene.new_ready(new).settle();
        let given = (new, paused, strict, cap);
        assert_eq!(
            (decision.rule, scene.seen.split),
            (rule, split),
            "{given:?}"
        );
    }
}

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

    // Ended together with one more edit: that is no contest either.
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
        // A person's edit in the meantime replaces it.
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
    for told in [true, false] {
        let decision = scene.edit(percent(90)).step();
        assert_eq!(scene.seen.split, ratio(2, 1));
        assert_eq!(reasons(&decision).contains(&"SplitContested"), told);
        assert_eq!(scene.settle().split, None);
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
        (decision.split, decision.memory.contested),
        (Some(Weights::ALL_OLD), false)
    );
}

#[test]
fn an_update_that_is_taken_over_half_way_goes_on_from_there() {
    for (before, new, at_once, later) in [
        (percent(25), 4, percent(25), percent(50)),
        (percent(25), 1, ratio(4, 1), ratio(4, 1)),
        (percent(90), 2, ratio(2, 1), ratio(2, 1)),
        (Weights::ALL_NEW, 2, ratio(2, 1), ratio(2, 1)),
    ] {
        let mut scene = Scene::of_four();
        scene.seen.split = before;
        assert_eq!(scene.new_ready(new).next(), at_once, "{before:?}");
        scene.settle();
        assert_eq!(scene.seen.split, later, "{before:?}");
    }
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
fn the_end_comes_in_its_order() {
    let mut scene = Scene::settled(1, 4);
    scene.seen.clients_reach_old = Some(true);
    scene.open(0, 2, 5).open(1, 0, 1);
    let decision = scene.scale_old(0).step();
    assert_eq!(
        (decision.split, decision.phase),
        (Some(Weights::ALL_NEW), Phase::Progressing)
    );

    // One of two has applied it, and the other one is not even ready: it is alive.
    let generation = scene.seen.resource_generation;
    scene.seen.proxies[0].state.as_mut().unwrap().applied = generation;
    scene.seen.proxies[1].ready = false;
    let decision = scene.wait(seconds(3600)).step();
    assert_eq!(decision.phase, Phase::Progressing);
    assert!(
        decision
            .message
            .ends_with("waiting for 1 proxy to apply the last change: b")
    );

    let decision = scene.applied().step();
    assert_eq!(
        (decision.phase, decision.old_draining),
        (Phase::Draining, true)
    );
    assert_eq!(decision.wake_at, Some(scene.now.after(seconds(1))));
    assert!(
        decision
            .message
            .ends_with("waiting for 2 streams on old to end"),
        "{}",
        decision.message
    );
    assert!(!decision.last_old_worker_dispensable);

    // The streams end before all know that old drains.
    let mut at_once = scene.clone();
    at_once.applied().open(0, 0, 5);
    assert_eq!(
        at_once.peek().phase,
        Phase::Draining,
        "for a moment at least"
    );
    let decision = scene.wait(seconds(1)).open(0, 0, 5).step();
    assert_eq!(decision.phase, Phase::Draining);
    let mut untold = scene.clone();
    untold.applied().wait(seconds(1)).seen.old_draining = false;
    assert_eq!(untold.peek().phase, Phase::Draining, "nobody was told yet");
    scene.applied().seen.proxies[1].state = Err(Silence::NoAnswer);
    assert_eq!(
        scene.step().phase,
        Phase::Draining,
        "who does not answer may have streams"
    );
    scene.seen.proxies[1] = proxy("b");
    scene.applied();
    let decision = scene.wait(seconds(1)).step();
    assert_eq!(
        (decision.phase, decision.old_draining),
        (Phase::Complete, true)
    );
    assert!(decision.last_old_worker_dispensable);
    assert_eq!(reasons(&decision), ["Complete"]);

    // The pods of old carry new's streams.
    assert!(!decision.safe_to_delete_old);
    scene.open(0, 0, 0);
    assert!(!scene.step().safe_to_delete_old, "clients still come");
    scene.seen.clients_reach_old = None;
    assert!(
        !scene.step().safe_to_delete_old,
        "nobody knows whether clients still come"
    );
    scene.seen.clients_reach_old = Some(false);
    assert!(scene.step().safe_to_delete_old);
    assert!(!scene.open(1, 0, 1).step().safe_to_delete_old);
    scene.seen.proxies.clear();
    assert!(scene.step().safe_to_delete_old);
}

#[test]
fn a_drain_ends_at_its_deadline_and_says_what_still_runs() {
    let mut scene = Scene::settled(1, 4);
    scene.settings.drain_deadline = Some(seconds(600));
    scene.seen.clients_reach_old = Some(false);
    scene.open(0, 3, 0).scale_old(0).step();
    let decision = scene.applied().step();
    assert_eq!(decision.phase, Phase::Draining);
    assert_eq!(
        decision.drain_estimate,
        Some(seconds(600)),
        "no lengths are known"
    );
    assert_eq!(
        scene.applied().wait(seconds(1)).step().wake_at,
        Some(scene.now.after(seconds(599)))
    );
    scene.seen.lengths.buckets = vec![(seconds(1), 0), (seconds(100), 1000)];
    let estimate = scene.step().drain_estimate;
    assert!(
        estimate.is_some_and(|estimate| estimate < seconds(100)),
        "{estimate:?}"
    );
    assert_eq!(scene.wait(seconds(598)).step().phase, Phase::Draining);
    let decision = scene.wait(seconds(1)).step();
    assert_eq!(decision.phase, Phase::Complete);
    assert!(!decision.last_old_worker_dispensable && !decision.safe_to_delete_old);
    assert!(
        decision.events[0]
            .message
            .contains("the time for streams on old is over")
    );
}

#[test]
fn an_outage_of_old_is_not_the_end() {
    let mut scene = Scene::settled(4, 1);
    let decision = scene.old_ready(0).settle();
    assert_eq!(
        (decision.rule, scene.seen.split),
        (Rule::OldCannotServe, Weights::ALL_NEW)
    );
    assert_eq!(
        (decision.phase, decision.old_draining),
        (Phase::Progressing, false)
    );
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "OldCannotServe")
    );
    assert_eq!(scene.old_ready(4).next(), Weights::ALL_NEW);
    assert_eq!(scene.wait(seconds(5)).next(), ratio(4, 1));
}

#[test]
fn what_returns_from_an_outage_gets_nothing_before_it_has_lasted() {
    let mut scene = Scene::settled(4, 4);
    scene.settings.cap_percent = Some(10);
    scene.settle();
    assert_eq!(scene.old_ready(0).next(), Weights::ALL_NEW);
    assert_eq!(
        scene.applied().old_ready(1).next(),
        Weights::ALL_NEW,
        "the cap waits, too"
    );
    // Unless it is all there is; then it has it for good.
    assert_eq!(scene.new_ready(0).next(), Weights::ALL_OLD);
    assert_eq!(scene.new_ready(4).next(), Weights::ALL_OLD);
}

#[test]
fn a_person_can_end_an_update_by_a_pause_at_everything_to_new() {
    let mut scene = Scene::settled(4, 4);
    scene.settings.paused = true;
    scene.open(0, 1, 0).edit(Weights::ALL_NEW);
    let decision = scene.settle();
    assert_eq!(
        (decision.rule, decision.phase),
        (Rule::Paused, Phase::Draining)
    );
    assert!(!decision.last_old_worker_dispensable);
    scene.open(0, 0, 0);
    assert!(scene.settle().last_old_worker_dispensable);
}

#[test]
fn an_update_goes_back_when_the_targets_workers_go_away() {
    for from in [Phase::Progressing, Phase::Draining, Phase::Complete] {
        let mut scene = Scene::settled(2, 2);
        if from != Phase::Progressing {
            scene
                .open(0, u64::from(from == Phase::Draining), 0)
                .scale_old(0);
        }
        assert_eq!(scene.settle().phase, from);
        // Old is wanted again: a refuge at once, a side as soon as its workers have lasted.
        scene.seen.workers.old.insert(
            Role::Worker,
            Workers {
                ready: 0,
                desired: 4,
            },
        );
        let decision = scene.step();
        assert_eq!(
            (decision.phase, decision.old_draining),
            (Phase::Progressing, false)
        );
        assert_eq!(
            reasons(&decision).contains(&"Progressing"),
            from != Phase::Progressing
        );
        scene.applied().scale_old(4).step();
        assert_eq!(scene.wait(seconds(5)).next(), ratio(2, 1), "{from:?}");
        assert_eq!(scene.new_ready(1).next(), ratio(4, 1));
        let decision = scene.new_ready(0).step();
        assert_eq!(
            (scene.seen.split, decision.phase),
            (Weights::ALL_OLD, Phase::Pending)
        );
    }
}

#[test]
fn nothing_moves_while_neither_can_serve_not_even_at_the_end() {
    for from in [Phase::Draining, Phase::Complete] {
        let mut scene = Scene::settled(2, 2);
        scene
            .open(0, u64::from(from == Phase::Draining), 0)
            .scale_old(0);
        assert_eq!(scene.settle().phase, from);
        let decision = scene.new_ready(0).settle();
        assert_eq!(
            (decision.rule, decision.phase),
            (Rule::NeitherCanServe, from)
        );
        assert_eq!(scene.seen.split, Weights::ALL_NEW);
        assert_eq!(
            holds(&decision, ConditionKind::Degraded),
            (true, "NeitherCanServe")
        );
    }
}

#[test]
fn an_update_yields_to_the_one_that_supersedes_it() {
    let mut scene = Scene::settled(4, 2);
    scene.seen.superseded_by = Some("third".to_owned());
    let decision = scene.old_ready(0).edit(percent(7)).settle();
    assert_eq!(
        (decision.rule, decision.phase),
        (Rule::Superseded, Phase::Superseded)
    );
    assert_eq!(scene.seen.split, percent(7));
    assert!(decision.waiting_for.is_empty() && decision.message.contains("the update third rules"));
    assert_eq!(
        holds(&decision, ConditionKind::Accepted),
        (false, "Superseded")
    );
    scene.seen.superseded_by = None;
    let decision = scene.old_ready(4).settle();
    assert_eq!(
        (decision.memory.contested, scene.seen.split),
        (false, ratio(2, 1))
    );
}

#[test]
fn a_clock_that_is_set_back_costs_at_most_one_more_wait() {
    let mut scene = Scene::settled(4, 1);
    scene.new_ready(2).step();
    scene.now = Moment::from_unix_millis(1000);
    assert_eq!(scene.next(), ratio(4, 1));
    assert_eq!(scene.wait(seconds(5)).next(), ratio(2, 1));

    let mut scene = Scene::settled(4, 1);
    scene.new_ready(2).seen.resource_generation += 1;
    scene.step();
    scene.now = Moment::from_unix_millis(1000);
    scene.step();
    assert_eq!(scene.wait(seconds(29)).next(), ratio(4, 1));
    assert_eq!(scene.wait(seconds(1)).next(), ratio(2, 1));
}

#[test]
fn the_story_is_told_in_words() {
    let mut scene = Scene::of_four();
    let mut told = Vec::new();
    let mut tell = |decision: Decision| told.push(decision.message);
    tell(scene.step());
    tell(scene.new_ready(1).step());
    tell(scene.wait(seconds(5)).step());
    scene.new_ready(2).step();
    tell(scene.wait(seconds(6)).step());
    tell(scene.applied().step());
    scene.settings.cap_percent = Some(10);
    tell(scene.step());
    scene.settings.paused = true;
    tell(scene.applied().step());
    tell(scene.old_ready(0).step());
    tell(scene.new_ready(0).step());
    assert_eq!(
        told,
        [
            "all to old: new cannot serve: it has no ready worker; waiting for new to be able to serve",
            "all to old: old has 4 of 4 workers ready, new has 1 of 4 workers ready; waiting for the workers of new to stay \
             ready",
            "20 % to new (old 4 : new 1): old has 4 of 4 workers ready, new has 1 of 4 workers ready",
            "20 % to new (old 4 : new 1): old has 4 of 4 workers ready, new has 2 of 4 workers ready; waiting for 2 proxies \
             to apply the last change: a, b",
            "33 % to new (old 2 : new 1): old has 4 of 4 workers ready, new has 2 of 4 workers ready",
            "10 % to new (old 9 : new 1): held at the cap of 10 %, capacity would give 33 % to new (old 2 : new 1); old has \
             4 of 4 workers ready, new has 2 of 4 workers ready",
            "10 % to new (old 9 : new 1): paused; old has 4 of 4 workers ready, new has 2 of 4 workers ready; waiting for \
             the pause to end",
            "all to new: old has 0 of 4 workers ready, new has 2 of 4 workers ready (overrides pause and cap); old stays a refuge \
             while its workers are wanted: scale them to 0 to end the update",
            "all to new: neither side can serve, so nothing is changed; old: it has no ready worker; new: it has no ready \
             worker; waiting for new to be able to serve",
        ]
    );
}

#[test]
fn what_is_not_heard_yet_lets_nothing_gain_and_takes_nothing_away() {
    let mut scene = Scene::settled(4, 2);
    let unheard = Frontends {
        endpoints: 1,
        unheard: true,
        ..Frontends::default()
    };
    scene.seen.frontends.new = unheard.clone();
    assert_eq!(scene.new_ready(4).settle().split, None);
    assert_eq!(scene.seen.split, ratio(2, 1), "no gain");
    assert_eq!(scene.new_ready(1).next(), ratio(4, 1), "a loss at once");
    assert_eq!(scene.old_ready(2).next(), ratio(2, 1), "of either side");
    assert_eq!(scene.new_ready(0).next(), Weights::ALL_OLD);

    // Who has nothing gets nothing.
    let mut scene = Scene::settled(4, 0);
    scene.seen.frontends.new = unheard.clone();
    let decision = scene.new_ready(4).settle();
    assert_eq!(decision.obstacles, [Obstacle::NotYet]);
    assert_eq!(scene.seen.split, Weights::ALL_OLD);

    // Nor is anything known of one that cannot be asked; that is told.
    let trouble = Some("no such file".to_owned());
    let unasked = Frontends { trouble, ..unheard };
    scene.seen.frontends.new = unasked.clone();
    let no_answer = Obstacle::NoAnswer("no such file".to_owned());
    assert_eq!(scene.settle().obstacles, [no_answer]);
    let mut scene = Scene::settled(4, 2);
    scene.seen.frontends.new = unasked;
    let decision = scene.new_ready(4).settle();
    assert_eq!(scene.seen.split, ratio(2, 1));
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "NoAnswer")
    );
    scene.new_ready(0).settle();
    assert_eq!(scene.seen.split, Weights::ALL_OLD);

    // A proxy that was not asked before is waited for, and is no fault.
    let mut scene = Scene::settled(4, 1);
    scene.seen.proxies[1].state = Err(Silence::NotYet);
    scene.seen.resource_generation += 1;
    scene.new_ready(2).applied().step();
    let decision = scene.wait(seconds(10)).step();
    assert_eq!(decision.split, None);
    assert!(decision.message.ends_with("b (not heard yet)"));
    let decision = scene.wait(seconds(60)).step();
    assert!(!holds(&decision, ConditionKind::Degraded).0);
    assert!(!reasons(&decision).contains(&"ProxiesLag"));
}

#[test]
fn a_frontend_of_old_without_a_proxy_keeps_old_from_draining() {
    let mut scene = Scene::settled(1, 4);
    scene.seen.clients_reach_old = Some(false);
    scene.seen.proxies[1].state = Err(Silence::NoPort("crossfade".to_owned()));
    let decision = scene.scale_old(0).settle();
    assert_eq!(decision.phase, Phase::Progressing);
    let expected = "waiting for 1 proxy to apply the last change: b (has no port crossfade)";
    assert!(decision.message.contains(expected), "{}", decision.message);
    assert!(!decision.safe_to_delete_old && !decision.last_old_worker_dispensable);
    // It comes while old drains, or after: what runs through it is not known.
    scene.seen.proxies.remove(1);
    assert_eq!(scene.settle().phase, Phase::Complete);
    let mut with_one_more = scene.clone();
    let proxy = Proxy {
        state: Err(Silence::NoPort("crossfade".to_owned())),
        ..proxy("late")
    };
    with_one_more.seen.proxies.push(proxy);
    assert!(!with_one_more.settle().safe_to_delete_old);
    assert!(scene.settle().safe_to_delete_old);
}

#[test]
fn new_gets_nothing_while_nobody_can_say_what_old_serves() {
    let mut scene = Scene::of_four();
    scene.seen.frontends.old = Frontends {
        endpoints: 2,
        trouble: Some("old-0 has no port frontend".to_owned()),
        ..Frontends::default()
    };
    let decision = scene.new_ready(4).settle();
    assert_eq!(decision.obstacles, [Obstacle::OldModelsUnknown]);
    assert_eq!(scene.seen.split, Weights::ALL_OLD);
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "OldModelsUnknown")
    );
    let mut stated = scene.clone();
    stated.settings.models = Some([MODEL.to_owned()].into());
    assert!(stated.settle().obstacles.is_empty());
    // One of them can be asked: what it serves is wanted.
    scene.seen.frontends.old.models = frontends().models;
    assert!(scene.settle().obstacles.is_empty());
}

#[test]
fn one_that_falls_silent_does_not_make_less_of_what_old_serves() {
    let mut scene = Scene::settled(4, 2);
    scene.seen.frontends.old.models.insert("other".to_owned());
    scene.seen.frontends.new.models.insert("other".to_owned());
    scene.settle();
    scene.seen.frontends.old = Frontends {
        unheard: true,
        ..frontends()
    };
    assert_eq!(scene.settle().memory.models.len(), 2);
    scene.seen.frontends.old.unheard = false;
    assert_eq!(scene.settle().memory.models.len(), 1);
}

#[test]
fn an_update_that_does_not_rule_says_nothing_of_proxies_and_leaves_the_end_as_it_is() {
    for old_draining in [false, true] {
        let mut scene = Scene::settled(4, 2);
        scene.seen.superseded_by = Some("third".to_owned());
        scene.seen.old_draining = old_draining;
        // Its proxies follow another one.
        for proxy in &mut scene.seen.proxies {
            proxy.state.as_mut().expect("it answers").applied = 0;
        }
        for _ in 0..4 {
            let decision = scene.wait(seconds(60)).step();
            assert_eq!(decision.old_draining, old_draining);
            assert!(!reasons(&decision).contains(&"ProxiesLag"));
            assert!(!holds(&decision, ConditionKind::Degraded).0);
            assert_eq!(decision.wake_at, None);
        }
    }
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

#[test]
fn new_that_crashes_half_way_is_a_fault_and_new_that_is_taken_back_is_none() {
    let mut crashed = Scene::settled(4, 2);
    let decision = crashed.new_ready(0).settle();
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "NewCannotServe")
    );
    let mut taken_back = Scene::settled(4, 2);
    taken_back.seen.workers.new.clear();
    assert!(!holds(&taken_back.settle(), ConditionKind::Degraded).0);
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
    // From now on it is whole.
    let more = Workers {
        ready: 8,
        desired: 8,
    };
    scene.seen.workers.old.insert(Role::Prefill, more);
    scene.settle();
    assert_eq!(scene.memory.full_sizes[&Role::Prefill], 4);
}

#[test]
fn an_old_side_of_which_nothing_was_ever_found_stays_a_refuge() {
    let mut scene = Scene::of_four();
    scene.seen.workers.old.clear();
    scene.seen.split = percent(10);
    let decision = scene.new_ready(4).settle();
    assert_eq!(
        (decision.rule, scene.seen.split),
        (Rule::OldCannotServe, Weights::ALL_NEW)
    );
    // Its name may be mistyped.
    assert_eq!(
        (decision.phase, decision.old_draining),
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
    // Corrected, it gets its part back, and may end as any other.
    scene.scale_old(4);
    assert_eq!(scene.settle().rule, Rule::Capacity);
    assert_eq!(scene.scale_old(0).settle().phase, Phase::Complete);
}

#[test]
fn who_knows_that_old_is_gone_though_it_was_never_found_ends_the_update() {
    let mut scene = Scene::of_four();
    scene.seen.workers.old.clear();
    scene.settings.paused = true;
    assert_eq!(scene.new_ready(4).settle().phase, Phase::Progressing);
    assert_eq!(scene.edit(Weights::ALL_NEW).settle().phase, Phase::Complete);
}

#[test]
fn an_old_side_that_is_there_without_workers_is_gone() {
    let mut scene = Scene::of_four();
    let decision = scene.scale_old(0).new_ready(4).settle();
    assert_eq!(
        (decision.rule, scene.seen.split),
        (Rule::OldCannotServe, Weights::ALL_NEW)
    );
}

#[test]
fn a_pause_in_an_outage_means_no_end() {
    let mut scene = Scene::settled(4, 4);
    scene.old_ready(0).settle();
    scene.settings.paused = true;
    let decision = scene.settle();
    assert_eq!(
        (decision.phase, scene.seen.split),
        (Phase::Progressing, Weights::ALL_NEW)
    );
    // Who wants that says so.
    assert_eq!(scene.edit(Weights::ALL_NEW).settle().phase, Phase::Complete);
}
