//! An update whose spec cannot be used any more: by its last valid spec each side still loses what it cannot serve.
//!
//! The split that follows goes to the status, which only the controller may write: a proxy cannot know whose a split is within
//! an edit that it must refuse. Must not give a side anything but what the other one lost, nor end an update.

use std::time::Instant;

use k8s_openapi::jiff;
use serde_json::{Value as Json, json};

use super::job::Job;
use super::observer::Observed;
use super::parsed::{self, ParsedUpdate};
use super::reconcile::{events, now};
use super::work_loop::{AGAIN, Controller};
use super::{Key, status};
use crate::k8s::Object;
use crate::resource::LastValidStatus;
use crate::resource::Problems;
use crate::rollout::{self, Decision};

/// A spec that could be used.
#[derive(Clone)]
pub(super) struct Valid {
    uid: Option<String>,
    generation: i64,
    spec: Json,
}

/// Not everything is listed yet.
struct Early;

/// What follows from the last valid spec.
struct Followed {
    parsed: ParsedUpdate,
    seen: Observed,
    decision: Decision,
}

impl Controller {
    /// Keeps in mind the spec of an update that can be used.
    pub(super) fn note_valid(&mut self, key: &Key, object: &Object) {
        let valid = Valid {
            uid: object.metadata.uid.clone(),
            generation: object.metadata.generation.unwrap_or(0),
            spec: object.data["spec"].clone(),
        };
        self.valid.insert(key.clone(), valid);
    }

    /// What is done for an update with these `problems`; and until when not all of it has been heard, if it has not.
    pub(super) fn invalid(
        &mut self,
        key: &Key,
        object: &Object,
        updates: &[Object],
        problems: &Problems,
    ) -> (Job, Option<Instant>) {
        let (before, _) = parsed::status(object);
        let generation = object.metadata.generation;
        let valid = self.last_valid(key, object);
        let followed = valid
            .as_ref()
            .map_or(Ok(None), |valid| self.follow(object, valid, updates));
        let (followed, early_until) = match followed {
            Ok(followed) => (followed, None),
            Err(Early) => (None, Some(Instant::now() + AGAIN)),
        };
        let kept = status::kept(followed.is_some());
        let told = |shown| {
            let now = jiff::Timestamp::now();
            status::invalid(shown, &before, problems, kept, generation, now)
        };
        let note = format!("{problems}\n{kept}");
        let Some(Followed {
            parsed,
            seen,
            decision,
        }) = followed
        else {
            let mut status = told(before.clone());
            status.last_valid = valid.and_then(|valid| valid.told(generation));
            return (
                self.refused(key, object, status, "Invalid", note),
                early_until,
            );
        };
        let split = decision.split.unwrap_or(seen.observation.split);
        self.metrics.decided(key, &decision, split);
        let shown = status::status(
            &parsed,
            &seen,
            &decision,
            generation,
            jiff::Timestamp::now(),
        );
        let mut status = told(shown);
        status.last_valid = valid.and_then(|mut valid| {
            let fields = valid.spec.as_object_mut()?;
            fields.insert("trafficSplitPercent".into(), split.rounded_percent().into());
            let weights = json!({"old": split.old(), "new": split.new_weight()});
            fields.insert("weights".into(), weights);
            fields.insert("oldDraining".into(), decision.old_draining.into());
            valid.told(generation)
        });
        let mut job = self.refused(key, object, status, "Invalid", note);
        job.write_status = self.is_news(key, &before, &job.status);
        // Whatever is lost next is looked at as soon as for any other.
        job.is_refused = false;
        let told = events(&parsed.identity, &decision).into_iter();
        job.events
            .extend(told.filter(|notice| notice.reason == "SplitChanged"));
        // Only a loss does not wait for those who may still answer.
        let early_until = seen.early_until.filter(|_| decision.split.is_none());
        (job, early_until)
    }

    /// The last valid spec of this very object: what was seen of it, or what a controller before has noted in its status, which
    /// has the split that losses have led to since.
    pub(super) fn last_valid(&self, key: &Key, object: &Object) -> Option<Valid> {
        let (status, _) = parsed::status(object);
        let noted = status.last_valid;
        let uid = &object.metadata.uid;
        let seen = self.valid.get(key).filter(|valid| valid.uid == *uid);
        match (seen, noted) {
            (Some(seen), Some(noted)) if noted.generation < seen.generation => Some(seen.clone()),
            (_, Some(noted)) => Some(Valid {
                uid: uid.clone(),
                generation: noted.generation,
                spec: noted.spec,
            }),
            (seen, None) => seen.cloned(),
        }
    }

    /// Decides by `valid`, if the cluster can be seen by it.
    fn follow(
        &self,
        object: &Object,
        valid: &Valid,
        updates: &[Object],
    ) -> Result<Option<Followed>, Early> {
        let mut by_valid = (**object).clone();
        by_valid.data["spec"] = valid.spec.clone();
        by_valid.metadata.generation = Some(valid.generation);
        let Ok(parsed) = ParsedUpdate::read(&by_valid.into(), &self.settings) else {
            return Ok(None);
        };
        let mut seen = match self.observer.observe(&parsed, updates) {
            Ok(seen) => seen,
            Err(error) if error.is_early() => return Err(Early),
            Err(_) => return Ok(None),
        };
        // It is what was written here last, whoever wrote the edit.
        seen.observation.split_is_ours = true;
        let mut settings = parsed.wants();
        settings.losses_only = true;
        let decision = rollout::step(&settings, &parsed.memory(), &seen.observation, now());
        Ok(Some(Followed {
            parsed,
            seen,
            decision,
        }))
    }
}

impl Valid {
    pub const fn spec(&self) -> &Json {
        &self.spec
    }

    /// As it is noted in the status, beside the edit of this generation that cannot be used.
    fn told(self, instead_of: Option<i64>) -> Option<LastValidStatus> {
        Some(LastValidStatus {
            generation: self.generation,
            instead_of: instead_of?,
            spec: self.spec,
        })
    }
}
