//! The state that is kept between steps: everything that the next decision needs besides its observation. It is stored in the
//! resource's status.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Action, Credit, Frontends, Observation, PerGeneration, Phase, Registered, Role, Rule,
    Timestamp, UpdateSettings, assessment::Assessment, ratio::stored_weights, trial::Trial,
};
use crate::split::Weights;

/// Maximum number of old's models that are kept, because the size of a status is limited. The first by name are kept, because
/// frontends are queried for these.
const MAX_MODELS: usize = 512;

/// The same for Dynamo namespaces.
const MAX_NAMESPACES: usize = 64;

/// The state that a restarted controller needs. Its own default is that of an update just accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// The identity of both generations. The memory of a different update is discarded.
    pub subject: String,
    /// The size of each role of the source: the largest observed before new first got a share, because the update may be created
    /// before the last worker exists.
    #[schemars(with = "BTreeMap<String, u32>")]
    pub full_sizes: BTreeMap<Role, u32>,
    /// Whether the frontends of old have reported as many workers as are ready. If so, the number that they report counts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub registered_count: bool,
    /// The models that old last served.
    pub models: BTreeSet<String>,
    /// The Dynamo namespaces of the workers that the frontends of old last reported.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub namespaces: BTreeSet<String>,
    /// The capacity of each generation that counts. None before the first assessment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credit: Option<PerGeneration<Credit>>,
    /// The split that the controller last wrote or accepted.
    #[serde(with = "stored_weights", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<super::ratio::stored_weights::Stored>")]
    pub written: Option<Weights>,
    /// The split that a pause holds; none if not paused.
    #[serde(with = "stored_weights", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<super::ratio::stored_weights::Stored>")]
    pub held: Option<Weights>,
    /// Whether a user chose the split that is held. Otherwise, it is the split at which the pause began, even if an outage had
    /// caused it.
    pub held_by_person: bool,
    /// Whether new has ever had a share.
    pub new_had_share: bool,
    /// The last change of the resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// Whether an Event has reported that an edit was reverted. Reset by the next pause.
    pub contested: bool,
    /// The phase of the update.
    pub phase: Phase,
    /// When the phase began.
    pub phase_since: Timestamp,
    /// Whether a deadline ended the drain while streams were open.
    pub overdue: bool,
    /// The `newFrontendService` with which the proxies last confirmed that the update is complete. It may be edited once there are
    /// none left to confirm it. Kept while a proxy does not respond, because it may have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete_with: Option<String>,
    /// The analysis of new so far.
    pub trial: Trial,
    /// The rule that decided last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    /// When that rule began to decide.
    pub rule_since: Timestamp,
}

/// A change of the resource that the proxies have to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// `metadata.generation` after it.
    pub generation: u64,
    /// When the controller first observed it.
    pub since: Timestamp,
    /// Whether an Event has reported that proxies lag behind it.
    #[serde(alias = "lagTold", default)]
    pub lag_reported: bool,
}

impl Memory {
    /// The memory at the start of a step: reset if the subject changed, with no timestamp later than `now`. A failure of new is
    /// kept even if old is now counted in a different way.
    pub(super) fn opened(
        &self,
        settings: &UpdateSettings,
        generation: u64,
        now: Timestamp,
    ) -> Self {
        let trial = self.trial.opened(settings, generation, now);
        if self.subject != settings.subject {
            return Self {
                subject: settings.subject.clone(),
                phase_since: now,
                rule_since: now,
                trial,
                ..Self::default()
            };
        }
        let mut memory = self.clone();
        memory.trial = trial;
        memory.phase_since = memory.phase_since.min(now);
        memory.rule_since = memory.rule_since.min(now);
        if let Some(change) = &mut memory.change {
            change.since = change.since.min(now);
        }
        if let Some(credit) = &mut memory.credit {
            credit.old.clamp(now);
            credit.new.clamp(now);
        }
        memory
    }

