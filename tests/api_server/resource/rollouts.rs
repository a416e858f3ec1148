//! Validation of `DynamoRollout` by a real API server and by the program.

use crossfade::resource::rollout_status::{
    AcceptedGeneration, AcceptedRole, AcceptedStatus, DynamoRolloutStatus, GpuStatus,
    RevisionStatus, RolloutMemory, RolloutPhase, RolloutStepStatus, ScaledGenerationStatus,
    ScaledRoleStatus,
};
use crossfade::resource::{DynamoRolloutSpec, rollout_schema};
use serde_json::from_value;

use super::*;

fn rollout(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoRollout",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

/// A valid spec with `change` merged into it. Null removes a field.
fn good(change: &Value) -> Value {
    let mut spec = json!({
        "source": {"kind": "Deployment", "name": "v1"},
        "target": {"kind": "Deployment", "name": "v2"},
        "frontends": {"source": "v1-frontend", "target": "v2-frontend", "service": "v2-frontend"},
        "clientService": "chat",
    });
    for (field, value) in change.as_object().unwrap() {
        match value {
            Value::Null => spec.as_object_mut().unwrap().remove(field),
            value => spec
                .as_object_mut()
                .unwrap()
                .insert(field.clone(), value.clone()),
        };
    }
    spec
}

/// Invalid changes, each with the expected error message.
fn wrong() -> Vec<(Value, &'static str)> {
    let mut all = [
        of_generations(),
        of_frontends(),
        of_strategy(),
        of_the_end(),
    ]
    .concat();
    // Fields that a `DynamoUpdateConfig` has, too.
    const SHARED: [&str; 5] = ["models", "affinity", "failover", "drain", "probe"];
    for (change, message) in super::wrong() {
        let fields = change.as_object().unwrap();
        let has = |name: &str| fields.contains_key(name);
        if has("analysis") || has("steps") {
            all.push((change, message));
        } else if fields.keys().all(|name| SHARED.contains(&&**name)) {
            all.push((json!({"traffic": change}), message));
        }
    }
    all
}

fn of_generations() -> Vec<(Value, &'static str)> {
    let workload = |change: Value| {
        let mut workload = json!({"kind": "Deployment", "name": "v3"});
        let fields = change.as_object().unwrap().clone();
        workload.as_object_mut().unwrap().extend(fields);
        workload
    };
    let cases = [
        (
            workload(json!({"kind": "Pod"})),
            "Unsupported value: \"Pod\"",
        ),
        (
            workload(json!({"name": ""})),
            "should be at least 1 chars long",
        ),
        (
            workload(json!({"name": "Big"})),
            "must be the name of an object",
        ),
        (
            workload(json!({"replicas": 0})),
            "should be greater than or equal to 1",
        ),
        (
            json!({"kind": "Deployment"}),
            "name one object by kind and name, or one for each role",
        ),
        (
            json!({"name": "v3"}),
            "name one object by kind and name, or one for each role",
        ),
        (
            json!({}),
            "name one object by kind and name, or one for each role",
        ),
        (
            workload(json!({"roles": {"decode": workload(json!({}))}})),
            "name one object by kind and name",
        ),
        (
            json!({"replicas": 2, "roles": {"decode": workload(json!({}))}}),
            "with roles, set the replicas of each role",
        ),
        (
            json!({"roles": {"decoder": workload(json!({}))}}),
            "roles are prefill, decode, and worker",
        ),
        (
            json!({"roles": {"decode": workload(json!({"kind": "Pod"}))}}),
            "Unsupported value: \"Pod\"",
        ),
        (
            json!({"roles": {"decode": workload(json!({"name": "-"}))}}),
            "must be the name of an object",
        ),
        (
            json!({"roles": {"decode": workload(json!({"replicas": 0}))}}),
            "should be greater than or equal to 1",
        ),
    ];
    let generations = ["source", "target"].into_iter();
    let each = generations.flat_map(|generation| {
        let cases = cases.iter();
        cases.map(move |(wrong, message)| (json!({generation: wrong}), *message))
    });
    each.chain(of_one_object()).chain(in_place()).collect()
}

/// Invalid cases in which source and target are the same object.
fn of_one_object() -> Vec<(Value, &'static str)> {
    let object = |name: &str| json!({"kind": "Deployment", "name": name});
    let roles =
        |prefill: Value, decode: Value| json!({"roles": {"prefill": prefill, "decode": decode}});
    let same = "source and target are the same workers";
    vec![
        (json!({"target": object("v1")}), same),
        (json!({"target": roles(object("p2"), object("v1"))}), same),
        (
            json!({"source": roles(object("v2"), object("d1")), "target": object("v2")}),
            same,
        ),
        (
            json!({
                "source": roles(object("p1"), object("d1")), "target": roles(object("p2"), object("p1")),
            }),
            same,
        ),
        (
            json!({"target": roles(object("v2"), object("v2"))}),
            "two roles have the same object",
        ),
    ]
}

/// Invalid cases of a rollout within one object.
fn in_place() -> Vec<(Value, &'static str)> {
    let spec =
        |one: Value, strategy: Value| json!({"source": one, "target": one, "strategy": strategy});
    let set = json!({"kind": "StatefulSet", "name": "w"});
    let sized = json!({"kind": "StatefulSet", "name": "w", "replicas": 2});
    let limits = "set maxSurge to 0 and maxUnavailable to 1 or more";
    vec![
        (spec(set.clone(), json!({})), limits),
        (
            spec(set.clone(), json!({"maxSurge": 1, "maxUnavailable": 1})),
            limits,
        ),
        (
            spec(set, json!({"maxSurge": 0, "maxUnavailable": "0%"})),
            limits,
        ),
        (
            spec(sized, json!({"maxSurge": 0, "maxUnavailable": 1})),
            "leave out replicas, which are those of the object",
        ),
    ]
}

fn of_frontends() -> Vec<(Value, &'static str)> {
    let frontends = |change: Value| {
        let mut frontends = json!({"source": "a", "target": "b", "service": "c"});
        let fields = change.as_object().unwrap().clone();
        frontends.as_object_mut().unwrap().extend(fields);
        json!({"frontends": frontends})
    };
    vec![
        (
            frontends(json!({"source": ""})),
            "should be at least 1 chars long",
        ),
        (
            frontends(json!({"target": "B"})),
            "must be the name of an object",
        ),
        (
            frontends(json!({"target": "a"})),
            "frontends.source and frontends.target are the same",
        ),
        (
            frontends(json!({"service": "a/b"})),
            "must be the name of an object",
        ),
        (
            frontends(json!({"port": 0})),
            "should be greater than or equal to 1",
        ),
        (
            frontends(json!({"port": 65_536})),
            "should be less than or equal to 65535",
        ),
        (
            json!({"clientService": ""}),
            "should be at least 1 chars long",
        ),
        (json!({"clientService": null}), "Required value"),
        (
            frontends(json!({"service": "chat"})),
            "clientService and frontends.service are the same Service",
        ),
    ]
}

fn of_strategy() -> Vec<(Value, &'static str)> {
    let amount = "must be a whole number of at least 0, or a percentage from 0% to 100%";
    let cases = vec![
        (json!({"maxSurge": -1}), amount),
        (json!({"maxSurge": "101%"}), amount),
        (json!({"maxSurge": "1"}), amount),
        (json!({"maxSurge": 1_000_001}), amount),
        (
            json!({"maxSurge": "10000%"}),
            "may not be more than 4 bytes",
        ),
        (json!({"maxUnavailable": "-1%"}), amount),
        (json!({"maxSurge": 0}), "must not both be 0"),
        (
            json!({"maxSurge": "0%", "maxUnavailable": "0%"}),
            "must not both be 0",
        ),
        (
            json!({"partition": -1}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"gpuBudget": 0}),
            "should be greater than or equal to 1",
        ),
        (
            json!({"readyTimeoutSeconds": 0}),
            "should be greater than or equal to 1",
        ),
        (
            json!({"stepIntervalSeconds": -1}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"drainDeadlineSeconds": 604_801}),
            "should be less than or equal to 604800",
        ),
        (json!({"allowShortGrace": "yes"}), "must be of type boolean"),
    ];
    let cases = cases.into_iter();
    cases
        .map(|(wrong, message)| (json!({"strategy": wrong}), message))
        .collect()
}

