//! The store of one kind: its cached objects, and how certain they are.
//!
//! `kube::runtime::watcher` speaks the protocol. Its reflector `Store` is not used: it cannot report that the cluster does not
//! serve a kind, that a list is old because the API server rejects a newer one, or when the API server last confirmed it; and the
//! controller needs the object before a change, to find the updates that it affected.

mod follow;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::follow::{is_ready, noting};
use super::clocks::BothClocks;
use super::confirmed::Confirmed;
use super::objects::{Object, Objects};

/// Cached objects may have changed unnoticed if the API server has confirmed nothing for this long. A watch restarts, and so
/// confirms them far more often.
const CURRENT: Duration = Duration::from_secs(60);

/// How long the API server may take to respond to the first list of a kind, or of a further page of it. A list that hangs must
/// not delay a decision forever.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An object that was added, changed or removed.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The plural of its kind.
    pub plural: String,
    pub object: Object,
}

/// Why the objects of a kind are not known. A kind that could not be listed does not count as empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSynced {
    #[error("{0} are not listed yet")]
    NotYet(String),
    #[error("{plural} cannot be listed: {cause}")]
    Refused { plural: String, cause: String },
    /// The workers cannot be counted as the update requests.
    #[error("{0}")]
    Ambiguous(String),
}

/// The objects of one kind, as last received from the API server.
pub struct Store {
    plural: String,
    begun: Instant,
    state: Mutex<State>,
    /// Whether objects of all namespaces are read, so that confirming one namespace is not enough.
    is_wide: AtomicBool,
}

#[derive(Default)]
pub struct State {
    pub objects: Objects,
    /// Whether the kind has been listed in full at least once, or is known not to exist in this cluster.
    listed: bool,
    /// Whether the cluster does not have the kind.
    absent: bool,
    /// Why the kind cannot be listed or watched now. Objects that were listed before stay.
    refused: Option<String>,
    /// When the API server last granted a request.
    last_contact: Option<BothClocks>,
    /// Since when the API server has answered only that it does not know the kind.
    unknown_since: Option<Instant>,
    /// What lists have confirmed in addition to the watch.
    pub confirmed: Confirmed,
}

impl State {
    /// Whether the kind was never listed and the API server reports it as unknown.
    const fn may_be_absent(&self) -> bool {
        !self.listed && self.unknown_since.is_some()
    }

    /// Whether the cluster does not serve the kind.
    pub const fn is_absent(&self) -> bool {
        self.absent
    }

    /// Whether the kind was listed in full, or is known not to exist.
    pub const fn is_listed(&self) -> bool {
        self.listed
    }

    /// Whether the kind was listed, but can no longer be listed or watched.
    pub const fn is_stale(&self) -> bool {
        self.listed && self.refused.is_some()
    }

    /// Whether the API server confirmed the objects recently and has rejected nothing since.
    pub fn is_current(&self, now: BothClocks) -> bool {
        let is_recent = |at: BothClocks| at.elapsed(now) < CURRENT;
        let is_recent = self.absent || self.last_contact.is_some_and(is_recent);
        !self.listed || (self.refused.is_none() && is_recent)
    }
}

impl Store {
    pub fn new(plural: &str) -> Arc<Self> {
        Arc::new(Self {
            plural: plural.to_owned(),
            begun: Instant::now(),
            state: Mutex::default(),
            is_wide: AtomicBool::default(),
        })
    }

    /// The plural of the kind.
    pub fn plural(&self) -> &str {
        &self.plural
    }

    /// Records that objects of all namespaces are read.
    pub fn widen(&self) {
        self.is_wide.store(true, Ordering::Relaxed);
    }

    /// Whether objects of all namespaces are read.
    pub fn is_wide(&self) -> bool {
        self.is_wide.load(Ordering::Relaxed)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the objects can be read.
    pub fn check(&self, state: &State) -> Result<(), NotSynced> {
        self.check_at(state, Instant::now())
    }

    fn check_at(&self, state: &State, now: Instant) -> Result<(), NotSynced> {
        let plural = self.plural.clone();
        let last_contact = state
            .last_contact
            .map_or(self.begun, |last_contact| last_contact.0);
        let is_silent = now.saturating_duration_since(last_contact) >= TIMEOUT;
        match &state.refused {
            _ if state.listed => Ok(()),
            Some(cause) => Err(NotSynced::Refused {
                plural,
                cause: cause.clone(),
            }),
            None if is_silent && !state.may_be_absent() => Err(NotSynced::Refused {
                plural,
                cause: "the API server does not respond".to_owned(),
            }),
            None => Err(NotSynced::NotYet(plural)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_list_that_hangs_times_out() {
        let store = Store::new("teapots");
        let later = |seconds| store.begun + Duration::from_secs(seconds);
        let check = |now| store.check_at(&store.state(), now);
        let is_awaited = |now| matches!(check(now), Err(NotSynced::NotYet(_)));
        assert!(is_awaited(later(9)));
        assert!(matches!(check(later(10)), Err(NotSynced::Refused { .. })));
        // A page of it has arrived.
        store.state().last_contact = Some(BothClocks(later(8), std::time::SystemTime::now()));
        assert!(is_awaited(later(17)) && !is_awaited(later(18)));
        // The API server responds, but does not know the kind yet.
        store.state().unknown_since = Some(later(8));
        assert!(is_awaited(later(18)));
        store.state().listed = true;
        assert_eq!(check(later(99)), Ok(()));
    }
}
