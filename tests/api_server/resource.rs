//! The resource as a real API server takes it, and a proxy that follows it there.

mod rollouts;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::rig::*;
use crossfade::resource::status::{GenerationStatus, Phase, RoleStatus, SplitStatus};
use crossfade::resource::{
    DynamoUpdateConfigStatus, Identity, ReportedStatus, TargetScope, Update, WeightsSpec,
};
use serde_json::{Value, json};

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

/// A real API server, for as long as the test process lives: it ends when its standard input does.
struct Server {
    _child: Child,
    /// What a command needs to reach it.
    environment: Vec<(String, String)>,
}

/// What `kubectl` said: whether it went well, and its output with its errors.
type Said = (bool, String);

impl Server {
    fn start() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/cluster.sh");
        let mut child = Command::new(script)
            .args(["api", "sh", "-c", "env; echo ready; cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("tests/kubernetes/cluster.sh runs");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut environment = Vec::new();
        loop {
            let line = lines.next();
            let line = line.expect("no API server: what is missing is said above");
            match line.unwrap() {
                line if line == "ready" => break,
                line => environment.extend(
                    line.split_once('=')
                        .map(|(name, value)| (name.to_owned(), value.to_owned())),
                ),
            }
        }
        let server = Self {
            environment,
            _child: child,
        };
        let (good, said) = server.kubectl(
            &[
                "apply",
                "-f",
                concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crd/crd.yaml"),
            ],
            "",
        );
        assert!(good && !said.contains("Warning"), "{said}");
        let established = [
            "wait",
            "--for=condition=Established",
            "crd/dynamoupdateconfigs.nvidia.com",
            "crd/dynamorollouts.nvidia.com",
            "--timeout=30s",
        ];
        server.good(&established, "");
        server
    }

    fn kubectl(&self, args: &[&str], input: &str) -> Said {
        let mut child = self
            .command("kubectl")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn good(&self, args: &[&str], input: &str) -> String {
        let (good, said) = self.kubectl(args, input);
        assert!(good, "{args:?}: {said}");
        said
    }

    fn apply(&self, manifest: &Value) -> Said {
        self.kubectl(&["apply", "-f", "-"], &manifest.to_string())
    }

    /// Only asks whether it would be taken.
    fn tries(&self, manifest: &Value) -> Said {
        self.kubectl(
            &["apply", "--dry-run=server", "-f", "-"],
            &manifest.to_string(),
        )
    }

    /// `pause` and `resume`, `stop` and `start`.
    fn hurt(&self, how: &str) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/cluster.sh");
        let status = self
            .command(script)
            .args(["apiserver", how])
            .status()
            .unwrap();
        assert!(status.success(), "{how}");
    }
}

/// One server for all tests of this file, one test at a time.
fn server() -> MutexGuard<'static, Server> {
    static SERVER: Mutex<Option<&'static Mutex<Server>>> = Mutex::new(None);
    let mut known = SERVER
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let server = *known.get_or_insert_with(|| Box::leak(Box::new(Mutex::new(Server::start()))));
    drop(known);
    server
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn update(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoUpdateConfig",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

/// A good spec with `change` merged into it; null takes a field away.
fn spec_with(change: &Value) -> Value {
    let mut spec = json!({
        "newFrontendService": "new:8000", "trafficSplitPercent": 25, "sourceDeployment": "old-one",
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

/// What is wrong, and what a person is told of it.
fn wrong() -> Vec<(Value, &'static str)> {
    [wrong_of_requests(), wrong_of_workers()].concat()
}

/// Where workers are, the same for both sides.
fn wrong_of_workers() -> Vec<(Value, &'static str)> {
    let cases = [
        (
            json!({"kind": "Deploymnt"}),
            "Unsupported value: \"Deploymnt\"",
        ),
        (json!({"name": ""}), "should be at least 1 chars long"),
        (json!({"revision": ""}), "should be at least 1 chars long"),
        (json!({"selector": {"app": 1}}), "must be of type string"),
        (
            json!({"replicas": {"decode": -1}}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"replicas": {"decode": 5_000_000_000_u64}}),
            "should be less than or equal to 1000000",
        ),
    ];
    let sides = ["old", "new"].into_iter();
    let all = sides.flat_map(|side| {
        let cases = cases.iter();
        cases.map(move |(wrong, told)| (json!({"workers": {side: wrong}}), *told))
    });
    let same = [
        json!({"old": {}, "new": {}}),
        json!({"old": {}, "new": {"revision": "b"}}),
        json!({"old": {"revision": "a"}, "new": {"revision": "a"}}),
        json!({"old": {"replicas": {"decode": 1}}, "new": {"replicas": {"decode": 2}}}),
    ];
    let same = same.into_iter().map(|workers| {
        let change = json!({"targetDeployment": "old-one", "workers": workers});
        (change, "name the same object: say by workers.old and")
    });
    all.chain(same).collect()
}

fn wrong_of_requests() -> Vec<(Value, &'static str)> {
    vec![
        (
            json!({"newDynamoNamespace": ""}),
            "should be at least 1 chars long",
        ),
        (json!({"strict": "yes"}), "must be of type boolean"),
        (json!({"oldDraining": 1}), "must be of type boolean"),
        (json!({"drainOld": 1}), "must be of type boolean"),
        (
            json!({"newFrontendService": "https://new", "tls": {"caFile": ""}}),
            "should be at least 1 chars long",
        ),
        (
            json!({"newFrontendService": "https://new", "tls": {"serverName": ""}}),
            "should be at least 1 chars long",
        ),
        (
            json!({"newFrontendService": "https://new", "tls": {"clientKeyFile": "k"}}),
            "clientCertFile and clientKeyFile belong together",
        ),
        (
            json!({"failover": {"gapTimeoutSeconds": 0}}),
            "must be more than 0",
        ),
        (
            json!({"failover": {"maxReplayBytes": -1}}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"failover": {"enabled": "no"}}),
            "must be of type boolean",
        ),
        (
            json!({"failover": {"retryOverloaded": 1}}),
            "must be of type boolean",
        ),
        (
            json!({"failover": {"retryOldServerErrors": 1}}),
            "must be of type boolean",
        ),
        (
            json!({"failover": {"continuation": {"mode": "Always"}}}),
            "supported values: \"Off\", \"SameGeneration\", \"AnyGeneration\"",
        ),
        (
            json!({"failover": {"continuation": {"maxTextBytes": 1023}}}),
            "should be greater than or equal to 1024",
        ),
        (
            json!({"failover": {"continuation": {"maxPerStream": 101}}}),
            "should be less than or equal to 100",
        ),
        (
            json!({"failover": {"continuation": {"comment": "no"}}}),
            "must be of type boolean",
        ),
        (
            json!({"drain": {"moveAfterSeconds": -1}, "failover": {"continuation": {"mode": "AnyGeneration"}}}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"drain": {"moveAfterSeconds": 0}}),
            "drain.moveAfterSeconds moves streams to the other generation",
        ),
        (
            json!({"drain": {"moveAfterSeconds": 0}, "failover": {"continuation": {"mode": "SameGeneration"}}}),
            "needs failover.continuation.mode: AnyGeneration",
        ),
        (
            json!({"drain": {"moveRate": 0}}),
            "should be greater than or equal to 1",
        ),
        (
            json!({"analysis": {"warmupSeconds": -1}}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"analysis": {"windowSeconds": 5}}),
            "should be greater than or equal to 10",
        ),
        (
            json!({"analysis": {"minSamples": 0}}),
            "should be greater than or equal to 1",
        ),
        (
            json!({"analysis": {"maxFailureRateIncreasePercent": 100.5}}),
            "should be less than or equal to 100",
        ),
        (
            json!({"analysis": {"ttftP95Ratio": 0.9}}),
            "should be greater than or equal to 1",
        ),
        (
            json!({"analysis": {"gapP99Ratio": 101}}),
            "should be less than or equal to 100",
        ),
        (
            json!({"analysis": {"confidence": 1}}),
            "must be at least 0.5 and less than 1",
        ),
        (
            json!({"analysis": {"onFailure": "Panic"}}),
            "supported values: \"Hold\", \"RollBack\"",
        ),
        (
            json!({"steps": [{"percent": 0}]}),
            "should be greater than or equal to 1",
        ),
        (
            json!({"steps": [{"percent": 101}]}),
            "should be less than or equal to 100",
        ),
        (json!({"steps": [{"holdSeconds": 1}]}), "Required value"),
        (
            json!({"steps": [{"percent": 5, "holdSeconds": -1}]}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"steps": [{"percent": 5, "holdSeconds": 604_801}]}),
            "should be less than or equal to 604800",
        ),
        (
            json!({"steps": [{"percent": 25}, {"percent": 5}]}),
            "each step must have a higher percent than the one before it",
        ),
        (
            json!({"steps": [{"percent": 5}, {"percent": 5}]}),
            "each step must have a higher percent than the one before it",
        ),
        (
            json!({"steps": (1..18).map(|percent| json!({"percent": percent})).collect::<Vec<_>>()}),
            "must have at most 16 items",
        ),
        (
            json!({"probe": {"model": ""}}),
            "should be at least 1 chars long",
        ),
        (
            json!({"trafficSplitPercent": 101}),
            "should be less than or equal to 100",
        ),
        (
            json!({"trafficSplitPercent": -1}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"trafficSplitPercent": "25"}),
            "must be of type integer",
        ),
        (
            json!({"weights": {"old": 3, "new": 2}}),
            "trafficSplitPercent and weights contradict each other",
        ),
        (
            json!({"weights": {"old": 999, "new": 1}, "trafficSplitPercent": 0}),
            "contradict each other",
        ),
        (
            json!({"weights": {"old": 1, "new": 999}, "trafficSplitPercent": 100}),
            "contradict each other",
        ),
        (
            json!({"weights": {"old": 2, "new": 1}, "trafficSplitPercent": 34}),
            "contradict each other",
        ),
        (
            json!({"weights": {"old": 0, "new": 0}}),
            "at least one of old and new must be more than 0",
        ),
        (json!({"weights": {"old": 1}}), "Required value"),
        (json!({"newFrontendService": null}), "Required value"),
        (
            json!({"newFrontendService": "new"}),
            "must be host:port, http://host[:port] or https://host[:port]",
        ),
        (
            json!({"newFrontendService": "http://new/v1"}),
            "must be host:port",
        ),
        (
            json!({"newFrontendService": "http://me:secret@new"}),
            "must be host:port",
        ),
        (
            json!({"newFrontendService": "a:1,,b:2"}),
            "must be host:port",
        ),
        (
            json!({"newFrontendService": "ftp://new:21"}),
            "must be host:port",
        ),
        (
            json!({"newFrontendService": ""}),
            "should be at least 1 chars long",
        ),
        (
            json!({"sourceDeployment": "Old One"}),
            "must be the name of an object",
        ),
        (
            json!({"targetDeployment": "-x"}),
            "must be the name of an object",
        ),
        (
            json!({"clientService": "a_b"}),
            "must be the name of an object",
        ),
        (
            json!({"supersedes": "a/b"}),
            "must be the name of an object",
        ),
        (
            json!({"targetDeployment": "old-one"}),
            "name the same object: say by workers.old and workers.new",
        ),
        (
            json!({"probe": {"path": "/x", "model": "m"}}),
            "path cannot be given beside model",
        ),
        (
            json!({"probe": {"path": "health"}}),
            "path must start with '/'",
        ),
        (
            json!({"probe": {"intervalSeconds": 0}}),
            "must be more than 0",
        ),
        (
            json!({"tls": {}}),
            "tls is given, but newFrontendService is not https://",
        ),
        (
            json!({"newFrontendService": "https://new", "tls": {"clientCertFile": "c"}}),
            "clientCertFile and clientKeyFile belong together",
        ),
        (
            json!({"affinity": {"headers": ["a b"]}}),
            "each must be the name of a header",
        ),
        (
            json!({"affinity": {"headers": ["x-a", "X-A"]}}),
            "names a header twice",
        ),
        (
            json!({"affinity": {"bodyFields": ["user", "user"]}}),
            "names a field twice",
        ),
        (
            json!({"affinity": {"bodyFields": [""]}}),
            "should be at least 1 chars long",
        ),
        (
            json!({"affinity": {"headers": vec!["h"; 33]}}),
            "must have at most 32 items",
        ),
        (
            json!({"failover": {"firstEventTimeoutSeconds": 0}}),
            "must be more than 0",
        ),
        (
            json!({"probe": {"timeoutSeconds": 0.0001}}),
            "should be greater than or equal to 0.001",
        ),
        (
            json!({"failover": {"holdSeconds": -1}}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"failover": {"retryBudgetPercent": 101}}),
            "should be less than or equal to 100",
        ),
        (
            json!({"maxTrafficSplitPercent": 250}),
            "should be less than or equal to 100",
        ),
        (
            json!({"drainDeadlineSeconds": -5}),
            "should be greater than or equal to 0",
        ),
        (
            json!({"stableSeconds": 90000}),
            "should be less than or equal to 86400",
        ),
        (json!({"ackTimeoutSeconds": 1.5}), "must be of type integer"),
        (json!({"paused": "yes"}), "must be of type boolean"),
        (json!({"models": [""]}), "should be at least 1 chars long"),
    ]
}