fn of_the_end() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"intent": "Stop"}), "Unsupported value: \"Stop\""),
        (
            json!({"handover": {"clients": "Never"}}),
            "Unsupported value: \"Never\"",
        ),
        (
            json!({"handover": {"retire": "Burn"}}),
            "Unsupported value: \"Burn\"",
        ),
        (
            json!({"undoTo": -1}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"revisionHistoryLimit": 101}),
            "should be less than or equal to 100",
        ),
    ]
}

#[test]
fn every_field_of_a_rollout_has_an_invalid_case() {
    let schema = rollout_schema();
    let mut all = BTreeSet::new();
    leaves(&full(schema), schema, "spec", &mut all);
    assert!(all.len() > 50, "{all:?}");
    let mut tried = BTreeSet::new();
    for (change, _) in wrong() {
        leaves(&change, schema, "spec", &mut tried);
    }
    let left: Vec<_> = all.difference(&tried).collect();
    assert!(left.is_empty(), "no wrong case of {left:?}");
}

#[test]
fn invalid_rollouts_are_rejected_by_the_api_server_and_the_program() {
    let server = server();
    for (change, expected) in wrong() {
        let spec = good(&change);
        let (taken, output) = server.tries(&rollout("wrong", &spec));
        assert!(!taken, "{change} was taken");
        assert!(output.contains(expected), "{change}: {output}");
        assert!(DynamoRolloutSpec::read(&spec).is_err(), "{change}");
    }
}

