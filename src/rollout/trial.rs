//! The trial of new: the result of the analysis, and the progress through the steps.
//!
//! A failure stays until a user requests a retry or the spec names a different new generation. A step is passed once the split
//! has been there for its hold and, with an analysis, after a pass that covers only the time at that step.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Rule, Timestamp, UpdateSettings,
    ratio::stored_weights,
    rules::{Limit, is_more},
};
use crate::split::Weights;

/// How a user requests a retry of a new generation that has failed.
pub(super) const RETRY: &str = "`crossfade retry` (for a rollout, `crossfade rollout retry`)";

/// What to do if new fails the analysis.
// No doc comments on the variants: the schema is then a plain list of names. The same below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    // New gets no more than it has.
    #[default]
    Hold,
    // All requests go to old.
    RollBack,
}

/// A step of an update: the maximum share of new until the step is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitStep {
    /// The share of new, 1 to 100. A step of 100 does not limit it.
    pub percent: u8,
    /// How long the split must have been there.
    pub hold: Duration,
}

impl SplitStep {
    /// When the hold ends for a split that has been at the step since `since`. It lasts at least a second, so that a single look
    /// cannot pass several steps.
    pub(super) fn held_until(self, since: Timestamp) -> Timestamp {
        since.after(self.hold.max(Duration::from_secs(1)))
    }
}

/// A verdict on the new generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrialVerdict {
    // New is within the margins.
    Pass,
    // New is worse than the margins allow.
    Fail,
    // There is not enough data.
    #[default]
    Inconclusive,
}

impl TrialVerdict {
    /// The name in JSON, on pages and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// The result of the analysis, and the trial to which it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialResult {
    /// [`Trial::since`] of the trial.
    pub trial: Timestamp,
    /// [`Trial::at_step_since`]. If set, a pass covers only the time since then.
    pub step: Option<Timestamp>,
    /// The verdict.
    pub verdict: TrialVerdict,
    /// The name of its reason, as in the metrics.
    pub reason: String,
    /// The verdict in one sentence, with its figures.
    pub sentence: String,
}

/// The verdict in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// The verdict.
    pub verdict: TrialVerdict,
    /// The name of its reason, as in the metrics; empty if it is unknown.
    pub reason: String,
    /// The verdict in one sentence.
    pub sentence: String,
    /// The failure that is remembered, if new has failed.
    pub failure: Option<FailedTrial>,
}

/// The step that limits the split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtStep {
    /// The maximum share of new.
    pub percent: u8,
    /// When the split reached the step.
    pub since: Option<Timestamp>,
    /// The earliest time at which it may leave the step.
    pub hold_until: Option<Timestamp>,
}

/// The remembered state of the trial of new.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Trial {
    /// The identity of new. A different new generation begins a new trial.
    pub subject: String,
    /// When the trial began.
    pub since: Timestamp,
    /// `metadata.generation` of the resource at that time. A proxy with an earlier one may use a different new generation.
    pub generation: u64,
    /// The last retry request that was carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
    /// The failure that was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailedTrial>,
    /// The last step that was passed, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed_percent: Option<u8>,
    /// When the split reached the next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_step_since: Option<Timestamp>,
}

/// New has failed the analysis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailedTrial {
    /// The figures, in one sentence.
    pub sentence: String,
    /// The name of the reason, as in the metrics.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When it was found.
    pub at: Timestamp,
    /// What the failure causes: `Hold` or `RollBack`.
    pub on_failure: OnFailure,
    /// The largest share that new may get after the failure.
    #[serde(with = "stored_weights", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<super::ratio::stored_weights::Stored>")]
    pub held: Option<Weights>,
    /// Whether an Event has reported it.
    #[serde(alias = "told")]
    pub reported: bool,
}

impl FailedTrial {
    fn follow(&mut self, on_failure: OnFailure) {
        self.on_failure = on_failure;
        if on_failure == OnFailure::RollBack {
            // New does not regain its share if it is only held from now on.
            self.held = Some(Weights::ALL_OLD);
        }
    }

    /// The sentence in a form that can be part of another one.
    pub(super) fn clause(&self) -> String {
        let text = self.sentence.trim_end_matches('.');
        let mut rest = text.chars();
        let first = rest.next().into_iter().flat_map(char::to_lowercase);
        first.chain(rest).collect()
    }
}

impl Trial {
    /// The trial at the start of a step. A different new, or a request to retry, starts another trial. No timestamp is later than
    /// `now`.
    pub(super) fn opened(
        &self,
        settings: &UpdateSettings,
        generation: u64,
        now: Timestamp,
    ) -> Self {
        let is_retry = settings.retry.is_some() && settings.retry != self.retry;
        if self.subject != settings.trial || is_retry {
            return Self {
                subject: settings.trial.clone(),
                since: now,
                generation,
                retry: settings.retry.clone().or_else(|| self.retry.clone()),
                ..Self::default()
            };
        }
        let mut trial = self.clone();
        trial.since = trial.since.min(now);
        trial.at_step_since = trial.at_step_since.map(|since| since.min(now));
        if let Some(failure) = &mut trial.failure {
            failure.at = failure.at.min(now);
        }
        trial
    }

