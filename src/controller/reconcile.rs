//! Reconciles one update: parse, observe, decide, start to apply; then handles the result.
//!
//! Scheduling is left to the queue.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff;

use super::apply::{self, DesiredSplit};
use super::backoff::Part;
use super::dry_run::DryRun;
use super::job::{Applied, Job};
use super::observer::{self, Observed};
use super::parsed::{self, ParsedUpdate};
use super::queue::Due;
use super::work_loop::{AGAIN, Controller};
use super::{Key, status};
use crate::error_chain::error_chain;
use crate::k8s::{Notice, Object};
use crate::resource::{DynamoUpdateConfigStatus, Identity};
use crate::rollout::{self, Decision, Phase, Rule, Timestamp};

/// Minimum interval between status writes if only figures have changed.
const FIGURES: Duration = Duration::from_secs(10);
/// Reconcile interval of a progressing or draining update. Slightly longer than [`FIGURES`], so that a status write is due.
const MOVING: Duration = Duration::from_secs(11);
/// Reconcile interval of a complete update: something that newly routes clients to old must be noticed soon.
const COMPLETE: Duration = Duration::from_secs(5);
/// Events about a split, which are emitted as soon as the split is written.
const OF_SPLIT: [&str; 2] = ["SplitChanged", CONTESTED];
/// Its Event is emitted only once.
const CONTESTED: &str = "SplitContested";

impl Controller {
    /// Reconciles an update that is due, and starts to apply the decision.
    pub(super) fn reconcile(&mut self, due: Due) {
        let key = due.key.clone();
        let updates = self.updates(Some(&key.namespace));
        let is_it = |object: &&Object| object.metadata.name.as_ref() == Some(&key.name);
        let Some(found) = updates.iter().find(is_it) else {
            return;
        };
        let begun = Instant::now();
        self.metrics.reconciles.inc();
        let object = self.newest(&key, found);
        let job = match ParsedUpdate::read(&object, &self.settings) {
            Err(problems) => {
                self.metrics.errors.with_label_values(&["invalid"]).inc();
                let (job, early_until) = self.invalid(&key, &object, &updates, &problems);
                if let Some(until) = early_until {
                    self.queue.put_back(due, until);
                    return;
                }
                job
            }
            Ok(parsed) => match self.observer.observe(&parsed, &updates) {
                Ok(seen) => {
                    self.note_valid(&key, &object);
                    let early_until = seen.early_until;
                    let job = self.decide(parsed, seen);
                    // Most proxies and frontends answer within moments, which wakes the update again. Only a new split does
                    // not wait for them.
                    let moves = job.wanted.is_some() && job.wanted != job.found;
                    if let Some(until) = early_until.filter(|_| !moves) {
                        self.queue.put_back(due, until);
                        return;
                    }
                    job
                }
                Err(error) if error.is_early() => {
                    self.queue.put_back(due, begun + AGAIN);
                    return;
                }
                Err(error) => self.observe_failed(&key, &object, &parsed, &error),
            },
        };
        self.metrics.decision.observe(begun.elapsed().as_secs_f64());
        if self.settings.dry_run {
            self.pretend(job);
            return;
        }
        self.apply(job, due.changed);
    }

    /// The newest known version of the update: the watch may lag behind the controller's own writes.
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

