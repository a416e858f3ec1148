//! Tests which rule decides: their order, and a superseded update.

use super::*;

#[test]
fn the_rules_are_asked_in_their_order() {
    use Rule::{Cap, Capacity, NeitherCanServe, NewCannotServe, OldCannotServe, Paused};
    // Columns: old and new ready, paused, strict, cap, rule, split. The split starts at 50%.
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
        let mut fixture = Fixture::settled(4, 4);
        fixture.settings.paused = paused;
        fixture.settings.strict = strict;
        fixture.settings.cap_percent = cap;
        let decision = fixture.old_ready(old).new_ready(new).step();
        let given = (old, new, paused, strict, cap);
        assert_eq!(
            (decision.rule, fixture.seen.split),
            (rule, split),
            "{given:?}"
        );
        assert_eq!(decision.memory.rule, Some(rule));
    }
}

#[test]
fn an_old_generation_of_which_nothing_was_ever_found_has_no_worker_either() {
    use Rule::{Cap, NeitherCanServe, OldCannotServe, Paused};
    // Columns: new ready, paused, strict, cap, rule, split. The split starts at 50%.
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
        let mut fixture = Fixture::of_four();
        fixture.seen.workers.old.clear();
        fixture.seen.split = percent(50);
        fixture.settings.paused = paused;
        fixture.settings.strict = strict;
        fixture.settings.cap_percent = cap;
        let decision = fixture.new_ready(new).settle();
        let given = (new, paused, strict, cap);
        assert_eq!(
            (decision.rule, fixture.seen.split),
            (rule, split),
            "{given:?}"
        );
    }
}

#[test]
fn an_update_yields_to_the_one_that_supersedes_it() {
    let mut fixture = Fixture::settled(4, 2);
    fixture.seen.superseded_by = Some("third".to_owned());
    let decision = fixture.old_ready(0).edit(percent(7)).settle();
    assert_eq!(
        (decision.rule, decision.phase),
        (Rule::Superseded, Phase::Superseded)
    );
    assert_eq!(fixture.seen.split, percent(7));
    assert!(
        decision.waiting_for.is_empty() && decision.message.contains("the update third controls")
    );
    assert_eq!(
        holds(&decision, ConditionKind::Accepted),
        (false, "Superseded")
    );
    fixture.seen.superseded_by = None;
    let decision = fixture.old_ready(4).settle();
    assert_eq!(
        (decision.memory.contested, fixture.seen.split),
        (false, ratio(2, 1))
    );
}

#[test]
fn an_inactive_update_reports_no_proxies_and_keeps_its_completion() {
    for old_draining in [false, true] {
        let mut fixture = Fixture::settled(4, 2);
        fixture.seen.superseded_by = Some("third".to_owned());
        fixture.seen.old_draining = old_draining;
        // Its proxies follow another update.
        for proxy in &mut fixture.seen.proxies {
            proxy.state.as_mut().expect("it answers").applied = 0;
        }
        for _ in 0..4 {
            let decision = fixture.wait(seconds(60)).step();
            assert_eq!(decision.desired.old_draining, old_draining);
            assert!(!reasons(&decision).contains(&"ProxiesLag"));
            assert!(!holds(&decision, ConditionKind::Degraded).0);
            assert_eq!(decision.wake_at, None);
        }
    }
}
