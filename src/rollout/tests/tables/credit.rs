//! Tests that losses count immediately, and gains only after they have lasted and the proxies have had time to apply them.

use super::*;

#[test]
fn a_generation_that_lost_capacity_loses_its_share_at_once_and_with_proxies_that_lag() {
    for (old, new, weights) in [
        (4, 1, ratio(4, 1)),
        (2, 3, ratio(2, 3)),
        (1, 2, ratio(1, 2)),
        (4, 0, ratio(1, 0)),
        (0, 3, ratio(0, 1)),
    ] {
        let mut fixture = Fixture::settled(4, 3);
        fixture.edit(fixture.seen.split);
        assert_eq!(
            fixture.old_ready(old).new_ready(new).next(),
            weights,
            "{old} old, {new} new"
        );
    }
}

#[test]
fn the_loss_of_one_generation_does_not_hurry_the_gain_of_the_other() {
    let mut fixture = Fixture::settled(4, 1);
    assert_eq!(fixture.old_ready(3).new_ready(4).next(), ratio(3, 1));
    assert_eq!(fixture.applied().wait(seconds(5)).next(), ratio(3, 4));

    // Nor does it hurry a gain that has lasted and only waits for the proxies.
    let mut fixture = Fixture::settled(4, 1);
    fixture.new_ready(4).seen.resource_generation += 1;
    fixture.step();
    assert_eq!(fixture.wait(seconds(5)).next(), ratio(4, 1));
    assert_eq!(fixture.old_ready(3).next(), ratio(3, 1));
    assert_eq!(fixture.applied().next(), ratio(3, 4));
}

#[test]
fn two_generations_that_return_together_under_a_strict_cap_of_nothing_are_reported_once() {
    let mut fixture = Fixture::settled(4, 4);
    fixture.settings.strict = true;
    fixture.settings.cap_percent = Some(0);
    fixture.old_ready(0).new_ready(0).settle();
    let first = fixture.old_ready(4).new_ready(4).step();
    assert_eq!(first.events.len(), 1);
    assert_eq!(first.rule, Rule::Capacity);
    assert_eq!(fixture.step().events, []);
}

#[test]
fn a_gain_counts_after_it_has_lasted() {
    let mut fixture = Fixture::settled(4, 1);
    fixture.new_ready(2);
    let decision = fixture.step();
    assert_eq!(decision.actions, []);
    assert_eq!(decision.wake_at, Some(fixture.now.after(seconds(5))));
    assert!(
        decision
            .message
            .ends_with("waiting for the workers of new to stay ready")
    );
    assert_eq!(
        fixture.wait(Duration::from_millis(4999)).next(),
        ratio(4, 1)
    );
    assert_eq!(fixture.wait(Duration::from_millis(1)).next(), ratio(2, 1));

    // The same for old. A worker that comes and goes gains nothing.
    let mut fixture = Fixture::settled(2, 2);
    fixture.old_ready(4);
    assert_eq!(fixture.next(), percent(50));
    fixture.wait(seconds(4)).old_ready(2).step();
    fixture.wait(seconds(1)).old_ready(4).step();
    assert_eq!(fixture.wait(seconds(4)).next(), percent(50));
    assert_eq!(fixture.wait(seconds(1)).next(), ratio(2, 1));
}

#[test]
fn a_gain_waits_for_every_ready_proxy_and_no_longer_than_the_timeout() {
    let mut fixture = Fixture::settled(4, 1);
    fixture.new_ready(2).step();
    fixture.wait(seconds(5)).step();
    assert_eq!(fixture.seen.split, ratio(2, 1));
    let wake_at = fixture.step().wake_at;
    assert_eq!(
        wake_at,
        Some(fixture.now.after(seconds(30))),
        "to tell who lags"
    );
    // Proxy b does not receive the change.
    fixture.applied().seen.proxies[1].state = Err(NoReport::NoAnswer);
    fixture.new_ready(3).step();
    let decision = fixture.wait(seconds(10)).step();
    assert_eq!(decision.actions, []);
    let expected = "waiting for 1 proxy to apply the last change: b (does not respond)";
    assert!(decision.message.ends_with(expected), "{}", decision.message);
    assert_eq!(decision.wake_at, Some(fixture.now.after(seconds(20))));

    let mut without = fixture.clone();
    without.seen.proxies[1].ready = false;
    assert_eq!(without.next(), ratio(4, 3));

    let decision = fixture.wait(seconds(20)).step();
    assert_eq!(decision.desired.split, ratio(4, 3));
    assert_eq!(reasons(&decision), ["SplitChanged", "ProxiesLag"]);
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "ProxiesLag")
    );
    assert!(!reasons(&fixture.step()).contains(&"ProxiesLag"), "once");
}

#[test]
fn capacity_that_returns_must_last_before_it_gets_requests() {
    let mut fixture = Fixture::settled(4, 4);
    fixture.settings.cap_percent = Some(10);
    fixture.settle();
    assert_eq!(fixture.old_ready(0).next(), Weights::ALL_NEW);
    assert_eq!(
        fixture.applied().old_ready(1).next(),
        Weights::ALL_NEW,
        "the cap waits, too"
    );
    // Unless it is the only generation that can serve. Then it keeps its credit.
    assert_eq!(fixture.new_ready(0).next(), Weights::ALL_OLD);
    assert_eq!(fixture.new_ready(4).next(), Weights::ALL_OLD);
}

#[test]
fn an_update_that_is_taken_over_half_way_continues_from_there() {
    for (before, new, at_once, later) in [
        (percent(25), 4, percent(25), percent(50)),
        (percent(25), 1, ratio(4, 1), ratio(4, 1)),
        (percent(90), 2, ratio(2, 1), ratio(2, 1)),
        (Weights::ALL_NEW, 2, ratio(2, 1), ratio(2, 1)),
    ] {
        let mut fixture = Fixture::of_four();
        fixture.seen.split = before;
        assert_eq!(fixture.new_ready(new).next(), at_once, "{before:?}");
        fixture.settle();
        assert_eq!(fixture.seen.split, later, "{before:?}");
    }
}

#[test]
fn setting_the_clock_back_costs_at_most_one_more_wait() {
    let mut fixture = Fixture::settled(4, 1);
    fixture.new_ready(2).step();
    fixture.now = Timestamp::from_unix_millis(1000);
    assert_eq!(fixture.next(), ratio(4, 1));
    assert_eq!(fixture.wait(seconds(5)).next(), ratio(2, 1));

    let mut fixture = Fixture::settled(4, 1);
    fixture.new_ready(2).seen.resource_generation += 1;
    fixture.step();
    fixture.now = Timestamp::from_unix_millis(1000);
    fixture.step();
    assert_eq!(fixture.wait(seconds(29)).next(), ratio(4, 1));
    assert_eq!(fixture.wait(seconds(1)).next(), ratio(2, 1));
}
