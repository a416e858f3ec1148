//! Tests what is reported to users: the message of each decision, and what counts as a fault.

use super::*;

#[test]
fn an_update_reports_its_progress_in_messages() {
    let mut fixture = Fixture::of_four();
    let mut messages = Vec::new();
    let mut note = |decision: Decision| messages.push(decision.message);
    note(fixture.step());
    note(fixture.new_ready(1).step());
    note(fixture.wait(seconds(5)).step());
    fixture.new_ready(2).step();
    note(fixture.wait(seconds(6)).step());
    note(fixture.applied().step());
    fixture.settings.cap_percent = Some(10);
    note(fixture.step());
    fixture.settings.paused = true;
    note(fixture.applied().step());
    note(fixture.old_ready(0).step());
    note(fixture.new_ready(0).step());
    assert_eq!(
        messages,
        [
            "all to old: new cannot serve: it has no ready worker; waiting for new to become able to serve",
            "all to old: old has 4 of 4 workers ready, and new has 1 of 4 workers ready; waiting for the workers of new to stay \
             ready",
            "20% to new (old 4 : new 1): old has 4 of 4 workers ready, and new has 1 of 4 workers ready",
            "20% to new (old 4 : new 1): old has 4 of 4 workers ready, and new has 2 of 4 workers ready; waiting for 2 proxies \
             to apply the last change: a, b",
            "33% to new (old 2 : new 1): old has 4 of 4 workers ready, and new has 2 of 4 workers ready",
            "10% to new (old 9 : new 1): held at the cap of 10%, although capacity would give 33% to new (old 2 : new 1); old has \
             4 of 4 workers ready, and new has 2 of 4 workers ready",
            "10% to new (old 9 : new 1): paused; old has 4 of 4 workers ready, and new has 2 of 4 workers ready; waiting for \
             the pause to be lifted",
            "all to new: old has 0 of 4 workers ready, and new has 2 of 4 workers ready (overrides pause and cap); old remains the fallback \
             while its desired size is above 0: to end the update, scale its workers to 0 or set spec.drainOld",
            "all to new: neither generation can serve, so nothing changes; old: it has no ready worker; new: it has no ready \
             worker; waiting for new to become able to serve",
        ]
    );
}

#[test]
fn new_that_crashes_half_way_is_a_fault_and_new_that_is_taken_back_is_none() {
    let mut crashed = Fixture::settled(4, 2);
    let decision = crashed.new_ready(0).settle();
    assert_eq!(
        holds(&decision, ConditionKind::Degraded),
        (true, "NewCannotServe")
    );
    let mut taken_back = Fixture::settled(4, 2);
    taken_back.seen.workers.new.clear();
    assert!(!holds(&taken_back.settle(), ConditionKind::Degraded).0);
}

#[test]
fn generic_tools_see_whether_an_update_is_ready_reconciling_or_stalled() {
    let standard = |decision: &Decision| -> Vec<_> {
        use ConditionKind::{Ready, Reconciling, Stalled};
        let kinds = [Ready, Reconciling, Stalled].into_iter();
        let holding = kinds.filter_map(|kind| match holds(decision, kind) {
            (true, reason) => Some((kind, reason)),
            (false, _) => None,
        });
        holding.collect()
    };
    let mut fixture = Fixture::of_four();
    let moves = (ConditionKind::Reconciling, "NewCannotServe");
    assert_eq!(standard(&fixture.step()), [moves]);
    let mut fixture = Fixture::settled(4, 2);
    let moves = (ConditionKind::Reconciling, "Capacity");
    assert_eq!(standard(&fixture.step()), [moves]);
    fixture.settings.paused = true;
    assert_eq!(
        standard(&fixture.step()),
        [(ConditionKind::Ready, "Paused")]
    );
    fixture.settings.paused = false;
    fixture.settings.cap_percent = Some(10);
    assert_eq!(standard(&fixture.settle()), [(ConditionKind::Ready, "Cap")]);
    fixture.settings.cap_percent = None;
    fixture.new_ready(0);
    let stuck = (ConditionKind::Stalled, "NewCannotServe");
    assert_eq!(standard(&fixture.settle()), [stuck]);
    fixture.new_ready(4).scale_old(0).settle();
    let done = (ConditionKind::Ready, "Complete");
    assert_eq!(standard(&fixture.settle()), [done]);
    fixture.seen.superseded_by = Some("another".to_owned());
    let stuck = (ConditionKind::Stalled, "Superseded");
    assert_eq!(standard(&fixture.step()), [stuck]);
}

#[test]
fn a_memory_with_earlier_field_names_is_read() {
    let stored = r#"{"change": {"generation": 3, "since": 7, "lagTold": true}, "trial": {"failure": {"told": true}}}"#;
    let memory: Memory = serde_json::from_str(stored).unwrap();
    assert!(memory.change.unwrap().lag_reported);
    assert!(memory.trial.failure.as_ref().unwrap().reported);
    let written = serde_json::to_string(&memory).unwrap();
    assert!(written.contains(r#""lagReported":true"#), "{written}");
    assert!(!written.to_lowercase().contains("told"), "{written}");
}
