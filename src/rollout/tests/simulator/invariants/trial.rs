//! A failure of new is kept, and steps are passed in order.

use super::*;

/// A failure stays until another trial begins, and does not give new more requests; a step is only passed by a pass from its own
/// time.
pub(super) fn the_trial_is_kept(before: &Fixture, decision: &Decision, next: Weights) {
    let (settings, seen) = (&before.settings, &before.seen);
    let (earlier, trial) = (&before.memory.trial, &decision.memory.trial);
    let asks = settings.retry.is_some() && settings.retry != earlier.retry;
    let is_same = earlier.subject == settings.trial && !asks;
    if is_same && earlier.failure.is_some() {
        assert!(trial.failure.is_some(), "latched means latched");
    }
    let trial_result = seen.trial_result.as_ref();
    let trial_result = trial_result.filter(|trial_result| trial_result.trial == trial.since);
    if trial.failure.is_some() && !(is_same && earlier.failure.is_some()) {
        assert!(
            trial_result.is_some_and(|trial_result| trial_result.verdict == TrialVerdict::Fail)
        );
        assert!(matches!(
            decision.actions.first(),
            Some(Action::RecordFailure(_))
        ));
    }
    let is_rolled_back = trial.failure.as_ref();
    let is_rolled_back =
        is_rolled_back.is_some_and(|failure| failure.on_failure == OnFailure::RollBack);
    let is_held = settings.paused && settings.strict;
    let is_outage = matches!(
        decision.rule,
        Rule::Superseded | Rule::NeitherCanServe | Rule::OldCannotServe | Rule::Cap
    );
    if is_rolled_back && !is_outage && !is_held {
        assert_eq!(next, Weights::ALL_OLD, "new gets nothing after it failed");
    }
    let passed = trial
        .passed_percent
        .filter(|_| trial.passed_percent != earlier.passed_percent);
    if passed.is_some() {
        assert!(trial.failure.is_none(), "no step is passed after a failure");
        let since = earlier.at_step_since.unwrap_or(before.now).min(before.now);
        let is_passed = |trial_result: &TrialResult| {
            trial_result.verdict == TrialVerdict::Pass && trial_result.step == Some(since)
        };
        assert!(
            settings.on_failure.is_none() || trial_result.is_some_and(is_passed),
            "no step is passed without a pass"
        );
    }
    let limit = settings
        .steps
        .iter()
        .find(|step| step.percent > trial.passed_percent.unwrap_or(0));
    let by_capacity = matches!(decision.rule, Rule::Capacity | Rule::Step | Rule::DrainOld);
    if let Some(limit) = limit.filter(|_| by_capacity && decision.actions.iter().any(is_split)) {
        assert!(
            next.share_of_new() <= f64::from(limit.percent) / 100.0 + 1e-9
                || next.share_of_new() <= seen.split.share_of_new(),
            "nothing goes past a step that is not passed"
        );
    }
}

fn is_split(action: &Action) -> bool {
    matches!(action, Action::SetSplit(_))
}
