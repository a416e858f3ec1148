//! What a valid manifest means: the plan, its identity, and the report to the user.

use std::time::Duration;

use super::*;
use crate::continuation::{ContinuationPolicy, Mode};
use crate::split::Weights;

fn plan(fields: &str) -> Plan {
    match load(&format!("{HEAD}  newFrontendService: new:8000\n{fields}")) {
        Ok((_, plan)) => plan,
        Err(problems) => panic!("{fields}:\n{problems}"),
    }
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
            continuation: ContinuationPolicy {
                mode: Mode::Off,
                max_text_bytes: 262_144,
                max_per_stream: 2,
                comment: true,
            },
        }
    );
    assert_eq!(
        plan.drain,
        Drain {
            move_after: None,
            move_rate: 10,
        }
    );
    assert!(!plan.old_drains && plan.probe.is_none() && plan.tls.is_none());
}

#[test]
fn null_is_treated_as_absent() {
    assert_eq!(
        plan("  trafficSplitPercent: 1\n  affinity:\n  failover: {holdSeconds: ~}\n  probe: null"),
        plan("  trafficSplitPercent: 1"),
    );
}

#[test]
fn a_plan_says_whether_streams_are_continued_and_when_they_move_off_old() {
    for (mode, meant) in [
        ("\"Off\"", Mode::Off),
        ("Off", Mode::Off),
        ("SameGeneration", Mode::SameGeneration),
        ("AnyGeneration", Mode::AnyGeneration),
    ] {
        let plan = plan(&format!(
            "  trafficSplitPercent: 1\n  failover: {{continuation: {{mode: {mode}}}}}"
        ));
        assert_eq!(plan.failover.continuation.mode, meant, "{mode}");
    }
    let plan = plan(
        "  trafficSplitPercent: 1\n  failover: {continuation: {mode: AnyGeneration, maxTextBytes: 1024, maxPerStream: 1, \
         comment: false}}\n  drain: {moveAfterSeconds: 0.5, moveRate: 3}",
    );
    assert_eq!(
        plan.failover.continuation,
        ContinuationPolicy {
            mode: Mode::AnyGeneration,
            max_text_bytes: 1024,
            max_per_stream: 1,
            comment: false,
        }
    );
    assert_eq!(
        plan.drain,
        Drain {
            move_after: Some(Duration::from_millis(500)),
            move_rate: 3,
        }
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
        ("{}", ProbeKind::AnyModel),
        ("{model: a/b}", ProbeKind::Model("a/b".into())),
        (
            "{path: /live?x=1}",
            ProbeKind::Path("/live?x=1".parse().unwrap()),
        ),
    ] {
        let probe = plan_of(&format!("  probe: {probe}")).probe.unwrap();
        assert_eq!(probe.kind, question);
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

/// The report on a text with one document.
fn only_report(text: &str) -> ValidationReport {
    let mut reports = check(text);
    assert_eq!(reports.len(), 1);
    reports.remove(0)
}

#[test]
fn a_report_says_what_the_plan_does() {
    let report =
        |fields: &str| only_report(&format!("{HEAD}  newFrontendService: new:1\n{fields}"));
    for (fields, summary) in [
        (
            "  trafficSplitPercent: 25",
            "25% to new at http://new:1, the rest to old",
        ),
        (
            "  weights: {old: 2, new: 1}",
            "1 of 3 requests (33%) to new at http://new:1, the rest to old",
        ),
        (
            "  trafficSplitPercent: 25\n  maxTrafficSplitPercent: 10\n  oldDraining: true",
            "10% to new at http://new:1, the rest to old; 25% requested, but capped; old drains",
        ),
        (
            "  trafficSplitPercent: 25\n  failover: {continuation: {mode: SameGeneration}}",
            "25% to new at http://new:1, the rest to old; broken streams are continued in their generation",
        ),
        (
            "  trafficSplitPercent: 25\n  failover: {continuation: {mode: AnyGeneration}}\n  drain: {moveAfterSeconds: 30}",
            "25% to new at http://new:1, the rest to old; broken streams are continued; streams move off old 30 s after its \
             share becomes 0, 10 per second",
        ),
    ] {
        let report = report(fields);
        assert_eq!(report.summary.as_deref(), Some(summary));
        assert!(report.notes.is_empty() && report.problems.is_empty());
    }
    assert_eq!(
        report("  trafficSplitPercent: 0\n  paused: true").notes,
        ["spec.paused: takes effect only in a cluster"]
    );
    assert!(report("").summary.is_none());
    assert_eq!(report("").problems.len(), 1);
}

#[test]
fn a_manifest_for_a_cluster_may_leave_the_split_to_the_controller_and_a_plan_file_may_not() {
    let head = HEAD.replace("spec:", "metadata: {name: update}\nspec:");
    let text = format!("{head}  newFrontendService: new:1\n  sourceDeployment: old\n");
    let report = only_report(&text);
    assert_eq!(
        report.summary.as_deref(),
        Some("0% to new at http://new:1, the rest to old")
    );
    let note = &report.notes[0];
    assert!(note.contains("until the controller has set them"), "{note}");
    assert!(note.contains("`crossfade proxy --plan` rejects"), "{note}");
    let refused = problems(&text);
    assert!(
        refused[0].contains("spec.trafficSplitPercent: is required"),
        "{refused:?}"
    );
}
