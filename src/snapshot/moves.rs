//! The order to move streams off old, and how it reaches open streams.
//!
//! A stream keeps the plan under which it began, and may be silent for a long time. It watches the order in force, and is woken
//! when the order changes.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::Snapshot;
use crate::failover::MovePace;

/// An order to move all streams off old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    /// The time from which the order applies.
    due: Instant,
    /// Streams per second.
    rate: u32,
}

/// The order in force, if any.
#[derive(Debug)]
pub(super) struct Moves {
    order: ArcSwapOption<Order>,
    /// Counts the changes of the order.
    version: AtomicU64,
    changed: Arc<Notify>,
    pace: MovePace,
    started: Instant,
    /// Streams on old that can be moved.
    watching: AtomicUsize,
    /// The time since which all requests go to new; `None` while they do not. Only the writer of snapshots uses it.
    all_new_since: Mutex<Option<Instant>>,
}

impl Default for Moves {
    fn default() -> Self {
        Self {
            order: ArcSwapOption::empty(),
            version: AtomicU64::new(0),
            changed: Arc::default(),
            pace: MovePace::default(),
            started: Instant::now(),
            watching: AtomicUsize::new(0),
            all_new_since: Mutex::default(),
        }
    }
}

impl Moves {
    /// Puts the order of `snapshot` in force. An edit that leaves all requests with new does not restart its time.
    pub fn follow(&self, snapshot: &Snapshot) {
        let plan = &snapshot.plan;
        let all_new = plan.weights.is_all_new() && snapshot.new.is_some();
        let mut since = self
            .all_new_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *since = all_new.then(|| since.unwrap_or(snapshot.since_instant));
        let order = since
            .zip(plan.drain.move_after)
            .map(|(since, after)| Order {
                due: since + after,
                rate: plan.drain.move_rate,
            });
        if self.order.load().as_deref() != order.as_ref() {
            self.order.store(order.map(Arc::new));
            self.version.fetch_add(1, Ordering::Release);
            self.changed.notify_waiters();
        }
    }

    /// The number of streams that still have to be moved.
    pub fn moving(&self) -> usize {
        match *self.order.load() {
            Some(_) => self.watching.load(Ordering::Relaxed),
            None => 0,
        }
    }

    fn order(&self) -> Option<Order> {
        self.order.load().as_deref().copied()
    }
}

/// The action of a stream at the time that its watch returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveDecision {
    /// Move now.
    Move,
    /// Ask again at this time.
    At(Instant),
    /// Stay: the order was withdrawn.
    Stay,
}

/// Tells one stream on old when to move. Counts the stream as one that still has to be moved until it is dropped.
#[derive(Debug)]
pub struct MoveWatch {
    moves: Arc<Moves>,
    seen: u64,
    changed: Pin<Box<OwnedNotified>>,
    /// The task that is woken by a change.
    registered: Option<Waker>,
    turn: Option<Instant>,
}

impl MoveWatch {
    pub(super) fn new(moves: Arc<Moves>) -> Self {
        moves.watching.fetch_add(1, Ordering::Relaxed);
        Self {
            changed: Box::pin(Arc::clone(&moves.changed).notified_owned()),
            moves,
            // Version 0 has no order, so one that is already in force is found.
            seen: 0,
            registered: None,
            turn: None,
        }
    }

    /// When to ask for a turn, if the order has changed; never if that is `None`. Otherwise the task is woken by the next change.
    ///
    /// Costs one load and one comparison while nothing changes.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        let version = || self.moves.version.load(Ordering::Acquire);
        let is_registered = |waker: &Waker| waker.will_wake(cx.waker());
        if version() == self.seen && self.registered.as_ref().is_some_and(is_registered) {
            return Poll::Pending;
        }
        // Register before the order is read, so that no later change is missed.
        self.registered = Some(cx.waker().clone());
        loop {
            let changed = Arc::clone(&self.moves.changed).notified_owned();
            self.changed.set(changed);
            if self.changed.as_mut().poll(cx).is_pending() {
                break;
            }
        }
        let version = self.moves.version.load(Ordering::Acquire);
        if version == self.seen {
            return Poll::Pending;
        }
        self.seen = version;
        self.turn = None;
        Poll::Ready(self.moves.order().map(|order| order.due))
    }

    /// What to do at `now`, the time that [`MoveWatch::poll`] or the last turn gave.
    pub fn decide(&mut self, now: Instant) -> MoveDecision {
        let Some(order) = self.moves.order() else {
            return MoveDecision::Stay;
        };
        let at = *self.turn.get_or_insert_with(|| {
            let micros = |at: Instant| {
                let since = at.saturating_duration_since(self.moves.started);
                u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
            };
            let turn = self.moves.pace.turn(micros(now.max(order.due)), order.rate);
            self.moves.started + Duration::from_micros(turn)
        });
        // A turn is given in whole microseconds, rounded down.
        if at <= now {
            MoveDecision::Move
        } else {
            MoveDecision::At(at)
        }
    }
}

