//! When each update is to be looked at: soon after something changed, at a moment that was named, or after a pause that
//! grows with each error. Pure: `now` and chance are arguments.
//!
//! Must not know what a look is.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Key;

/// What happens together is looked at together.
const GATHER: Duration = Duration::from_millis(10);
/// The pause after an error, doubled with each.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];

#[derive(Debug, Default)]
pub(super) struct Queue(HashMap<Key, Entry>);

#[derive(Debug, Default)]
struct Entry {
    due: Option<Instant>,
    /// Since when a change waits to be looked at.
    changed: Option<Instant>,
    /// After an error: not before.
    pause: Option<Instant>,
    failures: u32,
    /// A look is being applied: the next waits for its end.
    busy: bool,
}

/// An update that is due, and since when a change waits for that.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub key: Key,
    pub changed: Option<Instant>,
}

impl Queue {
    /// Something that concerns it has changed.
    pub fn wake(&mut self, key: Key, now: Instant) {
        let entry = self.0.entry(key).or_default();
        entry.changed.get_or_insert(now);
        entry.be_due(now + GATHER);
    }

    /// It is to be looked at by `at`.
    pub fn wake_at(&mut self, key: Key, at: Instant) {
        self.0.entry(key).or_default().be_due(at);
    }

    pub fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// When the next is due.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(Entry::at).min()
    }

    /// Takes the one that has been due for longest.
    pub fn take(&mut self, now: Instant) -> Option<Due> {
        let due = self.0.iter_mut();
        let due = due.filter_map(|(key, entry)| Some((entry.at()?, key, entry)));
        let (at, key, entry) = due.min_by_key(|(at, ..)| *at)?;
        if at > now {
            return None;
        }
        entry.due = None;
        Some(Due {
            key: key.clone(),
            changed: entry.changed.take(),
        })
    }

    /// A look at it is being applied.
    pub fn begin(&mut self, key: &Key) {
        if let Some(entry) = self.0.get_mut(key) {
            entry.busy = true;
        }
    }

    /// It went well.
    pub fn done(&mut self, key: &Key) {
        if let Some(entry) = self.0.get_mut(key) {
            (entry.busy, entry.failures, entry.pause) = (false, 0, None);
        }
    }

    /// It failed; `chance` is from 0 to 1.
    pub fn failed(&mut self, key: &Key, now: Instant, chance: f64) {
        if let Some(entry) = self.0.get_mut(key) {
            let pause = PAUSES[1].min(PAUSES[0] * 2u32.pow(entry.failures.min(10)));
            let at = now + pause.mul_f64(0.5 + chance / 2.0);
            (entry.busy, entry.pause) = (false, Some(at));
            entry.failures += 1;
            entry.be_due(at);
        }
    }
}

impl Entry {
    fn be_due(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn at(&self) -> Option<Instant> {
        let due = self.due.filter(|_| !self.busy)?;
        Some(self.pause.map_or(due, |pause| due.max(pause)))
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
    fn what_happens_together_is_looked_at_once() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.wake(key("a"), now);
        queue.wake(key("a"), now + GATHER / 2);
        assert_eq!(queue.take(now), None);
        let due = queue.take(now + GATHER).unwrap();
        assert_eq!((due.changed, queue.next()), (Some(now), None));
    }

    #[test]
    fn errors_make_a_pause_longer_each_time_that_no_change_cuts_short() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.wake(key("a"), now);
        let mut before = Duration::ZERO;
        for _ in 0..8 {
            queue.failed(&key("a"), now, 1.0);
            queue.wake(key("a"), now);
            let pause = queue.next().unwrap() - now;
            assert!(pause > before || pause == PAUSES[1], "{pause:?}");
            before = pause;
        }
        assert_eq!(before, PAUSES[1]);
        queue.done(&key("a"));
        assert!(queue.next().unwrap() <= now + GATHER);
    }

    #[test]
    fn an_error_of_one_does_not_hold_up_another() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.wake(key("bad"), now);
        queue.failed(&key("bad"), now, 0.0);
        queue.wake(key("good"), now);
        assert_eq!(name(queue.take(now + GATHER)), "good");
        assert_eq!(queue.take(now + GATHER), None);
    }

    #[test]
    fn what_changes_while_a_look_is_applied_is_looked_at_afterwards() {
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
