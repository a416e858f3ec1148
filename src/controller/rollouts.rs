//! Reconciles every `DynamoRollout`: observe, decide by [`crate::scaling`], carry out one action, write the status.
//!
//! The traffic is that of a `DynamoUpdateConfig` which the rollout owns, and which the controller observes like any other
//! update. Everything that must survive a reconcile is in the status of the rollout. Contains no policy.

mod accept;
mod act;
mod autoscalers;
mod candidates;
mod conditions;
mod events;
mod frontends;
mod history;
mod job;
mod memory;
mod next;
mod objects;
mod observe;
mod quota;
mod reconcile;
mod revisions;
mod services;
mod status;
mod takeover;
mod tracked;
mod update;
mod update_status;
mod write;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::CustomResourceExt;
use serde_json::Value as Json;
use tokio::task::JoinSet;

pub(super) use self::job::Done;
use self::job::{RolloutAction, Work};
use self::tracked::TrackedRollout;
use self::write::{Writer, WrittenObject};
use super::admission::Admission;
use super::leader_client::LeaderClient;
use super::observer::{NotYetObserved, Observer};
use super::queue::{Due, Queue};
use super::tracked::newest;
use super::{ControllerSettings, Key, Metrics, apply, parsed};
use crate::error_chain::error_chain;
use crate::k8s::{Changed, Connection, Leading, Notices, Object, Scope};
use crate::resource::rollout_status::{DynamoRolloutStatus, RolloutPhase};
use crate::resource::{DynamoRollout, read_rollout_status};

/// Delay after a change, so that related changes share one reconcile, and a namespace with many pods causes few of them.
const GATHER: Duration = Duration::from_millis(200);
/// Reconcile interval of a rollout that has not ended.
const MOVING: Duration = Duration::from_secs(2);
/// Reconcile interval of a rollout that has ended.
const ENDED: Duration = Duration::from_secs(30);
/// How long a write whose result is unknown may still take effect.
const UNCERTAIN: Duration = Duration::from_secs(60);
/// The reason of the conditions while the API server rejects what a rollout writes.
const REFUSED: &str = "WriteRefused";
/// Delay before the next attempt when something is not listed yet.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The rollouts of a controller.
pub(super) struct Rollouts {
    settings: Arc<ControllerSettings>,
    observer: Arc<Observer>,
    writer: Writer,
    metrics: Arc<Metrics>,
    notices: Notices,
    queue: Queue,
    admission: Admission,
    tracked: HashMap<Key, TrackedRollout>,
    running: JoinSet<(Key, Done)>,
}

impl Rollouts {
    pub fn new(
        settings: &Arc<ControllerSettings>,
        observer: &Arc<Observer>,
        connection: &Connection,
        leading: Leading,
        (metrics, notices): (&Arc<Metrics>, &Notices),
    ) -> Self {
        Self {
            notices: notices.clone(),
            writer: Writer(LeaderClient::new(
                connection,
                leading,
                settings.options.lease_length,
                Arc::clone(metrics),
            )),
            settings: Arc::clone(settings),
            observer: Arc::clone(observer),
            metrics: Arc::clone(metrics),
            queue: Queue::default(),
            admission: Admission::new(settings.options.update_limits),
            tracked: HashMap::new(),
            running: JoinSet::new(),
        }
    }

    /// When the next rollout is due.
    pub fn next(&self) -> Option<Instant> {
        self.queue.next()
    }

