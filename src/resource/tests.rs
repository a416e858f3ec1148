//! The room through its door: texts in, plans or problems out.

use std::{fs, path::Path, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::split::Weights;

const HEAD: &str = "apiVersion: nvidia.com/v1alpha1\nkind: DynamoUpdateConfig\nspec:\n";

/// The problems of a manifest whose `spec` starts on line 4 with a good target and split.
fn problems_of(fields: &str) -> Vec<String> {
    let good = "  newFrontendService: new:8000\n  trafficSplitPercent: 25\n";
    problems(&format!("{HEAD}{good}{fields}"))
}

fn problems(text: &str) -> Vec<String> {
    match load(text) {
        Ok(loaded) => panic!("loaded: {loaded:?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn plan(fields: &str) -> Plan {
    match load(&format!("{HEAD}  newFrontendService: new:8000\n{fields}")) {
        Ok((_, plan)) => plan,
        Err(problems) => panic!("{fields}:\n{problems}"),
    }
}

/// The files of the corpus: (name, text).
fn corpus(kind: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus/plan")
        .join(kind);
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|file| {
            let path = file.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            (path.display().to_string(), text)
        })
        .collect();
    assert!(files.len() > 3);
    files.sort_unstable();
    files
}

#[test]
fn every_good_file_of_the_corpus_loads() {
    for (name, text) in corpus("good") {
        if let Err(problems) = load(&text) {
            panic!("{name}:\n{problems}");
        }
    }
}

/// A bad file names in comments what must be said of it: `# expect: …`, all and in order.
#[test]
fn every_bad_file_of_the_corpus_has_exactly_the_problems_it_names() {
    for (name, text) in corpus("bad") {
        let expected: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# expect: "))
            .collect();
        let found = problems(&text);
        assert_eq!(found.len(), expected.len(), "{name}: {found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{name}: {found}");
        }
    }
}

#[test]
fn a_field_that_is_wrong_is_named_with_its_line() {
    for (fields, expected) in [
        // Types.
        (
            "  paused: yes",
            "line 6: spec.paused: must be true or false, is the text \"yes\"",
        ),
        (
            "  paused: \"true\"",
            "line 6: spec.paused: must be true or false, is the text \"true\"; write it without quotes",
        ),
        (
            "  maxTrafficSplitPercent: \"25\"",
            "line 6: spec.maxTrafficSplitPercent: must be a whole number, is the text \"25\"; write it without quotes and leading zeros",
        ),
        (
            "  maxTrafficSplitPercent: 010",
            "line 6: spec.maxTrafficSplitPercent: must be a whole number, is the text \"010\"; write it without quotes and leading zeros",
        ),
        (
            "  maxTrafficSplitPercent: 2.5",
            "line 6: spec.maxTrafficSplitPercent: must be a whole number, is 2.5",
        ),
        (
            "  clientService: 7",
            "line 6: spec.clientService: must be text, is 7; put it in quotes",
        ),
        (
            "  clientService: ''",
            "line 6: spec.clientService: must not be empty",
        ),
        (
            "  models: gpt",
            "line 6: spec.models: must be a list, is the text \"gpt\"",
        ),
        (
            "  models:\n  - a\n  - true",
            "line 8: spec.models[1]: must be text, is true; put it in quotes",
        ),
        (
            "  affinity: [x]",
            "line 6: spec.affinity: must be an object, is a list",
        ),
        (
            "  affinity: {headers: [null]}",
            "line 6: spec.affinity.headers[0]: must be text, is null",
        ),
        (
            "  weights:\n    old: 3",
            "line 6: spec.weights.new: is required",
        ),
        (
            "  weights:\n    old: 3\n    new: null",
            "line 6: spec.weights.new: is required",
        ),
        (
            "  workers: {new: {selector: {app: 1}}}",
            "line 6: spec.workers.new.selector.app: must be text, is 1; put it in quotes",
        ),
        (
            "  workers: {old: {kind: Deploymnt}}",
            "line 6: spec.workers.old.kind: must be one of Pod, Deployment, StatefulSet, LeaderWorkerSet, PodClique, \
             PodCliqueScalingGroup, ModelServing, DynamoGraphDeployment, DynamoWorkerMetadata, is 'Deploymnt'; did you \
             mean 'Deployment'?",
        ),
        (
            "  workers: {new: {replicas: {decode: -1}}}",
            "line 6: spec.workers.new.replicas.decode: must be 0..=1000000, is -1",
        ),
        (
            "  workers: {new: {replicas: {decode: 5000000000}}}",
            "line 6: spec.workers.new.replicas.decode: must be 0..=1000000, is 5000000000",
        ),
        // Unknown fields.
        (
            "  trafficSplitPrecent: 3",
            "line 6: spec.trafficSplitPrecent: unknown field; did you mean 'trafficSplitPercent'?",
        ),
        ("  replicas: 3", "line 6: spec.replicas: unknown field"),
        (
            "  failover:\n    holdSecs: 1",
            "line 7: spec.failover.holdSecs: unknown field; did you mean 'holdSeconds'?",
        ),
        ("  <<: {}", "line 6: spec.<<: unknown field"),
        // Bounds.
        (
            "  maxTrafficSplitPercent: 101",
            "line 6: spec.maxTrafficSplitPercent: must be 0..=100, is 101",
        ),
        (
            "  weights: {old: -1, new: 1}",
            "line 6: spec.weights.old: must be 0..=1000000000, is -1",
        ),
        (
            "  failover: {retryBudgetPercent: 101}",
            "line 6: spec.failover.retryBudgetPercent: must be 0..=100, is 101",
        ),
        (
            "  failover: {maxReplayBytes: 1073741825}",
            "line 6: spec.failover.maxReplayBytes: must be 0..=1073741824, is 1073741825",
        ),
        (
            "  failover: {holdSeconds: -1}",
            "line 6: spec.failover.holdSeconds: must be 0..=86400, is -1",
        ),
        (
            "  failover: {holdSeconds: .nan}",
            "line 6: spec.failover.holdSeconds: must be a finite number, is NaN",
        ),
        (
            "  failover: {holdSeconds: .inf}",
            "line 6: spec.failover.holdSeconds: must be a finite number, is inf",
        ),
        (
            "  failover: {firstEventTimeoutSeconds: 0}",
            "line 6: spec.failover.firstEventTimeoutSeconds: must be 0.001..=86400, is 0",
        ),
        (
            "  failover: {firstEventTimeoutSeconds: 30s}",
            "line 6: spec.failover.firstEventTimeoutSeconds: must be a number, is the text \"30s\"",
        ),
        (
            "  failover: {gapTimeoutSeconds: 86400.5}",
            "line 6: spec.failover.gapTimeoutSeconds: must be 0.001..=86400, is 86400.5",
        ),
        (
            "  probe: {intervalSeconds: 0}",
            "line 6: spec.probe.intervalSeconds: must be 0.1..=86400, is 0",
        ),
        // Meaning.
        (
            "  weights: {old: 0, new: 0}",
            "line 6: spec.weights: at least one of old and new must be more than 0",
        ),
        (
            "  weights: {old: 3, new: 2}",
            "line 5: spec.trafficSplitPercent: is 25, but weights 3:2 are 40 %",
        ),
        (
            "  affinity:\n    headers: [a, 'b c']",
            "line 7: spec.affinity.headers[1]: 'b c' is no name of a header",
        ),
        (
            "  affinity:\n    headers:\n    - a\n    - A",
            "line 9: spec.affinity.headers[1]: names 'a' twice",
        ),
        (
            "  affinity: {bodyFields: [user, user]}",
            "line 6: spec.affinity.bodyFields[1]: names 'user' twice",
        ),
        (
            "  affinity: {bodyFields: ['']}",
            "line 6: spec.affinity.bodyFields[0]: must not be empty",
        ),
        (
            "  probe: {path: health}",
            "line 6: spec.probe.path: must start with '/', is 'health'",
        ),
        (
            "  probe: {path: \"/a b\"}",
            "line 6: spec.probe.path: '/a b' is no path",
        ),
        (
            "  probe: {path: /x, model: m}",
            "line 6: spec.probe.path: cannot be given beside 'model'",
        ),
        (
            "  tls: {caFile: ca.pem}",
            "line 6: spec.tls: is given, but newFrontendService is not https://",
        ),
    ] {
        let found = problems_of(fields);
        assert_eq!(found.len(), 1, "{fields}: {found:#?}");
        assert!(found[0].starts_with(expected), "{fields}: {}", found[0]);
    }
}

#[test]
fn a_wrong_target_is_named_with_its_reason() {
    for (service, expected) in [
        ("''", "must not be empty"),
        ("new", "'new' has no port; write host:port"),
        ("'a:1,b'", "'b' has no port"),
        ("'a:1,a:1'", "names http://a:1 twice"),
        ("'a:1,https://a'", "mixes http and https"),
        ("http://a/v1", "'http://a/v1' has a path"),
        ("8000", "must be text, is 8000; put it in quotes"),
        ("", "is required"),
    ] {
        let found = problems(&format!(
            "{HEAD}  trafficSplitPercent: 1\n  newFrontendService: {service}\n"
        ));
        let line = if service.is_empty() { 3 } else { 5 };
        let expected = format!("line {line}: spec.newFrontendService: {expected}");
        assert_eq!(found.len(), 1, "{service}: {found:#?}");
        assert!(found[0].starts_with(&expected), "{service}: {}", found[0]);
    }
}

#[test]
fn tls_needs_a_certificate_with_its_key_and_a_name_that_is_one() {
    let found = problems(&format!(
        "{HEAD}  newFrontendService: https://new\n  trafficSplitPercent: 1\n  tls:\n    \
         serverName: a b\n    clientCertFile: c.pem\n"
    ));
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with("line 6: spec.tls: clientCertFile needs clientKeyFile"));
    assert!(found[1].starts_with("line 7: spec.tls.serverName: 'a b' has the host"));
}