#[test]
fn valid_rollouts_are_accepted() {
    let server = server();
    let deployment = |name: &str| json!({"kind": "Deployment", "name": name});
    let graph = |name: &str| json!({"kind": "DynamoGraphDeployment", "name": name});
    for change in [
        json!({}),
        json!({"strategy": {}}),
        json!({"strategy": {"maxSurge": "25%", "maxUnavailable": "100%"}}),
        json!({"strategy": {"maxSurge": 0, "maxUnavailable": 1, "gpuBudget": 8}}),
        json!({"analysis": {}, "steps": [{"percent": 25, "holdSeconds": 5}, {"percent": 50}]}),
        json!({
            "source": {"roles": {"prefill": deployment("p1"), "decode": deployment("d1")}},
            "target": {"roles": {"prefill": deployment("p2"), "decode": deployment("d2")}},
        }),
        json!({
            "source": {"roles": {"prefill": graph("g1"), "decode": graph("g1")}},
            "target": {"roles": {"prefill": graph("g2"), "decode": graph("g2")}},
        }),
        json!({"handover": {"clients": "Automatic", "retire": "ScaleToZero"}, "undoTo": 1}),
        json!({"undoTo": 0, "revisionHistoryLimit": 0}),
    ] {
        let spec = good(&change);
        let (taken, output) = server.tries(&rollout("right", &spec));
        assert!(taken && !output.contains("Warning"), "{change}: {output}");
        assert!(DynamoRolloutSpec::read(&spec).is_ok(), "{change}");
    }
    let given = rollout("defaults", &good(&json!({}))).to_string();
    let taken = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
    let taken: Value = serde_json::from_str(&server.good(&taken, &given)).unwrap();
    let defaults = DynamoRolloutSpec::read(&good(&json!({})));
    assert_eq!(DynamoRolloutSpec::read(&taken["spec"]), defaults);
}

fn at(seconds: i64) -> Value {
    json!(format!("2026-01-01T00:00:{seconds:02}Z"))
}

