//! A look at one update: read, observe, decide, begin to apply; and what follows when that has ended.
//!
//! Must not know when it is time to look.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;

use super::apply::{self, Wanted};
use super::held::{self, Held};
use super::job::{Applied, Job};
use super::observe::{self, Seen};
use super::queue::Due;
use super::run::{AGAIN, Controller, RESYNC};
use super::{Key, story};
use crate::k8s::{Notice, Object};
use crate::resource::{DynamoUpdateConfigStatus, Identity};
use crate::rollout::{self, Decision, Moment};

/// Where only figures have changed, a status is not written more often.
const FIGURES: Duration = Duration::from_secs(10);
/// What a person must mend is looked at again.
const MENDED: Duration = Duration::from_secs(5);

impl Controller {
    /// Looks at what is due, and begins to apply what follows.
    pub(super) fn look_at(&mut self, due: Due) {
        let key = due.key;
        let updates = self.updates(Some(&key.namespace));
        let is_it = |object: &&Object| object.metadata.name.as_ref() == Some(&key.name);
        let Some(found) = updates.iter().find(is_it) else {
            return;
        };
        let begun = Instant::now();
        self.metrics.reconciles.inc();
        let object = self.newest(&key, found);
        let job = match Held::read(&object, &self.settings) {
            Err(problems) => {
                let before = held::status(&object);
                let generation = object.metadata.generation;
                let status = story::invalid(&before, &problems, generation, Timestamp::now());
                self.metrics.errors.with_label_values(&["invalid"]).inc();
                let note = format!("{problems}\nThe split is left as it is.");
                self.refused(&key, &object, status, "Invalid", note)
            }
            Ok(held) => match self.eyes.observe(&held, &updates) {
                Ok(seen) => self.decide(held, seen),
                Err(error) if error.is_early() => {
                    // Who hears of a proxy or a frontend is woken by that.
                    let is_woken = matches!(error, observe::Error::Unheard(_));
                    let pause = if is_woken { RESYNC } else { AGAIN };
                    self.queue.wake_at(key, begun + pause);
                    return;
                }
                Err(error) => self.blind(&key, &object, &held, &error),
            },
        };
        self.metrics.decision.observe(begun.elapsed().as_secs_f64());
        if self.settings.dry_run {
            return;
        }
        self.apply(job, due.changed);
    }

    /// The update as it is: what was written may not have come by the watch yet.
    fn newest(&mut self, key: &Key, found: &Object) -> Object {
        let version = |object: &Object| -> u64 {
            let version = object.metadata.resource_version.as_deref();
            version
                .and_then(|version| version.parse().ok())
                .unwrap_or(0)
        };
        match self.latest.get(key) {
            Some(latest)
                if version(latest) > version(found)
                    && latest.metadata.uid == found.metadata.uid =>
            {
                Arc::clone(latest)
            }
            _ => {
                self.latest.remove(key);
                Arc::clone(found)
            }
        }
    }

    fn decide(&mut self, held: Held, seen: Seen) -> Job {
        let now = now();
        let dry = self.dry.get(&held.key).map(|(memory, _)| memory.clone());
        let memory = dry.unwrap_or_else(|| held.memory());
        let decision = rollout::step(&held.wants(), &memory, &seen.observation, now);
        let split = decision.split.unwrap_or(seen.observation.split);
        self.metrics.decided(&held.key, &decision, split);
        let changes = decision.split.is_some() || decision.old_draining != held.spec.old_draining;
        let wanted = changes.then_some(Wanted {
            split: decision
                .split
                .or_else(|| held.split_is_ours.then_some(split)),
            old_draining: decision.old_draining,
        });
        if self.settings.dry_run {
            self.say(&held.key, &decision);
        }
        let generation = held.identity.generation;
        let status = story::status(&held, &seen, &decision, generation, Timestamp::now());
        let wake_at = decision
            .wake_at
            .map(|at| Instant::now() + at.since(now) + Duration::from_millis(1));
        // The time that a drain still needs is a figure, too.
        let figures = decision.drain_estimate.map(|_| Instant::now() + FIGURES);
        let wake_at = wake_at.into_iter().chain(figures).min();
        Job {
            write_status: self.is_news(&held.key, &held.status, &status),
            version: held.version,
            wanted,
            events: events(&held.identity, &decision),
            status,
            wake_at,
            key: held.key,
        }
    }

