//! The snapshot: the plan in force with its pools. A single writer replaces it; each request loads it once.

mod moves;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use self::moves::Moves;
pub use self::moves::{MoveDecision, MoveWatch};
use crate::analysis::{Reason, Report, Verdict};
use crate::failover::{FailoverPolicy, Target};
use crate::guard::Guard;
use crate::resource::{Manifest, Plan, Problems};
use crate::split::SplitPolicy;
use crate::upstream::{Endpoint, Pool};

/// A plan in force. Immutable. An open stream keeps the one that it started with.
pub struct Snapshot {
    /// Counts the plans that this process has put in force, from 1.
    pub epoch: u64,
    pub plan: Arc<Plan>,
    /// The manifest of the plan, for display; `None` if the plan came from flags.
    pub manifest: Option<Arc<Manifest>>,
    /// `None` if old is a service in this process.
    pub old: Option<Arc<Pool>>,
    pub new: Option<Arc<Pool>>,
    /// The Service of the sibling pods: the last failover target.
    pub peers: Option<Arc<Pool>>,
    /// When this plan came into force.
    pub since: SystemTime,
    pub since_instant: Instant,
    /// The source of the plan, for display.
    pub source: Arc<str>,
    /// The guard that marks requests forwarded under this plan.
    pub guard: Guard,
    /// Assigns the requests that are split.
    pub split: SplitPolicy,
}

impl Snapshot {
    /// The failover policy of the plan.
    #[must_use]
    pub fn failover_policy(&self) -> FailoverPolicy {
        let failover = &self.plan.failover;
        FailoverPolicy {
            enabled: failover.enabled,
            weights: self.plan.weights,
            old_drains: self.plan.old_drains,
            has_new: self.new.is_some(),
            has_peers: self.peers.is_some(),
            overloaded: failover.retry_overloaded,
            old_server_errors: failover.retry_old_server_errors,
        }
    }

    /// Whether requests under this plan may reach old.
    #[must_use]
    pub fn may_reach_old(&self) -> bool {
        self.plan.weights.old() > 0 || !self.plan.old_drains
    }

    /// The pool of a target; `None` if there is none, or if old is served in this process.
    #[must_use]
    pub fn pool(&self, target: Target) -> Option<&Arc<Pool>> {
        match target {
            Target::Old => self.old.as_ref(),
            Target::New => self.new.as_ref(),
            Target::Peers => self.peers.as_ref(),
        }
    }
}

impl Snapshot {
    /// All pools of the plan.
    pub fn pools(&self) -> impl Iterator<Item = (Target, &Arc<Pool>)> {
        [Target::Old, Target::New, Target::Peers]
            .into_iter()
            .filter_map(|target| Some((target, self.pool(target)?)))
    }

    /// The endpoints that requests may go to under this plan.
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

    /// Whether either generation can serve. Attempts to connect if there has been no response yet.
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

/// Holds the snapshot in force.
pub struct SnapshotStore {
    snapshot: ArcSwap<Snapshot>,
    /// Whether requests under the plan in force can no longer reach old. For readers that have no snapshot.
    has_left_old: AtomicBool,
    /// Earlier snapshots that may reach old and that a request still holds. Read only when the state is requested.
    earlier: Mutex<Vec<Weak<Snapshot>>>,
    changed: watch::Sender<()>,
    moves: Arc<Moves>,
}

impl SnapshotStore {
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Arc<Self> {
        let moves = Arc::<Moves>::default();
        moves.follow(&snapshot);
        Arc::new(Self {
            has_left_old: AtomicBool::new(!snapshot.may_reach_old()),
            snapshot: ArcSwap::from_pointee(snapshot),
            earlier: Mutex::default(),
            changed: watch::Sender::default(),
            moves,
        })
    }

