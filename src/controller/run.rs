//! The loop of a controller: what has changed, who is concerned, what is due; look, decide, apply.
//!
//! Must not know how anything is observed, decided or written.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;
use kube::CustomResourceExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::apply::{self, Wanted, Writer};
use super::concern::Concerns;
use super::held::{self, Held};
use super::job::{Applied, Job};
use super::observe::{self, Eyes, Seen};
use super::queue::{Due, Queue};
use super::{Key, Metrics, Settings, story};
use crate::k8s::{Changed, Connection, Leading, Notice, Notices, Object, Scope, Shelves};
use crate::resource::{DynamoUpdateConfig, DynamoUpdateConfigStatus, Identity};
use crate::rollout::{self, Decision, Memory, Moment};

/// Everything is looked at so often, whatever happens.
const RESYNC: Duration = Duration::from_secs(30);
/// Where only figures have changed, a status is not written more often.
const FIGURES: Duration = Duration::from_secs(10);
/// What was not complete is looked at again.
const AGAIN: Duration = Duration::from_millis(100);

/// A controller that looks, decides and applies while it leads.
pub struct Controller {
    settings: Arc<Settings>,
    eyes: Eyes,
    changes: mpsc::UnboundedReceiver<Changed>,
    woken: mpsc::UnboundedReceiver<Key>,
    queue: Queue,
    concerns: Concerns,
    writer: Writer,
    leading: Leading,
    notices: Notices,
    metrics: Arc<Metrics>,
    ready: Arc<AtomicBool>,
    /// What was written last, which the watch may not have brought yet.
    latest: HashMap<Key, Object>,
    /// When each status was last written.
    told: HashMap<Key, Instant>,
    /// Without writing there is no other memory, nor any other place to tell.
    dry: HashMap<Key, (Memory, String)>,
    running: JoinSet<(Key, Applied)>,
}

impl Controller {
    /// Nothing is asked before it runs. `ready` turns true when it has seen the updates.
    #[must_use]
    pub fn new(
        settings: Settings,
        connection: &Connection,
        leading: Leading,
        notices: Notices,
        metrics: Arc<Metrics>,
        ready: Arc<AtomicBool>,
    ) -> Self {
        let settings = Arc::new(settings);
        let (shelves, changes) = Shelves::new(connection, settings.scope.clone());
        let (wake, woken) = mpsc::unbounded_channel();
        Self {
            eyes: Eyes::new(shelves, Arc::clone(&settings), wake),
            changes,
            woken,
            queue: Queue::default(),
            concerns: Concerns::default(),
            writer: Writer::new(
                connection,
                leading.clone(),
                settings.lease_length,
                Arc::clone(&metrics),
            ),
            leading,
            notices,
            metrics,
            ready,
            latest: HashMap::new(),
            told: HashMap::new(),
            dry: HashMap::new(),
            running: JoinSet::new(),
            settings,
        }
    }

    /// Looks after the updates for as long as it is polled.
    pub async fn run(mut self) {
        let mut resync = tokio::time::interval(RESYNC);
        loop {
            let next = self.queue.next();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(changed) = self.changes.recv() => self.hear(changed),
                Some(key) = self.woken.recv() => self.queue.wake(key, Instant::now()),
                Some(done) = self.running.join_next(), if !self.running.is_empty() => {
                    if let Ok((key, done)) = done {
                        self.finish(key, done);
                    }
                }
                () = self.leading.changed() => self.follow_lease(),
                _ = resync.tick() => self.wake_all(),
                () = tokio::time::sleep(AGAIN), if !self.ready.load(Ordering::Relaxed) => self.see(),
                () = due => {
                    self.look_at_next();
                    // Everything else of the process is on this thread, too.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn leads(&self) -> bool {
        self.settings.dry_run || self.leading.remaining().is_some()
    }

    /// The updates of a namespace, or all.
    fn updates(&self, namespace: Option<&str>) -> Vec<Object> {
        let kind = DynamoUpdateConfig::api_resource();
        let shelves = &self.eyes.shelves;
        let namespace = match &self.settings.scope {
            Scope::Namespace(own) => Some(namespace.unwrap_or(own)),
            Scope::All => namespace,
        };
        let found = match namespace {
            Some(namespace) => shelves.of(&kind, namespace),
            None => shelves.all(&kind),
        };
        found.unwrap_or_default()
    }

    /// Are the updates listed, be there any or none?
    fn see(&mut self) {
        let kind = DynamoUpdateConfig::api_resource();
        if self.eyes.shelves.all(&kind).is_ok() {
            self.ready.store(true, Ordering::Relaxed);
            self.wake_all();
        }
    }

    /// A renewal changes nothing; who begins to lead looks at everything.
    fn follow_lease(&mut self) {
        let leads = i64::from(self.leading.remaining().is_some());
        if self.metrics.leads.get() != leads {
            self.metrics.leads.set(leads);
            self.wake_all();
        }
    }

    fn wake_all(&mut self) {
        let now = Instant::now();
        for object in self.updates(None) {
            self.queue.wake_at(held::key(&object), now);
        }
    }

    /// Wakes the updates that a change concerns.
    fn hear(&mut self, changed: Changed) {
        let now = Instant::now();
        let object = &changed.object;
        if changed.plural != "dynamoupdateconfigs" {
            for key in self.concerns.of(&changed.plural, object) {
                self.queue.wake(key, now);
            }
            return;
        }
        let key = held::key(object);
        let kind = DynamoUpdateConfig::api_resource();
        let there = self.eyes.shelves.one(&kind, &key.namespace, &key.name);
        let is_edit = match there {
            Ok(Some(update)) => {
                self.queue.wake(key.clone(), now);
                self.concerns.learn(&key, &update)
            }
            _ => {
                self.forget(&key);
                true
            }
        };
        let count = i64::try_from(self.concerns.len()).unwrap_or(i64::MAX);
        self.metrics.updates.set(count);
        if !is_edit {
            return;
        }
        // It may rule now, or no longer.
        let source = &object.data["spec"]["sourceDeployment"];
        for update in self.updates(Some(&key.namespace)) {
            if update.data["spec"]["sourceDeployment"] == *source {
                self.queue.wake(held::key(&update), now);
            }
        }
    }

    fn forget(&mut self, key: &Key) {
        self.concerns.forget(key);
        self.queue.forget(key);
        self.eyes.leave(key);
        self.metrics.forget(key);
        self.latest.remove(key);
        self.told.remove(key);
        self.dry.remove(key);
    }

    fn look_at_next(&mut self) {
        // One at a time: what comes in between must not wait for all.
        if let Some(due) = self.queue.take(Instant::now())
            && self.leads()
        {
            self.look_at(due);
        }
    }

    fn look_at(&mut self, due: Due) {
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
        if let Some(cause) = std::error::Error::source(error) {
            told = format!("{told}: {cause}");
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
            wake_at: Some(Instant::now() + Duration::from_secs(5)),
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

    fn finish(&mut self, key: Key, done: Applied) {
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