    /// Something keeps a sight from being complete that does not pass by itself.
    fn blind(&mut self, key: &Key, object: &Object, held: &Held, error: &observe::Error) -> Job {
        self.metrics.errors.with_label_values(&["sight"]).inc();
        let mut told = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(one) = cause {
            told = format!("{told}: {one}");
            cause = one.source();
        }
        tracing::warn!(update = %key, "{told}");
        let message = format!("nothing is changed while not all can be seen: {told}");
        let generation = object.metadata.generation;
        let now = Timestamp::now();
        let status = story::refused(&held.status, "Unseen", message, generation, now);
        self.refused(key, object, status, "Unseen", told)
    }

    fn refused(
        &mut self,
        key: &Key,
        object: &Object,
        status: DynamoUpdateConfigStatus,
        reason: &'static str,
        note: String,
    ) -> Job {
        let before = held::status(object);
        let is_new = before.message != status.message;
        let notice = Notice {
            about: held::identity(object),
            reason,
            note,
            warning: true,
            occasion: 1,
        };
        Job {
            key: key.clone(),
            version: object.metadata.resource_version.clone().unwrap_or_default(),
            wanted: None,
            write_status: before != status,
            status,
            events: if is_new { vec![notice] } else { Vec::new() },
            wake_at: Some(Instant::now() + MENDED),
        }
    }

    /// Is a status worth to be written?
    fn is_news(
        &self,
        key: &Key,
        before: &DynamoUpdateConfigStatus,
        after: &DynamoUpdateConfigStatus,
    ) -> bool {
        if story::still(before) != story::still(after) {
            return true;
        }
        let is_due = self
            .told
            .get(key)
            .is_none_or(|told| told.elapsed() >= FIGURES);
        before != after && is_due
    }

    fn say(&mut self, key: &Key, decision: &Decision) {
        let before = self.dry.insert(
            key.clone(),
            (decision.memory.clone(), decision.message.clone()),
        );
        if before.is_none_or(|(_, message)| message != decision.message) {
            println!("{key}: {}", decision.message);
        }
    }

    fn apply(&mut self, job: Job, since: Option<Instant>) {
        let key = job.key.clone();
        if job.wanted.is_none() && !job.write_status {
            self.queue.done(&key);
            if let Some(at) = job.wake_at {
                self.queue.wake_at(key, at);
            }
            return;
        }
        self.queue.begin(&key);
        self.running.spawn(job.run(self.writer.clone(), since));
    }

    /// Notes how an application ended.
    pub(super) fn finish(&mut self, key: Key, done: Applied) {
        self.metrics
            .apply
            .observe(done.begun.elapsed().as_secs_f64());
        match done.result {
            Ok(object) => {
                self.queue.done(&key);
                if let Some(since) = done.since {
                    self.metrics.reaction.observe(since.elapsed().as_secs_f64());
                }
                self.told.insert(key.clone(), Instant::now());
                if let Some(object) = object {
                    self.latest.insert(key.clone(), object);
                }
                for notice in done.events {
                    tracing::info!(update = %key, reason = notice.reason, "{}", notice.note);
                    self.notices.tell(notice);
                }
                if let Some(at) = done.wake_at {
                    self.queue.wake_at(key, at);
                }
            }
            Err(apply::Error::Changed) => {
                self.metrics.errors.with_label_values(&["changed"]).inc();
                self.queue.done(&key);
                self.queue.wake_at(key, Instant::now() + AGAIN);
            }
            // Whoever leads next looks anew, be it this one.
            Err(apply::Error::NotLeading) => {
                self.queue.done(&key);
                self.queue.wake_at(key, Instant::now() + AGAIN);
            }
            Err(error) => {
                self.metrics.errors.with_label_values(&["write"]).inc();
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(update = %key, cause, "{error}");
                self.queue.failed(&key, Instant::now(), fastrand::f64());
            }
        }
    }
}

fn events(about: &Identity, decision: &Decision) -> Vec<Notice> {
    let occasion = now().unix_millis();
    let events = decision.events.iter();
    events
        .map(|event| Notice {
            about: about.clone(),
            reason: event.reason,
            note: event.message.clone(),
            warning: event.is_warning,
            occasion,
        })
        .collect()
}

fn now() -> Moment {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Moment::from_unix_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