fn status() -> DynamoRolloutStatus {
    let generation = |name: &str| AcceptedGeneration {
        roles: [(
            "worker".to_owned(),
            AcceptedRole {
                kind: "Deployment".into(),
                name: name.into(),
                component: Some("VllmDecodeWorker".into()),
                uid: "u".into(),
                revision: Some("1".into()),
                replicas: 4,
                gpus: 8,
            },
        )]
        .into(),
        frontends: format!("{name}-frontend"),
        graph: None,
    };
    let workers = |spec, ready| ScaledGenerationStatus {
        workers: Some(format!("{ready}/{spec}")),
        roles: [(
            "worker".to_owned(),
            ScaledRoleStatus {
                spec,
                ready,
                terminating: 1,
                recorded: Some(spec),
            },
        )]
        .into(),
        ready_frontends: 2,
        open_streams: Some(17),
    };
    DynamoRolloutStatus {
        observed_generation: Some(1),
        phase: Some(RolloutPhase::Progressing),
        message: Some("new to be ready: 1 of 2 units are ready".into()),
        update: Some("chat".into()),
        accepted: Some(AcceptedStatus {
            at: from_value(at(0)).unwrap(),
            units: 4,
            source: generation("v1"),
            target: generation("v2"),
            service: "v2-frontend:8000".into(),
            undo_to: Some(1),
        }),
        source: Some(workers(3, 3)),
        target: Some(workers(2, 1)),
        split: Some(SplitStatus {
            percent: 25,
            weights: Some(WeightsSpec { old: 3, new: 1 }),
        }),
        step: Some(RolloutStepStatus {
            old: 3,
            new: 2,
            next: 4,
        }),
        gpus: Some(GpuStatus { used: 40, peak: 40 }),
        revisions: vec![RevisionStatus {
            revision: 1,
            generation: Some("old".into()),
            workers: "Deployment v1".into(),
            frontends: "v1-frontend".into(),
            at: Some(from_value(at(3)).unwrap()),
            exists: true,
        }],
        previous_selector: [("app".to_owned(), "v1".to_owned())].into(),
        conditions: from_value(json!([{
            "type": "Reconciling", "status": "True", "reason": "Progressing", "message": "",
            "lastTransitionTime": at(1), "observedGeneration": 1,
        }]))
        .unwrap(),
        memory: Some(RolloutMemory {
            recorded_generation: Some(1),
            unchanged_since: Some(from_value(at(2)).unwrap()),
            ..RolloutMemory::default()
        }),
        ..DynamoRolloutStatus::default()
    }
}

fn write_status(server: &Server, name: &str, status: &Value) {
    let patch = json!({"status": status}).to_string();
    let to = ["patch", "dro", name, "--subresource=status", "--type=merge"];
    server.good(&[&to[..], &["-p", &patch]].concat(), "");
}

#[test]
fn the_status_of_a_rollout_is_stored_and_its_columns_show_it() {
    let server = server();
    server.apply(&rollout("shown", &good(&json!({}))));
    let status = status();
    write_status(&server, "shown", &json!(status));
    let shown = server.good(&["get", "dro", "shown"], "");
    let (head, row) = shown.split_once('\n').unwrap();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(head), "NAME PHASE OLD NEW SPLIT MESSAGE AGE");
    let row = words(row);
    assert!(
        row.starts_with("shown Progressing 3/3 1/2 25 new to be ready"),
        "{row}"
    );
    let kept = server.good(&["get", "dro", "shown", "-o", "json"], "");
    let kept: Value = serde_json::from_str(&kept).unwrap();
    let kept: DynamoRolloutStatus = from_value(kept["status"].clone()).unwrap();
    assert_eq!(kept, status);
    server.good(&["delete", "dro", "shown"], "");
}

#[test]
fn the_source_cannot_be_changed_while_a_rollout_is_in_progress() {
    let server = server();
    let spec = |source: &str, partition: u32| {
        good(
            &json!({"source": {"kind": "Deployment", "name": source}, "strategy": {"partition": partition}}),
        )
    };
    server.apply(&rollout("bound", &spec("v0", 0)));
    // The rollout has not started.
    server.good(
        &["apply", "-f", "-"],
        &rollout("bound", &spec("v1", 9)).to_string(),
    );
    write_status(&server, "bound", &json!(status()));
    let (taken, output) = server.apply(&rollout("bound", &spec("v0", 9)));
    assert!(
        !taken && output.contains("source cannot be changed while the rollout is under way"),
        "{output}"
    );
    let (taken, output) = server.apply(&rollout("bound", &spec("v1", 5)));
    assert!(
        !taken && output.contains("partition exceeds status.accepted.units"),
        "{output}"
    );
    // A partition that was already too large does not prevent other changes.
    let mut held = spec("v1", 9);
    held["intent"] = json!("Hold");
    server.good(&["apply", "-f", "-"], &rollout("bound", &held).to_string());
    let mut over = json!(status());
    over["phase"] = json!("Complete");
    write_status(&server, "bound", &over);
    server.good(
        &["apply", "-f", "-"],
        &rollout("bound", &spec("v0", 4)).to_string(),
    );
    // A completed rollout that is held is not in progress.
    let mut held = json!(status());
    held["phase"] = json!("Held");
    held["memory"]["handedOver"] = json!(true);
    write_status(&server, "bound", &held);
    server.good(
        &["apply", "-f", "-"],
        &rollout("bound", &spec("v1", 4)).to_string(),
    );
    server.good(&["delete", "dro", "bound"], "");
}
