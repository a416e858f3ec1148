//! Tests which manifests are refused, and the defaults of the others.

use super::*;
use crate::resource::rollout::{AmountSpec, Intent};

const HEAD: &str =
    "apiVersion: nvidia.com/v1alpha1\nkind: DynamoRollout\nmetadata: {name: chat}\nspec:\n";
const GENERATIONS: &str =
    "  source: {kind: Deployment, name: v1}\n  target: {kind: Deployment, name: v2}\n";
const FRONTENDS: &str =
    "  frontends: {source: v1-frontend, target: v2-frontend, service: v2-frontend}\n";
const CLIENTS: &str = "  clientService: chat\n";

fn problems_of(text: &str) -> String {
    match load_rollout(text) {
        Ok(manifest) => panic!("taken: {manifest:?}"),
        Err(problems) => problems.to_string(),
    }
}

#[test]
fn a_minimal_rollout_has_the_defaults_of_the_strategy() {
    let manifest = load_rollout(&[HEAD, GENERATIONS, FRONTENDS, CLIENTS].concat()).unwrap();
    let spec = &manifest.spec;
    assert_eq!(manifest.identity.name.as_deref(), Some("chat"));
    assert_eq!(spec.strategy.max_surge, AmountSpec::Count(1));
    assert_eq!(spec.strategy.ready_timeout_seconds, 1800);
    assert_eq!((spec.intent, spec.frontends.port), (Intent::Run, 8000));
    let json = serde_json::to_value(spec).unwrap();
    assert_eq!(DynamoRolloutSpec::read(&json).as_ref(), Ok(spec));
}

#[test]
fn every_problem_is_reported_with_its_line() {
    let text = [
        HEAD,
        "  source: {kind: Deployment}\n",
        "  target: {roles: {decoder: {kind: Deployment, name: v2}}, replicas: 2}\n",
        FRONTENDS,
        CLIENTS,
        "  strategy: {maxSurge: 0, maxUnavailable: \"0%\"}\n",
        "  steps: [{percent: 50}, {percent: 25}]\n",
        "  traffic: {drain: {moveAfterSeconds: 1}}\n",
    ];
    let reported = problems_of(&text.concat());
    for expected in [
        "line 5: spec.source: name one object by kind and name",
        "line 6: spec.target.replicas: with roles",
        "line 6: spec.target.roles.decoder: roles are prefill, decode, and worker",
        "line 9: spec.strategy: maxSurge and maxUnavailable must not both be 0",
        "line 10: spec.steps[1].percent: each step must have a higher percent",
        "line 11: spec.traffic.drain.moveAfterSeconds: moves streams to the other generation",
    ] {
        assert!(reported.contains(expected), "{expected}\n{reported}");
    }
}

#[test]
fn an_invalid_amount_is_rejected_as_by_the_api_server() {
    for (amount, expected) in [
        (
            "\"101%\"",
            "must be a whole number of at least 0, or a percentage",
        ),
        (
            "-1",
            "must be a whole number of at least 0, or a percentage",
        ),
        ("true", "must be a number or a percentage, not true"),
        ("1.5", "must be a number or a percentage, not 1.5"),
    ] {
        let strategy = format!("  strategy: {{maxSurge: {amount}}}\n");
        let reported = problems_of(&[HEAD, GENERATIONS, FRONTENDS, CLIENTS, &strategy].concat());
        assert!(
            reported.contains(&format!("line 9: spec.strategy.maxSurge: {expected}")),
            "{reported}"
        );
    }
}

#[test]
fn the_same_workers_or_frontends_on_both_generations_are_refused() {
    let text = [
        HEAD,
        "  source: {kind: Deployment, name: v1}\n  target: {kind: Deployment, name: v1}\n",
        "  frontends: {source: f, target: f, service: f}\n",
        CLIENTS,
    ];
    let reported = problems_of(&text.concat());
    assert!(
        reported.contains("source and target are the same workers"),
        "{reported}"
    );
    assert!(
        reported.contains("frontends.source and frontends.target are the same"),
        "{reported}"
    );
}

#[test]
fn one_object_can_have_both_generations_if_its_kind_and_the_limits_allow_it() {
    let text = |one: &str, strategy: &str| {
        let generations = format!("  source: {one}\n  target: {one}\n");
        let strategy = format!("  strategy: {strategy}\n");
        [HEAD, &generations, FRONTENDS, CLIENTS, &strategy].concat()
    };
    let set = "{kind: StatefulSet, name: w}";
    let rollout = load_rollout(&text(set, "{maxSurge: 0, maxUnavailable: 25%}")).unwrap();
    assert!(rollout.spec.is_in_place());
    let limits = "spec.strategy: source and target are one object, which replaces";
    for (one, strategy, expected) in [
        (set, "{}", limits),
        (set, "{maxSurge: 1, maxUnavailable: 1}", limits),
        (
            "{kind: StatefulSet, name: w, replicas: 2}",
            "{maxSurge: 0, maxUnavailable: 1}",
            "leave out replicas",
        ),
        (
            "{kind: Deployment, name: w}",
            "{maxSurge: 0, maxUnavailable: 1}",
            "spec.target: source and target are the same workers; only one StatefulSet",
        ),
        (
            "{roles: {decode: {kind: StatefulSet, name: w}}}",
            "{maxSurge: 0, maxUnavailable: 1}",
            "source and target are the same workers",
        ),
    ] {
        let reported = problems_of(&text(one, strategy));
        assert!(reported.contains(expected), "{reported}");
    }
}

#[test]
fn what_follows_from_another_problem_is_not_reported() {
    for (fields, expected) in [
        // A generation without its kind, which is the same object in both.
        (
            "  source: {kind: Deploymnt, name: w}\n  target: {kind: Deploymnt, name: w}\n",
            &["spec.source.kind", "spec.target.kind"][..],
        ),
        (
            "  source: {roles: {decode: {kind: Deployment}}}\n",
            &["spec.target", "spec.source.roles.decode.name"],
        ),
        (
            "  source: {kind: Deployment, name: a}\n  target: {kind: Deployment, name: b}\n  \
             strategy: {maxSurge: true, maxUnavailable: 0}\n",
            &["spec.strategy.maxSurge"],
        ),
        (
            "  source: {kind: Deployment, name: a}\n  target: {kind: Deployment, name: b}\n  \
             traffic: {drain: {moveAfterSeconds: 1}, failover: {continuation: {mode: Any}}}\n",
            &["spec.traffic.failover.continuation.mode"],
        ),
    ] {
        let problems = load_rollout(&[HEAD, fields, FRONTENDS, CLIENTS].concat()).unwrap_err();
        let paths: Vec<_> = problems.iter().map(|problem| &*problem.path).collect();
        assert_eq!(paths, expected, "{problems}");
    }
}

#[test]
fn missing_objects_and_wrong_kinds_are_reported() {
    let reported = problems_of(&[HEAD, GENERATIONS, CLIENTS].concat());
    assert!(
        reported.contains("spec.frontends: is required"),
        "{reported}"
    );
    let text = [HEAD, GENERATIONS, FRONTENDS, CLIENTS].concat();
    let reported = problems_of(&text.replace("DynamoRollout", "DynamoUpdateConfig"));
    assert!(
        reported.contains("kind: must be DynamoRollout"),
        "{reported}"
    );
}