#[test]
fn what_follows_from_another_problem_is_not_said() {
    for fields in [
        "  trafficSplitPercent: 250",
        "  weights: {old: 1}",
        "  weights: 3",
        "  weights: {old: 1, new: x}",
        "  trafficSplitPercent: 25\n  tls: {clientKeyFile: 3, clientCertFile: a}\n",
    ] {
        let found = problems(&format!(
            "{HEAD}  newFrontendService: https://new\n{fields}"
        ));
        assert_eq!(found.len(), 1, "{fields}: {found:#?}");
    }
    let found = problems(&format!("{HEAD}  trafficSplitPercent: 1\n  tls: {{}}\n"));
    assert_eq!(found, ["line 3: spec.newFrontendService: is required"]);
}

#[test]
fn without_any_split_a_manifest_is_refused() {
    for split in ["", "  weights: null\n", "  unknown: 1\n"] {
        let found = problems(&format!("{HEAD}  newFrontendService: new:1\n{split}"));
        let expected = "line 3: spec.trafficSplitPercent: is required, unless weights is given";
        assert!(found.iter().any(|found| found == expected), "{found:#?}");
    }
}

#[test]
fn the_envelope_must_be_that_of_the_resource() {
    let spec = "spec: {newFrontendService: new:1, trafficSplitPercent: 1}\n";
    for (text, expected) in [
        (
            format!("kind: DynamoUpdateConfig\n{spec}"),
            "line 1: apiVersion: is required, and must be nvidia.com/v1alpha1",
        ),
        (
            format!("apiVersion: nvidia.com/v1\nkind: DynamoUpdateConfig\n{spec}"),
            "line 1: apiVersion: must be nvidia.com/v1alpha1, is the text \"nvidia.com/v1\"",
        ),
        (
            format!("apiVersion: nvidia.com/v1alpha1\nkind: Pod\n{spec}"),
            "line 2: kind: must be DynamoUpdateConfig, is the text \"Pod\"",
        ),
        (HEAD.to_owned(), "line 3: spec: must be an object, is null"),
        (
            HEAD.replace("spec:", "specs:"),
            "line 3: specs: unknown field; did you mean 'spec'?",
        ),
        (
            format!("{}{spec}paused: true\n", HEAD.replace("spec:\n", "")),
            "line 4: paused: unknown field; it belongs under 'spec'",
        ),
        (
            format!("{}{spec}data: {{}}\n", HEAD.replace("spec:\n", "")),
            "line 4: data: unknown field",
        ),
        (
            format!("{}{spec}kind: Pod\n", HEAD.replace("spec:\n", "")),
            "line 4: kind: was already given on line 2",
        ),
        (
            "a list".into(),
            "line 1: the text must be a DynamoUpdateConfig, is the text \"a list\"",
        ),
        ("kind: List\n".into(), "line 1: items: must be a list"),
        (
            "kind: List\nitems: []\n".into(),
            "line 2: items: must hold exactly one DynamoUpdateConfig, holds 0",
        ),
        (
            "kind: List\nitems: [{}, {}]\n".into(),
            "line 2: items: must hold exactly one DynamoUpdateConfig, holds 2",
        ),
    ] {
        let found = problems(&text);
        assert!(
            found.iter().any(|found| found == expected),
            "{text}: {found:#?}"
        );
    }
}

