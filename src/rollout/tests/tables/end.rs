//! Tests the end of an update: the order of its phases, what does not end it, and the way back.

use super::*;

#[test]
fn the_end_comes_in_its_order() {
    let mut fixture = Fixture::settled(1, 4);
    fixture.open(0, 2, 5).open(1, 0, 1);
    let decision = fixture.scale_old(0).step();
    assert_eq!(
        (decision.desired.split, decision.phase),
        (Weights::ALL_NEW, Phase::Progressing)
    );

    // One of two proxies has applied it. The other is not ready, but it is alive.
    let generation = fixture.seen.resource_generation;
    fixture.seen.proxies[0].state.as_mut().unwrap().applied = generation;
    fixture.seen.proxies[1].ready = false;
    let decision = fixture.wait(seconds(3600)).step();
    assert_eq!(decision.phase, Phase::Progressing);
    assert!(
        decision
            .message
            .ends_with("waiting for 1 proxy to apply the last change: b")
    );

    let decision = fixture.applied().step();
    assert_eq!(
        (decision.phase, decision.desired.old_draining),
        (Phase::Draining, true)
    );
    assert_eq!(decision.wake_at, Some(fixture.now.after(seconds(1))));
    assert!(
        decision
            .message
            .ends_with("waiting for 2 streams on old to end"),
        "{}",
        decision.message
    );
    assert!(!decision.last_old_worker_dispensable);

    // The streams end before all proxies know that old drains.
    let mut at_once = fixture.clone();
    at_once.applied().open(0, 0, 5);
    assert_eq!(
        at_once.peek().phase,
        Phase::Draining,
        "for a moment at least"
    );
    let decision = fixture.wait(seconds(1)).open(0, 0, 5).step();
    assert_eq!(decision.phase, Phase::Draining);
    let mut unreported = fixture.clone();
    unreported.applied().wait(seconds(1)).seen.old_draining = false;
    assert_eq!(
        unreported.peek().phase,
        Phase::Draining,
        "no proxy has been told yet"
    );
    fixture.applied().seen.proxies[1].state = Err(NoReport::NoAnswer);
    assert_eq!(
        fixture.step().phase,
        Phase::Draining,
        "who does not answer may have streams"
    );
    fixture.seen.proxies[1] = proxy("b");
    fixture.applied();
    let decision = fixture.wait(seconds(1)).step();
    assert_eq!(
        (decision.phase, decision.desired.old_draining),
        (Phase::Complete, true)
    );
    assert!(decision.last_old_worker_dispensable);
    assert_eq!(reasons(&decision), ["Complete"]);

    // The pods of old serve streams of new.
    assert!(!decision.safe_to_delete_old);
    fixture.clients_left();
    assert!(!fixture.step().safe_to_delete_old);
    fixture.open(0, 0, 0);
    assert!(fixture.step().safe_to_delete_old);
    assert!(!fixture.open(1, 0, 1).step().safe_to_delete_old);
    // No proxy is left to report that nothing runs.
    fixture.seen.proxies.clear();
    let decision = fixture.step();
    assert_eq!(decision.phase, Phase::Complete);
    assert!(!decision.safe_to_delete_old && !decision.last_old_worker_dispensable);
}

