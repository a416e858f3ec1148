//! Tests the analysis and the steps: what follows from a verdict, how long it lasts, and what a step waits for.

use super::*;

fn with_verdict(fixture: &mut Fixture, verdict: TrialVerdict) -> &mut Fixture {
    let trial = &fixture.memory.trial;
    fixture.seen.trial_result = Some(TrialResult {
        trial: trial.since,
        step: trial.at_step_since,
        verdict,
        reason: "failure_rate".to_owned(),
        sentence:
            "New fails 2.1% of its requests, and old fails 0.3% (1,240 and 11,020 requests in 5 min)."
                .to_owned(),
    });
    fixture
}

/// Four workers in both generations, half of the requests on new.
fn analysed(on_failure: OnFailure) -> Fixture {
    let mut fixture = Fixture::settled(4, 4);
    fixture.settings.on_failure = Some(on_failure);
    fixture.settle();
    assert_eq!(fixture.seen.split, ratio(1, 1));
    fixture
}

#[test]
fn a_failure_sends_all_to_old_at_once_and_is_reported_with_its_figures() {
    let mut fixture = analysed(OnFailure::RollBack);
    // Proxies that lag do not hold it up.
    fixture.seen.resource_generation += 1;
    let decision = with_verdict(&mut fixture, TrialVerdict::Fail).step();
    assert_eq!(
        (decision.rule, fixture.seen.split, decision.phase),
        (Rule::AnalysisFailed, Weights::ALL_OLD, Phase::Pending)
    );
    assert!(matches!(
        decision.actions[..],
        [Action::RecordFailure(_), Action::SetSplit(_)]
    ));
    assert_eq!(reasons(&decision), ["SplitChanged", "AnalysisFailed"]);
    assert_eq!(
        decision.events[1].message,
        "new fails 2.1% of its requests, and old fails 0.3% (1,240 and 11,020 requests in 5 min); all requests go to old until `crossfade retry` (for a rollout, `crossfade rollout retry`)"
    );
    assert_eq!(
        holds(&decision, ConditionKind::AnalysisFailed),
        (true, "RolledBack")
    );
    for kind in [ConditionKind::Degraded, ConditionKind::Stalled] {
        assert_eq!(holds(&decision, kind), (true, "AnalysisFailed"));
    }
    let again = fixture.step();
    assert_eq!((again.actions, again.events), (vec![], vec![]));
}

#[test]
fn a_failure_persists_regardless_of_analysis_workers_and_split_edits() {
    let mut fixture = analysed(OnFailure::RollBack);
    with_verdict(&mut fixture, TrialVerdict::Fail).step();
    with_verdict(&mut fixture, TrialVerdict::Pass).settle();
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);
    fixture.new_ready(0).settle();
    fixture.new_ready(4).settle();
    fixture.edit(percent(50)).settle();
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);
    fixture.settings.paused = true;
    fixture.edit(percent(50)).settle();
    assert_eq!(
        fixture.seen.split,
        Weights::ALL_OLD,
        "but for a strict pause"
    );
    fixture.settings.paused = false;
    // Without an analysis, or counting old in another way.
    fixture.settings.on_failure = None;
    fixture.settings.subject = "old to new, counted otherwise".to_owned();
    assert_eq!(fixture.settle().rule, Rule::AnalysisFailed);
    // Held only: new gets nothing back.
    fixture.settings.on_failure = Some(OnFailure::Hold);
    fixture.settle();
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);
    // An old generation without workers is an outage.
    fixture.old_ready(0).step();
    assert_eq!(fixture.seen.split, Weights::ALL_NEW);
    fixture.old_ready(4).settle();
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);
}

#[test]
fn another_try_or_another_new_ends_a_failure_and_an_earlier_verdict_does_not_bring_it_back() {
    for is_retry in [true, false] {
        let mut fixture = analysed(OnFailure::RollBack);
        with_verdict(&mut fixture, TrialVerdict::Fail).settle();
        match is_retry {
            true => fixture.settings.retry = Some("2026-01-01T00:00:00Z".to_owned()),
            false => fixture.settings.trial = "another".to_owned(),
        }
        // The verdict is still that of the earlier trial.
        assert_eq!(fixture.settle().rule, Rule::Capacity);
        assert_eq!(fixture.seen.split, ratio(1, 1));
        with_verdict(&mut fixture, TrialVerdict::Fail).step();
        assert_eq!(fixture.seen.split, Weights::ALL_OLD);
        // Removing the annotation is not a request.
        fixture.settings.retry = None;
        fixture.settle();
        assert_eq!(fixture.seen.split, Weights::ALL_OLD);
    }
}