#[test]
fn all_problems_come_at_once_in_the_order_of_lines() {
    let found = problems(
        "apiVersion: v1\nkind: DynamoUpdateConfig\nstatuss: {}\nspec:\n  weights: {old: 0, new: 0}\n  \
         newFrontendService: new\n  probe: {path: x}\n  models: [1]\n  color: red\n  color: blue\n  \
         failover: {holdSeconds: -1}\n",
    );
    let lines: Vec<_> = found
        .iter()
        .map(|found| found.split(':').next().unwrap())
        .collect();
    let expected: Vec<_> = [1, 3, 5, 6, 7, 8, 9, 10, 11]
        .map(|line| format!("line {line}"))
        .into();
    assert_eq!(lines, expected, "{found:#?}");
}

#[test]
fn a_minimal_manifest_has_good_defaults() {
    let plan = plan("  trafficSplitPercent: 25");
    assert_eq!(plan.weights, Weights::new(3, 1).unwrap());
    assert_eq!(plan.identity, Identity::default());
    assert_eq!(plan.affinity.headers, DEFAULT_AFFINITY_HEADERS);
    assert!(plan.affinity.body_fields.is_empty());
    assert_eq!(
        plan.failover,
        Failover {
            enabled: true,
            max_replay_bytes: 8_388_608,
            first_event_timeout: None,
            gap_timeout: None,
            retry_budget_percent: 20,
            hold: Duration::from_secs(5),
            retry_overloaded: false,
            retry_old_server_errors: false,
        }
    );
    assert!(!plan.old_drains && plan.probe.is_none() && plan.tls.is_none());
}

