//! Limits how many requests the controller sends to frontends, fairly between namespaces and targets.
//!
//! A namespace belongs to its users, and its frontends may answer anything. All updates of a namespace share one part of the
//! sockets, time, and memory. Requests beyond that part wait, and meanwhile their frontends count as not having responded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Short requests in flight: in total and per namespace. Each uses one socket and at most [`super::http::MAX_LIST`] bytes.
const QUERIES: (usize, usize) = (128, 16);
/// Probe requests to models in flight, which may take long: in total and per namespace.
const PROBES: (usize, usize) = (64, 8);
/// Idle connections: in total and per namespace. Beyond that, every request opens a new connection.
const CONNECTIONS: (usize, usize) = (512, 128);
/// Interval between the requests of one namespace under constant load, and how far a burst may get ahead of it.
const PACE: Duration = Duration::from_millis(2);
const BURST: Duration = Duration::from_secs(1);
/// Maximum number of frontends polled for the updates of one namespace.
const TARGETS: usize = 1024;
/// Proxies that are followed: in total and for the updates of one namespace. Each costs a connection and a report per second.
const PROXIES: (usize, usize) = (16_384, 4_096);
/// Model IDs kept of all frontends: in total and per namespace. An ID has at most 512 bytes.
const MODELS: (usize, usize) = (131_072, 16_384);

/// The limits of the process, divided among namespaces.
#[derive(Clone)]
pub(super) struct Limits(Arc<ProcessLimits>);

struct ProcessLimits {
    queries: Arc<Semaphore>,
    probes: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    proxies: AtomicUsize,
    models: AtomicUsize,
    namespaces: Mutex<HashMap<String, Weak<NamespaceLimits>>>,
}

/// The share of one namespace.
struct NamespaceLimits {
    whole: Arc<ProcessLimits>,
    queries: Arc<Semaphore>,
    probes: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    /// The time of the last slot that was given out; the next one follows [`PACE`] later.
    next: Mutex<Instant>,
    targets: AtomicUsize,
    proxies: AtomicUsize,
    models: AtomicUsize,
}

/// The part of a namespace's share that one target uses, held for as long as the target is polled.
pub(super) struct TargetPermit(Arc<NamespaceLimits>);

/// A permit to follow one proxy, held for as long as the proxy is followed.
pub(super) struct ProxyPermit(Arc<NamespaceLimits>);

/// Permits of a request in flight.
pub(super) struct Permit {
    _namespace: OwnedSemaphorePermit,
    _process: OwnedSemaphorePermit,
}

/// Permits of an idle connection.
pub(super) struct IdlePermit {
    _namespace: OwnedSemaphorePermit,
    _process: OwnedSemaphorePermit,
}

/// A reservation for model IDs.
pub(super) struct ModelIdReservation {
    count: usize,
    part: Arc<NamespaceLimits>,
}

impl Default for Limits {
    fn default() -> Self {
        Self(Arc::new(ProcessLimits {
            queries: Arc::new(Semaphore::new(QUERIES.0)),
            probes: Arc::new(Semaphore::new(PROBES.0)),
            connections: Arc::new(Semaphore::new(CONNECTIONS.0)),
            proxies: AtomicUsize::new(0),
            models: AtomicUsize::new(0),
            namespaces: Mutex::default(),
        }))
    }
}

impl Limits {
    /// The most proxies that are followed for the updates of one namespace.
    pub const MAX_PROXIES: usize = PROXIES.1;

    /// A share for one more target of `namespace`; `None` if the namespace is at its limit.
    pub fn share(&self, namespace: &str) -> Option<TargetPermit> {
        let part = self.part(namespace);
        (take(&part.targets, 1, TARGETS) == 1).then(|| TargetPermit(part))
    }

    /// A permit for one more proxy of `namespace`; `None` if the namespace, or the process, is at its limit.
    pub fn proxy(&self, namespace: &str) -> Option<ProxyPermit> {
        let part = self.part(namespace);
        if take(&part.proxies, 1, PROXIES.1) == 0 {
            return None;
        }
        if take(&self.0.proxies, 1, PROXIES.0) == 0 {
            part.proxies.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(ProxyPermit(part))
    }

    fn part(&self, namespace: &str) -> Arc<NamespaceLimits> {
        let known = self.0.namespaces.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        let part = known.get(namespace).and_then(Weak::upgrade);
        part.unwrap_or_else(|| {
            known.retain(|_, part| part.strong_count() > 0);
            let part = Arc::new(NamespaceLimits {
                whole: Arc::clone(&self.0),
                queries: Arc::new(Semaphore::new(QUERIES.1)),
                probes: Arc::new(Semaphore::new(PROBES.1)),
                connections: Arc::new(Semaphore::new(CONNECTIONS.1)),
                next: Mutex::new(Instant::now()),
                targets: AtomicUsize::new(0),
                proxies: AtomicUsize::new(0),
                models: AtomicUsize::new(0),
            });
            known.insert(namespace.to_owned(), Arc::downgrade(&part));
            part
        })
    }
}

impl NamespaceLimits {
    /// Reserves the time of the next request.
    fn slot(&self, now: Instant) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        *next = (*next).max(earliest) + PACE;
        *next
    }
}

impl TargetPermit {
    /// Waits until a request may be sent. This wait is local and does not count against the frontend.
    pub async fn query_permit(&self) -> Permit {
        tokio::time::sleep_until(self.0.slot(Instant::now())).await;
        permit(&self.0.queries, &self.0.whole.queries).await
    }

