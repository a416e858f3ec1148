//! The work queue: schedules the next reconcile of each update or rollout.
//!
//! Of those that are due, the next one is from the namespace that has recently used the least time, so that a namespace with
//! many or expensive ones does not delay the others.
//!
//! `kube::runtime::Controller` is not used: its backoff also delays changes, it is not fair to namespaces, and it runs reconciles
//! concurrently, although each one here reads the caches of all.
//!
//! An object is due soon after a change, at a requested time, or, after a failure, with exponential backoff. Backoff never
//! delays the reconcile after a change. Pure: `now` and the jitter are arguments.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Key;
use super::rejected_writes::WRITES;

/// Delay after a change, so that related changes share one reconcile.
const GATHER: Duration = Duration::from_millis(10);

/// How long a reconcile is postponed at most.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The half-life of the time that a namespace has used.
const HALF_LIFE: Duration = Duration::from_secs(5);
/// Used time below this counts as zero, in seconds.
const NEGLIGIBLE: f64 = 1e-4;

#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: HashMap<Key, Entry>,
    /// The time that reconciles have used, by namespace.
    used: HashMap<String, Used>,
}

/// Time that was used up to some point.
#[derive(Debug)]
struct Used {
    seconds: f64,
    at: Instant,
}

impl Used {
    /// Its value at `now`, in seconds.
    fn at(&self, now: Instant) -> f64 {
        let halvings = now
            .saturating_duration_since(self.at)
            .div_duration_f64(HALF_LIFE);
        let left = self.seconds * (-halvings).exp2();
        if left < NEGLIGIBLE { 0.0 } else { left }
    }
}

#[derive(Debug, Default)]
struct Entry {
    due: Option<Instant>,
    /// The time of the oldest change that has not been reconciled yet.
    changed: Option<Instant>,
    /// Since when it has been postponed.
    postponed_since: Option<Instant>,
    failures: u32,
    /// A reconcile is being applied: the next one waits for it.
    busy: bool,
}

/// An object that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub key: Key,
    /// The time of its oldest unhandled change.
    pub changed: Option<Instant>,
    /// When it was first postponed, if no reconcile has ended since.
    pub postponed_since: Option<Instant>,
}

impl Due {
    /// Whether it can be postponed again. Information that never arrives must not delay a decision forever.
    pub fn can_wait(&self, now: Instant) -> bool {
        let waits = |since| now.saturating_duration_since(since) < LONGEST_WAIT;
        self.postponed_since.is_none_or(waits)
    }
}

impl Queue {
    /// Schedules a reconcile after a related object has changed.
    pub fn wake(&mut self, key: Key, now: Instant) {
        let entry = self.entries.entry(key).or_default();
        entry.changed.get_or_insert(now);
        entry.be_due(now + GATHER);
    }

    /// Schedules a reconcile at `at`, or earlier if it is already due earlier.
    pub fn wake_at(&mut self, key: Key, at: Instant) {
        self.entries.entry(key).or_default().be_due(at);
    }

    pub fn forget(&mut self, key: &Key) {
        self.entries.remove(key);
    }

    /// When the next object is due.
    pub fn next(&self) -> Option<Instant> {
        self.entries.values().filter_map(Entry::at).min()
    }

    /// Records the time that a reconcile in this namespace has taken.
    pub fn used(&mut self, namespace: &str, time: Duration, now: Instant) {
        let used = self.used.get(namespace).map_or(0.0, |used| used.at(now));
        let seconds = used + time.as_secs_f64();
        self.used
            .insert(namespace.to_owned(), Used { seconds, at: now });
    }

    /// Takes an object that is due: of the namespaces that have used the least time, the one that has been due for longest.
    pub fn take(&mut self, now: Instant) -> Option<Due> {
        self.used.retain(|_, used| used.at(now) > 0.0);
        let used = |key: &Key| {
            self.used
                .get(&key.namespace)
                .map_or(0.0, |used| used.at(now))
        };
        let due = self.entries.iter_mut();
        let due = due.filter_map(|(key, entry)| {
            let at = entry.at().filter(|at| *at <= now)?;
            Some(((used(key), at), key, entry))
        });
        let first = |one: &(f64, Instant), other: &(f64, Instant)| {
            one.0.total_cmp(&other.0).then(one.1.cmp(&other.1))
        };
        let (_, key, entry) = due.min_by(|(one, ..), (other, ..)| first(one, other))?;
        entry.due = None;
        Some(Due {
            key: key.clone(),
            changed: entry.changed.take(),
            postponed_since: entry.postponed_since.take(),
        })
    }