#[test]
fn null_is_as_if_not_given() {
    assert_eq!(
        plan("  trafficSplitPercent: 1\n  affinity:\n  failover: {holdSeconds: ~}\n  probe: null"),
        plan("  trafficSplitPercent: 1"),
    );
}

#[test]
fn a_list_given_replaces_the_default_list() {
    let plan =
        plan("  trafficSplitPercent: 1\n  affinity: {headers: [X-Mine], bodyFields: [user]}");
    assert_eq!(plan.affinity.headers, ["x-mine"]);
    assert_eq!(plan.affinity.body_fields, ["user"]);
}

#[test]
fn the_split_is_a_percentage_or_a_ratio_or_both_in_agreement() {
    for (percent, ratio, (old, new)) in [
        (Some(0), None, (1, 0)),
        (Some(100), None, (0, 1)),
        (None, Some((2, 1)), (2, 1)),
        (Some(33), Some((2, 1)), (2, 1)),
        (Some(1), Some((999, 1)), (999, 1)),
        (Some(99), Some((1, 999)), (1, 999)),
        (Some(100), Some((0, 7)), (0, 1)),
        (None, Some((1_000_000_000, 1)), (1_000_000_000, 1)),
    ] {
        let mut spec = DynamoUpdateConfigSpec::to("new:1");
        spec.traffic_split_percent = percent;
        spec.weights = ratio.map(|(old, new)| WeightsSpec { old, new });
        let plan = Plan::of(Identity::default(), &spec).unwrap();
        assert_eq!(plan.weights, Weights::new(old, new).unwrap(), "{ratio:?}");
    }
    for (ratio, percent) in [((999, 1), 0), ((1, 999), 100), ((2, 1), 34)] {
        let mut spec = DynamoUpdateConfigSpec::to("new:1");
        spec.weights = Some(WeightsSpec {
            old: ratio.0,
            new: ratio.1,
        });
        spec.traffic_split_percent = Some(percent);
        let problems = Plan::of(Identity::default(), &spec).unwrap_err();
        assert_eq!(problems.iter().count(), 1, "{problems}");
    }
}

