//! Tests whether new can serve: endpoints, the models that old serves, and frontends that have not answered.

use super::*;

#[test]
fn new_gets_nothing_before_it_can_serve_and_loses_all_when_it_cannot() {
    type Break = fn(&mut Fixture);
    let breaks: [(Break, &str); 4] = [
        (
            |fixture| fixture.seen.frontends.new.endpoints = 0,
            "its frontend service has no ready endpoint",
        ),
        (
            |fixture| fixture.seen.frontends.new.queried[0].models = ["other".to_owned()].into(),
            "it does not serve the model llama",
        ),
        (
            |fixture| {
                fixture.settings.models = Some(["a".to_owned(), "b".to_owned()].into());
            },
            "it does not serve the models a, b",
        ),
        (|fixture| _ = fixture.new_ready(0), "it has no ready worker"),
    ];
    for (break_it, why) in breaks {
        let mut fixture = Fixture::settled(4, 0);
        break_it(fixture.new_ready(2));
        let decision = fixture.settle();
        assert_eq!(
            (decision.rule, fixture.seen.split),
            (Rule::NewCannotServe, Weights::ALL_OLD)
        );
        assert_eq!(decision.phase, Phase::Pending);
        assert!(decision.message.contains(why), "{}", decision.message);
        assert!(!holds(&decision, ConditionKind::NewFrontendReady).0);
        assert!(!holds(&decision, ConditionKind::Degraded).0);

        let mut fixture = Fixture::settled(4, 2);
        assert_eq!(fixture.seen.split, ratio(2, 1));
        break_it(&mut fixture);
        assert_eq!(fixture.next(), Weights::ALL_OLD);
    }
}

#[test]
fn new_must_serve_old_models_even_after_old_is_gone() {
    let mut fixture = Fixture::settled(4, 0);
    fixture.seen.frontends.old = Frontends::default();
    fixture.seen.frontends.new.queried[0].models = ["other".to_owned()].into();
    fixture.new_ready(4).scale_old(0);
    assert_eq!(fixture.settle().rule, Rule::NeitherCanServe);
    fixture.settings.models = Some(["other".to_owned()].into());
    assert_eq!(fixture.settle().rule, Rule::OldCannotServe);
}

#[test]
fn without_required_models_new_must_serve_at_least_one() {
    let mut fixture = Fixture::of_four();
    fixture.seen.frontends.old.queried[0].models.clear();
    fixture.seen.frontends.new.queried[0].models.clear();
    assert_eq!(fixture.new_ready(4).settle().obstacles, [Obstacle::NoModel]);
    fixture.seen.frontends.new = frontends();
    assert!(fixture.settle().obstacles.is_empty());
}

#[test]
fn a_frontend_that_cannot_be_queried_is_reported_with_the_cause() {
    let mut fixture = Fixture::of_four();
    fixture.seen.frontends.new = Frontends {
        left_out: 0,
        endpoints: 1,
        queried: vec![Frontend {
            answer: QueryResult::NoResponse("new:8000 cannot be reached: refused".to_owned()),
            ..Frontend::default()
        }],
        error: None,
    };
    let decision = fixture.new_ready(4).settle();
    assert_eq!(decision.rule, Rule::NewCannotServe);
    assert!(
        decision
            .message
            .contains("its frontend cannot be queried for models: new:8000 cannot be reached"),
        "{}",
        decision.message
    );
    assert!(!decision.message.contains(MODEL), "{}", decision.message);
    let gate = holds(&decision, ConditionKind::NewFrontendReady);
    assert_eq!(gate, (false, "NoAnswer"));
}

#[test]
fn new_gets_nothing_while_no_one_can_say_what_old_serves() {
    let mut fixture = Fixture::of_four();
    fixture.seen.frontends.old = Frontends {
        endpoints: 2,
        error: Some("old-0 has no port frontend".to_owned()),
        ..Frontends::default()
    };
    let decision = fixture.new_ready(4).settle();
    assert_eq!(decision.obstacles, [Obstacle::OldModelsUnknown]);
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "OldModelsUnknown")
    );
    let mut stated = fixture.clone();
    stated.settings.models = Some([MODEL.to_owned()].into());
    assert!(stated.settle().obstacles.is_empty());
    // One of old's frontends can be queried, so its models are required.
    fixture.seen.frontends.old.queried = frontends().queried;
    assert!(fixture.settle().obstacles.is_empty());
}

#[test]
fn one_that_falls_silent_does_not_make_less_of_what_old_serves() {
    let mut fixture = Fixture::settled(4, 2);
    fixture.seen.frontends.old.queried[0]
        .models
        .insert("other".to_owned());
    fixture.seen.frontends.new.queried[0]
        .models
        .insert("other".to_owned());
    fixture.settle();
    fixture.seen.frontends.old.queried = vec![frontend(QueryResult::NotYet)];
    assert_eq!(fixture.settle().memory.models.len(), 2);
    fixture.seen.frontends.old = frontends();
    assert_eq!(fixture.settle().memory.models.len(), 1);
}

#[test]
fn missing_reports_cause_neither_gains_nor_losses() {
    let mut fixture = Fixture::settled(4, 2);
    let unheard = Frontends {
        left_out: 0,
        endpoints: 1,
        queried: vec![Frontend {
            answer: QueryResult::NotYet,
            ..Frontend::default()
        }],
        error: None,
    };
    fixture.seen.frontends.new = unheard.clone();
    assert_eq!(fixture.new_ready(4).settle().actions, []);
    assert_eq!(fixture.seen.split, ratio(2, 1), "no gain");
    assert_eq!(
        fixture.new_ready(1).next(),
        ratio(4, 1),
        "a loss counts immediately"
    );
    assert_eq!(
        fixture.old_ready(2).next(),
        ratio(2, 1),
        "of either generation"
    );
    assert_eq!(fixture.new_ready(0).next(), Weights::ALL_OLD);

    // New without a share gets none while its frontends are unknown.
    let mut fixture = Fixture::settled(4, 0);
    fixture.seen.frontends.new = unheard.clone();
    let decision = fixture.new_ready(4).settle();
    assert_eq!(decision.obstacles, [Obstacle::NotYet]);
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);

    // A frontend that cannot be queried is unknown as well, and that is reported.
    let error = Some("no such file".to_owned());
    let not_queried = Frontends {
        error,
        queried: Vec::new(),
        ..unheard
    };
    fixture.seen.frontends.new = not_queried.clone();
    let no_answer = Obstacle::NoAnswer("no such file".to_owned());
    assert_eq!(fixture.settle().obstacles, [no_answer]);
    let mut fixture = Fixture::settled(4, 2);
    fixture.seen.frontends.new = not_queried;
    let decision = fixture.new_ready(4).settle();
    assert_eq!(fixture.seen.split, ratio(2, 1));
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "NoAnswer")
    );
    fixture.new_ready(0).settle();
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);

    // Wait for a proxy that has not been queried before. This is not a fault.
    let mut fixture = Fixture::settled(4, 1);
    fixture.seen.proxies[1].state = Err(NoReport::NotYet);
    fixture.seen.resource_generation += 1;
    fixture.new_ready(2).applied().step();
    let decision = fixture.wait(seconds(10)).step();
    assert_eq!(decision.actions, []);
    assert!(decision.message.ends_with("b (no response yet)"));
    let decision = fixture.wait(seconds(60)).step();
    assert!(!holds(&decision, ConditionKind::Degraded).0);
    assert!(!reasons(&decision).contains(&"ProxiesLag"));
}
