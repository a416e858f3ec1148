//! Each problem of a manifest is reported with its field, line and reason, all at once and none twice.

use super::*;

/// The problems of a manifest with a valid target and split, followed by `fields`, which start on line 6.
fn problems_of(fields: &str) -> Vec<String> {
    let good = "  newFrontendService: new:8000\n  trafficSplitPercent: 25\n";
    problems(&format!("{HEAD}{good}{fields}"))
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
            "line 6: spec.maxTrafficSplitPercent: must be a whole number, is the text \"25\"; write it without quotes or leading zeros",
        ),
        (
            "  maxTrafficSplitPercent: 010",
            "line 6: spec.maxTrafficSplitPercent: must be a whole number, is the text \"010\"; write it without quotes or leading zeros",
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
            "line 6: spec.workers.new.replicas.decode: must be from 0 to 1000000, is -1",
        ),
        (
            "  workers: {new: {replicas: {decode: 5000000000}}}",
            "line 6: spec.workers.new.replicas.decode: must be from 0 to 1000000, is 5000000000",
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
            "line 6: spec.maxTrafficSplitPercent: must be from 0 to 100, is 101",
        ),
        (
            "  weights: {old: -1, new: 1}",
            "line 6: spec.weights.old: must be from 0 to 1000000000, is -1",
        ),
        (
            "  failover: {retryBudgetPercent: 101}",
            "line 6: spec.failover.retryBudgetPercent: must be from 0 to 100, is 101",
        ),
        (
            "  failover: {maxReplayBytes: 1073741825}",
            "line 6: spec.failover.maxReplayBytes: must be from 0 to 1073741824, is 1073741825",
        ),
        (
            "  failover: {holdSeconds: -1}",
            "line 6: spec.failover.holdSeconds: must be from 0 to 86400, is -1",
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
            "line 6: spec.failover.firstEventTimeoutSeconds: must be from 0.001 to 86400, is 0",
        ),
        (
            "  failover: {firstEventTimeoutSeconds: 30s}",
            "line 6: spec.failover.firstEventTimeoutSeconds: must be a number, is the text \"30s\"",
        ),
        (
            "  failover: {gapTimeoutSeconds: 86400.5}",
            "line 6: spec.failover.gapTimeoutSeconds: must be from 0.001 to 86400, is 86400.5",
        ),
        (
            "  failover: {continuation: {mode: SameGenration}}",
            "line 6: spec.failover.continuation.mode: must be one of Off, SameGeneration, AnyGeneration, is \
             'SameGenration'; did you mean 'SameGeneration'?",
        ),
        (
            "  failover: {continuation: {mode: false}}",
            "line 6: spec.failover.continuation.mode: must be text, is false; put it in quotes",
        ),
        (
            "  failover: {continuation: {maxTextBytes: 1023}}",
            "line 6: spec.failover.continuation.maxTextBytes: must be from 1024 to 67108864, is 1023",
        ),
        (
            "  failover: {continuation: {maxPerStream: 0}}",
            "line 6: spec.failover.continuation.maxPerStream: must be from 1 to 100, is 0",
        ),
        (
            "  failover: {continuation: {maxPerStream: 101}}",
            "line 6: spec.failover.continuation.maxPerStream: must be from 1 to 100, is 101",
        ),
        (
            "  failover: {continuation: {comment: 1}}",
            "line 6: spec.failover.continuation.comment: must be true or false, is 1",
        ),
        (
            "  failover: {continuation: true}",
            "line 6: spec.failover.continuation: must be an object, is true",
        ),
        (
            "  drain: {moveAfterSeconds: -1}",
            "line 6: spec.drain.moveAfterSeconds: must be from 0 to 604800, is -1",
        ),
        (
            "  drain: {moveRate: 0}",
            "line 6: spec.drain.moveRate: must be from 1 to 10000, is 0",
        ),
        (
            "  drain: {moveRate: 2.5}",
            "line 6: spec.drain.moveRate: must be a whole number, is 2.5",
        ),
        (
            "  probe: {intervalSeconds: 0}",
            "line 6: spec.probe.intervalSeconds: must be from 0.1 to 86400, is 0",
        ),
        (
            "  analysis: {warmupSeconds: -1}",
            "line 6: spec.analysis.warmupSeconds: must be from 0 to 86400, is -1",
        ),
        (
            "  analysis: {windowSeconds: 5}",
            "line 6: spec.analysis.windowSeconds: must be from 10 to 3600, is 5",
        ),
        (
            "  analysis: {minSamples: 0}",
            "line 6: spec.analysis.minSamples: must be from 1 to 1000000, is 0",
        ),
        (
            "  analysis: {maxFailureRateIncreasePercent: 100.5}",
            "line 6: spec.analysis.maxFailureRateIncreasePercent: must be from 0 to 100, is 100.5",
        ),
        (
            "  analysis: {ttftP95Ratio: 0.9}",
            "line 6: spec.analysis.ttftP95Ratio: must be from 1 to 100, is 0.9",
        ),
        (
            "  analysis: {gapP99Ratio: 101}",
            "line 6: spec.analysis.gapP99Ratio: must be from 1 to 100, is 101",
        ),
        (
            "  analysis: {onFailure: Rollback}",
            "line 6: spec.analysis.onFailure: must be one of Hold, RollBack, is 'Rollback'; did you mean 'RollBack'?",
        ),
        (
            "  analysis: {confidence: 1}",
            "line 6: spec.analysis.confidence: must be from 0.5 to 0.999999, is 1",
        ),
        (
            "  steps: [{percent: 0}]",
            "line 6: spec.steps[0].percent: must be from 1 to 100, is 0",
        ),
        (
            "  steps: [{percent: 5, holdSeconds: 604801}]",
            "line 6: spec.steps[0].holdSeconds: must be from 0 to 604800, is 604801",
        ),
        (
            "  steps: [{holdSeconds: 1}]",
            "line 6: spec.steps[0].percent: is required",
        ),
        // Meaning.
        (
            "  steps:\n  - {percent: 5}\n  - {percent: 5}",
            "line 8: spec.steps[1].percent: each step must have a higher percent than the one before it",
        ),
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
            "line 7: spec.affinity.headers[1]: 'b c' is not a header name",
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
            "line 6: spec.probe.path: '/a b' is not a path",
        ),
        (
            "  probe: {path: /x, model: m}",
            "line 6: spec.probe.path: cannot be set together with 'model'",
        ),
        (
            "  drain: {moveAfterSeconds: 0}",
            "line 6: spec.drain.moveAfterSeconds: moves streams to the other generation, which needs \
             failover.continuation.mode: AnyGeneration",
        ),
        (
            "  drain: {moveAfterSeconds: 0}\n  failover: {continuation: {mode: SameGeneration}}",
            "line 6: spec.drain.moveAfterSeconds: moves streams to the other generation",
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
    assert!(found[0].starts_with("line 6: spec.tls: clientCertFile also needs clientKeyFile"));
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
        "  trafficSplitPercent: 25\n  failover: {continuation: {mode: Any}}\n  drain: {moveAfterSeconds: 1}\n",
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
        let expected = "line 3: spec.trafficSplitPercent: is required, unless weights is given: only in a cluster can the \
                        split be left to the controller";
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