#[test]
fn a_cap_lowers_the_split_and_never_raises_it() {
    for (wanted, cap, got) in [
        (25, 10, 10),
        (25, 25, 25),
        (25, 80, 25),
        (100, 0, 0),
        (0, 5, 0),
    ] {
        let plan = plan(&format!(
            "  trafficSplitPercent: {wanted}\n  maxTrafficSplitPercent: {cap}"
        ));
        assert_eq!(plan.weights, Weights::percent(got).unwrap());
        let lowered = (got < wanted).then(|| Weights::percent(wanted).unwrap());
        assert_eq!(plan.capped_from, lowered);
    }
    let plan = plan("  weights: {old: 89, new: 11}\n  maxTrafficSplitPercent: 10");
    assert_eq!(plan.weights, Weights::percent(10).unwrap());
}

#[test]
fn every_form_of_probe_and_tls_is_understood() {
    let plan_of = |fields: &str| {
        let text =
            format!("{HEAD}  newFrontendService: https://new\n  trafficSplitPercent: 1\n{fields}");
        load(&text).unwrap().1
    };
    for (probe, question) in [
        ("{}", Question::AnyModel),
        ("{model: a/b}", Question::Model("a/b".into())),
        (
            "{path: /live?x=1}",
            Question::Path("/live?x=1".parse().unwrap()),
        ),
    ] {
        let probe = plan_of(&format!("  probe: {probe}")).probe.unwrap();
        assert_eq!(probe.question, question);
        assert_eq!(probe.interval, Duration::from_secs(5));
        assert_eq!(probe.timeout, Duration::from_secs(2));
    }
    let tls = plan_of("  tls: {caFile: ca, serverName: A.b, clientCertFile: c, clientKeyFile: k}");
    assert_eq!(
        tls.tls,
        Some(Tls {
            ca_file: Some("ca".into()),
            server_name: Some(Host::Name("a.b".into())),
            client: Some(("c".into(), "k".into())),
        })
    );
}

#[test]
fn flags_and_file_give_the_same_plan_and_the_same_problems() {
    let mut spec = DynamoUpdateConfigSpec::to("new:8000");
    spec.traffic_split_percent = Some(25);
    let from_flags = Plan::of(Identity::default(), &spec).unwrap();
    assert_eq!(from_flags, plan("  trafficSplitPercent: 25"));

    spec.traffic_split_percent = Some(250);
    spec.new_frontend_service = "new".into();
    spec.failover.hold_seconds = f64::NAN;
    let problems = Plan::of(Identity::default(), &spec).unwrap_err();
    let paths: Vec<_> = problems.iter().map(|problem| &*problem.path).collect();
    assert_eq!(
        paths,
        [
            "spec.trafficSplitPercent",
            "spec.newFrontendService",
            "spec.failover.holdSeconds"
        ]
    );
}

#[test]
fn the_identity_of_an_update_is_taken_from_its_metadata() {
    let text = |metadata: &str| {
        format!(
            "{HEAD}  {{newFrontendService: 'new:1', trafficSplitPercent: 1}}\nmetadata: {metadata}\n"
        )
    };
    let (manifest, plan) = load(&text(
        "{name: n, namespace: ns, uid: u, generation: 7, labels: [1]}",
    ))
    .unwrap();
    assert_eq!(plan.identity, manifest.identity);
    assert_eq!(
        plan.identity,
        Identity {
            namespace: Some("ns".into()),
            name: Some("n".into()),
            uid: Some("u".into()),
            generation: Some(7),
        }
    );
    for odd in ["", "[1, 2]", "text", "{name: 1, uid: {}, generation: x}"] {
        assert_eq!(
            load(&text(odd)).unwrap().1.identity,
            Identity::default(),
            "{odd}"
        );
    }
}

