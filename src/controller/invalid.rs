//! Handles an update whose spec has become invalid: according to its last valid spec, each generation still loses traffic when
//! it loses capacity.
//!
//! The resulting split goes to the status, which only the controller writes: a proxy that must reject an edit cannot tell whether
//! its split comes from the controller or from the user. A generation gains only what the other one loses, and no update is
//! completed this way.

use std::time::Instant;

use k8s_openapi::jiff;
use serde_json::json;

use super::job::Job;
use super::last_valid::LastValid;
use super::observer::{NotYetObserved, Observed};
use super::parsed::{self, ParsedUpdate};
use super::reconcile::{events, now};
use super::work_loop::{Controller, RETRY_DELAY};
use super::{Key, status};
use crate::k8s::Object;
use crate::resource::Problems;
use crate::rollout::{self, Decision};

/// A decision by the last valid spec, and what it is based on.
struct Followed {
    parsed: ParsedUpdate,
    seen: Observed,
    decision: Decision,
}

impl Controller {
    /// The job for an update with these `problems`. If its inputs are not complete yet, also returns when to try again.
    pub(super) fn invalid(
        &mut self,
        key: &Key,
        object: &Object,
        updates: &[Object],
        problems: &Problems,
    ) -> (Job, Option<Instant>) {
        let (before, _) = parsed::status(object);
        let generation = object.metadata.generation;
        let tracked = self.tracked.get(key);
        let valid = tracked.and_then(|tracked| tracked.last_valid(object));
        let followed = valid
            .as_ref()
            .map_or(Ok(None), |valid| self.follow(object, valid, updates));
        let (followed, early_until) = match followed {
            Ok(followed) => (followed, None),
            Err(NotYetObserved) => (None, Some(Instant::now() + RETRY_DELAY)),
        };
        let invalid_spec_note = status::invalid_spec_note(followed.is_some());
        let reported = |shown| {
            let now = jiff::Timestamp::now();
            status::invalid(shown, &before, problems, invalid_spec_note, generation, now)
        };
        let note = format!("{problems}\n{invalid_spec_note}");
        let Some(Followed {
            parsed,
            seen,
            decision,
        }) = followed
        else {
            let mut status = reported(before.clone());
            status.last_valid = valid.and_then(|valid| valid.status(generation));
            return (
                self.refused(key, object, status, "Invalid", note),
                early_until,
            );
        };
        let split = decision.desired.split;
        self.metrics.decided(key, &decision);
        let shown = status::status(
            &parsed,
            &seen,
            &decision,
            generation,
            jiff::Timestamp::now(),
        );
        let mut status = reported(shown);
        status.last_valid = valid.and_then(|mut valid| {
            let fields = valid.spec.as_object_mut()?;
            fields.insert("trafficSplitPercent".into(), split.rounded_percent().into());
            let weights = json!({"old": split.old(), "new": split.new_weight()});
            fields.insert("weights".into(), weights);
            fields.insert("oldDraining".into(), decision.desired.old_draining.into());
            valid.status(generation)
        });
        let mut job = self.refused(key, object, status, "Invalid", note);
        job.write_status = self.is_changed(key, &before, &job.status);
        // No backoff: the next loss must be handled as fast as for any other update.
        job.is_refused = false;
        let reported = events(&parsed.identity, &decision).into_iter();
        job.events
            .extend(reported.filter(|notice| notice.reason == "SplitChanged"));
        // Only a loss is applied without waiting for proxies and frontends that may still answer.
        let early_until = seen
            .reports_due_at
            .filter(|_| split == seen.observation.split);
        (job, early_until)
    }

    /// Decides by the spec in `valid`. `None` if that spec is invalid, too, or the cluster cannot be observed by it.
    ///
    /// # Errors
    /// When something is not listed yet.
    fn follow(
        &mut self,
        object: &Object,
        valid: &LastValid,
        updates: &[Object],
    ) -> Result<Option<Followed>, NotYetObserved> {
        let mut by_valid = (**object).clone();
        by_valid.data["spec"] = valid.spec.clone();
        by_valid.metadata.generation = Some(valid.generation);
        let Ok(parsed) = ParsedUpdate::read(&by_valid.into(), &self.settings) else {
            return Ok(None);
        };
        let mut seen = match self.observer.observe(&parsed, updates) {
            Ok(seen) => seen,
            Err(error) if error.is_early() => return Err(NotYetObserved),
            Err(_) => return Ok(None),
        };
        // The controller wrote this split, no matter who wrote the edit.
        seen.observation.split_is_ours = true;
        let mut settings = parsed.settings();
        settings.losses_only = true;
        let (memory, now) = (parsed.memory(), now());
        let tracked = self.tracked.entry(parsed.key.clone()).or_default();
        seen.observation.trial_result =
            tracked.trial_result(&parsed, &memory.trial, &seen.compared, now);
        let decision = rollout::step(&settings, &memory, &seen.observation, now);
        Ok(Some(Followed {
            parsed,
            seen,
            decision,
        }))
    }
}
