//! An update whose spec cannot be used any more: by its last valid spec new still loses what it cannot serve.
//!
//! Must not give new anything, nor end an update.

use std::time::Instant;

use k8s_openapi::jiff::Timestamp;

use super::apply::Wanted;
use super::held::{self, Held};
use super::job::Job;
use super::run::Controller;
use super::{Key, story};
use crate::k8s::Object;
use crate::resource::Problems;

impl Controller {
    /// What is done for an update with these `problems`; and until when not all of it has been heard, if it has not.
    pub(super) fn invalid(
        &mut self,
        key: &Key,
        object: &Object,
        updates: &[Object],
        problems: &Problems,
    ) -> (Job, Option<Instant>) {
        let (before, _) = held::status(object);
        let followed = self.followed(key, object, updates);
        let is_followed = followed.is_some();
        let generation = object.metadata.generation;
        let now = Timestamp::now();
        let mut status = story::invalid(&before, problems, is_followed, generation, now);
        let kept = story::kept(is_followed);
        let note = format!("{problems}\n{kept}");
        let Some((lost, early_until)) = followed else {
            return (self.refused(key, object, status, "Invalid", note), None);
        };
        // What is remembered of a loss goes with it: a gain has to last anew.
        if let Some(lost) = &lost {
            status.memory.clone_from(&lost.status.memory);
        }
        let mut job = self.refused(key, object, status, "Invalid", note);
        // Whatever is lost next is looked at as soon as for any other.
        job.is_refused = false;
        if let Some(lost) = lost {
            (job.found, job.wanted, job.wake_at) = (lost.found, lost.wanted, lost.wake_at);
            let told = lost.events.into_iter();
            job.events
                .extend(told.filter(|notice| notice.reason == "SplitChanged"));
        }
        (job, early_until)
    }

    /// What follows from the last valid spec, if one is known and all can be seen: a decision that takes from new, or none.
    fn followed(
        &mut self,
        key: &Key,
        object: &Object,
        updates: &[Object],
    ) -> Option<(Option<Job>, Option<Instant>)> {
        let (uid, valid) = self.valid.get(key)?;
        if *uid != object.metadata.uid {
            return None;
        }
        let mut by_valid = (**object).clone();
        by_valid.data["spec"] = held::update(object).by_valid_spec(valid).spec;
        let held = Held::read(&by_valid.into(), &self.settings).ok()?;
        let found = Wanted {
            split: held.split(),
            old_draining: held.spec.old_draining,
        };
        let seen = self.eyes.observe(&held, updates).ok()?;
        let early_until = seen.early_until;
        let job = self.decide(held, seen);
        let is_loss = job.wanted.is_some_and(|wanted| {
            wanted.split.gives_new_less_than(found.split)
                && (found.old_draining || !wanted.old_draining)
        });
        Some((is_loss.then_some(job), early_until))
    }
}