    /// Marks an object whose reconcile is being applied.
    pub fn begin(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.busy = true;
        }
    }

    /// Ends a successful reconcile and resets the backoff.
    pub fn done(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.busy, entry.failures) = (false, 0);
        }
    }

    /// Ends a failed reconcile and retries it with backoff. `chance`, from 0 to 1, sets the jitter.
    pub fn failed(&mut self, key: &Key, now: Instant, chance: f64) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.busy = false;
            entry.be_due(now + WRITES.jittered(entry.failures, chance));
            entry.failures += 1;
        }
    }

    /// Postpones, until `at`, an object that could not be reconciled at `now`. Keeps the time of its oldest change.
    pub fn postpone(&mut self, due: Due, now: Instant, at: Instant) {
        let entry = self.entries.entry(due.key).or_default();
        entry.changed = entry.changed.into_iter().chain(due.changed).min();
        entry.postponed_since = due.postponed_since.or(Some(now));
        entry.be_due(at);
    }
}

impl Entry {
    fn be_due(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn at(&self) -> Option<Instant> {
        self.due.filter(|_| !self.busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key {
            namespace: "default".into(),
            name: name.into(),
        }
    }

    fn name(due: Option<Due>) -> String {
        due.map_or_else(String::new, |due| due.key.name)
    }

    #[test]
    fn changes_at_the_same_time_cause_one_reconcile() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.wake(key("a"), now);
        queue.wake(key("a"), now + GATHER / 2);
        assert_eq!(queue.take(now), None);
        let due = queue.take(now + GATHER).unwrap();
        assert_eq!((due.changed, queue.next()), (Some(now), None));
    }

    #[test]
    fn errors_lengthen_the_backoff_but_a_change_is_reconciled_at_once() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.wake(key("a"), now);
        queue.take(now + GATHER);
        let mut before = Duration::ZERO;
        for _ in 0..12 {
            queue.failed(&key("a"), now, 1.0);
            let at = queue.next().unwrap();
            assert!(at - now > before || before == Duration::from_secs(60));
            before = at - now;
            queue.take(at);
        }
        assert_eq!(before, Duration::from_secs(60));
        queue.failed(&key("a"), now, 1.0);
        queue.wake(key("a"), now);
        assert_eq!(queue.next(), Some(now + GATHER));
        queue.done(&key("a"));
        queue.take(now + GATHER);
        queue.failed(&key("a"), now, 1.0);
        assert_eq!(queue.next(), Some(now + Duration::from_millis(500)));
    }

    #[test]
    fn a_namespace_that_uses_much_time_waits_for_one_that_uses_little() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let of = |namespace: &str, name: &str| Key {
            namespace: namespace.into(),
            ..key(name)
        };
        let busy: Vec<Key> = (0..20).map(|i| of("busy", &i.to_string())).collect();
        for key in &busy {
            queue.wake(key.clone(), now);
        }
        now += GATHER;
        for _ in 0..5 {
            let due = queue.take(now).unwrap();
            now += Duration::from_millis(100);
            queue.used(&due.key.namespace, Duration::from_millis(100), now);
        }
        // It became due last, but is next anyway.
        queue.wake_at(of("calm", "a"), now);
        assert_eq!(name(queue.take(now)), "a");
        queue.used("calm", Duration::from_millis(1), now);
        assert_eq!(queue.take(now).unwrap().key.namespace, "busy");
        // After a while, the update that has been due for longest is next.
        queue.wake_at(of("calm", "b"), now);
        now += 30 * HALF_LIFE;
        assert_eq!(queue.take(now).unwrap().key.namespace, "busy");
        assert!(queue.used.is_empty());
    }

    #[test]
    fn a_change_that_came_too_early_keeps_its_time() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.wake(key("a"), now);
        let due = queue.take(now + GATHER).unwrap();
        queue.wake(key("a"), now + GATHER);
        queue.postpone(due, now + GATHER, now + 2 * GATHER);
        let due = queue.take(now + 2 * GATHER).unwrap();
        assert_eq!(due.changed, Some(now));
    }

    #[test]
    fn repeatedly_postponed_updates_are_eventually_reconciled() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let mut now = start;
        queue.wake_at(key("a"), now);
        let due = loop {
            let due = queue.take(now).unwrap();
            if !due.can_wait(now) {
                break due;
            }
            queue.postpone(due, now, now + Duration::from_secs(2));
            now += Duration::from_secs(2);
        };
        assert_eq!(due.postponed_since, Some(start));
        assert_eq!(now, start + Duration::from_secs(6));
        queue.wake_at(key("a"), now);
        assert_eq!(queue.take(now).unwrap().postponed_since, None);
    }

    #[test]
    fn an_error_of_one_does_not_hold_up_another() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.wake(key("bad"), now);
        queue.take(now + GATHER);
        queue.failed(&key("bad"), now, 0.0);
        queue.wake(key("good"), now);
        assert_eq!(name(queue.take(now + GATHER)), "good");
        assert_eq!(queue.take(now + GATHER), None);
    }

    #[test]
    fn a_change_during_a_reconcile_causes_another_one() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.wake(key("a"), now);
        assert_eq!(name(queue.take(now + GATHER)), "a");
        queue.begin(&key("a"));
        queue.wake(key("a"), now);
        assert_eq!(queue.next(), None);
        queue.done(&key("a"));
        assert_eq!(name(queue.take(now + GATHER)), "a");
    }
}
