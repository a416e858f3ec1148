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

/// The addresses that are polled, by a name that identifies each.
pub(super) struct Pollers<T> {
    polls: Polls<T>,
    wake: mpsc::UnboundedSender<Key>,
}

type Polls<T> = Arc<Mutex<HashMap<String, Poll<T>>>>;

struct Poll<T> {
    /// The updates that need this address, and the pace that each requires.
    owners: BTreeMap<Key, Pace>,
    pace: watch::Sender<Pace>,
    last: Option<T>,
    since: Instant,
    task: AbortHandle,
}

/// How often an address is polled.
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
    address: String,
    pace: watch::Receiver<Pace>,
    polls: Polls<T>,
    wake: mpsc::UnboundedSender<Key>,
}

impl<T: Clone + Send + 'static> Pollers<T> {
    /// Sends the keys of an address's owners to `wake` when a result matters.
    pub fn new(wake: mpsc::UnboundedSender<Key>) -> Self {
        Self {
            polls: Arc::default(),
            wake,
        }
    }

    /// The last result from `address`. Starts `task` to poll it, if none does yet and `permit` allows one more, at the fastest
    /// pace that any owner requires. `None` if it is not allowed.
    ///
    /// # Errors
    /// Since when it is polled, if there is no result yet.
    pub fn poll<P, F>(
        &self,
        owner: &Key,
        address: &str,
        pace: Pace,
        permit: impl FnOnce() -> Option<P>,
        task: impl FnOnce(PollSink<T>, P) -> F,
    ) -> Option<Result<T, Instant>>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut polls = lock(&self.polls);
        let poll = match polls.entry(address.to_owned()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                let permit = permit()?;
                let (sender, receiver) = watch::channel(pace);
                let sink = PollSink {
                    address: address.to_owned(),
                    pace: receiver,
                    polls: Arc::clone(&self.polls),
                    wake: self.wake.clone(),
                };
                free.insert(Poll {
                    owners: BTreeMap::new(),
                    pace: sender,
                    last: None,
                    since: Instant::now(),
                    task: tokio::spawn(task(sink, permit)).abort_handle(),
                })
            }
        };
        if poll.owners.insert(owner.clone(), pace) != Some(pace) {
            poll.keep_pace();
        }
        Some(poll.last.clone().ok_or(poll.since))
    }

    /// Stops all polling, until [`Self::poll`] is called again.
    pub fn stop_all(&self) {
        for (_, poll) in lock(&self.polls).drain() {
            poll.task.abort();
        }
    }

    /// The last result from `address`, if it is polled and has one.
    pub fn last(&self, address: &str) -> Option<T> {
        lock(&self.polls).get(address)?.last.clone()
    }

    /// Sets the addresses that `owner` needs. Stops polling an address that no owner needs.
    pub fn keep(&self, owner: &Key, addresses: &BTreeSet<String>) {
        lock(&self.polls).retain(|address, poll| {
            if !addresses.contains(address) && poll.owners.remove(owner).is_some() {
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
    pub fn report(&self, last: T, matters: bool) {
        if let Some(poll) = lock(&self.polls).get_mut(&self.address) {
            let is_first = poll.last.replace(last).is_none();
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
    async fn an_address_is_polled_at_the_pace_of_its_most_demanding_owner() {
        const HOUR: Duration = Duration::from_secs(3600);
        let (wake, mut woken) = mpsc::unbounded_channel();
        let pollers = Pollers::new(wake);
        let poll = |owner: &str, pace| {
            let task = |mut sink: PollSink<u32>, ()| async move {
                for count in 1.. {
                    sink.report(count, true);
                    sink.pause(Duration::from_millis(1), HOUR).await;
                }
            };
            let _ = pollers.poll(&key(owner), "address", pace, || Some(()), task);
        };
        let mut is_polled = async || {
            let woken = tokio::time::timeout(Duration::from_millis(300), woken.recv());
            woken.await.is_ok()
        };
        poll("a", Pace::Slow);
        assert!(is_polled().await && !is_polled().await);
        // An address that an incomplete update needs is polled immediately, and at the normal pace from then on.
        poll("b", Pace::Normal);
        for _ in 0..20 {
            assert!(is_polled().await);
        }
        poll("b", Pace::Slow);
        while is_polled().await {}
        poll("b", Pace::Normal);
        for _ in 0..20 {
            assert!(is_polled().await);
        }
        // An owner that no longer exists needs no address.
        pollers.keep(&key("b"), &BTreeSet::new());
        while is_polled().await {}
    }

    #[tokio::test]
    async fn an_address_beyond_the_limit_is_not_polled_and_the_others_still_are() {
        let (wake, _woken) = mpsc::unbounded_channel();
        let pollers = Pollers::<u32>::new(wake);
        let mut left = 1;
        let mut poll = |address: &str| {
            let permit = || {
                left -= 1;
                (left >= 0).then_some(())
            };
            let task = |_, ()| std::future::pending();
            pollers.poll(&key("a"), address, Pace::Normal, permit, task)
        };
        assert!(poll("first").is_some());
        assert!(poll("second").is_none());
        assert!(poll("first").is_some());
    }
}