    /// The snapshot in force. Call it once per request.
    #[must_use]
    pub fn load(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Puts a snapshot in force. Only the single writer calls it.
    pub fn store(&self, snapshot: Snapshot) {
        let mut earlier = self.earlier();
        earlier.retain(|one| one.strong_count() > 0);
        self.has_left_old
            .store(!snapshot.may_reach_old(), Ordering::Relaxed);
        let snapshot = Arc::new(snapshot);
        let before = self.snapshot.swap(Arc::clone(&snapshot));
        if before.may_reach_old() {
            earlier.push(Arc::downgrade(&before));
        }
        drop(earlier);
        // Woken streams find the new plan in force.
        self.moves.follow(&snapshot);
        drop(snapshot);
        self.changed.send_replace(());
    }

    /// Whether requests under the plan in force no longer reach old.
    #[must_use]
    pub fn has_left_old(&self) -> bool {
        self.has_left_old.load(Ordering::Relaxed)
    }

    /// How many requests hold an earlier plan under which they may reach old. A request holds its plan until it can no longer be
    /// retried. This includes requests that are just reading a plan.
    #[must_use]
    pub fn earlier_requests_that_may_reach_old(&self) -> usize {
        self.earlier().iter().map(Weak::strong_count).sum()
    }

    fn earlier(&self) -> MutexGuard<'_, Vec<Weak<Snapshot>>> {
        self.earlier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells a stream on old when to move to new.
    #[must_use]
    pub fn watch_moves(&self) -> MoveWatch {
        MoveWatch::new(Arc::clone(&self.moves))
    }

    /// The number of streams that still have to be moved off old: those that watch, while the plan moves streams.
    #[must_use]
    pub fn moving(&self) -> usize {
        self.moves.moving()
    }

    /// Signals every new snapshot from now on. For watchers; a request loads.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

/// The last rejected plan.
#[derive(Clone, Debug)]
pub struct Rejection {
    pub problems: Problems,
    pub source: Arc<str>,
    pub at: SystemTime,
}

/// The result of the analysis of new, as text for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnalysisResult {
    /// The name of the verdict.
    pub verdict: &'static str,
    pub reason: Reason,
    pub text: String,
    /// Whether all requests go to old because of it.
    pub rolled_back: bool,
}

impl Status {
    /// The verdict on new, if there is one. After a rollback, this is the verdict that led to it, which may be from an earlier
    /// process.
    #[must_use]
    pub fn analysis_result(&self, plan: &Plan) -> Option<AnalysisResult> {
        let report = self.analysis.load();
        let report = report.as_ref().as_ref();
        if let Some(why) = &plan.failed_analysis {
            let failed = report.filter(|report| report.verdict.as_str() == Verdict::FAIL);
            return Some(AnalysisResult {
                verdict: Verdict::FAIL,
                reason: failed.map_or(Reason::Unknown, Report::reason),
                text: why.to_string(),
                rolled_back: true,
            });
        }
        let report = report?;
        Some(AnalysisResult {
            verdict: report.verdict.as_str(),
            reason: report.reason(),
            text: report.sentence(),
            rolled_back: false,
        })
    }

    /// Why new has failed by the analysis of this process, if it has.
    #[must_use]
    pub fn failed(&self, plan: &Plan) -> Option<String> {
        let result = self.analysis_result(plan)?;
        (result.verdict == Verdict::FAIL).then_some(result.text)
    }

    /// How long the plan source has been unreachable; zero if it is reachable.
    #[must_use]
    pub fn lost_for(&self) -> Duration {
        self.lost_since
            .load()
            .map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// The state of the plan source, for display.
#[derive(Debug, Default)]
pub struct Status {
    /// The last rejected plan since the one in force.
    pub rejection: ArcSwap<Option<Rejection>>,
    /// Since when the plan source has been unreachable; `None` if it is reachable or needs no connection.
    pub lost_since: ArcSwap<Option<Instant>>,
    /// Remarks about the plan source, for users: conflicting updates, a missing one.
    pub remarks: ArcSwap<Vec<String>>,
    /// The last report on new, if this process evaluates it.
    pub analysis: ArcSwap<Option<Report>>,
    /// Number of updates of the same deployment that have no effect because another update takes precedence.
    pub conflicts: AtomicUsize,
}
