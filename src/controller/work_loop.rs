//! The controller's main loop: takes changes, wakes the updates that they affect, and reconciles one update at a time. It also
//! drives `rollouts`.
//!
//! Does not depend on how an update is observed, decided or written.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kube::CustomResourceExt;
use tokio::sync::mpsc;
use tokio::task::{self, JoinSet};

use super::admission::Admission;
use super::apply::Writer;
use super::dashboard::Dashboard;
use super::index::DependencyIndex;
use super::job::Applied;
use super::leader_client::LeaderClient;
use super::observer::Observer;
use super::parsed;
use super::queue::Queue;
use super::rejected_writes::RejectedWrites;
use super::rollouts::{Done as RolloutDone, Rollouts};
use super::spec_fields::SpecFields;
use super::tracked::TrackedUpdate;
use super::{ControllerSettings, Key, Metrics, Pages};
use crate::k8s::{Cache, Changed, Connection, Leading, Notices, Object, Scope};
use crate::pages::{Hosts, LivePage};
use crate::resource::DynamoUpdateConfig;

/// Resync interval: all updates are reconciled this often.
pub(super) const RESYNC: Duration = Duration::from_secs(30);
/// Delay before the next attempt when something is not listed yet.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A controller that reconciles updates while it leads.
pub struct Controller {
    pub(super) settings: Arc<ControllerSettings>,
    pub(super) observer: Arc<Observer>,
    pub(super) changes: mpsc::UnboundedReceiver<Changed>,
    pub(super) woken: mpsc::UnboundedReceiver<Key>,
    pub(super) queue: Queue,
    pub(super) index: DependencyIndex,
    pub(super) writer: Writer,
    pub(super) leading: Leading,
    pub(super) notices: Notices,
    pub(super) metrics: Arc<Metrics>,
    pub(super) ready: Arc<AtomicBool>,
    pub(super) admission: Admission,
    pub(super) tracked: HashMap<Key, TrackedUpdate>,
    pub(super) running: JoinSet<(Key, Applied)>,
    /// The update of each running task.
    pub(super) tasks: HashMap<task::Id, Key>,
    /// The rollouts, if it carries them out.
    pub(super) rollouts: Option<Rollouts>,
}

impl Controller {
    /// Makes no request before [`Self::run`]. Sets `ready` once the updates are listed.
    #[must_use]
    pub fn new(
        settings: ControllerSettings,
        connection: &Connection,
        leading: Leading,
        notices: Notices,
        metrics: Arc<Metrics>,
        ready: Arc<AtomicBool>,
    ) -> Self {
        let settings = Arc::new(settings);
        let (cache, changes) = Cache::new(connection, settings.watched_scope.clone());
        let (wake, woken) = mpsc::unbounded_channel();
        let observer = Arc::new(Observer::new(cache, Arc::clone(&settings), wake));
        let carries_out = settings.options.rollouts && !settings.options.dry_run;
        let rollouts = carries_out.then(|| {
            let leading = leading.clone();
            let reported = (&metrics, &notices);
            Rollouts::new(&settings, &observer, connection, leading, reported)
        });
        Self {
            observer,
            rollouts,
            changes,
            woken,
            queue: Queue::default(),
            index: DependencyIndex::default(),
            writer: Writer(LeaderClient::new(
                connection,
                leading.clone(),
                settings.options.lease_length,
                Arc::clone(&metrics),
            )),
            leading,
            notices,
            metrics,
            ready,
            admission: Admission::new(settings.options.update_limits),
            tracked: HashMap::new(),
            running: JoinSet::new(),
            tasks: HashMap::new(),
            settings,
        }
    }

    /// The admin port's content.
    #[must_use]
    pub fn pages(&self, hosts: Hosts) -> Pages {
        let observer = Arc::clone(&self.observer);
        Pages {
            metrics: Arc::clone(&self.metrics),
            ready: Arc::clone(&self.ready),
            dashboard: Arc::new(Dashboard::new(
                observer,
                self.leading.clone(),
                Arc::clone(&self.settings),
            )),
            live: LivePage::default(),
            hosts,
        }
    }

    /// Reconciles updates for as long as it is polled.
    pub async fn run(mut self) {
        let mut resync = tokio::time::interval(RESYNC);
        loop {
            let due = sleep_until(self.queue.next());
            let rollout_due = sleep_until(self.rollouts.as_ref().and_then(Rollouts::next));
            tokio::select! {
                Some(changed) = self.changes.recv() => self.handle_change(changed),
                Some(key) = self.woken.recv() => self.queue.wake(key, Instant::now()),
                Some(done) = self.running.join_next_with_id(), if !self.running.is_empty() => {
                    match done {
                        Ok((id, (key, done))) => {
                            self.tasks.remove(&id);
                            self.finish(key, done);
                        }
                        Err(error) => {
                            if let Some(key) = self.tasks.remove(&error.id()) {
                                self.job_panicked(&key);
                            }
                        }
                    }
                }
                () = self.leading.changed() => self.follow_lease(),
                _ = resync.tick() => {
                    let stale = self.observer.cache.stale();
                    self.metrics.stale.set(i64::try_from(stale).unwrap_or(i64::MAX));
                    self.wake_all();
                }
                () = tokio::time::sleep(RETRY_DELAY), if !self.ready.load(Ordering::Relaxed) => self.check_ready(),
                () = due => {
                    self.reconcile_next();
                    // All other tasks of the process share this thread.
                    task::yield_now().await;
                }
                Some((key, done)) = rollout_done(&mut self.rollouts) => {
                    if let Some(rollouts) = &mut self.rollouts {
                        rollouts.finish(&key, done);
                    }
                }
                () = rollout_due => {
                    let leads = self.leads();
                    if let Some(rollouts) = &mut self.rollouts {
                        rollouts.reconcile_next(leads);
                    }
                    task::yield_now().await;
                }
            }
        }
    }

