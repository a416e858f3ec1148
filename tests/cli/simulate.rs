//! `crossfade simulate`: predicts a timeline from a rollout and the manifests of its workers, and explains errors in them.

use serde_json::Value;

use crate::program::run;

const ROLLOUT: &str = "\
apiVersion: nvidia.com/v1alpha1
kind: DynamoRollout
metadata: {name: chat}
spec:
  source: {kind: Deployment, name: chat-v1}
  target: {kind: Deployment, name: chat-v2}
  frontends: {source: chat-v1-frontend, target: chat-v2-frontend, service: chat-v2-frontend}
  clientService: chat
";

const WORKERS: &str = "\
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat-v1}
spec:
  replicas: 2
  template:
    spec:
      terminationGracePeriodSeconds: 1200
      containers:
      - name: main
        resources: {limits: {nvidia.com/gpu: 8}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat-v2}
spec:
  replicas: 0
  template:
    spec:
      terminationGracePeriodSeconds: 1200
      containers:
      - name: main
        resources: {limits: {nvidia.com/gpu: \"4\"}}
";

const LOAD: [&str; 6] = ["--startup", "4m", "--stream-p99", "9m", "--rate", "10"];

fn simulate(more: &[&str], text: &str) -> (Option<i32>, String, String) {
    run(
        &[&["simulate", "-f", "-"], &LOAD[..], more].concat(),
        text.as_bytes(),
    )
}

fn json(more: &[&str], text: &str) -> Value {
    let (_, out, err) = simulate(&[&["-o", "json"], more].concat(), text);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
}

#[test]
fn sizes_gpus_and_grace_periods_are_read_from_the_manifests() {
    let text = format!("{ROLLOUT}{WORKERS}");
    let (status, out, err) = simulate(&[], &text);
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    let first = out.lines().nth(1).unwrap();
    let words: Vec<_> = first.split_whitespace().collect();
    assert_eq!(
        words[..8],
        ["0:00", "grow", "new", "to", "1", "0/1", "2/2", "0%"]
    );
    for expected in [
        "new to be ready: 0 of 1 unit is ready",
        "streams on old to end:",
        "the owner routes clients to new's frontends",
        "earliest end  ",
        "peak GPUs     20 (before: 16)",
        " 0 moved, ",
        " 0 cut",
    ] {
        assert!(out.contains(expected), "{expected}\n{out}");
    }
    let json = json(&[], &text);
    assert_eq!(json["ends"], true);
    assert_eq!(json["progress"], "Complete");
    let (status, svg, _) = simulate(&["-o", "svg"], &text);
    assert_eq!(status, Some(0));
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
}

#[test]
fn overrides_change_time_and_cost() {
    let text = format!("{ROLLOUT}{WORKERS}");
    let (plain, all) = (json(&[], &text), json(&["--max-surge", "100%"], &text));
    let moved = json(&["--continuation", "on"], &text);
    let end = |json: &Value| json["earliestEndSeconds"].as_u64().unwrap();
    assert!(end(&all) < end(&plain), "{plain} {all}");
    assert_eq!(all["peakGpus"], 24);
    assert!(moved["streams"]["moved"].as_u64() > Some(0));
    assert_eq!(plain["streams"]["moved"], 0);
    let unavailable = json(&["--max-surge", "0", "--max-unavailable", "1"], &text);
    assert_eq!(unavailable["peakGpus"], 16);
}

#[test]
fn without_manifests_replicas_must_be_given_and_all_assumptions_are_printed() {
    let (status, out, err) = simulate(&[], ROLLOUT);
    assert_eq!((status, &*out), (Some(2), ""));
    assert!(
        err.contains("the size of source is unknown (role worker)"),
        "{err}"
    );
    assert!(err.contains("--replicas"), "{err}");
    let (status, out, err) = simulate(&["--replicas", "4"], ROLLOUT);
    assert_eq!(status, Some(0), "{err}");
    assert!(out.contains("peak GPUs     5 (before: 4)"), "{out}");
    assert!(
        err.contains("assumed: one GPU for each worker; set another number with --gpus"),
        "{err}"
    );
    assert!(
        err.contains("assumed: terminationGracePeriodSeconds 1080"),
        "{err}"
    );
    let (_, out, err) = simulate(
        &["--replicas", "4", "--gpus", "8", "--grace", "20m"],
        ROLLOUT,
    );
    assert!(out.contains("peak GPUs     40 (before: 32)"), "{out}");
    assert_eq!(err, "");
    let stated = ROLLOUT.replace("name: chat-v1}", "name: chat-v1, replicas: 3}");
    let (status, _, err) = simulate(&["--gpus", "1", "--grace", "20m"], &stated);
    assert_eq!((status, &*err), (Some(0), ""));
}

#[test]
fn roles_and_graphs_keep_their_proportion() {
    let roles = ROLLOUT
        .replace("{kind: Deployment, name: chat-v1}", "{roles: {prefill: {kind: Deployment, name: p1}, decode: {kind: Deployment, name: d1}}}")
        .replace("{kind: Deployment, name: chat-v2}", "{roles: {prefill: {kind: Deployment, name: p2}, decode: {kind: Deployment, name: d2}}}");
    let (status, out, err) = simulate(
        &[
            "--replicas",
            "prefill=4,decode=2",
            "--gpus",
            "prefill=1,decode=4",
            "--grace",
            "20m",
        ],
        &roles,
    );
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    assert!(out.contains("grow new to prefill 1, decode 1"), "{out}");
    assert!(out.contains("(before: 12)"), "{out}");
    let graph = |name: &str, replicas: u32| {
        format!(
            "---\napiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nmetadata: {{name: {name}}}\nspec:\n  services:\n    Frontend: \
             {{componentType: frontend, replicas: 1}}\n    Prefill: {{componentType: worker, subComponentType: prefill, replicas: {replicas}, \
             resources: {{limits: {{gpu: \"1\"}}}}}}\n    Decode: {{componentType: worker, subComponentType: decode, replicas: {replicas}, \
             multinode: {{nodeCount: 2}}, resources: {{limits: {{gpu: \"8\"}}}}}}\n"
        )
    };
    let graphs = ROLLOUT.replace(
        "kind: Deployment, name: chat",
        "kind: DynamoGraphDeployment, name: chat",
    );
    let text = format!("{graphs}{}{}", graph("chat-v1", 2), graph("chat-v2", 0));
    let (status, out, err) = simulate(&["--grace", "20m"], &text);
    assert_eq!((status, &*err), (Some(0), ""), "{out}");
    assert!(out.contains("(before: 34)"), "{out}");
    // Dynamo's operator sets a grace period of one minute.
    let (status, out, _) = simulate(&[], &text);
    assert_eq!(status, Some(1));
    assert!(
        out.contains("a longer terminationGracePeriodSeconds of old: it is 60 s"),
        "{out}"
    );
}

#[test]
fn a_rollout_that_never_completes_exits_with_status_1_and_the_reason() {
    let text = format!("{ROLLOUT}  strategy: {{gpuBudget: 18}}\n{WORKERS}");
    let (status, out, _) = simulate(&[], &text);
    assert_eq!(status, Some(1), "{out}");
    assert!(
        out.contains("never ends    rejected before the first write; waiting for:"),
        "{out}"
    );
    assert!(out.contains("gpuBudget 18"), "{out}");
    let json = json(&[], &text);
    assert_eq!(
        (&json["ends"], &json["earliestEndSeconds"]),
        (&Value::Bool(false), &Value::Null)
    );
}

#[test]
fn unsupported_rollouts_are_rejected_with_status_2() {
    let text = format!("{ROLLOUT}{WORKERS}");
    for (more, text, expected) in [
        (
            &["--max-surge", "0"][..],
            &*text,
            "maxSurge and maxUnavailable must not both be 0",
        ),
        (
            &["--replicas", "decode=2"],
            &*text,
            "--replicas: the rollout has no decode workers",
        ),
        (
            &["--gpus", "prefill=2"],
            &*text,
            "--gpus: the rollout has no prefill workers",
        ),
        (
            &[],
            &text.replace("gpu: 8", "gpu: 4294967295, amd.com/gpu: 4294967295"),
            "at most 100000 GPUs per worker can be simulated",
        ),
        (
            &[],
            &text.replace("replicas: 2", "replicas: 9999999999"),
            "at most 1000 replicas can be simulated",
        ),
        (
            &[],
            &format!("{ROLLOUT}  undoTo: 3\n{WORKERS}"),
            "spec.undoTo is set, but going back to a revision cannot be simulated",
        ),
        (&[], WORKERS, "exactly one DynamoRollout; they contain 0"),
        (&[], "a: [", "document 1, line 1"),
        (
            &[],
            "kind: DynamoRollout\n",
            "-: line 1: apiVersion: is required",
        ),
    ] {
        let (status, out, err) = simulate(more, text);
        assert_eq!((status, &*out), (Some(2), ""), "{expected}: {err}");
        assert!(err.contains(expected), "{expected}: {err}");
    }
    // Line numbers refer to the whole text.
    let late = format!(
        "{}\n---\n{}",
        WORKERS.trim_end(),
        ROLLOUT.replace("clientService", "clientServices")
    );
    let (_, _, err) = simulate(&[], &late);
    let line = 1 + late[..late.find("clientServices").unwrap()]
        .matches('\n')
        .count();
    assert!(
        err.contains(&format!(
            "-: line {line}: spec.clientServices: unknown field"
        )),
        "{err}"
    );
    let (status, _, err) = run(
        &[&["simulate", "-f", "/nowhere.yaml"], &LOAD[..]].concat(),
        b"",
    );
    assert_eq!(status, Some(2));
    assert!(err.contains("/nowhere.yaml: "), "{err}");
}

#[test]
fn invalid_flag_values_are_rejected() {
    for (flag, value, expected) in [
        ("--startup", "0", "must be more than 0"),
        ("--stream-p99", "soon", "is not a duration"),
        ("--rate", "0", "must be from 0.001 to 1000000"),
        ("--replicas", "0", "'0' is not a number from 1 to 1000"),
        ("--gpus", "decoder=1", "'decoder' is not a role"),
        ("--grace", "-1", "must be between 0"),
        ("--stable", "x", "is not a duration"),
        (
            "--max-surge",
            "101%",
            "must be a number, such as 1, or a percentage",
        ),
        (
            "--max-unavailable",
            "many",
            "must be a number, such as 1, or a percentage",
        ),
        ("--continuation", "maybe", "invalid value 'maybe'"),
        ("--output", "yaml", "invalid value 'yaml'"),
    ] {
        let (status, _, err) = run(&["simulate", "-f", "-", &format!("{flag}={value}")], b"");
        assert_eq!(status, Some(2));
        assert!(err.contains(expected), "{flag}: {err}");
    }
    let (_, _, err) = run(&["simulate"], b"");
    for flag in ["--file", "--startup", "--stream-p99", "--rate"] {
        assert!(err.contains(flag), "{flag}: {err}");
    }
}

/// A rollout within one StatefulSet, which has the workers of both generations.
const IN_PLACE: &str = "\
apiVersion: nvidia.com/v1alpha1
kind: DynamoRollout
metadata: {name: chat}
spec:
  source: {kind: StatefulSet, name: chat}
  target: {kind: StatefulSet, name: chat}
  frontends: {source: chat-v1-frontend, target: chat-v2-frontend, service: chat-v2-frontend}
  clientService: chat
  strategy: {maxSurge: 0, maxUnavailable: 1}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: chat}
spec:
  replicas: 4
  template:
    spec:
      terminationGracePeriodSeconds: 1200
      containers:
      - name: main
        resources: {limits: {nvidia.com/gpu: 8}}
";

#[test]
fn within_one_object_each_worker_replaces_another_one() {
    let report = json(&[], IN_PLACE);
    assert_eq!(report["progress"], "Complete", "{report:#}");
    assert_eq!(report["peakGpus"], 32);
    let rows = report["timeline"].as_array().unwrap();
    for row in rows {
        let sum = |what: &str| {
            let generation = |generation: &str| row[what][generation].as_u64().unwrap();
            generation("old") + generation("new")
        };
        assert_eq!(sum("asked"), 4, "{row}");
        assert!((3..=4).contains(&sum("ready")), "{row}");
    }
    let (code, _, err) = simulate(&["--max-surge", "1"], IN_PLACE);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("maxSurge must be 0"), "{err}");
    let half = IN_PLACE.replace("maxUnavailable: 1", "maxUnavailable: 1, partition: 2");
    assert_eq!(json(&[], &half)["progress"], "Partition");
}
