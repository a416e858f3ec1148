//! Polls network addresses in the background, with one task per address, so that a reconcile reads the last result and never
//! waits.
//!
//! Does not depend on what is polled.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::Key;

/// The places that are polled, by a name that identifies each.
pub(super) struct Pollers<T> {
    polls: Polls<T>,
    wake: mpsc::UnboundedSender<Key>,
}

type Polls<T> = Arc<Mutex<HashMap<String, Poll<T>>>>;

struct Poll<T> {
    /// The updates that need this place, and the pace that each requires.
    owners: BTreeMap<Key, Pace>,
    pace: watch::Sender<Pace>,
    heard: Option<T>,
    since: Instant,
    task: AbortHandle,
}

/// How often a place is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Normal,
    /// No decision currently depends on it.
    Slow,
}

impl<T> Poll<T> {
    /// Sets the pace to the fastest that any owner requires.
    fn keep_pace(&self) {
        let is_slow = self.owners.values().all(|pace| *pace == Pace::Slow);
        let pace = if is_slow { Pace::Slow } else { Pace::Normal };
        self.pace
            .send_if_modified(|known| std::mem::replace(known, pace) != pace);
    }
}

/// The channel on which a polling task reports its results.
pub(super) struct PollSink<T> {
    place: String,
    pace: watch::Receiver<Pace>,
    polls: Polls<T>,
    wake: mpsc::UnboundedSender<Key>,
}

impl<T: Clone + Send + 'static> Pollers<T> {
    /// Sends the keys of a place's owners to `wake` when a result matters.
    pub fn new(wake: mpsc::UnboundedSender<Key>) -> Self {
        Self {
            polls: Arc::default(),
            wake,
        }
    }

    /// The last result from `place`. Starts `task` to poll it, if none does yet and `permit` allows one more, at the fastest pace
    /// that any owner requires. `None` if it is not allowed.
    ///
    /// # Errors
    /// Since when it is polled, if there is no result yet.
    pub fn hear<P, F>(
        &self,
        owner: &Key,
        place: &str,
        pace: Pace,
        permit: impl FnOnce() -> Option<P>,
        task: impl FnOnce(PollSink<T>, P) -> F,
    ) -> Option<Result<T, Instant>>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut polls = lock(&self.polls);
        let poll = match polls.entry(place.to_owned()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                let permit = permit()?;
                let (sender, receiver) = watch::channel(pace);
                let sink = PollSink {
                    place: place.to_owned(),
                    pace: receiver,
                    polls: Arc::clone(&self.polls),
                    wake: self.wake.clone(),
                };
                free.insert(Poll {
                    owners: BTreeMap::new(),
                    pace: sender,
                    heard: None,
                    since: Instant::now(),
                    task: tokio::spawn(task(sink, permit)).abort_handle(),
                })
            }
        };
        if poll.owners.insert(owner.clone(), pace) != Some(pace) {
            poll.keep_pace();
        }
        Some(poll.heard.clone().ok_or(poll.since))
    }

    /// Stops all polling, until [`Self::hear`] is called again.
    pub fn rest(&self) {
        for (_, poll) in lock(&self.polls).drain() {
            poll.task.abort();
        }
    }

    /// The last result from `place`, if it is polled and has one.
    pub fn heard(&self, place: &str) -> Option<T> {
        lock(&self.polls).get(place)?.heard.clone()
    }

    /// Sets the places that `owner` needs. Stops polling a place that no owner needs.
    pub fn keep(&self, owner: &Key, places: &BTreeSet<String>) {
        lock(&self.polls).retain(|place, poll| {
            if !places.contains(place) && poll.owners.remove(owner).is_some() {
                poll.keep_pace();
            }
            let is_needed = !poll.owners.is_empty();
            if !is_needed {
                poll.task.abort();
            }
            is_needed
        });
    }
}

impl<T> PollSink<T> {
    /// Reports a result. Wakes the owners if it is the first one or `matters`.
    pub fn report(&self, heard: T, matters: bool) {
        if let Some(poll) = lock(&self.polls).get_mut(&self.place) {
            let is_first = poll.heard.replace(heard).is_none();
            if matters || is_first {
                for owner in poll.owners.keys() {
                    let _ = self.wake.send(owner.clone());
                }
            }
        }
    }
}

impl<T> PollSink<T> {
    /// Waits until the next poll is due: after `normal`, or after `slow` if that is enough for all owners. Returns immediately
    /// when the pace changes from slow to normal.
    pub async fn pause(&mut self, normal: Duration, slow: Duration) {
        loop {
            let pace = *self.pace.borrow_and_update();
            let wait = match pace {
                Pace::Normal => normal,
                Pace::Slow => slow,
            };
            let over = tokio::time::sleep(wait);
            let changed = async {
                // Without a sender, no owner needs the task: wait to be aborted.
                if self.pace.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = over => return,
                () = changed => {}
            }
            if pace == Pace::Slow {
                return;
            }
        }
    }
}

fn lock<T>(polls: &Polls<T>) -> MutexGuard<'_, HashMap<String, Poll<T>>> {
    polls.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key {
            namespace: "n".to_owned(),
            name: name.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_place_is_asked_as_often_as_the_owner_needs_it_that_needs_it_most() {
        const HOUR: Duration = Duration::from_secs(3600);
        let (wake, mut woken) = mpsc::unbounded_channel();
        let pollers = Pollers::new(wake);
        let hear = |owner: &str, pace| {
            let task = |mut sink: PollSink<u32>, ()| async move {
                for asked in 1.. {
                    sink.report(asked, true);
                    sink.pause(Duration::from_millis(1), HOUR).await;
                }
            };
            let _ = pollers.hear(&key(owner), "place", pace, || Some(()), task);
        };
        let mut is_polled = async || {
            let woken = tokio::time::timeout(Duration::from_millis(300), woken.recv());
            woken.await.is_ok()
        };
        hear("a", Pace::Slow);
        assert!(is_polled().await && !is_polled().await);
        // A place that an incomplete update needs is polled immediately, and at the normal pace from then on.
        hear("b", Pace::Normal);
        for _ in 0..20 {
            assert!(is_polled().await);
        }
        hear("b", Pace::Slow);
        while is_polled().await {}
        hear("b", Pace::Normal);
        for _ in 0..20 {
            assert!(is_polled().await);
        }
        // An owner that no longer exists needs no place.
        pollers.keep(&key("b"), &BTreeSet::new());
        while is_polled().await {}
    }

    #[tokio::test]
    async fn a_place_that_is_one_too_many_is_not_polled_and_those_that_are_continue() {
        let (wake, _woken) = mpsc::unbounded_channel();
        let pollers = Pollers::<u32>::new(wake);
        let mut left = 1;
        let mut hear = |place: &str| {
            let permit = || {
                left -= 1;
                (left >= 0).then_some(())
            };
            let task = |_, ()| std::future::pending();
            pollers.hear(&key("a"), place, Pace::Normal, permit, task)
        };
        assert!(hear("first").is_some());
        assert!(hear("second").is_none());
        assert!(hear("first").is_some());
    }
}
