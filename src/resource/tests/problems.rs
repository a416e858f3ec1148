//! Each wrong field of a manifest is reported with its line and the reason.

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
            "line 6: spec.paused: must be true or false, not the text \"yes\"",
        ),
        (
            "  paused: \"true\"",
            "line 6: spec.paused: must be true or false, not the text \"true\"; write it without quotes",
        ),
        (
            "  maxTrafficSplitPercent: \"25\"",
            "line 6: spec.maxTrafficSplitPercent: must be a whole number, not the text \"25\"; write it without quotes or leading zeros",
        ),
        (
            "  maxTrafficSplitPercent: 010",
            "line 6: spec.maxTrafficSplitPercent: must be a whole number, not the text \"010\"; write it without quotes or leading zeros",
        ),
        (
            "  maxTrafficSplitPercent: 2.5",
            "line 6: spec.maxTrafficSplitPercent: must be a whole number, not 2.5",
        ),
        (
            "  clientService: 7",
            "line 6: spec.clientService: must be text, not 7; put it in quotes",
        ),
        (
            "  clientService: ''",
            "line 6: spec.clientService: must not be empty",
        ),
        (
            "  models: gpt",
            "line 6: spec.models: must be a list, not the text \"gpt\"",
        ),
        (
            "  models:\n  - a\n  - true",
            "line 8: spec.models[1]: must be text, not true; put it in quotes",
        ),
        (
            "  affinity: [x]",
            "line 6: spec.affinity: must be an object, not a list",
        ),
        (
            "  affinity: {headers: [null]}",
            "line 6: spec.affinity.headers[0]: must be text, not null",
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
            "line 6: spec.workers.new.selector.app: must be text, not 1; put it in quotes",
        ),
        (
            "  workers: {old: {kind: Deploymnt}}",
            "line 6: spec.workers.old.kind: must be one of Pod, Deployment, StatefulSet, LeaderWorkerSet, PodClique, \
             PodCliqueScalingGroup, ModelServing, DynamoGraphDeployment, DynamoWorkerMetadata, not 'Deploymnt'; did you \
             mean 'Deployment'?",
        ),
        (
            "  workers: {new: {replicas: {decode: -1}}}",
            "line 6: spec.workers.new.replicas.decode: must be from 0 to 1000000, not -1",
        ),
        (
            "  workers: {new: {replicas: {decode: 5000000000}}}",
            "line 6: spec.workers.new.replicas.decode: must be from 0 to 1000000, not 5000000000",
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
            "line 6: spec.maxTrafficSplitPercent: must be from 0 to 100, not 101",
        ),
        (
            "  weights: {old: -1, new: 1}",
            "line 6: spec.weights.old: must be from 0 to 1000000000, not -1",
        ),
        (
            "  failover: {retryBudgetPercent: 101}",
            "line 6: spec.failover.retryBudgetPercent: must be from 0 to 100, not 101",
        ),
        (
            "  failover: {maxReplayBytes: 1073741825}",
            "line 6: spec.failover.maxReplayBytes: must be from 0 to 1073741824, not 1073741825",
        ),
        (
            "  failover: {holdSeconds: -1}",
            "line 6: spec.failover.holdSeconds: must be from 0 to 86400, not -1",
        ),
        (
            "  failover: {holdSeconds: .nan}",
            "line 6: spec.failover.holdSeconds: must be a finite number, not NaN",
        ),
        (
            "  failover: {holdSeconds: .inf}",
            "line 6: spec.failover.holdSeconds: must be a finite number, not inf",
        ),
        (
            "  failover: {firstEventTimeoutSeconds: 0}",
            "line 6: spec.failover.firstEventTimeoutSeconds: must be from 0.001 to 86400, not 0",
        ),
        (
            "  failover: {firstEventTimeoutSeconds: 30s}",
            "line 6: spec.failover.firstEventTimeoutSeconds: must be a number, not the text \"30s\"",
        ),
        (
            "  failover: {gapTimeoutSeconds: 86400.5}",
            "line 6: spec.failover.gapTimeoutSeconds: must be from 0.001 to 86400, not 86400.5",
        ),
        (
            "  failover: {continuation: {mode: SameGenration}}",
            "line 6: spec.failover.continuation.mode: must be one of Off, SameGeneration, AnyGeneration, not \
             'SameGenration'; did you mean 'SameGeneration'?",
        ),
        (
            "  failover: {continuation: {mode: false}}",
            "line 6: spec.failover.continuation.mode: must be text, not false; put it in quotes",
        ),
        (
            "  failover: {continuation: {maxTextBytes: 1023}}",
            "line 6: spec.failover.continuation.maxTextBytes: must be from 1024 to 67108864, not 1023",
        ),
        (
            "  failover: {continuation: {maxPerStream: 0}}",
            "line 6: spec.failover.continuation.maxPerStream: must be from 1 to 100, not 0",
        ),
        (
            "  failover: {continuation: {maxPerStream: 101}}",
            "line 6: spec.failover.continuation.maxPerStream: must be from 1 to 100, not 101",
        ),
        (
            "  failover: {continuation: {comment: 1}}",
            "line 6: spec.failover.continuation.comment: must be true or false, not 1",
        ),
        (
            "  failover: {continuation: true}",
            "line 6: spec.failover.continuation: must be an object, not true",
        ),
        (
            "  drain: {moveAfterSeconds: -1}",
            "line 6: spec.drain.moveAfterSeconds: must be from 0 to 604800, not -1",
        ),
        (
            "  drain: {moveRate: 0}",
            "line 6: spec.drain.moveRate: must be from 1 to 10000, not 0",
        ),
        (
            "  drain: {moveRate: 2.5}",
            "line 6: spec.drain.moveRate: must be a whole number, not 2.5",
        ),
        (
            "  probe: {intervalSeconds: 0}",
            "line 6: spec.probe.intervalSeconds: must be from 0.1 to 86400, not 0",
        ),
        (
            "  analysis: {warmupSeconds: -1}",
            "line 6: spec.analysis.warmupSeconds: must be from 0 to 86400, not -1",
        ),
        (
            "  analysis: {windowSeconds: 5}",
            "line 6: spec.analysis.windowSeconds: must be from 10 to 3600, not 5",
        ),
        (
            "  analysis: {minSamples: 0}",
            "line 6: spec.analysis.minSamples: must be from 1 to 1000000, not 0",
        ),
        (
            "  analysis: {maxFailureRateIncreasePercent: 100.5}",
            "line 6: spec.analysis.maxFailureRateIncreasePercent: must be from 0 to 100, not 100.5",
        ),
        (
            "  analysis: {ttftP95Ratio: 0.9}",
            "line 6: spec.analysis.ttftP95Ratio: must be from 1 to 100, not 0.9",
        ),
        (
            "  analysis: {gapP99Ratio: 101}",
            "line 6: spec.analysis.gapP99Ratio: must be from 1 to 100, not 101",
        ),
        (
            "  analysis: {onFailure: Rollback}",
            "line 6: spec.analysis.onFailure: must be one of Hold, RollBack, not 'Rollback'; did you mean 'RollBack'?",
        ),
        (
            "  analysis: {confidence: 1}",
            "line 6: spec.analysis.confidence: must be from 0.5 to 0.999999, not 1",
        ),
        (
            "  steps: [{percent: 0}]",
            "line 6: spec.steps[0].percent: must be from 1 to 100, not 0",
        ),
        (
            "  steps: [{percent: 5, holdSeconds: 604801}]",
            "line 6: spec.steps[0].holdSeconds: must be from 0 to 604800, not 604801",
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
            "line 5: spec.trafficSplitPercent: is 25, but weights 3:2 are 40%",
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
            "line 6: spec.probe.path: must start with '/', not 'health'",
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
