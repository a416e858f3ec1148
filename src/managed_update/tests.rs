//! Tests how each field of a rollout affects the decision.

use serde_json::{Value, json};

use super::*;
use crate::scaling::{ClientHandover, Handover, Retire};

fn spec(change: &Value) -> DynamoRolloutSpec {
    let mut spec = json!({
        "source": {"kind": "Deployment", "name": "v1"},
        "target": {"kind": "Deployment", "name": "v2"},
        "frontends": {"source": "f1", "target": "f2", "service": "f2"},
        "clientService": "chat",
    });
    let fields = change.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(fields);
    DynamoRolloutSpec::read(&spec).unwrap()
}

fn sizes(roles: &[(Role, u32)]) -> Sizes {
    roles.iter().copied().collect()
}

fn settings_of(change: &Value) -> RolloutSettings {
    let full = sizes(&[(Role::Worker, 4)]);
    let accepted = Accepted {
        full: PerGeneration {
            old: full.clone(),
            new: full,
        },
        gpus: PerGeneration::default(),
    };
    settings(&spec(change), &accepted, Direction::AsSpecified).unwrap()
}

#[test]
fn the_defaults_are_those_of_the_decision() {
    let settings = settings_of(&json!({}));
    assert_eq!(settings.strategy, Strategy::default());
    assert_eq!(settings.intent, Intent::default());
    assert_eq!(settings.handover, Handover::default());
}

#[test]
fn each_field_is_one_of_the_settings() {
    let settings = settings_of(&json!({
        "strategy": {
            "maxSurge": "50%", "maxUnavailable": 1, "partition": 2, "gpuBudget": 40, "readyTimeoutSeconds": 60,
            "stepIntervalSeconds": 5, "drainDeadlineSeconds": 900, "allowShortGrace": true,
        },
        "steps": [{"percent": 25, "holdSeconds": 30}],
        "analysis": {"onFailure": "RollBack"},
        "intent": "Promote",
        "handover": {"clients": "Automatic", "retire": "Delete"},
        "traffic": {"failover": {"continuation": {"mode": "SameGeneration"}}},
    }));
    let seconds = Duration::from_secs;
    let expected = Strategy {
        max_surge: Amount::Percent(50),
        max_unavailable: Amount::Count(1),
        partition: 2,
        steps: vec![ScaleStep {
            new: Amount::Percent(25),
            hold: seconds(30),
        }],
        gpu_budget: Some(40),
        ready_timeout: seconds(60),
        step_interval: seconds(5),
        drain_deadline: Some(seconds(900)),
        analysis: Some(crate::scaling::OnFailure::RollBack),
        continuation: true,
        allow_short_grace: true,
    };
    assert_eq!(settings.strategy, expected);
    assert_eq!(settings.intent, Intent::Promote);
    let handover = Handover {
        clients: ClientHandover::Automatic,
        retire: Retire::Delete,
    };
    assert_eq!(settings.handover, handover);
    let aborted = settings_of(&json!({"intent": "Abort"}));
    assert_eq!(aborted.intent, Intent::Abort);
}

#[test]
fn a_direction_overrides_the_intent_except_for_a_hold() {
    use Direction::{AsSpecified, Impossible, RollBack, Superseded};
    for (intent, direction, expected) in [
        ("Run", AsSpecified, Intent::Run),
        ("Run", RollBack, Intent::Abort),
        ("Promote", RollBack, Intent::Abort),
        ("Hold", RollBack, Intent::Hold),
        ("Promote", Impossible, Intent::Hold),
        ("Promote", Superseded, Intent::Promote),
        ("Hold", Superseded, Intent::Hold),
    ] {
        let accepted = Accepted {
            full: PerGeneration {
                old: sizes(&[(Role::Worker, 4)]),
                new: sizes(&[(Role::Worker, 4)]),
            },
            gpus: PerGeneration::default(),
        };
        let settings = settings(&spec(&json!({"intent": intent})), &accepted, direction).unwrap();
        assert_eq!(settings.intent, expected, "{intent} {direction:?}");
        assert_eq!(settings.superseded, direction == Superseded);
    }
}

#[test]
fn a_size_of_the_source_is_given_by_its_replicas() {
    let given = |replicas: Value| {
        let source = json!({"kind": "Deployment", "name": "v1", "replicas": replicas});
        settings_of(&json!({"source": source})).given
    };
    assert_eq!(given(json!(4)), [Role::Worker].into());
    assert_eq!(given(Value::Null), [].into());
}

#[test]
fn the_full_size_is_that_of_the_larger_generation_unless_it_is_stated() {
    let now = |old: &[(Role, u32)], new: &[(Role, u32)]| PerGeneration {
        old: sizes(old),
        new: sizes(new),
    };
    let full = |change: &Value, now: PerGeneration<Sizes>| full_sizes(&spec(change), &now);
    let (old, new) = ([(Role::Worker, 4)], [(Role::Worker, 0)]);
    assert_eq!(full(&json!({}), now(&old, &new)), Ok(now(&old, &old)));
    // Half-way, or with old back at the size of its manifest.
    let most = [(Role::Worker, 3)];
    assert_eq!(
        full(&json!({}), now(&[(Role::Worker, 1)], &most)),
        Ok(now(&most, &most))
    );
    let target = json!({"target": {"kind": "Deployment", "name": "v2", "replicas": 8}});
    assert_eq!(
        full(&target, now(&old, &new)),
        Ok(now(&old, &[(Role::Worker, 8)]))
    );
    assert_eq!(
        full(&json!({}), now(&new, &new)),
        Err(SizeError::NoSize(Role::Worker))
    );
    let both = [(Role::Prefill, 4), (Role::Decode, 2)];
    assert_eq!(
        full(&json!({}), now(&old, &both)),
        Err(SizeError::NoCounterpart(Role::Prefill))
    );
    let workload = |name: &str, replicas: u32| json!({"kind": "Deployment", "name": name, "replicas": replicas});
    let roles =
        json!({"target": {"roles": {"prefill": workload("p", 4), "decode": workload("d", 2)}}});
    assert_eq!(full(&roles, now(&old, &both)), Ok(now(&old, &both)));
    assert_eq!(
        full(&target, now(&both, &both)),
        Err(SizeError::SeveralRoles("target"))
    );
    assert_eq!(
        full(&json!({}), now(&[], &old)),
        Err(SizeError::NoRole("source"))
    );
    assert_eq!(
        full(&json!({}), now(&old, &[])),
        Err(SizeError::NoRole("target"))
    );
}