#[test]
fn every_cluster_field_is_named_as_without_effect() {
    let properties = schema()["properties"].as_object().unwrap();
    let mut described: Vec<_> = properties
        .iter()
        .filter(|(_, field)| {
            field["description"]
                .as_str()
                .unwrap()
                .ends_with("Cluster only.")
        })
        .map(|(name, _)| name.as_str())
        .collect();
    let (_, text) = corpus("good")
        .into_iter()
        .find(|(name, _)| name.ends_with("every-field.yaml"))
        .unwrap();
    let (manifest, _) = load(&text).unwrap();
    let mut named = manifest.without_effect;
    named.sort_unstable();
    described.sort_unstable();
    assert_eq!(named, described);
    let json = serde_json::to_value(&manifest.spec).unwrap();
    for field in properties.keys() {
        let default = serde_json::to_value(DynamoUpdateConfigSpec::default()).unwrap();
        assert_ne!(
            json.get(field),
            default.get(field),
            "every-field.yaml lacks {field}"
        );
    }
}

#[test]
fn a_report_says_what_the_plan_does() {
    let report = |fields: &str| check(&format!("{HEAD}  newFrontendService: new:1\n{fields}"));
    for (fields, summary) in [
        (
            "  trafficSplitPercent: 25",
            "25 % to new at http://new:1, the rest to old",
        ),
        (
            "  weights: {old: 2, new: 1}",
            "1 of 3 requests (33 %) to new at http://new:1, the rest to old",
        ),
        (
            "  trafficSplitPercent: 25\n  maxTrafficSplitPercent: 10\n  oldDraining: true",
            "10 % to new at http://new:1, the rest to old; 25 % wanted, but capped; old drains",
        ),
    ] {
        let report = report(fields);
        assert_eq!(report.summary.as_deref(), Some(summary));
        assert!(report.notes.is_empty() && report.problems.is_empty());
    }
    assert_eq!(
        report("  trafficSplitPercent: 0\n  paused: true").notes,
        ["spec.paused: only means something in a cluster; without effect here"]
    );
    assert!(report("").summary.is_none());
    assert_eq!(report("").problems.len(), 1);
}

#[test]
fn a_spec_written_as_json_loads_as_the_same_spec() {
    for (name, text) in corpus("good") {
        let (manifest, plan) = load(&text).unwrap();
        let json = serde_json::json!({
            "apiVersion": API_VERSION, "kind": KIND, "spec": manifest.spec,
        });
        let again = load(&serde_json::to_string_pretty(&json).unwrap())
            .unwrap_or_else(|problems| panic!("{name}: {problems}"));
        assert_eq!(again.0.spec, manifest.spec, "{name}");
        assert_eq!(again.1.weights, plan.weights, "{name}");
    }
}

proptest! {
    #[test]
    fn any_text_loads_or_has_a_problem(text in "\\PC{0,80}") {
        if let Err(problems) = load(&text) {
            prop_assert!(!problems.is_empty());
        }
    }

    /// Good files with bytes cut out or put in: whatever comes of it, no panic and no empty error.
    #[test]
    fn a_damaged_file_loads_or_has_a_problem(
        file in 0usize..64, at in 0usize..4096, cut in 0usize..64, put in "[ -~\n]{0,12}",
    ) {
        let files = corpus("good");
        let mut text: Vec<char> = files[file % files.len()].1.chars().collect();
        let at = at % text.len();
        let end = (at + cut).min(text.len());
        text.splice(at..end, put.chars());
        let text: String = text.into_iter().collect();
        match load(&text) {
            Ok((manifest, plan)) => {
                prop_assert_eq!(Plan::of(manifest.identity, &manifest.spec), Ok(plan));
            }
            Err(problems) => {
                prop_assert!(!problems.is_empty());
                let lines = text.split(['\r', '\n']).count();
                for problem in &problems {
                    prop_assert!(problem.line.is_none_or(|line| line <= lines), "{problem}\n{text}");
                }
            }
        }
    }
}
