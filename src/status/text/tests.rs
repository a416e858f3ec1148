//! The text, line by line.

use std::time::Duration;

use super::rows::describe_lag;
use super::*;
use crate::status::lag::Lag;
use crate::status::{EventRecord, Other, ProxyAnswer};

#[test]
fn a_proxy_that_has_not_applied_the_last_edit_is_reported_as_behind() {
    let shown = |lag| describe_lag(lag, Some(Duration::from_millis(14_700))).unwrap_or_default();
    assert_eq!(shown(Lag::Edits(2)), "is 2 edits behind, for at least 14 s");
    assert_eq!(
        describe_lag(Lag::Edits(1), None).unwrap(),
        "is 1 edit behind"
    );
    assert!(shown(Lag::Deleted).contains("deleted"));
    assert_eq!(shown(Lag::None), "");
}

#[test]
fn status_fits_80_columns() {
    let generation = v1::Generation {
        open_streams: 1234,
        first_event: Some(v1::Histogram {
            bounds: vec![0.1, 1.0],
            cumulative_counts: vec![5, 9],
            count: 9,
            sum: 3.0,
        }),
        ..Default::default()
    };
    let state = v1::State {
        plan: Some(v1::Plan {
            weights: Some(v1::Weights { old: 1, new: 1 }),
            max_percent: Some(50),
            weights_before_cap: Some(v1::Weights { old: 1, new: 2 }),
            ..Default::default()
        }),
        assigned_last_minute: Some(v1::Requests {
            old: 5678,
            new: 5678,
        }),
        old: Some(generation.clone()),
        new: Some(generation),
        ..Default::default()
    };
    let answer = |name: &str| ProxyAnswer {
        name: name.to_owned(),
        state: Ok(state.clone()),
    };
    let shown = text(&StatusReport {
        proxies: vec![answer("192.168.100.200:9464"), answer("[fd00::1]:9464")],
        ..StatusReport::default()
    });
    assert!(shown.contains("192.168.100.200:9464 unknown"), "{shown}");
    assert!(shown.contains("66.7% requested, capped at 50%"), "{shown}");
    let widest = shown.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{widest:?}\n{shown}");
}

#[test]
fn failover_is_named_only_where_there_was_one() {
    let said = |recovered_requests: &[(&str, u64)], refused| {
        let state = v1::State {
            assigned_last_minute: Some(v1::Requests { old: 100, new: 0 }),
            answered_last_minute: Some(v1::Requests { old: 90, new: 10 }),
            recovered_requests: recovered_requests
                .iter()
                .map(|(cause, count)| ((*cause).to_owned(), *count))
                .collect(),
            retries_refused: refused,
            ..Default::default()
        };
        let answer = ProxyAnswer {
            name: "a".to_owned(),
            state: Ok(state),
        };
        text(&StatusReport {
            proxies: vec![answer],
            ..StatusReport::default()
        })
    };
    let quiet = said(&[], 0);
    assert!(quiet.contains("10 of 100\n"), "{quiet}");
    assert!(quiet.contains("recovered   0\n"), "{quiet}");
    let busy = said(&[("connect", 10)], 3);
    assert!(busy.contains("10 of 100, after failover\n"), "{busy}");
    let line = "recovered   10 (10 connect); the retry budget denied 3 more\n";
    assert!(busy.contains(line), "{busy}");
}

#[test]
fn continued_and_moving_streams_are_reported_where_a_plan_continues_any() {
    let said = |continuations: Option<v1::Continuations>| {
        let state = v1::State {
            continuations,
            ..Default::default()
        };
        let answer = ProxyAnswer {
            name: "a".to_owned(),
            state: Ok(state),
        };
        text(&StatusReport {
            proxies: vec![answer],
            ..StatusReport::default()
        })
    };
    let off = v1::Continuations {
        mode: v1::ContinuationMode::Off.into(),
        ..Default::default()
    };
    for quiet in [None, Some(off.clone())] {
        assert!(!said(quiet).contains("continued"));
    }
    let on = said(Some(v1::Continuations {
        mode: v1::ContinuationMode::AnyGeneration.into(),
        continued: [("connection".to_owned(), 7), ("planned_move".to_owned(), 3)].into(),
        not_continued: [("tool_calls".to_owned(), 2)].into(),
        moving: 5,
        old: Some(v1::Proofs {
            supported: 1,
            unknown: 1,
            ..Default::default()
        }),
        new: Some(v1::Proofs {
            supported: 2,
            ..Default::default()
        }),
    }));
    for line in [
        "continued   10 (7 connection, 3 planned move); not continued 2 (2 tool calls)\n",
        "moving      5 streams on old are waiting to move to new\n",
        "            known to support continuation: old 1 of 2, new 2 of 2 (per endpoint and model)\n",
    ] {
        assert!(on.contains(line), "{line}{on}");
    }
    // What was continued under an earlier plan is still shown.
    let earlier = v1::Continuations {
        continued: [("connection".to_owned(), 1)].into(),
        ..off
    };
    assert!(said(Some(earlier)).contains("continued   1 (1 connection)\n"));
}

