//! Tests the analysis and the steps: what follows from a verdict, how long it lasts, and what a step waits for.

use super::*;

fn with_verdict(scene: &mut Scene, verdict: Verdict) -> &mut Scene {
    let trial = &scene.memory.trial;
    scene.seen.trial_result = Some(TrialResult {
        trial: trial.since,
        step: trial.at_step_since,
        verdict,
        sentence: "New fails 2.1 % of requests, old 0.3 % (1,240 and 11,020 in 5 min).".to_owned(),
    });
    scene
}

/// Four workers on both sides, half of the requests on new.
fn analysed(on_failure: OnFailure) -> Scene {
    let mut scene = Scene::settled(4, 4);
    scene.settings.on_failure = Some(on_failure);
    scene.settle();
    assert_eq!(scene.seen.split, ratio(1, 1));
    scene
}

#[test]
fn a_failure_sends_all_to_old_at_once_and_is_told_with_its_figures() {
    let mut scene = analysed(OnFailure::RollBack);
    // Proxies that lag do not hold it up.
    scene.seen.resource_generation += 1;
    let decision = with_verdict(&mut scene, Verdict::Fail).step();
    assert_eq!(
        (decision.rule, scene.seen.split, decision.phase),
        (Rule::AnalysisFailed, Weights::ALL_OLD, Phase::Pending)
    );
    assert!(matches!(
        decision.actions[..],
        [Action::Latch(_), Action::SetSplit(_)]
    ));
    assert_eq!(reasons(&decision), ["SplitChanged", "AnalysisFailed"]);
    assert_eq!(
        decision.events[1].message,
        "new fails 2.1 % of requests, old 0.3 % (1,240 and 11,020 in 5 min); all requests go to old until `crossfade retry`"
    );
    assert_eq!(
        holds(&decision, ConditionKind::AnalysisFailed),
        (true, "RolledBack")
    );
    for kind in [ConditionKind::Degraded, ConditionKind::Stalled] {
        assert_eq!(holds(&decision, kind), (true, "AnalysisFailed"));
    }
    let again = scene.step();
    assert_eq!((again.actions, again.events), (vec![], vec![]));
}

#[test]
fn a_failure_stays_whatever_the_analysis_the_workers_and_edits_of_the_split_say() {
    let mut scene = analysed(OnFailure::RollBack);
    with_verdict(&mut scene, Verdict::Fail).step();
    with_verdict(&mut scene, Verdict::Pass).settle();
    assert_eq!(scene.seen.split, Weights::ALL_OLD);
    scene.new_ready(0).settle();
    scene.new_ready(4).settle();
    scene.edit(percent(50)).settle();
    assert_eq!(scene.seen.split, Weights::ALL_OLD);
    scene.settings.paused = true;
    scene.edit(percent(50)).settle();
    assert_eq!(scene.seen.split, Weights::ALL_OLD, "but for a strict pause");
    scene.settings.paused = false;
    // Without an analysis, or counting old in another way.
    scene.settings.on_failure = None;
    scene.settings.subject = "old to new, counted otherwise".to_owned();
    assert_eq!(scene.settle().rule, Rule::AnalysisFailed);
    // Held only: new gets nothing back.
    scene.settings.on_failure = Some(OnFailure::Hold);
    scene.settle();
    assert_eq!(scene.seen.split, Weights::ALL_OLD);
    // An old side without workers is an outage.
    scene.old_ready(0).step();
    assert_eq!(scene.seen.split, Weights::ALL_NEW);
    scene.old_ready(4).settle();
    assert_eq!(scene.seen.split, Weights::ALL_OLD);
}

#[test]
fn another_try_or_another_new_ends_a_failure_and_an_earlier_verdict_does_not_bring_it_back() {
    for is_retry in [true, false] {
        let mut scene = analysed(OnFailure::RollBack);
        with_verdict(&mut scene, Verdict::Fail).settle();
        match is_retry {
            true => scene.settings.retry = Some("2026-01-01T00:00:00Z".to_owned()),
            false => scene.settings.trial = "another".to_owned(),
        }
        // The verdict is still that of the earlier trial.
        assert_eq!(scene.settle().rule, Rule::Capacity);
        assert_eq!(scene.seen.split, ratio(1, 1));
        with_verdict(&mut scene, Verdict::Fail).step();
        assert_eq!(scene.seen.split, Weights::ALL_OLD);
        // Removing the annotation is no request.
        scene.settings.retry = None;
        scene.settle();
        assert_eq!(scene.seen.split, Weights::ALL_OLD);
    }
}

