//! Tests the sentence that assesses a split.

use super::*;

/// A generation whose `ended` exchanges had `failed` failures and a first token after `millis`.
fn generation(ended: u64, failed: u64, millis: u64) -> Option<v1::Generation> {
    let latencies = Sketch::new(
        [(
            crate::telemetry::latency::Scale::index(millis * 1_000_000),
            ended,
        )],
        0,
    );
    Some(v1::Generation {
        last_five_minutes: Some(v1::Recent {
            outcomes: Some(v1::Outcomes {
                completed: ended - failed,
                failed,
                ..Default::default()
            }),
            first_event: Some((&latencies).into()),
            ..Default::default()
        }),
        ..Default::default()
    })
}

fn state(new: u32, generations: [Option<v1::Generation>; 2]) -> v1::State {
    let [old, fresh] = generations;
    v1::State {
        phase: v1::Phase::Ready.into(),
        ready: true,
        plan: Some(v1::Plan {
            weights: Some(v1::Weights {
                old: 100 - new,
                new,
            }),
            ..Default::default()
        }),
        old,
        new: fresh,
        ..Default::default()
    }
}

#[test]
fn the_sentence_states_the_state_and_its_reason() {
    let good = || [generation(1000, 1, 300), generation(500, 1, 310)];
    let mut off = state(5, good());
    off.assigned_last_minute = Some(v1::Requests { old: 10, new: 90 });
    let mut unreachable = state(5, good());
    unreachable.ready = false;
    let mut refused = state(5, good());
    refused.plan.as_mut().unwrap().refusal = Some(v1::Refusal::default());
    let mut bad_and_refused = refused.clone();
    bad_and_refused.new = state(5, [generation(1000, 3, 300), generation(1000, 40, 300)]).new;
    for (state, level, begins) in [
        (
            state(25, good()),
            Level::Good,
            "New gets 25.0% of the requests. Old: 0.10% errors, first token p95",
        ),
        (
            state(0, [generation(1000, 1, 300), None]),
            Level::Good,
            "Old gets all requests. Old: 0.10% errors",
        ),
        (
            state(5, [generation(1000, 1, 300), generation(49, 0, 300)]),
            Level::NotEnoughData,
            "New gets 5.0% of the requests. Not enough data: new finished only 49",
        ),
        (
            state(5, [generation(0, 0, 1), None]),
            Level::NotEnoughData,
            "New gets 5.0% of the requests. No requests ended",
        ),
        (
            state(25, [generation(1000, 3, 300), generation(1000, 40, 300)]),
            Level::Attention,
            "New fails more requests than old: 4.0% versus 0.30%",
        ),
        (
            state(25, [generation(1000, 100, 300), generation(1000, 100, 300)]),
            Level::Attention,
            "Old failed 10.0%",
        ),
        (
            state(25, [generation(1000, 0, 300), generation(1000, 0, 400)]),
            Level::Attention,
            "New has a longer time to first token than old: p95 400 ms versus",
        ),
        // Twice as slow, but by too few streams to tell.
        (
            state(25, [generation(1000, 1, 300), generation(199, 0, 600)]),
            Level::NotEnoughData,
            "New gets 25.0% of the requests. Not enough data: new started only 199 streams in the last 5 minutes; at least 200 are needed.",
        ),
        (
            state(100, [generation(1000, 1, 300), generation(199, 0, 600)]),
            Level::Good,
            "New gets all requests. New: 0.0% errors",
        ),
        (
            state(25, [generation(1000, 0, 300), generation(200, 3, 300)]),
            Level::NotEnoughData,
            "New gets 25.0% of the requests. New fails more requests than old: 1.5% versus 0.0% in the last 5 minutes; that is not enough",
        ),
        (off, Level::Attention, "New got 90.0% of the requests"),
        (unreachable, Level::Attention, "Not ready"),
        (
            bad_and_refused,
            Level::Attention,
            "New fails more requests than old: 4.0% versus 0.10% in the last 5 minutes. The newest plan could not be applied",
        ),
        (
            refused,
            Level::Attention,
            "The newest plan could not be applied",
        ),
    ] {
        let assessment = assess(&state, None);
        assert_eq!(assessment.level, level, "{}", assessment.text);
        assert!(assessment.text.starts_with(begins), "{}", assessment.text);
    }
}

#[test]
fn the_verdict_of_an_analysis_comes_first_and_replaces_the_comparison_by_figures() {
    let verdict = |verdict: &str, rolled_back| v1::Analysis {
        verdict: verdict.into(),
        text: "Because.".into(),
        rolled_back,
    };
    let good = || [generation(1000, 1, 300), generation(500, 1, 310)];
    let slower = || [generation(1000, 1, 300), generation(500, 1, 400)];
    let fails_more = || [generation(1000, 3, 300), generation(1000, 40, 300)];
    let mut unreachable = state(5, good());
    unreachable.ready = false;
    for (state, verdict, level, text) in [
        (
            state(0, good()),
            verdict("fail", true),
            Level::Attention,
            "New has failed and was rolled back: Because.",
        ),
        (
            state(25, good()),
            verdict("fail", false),
            Level::Attention,
            "New has failed: Because.",
        ),
        (
            state(25, slower()),
            verdict("pass", false),
            Level::Good,
            "New is good enough: Because. New gets 25.0% of the requests.",
        ),
        (
            state(25, fails_more()),
            verdict("inconclusive", false),
            Level::NotEnoughData,
            "It is not yet known whether new is good enough: Because. New gets 25.0% of the requests.",
        ),
        // Nothing is left to compare.
        (
            state(100, good()),
            verdict("inconclusive", false),
            Level::Good,
            "New gets all requests. New: 0.20% errors, first token p95 312 ms.",
        ),
        (
            state(25, [generation(1000, 100, 300), generation(1000, 100, 300)]),
            verdict("pass", false),
            Level::Attention,
            "Old failed 10.0% of its requests in the last 5 minutes.",
        ),
        (
            unreachable,
            verdict("pass", false),
            Level::Attention,
            "Not ready: cannot reach any model server.",
        ),
    ] {
        let assessment = assess(&state, Some(&verdict));
        assert_eq!((assessment.level, &*assessment.text), (level, text));
    }
}

#[test]
fn the_observed_split_is_not_compared_with_a_plan_that_is_younger_than_its_minute() {
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let mut off = state(67, [generation(1000, 1, 300), generation(1000, 1, 300)]);
    off.assigned_last_minute = Some(v1::Requests { old: 42, new: 58 });
    off.plan.as_mut().unwrap().since = at(1000);
    for (now, level) in [(1059, Level::Good), (1060, Level::Attention)] {
        off.time = at(now);
        let assessment = assess(&off, None);
        assert_eq!(assessment.level, level, "{}", assessment.text);
    }
}

#[test]
fn a_proxy_that_does_not_report_its_last_minutes_does_not_pass() {
    let mut old = state(25, [None, None]);
    old.old = Some(v1::Generation::default());
    old.new = Some(v1::Generation::default());
    assert_eq!(assess(&old, None).level, Level::NotEnoughData);
}
