//! Starts to apply a job, and handles its result: backoff, Events, metrics.

use std::time::Instant;

use super::Key;
use super::apply;
use super::dry_run::DryRun;
use super::job::{Applied, Job};
use super::rejected_writes::Part;
use super::tracked::TrackedUpdate;
use super::work_loop::{Controller, RETRY_DELAY};
use crate::rollout::Action;

/// Events about a split, which are emitted as soon as the split is written.
const SPLIT_EVENTS: [&str; 2] = ["SplitChanged", CONTESTED];
/// Its Event is emitted only once.
const CONTESTED: &str = "SplitContested";

impl Controller {
    /// Dry run: logs the job and keeps its result in memory.
    pub(super) fn dry_run(&mut self, job: Job) {
        let key = &job.key;
        if let Some(at) = job.wake_at {
            self.queue.wake_at(key.clone(), at);
        } else if job.is_refused {
            self.queue.failed(key, Instant::now(), fastrand::f64());
        }
        let tracked = self.tracked.entry(key.clone()).or_default();
        let dry_run = DryRun::of(&job, tracked.dry_run.as_ref());
        let before = tracked.dry_run.as_ref();
        if before.is_none_or(|before| before.last_message != dry_run.last_message) {
            tracing::info!("{key}: {}", dry_run.last_message);
        }
        for notice in &job.events {
            tracing::info!("{key}: would report {}: {}", notice.reason, notice.note);
        }
        tracked.dry_run = Some(dry_run);
    }

    pub(super) fn apply(&mut self, mut job: Job, since: Option<Instant>) {
        let (key, now) = (job.key.clone(), Instant::now());
        let rejected_writes = &self.tracked.entry(key.clone()).or_default().rejected_writes;
        let mut untold_until = rejected_writes.until(&Part::Status, now);
        let actions = std::mem::take(&mut job.actions);
        for (action, until) in rejected_writes.of_actions(actions, now) {
            let Some(until) = until else {
                job.actions.push(action);
                continue;
            };
            self.queue.wake_at(key.clone(), until);
            if action.is_required() {
                if job.actions.is_empty() {
                    // No Event is emitted either, as nothing has happened.
                    return;
                }
                untold_until = Some(until);
                break;
            }
        }
        if let Some(until) = untold_until {
            job.write_status = false;
            self.queue.wake_at(key.clone(), until);
        }
        if job.actions.is_empty() && !job.write_status {
            self.end_reconcile(&key, job.is_refused);
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
    fn end_reconcile(&mut self, key: &Key, is_refused: bool) {
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
        if let Some(at) = done.wake_at {
            self.queue.wake_at(key.clone(), at);
        }
        // Do not remember an update that was deleted in the meantime.
        let mut none = TrackedUpdate::default();
        let tracked = self.tracked.get_mut(&key).unwrap_or(&mut none);
        if let Some(object) = done.object {
            tracked.latest = Some(object);
        }
        for part in &done.written {
            tracked.rejected_writes.record_success(part);
        }
        let is_reported = done.written.contains(&Part::Status);
        if is_reported {
            tracked.status_written_at = Some(now);
        }
        let is_split = |part: &Part| matches!(part, Part::Action(Action::SetSplit(_)));
        let is_split = done.written.iter().any(is_split);
        let mut events = done.events;
        // Events that no write records are dropped here: the next reconcile emits them again.
        events.retain(|notice| is_reported || (is_split && SPLIT_EVENTS.contains(&notice.reason)));
        if is_reported {
            tracked.is_contested = false;
        } else if events.iter().any(|notice| notice.reason == CONTESTED) {
            tracked.is_contested = true;
        }
        for notice in events {
            tracing::info!(update = %key, reason = notice.reason, "{}", notice.note);
            self.notices.publish(notice);
        }
        match done.failed {
            None => {
                self.end_reconcile(&key, done.is_refused);
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
                self.queue.wake_at(key, now + RETRY_DELAY);
            }
            Some((part, error)) => {
                self.metrics.errors.with_label_values(&["write"]).inc();
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(update = %key, cause, "{error}");
                let until = tracked
                    .rejected_writes
                    .record_rejection(part, now, fastrand::f64());
                self.queue.done(&key);
                self.queue.wake_at(key, until);
            }
        }
    }

    /// Handles a job that panicked.
    pub(super) fn job_panicked(&mut self, key: &Key) {
        self.metrics.errors.with_label_values(&["panic"]).inc();
        tracing::error!(update = %key, "the write panicked");
        self.queue.failed(key, Instant::now(), fastrand::f64());
    }
}