/// The paths of the fields in `value` that hold no others by name.
fn leaves(value: &Value, schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let Some(fields) = schema["properties"].as_object() else {
        found.insert(path.to_owned());
        return;
    };
    for (name, field) in fields.iter().filter(|(name, _)| !value[*name].is_null()) {
        leaves(&value[name], field, &format!("{path}.{name}"), found);
    }
}

/// A value with every field that `schema` has.
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
fn every_field_has_a_wrong_case() {
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
fn whatever_is_wrong_is_refused_in_words_that_help() {
    let server = server();
    for (change, expected) in wrong() {
        let (good, said) = server.tries(&update("wrong", spec_with(&change)));
        assert!(!good, "{change} was taken");
        assert!(said.contains(expected), "{change}: {said}");
    }
    // What only a cluster needs, and what needs the name.
    let (good, said) = server.tries(&update(
        "wrong",
        spec_with(&json!({"sourceDeployment": null})),
    ));
    assert!(
        !good && said.contains("sourceDeployment is required"),
        "{said}"
    );
    let (good, said) = server.tries(&update("wrong", spec_with(&json!({"supersedes": "wrong"}))));
    assert!(
        !good && said.contains("an update cannot supersede itself"),
        "{said}"
    );
    // A field that is not there is told by name.
    let (good, said) = server.tries(&update(
        "wrong",
        spec_with(&json!({"trafficSplitPrecent": 1})),
    ));
    assert!(
        !good && said.contains("unknown field \"spec.trafficSplitPrecent\""),
        "{said}"
    );
}

#[test]
fn what_the_api_server_refuses_a_proxy_refuses_too() {
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
fn whatever_is_right_is_taken() {
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
        let (good, said) = server.tries(&update("right", spec_with(&change)));
        assert!(good && !said.contains("Warning"), "{change}: {said}");
    }
}

#[test]
fn what_is_not_given_has_the_defaults_that_the_words_promise() {
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
        let said = crossfade::resource::schema()["properties"][field]["description"].clone();
        assert!(
            said.as_str()
                .unwrap()
                .contains(&format!("Default {default}")),
            "{said}"
        );
    }
    // Who applies the split alone owns nothing else.
    let owned = taken["metadata"]["managedFields"].to_string();
    assert!(!owned.contains("f:paused"), "{owned}");
}

