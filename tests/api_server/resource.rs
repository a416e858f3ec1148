//! The resource at a real API server: validation, defaults, `kubectl explain`, status, and a proxy that follows it.

mod follow;
mod invalid_specs;
mod rollouts;
mod server;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crossfade::resource::status::{GenerationStatus, RoleStatus, SplitStatus, UpdatePhase};
use crossfade::resource::{
    DynamoUpdateConfigStatus, Identity, ReportedStatus, TargetScope, Update, WeightsSpec,
};
use serde_json::{Value, json};

use self::invalid_specs::wrong;
use self::server::{Server, server, spec_with, update};

const MANIFEST: &str = r#"
apiVersion: nvidia.com/v1alpha1
kind: DynamoUpdateConfig
metadata: {name: my-dgd-update, namespace: default}
spec:
  newFrontendService: "frontend-new.default.svc.cluster.local:8000"   # target frontend service
  trafficSplitPercent: 25                                             # 0-100, share of requests that goes to new
  newDynamoNamespace: "dynamo-v2"
  sourceDeployment: "dgd-old"
  targetDeployment: "dgd-new"
"#;

#[test]
fn the_manifest_works_as_it_stands() {
    let server = server();
    server.good(&["apply", "-f", "-"], MANIFEST);
    server.good(
        &[
            "wait",
            "--for=jsonpath={.spec.failover.holdSeconds}=5",
            "duc/my-dgd-update",
        ],
        "",
    );
    let shown = server.good(&["get", "duc", "my-dgd-update"], "");
    let (head, row) = shown.split_once('\n').unwrap();
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        words(head),
        "NAME SPLIT OBSERVED PHASE OLD READY NEW READY AGE"
    );
    assert!(words(row).starts_with("my-dgd-update 25 "), "{shown}");
    server.good(&["delete", "duc", "my-dgd-update"], "");
}

/// The paths of the leaf fields in `value`.
fn leaves(value: &Value, schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let Some(fields) = schema["properties"].as_object() else {
        found.insert(path.to_owned());
        return;
    };
    for (name, field) in fields.iter().filter(|(name, _)| !value[*name].is_null()) {
        leaves(&value[name], field, &format!("{path}.{name}"), found);
    }
}

/// A value with every field in `schema`.
fn full(schema: &Value) -> Value {
    match schema["properties"].as_object() {
        Some(fields) => fields
            .iter()
            .map(|(name, field)| (name.clone(), full(field)))
            .collect(),
        None => json!(true),
    }
}

#[test]
fn every_field_has_an_invalid_case() {
    let schema = crossfade::resource::schema();
    let mut all = BTreeSet::new();
    leaves(&full(schema), schema, "spec", &mut all);
    assert!(all.len() > 40, "{all:?}");
    let mut tried = BTreeSet::new();
    for (change, _) in wrong() {
        leaves(&change, schema, "spec", &mut tried);
    }
    let left: Vec<_> = all.difference(&tried).collect();
    assert!(left.is_empty(), "no wrong case of {left:?}");
}

#[test]
fn invalid_updates_are_rejected_with_helpful_messages() {
    let server = server();
    for (change, expected) in wrong() {
        let (good, output) = server.tries(&update("wrong", spec_with(&change)));
        assert!(!good, "{change} was taken");
        assert!(output.contains(expected), "{change}: {output}");
    }
    // Rules that hold only in a cluster, and a rule about the name.
    let (good, output) = server.tries(&update(
        "wrong",
        spec_with(&json!({"sourceDeployment": null})),
    ));
    assert!(
        !good && output.contains("sourceDeployment is required"),
        "{output}"
    );
    let (good, output) = server.tries(&update("wrong", spec_with(&json!({"supersedes": "wrong"}))));
    assert!(
        !good && output.contains("an update cannot supersede itself"),
        "{output}"
    );
    // A missing field is named.
    let (good, output) = server.tries(&update(
        "wrong",
        spec_with(&json!({"trafficSplitPrecent": 1})),
    ));
    assert!(
        !good && output.contains("unknown field \"spec.trafficSplitPrecent\""),
        "{output}"
    );
}

#[test]
fn a_proxy_rejects_what_the_api_server_rejects() {
    let scope = TargetScope {
        namespace: "default".into(),
        domain: "cluster.local".into(),
        anywhere: false,
    };
    for (change, _) in wrong() {
        let update = Update {
            identity: Identity::default(),
            created: 0,
            spec: spec_with(&change),
            status: ReportedStatus::default(),
        };
        assert!(update.plan(&scope).is_err(), "{change}");
    }
}

#[test]
fn valid_updates_are_accepted() {
    let server = server();
    for change in [
        json!({}),
        json!({"trafficSplitPercent": null}),
        json!({"trafficSplitPercent": null, "weights": {"old": 2, "new": 1}}),
        json!({"trafficSplitPercent": 33, "weights": {"old": 2, "new": 1}}),
        json!({"trafficSplitPercent": 1, "weights": {"old": 999, "new": 1}}),
        json!({"trafficSplitPercent": 99, "weights": {"old": 1, "new": 999}}),
        json!({"trafficSplitPercent": 100, "weights": {"old": 0, "new": 7}}),
        json!({"trafficSplitPercent": 50, "weights": {"old": 1_000_000_000, "new": 1_000_000_000}}),
        json!({"newFrontendService": "a:1, b.default:2 ,http://c/,[::1]:80"}),
        json!({"newFrontendService": "a:65535,b:65529,c:65499,d:64999,e:59999,f:9999,g:010"}),
        json!({"newFrontendService": "HTTPS://new", "tls": {"clientCertFile": "c", "clientKeyFile": "k"}}),
        json!({"targetDeployment": "old-one", "workers": {"old": {"revision": "a"}, "new": {"revision": "b"}}}),
        json!({"targetDeployment": "old-one", "workers": {"old": {"kind": "Deployment"}, "new": {"kind": "StatefulSet"}}}),
        json!({"targetDeployment": "old-one", "workers": {
            "old": {"kind": "Pod", "selector": {"v": "1"}}, "new": {"selector": {"v": "2"}, "replicas": {"decode": 4}},
        }}),
        json!({"probe": {}}),
        json!({"probe": {"path": "/live?x=1"}}),
        json!({"affinity": {"headers": []}}),
        json!({"supersedes": "other"}),
    ] {
        let (good, output) = server.tries(&update("right", spec_with(&change)));
        assert!(good && !output.contains("Warning"), "{change}: {output}");
    }
}

