//! Reconciles one update: parse, observe, decide, start to apply.
//!
//! Scheduling is left to the queue.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff;

use super::admission::TooMany;
use super::deletion_check::DeletionCheck;
use super::job::Job;
use super::observer::{self, Observed};
use super::parsed::{self, ParsedUpdate};
use super::queue::Due;
use super::tracked::{is_worth_writing, newest};
use super::work_loop::{Controller, RETRY_DELAY};
use super::{Key, status};
use crate::error_chain::error_chain;
use crate::k8s::{Notice, Object, identity_of};
use crate::resource::{DynamoUpdateConfigStatus, Identity, KIND};
use crate::rollout::{self, Decision, Phase, Timestamp};

/// Reconcile interval of a progressing or draining update. Slightly longer than [`super::tracked::FIGURES`], so that a status
/// write is due.
const MOVING: Duration = Duration::from_secs(11);
/// Reconcile interval of a complete update: something that newly routes clients to old must be noticed soon.
const COMPLETE: Duration = Duration::from_secs(5);
/// The interval between two looks of the analysis. If requests of new fail, the next look is earlier.
const ANALYSIS_INTERVAL: Duration = Duration::from_secs(1);

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
        let tracked = self.tracked.entry(key.clone()).or_default();
        let object = newest(&mut tracked.latest, found);
        if let Some(limit) = self.admission.refuses(&key) {
            let job = self.unfollowed(&key, &object, limit);
            return self.carry_out(job, due.changed);
        }
        let job = match tracked.parse(&object, &self.settings) {
            Err(problems) => {
                self.metrics.errors.with_label_values(&["invalid"]).inc();
                let (job, early_until) = self.invalid(&key, &object, &updates, &problems);
                if let Some(until) = early_until.filter(|_| due.can_wait(begun)) {
                    self.queue.postpone(due, begun, until);
                    return;
                }
                job
            }
            Ok(parsed) => match self.observer.observe(&parsed, &updates) {
                Ok(seen) => {
                    tracked.note_valid(&object);
                    let early_until = seen.reports_due_at;
                    let job = self.decide(&parsed, seen);
                    // Most proxies and frontends answer within moments, which wakes the update again. Only a new split does
                    // not wait for them.
                    let moves = job.desired().is_some() && job.desired() != job.found;
                    let can_wait = !moves && due.can_wait(begun);
                    if let Some(until) = early_until.filter(|_| can_wait) {
                        self.queue.postpone(due, begun, until);
                        return;
                    }
                    job
                }
                Err(error) if error.is_early() => {
                    self.queue.postpone(due, begun, begun + RETRY_DELAY);
                    return;
                }
                Err(error) => self.observe_failed(&key, &object, &parsed, &error),
            },
        };
        self.metrics.decision.observe(begun.elapsed().as_secs_f64());
        self.carry_out(job, due.changed);
    }

    fn carry_out(&mut self, job: Job, since: Option<Instant>) {
        match self.settings.options.dry_run {
            true => self.dry_run(job),
            false => self.apply(job, since),
        }
    }

    /// The job for an update beyond the limits.
    fn unfollowed(&mut self, key: &Key, object: &Object, limit: TooMany) -> Job {
        self.observer.stop_following(key);
        self.metrics.forget(key);
        if let Some(tracked) = self.tracked.get_mut(key) {
            tracked.shrink();
        }
        let (before, _) = parsed::status(object);
        let (cause, now) = (limit.message("updates"), jiff::Timestamp::now());
        let status = status::refused(
            before.clone(),
            &before,
            status::TOO_MANY,
            cause.clone(),
            object.metadata.generation,
            now,
        );
        self.refused(key, object, status, status::TOO_MANY, cause)
    }

    fn decide(&mut self, parsed: &ParsedUpdate, mut seen: Observed) -> Job {
        let now = now();
        let key = &parsed.key;
        let tracked = self.tracked.entry(key.clone()).or_default();
        let found = parsed.desired_split();
        if let Some(dry_run) = &tracked.dry_run {
            dry_run.overlay(found, &mut seen.observation);
        }
        let remembered = tracked
            .dry_run
            .as_ref()
            .map(|dry_run| dry_run.memory.clone());
        let mut memory = remembered.unwrap_or_else(|| parsed.memory());
        memory.contested |= tracked.is_contested;
        seen.observation.trial_result =
            tracked.trial_result(parsed, &memory.trial, &seen.compared, now);
        let mut wants = parsed.settings();
        wants.quiet_period = self.settings.options.quiet_period;
        let decision = rollout::step(&wants, &memory, &seen.observation, now);
        self.metrics.decided(key, &decision);
        self.observer
            .record_deletion_check(key, DeletionCheck::of(&parsed.identity, &decision));
        if decision.phase.old_drains() {
            self.observer.confirm(parsed);
        }
        let generation = parsed.identity.generation;
        let status = status::status(parsed, &seen, &decision, generation, jiff::Timestamp::now());
        let mut events = events(&parsed.identity, &decision);
        if let Some(lost) = &parsed.forgotten {
            self.metrics.errors.with_label_values(&["memory"]).inc();
            events.insert(0, forgotten(&parsed.identity, lost));
        }
        Job {
            write_status: parsed.forgotten.is_some()
                || self.is_changed(key, &parsed.status, &status),
            version: parsed.version.clone(),
            found: Some(found),
            wake_at: wake_at(&decision, now, seen.observation.trial_result.is_some()),
            actions: decision.actions,
            before: parsed.status.clone(),
            events,
            status,
            key: key.clone(),
            is_refused: false,
        }
    }

    /// The job for an update that cannot be observed, because of an error that does not resolve itself.
    fn observe_failed(
        &mut self,
        key: &Key,
        object: &Object,
        parsed: &ParsedUpdate,
        error: &observer::Error,
    ) -> Job {
        self.metrics.errors.with_label_values(&["not_synced"]).inc();
        let cause = error_chain(error);
        tracing::warn!(update = %key, "{cause}");
        let message = format!("making no changes until everything can be observed: {cause}");
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
        self.refused(key, object, status, "NotSynced", cause)
    }

    pub(super) fn refused(
        &mut self,
        key: &Key,
        object: &Object,
        status: DynamoUpdateConfigStatus,
        reason: &'static str,
        note: String,
    ) -> Job {
        self.observer.forget_deletion_check(key);
        let (before, _) = parsed::status(object);
        let is_new = before.message != status.message;
        let notice = Notice {
            about: identity_of(object),
            kind: KIND,
            reason,
            note,
            warning: true,
            occasion: 1,
        };
        Job {
            key: key.clone(),
            version: object.metadata.resource_version.clone().unwrap_or_default(),
            found: None,
            actions: Vec::new(),
            write_status: before != status,
            before,
            status,
            events: if is_new { vec![notice] } else { Vec::new() },
            wake_at: None,
            is_refused: true,
        }
    }

    /// Whether a status is worth writing.
    pub(super) fn is_changed(
        &self,
        key: &Key,
        before: &DynamoUpdateConfigStatus,
        after: &DynamoUpdateConfigStatus,
    ) -> bool {
        let tracked = self.tracked.get(key);
        let written_at = tracked.and_then(|tracked| tracked.status_written_at);
        is_worth_writing(before, after, written_at, status::without_figures)
    }
}

/// When to reconcile again after `decision`, which was made at `now`.
fn wake_at(decision: &Decision, now: Timestamp, is_analysed: bool) -> Option<Instant> {
    let begun = Instant::now();
    let decided = decision.wake_at;
    let decided = decided.map(|at| begun + at.since(now) + Duration::from_millis(1));
    let figures = match decision.phase {
        Phase::Progressing | Phase::Draining => Some(begun + MOVING),
        // Renews the validity of the flags in the status, and picks up what was first listed or polled just now.
        Phase::Complete => Some(begun + COMPLETE),
        Phase::Pending | Phase::Superseded => None,
    };
    let split = decision.desired.split;
    let is_tried = is_analysed && !split.is_all_old() && !split.is_all_new();
    let next_analysis = is_tried.then(|| begun + ANALYSIS_INTERVAL);
    decided
        .into_iter()
        .chain(figures)
        .chain(next_analysis)
        .min()
}

/// The Event for memory that could not be read.
fn forgotten(about: &Identity, lost: &str) -> Notice {
    let note = format!("parts of the status cannot be read and are discarded: {lost}");
    Notice {
        about: about.clone(),
        kind: KIND,
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
            kind: KIND,
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