#[test]
fn a_controller_that_dies_between_the_verdict_and_the_split_goes_on_from_the_verdict() {
    let mut scene = analysed(OnFailure::RollBack);
    let decision = with_verdict(&mut scene, Verdict::Fail).peek();
    let [Action::Latch(memory), Action::SetSplit(_)] = &decision.actions[..] else {
        panic!("{:?}", decision.actions);
    };
    scene.memory = (**memory).clone();
    // The next controller has not seen anything yet.
    scene.seen.trial_result = None;
    let decision = scene.step();
    assert_eq!(scene.seen.split, Weights::ALL_OLD);
    assert!(reasons(&decision).contains(&"AnalysisFailed"));
}

#[test]
fn a_held_failure_leaves_the_split_and_follows_what_new_loses() {
    let mut scene = analysed(OnFailure::Hold);
    scene.new_ready(2).settle();
    assert_eq!(scene.seen.split, ratio(2, 1));
    let decision = with_verdict(&mut scene, Verdict::Fail).step();
    assert_eq!(scene.seen.split, ratio(2, 1));
    assert_eq!(
        holds(&decision, ConditionKind::AnalysisFailed),
        (true, "Held")
    );
    let decision = scene.new_ready(4).settle();
    assert_eq!(
        (decision.rule, scene.seen.split),
        (Rule::AnalysisFailed, ratio(2, 1))
    );
    scene.new_ready(1).step();
    assert_eq!(scene.seen.split, ratio(4, 1), "a loss is followed");
    scene.new_ready(0).step();
    assert_eq!(scene.seen.split, Weights::ALL_OLD);
    scene.new_ready(4).settle();
    assert_eq!(scene.seen.split, ratio(2, 1));
}

#[test]
fn a_step_is_passed_by_its_hold_and_a_pass_of_its_own_time() {
    let mut scene = Scene::of_four();
    scene.settings.on_failure = Some(OnFailure::RollBack);
    let step = |percent, hold| Step {
        percent,
        hold: seconds(hold),
    };
    scene.settings.steps = vec![step(5, 300), step(25, 0), step(100, 0)];
    scene.settle();
    let decision = scene.new_ready(4).settle();
    assert_eq!((decision.rule, scene.seen.split), (Rule::Step, percent(5)));
    assert!(decision.message.contains("held at the step of 5 %"));
    assert!(
        decision.message.ends_with(
            "waiting for the hold at 5 % to elapse, and for new to pass the analysis at 5 %"
        ),
        "{}",
        decision.message
    );
    // A pass alone is not enough, nor is the hold.
    with_verdict(&mut scene, Verdict::Pass).step();
    assert_eq!(scene.seen.split, percent(5));
    with_verdict(&mut scene, Verdict::Inconclusive)
        .wait(seconds(300))
        .step();
    assert_eq!(scene.seen.split, percent(5));
    with_verdict(&mut scene, Verdict::Pass).step();
    assert_eq!(scene.seen.split, percent(25));
    // That pass was of the step before.
    scene.applied().settle();
    assert_eq!(scene.seen.split, percent(25));
    with_verdict(&mut scene, Verdict::Pass).step();
    assert_eq!(scene.seen.split, ratio(1, 1), "the workers' share");
    // What was passed stays so when new comes back.
    scene.applied().new_ready(0).step();
    assert_eq!(scene.seen.split, Weights::ALL_OLD);
    scene.new_ready(4).settle();
    assert_eq!(scene.seen.split, ratio(1, 1));
}

#[test]
fn steps_without_an_analysis_are_passed_by_their_holds_and_begin_anew_after_a_loss() {
    let mut scene = Scene::of_four();
    scene.settings.steps = vec![Step {
        percent: 10,
        hold: seconds(100),
    }];
    scene.settle();
    scene.new_ready(4).step();
    scene.wait(seconds(5)).step();
    scene.applied().step();
    assert_eq!(scene.seen.split, percent(10));
    scene.wait(seconds(99)).step();
    assert_eq!(scene.seen.split, percent(10));
    // New is lost for a moment.
    scene.new_ready(0).step();
    scene.applied().new_ready(4).step();
    scene.wait(seconds(20)).step();
    let decision = scene.applied().step();
    assert_eq!(scene.seen.split, percent(10));
    assert_eq!(decision.wake_at, Some(scene.now.after(seconds(100))));
    scene.wait(seconds(99)).step();
    assert_eq!(scene.seen.split, percent(10));
    scene.wait(seconds(1)).step();
    assert_eq!(scene.seen.split, ratio(1, 1));
}