    /// Records what is remembered of an observation, independent of the decision.
    pub(super) fn learn(&mut self, seen: &Observation, now: Timestamp) {
        for (role, workers) in &seen.workers.old {
            if let Some(size) = workers.size() {
                let known = self.full_sizes.entry(*role).or_insert(size);
                // Sizes seen later may belong to a scale-up or scale-down.
                if !self.new_had_share {
                    *known = size.max(*known);
                }
            }
        }
        self.new_had_share |= !seen.split.is_all_old();
        self.registered_count |= Registered::of(&seen.frontends.old).agrees(&seen.workers.old);
        let old = &seen.frontends.old;
        let served = old.models();
        if old.has_open() || old.error().is_some() {
            // A frontend without a current answer may serve more than it reports.
            for model in served {
                if self.models.len() < MAX_MODELS {
                    self.models.insert(model.clone());
                }
            }
        } else if !served.is_empty() {
            self.models = served.into_iter().take(MAX_MODELS).cloned().collect();
        }
        self.learn_namespaces(old);
        let generation = seen.resource_generation;
        if self
            .change
            .is_none_or(|change| change.generation != generation)
        {
            self.change = Some(Change {
                generation,
                since: now,
                lag_reported: false,
            });
        }
    }

    /// Whether the Dynamo namespaces of old's workers are known: at least one, and not more than are kept.
    pub(super) fn knows_namespaces(&self) -> bool {
        (1..MAX_NAMESPACES).contains(&self.namespaces.len())
    }

    fn learn_namespaces(&mut self, old: &Frontends) {
        let reported = old.namespaces();
        if old.all_answer() && !reported.is_empty() {
            self.namespaces = reported.into_iter().cloned().collect();
        } else {
            self.namespaces.extend(reported.into_iter().cloned());
        }
        while self.namespaces.len() > MAX_NAMESPACES {
            self.namespaces.pop_last();
        }
    }

    /// Records the current split and what a pause holds. Returns whether the split is a user's edit that must be
    /// reverted.
    pub(super) fn track_split(&mut self, settings: &UpdateSettings, seen: &Observation) -> bool {
        // An edit made during a pause is kept as the starting point, even if the same edit ends the pause.
        let is_free = settings.paused || self.held.is_some();
        let is_other = self.written.is_some_and(|written| written != seen.split);
        let edited = !seen.split_is_ours && is_other && !is_free;
        if !edited {
            self.written = Some(seen.split);
        }
        // A user's edit replaces the held split; an override does not.
        let held = self
            .held
            .filter(|_| seen.split_is_ours)
            .unwrap_or(seen.split);
        self.held = settings.paused.then_some(held);
        self.held_by_person = settings.paused && (self.held_by_person || !seen.split_is_ours);
        self.contested &= !settings.paused;
        edited
    }

    /// Records what the analysis found, and how far the steps are.
    pub(super) fn try_new(&mut self, assessment: &Assessment) {
        let (settings, seen) = (assessment.settings, assessment.seen);
        let (trial_result, now) = (seen.trial_result.as_ref(), assessment.now);
        self.trial
            .apply_verdict(settings, trial_result, seen.split, now);
        let may_gain = assessment.may_gain();
        self.trial
            .climb(settings, trial_result, seen.split, may_gain, now);
    }

    /// What to write immediately if new has failed since this memory was written: the memory with the failure.
    pub(super) fn latch(&self, after: &Self) -> Option<Action> {
        let mut memory = match self.subject == after.subject {
            true => self.clone(),
            false => Self {
                subject: after.subject.clone(),
                ..Self::default()
            },
        };
        memory.trial.clone_from(&after.trial);
        let is_new = after.trial.has_failed_since(&self.trial);
        is_new.then(|| Action::RecordFailure(Box::new(memory)))
    }

    /// Records the deciding rule and the phase.
    pub(super) fn enter(&mut self, rule: Rule, phase: Phase, now: Timestamp) {
        if self.rule != Some(rule) {
            (self.rule, self.rule_since) = (Some(rule), now);
        }
        if self.phase != phase {
            (self.phase, self.phase_since) = (phase, now);
        }
    }

    /// Records that lagging proxies were reported. Returns whether this is the first time.
    pub(super) fn report_lag(&mut self) -> bool {
        let change = self.change.as_mut();
        change.is_some_and(|change| !std::mem::replace(&mut change.lag_reported, true))
    }
}