#[test]
fn proxies_that_end_before_their_pods_leave_the_update_complete() {
    let mut fixture = Fixture::settled(1, 4);
    fixture.settings.new_frontends = "new:8000".to_owned();
    fixture.clients_left();
    assert_eq!(fixture.scale_old(0).settle().phase, Phase::Complete);
    assert!(fixture.step().safe_to_delete_old);
    // The process of the first proxy ends, then its pod, and then the second one in the same way.
    fixture.seen.proxies[0].state = Err(NoReport::NoAnswer);
    for _ in 0..2 {
        let decision = fixture.wait(seconds(1)).step();
        assert_eq!(decision.phase, Phase::Draining, "it may have streams");
        assert!(!decision.safe_to_delete_old && !decision.last_old_worker_dispensable);
        fixture.seen.proxies[1].state = Err(NoReport::NoOwnAddress);
    }
    let mut restarted = fixture.clone();
    let mut edited = fixture.clone();
    fixture.seen.proxies.remove(0);
    assert_eq!(fixture.step().phase, Phase::Draining);
    fixture.seen.proxies.clear();
    let decision = fixture.step();
    assert_eq!(decision.phase, Phase::Complete);
    assert!(!decision.safe_to_delete_old && !decision.last_old_worker_dispensable);
    // A proxy that has started again and may send to old takes the confirmation back, even if it then ends.
    restarted.seen.proxies[1] = proxy("b");
    assert_eq!(restarted.step().phase, Phase::Draining);
    restarted.seen.proxies.clear();
    assert_eq!(restarted.step().phase, Phase::Progressing);
    // So does an edit that sends new's requests elsewhere.
    edited.settings.new_frontends = "other:8000".to_owned();
    edited.seen.proxies.clear();
    assert_eq!(edited.step().phase, Phase::Progressing);
    // A frontend without a proxy is not one that has ended.
    let mut bare = Fixture::settled(1, 4);
    assert_eq!(bare.scale_old(0).settle().phase, Phase::Complete);
    bare.seen.proxies[1].state = Err(NoReport::NoPort("crossfade".to_owned()));
    assert_eq!(bare.step().phase, Phase::Draining);
    bare.seen.proxies.clear();
    assert_eq!(bare.step().phase, Phase::Progressing);
}

#[test]
fn a_drain_ends_at_its_deadline_and_says_what_still_runs() {
    let mut fixture = Fixture::settled(1, 4);
    fixture.settings.drain_deadline = Some(seconds(600));
    fixture.clients_left();
    fixture.open(0, 3, 0).scale_old(0).step();
    let decision = fixture.applied().step();
    assert_eq!(decision.phase, Phase::Draining);
    assert_eq!(
        decision.drain_estimate,
        Some(seconds(600)),
        "no lengths are known"
    );
    assert_eq!(
        fixture.applied().wait(seconds(1)).step().wake_at,
        Some(fixture.now.after(seconds(599)))
    );
    fixture.seen.lengths.buckets = vec![(seconds(1), 0), (seconds(100), 1000)];
    let estimate = fixture.step().drain_estimate;
    assert!(
        estimate.is_some_and(|estimate| estimate < seconds(100)),
        "{estimate:?}"
    );
    assert_eq!(fixture.wait(seconds(598)).step().phase, Phase::Draining);
    let decision = fixture.wait(seconds(1)).step();
    assert_eq!(decision.phase, Phase::Complete);
    assert!(!decision.last_old_worker_dispensable && !decision.safe_to_delete_old);
    assert!(
        decision.events[0]
            .message
            .contains("the drain deadline has passed")
    );
}

#[test]
fn a_frontend_of_old_without_a_proxy_keeps_old_from_draining() {
    let mut fixture = Fixture::settled(1, 4);
    fixture.clients_left();
    fixture.seen.proxies[1].state = Err(NoReport::NoPort("crossfade".to_owned()));
    let decision = fixture.scale_old(0).settle();
    assert_eq!(decision.phase, Phase::Progressing);
    let expected = "waiting for 1 proxy to apply the last change: b (no port crossfade)";
    assert!(decision.message.contains(expected), "{}", decision.message);
    assert!(!decision.safe_to_delete_old && !decision.last_old_worker_dispensable);
    // A frontend without a proxy that starts during or after the drain: its streams are unknown.
    fixture.seen.proxies.remove(1);
    assert_eq!(fixture.settle().phase, Phase::Complete);
    let mut with_one_more = fixture.clone();
    let proxy = ObservedProxy {
        state: Err(NoReport::NoPort("crossfade".to_owned())),
        ..proxy("late")
    };
    with_one_more.seen.proxies.push(proxy);
    assert!(!with_one_more.settle().safe_to_delete_old);
    assert!(fixture.settle().safe_to_delete_old);
}