#[test]
fn explain_reads_well() {
    let server = server();
    // The server tells its schema some time after it has taken the definition.
    let deadline = Instant::now() + Duration::from_secs(30);
    let top = loop {
        let (good, said) = server.kubectl(&["explain", "dynamoupdateconfig"], "");
        if good {
            break said;
        }
        assert!(Instant::now() < deadline, "{said}");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(
        top.contains("An update that moves the traffic of an old generation of frontends"),
        "{top}"
    );
    let spec = server.good(&["explain", "dynamoupdateconfig.spec"], "");
    for told in [
        "trafficSplitPercent\t<integer>",
        "The share of requests that goes to the new generation, in percent",
        "-required-",
    ] {
        assert!(spec.contains(told), "{told}: {spec}");
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
fn the_status_takes_what_a_controller_writes_and_the_columns_show_it() {
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
        phase: Some(Phase::Progressing),
        message: Some("25 % to new: 1 of 4 workers ready".into()),
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
    // One that is stated as a ratio shows it: there is no percentage to show.
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

async fn plan(proxy: &Proxy) -> Value {
    proxy.admin("/plan").await.json()
}

/// A proxy in front of `old` that follows the updates of the deployment `old-one` by `kubeconfig`.
async fn follow(kubeconfig: &str, old: &Upstream) -> Proxy {
    let old = old.url();
    let args = [
        "--old",
        &old,
        "--kube",
        "--kube-deployment",
        "old-one",
        "--kube-namespace",
        "default",
        "--kube-allow-any-target",
    ];
    Proxy::start_with_env(&args, &[("KUBECONFIG", kubeconfig)]).await
}

async fn lost(proxy: &Proxy) -> f64 {
    proxy
        .metrics()
        .await
        .sum("crossfade_plan_source_lost_seconds", &[])
}

#[tokio::test]
#[expect(
    clippy::await_holding_lock,
    reason = "each test has a runtime of its own, and the server for itself"
)]
async fn a_proxy_with_its_own_role_follows_a_real_api_server() {
    let server = server();
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let to_new = |percent: u8| {
        let change = json!({"newFrontendService": new.url(), "trafficSplitPercent": percent});
        update("followed", spec_with(&change))
    };
    let kubeconfig = with_own_role(&server);
    let kubeconfig = kubeconfig.path().to_str().unwrap();
    assert!(server.apply(&to_new(0)).0);
    let proxy = follow(kubeconfig, &old).await;
    assert_eq!(proxy.chat().await.generation(), "old");
    assert!(server.apply(&to_new(100)).0);
    proxy.serves("new").await;
    // Not in the cluster's words but in the proxy's: the API server takes it, the proxy does not.
    let mut bad = to_new(0);
    bad["spec"]["newFrontendService"] = json!("http://a:1,https://b:1");
    assert!(server.apply(&bad).0);
    proxy
        .counts("crossfade_plans_rejected_total", &[], 1.0)
        .await;
    assert_eq!(proxy.chat().await.generation(), "new");
    let events = until("an Event", async || {
        let said = server.good(&["events", "--for", "dynamoupdateconfig/followed"], "");
        said.contains("Invalid").then_some(said)
    })
    .await;
    assert!(events.contains("mixes http and https"), "{events}");
    // It does not answer, and then it is not there at all.
    assert!(server.apply(&to_new(100)).0);
    eventually("it is mended", async || {
        plan(&proxy).await["lastRejection"].is_null()
    })
    .await;
    // It stands still with its connections open: no error tells of it.
    server.hurt("pause");
    let begin = Instant::now();
    while lost(&proxy).await == 0.0 {
        assert!(begin.elapsed() < Duration::from_secs(150), "never noticed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!(
        "an API server that stands still was noticed after {:?}",
        begin.elapsed()
    );
    assert_eq!(proxy.chat().await.generation(), "new");
    server.hurt("resume");
    eventually("it is found again", async || lost(&proxy).await == 0.0).await;
    server.hurt("stop");
    eventually("the loss is noticed", async || lost(&proxy).await > 0.0).await;
    assert_eq!(proxy.chat().await.generation(), "new");
    server.hurt("start");
    assert!(server.apply(&to_new(0)).0);
    proxy.serves("old").await;
    assert_eq!(lost(&proxy).await, 0.0);
    assert!(server.apply(&to_new(100)).0);
    proxy.serves("new").await;
    server.good(&["delete", "duc", "followed"], "");
    proxy.serves("old").await;
    let events = until("the last Event", async || {
        let said = server.good(&["get", "events.events.k8s.io", "-o", "json"], "");
        said.contains("DeletedAllToOld").then_some(said)
    })
    .await;
    assert!(
        events.contains("\"reportingController\": \"nvidia.com/crossfade\""),
        "{events}"
    );
    for (verb, what, allowed) in [
        ("list", "dynamoupdateconfigs.nvidia.com", "yes"),
        ("watch", "dynamoupdateconfigs.nvidia.com", "yes"),
        ("create", "events.events.k8s.io", "yes"),
        ("update", "dynamoupdateconfigs.nvidia.com", "no"),
        ("patch", "dynamoupdateconfigs.nvidia.com/status", "no"),
        ("list", "pods", "no"),
        ("get", "secrets", "no"),
    ] {
        let (_, said) = server.kubectl(
            &["--kubeconfig", kubeconfig, "auth", "can-i", verb, what],
            "",
        );
        assert!(said.contains(allowed), "{verb} {what}: {said}");
    }
}

#[tokio::test]
#[expect(
    clippy::await_holding_lock,
    reason = "each test has a runtime of its own, and the server for itself"
)]
async fn a_proxy_has_its_updates_selected_and_hears_of_all_where_the_definition_is_older() {
    let server = server();
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let to_new = |percent: u8| {
        let change = json!({"newFrontendService": new.url(), "trafficSplitPercent": percent});
        update("selected", spec_with(&change))
    };
    let kubeconfig = with_own_role(&server);
    let kubeconfig = kubeconfig.path().to_str().unwrap();
    assert!(server.apply(&to_new(0)).0);
    let proxy = follow(kubeconfig, &old).await;
    assert!(server.apply(&to_new(100)).0);
    proxy.serves("new").await;
    let without = |proxy: &Proxy| {
        let lines = proxy.lines();
        let found = lines
            .iter()
            .filter(|line| line.contains("cannot select updates"));
        found.count()
    };
    assert_eq!(without(&proxy), 0);
    // Edited to be another deployment's it is gone for this one, and back when it is edited back.
    let mut away = to_new(100);
    away["spec"]["sourceDeployment"] = json!("another");
    assert!(server.apply(&away).0);
    proxy.serves("old").await;
    assert!(server.apply(&to_new(100)).0);
    proxy.serves("new").await;
    // A definition of before, and of an API server that does not know the field.
    let path = "/spec/versions/0/selectableFields";
    let patch = json!([{"op": "remove", "path": path}]).to_string();
    let crd = "crd/dynamoupdateconfigs.nvidia.com";
    server.good(&["patch", crd, "--type=json", "-p", &patch], "");
    eventually("it does without", async || without(&proxy) == 1).await;
    assert!(server.apply(&to_new(0)).0);
    proxy.serves("old").await;
    let late = follow(kubeconfig, &old).await;
    assert!(server.apply(&to_new(100)).0);
    late.serves("new").await;
    assert_eq!((without(&late), lost(&late).await), (1, 0.0));
    let definition = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/crd/crd.yaml");
    server.good(&["apply", "-f", definition], "");
    server.good(&["delete", "duc", "selected"], "");
}

/// A kubeconfig of a service account that has the role of a proxy, and no other.
fn with_own_role(server: &Server) -> tempfile::NamedTempFile {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base/rbac.yaml");
    server.good(&["apply", "-f", rules], "");
    let token = server.good(&["create", "token", "crossfade-sidecar"], "");
    let whole = server.good(&["config", "view", "--raw", "-o", "json"], "");
    let mut config: Value = serde_json::from_str(&whole).unwrap();
    config["users"] =
        json!([{"name": config["users"][0]["name"], "user": {"token": token.trim()}}]);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, "{config}").unwrap();
    file
}