    /// Records a failure that was found in this trial, while the split is `present`. The first one stays.
    pub(super) fn apply_verdict(
        &mut self,
        settings: &UpdateSettings,
        trial_result: Option<&TrialResult>,
        present: Weights,
        now: Timestamp,
    ) {
        if let Some(failure) = &mut self.failure {
            failure.follow(settings.on_failure.unwrap_or(failure.on_failure));
            return;
        }
        let trial_result = trial_result.filter(|trial_result| trial_result.trial == self.since);
        if let (Some(trial_result), Some(on_failure)) = (trial_result, settings.on_failure)
            && trial_result.verdict == TrialVerdict::Fail
        {
            let mut failure = FailedTrial {
                sentence: trial_result.sentence.clone(),
                reason: trial_result.reason.clone(),
                at: now,
                on_failure,
                held: Some(present),
                reported: false,
            };
            failure.follow(on_failure);
            self.failure = Some(failure);
        }
    }

    /// The step that limits the split now.
    #[must_use]
    pub fn step(&self, settings: &UpdateSettings) -> Option<SplitStep> {
        let passed = self.passed_percent.unwrap_or(0);
        let mut steps = settings.steps.iter();
        let step = steps.find(|step| step.percent > passed);
        step.filter(|step| step.percent < 100).copied()
    }

    /// Passes the current step, if allowed. `may_gain` is false while proxies may not have applied the split.
    pub(super) fn climb(
        &mut self,
        settings: &UpdateSettings,
        trial_result: Option<&TrialResult>,
        present: Weights,
        may_gain: bool,
        now: Timestamp,
    ) {
        let step = self.step(settings).and_then(|step| {
            let at = Weights::percent(step.percent).ok()?;
            (!is_more(at, present) && !settings.paused).then_some(step)
        });
        let Some(step) = step else {
            self.at_step_since = None;
            return;
        };
        if !may_gain {
            return;
        }
        let since = *self.at_step_since.get_or_insert(now);
        let is_held = now >= step.held_until(since);
        let passes = settings.on_failure.is_none()
            || trial_result.is_some_and(|trial_result| {
                trial_result.trial == self.since
                    && trial_result.step == Some(since)
                    && trial_result.verdict == TrialVerdict::Pass
            });
        if is_held && passes && self.failure.is_none() {
            self.passed_percent = Some(step.percent);
            self.at_step_since = None;
        }
    }

    /// The maximum share that new may get.
    pub(super) fn limit(&self, settings: &UpdateSettings) -> Option<Limit> {
        let step = self.step(settings).and_then(|step| {
            let most = Weights::percent(step.percent).ok()?;
            Some(Limit {
                rule: Rule::Step,
                most,
            })
        });
        let held = self.failure.as_ref().and_then(|failure| failure.held);
        let held = held.map(|most| Limit {
            rule: Rule::AnalysisFailed,
            most,
        });
        match (held, step) {
            (Some(held), Some(step)) if is_more(held.most, step.most) => Some(step),
            (held, step) => held.or(step),
        }
    }

    /// Whether all requests have to go to old.
    pub(super) fn is_rolled_back(&self) -> bool {
        let failure = self.failure.as_ref();
        failure.is_some_and(|failure| failure.on_failure == OnFailure::RollBack)
    }

    /// Whether a different failure is remembered than in `before`.
    pub(super) fn has_failed_since(&self, before: &Self) -> bool {
        self.failure.is_some() && (before.failure.is_none() || before.since != self.since)
    }

    /// The verdict in force, if new is analysed or has failed.
    pub(super) fn verdict(
        &self,
        settings: &UpdateSettings,
        trial_result: Option<&TrialResult>,
    ) -> Option<Analysis> {
        if let Some(failure) = &self.failure {
            return Some(Analysis {
                verdict: TrialVerdict::Fail,
                reason: failure.reason.clone(),
                sentence: failure.sentence.clone(),
                failure: Some(failure.clone()),
            });
        }
        settings.on_failure?;
        let trial_result = trial_result.filter(|trial_result| trial_result.trial == self.since);
        Some(match trial_result {
            Some(trial_result) => Analysis {
                verdict: trial_result.verdict,
                reason: trial_result.reason.clone(),
                sentence: trial_result.sentence.clone(),
                failure: None,
            },
            None => Analysis {
                verdict: TrialVerdict::Inconclusive,
                reason: "just_started".to_owned(),
                sentence: "The analysis has just started.".to_owned(),
                failure: None,
            },
        })
    }

    /// Where the split is among the steps, if one limits it.
    pub(super) fn at_step(&self, settings: &UpdateSettings) -> Option<AtStep> {
        let step = self.step(settings)?;
        Some(AtStep {
            percent: step.percent,
            since: self.at_step_since,
            hold_until: self.at_step_since.map(|since| step.held_until(since)),
        })
    }

    /// Records that the failure was reported. Returns whether this is the first time.
    pub(super) fn report_failure(&mut self) -> bool {
        let failure = self.failure.as_mut();
        failure.is_some_and(|failure| !std::mem::replace(&mut failure.reported, true))
    }
}