    /// Waits until a model may be probed.
    pub async fn probe(&self) -> Permit {
        permit(&self.0.probes, &self.0.whole.probes).await
    }

    /// Permits to keep a connection, if there are any left.
    pub fn connection(&self) -> Option<IdlePermit> {
        let one = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).try_acquire_owned().ok();
        Some(IdlePermit {
            _namespace: one(&self.0.connections)?,
            _process: one(&self.0.whole.connections)?,
        })
    }

    /// Reserves room for up to `count` model IDs.
    pub fn keep(&self, count: usize) -> ModelIdReservation {
        let part = &self.0;
        let own = take(&part.models, count, MODELS.1);
        let count = take(&part.whole.models, own, MODELS.0);
        part.models.fetch_sub(own - count, Ordering::Relaxed);
        ModelIdReservation {
            count,
            part: Arc::clone(part),
        }
    }
}

impl Drop for ProxyPermit {
    fn drop(&mut self) {
        self.0.proxies.fetch_sub(1, Ordering::Relaxed);
        self.0.whole.proxies.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for TargetPermit {
    fn drop(&mut self) {
        self.0.targets.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ModelIdReservation {
    /// The number of IDs that were granted.
    pub const fn count(&self) -> usize {
        self.count
    }
}

impl Drop for ModelIdReservation {
    fn drop(&mut self) {
        self.part.models.fetch_sub(self.count, Ordering::Relaxed);
        let whole = &self.part.whole.models;
        whole.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// Acquires the namespace's permit first, so that a waiting request holds nothing that another namespace could use.
async fn permit(namespace: &Arc<Semaphore>, all: &Arc<Semaphore>) -> Permit {
    let one = async |semaphore: &Arc<Semaphore>| {
        let permit = Arc::clone(semaphore).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    };
    Permit {
        _namespace: one(namespace).await,
        _process: one(all).await,
    }
}

/// Adds up to `wanted` to `taken`, without exceeding `most`. Returns how much was added.
fn take(taken: &AtomicUsize, wanted: usize, most: usize) -> usize {
    let mut got = 0;
    let _ = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
        got = wanted.min(most.saturating_sub(taken));
        Some(taken + got)
    });
    got
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_namespace_at_its_limit_does_not_affect_another() {
        let limits = Limits::default();
        let (greedy, other) = (limits.share("a").unwrap(), limits.share("b").unwrap());
        let mut open = Vec::new();
        for _ in 0..QUERIES.1 {
            open.push(greedy.query_permit().await);
        }
        let one_more = tokio::time::timeout(Duration::from_millis(100), greedy.query_permit());
        assert!(one_more.await.is_err());
        drop(other.query_permit().await);
        open.clear();
        drop(greedy.query_permit().await);
    }

    #[test]
    fn probes_without_a_pause_are_rate_limited() {
        let share = Limits::default().share("a").unwrap();
        let begun = Instant::now();
        let mut last = begun;
        for _ in 0..5000 {
            last = share.0.slot(begun);
        }
        assert!(last >= begun + PACE * 5000 - BURST, "{:?}", last - begun);
        // After an idle time, a burst is allowed again.
        let later = last + BURST * 2;
        assert!(share.0.slot(later) < later);
    }

    #[test]
    fn ids_are_kept_as_long_as_there_is_room_and_room_comes_back() {
        let limits = Limits::default();
        let shares: Vec<_> = (0..9)
            .map(|i| limits.share(&i.to_string()).unwrap())
            .collect();
        let kept: Vec<_> = shares.iter().map(|share| share.keep(20_000)).collect();
        let counts: Vec<_> = kept.iter().map(ModelIdReservation::count).collect();
        assert_eq!(
            counts,
            [
                16_384, 16_384, 16_384, 16_384, 16_384, 16_384, 16_384, 16_384, 0
            ]
        );
        drop(kept);
        assert_eq!(shares[8].keep(20_000).count(), MODELS.1);
        assert_eq!(shares[8].keep(20_000).count(), MODELS.1);
    }

    #[test]
    fn connections_are_kept_as_long_as_there_is_room() {
        let limits = Limits::default();
        let kept = |namespace: &str| {
            let share = limits.share(namespace).unwrap();
            std::iter::from_fn(|| share.connection()).collect::<Vec<_>>()
        };
        let all: Vec<_> = ["a", "b", "c", "d", "e"].map(kept).into();
        let counts: Vec<_> = all.iter().map(Vec::len).collect();
        assert_eq!(counts, [128, 128, 128, 128, 0]);
        drop(all);
        assert_eq!(kept("e").len(), CONNECTIONS.1);
    }

    #[test]
    fn the_targets_of_a_namespace_are_limited() {
        let limits = Limits::default();
        let shares: Vec<_> = std::iter::from_fn(|| limits.share("a")).collect();
        assert_eq!(shares.len(), TARGETS);
        assert!(limits.share("b").is_some());
        drop(shares);
        assert!(limits.share("a").is_some());
    }

    #[test]
    fn the_followed_proxies_of_a_namespace_are_limited() {
        let limits = Limits::default();
        let take = |namespace: &str| -> Vec<ProxyPermit> {
            std::iter::from_fn(|| limits.proxy(namespace)).collect()
        };
        let all: Vec<_> = ["a", "b", "c", "d", "e"].map(take).into();
        let counts: Vec<_> = all.iter().map(Vec::len).collect();
        assert_eq!(counts, [4096, 4096, 4096, 4096, 0]);
        drop(all);
        assert_eq!(take("e").len(), Limits::MAX_PROXIES);
    }
}