#[test]
fn external_text_is_escaped_in_its_field() {
    let problem = v1::Problem {
        path: "spec.weights\x1b]0;".into(),
        message: "one\ntwo".into(),
        ..Default::default()
    };
    let refusal = v1::Refusal {
        problems: vec![problem],
        ..Default::default()
    };
    let plan = v1::Plan {
        refusal: Some(refusal),
        remarks: vec!["update 'a'\x1b[2J does nothing".into()],
        ..Default::default()
    };
    let state = v1::State {
        plan: Some(plan),
        ..Default::default()
    };
    let answer = |name: &str, state| ProxyAnswer {
        name: name.into(),
        state,
    };
    let report = StatusReport {
        proxies: vec![answer("a", Ok(state)), answer("b", Err("b\x1b[2J".into()))],
        others: vec![Other {
            name: "c\r".into(),
            follows: None,
        }],
        events: vec![EventRecord {
            at: String::new(),
            warning: true,
            reason: "Invalid".into(),
            note: "bad\nThe last good plan stays in force.\x1b[31m".into(),
        }],
        ..StatusReport::default()
    };
    let text = text(&report);
    assert!(
        text.chars().all(|c| c == '\n' || !c.is_control()),
        "{text:?}"
    );
    assert!(text.contains("\n    The last good plan stays"), "{text}");
    assert!(text.contains("\n    two\n"), "{text}");
    assert!(
        text.contains(r"  update 'a'\u001b[2J does nothing"),
        "{text}"
    );
}

#[test]
fn a_cap_that_is_lifted_is_said_to_be_lifted() {
    for (percent, expected) in [
        (100, "cap         60%, lifted: no worker of old is ready"),
        (70, "cap         new gets at most 60%"),
    ] {
        let object = serde_json::json!({
            "metadata": {"name": "u"}, "status": {"liftedCapPercent": 60},
            "spec": {"newFrontendService": "new", "trafficSplitPercent": percent, "maxTrafficSplitPercent": 60},
        });
        let report = StatusReport {
            update: Some(serde_json::from_value(object).unwrap()),
            ..StatusReport::default()
        };
        let text = text(&report);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn the_reason_for_a_hold_is_reported() {
    let object = serde_json::json!({
        "metadata": {"name": "u", "namespace": "n", "generation": 5},
        "spec": {"newFrontendService": "new:8000", "weights": {"old": 3, "new": 1}, "paused": true,
                 "maxTrafficSplitPercent": 60},
        "status": {"phase": "Degraded", "rule": "Paused", "observedGeneration": 4, "message": "held", "conditions": [
            {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"},
            {"type": "Complete", "status": "False", "reason": "Pending", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"},
            {"type": "Degraded", "status": "True", "reason": "ProxiesLag", "message": "p lags",
             "lastTransitionTime": "2026-01-02T03:04:05Z"}]},
    });
    let update: DynamoUpdateConfig = serde_json::from_value(object).unwrap();
    let report = StatusReport {
        update: Some(Box::new(update.clone())),
        ..StatusReport::default()
    };
    let text = text(&report);
    for line in [
        "paused      the split is held manually; `crossfade resume` returns it to the controller",
        "cap         new gets at most 60%",
        "phase       Degraded, by rule Paused",
        "            as of edit 4: the controller has not observed edit 5 yet",
        "conditions  Accepted, Degraded (ProxiesLag)",
        "degraded    p lags",
        "split       wanted     25.0%",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    assert!(
        list(&[update]).contains("Degraded         25%         -"),
        "{}",
        list(&[report.update.unwrap().as_ref().clone()])
    );
}

#[test]
fn the_verdict_on_new_comes_first() {
    let assessed = |text: &str| v1::Analysis {
        verdict: "inconclusive".into(),
        text: text.into(),
        rolled_back: false,
    };
    let weights = v1::Weights { old: 3, new: 1 };
    let state = v1::State {
        ready: true,
        plan: Some(v1::Plan {
            weights: Some(weights),
            analysis: Some(assessed("Said by a proxy.")),
            ..Default::default()
        }),
        ..Default::default()
    };
    let object = |observed| {
        serde_json::json!({
            "metadata": {"name": "u", "namespace": "n", "generation": 5},
            "spec": {"newFrontendService": "new:8000"},
            "status": {"phase": "Progressing", "observedGeneration": observed,
                       "analysis": {"verdict": "Fail", "message": "New fails 3.0%.", "rolledBack": true}},
        })
    };
    let failed = "New has failed and was rolled back: New fails 3.0%.";
    let unknown = "It is not yet known whether new is good enough: Said by a proxy. New gets 25.0% of the requests.";
    let answers = |state| ProxyAnswer {
        name: "a".into(),
        state,
    };
    for (update, answer, line, reported) in [
        (Some(object(5)), Ok(state.clone()), 1, failed),
        // The status may be about another new.
        (Some(object(4)), Ok(state.clone()), 1, unknown),
        (None, Ok(state), 0, unknown),
        (Some(object(5)), Err("cannot be reached".into()), 1, failed),
    ] {
        let is_reported = answer.is_ok();
        let report = StatusReport {
            update: update.map(|update| serde_json::from_value(update).unwrap()),
            proxies: vec![answers(answer)],
            ..StatusReport::default()
        };
        let text = text(&report);
        let shown = text.lines().nth(line).unwrap();
        assert_eq!(shown, format!("summary     {reported}"), "{text}");
        let json = crate::status::json(&report);
        assert!(
            !is_reported || json["total"]["assessment"]["text"] == reported,
            "{json}"
        );
    }
}