    /// Waits for the next action to be carried out. Never returns if there is none.
    pub async fn done(&mut self) -> Option<(Key, Done)> {
        loop {
            match self.running.join_next().await {
                Some(Ok(done)) => return Some(done),
                Some(Err(error)) => {
                    self.metrics.errors.with_label_values(&["panic"]).inc();
                    tracing::error!(%error, "an action of a rollout panicked");
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Wakes the rollouts of the namespace in which something has changed.
    pub fn handle_change(&mut self, changed: &Changed) {
        let namespace = changed.object.metadata.namespace.as_deref();
        let namespace = namespace.unwrap_or_default();
        if !self.settings.manages(namespace) {
            return;
        }
        if changed.plural == "dynamorollouts" {
            let (key, kind) = (parsed::key(&changed.object), DynamoRollout::api_resource());
            match self.observer.cache.one(&kind, namespace, &key.name) {
                Ok(Some(rollout)) => self.admission.add(&rollout),
                _ => self.admission.forget(&key),
            }
        }
        let at = Instant::now() + GATHER;
        for rollout in self.all(Some(namespace)) {
            self.queue.wake_at(parsed::key(&rollout), at);
        }
    }

    /// Wakes all rollouts.
    pub fn wake_all(&mut self) {
        for rollout in self.all(None) {
            self.queue.wake_at(parsed::key(&rollout), Instant::now());
        }
    }

    fn all(&self, namespace: Option<&str>) -> Vec<Object> {
        let kind = DynamoRollout::api_resource();
        let namespace = match &self.settings.scope {
            Scope::Namespace(own) => Some(namespace.unwrap_or(own)),
            Scope::All => namespace,
        };
        let found = match namespace {
            Some(namespace) => self.observer.cache.of(&kind, namespace),
            None => self.observer.cache.all(&kind),
        };
        found.unwrap_or_default()
    }

    /// Reconciles the rollout that is due next.
    pub fn reconcile_next(&mut self, leads: bool) {
        let begun = Instant::now();
        let due = self.queue.take(begun);
        let Some(due) = due.filter(|_| leads) else {
            return;
        };
        let namespace = due.key.namespace.clone();
        self.reconcile(due);
        let now = Instant::now();
        self.queue
            .used(&namespace, now.saturating_duration_since(begun), now);
    }

    fn reconcile(&mut self, due: Due) {
        let key = due.key.clone();
        let kind = DynamoRollout::api_resource();
        let cache = &self.observer.cache;
        let found = match cache.one(&kind, &key.namespace, &key.name) {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.tracked.remove(&key);
                self.queue.forget(&key);
                self.admission.forget(&key);
                self.metrics.rollouts.forget(&key);
                return;
            }
            Err(_) => return self.postpone(due),
        };
        if found.metadata.deletion_timestamp.is_some() {
            return;
        }
        let tracked = self.tracked.entry(key.clone()).or_default();
        if tracked.uid != found.metadata.uid {
            *tracked = TrackedRollout {
                uid: found.metadata.uid.clone(),
                ..TrackedRollout::default()
            };
        }
        let rollout = newest(&mut tracked.latest, &found);
        let no_status = Json::Null;
        let (before, _) = read_rollout_status(rollout.data.get("status").unwrap_or(&no_status));
        let leads_since = self.writer.0.leads_since();
        tracked.inherited.follow(leads_since, &before);
        let subject = ReconcileContext {
            key: &key,
            rollout: &rollout,
            before: &before,
        };
        if let Some(limit) = self.admission.refuses(&key) {
            let work = reconcile::refused(subject, "TooManyRollouts", limit.message("rollouts"));
            return self.begin(work);
        }
        match self.work(subject) {
            Ok(mut work) => {
                self.report_refusal(subject, &mut work);
                self.begin(work);
            }
            Err(NotYetObserved) => self.postpone(due),
        }
    }

    /// Reports in the status that the API server rejects what the rollout writes.
    fn report_refusal(&self, subject: ReconcileContext, work: &mut Work) {
        let tracked = self.tracked.get(subject.key);
        let refused = tracked.and_then(|tracked| tracked.refused.clone());
        let refused = refused.filter(|_| !matches!(work.step, RolloutAction::Nothing));
        if let Some(why) = refused {
            let generation = subject.rollout.metadata.generation;
            work.status = status::refused(&work.status, REFUSED, why, generation, write::now());
            work.write_status |= self.is_changed(subject.key, subject.before, &work.status);
        }
    }

    fn postpone(&mut self, due: Due) {
        let now = Instant::now();
        self.queue.postpone(due, now, now + RETRY_DELAY);
    }

    /// Starts to carry out the decision.
    fn begin(&mut self, work: Work) {
        let key = work.key.clone();
        self.metrics.rollouts.set_status(&key, &work.status);
        let is_over = work.status.phase.is_some_and(RolloutPhase::is_over);
        let interval = if is_over { ENDED } else { MOVING };
        self.queue.wake_at(key.clone(), Instant::now() + interval);
        if matches!(work.step, RolloutAction::Nothing)
            && let Some(tracked) = self.tracked.get_mut(&key)
            && tracked.keep_rejected_at.is_none()
        {
            tracked.refused = None;
        }
        if matches!(work.step, RolloutAction::Nothing) && !work.write_status {
            self.queue.done(&key);
            return;
        }
        self.queue.begin(&key);
        self.running.spawn(work.run(self.writer.clone()));
    }

    /// Handles the result of an action.
    pub fn finish(&mut self, key: &Key, done: Done) {
        let now = Instant::now();
        let tracked = self.tracked.entry(key.clone()).or_default();
        for WrittenObject {
            kind,
            name,
            version,
        } in done.written
        {
            if kind == revisions::resource().kind {
                tracked.kept = Some((name.clone(), now));
            }
            if kind == crate::resource::KIND {
                tracked.update_written_at = Some(now);
            }
            tracked.written.insert((kind, name), version);
        }
        for notice in done.events {
            tracing::info!(rollout = %key, reason = notice.reason, "{}", notice.note);
            self.notices.publish(notice);
        }
        if done.cannot_mark {
            tracked.mark_rejected_at = Some(now);
        }
        if let Some(action) = done.acted {
            self.metrics.rollouts.acted(key, action);
        }
        if let Some(object) = done.object {
            tracked.latest = Some(object);
            tracked.inherited.note_recorded();
            tracked.status_written_at = Some(now);
        }
        if done.has_stepped {
            tracked.refused = None;
            tracked.keep_rejected_at = None;
        }
        match done.failed {
            None => {
                self.queue.done(key);
                self.queue
                    .wake_at(key.clone(), now + Duration::from_millis(20));
            }
            Some(error) => {
                if error.is_uncertain() {
                    tracked.uncertain_until = Some(now + UNCERTAIN);
                }
                if let Some(why) = error.refusal() {
                    tracked.refused = Some(format!("the API server rejected a write: {why}"));
                    tracked.keep_rejected_at = done.keeps.then_some(now);
                }
                let cause = match &error {
                    apply::Error::Changed => "changed",
                    _ => "write",
                };
                self.metrics.errors.with_label_values(&[cause]).inc();
                tracing::warn!(rollout = %key, "{}", error_chain(&error));
                self.queue.failed(key, now, fastrand::f64());
            }
        }
    }
}

/// The rollout that is being reconciled.
#[derive(Clone, Copy)]
struct ReconcileContext<'a> {
    key: &'a Key,
    rollout: &'a Object,
    /// Its status.
    before: &'a DynamoRolloutStatus,
}

/// The field manager of the writes of a rollout: it distinguishes two rollouts of one object.
fn manager(rollout: &Object) -> String {
    let uid = rollout.metadata.uid.as_deref().unwrap_or_default();
    format!("{}{uid}", crate::k8s::ROLLOUT_MANAGER)
}