impl Drop for MoveWatch {
    fn drop(&mut self) {
        self.moves.watching.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::task::Wake;
    use std::time::SystemTime;

    use super::*;
    use crate::guard::Guard;
    use crate::resource::{Drain, Plan};
    use crate::snapshot::SnapshotStore;
    use crate::split::{SplitPolicy, Weights};
    use crate::upstream::{Pool, PoolSettings};

    const SECOND: Duration = Duration::from_secs(1);

    fn snapshot(percent: u8, after: Option<Duration>, since: Instant) -> Snapshot {
        let none = PoolSettings::default();
        Snapshot {
            epoch: 1,
            plan: Arc::new(Plan {
                weights: Weights::percent(percent).unwrap(),
                drain: Drain {
                    move_after: after,
                    move_rate: 10,
                },
                ..Plan::all_old()
            }),
            manifest: None,
            old: None,
            new: Some(Arc::new(Pool::new(&[], none, None, None, None))),
            peers: None,
            since: SystemTime::now(),
            since_instant: since,
            source: "a test".into(),
            guard: Guard::new(&[], &Default::default(), &[]),
            split: SplitPolicy::new(Weights::ALL_OLD, 0),
        }
    }

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Task {
        watch: MoveWatch,
        woken: Arc<Woken>,
    }

    impl Task {
        fn of(store: &SnapshotStore) -> Self {
            Self {
                watch: store.watch_moves(),
                woken: Arc::default(),
            }
        }

        fn poll(&mut self) -> Poll<Option<Instant>> {
            let waker = Waker::from(Arc::clone(&self.woken));
            self.watch.poll(&mut Context::from_waker(&waker))
        }

        fn wakes(&self) -> u64 {
            self.woken.0.swap(0, Ordering::SeqCst)
        }
    }

    #[test]
    fn a_silent_stream_is_woken_when_old_has_no_share_left_and_when_it_gets_one_again() {
        let start = Instant::now();
        let store = SnapshotStore::new(snapshot(50, Some(SECOND), start));
        let mut task = Task::of(&store);
        assert!(task.poll().is_pending() && task.poll().is_pending());
        store.store(snapshot(60, Some(SECOND), start));
        assert_eq!((task.wakes(), store.moving()), (0, 0));

        store.store(snapshot(100, Some(SECOND), start));
        assert_eq!((task.wakes(), store.moving()), (1, 1));
        assert_eq!(task.poll(), Poll::Ready(Some(start + SECOND)));
        assert!(task.poll().is_pending());

        // An edit that keeps all requests on new does not restart the time; a different duration counts from the same start.
        store.store(snapshot(100, Some(SECOND), start + 9 * SECOND));
        assert_eq!(task.wakes(), 0);
        store.store(snapshot(100, Some(3 * SECOND), start + 9 * SECOND));
        assert_eq!(task.wakes(), 1);
        assert_eq!(task.poll(), Poll::Ready(Some(start + 3 * SECOND)));

        store.store(snapshot(99, Some(SECOND), start));
        assert_eq!((task.wakes(), store.moving()), (1, 0));
        assert_eq!(task.poll(), Poll::Ready(None));
        assert_eq!(task.watch.decide(start + 5 * SECOND), MoveDecision::Stay);
    }

    /// `oldDraining` takes effect once new gets all requests. Until then, old still begins streams.
    #[test]
    fn old_that_is_to_drain_keeps_its_streams_while_it_has_a_share() {
        let start = Instant::now();
        let draining = |percent| {
            let mut snapshot = snapshot(percent, Some(SECOND), start);
            Arc::make_mut(&mut snapshot.plan).old_drains = true;
            snapshot
        };
        let store = SnapshotStore::new(draining(99));
        let mut task = Task::of(&store);
        assert!(task.poll().is_pending());
        assert_eq!(store.moving(), 0);
        store.store(draining(100));
        assert_eq!((task.wakes(), store.moving()), (1, 1));
        assert_eq!(task.poll(), Poll::Ready(Some(start + SECOND)));
    }

    #[test]
    fn a_stream_that_starts_on_old_while_streams_move_is_moved() {
        let start = Instant::now();
        let store = SnapshotStore::new(snapshot(100, Some(Duration::ZERO), start));
        let mut task = Task::of(&store);
        assert_eq!(task.poll(), Poll::Ready(Some(start)));
        drop(task);
        assert_eq!(store.moving(), 0);
        let store = SnapshotStore::new(snapshot(100, None, start));
        assert!(
            Task::of(&store).poll().is_pending(),
            "the plan moves nothing"
        );
    }

    #[test]
    fn streams_take_turns() {
        let start = Instant::now();
        let store = SnapshotStore::new(snapshot(100, Some(Duration::ZERO), start));
        let mut tasks: Vec<_> = (0..3).map(|_| Task::of(&store)).collect();
        let now = start + SECOND;
        let turns: Vec<_> = tasks
            .iter_mut()
            .map(|task| task.watch.decide(now))
            .collect();
        assert_eq!(turns[0], MoveDecision::Move);
        let MoveDecision::At(second) = turns[1] else {
            panic!("{turns:?}");
        };
        assert!(second > now + SECOND / 11 && second <= now + SECOND / 10);
        assert_eq!(tasks[1].watch.decide(second), MoveDecision::Move);
        assert!(matches!(turns[2], MoveDecision::At(third) if third > second));
    }
}
