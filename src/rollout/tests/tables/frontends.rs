//! Tests new with some frontends failing or unknown: how much capacity it loses, and how the proxies' reports count.

use super::*;

/// Four ready workers per generation, half of the traffic to new, and one frontend of new for each of `answers`.
fn even(answers: Vec<Frontend>) -> Fixture {
    let mut fixture = Fixture::settled(4, 4);
    assert_eq!(fixture.seen.split, ratio(1, 1));
    fixture.seen.frontends.new = Frontends {
        endpoints: answers.len().try_into().expect("few"),
        queried: answers,
        left_out: 0,
        error: None,
    };
    fixture
}

fn without_model() -> Frontend {
    Frontend::default()
}

fn see_new(fixture: &mut Fixture, experience: Experience, is_impaired: bool) {
    for proxy in &mut fixture.seen.proxies {
        let state = proxy.state.as_mut().expect("it answers");
        (state.new_serves, state.new_is_impaired) = (experience, is_impaired);
    }
}

#[test]
fn a_frontend_that_does_not_serve_takes_its_part_of_the_capacity_and_no_more() {
    let serves = || frontend(QueryResult::Responded);
    let bad = || Frontend {
        answer: QueryResult::Bad("status 503".to_owned()),
        ..Frontend::default()
    };
    let unresponsive = || frontend(no_response());
    for (frontends, weights) in [
        (
            vec![serves(), serves(), serves(), without_model()],
            ratio(4, 3),
        ),
        (vec![serves(), serves(), serves(), bad()], ratio(4, 3)),
        // Other frontends answered, so the controller's network works.
        (
            vec![serves(), serves(), serves(), unresponsive()],
            ratio(4, 3),
        ),
        (
            vec![serves(), without_model(), bad(), unresponsive()],
            ratio(4, 1),
        ),
        (
            vec![without_model(), bad(), unresponsive()],
            Weights::ALL_OLD,
        ),
        (vec![serves(), serves()], ratio(1, 1)),
    ] {
        let mut fixture = even(frontends.clone());
        let decision = fixture.step();
        assert_eq!(fixture.seen.split, weights, "{frontends:?}");
        let (is_ready, reason) = holds(&decision, ConditionKind::NewFrontendReady);
        let (is_degraded, _) = holds(&decision, ConditionKind::Degraded);
        match weights {
            Weights::ALL_OLD => assert!(!is_ready && is_degraded),
            _ if weights == ratio(1, 1) => assert_eq!((reason, is_degraded), ("Serving", false)),
            _ => {
                assert!(is_ready && is_degraded);
                assert_eq!(reason, "FrontendsFail");
                assert!(
                    decision
                        .message
                        .contains("of 4 frontends of new cannot serve"),
                    "{}",
                    decision.message
                );
            }
        }
        // It recovers, and the recovery has to last.
        fixture.seen.frontends.new.queried = vec![serves()];
        assert_eq!(fixture.next(), weights, "{frontends:?}");
        fixture.settle();
        assert_eq!(fixture.seen.split, ratio(1, 1));
    }
}

#[test]
fn an_update_continues_with_the_frontends_that_serve() {
    let mut fixture = Fixture::settled(4, 0);
    fixture.seen.frontends.new.queried.push(without_model());
    fixture.new_ready(2).settle();
    assert_eq!(fixture.seen.split, ratio(4, 1));
    fixture.scale_old(0).settle();
    assert_eq!(fixture.seen.split, Weights::ALL_NEW);
    // Old has no workers left to fall back to, but must not be deleted while clients may reach a failing frontend.
    let decision = fixture.clients_left().settle();
    assert_eq!(decision.phase, Phase::Complete);
    assert!(decision.missing.contains(&DeletionRequirement::NewServes));
    assert!(!decision.last_old_worker_dispensable && !decision.safe_to_delete_old);
}