#[test]
fn a_controller_that_dies_between_the_verdict_and_the_split_continues_from_the_verdict() {
    let mut fixture = analysed(OnFailure::RollBack);
    let decision = with_verdict(&mut fixture, TrialVerdict::Fail).peek();
    let [Action::RecordFailure(memory), Action::SetSplit(_)] = &decision.actions[..] else {
        panic!("{:?}", decision.actions);
    };
    fixture.memory = (**memory).clone();
    // The next controller has not seen anything yet.
    fixture.seen.trial_result = None;
    let decision = fixture.step();
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);
    assert!(reasons(&decision).contains(&"AnalysisFailed"));
}

#[test]
fn a_failure_with_hold_keeps_the_split_and_follows_losses_of_new() {
    let mut fixture = analysed(OnFailure::Hold);
    fixture.new_ready(2).settle();
    assert_eq!(fixture.seen.split, ratio(2, 1));
    let decision = with_verdict(&mut fixture, TrialVerdict::Fail).step();
    assert_eq!(fixture.seen.split, ratio(2, 1));
    assert_eq!(
        holds(&decision, ConditionKind::AnalysisFailed),
        (true, "Held")
    );
    let decision = fixture.new_ready(4).settle();
    assert_eq!(
        (decision.rule, fixture.seen.split),
        (Rule::AnalysisFailed, ratio(2, 1))
    );
    fixture.new_ready(1).step();
    assert_eq!(fixture.seen.split, ratio(4, 1), "a loss is followed");
    fixture.new_ready(0).step();
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);
    fixture.new_ready(4).settle();
    assert_eq!(fixture.seen.split, ratio(2, 1));
}

#[test]
fn a_step_ends_after_its_hold_time_and_a_pass_within_the_step() {
    let mut fixture = Fixture::of_four();
    fixture.settings.on_failure = Some(OnFailure::RollBack);
    let step = |percent, hold| SplitStep {
        percent,
        hold: seconds(hold),
    };
    fixture.settings.steps = vec![step(5, 300), step(25, 0), step(100, 0)];
    fixture.settle();
    let decision = fixture.new_ready(4).settle();
    assert_eq!(
        (decision.rule, fixture.seen.split),
        (Rule::Step, percent(5))
    );
    assert!(decision.message.contains("held at the step of 5%"));
    assert!(
        decision.message.ends_with(
            "waiting for the hold at 5% to elapse, and for new to pass the analysis at 5%"
        ),
        "{}",
        decision.message
    );
    // A pass alone is not enough, nor is the hold.
    with_verdict(&mut fixture, TrialVerdict::Pass).step();
    assert_eq!(fixture.seen.split, percent(5));
    with_verdict(&mut fixture, TrialVerdict::Inconclusive)
        .wait(seconds(300))
        .step();
    assert_eq!(fixture.seen.split, percent(5));
    with_verdict(&mut fixture, TrialVerdict::Pass).step();
    assert_eq!(fixture.seen.split, percent(25));
    // That pass was of the step before.
    fixture.applied().settle();
    assert_eq!(fixture.seen.split, percent(25));
    with_verdict(&mut fixture, TrialVerdict::Pass).step();
    assert_eq!(fixture.seen.split, ratio(1, 1), "the workers' share");
    // What was passed stays so when new comes back.
    fixture.applied().new_ready(0).step();
    assert_eq!(fixture.seen.split, Weights::ALL_OLD);
    fixture.new_ready(4).settle();
    assert_eq!(fixture.seen.split, ratio(1, 1));
}

#[test]
fn steps_without_an_analysis_are_passed_by_their_holds_and_begin_again_after_a_loss() {
    let mut fixture = Fixture::of_four();
    fixture.settings.steps = vec![SplitStep {
        percent: 10,
        hold: seconds(100),
    }];
    fixture.settle();
    fixture.new_ready(4).step();
    fixture.wait(seconds(5)).step();
    fixture.applied().step();
    assert_eq!(fixture.seen.split, percent(10));
    fixture.wait(seconds(99)).step();
    assert_eq!(fixture.seen.split, percent(10));
    // New is lost for a moment.
    fixture.new_ready(0).step();
    fixture.applied().new_ready(4).step();
    fixture.wait(seconds(20)).step();
    let decision = fixture.applied().step();
    assert_eq!(fixture.seen.split, percent(10));
    assert_eq!(decision.wake_at, Some(fixture.now.after(seconds(100))));
    fixture.wait(seconds(99)).step();
    assert_eq!(fixture.seen.split, percent(10));
    fixture.wait(seconds(1)).step();
    assert_eq!(fixture.seen.split, ratio(1, 1));
}