    fn decide(&mut self, parsed: ParsedUpdate, mut seen: Observed) -> Job {
        let now = now();
        let dry = self.dry.get(&parsed.key);
        let found = DesiredSplit {
            split: parsed.split(),
            old_draining: parsed.spec.old_draining,
        };
        if let Some(dry) = dry {
            dry.overlay(found, &mut seen.observation);
        }
        let mut memory = dry.map_or_else(|| parsed.memory(), |dry| dry.memory.clone());
        memory.contested |= self.contested.contains(&parsed.key);
        let mut wants = parsed.wants();
        wants.quiet_period = self.settings.quiet_period;
        let decision = rollout::step(&wants, &memory, &seen.observation, now);
        let split = decision.split.unwrap_or(seen.observation.split);
        self.metrics.decided(&parsed.key, &decision, split);
        let before = &seen.observation;
        let is_ruled = decision.rule != Rule::Superseded;
        let changes = decision.split.is_some()
            || decision.old_draining != before.old_draining
            || (parsed.lacks_split && is_ruled);
        let wanted = changes.then_some(DesiredSplit {
            split,
            old_draining: decision.old_draining,
        });
        let generation = parsed.identity.generation;
        let status = status::status(
            &parsed,
            &seen,
            &decision,
            generation,
            jiff::Timestamp::now(),
        );
        let wake_at = decision
            .wake_at
            .map(|at| Instant::now() + at.since(now) + Duration::from_millis(1));
        let moves = matches!(decision.phase, Phase::Progressing | Phase::Draining);
        let figures = match decision.phase {
            _ if moves => Some(Instant::now() + MOVING),
            // Renews the promises in the status, and picks up what was first listed or polled just now.
            Phase::Complete => Some(Instant::now() + COMPLETE),
            _ => None,
        };
        let wake_at = wake_at.into_iter().chain(figures).min();
        let mut events = events(&parsed.identity, &decision);
        if let Some(lost) = &parsed.forgotten {
            self.metrics.errors.with_label_values(&["memory"]).inc();
            events.insert(0, forgotten(&parsed.identity, lost));
        }
        Job {
            write_status: parsed.forgotten.is_some()
                || self.is_news(&parsed.key, &parsed.status, &status),
            version: parsed.version,
            found: Some(found),
            wanted,
            events,
            status,
            wake_at,
            key: parsed.key,
            is_refused: false,
        }
    }

    /// The job for an update that cannot be observed, because of an error that does not pass by itself.
    fn observe_failed(
        &mut self,
        key: &Key,
        object: &Object,
        parsed: &ParsedUpdate,
        error: &observer::Error,
    ) -> Job {
        self.metrics.errors.with_label_values(&["sight"]).inc();
        let told = error_chain(error);
        tracing::warn!(update = %key, "{told}");
        let message = format!("nothing is changed while something cannot be observed: {told}");
        let generation = object.metadata.generation;
        let now = jiff::Timestamp::now();
        let before = &parsed.status;
        let status = status::refused(
            before.clone(),
            before,
            "NotSynced",
            message,
            generation,
            now,
        );
        self.refused(key, object, status, "NotSynced", told)
    }

    pub(super) fn refused(
        &mut self,
        key: &Key,
        object: &Object,
        status: DynamoUpdateConfigStatus,
        reason: &'static str,
        note: String,
    ) -> Job {
        let (before, _) = parsed::status(object);
        let is_new = before.message != status.message;
        let notice = Notice {
            about: parsed::identity(object),
            reason,
            note,
            warning: true,
            occasion: 1,
        };
        Job {
            key: key.clone(),
            version: object.metadata.resource_version.clone().unwrap_or_default(),
            found: None,
            wanted: None,
            write_status: before != status,
            status,
            events: if is_new { vec![notice] } else { Vec::new() },
            wake_at: None,
            is_refused: true,
        }
    }

    /// Whether a status is worth writing.
    pub(super) fn is_news(
        &self,
        key: &Key,
        before: &DynamoUpdateConfigStatus,
        after: &DynamoUpdateConfigStatus,
    ) -> bool {
        if status::still(before) != status::still(after) {
            return true;
        }
        let is_due = self
            .told
            .get(key)
            .is_none_or(|told| told.elapsed() >= FIGURES);
        before != after && is_due
    }

    /// Logs what would be written, and remembers it as if it had been.
    fn pretend(&mut self, job: Job) {
        let key = &job.key;
        if let Some(at) = job.wake_at {
            self.queue.wake_at(key.clone(), at);
        } else if job.is_refused {
            self.queue.failed(key, Instant::now(), fastrand::f64());
        }
        let dry = DryRun::of(&job, self.dry.get(key));
        let is_news = self
            .dry
            .get(key)
            .is_none_or(|before| before.said != dry.said);
        if is_news {
            tracing::info!("{key}: {}", dry.said);
        }
        for notice in &job.events {
            tracing::info!("{key}: would tell {}: {}", notice.reason, notice.note);
        }
        self.dry.insert(job.key, dry);
    }

