//! The loop of a controller: what has changed, who is concerned, what is due; look, decide, apply.
//!
//! Must not know how anything is observed, decided or written.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kube::CustomResourceExt;
use tokio::sync::mpsc;
use tokio::task::{self, JoinSet};

use super::apply::Writer;
use super::backoff::Backoffs;
use super::dashboard::Dashboard;
use super::dry_run::DryRun;
use super::index::DependencyIndex;
use super::invalid::Valid;
use super::job::Applied;
use super::observer::Observer;
use super::parsed::{self, ParsedUpdate};
use super::queue::Queue;
use super::{ControllerSettings, Key, Metrics, Pages};
use crate::k8s::{Cache, Changed, Connection, Leading, Notices, Object, Scope};
use crate::pages::{Hosts, LivePage};
use crate::resource::DynamoUpdateConfig;

/// Everything is looked at so often, whatever happens.
pub(super) const RESYNC: Duration = Duration::from_secs(30);
/// What was not complete is looked at again.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// A controller that looks, decides and applies while it leads.
pub struct Controller {
    pub(super) settings: Arc<ControllerSettings>,
    pub(super) observer: Arc<Observer>,
    pub(super) changes: mpsc::UnboundedReceiver<Changed>,
    pub(super) woken: mpsc::UnboundedReceiver<Key>,
    pub(super) queue: Queue,
    pub(super) backoffs: Backoffs,
    pub(super) index: DependencyIndex,
    pub(super) writer: Writer,
    pub(super) leading: Leading,
    pub(super) notices: Notices,
    pub(super) metrics: Arc<Metrics>,
    pub(super) ready: Arc<AtomicBool>,
    /// What was written last, which the watch may not have brought yet.
    pub(super) latest: HashMap<Key, Object>,
    /// The last valid spec of each update.
    pub(super) valid: HashMap<Key, Valid>,
    /// When each status was last written.
    pub(super) told: HashMap<Key, Instant>,
    /// Whose edits were told to be taken back, though no status remembers that yet.
    pub(super) contested: HashSet<Key>,
    /// Without writing there is no other memory, nor any other place to tell.
    pub(super) dry: HashMap<Key, DryRun>,
    pub(super) running: JoinSet<(Key, Applied)>,
    /// Whose each of them is.
    pub(super) tasks: HashMap<task::Id, Key>,
}

impl Controller {
    /// Nothing is asked before it runs. `ready` turns true when it has seen the updates.
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
        let (cache, changes) = Cache::new(connection, settings.scope.clone());
        let (wake, woken) = mpsc::unbounded_channel();
        Self {
            observer: Arc::new(Observer::new(cache, Arc::clone(&settings), wake)),
            changes,
            woken,
            queue: Queue::default(),
            backoffs: Backoffs::default(),
            index: DependencyIndex::default(),
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
            valid: HashMap::new(),
            told: HashMap::new(),
            contested: HashSet::new(),
            dry: HashMap::new(),
            running: JoinSet::new(),
            tasks: HashMap::new(),
            settings,
        }
    }

    /// What its admin port shows.
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
                Some(done) = self.running.join_next_with_id(), if !self.running.is_empty() => {
                    match done {
                        Ok((id, (key, done))) => {
                            self.tasks.remove(&id);
                            self.finish(key, done);
                        }
                        Err(error) => {
                            if let Some(key) = self.tasks.remove(&error.id()) {
                                self.broke(&key);
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
                () = tokio::time::sleep(AGAIN), if !self.ready.load(Ordering::Relaxed) => self.see(),
                () = due => {
                    self.look_at_next();
                    // Everything else of the process is on this thread, too.
                    task::yield_now().await;
                }
            }
        }
    }

    pub(super) fn leads(&self) -> bool {
        self.settings.dry_run || self.leading.remaining().is_some()
    }

    /// The updates of a namespace, or all.
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

    /// Are the updates listed, be there any or none?
    fn see(&mut self) {
        let kind = DynamoUpdateConfig::api_resource();
        if self.observer.cache.all(&kind).is_ok() {
            self.ready.store(true, Ordering::Relaxed);
            self.wake_all();
        }
    }

    /// A renewal changes nothing; who begins to lead looks at everything.
    fn follow_lease(&mut self) {
        let leads = i64::from(self.leading.remaining().is_some());
        if self.metrics.leads.get() != leads {
            self.metrics.leads.set(leads);
            // Whatever was refused to one that led before.
            self.backoffs.clear();
            if !self.leads() {
                self.observer.rest();
                self.metrics.rest();
            }
            self.wake_all();
        }
    }

    fn wake_all(&mut self) {
        let now = Instant::now();
        for object in self.updates(None) {
            self.queue.wake_at(parsed::key(&object), now);
        }
    }

    /// Wakes the updates that a change concerns.
    fn hear(&mut self, changed: Changed) {
        let now = Instant::now();
        let object = &changed.object;
        if changed.plural != "dynamoupdateconfigs" {
            for key in self.index.of(&changed.plural, object) {
                self.queue.wake(key, now);
            }
            return;
        }
        let key = parsed::key(object);
        let kind = DynamoUpdateConfig::api_resource();
        let there = self.observer.cache.one(&kind, &key.namespace, &key.name);
        let sources = match there {
            Ok(Some(update)) => {
                self.queue.wake(key.clone(), now);
                // Also where another replica leads, which may die before it sees the next edit.
                let valid = match ParsedUpdate::read(&update, &self.settings) {
                    Ok(_) => {
                        self.note_valid(&key, &update);
                        None
                    }
                    Err(_) => self.last_valid(&key, &update),
                };
                let valid = valid.as_ref().map(Valid::spec);
                self.index.learn(&key, &update, valid)
            }
            _ => Some(self.forget(&key)),
        };
        let count = i64::try_from(self.index.len()).unwrap_or(i64::MAX);
        self.metrics.updates.set(count);
        let Some(mut sources) = sources else {
            return;
        };
        let source = object.data["spec"]["sourceDeployment"].as_str();
        sources.extend(source.map(str::to_owned));
        // It may rule now, or no longer.
        for update in self.updates(Some(&key.namespace)) {
            let source = update.data["spec"]["sourceDeployment"].as_str();
            if source.is_some_and(|source| sources.contains(source)) {
                self.queue.wake(parsed::key(&update), now);
            }
        }
    }

    /// Leaves out an update that is gone; for which `sourceDeployment` may another one rule now?
    fn forget(&mut self, key: &Key) -> BTreeSet<String> {
        let sources = self.index.forget(key);
        self.queue.forget(key);
        self.backoffs.forget(key);
        self.observer.leave(key);
        self.metrics.forget(key);
        self.latest.remove(key);
        self.valid.remove(key);
        self.told.remove(key);
        self.contested.remove(key);
        self.dry.remove(key);
        sources
    }

    fn look_at_next(&mut self) {
        // One at a time: what comes in between must not wait for all.
        if let Some(due) = self.queue.take(Instant::now())
            && self.leads()
        {
            self.reconcile(due);
        }
    }
}
