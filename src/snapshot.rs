//! What is served now: the plan with the pools it needs, replaced as a whole by one writer and loaded once per request.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::guard::Guard;
use crate::rescue::{Rules, Target};
use crate::resource::{Manifest, Plan, Problems};
use crate::upstream::{Endpoint, Pool};

/// A plan in force. Immutable; an open stream keeps the one it started with.
pub struct Snapshot {
    /// Counts the plans put in force by this process, from 1.
    pub epoch: u64,
    pub plan: Arc<Plan>,
    /// The manifest that the plan was read from, for people; none where it came from flags.
    pub manifest: Option<Arc<Manifest>>,
    /// `None` where old is a service in this process.
    pub old: Option<Arc<Pool>>,
    pub new: Option<Arc<Pool>>,
    /// The Service of the sibling pods: a second next_target for old.
    pub peers: Option<Arc<Pool>>,
    /// When this plan came in force.
    pub since: SystemTime,
    pub since_instant: Instant,
    /// Where the plan came from, for people.
    pub source: Arc<str>,
    /// Marks what is forwarded under this plan.
    pub guard: Guard,
}

impl Snapshot {
    /// What the plan allows when an attempt fails.
    #[must_use]
    pub fn rules(&self) -> Rules {
        let failover = &self.plan.failover;
        Rules {
            enabled: failover.enabled,
            weights: self.plan.weights,
            old_drains: self.plan.old_drains,
            has_new: self.new.is_some(),
            has_peers: self.peers.is_some(),
            overloaded: failover.retry_overloaded,
            old_server_errors: failover.retry_old_server_errors,
        }
    }

    /// May a request under this plan be sent to old?
    #[must_use]
    pub fn may_reach_old(&self) -> bool {
        self.plan.weights.old() > 0 || !self.plan.old_drains
    }

    /// The pool of a place; `None` where there is none, and for an old that is served in this process.
    #[must_use]
    pub fn pool(&self, place: Target) -> Option<&Arc<Pool>> {
        match place {
            Target::Old => self.old.as_ref(),
            Target::New => self.new.as_ref(),
            Target::Peers => self.peers.as_ref(),
        }
    }
}

impl Snapshot {
    /// The endpoints that the plan lets requests go to.
    pub fn serving(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        let new = self
            .new
            .as_ref()
            .filter(|_| !self.plan.weights.is_all_old());
        [self.old.as_ref(), new, self.peers.as_ref()]
            .into_iter()
            .flatten()
            .flat_map(|pool| pool.endpoints())
    }

    /// Can it serve by either side? Where no answer was seen yet, a connection is tried.
    pub async fn can_serve(&self) -> bool {
        let now = Instant::now();
        let healthy = || self.serving().filter(|endpoint| endpoint.is_healthy(now));
        if healthy().any(|endpoint| endpoint.is_proven()) {
            return true;
        }
        for endpoint in healthy() {
            if endpoint.prove().await {
                return true;
            }
        }
        false
    }
}

/// The one place that holds what is in force.
pub struct SnapshotStore {
    snapshot: ArcSwap<Snapshot>,
    /// Those that were in force, may send to old, and are kept by a request; looked at by who asks for the state.
    earlier: Mutex<Vec<Weak<Snapshot>>>,
    changed: watch::Sender<()>,
}

impl SnapshotStore {
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Arc<Self> {
        Arc::new(Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            earlier: Mutex::default(),
            changed: watch::Sender::default(),
        })
    }

    /// What is in force. Call it once per request.
    #[must_use]
    pub fn load(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Puts a snapshot in force. Only the one writer of plans calls it.
    pub fn store(&self, snapshot: Snapshot) {
        let mut earlier = self.earlier();
        earlier.retain(|one| one.strong_count() > 0);
        let before = self.snapshot.swap(Arc::new(snapshot));
        if before.may_reach_old() {
            earlier.push(Arc::downgrade(&before));
        }
        drop(earlier);
        self.changed.send_replace(());
    }

    /// How many requests keep an earlier plan by which they may be sent to old. A request keeps its plan until nothing of it
    /// can be sent again. Those that read a plan for a moment are counted, too.
    #[must_use]
    pub fn earlier_requests_that_may_reach_old(&self) -> usize {
        self.earlier().iter().map(Weak::strong_count).sum()
    }

    fn earlier(&self) -> MutexGuard<'_, Vec<Weak<Snapshot>>> {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of every snapshot that comes in force from now on. For those who watch: a request loads.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

/// The last refusal of a plan.
#[derive(Clone, Debug)]
pub struct Rejection {
    pub problems: Problems,
    pub source: Arc<str>,
    pub at: SystemTime,
}

impl Status {
    /// How long the source of plans has been out of reach; zero while it is not.
    #[must_use]
    pub fn lost_for(&self) -> Duration {
        self.lost_since
            .load()
            .map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// What people are shown beside the snapshot.
#[derive(Debug, Default)]
pub struct Status {
    /// Since the plan in force.
    pub rejection: ArcSwap<Option<Rejection>>,
    /// Since when the source of plans cannot be reached; none while it can be, or has no such thing as contact.
    pub lost_since: ArcSwap<Option<Instant>>,
    /// What people should know of the source of plans, in words: updates that contradict each other, one that is gone.
    pub remarks: ArcSwap<Vec<String>>,
    /// How many updates of the same deployment do nothing, since another one rules.
    pub conflicts: AtomicUsize,
}