#[test]
fn old_stays_a_fallback_while_a_frontend_of_new_does_not_serve_and_old_could() {
    for by_pause in [false, true] {
        let mut fixture = Fixture::settled(4, 4);
        if by_pause {
            fixture.settings.paused = true;
            fixture.edit(Weights::ALL_NEW);
        } else {
            fixture.settings.drain_old = true;
        }
        fixture.seen.frontends.new.queried.push(without_model());
        let decision = fixture.settle();
        assert_eq!(fixture.seen.split, Weights::ALL_NEW);
        assert_eq!(
            (decision.phase, decision.desired.old_draining),
            (Phase::Progressing, false)
        );
        fixture.seen.frontends.new = frontends();
        assert_eq!(fixture.settle().phase, Phase::Complete);
    }
}

#[test]
fn an_unreachable_new_keeps_its_share_while_proxies_see_it_serve_or_none_reports() {
    use Experience::{Bad, Good, None};
    let none_responds = || even(vec![frontend(no_response()), frontend(no_response())]);
    for (experience, is_impaired, keeps) in [
        (Good, false, true),
        // Some endpoint failed a proxy; the rest serve.
        (Good, true, true),
        (None, false, false),
        (Bad, true, false),
    ] {
        let mut fixture = none_responds();
        see_new(&mut fixture, experience, is_impaired);
        let decision = fixture.step();
        let (rule, split) = match keeps {
            true => (Rule::Capacity, ratio(1, 1)),
            false => (Rule::NewCannotServe, Weights::ALL_OLD),
        };
        assert_eq!(
            (decision.rule, fixture.seen.split),
            (rule, split),
            "{experience:?}"
        );
        assert!(
            holds(&decision, ConditionKind::Degraded).0,
            "{experience:?}"
        );
        // New gains nothing while it is unknown, and loses what its workers lose.
        if keeps {
            assert_eq!(holds(&decision, ConditionKind::Degraded).1, "NoAnswer");
            assert_eq!(fixture.new_ready(8).settle().actions, []);
            assert_eq!(fixture.new_ready(2).next(), ratio(2, 1));
        }
    }
    // One proxy that is served is enough: another proxy's network may be broken like the controller's.
    let mut fixture = none_responds();
    see_new(&mut fixture, Bad, true);
    fixture.seen.proxies[0]
        .state
        .as_mut()
        .expect("it answers")
        .new_serves = Good;
    assert_eq!(fixture.next(), ratio(1, 1));
    // A network fault at the controller: nothing answers, so nothing is known.
    let mut fixture = none_responds();
    for proxy in &mut fixture.seen.proxies {
        proxy.state = Err(NoReport::NoAnswer);
    }
    assert_eq!(fixture.settle().actions, []);
    assert_eq!(fixture.seen.split, ratio(1, 1));
    // New without a share gets none while its frontends are unknown.
    let mut fixture = Fixture::settled(4, 0);
    fixture.seen.frontends.new.queried = vec![frontend(no_response())];
    see_new(&mut fixture, Good, false);
    let decision = fixture.new_ready(4).settle();
    assert_eq!(
        decision.obstacles,
        [Obstacle::NoAnswer("timed out".to_owned())]
    );
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);
}

#[test]
fn one_silent_frontend_among_others_is_judged_by_the_proxies_that_use_it() {
    let frontends = || vec![frontend(QueryResult::Responded), frontend(no_response())];
    let mut fixture = even(frontends());
    see_new(&mut fixture, Experience::Good, false);
    assert_eq!(
        fixture.next(),
        ratio(1, 1),
        "only the controller cannot reach it"
    );
    let mut fixture = even(frontends());
    see_new(&mut fixture, Experience::Good, true);
    assert_eq!(
        fixture.next(),
        ratio(2, 1),
        "a proxy could not use one either"
    );
}

#[test]
fn unknown_capacity_of_old_does_not_reduce_new() {
    let mut fixture = Fixture::settled(4, 4);
    // A controller with an empty memory that cannot reach old.
    fixture.memory.models.clear();
    fixture.seen.frontends.old.queried = vec![Frontend {
        answer: no_response(),
        ..Frontend::default()
    }];
    let decision = fixture.settle();
    assert_eq!(fixture.seen.split, ratio(1, 1));
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "OldModelsUnknown")
    );
}