#[test]
fn omitted_fields_get_the_documented_defaults() {
    let server = server();
    let given = update("defaults", spec_with(&json!({}))).to_string();
    let taken = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
    let taken: Value = serde_json::from_str(&server.good(&taken, &given)).unwrap();
    for (field, default) in [
        ("paused", json!(false)),
        ("strict", json!(false)),
        ("oldDraining", json!(false)),
        ("stableSeconds", json!(5)),
        ("ackTimeoutSeconds", json!(30)),
    ] {
        assert_eq!(taken["spec"][field], default, "{field}");
        let description = crossfade::resource::schema()["properties"][field]["description"].clone();
        assert!(
            description
                .as_str()
                .unwrap()
                .contains(&format!("Default {default}")),
            "{description}"
        );
    }
    // A client that applies only the split owns nothing else.
    let owned = taken["metadata"]["managedFields"].to_string();
    assert!(!owned.contains("f:paused"), "{owned}");
}

#[test]
fn explain_reads_well() {
    let server = server();
    // The server publishes its schema some time after it has accepted the definition.
    let deadline = Instant::now() + Duration::from_secs(30);
    let top = loop {
        let (good, output) = server.kubectl(&["explain", "dynamoupdateconfig"], "");
        if good {
            break output;
        }
        assert!(Instant::now() < deadline, "{output}");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(
        top.contains("An update that moves the traffic of an old generation of frontends"),
        "{top}"
    );
    let spec = server.good(&["explain", "dynamoupdateconfig.spec"], "");
    for expected in [
        "trafficSplitPercent\t<integer>",
        "The share of requests that goes to the new generation, in percent",
        "-required-",
    ] {
        assert!(spec.contains(expected), "{expected}: {spec}");
    }
    let hold = server.good(
        &["explain", "dynamoupdateconfig.spec.failover.holdSeconds"],
        "",
    );
    assert!(
        hold.contains("How long events without content are held back"),
        "{hold}"
    );
    let status = server.good(&["explain", "dynamoupdateconfig.status"], "");
    assert!(
        status.contains("safeToDeleteOld\t<boolean>") && status.contains("A message for users"),
        "{status}"
    );
}

#[test]
fn the_status_accepts_what_a_controller_writes_and_the_columns_show_it() {
    let server = server();
    server.good(
        &["apply", "-f", "-"],
        &update("shown", spec_with(&json!({}))).to_string(),
    );
    let generation = |ready, streams| GenerationStatus {
        workers: Some(format!("{ready}/4")),
        roles: [(
            "decode".to_owned(),
            RoleStatus {
                ready,
                desired: 4,
                full_size: Some(4),
            },
        )]
        .into(),
        capacity_percent: Some(25 * ready),
        ready_frontends: Some(2),
        open_streams: Some(streams),
        moving_streams: Some(streams),
    };
    let status = DynamoUpdateConfigStatus {
        observed_generation: Some(1),
        phase: Some(UpdatePhase::Progressing),
        message: Some("25% to new: 1 of 4 workers ready".into()),
        wanted: Some(SplitStatus { percent: 25, weights: Some(WeightsSpec { old: 3, new: 1 }) }),
        observed: Some(SplitStatus { percent: 24, weights: Some(WeightsSpec { old: 76, new: 24 }) }),
        old: Some(generation(3, 17)),
        new: Some(generation(1, 5)),
        safe_to_delete_old: Some(false),
        estimated_drain_seconds: Some(90),
        conditions: serde_json::from_value(json!([{
            "type": "Progressing", "status": "True", "reason": "WaitingForWorkers", "message": "1 of 4",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]))
        .unwrap(),
        ..DynamoUpdateConfigStatus::default()
    };
    let patch = json!({"status": status}).to_string();
    server.good(
        &[
            "patch",
            "duc",
            "shown",
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ],
        "",
    );
    // A split that is given as weights is shown as weights, because there is no percentage.
    let ratio = json!({"trafficSplitPercent": null, "weights": {"old": 2, "new": 1}});
    let ratio = update("ratio", spec_with(&ratio)).to_string();
    server.good(&["apply", "-f", "-"], &ratio);
    let wide = ["get", "duc", "ratio", "-o", "wide", "--no-headers"];
    let shown = server.good(&wide, "");
    assert!(shown.contains(r#"{"new":1,"old":2}"#), "{shown}");
    server.good(&["delete", "duc", "ratio"], "");
    let shown = server.good(&["get", "duc", "shown", "--no-headers"], "");
    let cells: Vec<_> = shown.split_whitespace().collect();
    assert_eq!(
        cells[..6],
        ["shown", "25", "24", "Progressing", "3/4", "1/4"]
    );
    let kept = server.good(&["get", "duc", "shown", "-o", "json"], "");
    let kept: Value = serde_json::from_str(&kept).unwrap();
    let kept: DynamoUpdateConfigStatus = serde_json::from_value(kept["status"].clone()).unwrap();
    assert_eq!(kept, status);
    server.good(&["delete", "duc", "shown"], "");
}