    fn apply(&mut self, mut job: Job, since: Option<Instant>) {
        let (key, now) = (job.key.clone(), Instant::now());
        let until = |part| self.backoffs.until(&key, part, now);
        if let Some(until) = job.wanted.and_then(|wanted| until(Part::Spec(wanted))) {
            // No Event is emitted either, as nothing has happened.
            self.queue.wake_at(key, until);
            return;
        }
        let untold_until = until(Part::Status);
        if let Some(until) = untold_until {
            job.write_status = false;
            self.queue.wake_at(key.clone(), until);
        }
        if job.wanted.is_none() && !job.write_status {
            self.rest(&key, job.is_refused);
            if let Some(at) = job.wake_at {
                self.queue.wake_at(key, at);
            }
            return;
        }
        self.queue.begin(&key);
        let running = job.run(self.writer.clone(), since, untold_until.is_none());
        let task = self.running.spawn(running);
        self.tasks.insert(task.id(), key);
    }

    /// Ends a reconcile: with backoff if the user has to fix something, without otherwise.
    fn rest(&mut self, key: &Key, is_refused: bool) {
        match is_refused {
            true => self.queue.failed(key, Instant::now(), fastrand::f64()),
            false => self.queue.done(key),
        }
    }

    /// Handles the result of a job.
    pub(super) fn finish(&mut self, key: Key, done: Applied) {
        let now = Instant::now();
        self.metrics
            .apply
            .observe(done.begun.elapsed().as_secs_f64());
        if let Some(object) = done.object {
            self.latest.insert(key.clone(), object);
        }
        for part in &done.written {
            self.backoffs.written(&key, *part);
        }
        if let Some(at) = done.wake_at {
            self.queue.wake_at(key.clone(), at);
        }
        let is_told = done.written.contains(&Part::Status);
        if is_told {
            self.told.insert(key.clone(), now);
        }
        let is_split = done.written.iter().any(|part| *part != Part::Status);
        let mut events = done.events;
        // Events that no write records are dropped here: the next reconcile emits them again.
        events.retain(|notice| is_told || (is_split && OF_SPLIT.contains(&notice.reason)));
        if is_told {
            self.contested.remove(&key);
        } else if events.iter().any(|notice| notice.reason == CONTESTED) {
            self.contested.insert(key.clone());
        }
        for notice in events {
            tracing::info!(update = %key, reason = notice.reason, "{}", notice.note);
            self.notices.tell(notice);
        }
        match done.failed {
            None => {
                self.rest(&key, done.is_refused);
                if let Some(since) = done.since {
                    self.metrics.reaction.observe(since.elapsed().as_secs_f64());
                }
            }
            Some((_, apply::Error::Changed)) => {
                self.metrics.errors.with_label_values(&["changed"]).inc();
                self.queue.failed(&key, now, fastrand::f64());
            }
            // The next leader reconciles again, even if it is this replica.
            Some((_, apply::Error::NotLeading)) => {
                self.queue.done(&key);
                self.queue.wake_at(key, now + AGAIN);
            }
            Some((part, error)) => {
                self.metrics.errors.with_label_values(&["write"]).inc();
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(update = %key, cause, "{error}");
                let until = self.backoffs.refused(&key, part, now, fastrand::f64());
                self.queue.done(&key);
                self.queue.wake_at(key, until);
            }
        }
    }

    /// Handles a job that panicked.
    pub(super) fn broke(&mut self, key: &Key) {
        self.metrics.errors.with_label_values(&["panic"]).inc();
        tracing::error!(update = %key, "writing it has panicked");
        self.queue.failed(key, Instant::now(), fastrand::f64());
    }
}

/// The Event for memory that could not be read.
fn forgotten(about: &Identity, lost: &str) -> Notice {
    let note = format!(
        "parts of the status cannot be read, so what was remembered in them is forgotten: {lost}"
    );
    Notice {
        about: about.clone(),
        reason: "MemoryLost",
        note,
        warning: true,
        occasion: now().unix_millis(),
    }
}

pub(super) fn events(about: &Identity, decision: &Decision) -> Vec<Notice> {
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

pub(super) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_unix_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