#[test]
fn a_user_can_end_an_update_by_a_pause_at_everything_to_new() {
    let mut fixture = Fixture::settled(4, 4);
    fixture.settings.paused = true;
    fixture.open(0, 1, 0).edit(Weights::ALL_NEW);
    let decision = fixture.settle();
    assert_eq!(
        (decision.rule, decision.phase),
        (Rule::Paused, Phase::Draining)
    );
    assert!(!decision.last_old_worker_dispensable);
    fixture.open(0, 0, 0);
    assert!(fixture.settle().last_old_worker_dispensable);
}

#[test]
fn an_update_goes_back_when_the_targets_workers_go_away() {
    for from in [Phase::Progressing, Phase::Draining, Phase::Complete] {
        let mut fixture = Fixture::settled(2, 2);
        if from != Phase::Progressing {
            fixture
                .open(0, u64::from(from == Phase::Draining), 0)
                .scale_old(0);
        }
        assert_eq!(fixture.settle().phase, from);
        // Old is needed again: it is a fallback immediately, and gets a share once its workers have lasted.
        fixture.seen.workers.old.insert(
            Role::Worker,
            Workers {
                ready: 0,
                desired: 4,
            },
        );
        let decision = fixture.step();
        assert_eq!(
            (decision.phase, decision.desired.old_draining),
            (Phase::Progressing, false)
        );
        assert_eq!(
            reasons(&decision).contains(&"Progressing"),
            from != Phase::Progressing
        );
        fixture.applied().scale_old(4).step();
        assert_eq!(fixture.wait(seconds(5)).next(), ratio(2, 1), "{from:?}");
        assert_eq!(fixture.new_ready(1).next(), ratio(4, 1));
        let decision = fixture.new_ready(0).step();
        assert_eq!(
            (fixture.seen.split, decision.phase),
            (Weights::ALL_OLD, Phase::Pending)
        );
    }
}

#[test]
fn nothing_moves_while_neither_can_serve_not_even_at_the_end() {
    for from in [Phase::Draining, Phase::Complete] {
        let mut fixture = Fixture::settled(2, 2);
        fixture
            .open(0, u64::from(from == Phase::Draining), 0)
            .scale_old(0);
        assert_eq!(fixture.settle().phase, from);
        let decision = fixture.new_ready(0).settle();
        assert_eq!(
            (decision.rule, decision.phase),
            (Rule::NeitherCanServe, from)
        );
        assert_eq!(fixture.seen.split, Weights::ALL_NEW);
        assert_eq!(
            holds(&decision, ConditionKind::Degraded),
            (true, "NeitherCanServe")
        );
    }
}

#[test]
fn streams_that_move_off_old_are_reported_and_nothing_is_safe_before_they_have_left() {
    let mut fixture = Fixture::settled(1, 4);
    fixture.open(0, 2, 5).scale_old(0).step();
    fixture.applied().step();
    let moves = |fixture: &mut Fixture, count| {
        fixture.seen.proxies[0].state.as_mut().unwrap().moving = count;
    };
    for (count, reported) in [
        (2, "waiting for 2 streams on old to move to new"),
        (
            1,
            "waiting for 1 stream on old to move to new, and 1 to end",
        ),
    ] {
        fixture.applied();
        moves(&mut fixture, count);
        let decision = fixture.wait(seconds(1)).step();
        assert_eq!(decision.phase, Phase::Draining);
        assert_eq!(decision.moving_streams, count);
        assert!(decision.message.ends_with(reported), "{}", decision.message);
        let progressing = decision
            .conditions
            .iter()
            .find(|condition| condition.kind == ConditionKind::Progressing)
            .unwrap();
        assert_eq!((progressing.holds, progressing.reason), (true, "Moving"));
        assert!(!decision.safe_to_delete_old && !decision.last_old_worker_dispensable);
    }
    moves(&mut fixture, 0);
    let decision = fixture.open(0, 0, 5).applied().wait(seconds(1)).step();
    assert_eq!(
        (decision.phase, decision.moving_streams),
        (Phase::Complete, 0)
    );
    assert!(decision.last_old_worker_dispensable);
}
