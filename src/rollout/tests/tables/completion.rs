//! Tests what keeps an update from its end, or takes it back from there.

use super::requirements::proven;
use super::*;

#[test]
fn without_proxies_there_is_no_confirmation() {
    for memory_of_an_end in [false, true] {
        let mut fixture = Fixture::settled(4, 4);
        fixture.clients_left().settings.paused = true;
        fixture.edit(Weights::ALL_NEW);
        if memory_of_an_end {
            assert_eq!(fixture.step().phase, Phase::Progressing);
            assert_eq!(fixture.applied().step().phase, Phase::Draining);
        }
        fixture.seen.proxies.clear();
        let decision = fixture.settle();
        assert_eq!(decision.phase, Phase::Progressing);
        assert!(!decision.desired.old_draining && !decision.safe_to_delete_old);
        assert!(!decision.last_old_worker_dispensable);
        assert_eq!(holds(&decision, ConditionKind::Degraded), (true, "NoProxy"));
        assert!(
            decision.message.contains("no frontend of old was found"),
            "{}",
            decision.message
        );
    }
    let mut fixture = Fixture::settled(4, 4);
    for proxy in &mut fixture.seen.proxies {
        proxy.state = Err(NoReport::NoPort("crossfade".into()));
    }
    let decision = fixture.scale_old(0).settle();
    assert_eq!(decision.phase, Phase::Progressing);
    assert_eq!(holds(&decision, ConditionKind::Degraded), (true, "NoProxy"));
    assert!(
        decision.message.contains("a (no port crossfade), b"),
        "{}",
        decision.message
    );
}

#[test]
fn a_complete_update_drains_again_while_a_new_pod_may_send_to_old() {
    let mut fixture = proven();
    fixture.seen.proxies.push(proxy("late"));
    let decision = fixture.step();
    assert_eq!(
        (decision.phase, decision.desired.old_draining),
        (Phase::Draining, true)
    );
    assert!(
        decision
            .message
            .contains("1 proxy to apply the last change: late"),
        "{}",
        decision.message
    );
    assert_eq!(
        fixture.applied().wait(seconds(1)).step().phase,
        Phase::Complete
    );
    // Nothing is known about a frontend that is gone: the update stays complete, but neither flag holds.
    fixture.seen.proxies.clear();
    let decision = fixture.settle();
    assert_eq!(
        (decision.phase, decision.safe_to_delete_old),
        (Phase::Complete, false)
    );
    assert!(!holds(&decision, ConditionKind::Degraded).0);
    // A proxy that nobody sees may follow this edit.
    fixture.settings.new_frontends = "http://elsewhere".to_owned();
    assert_eq!(fixture.settle().phase, Phase::Progressing);
    fixture.settings.new_frontends = String::new();
    assert_eq!(fixture.settle().phase, Phase::Complete);
    // Once old gets a share, nothing is confirmed any more.
    let weights = fixture.seen.split;
    fixture.edit(Weights::ALL_OLD);
    fixture.settle();
    fixture.edit(weights);
    assert_ne!(fixture.settle().phase, Phase::Complete);
}

#[test]
fn an_update_that_an_earlier_version_completed_stays_complete() {
    let mut fixture = proven();
    fixture.seen.proxies.clear();
    fixture.memory.complete_with = None;
    assert_eq!(fixture.settle().phase, Phase::Complete);
    fixture.settings.new_frontends = "http://elsewhere".to_owned();
    assert_eq!(fixture.settle().phase, Phase::Progressing);
}

#[test]
fn a_deadline_excuses_streams_and_no_proxy_that_sends_to_old() {
    let mut fixture = Fixture::settled(4, 4);
    fixture.settings.drain_deadline = Some(seconds(10));
    fixture.open(0, 3, 0).scale_old(0).settle();
    assert_eq!(
        fixture.settle().phase,
        Phase::Complete,
        "streams are excused"
    );
    let decision = fixture.wait(seconds(100)).step();
    assert_eq!(
        (decision.phase, decision.actions),
        (Phase::Complete, vec![]),
        "and stay so"
    );
    fixture.seen.proxies.push(proxy("late"));
    assert_eq!(fixture.wait(seconds(100)).step().phase, Phase::Draining);
    assert_eq!(
        fixture.wait(seconds(100)).step().phase,
        Phase::Draining,
        "a pod is not"
    );
    assert_eq!(fixture.applied().step().phase, Phase::Complete);
}

#[test]
fn a_cap_below_everything_keeps_an_update_from_its_end() {
    let mut fixture = Fixture::settled(4, 4);
    fixture.clients_left().settings.paused = true;
    fixture.settings.cap_percent = Some(50);
    fixture.edit(Weights::ALL_NEW);
    for _ in 0..4 {
        fixture.applied().wait(seconds(60));
        // The proxies still apply the cap.
        for proxy in &mut fixture.seen.proxies {
            proxy.state.as_mut().expect("it answers").leaves_old = false;
        }
        assert_eq!(fixture.step().phase, Phase::Progressing);
    }
}