    pub(super) fn leads(&self) -> bool {
        self.settings.options.dry_run || self.leading.remaining().is_some()
    }

    /// The updates of a namespace, or of all namespaces.
    pub(super) fn updates(&self, namespace: Option<&str>) -> Vec<Object> {
        let kind = DynamoUpdateConfig::api_resource();
        let cache = &self.observer.cache;
        let namespace = match &self.settings.scope {
            Scope::Namespace(own) => Some(namespace.unwrap_or(own)),
            Scope::All => namespace,
        };
        let found = match namespace {
            Some(namespace) => cache.of(&kind, namespace),
            None => cache.all(&kind),
        };
        found.unwrap_or_default()
    }

    /// Sets `ready` once the updates are listed, even if there are none.
    fn check_ready(&mut self) {
        let kind = DynamoUpdateConfig::api_resource();
        if self.observer.cache.all(&kind).is_ok() {
            self.ready.store(true, Ordering::Relaxed);
            self.wake_all();
        }
    }

    /// Handles a change of leadership by reconciling everything. Ignores mere renewals.
    fn follow_lease(&mut self) {
        let leads = i64::from(self.leading.remaining().is_some());
        if self.metrics.leads.get() != leads {
            self.metrics.leads.set(leads);
            // The rejections belong to an earlier term as leader.
            for tracked in self.tracked.values_mut() {
                tracked.rejected_writes = RejectedWrites::default();
            }
            if !self.leads() {
                self.observer.stop_polling();
                self.metrics.clear();
            }
            self.wake_all();
        }
    }

    fn wake_all(&mut self) {
        if let Some(rollouts) = &mut self.rollouts {
            rollouts.wake_all();
        }
        let now = Instant::now();
        for object in self.updates(None) {
            self.queue.wake_at(parsed::key(&object), now);
        }
    }

    /// Wakes the updates that a change affects.
    fn handle_change(&mut self, changed: Changed) {
        let now = Instant::now();
        if let Some(rollouts) = &mut self.rollouts {
            rollouts.handle_change(&changed);
        }
        let object = &changed.object;
        if changed.plural == "dynamorollouts" {
            // The update of a rollout has the rollout's name.
            let (key, kind) = (parsed::key(object), DynamoUpdateConfig::api_resource());
            let update = self.observer.cache.one(&kind, &key.namespace, &key.name);
            if self.settings.manages(&key.namespace) && matches!(update, Ok(Some(_))) {
                self.queue.wake(key, now);
            }
            return;
        }
        if changed.plural != "dynamoupdateconfigs" {
            for key in self.index.of(&changed.plural, object) {
                self.queue.wake(key, now);
            }
            return;
        }
        let key = parsed::key(object);
        if !self.settings.manages(&key.namespace) {
            return;
        }
        let kind = DynamoUpdateConfig::api_resource();
        let there = self.observer.cache.one(&kind, &key.namespace, &key.name);
        let sources = match there {
            Ok(Some(update)) => {
                self.queue.wake(key.clone(), now);
                self.admission.add(&update);
                // A standby replica remembers specs, too: the leader may die before it sees the next edit.
                let tracked = self.tracked.entry(key.clone()).or_default();
                let is_refused = self.admission.refuses(&key).is_some();
                let parsed = (!is_refused).then(|| tracked.parse(&update, &self.settings));
                let valid = match parsed {
                    None => None,
                    Some(Ok(_)) => {
                        tracked.note_valid(&update);
                        None
                    }
                    Some(Err(_)) => tracked.last_valid(&update),
                };
                let valid = valid.as_ref().map(|valid| &valid.spec);
                self.index.insert(&key, &update, valid)
            }
            _ => Some(self.forget(&key)),
        };
        let count = i64::try_from(self.index.len()).unwrap_or(i64::MAX);
        self.metrics.updates.set(count);
        let Some(mut sources) = sources else {
            return;
        };
        sources.extend(SpecFields::of(object).source().map(str::to_owned));
        // These updates may gain or lose precedence.
        for update in self.updates(Some(&key.namespace)) {
            if SpecFields::of(&update)
                .source()
                .is_some_and(|source| sources.contains(source))
            {
                self.queue.wake(parsed::key(&update), now);
            }
        }
    }

    /// Removes an update that was deleted. Returns the `sourceDeployment`s for which another update may take precedence now.
    fn forget(&mut self, key: &Key) -> BTreeSet<String> {
        let sources = self.index.forget(key);
        self.queue.forget(key);
        self.admission.forget(key);
        self.observer.stop_following(key);
        self.metrics.forget(key);
        self.tracked.remove(key);
        sources
    }

    fn reconcile_next(&mut self) {
        // One at a time, so that changes in the meantime do not wait for all due updates.
        let begun = Instant::now();
        if let Some(due) = self.queue.take(begun)
            && self.leads()
        {
            let namespace = due.key.namespace.clone();
            self.reconcile(due);
            let now = Instant::now();
            self.queue
                .used(&namespace, now.saturating_duration_since(begun), now);
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// The next action of a rollout that was carried out.
async fn rollout_done(rollouts: &mut Option<Rollouts>) -> Option<(Key, RolloutDone)> {
    match rollouts {
        Some(rollouts) => rollouts.done().await,
        None => std::future::pending().await,
    }
}
