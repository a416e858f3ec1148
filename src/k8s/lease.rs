//! Leader election among controller replicas, with a Lease (coordination.k8s.io/v1).
//!
//! A replica takes over the lease once its holder has not renewed it for the full duration, measured by the replica's own clock:
//! clocks of different hosts are never compared. The leader relies on its lease for only two thirds of the duration, counted
//! from before the renewal was sent. Work that starts within that time and takes no longer than the last third ends before
//! another replica can lead.
//!
//! `kube::runtime` has no leader election.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use k8s_openapi::api::coordination::v1::{Lease as Object, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Error as ClientError;
use kube::api::{Api, PostParams};
use tokio::sync::watch;

use super::Connection;

use crate::error_chain::error_chain;

/// A candidate in the leader election.
pub struct Lease {
    api: Api<Object>,
    name: String,
    identity: String,
    length: Duration,
    held: watch::Sender<Option<Term>>,
    /// The holder when the lease was last read.
    holder: Arc<ArcSwapOption<String>>,
    /// The resource version of another replica's lease, and since when it has been unchanged.
    other: Option<(Option<String>, Instant)>,
}

/// A time during which this process leads without interruption.
#[derive(Clone, Copy, Debug)]
struct Term {
    since: Instant,
    /// How long it is certain to last.
    until: Instant,
}

/// Tells whether this process is the leader.
#[derive(Clone, Debug)]
pub struct Leading {
    held: watch::Receiver<Option<Term>>,
    holder: Arc<ArcSwapOption<String>>,
}

impl Leading {
    /// How long this process is certain to remain the leader; `None` if it is not the leader.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let term = (*self.held.borrow())?;
        term.until
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
    }

    /// Since when this process has led; `None` if it has never led, or has lost the lease.
    #[must_use]
    pub fn since(&self) -> Option<Instant> {
        let term = *self.held.borrow();
        term.map(|term| term.since)
    }

    /// The identity of the lease's holder when it was last read. If that is another replica, it may no longer exist.
    #[must_use]
    pub fn holder(&self) -> Option<Arc<String>> {
        self.holder.load_full()
    }

    /// Waits until leadership may have changed.
    pub async fn changed(&mut self) {
        if self.held.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Lease {
    /// Creates a candidate for the lease `name` with the duration `length`. No other process may use the same `identity`.
    #[must_use]
    pub fn new(
        connection: &Connection,
        namespace: &str,
        name: &str,
        identity: &str,
        length: Duration,
    ) -> (Self, Leading) {
        let (held, term) = watch::channel(None);
        let holder = Arc::new(ArcSwapOption::empty());
        let leading = Leading {
            held: term,
            holder: Arc::clone(&holder),
        };
        let lease = Self {
            api: Api::namespaced(connection.client.clone(), namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            length,
            held,
            holder,
            other: None,
        };
        (lease, leading)
    }

    /// Acquires the lease when possible and renews it, for as long as it is polled.
    pub async fn keep(&mut self) {
        loop {
            let begun = Instant::now();
            let attempt = tokio::time::timeout(self.length / 3, self.attempt()).await;
            match attempt {
                Ok(Ok(true)) => {
                    let now = Instant::now();
                    let before = *self.held.borrow();
                    let before = before.filter(|term| term.until > now);
                    let term = Term {
                        since: before.map_or(now, |term| term.since),
                        until: begun + self.length * 2 / 3,
                    };
                    if self.held.send_replace(Some(term)).is_none() {
                        tracing::info!(lease = self.name, "became the leader");
                    }
                }
                Ok(Ok(false)) => {
                    if self.held.send_replace(None).is_some() {
                        tracing::warn!(lease = self.name, "another replica is the leader");
                    }
                }
                Ok(Err(error)) => tracing::warn!(
                    error = error_chain(&error),
                    "cannot read or write the lease"
                ),
                Err(_) => {
                    tracing::warn!("the API server did not respond to a request for the lease")
                }
            }
            let ran_out = |term: &mut Option<Term>| {
                term.take_if(|term| term.until <= Instant::now()).is_some()
            };
            if self.held.send_if_modified(ran_out) {
                tracing::warn!(lease = self.name, "lost the lease");
            }
            tokio::time::sleep(self.length / 6).await;
        }
    }

    /// Releases the lease, so that another replica can lead immediately.
    pub async fn release(&mut self) {
        if self.held.send_replace(None).is_none() {
            return;
        }
        let given_up = async {
            let mut object = self.api.get(&self.name).await?;
            if holder(&object) == Some(&self.identity) {
                object.spec.get_or_insert_default().holder_identity = Some(String::new());
                self.api
                    .replace(&self.name, &PostParams::default(), &object)
                    .await?;
            }
            Ok::<_, ClientError>(())
        };
        if !matches!(
            tokio::time::timeout(self.length / 6, given_up).await,
            Ok(Ok(()))
        ) {
            tracing::warn!("cannot release the lease; it will expire");
        }
    }

    /// Tries to acquire or renew the lease. Returns whether this replica holds it.
    async fn attempt(&mut self) -> Result<bool, ClientError> {
        let params = PostParams::default();
        let written = match self.api.get_opt(&self.name).await? {
            None => self.api.create(&params, &self.object(None)).await,
            Some(found) if self.is_taken(&found) => return Ok(false),
            Some(found) => {
                let object = self.object(Some(found));
                self.api.replace(&self.name, &params, &object).await
            }
        };
        match written {
            Ok(written) => {
                self.other = None;
                self.note(&written);
                Ok(true)
            }
            // Another replica was first.
            Err(ClientError::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn note(&self, seen: &Object) {
        let holder = holder(seen).filter(|holder| !holder.is_empty());
        self.holder.store(holder.cloned().map(Arc::new));
    }

    fn is_taken(&mut self, found: &Object) -> bool {
        self.note(found);
        let holder = holder(found).map_or("", String::as_str);
        if holder.is_empty() || holder == self.identity {
            return false;
        }
        let version = found.metadata.resource_version.clone();
        if self.other.as_ref().is_none_or(|(seen, _)| *seen != version) {
            self.other = Some((version, Instant::now()));
        }
        let spec = found.spec.as_ref();
        let length = spec.and_then(|spec| spec.lease_duration_seconds);
        let length = length.map_or(self.length, |seconds| {
            Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
        });
        let since = self.other.as_ref().map(|(_, since)| since.elapsed());
        since.is_none_or(|since| since < length)
    }

    fn object(&self, found: Option<Object>) -> Object {
        let now = MicroTime(Timestamp::now());
        let before = found.as_ref().and_then(|object| object.spec.clone());
        let before = before.unwrap_or_default();
        let is_new = before.holder_identity.as_ref() != Some(&self.identity);
        let seconds = i32::try_from(self.length.as_secs()).unwrap_or(i32::MAX);
        Object {
            metadata: found.map_or_else(
                || ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                |object| object.metadata,
            ),
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(seconds.max(1)),
                acquire_time: if is_new {
                    Some(now.clone())
                } else {
                    before.acquire_time.clone()
                },
                renew_time: Some(now),
                lease_transitions: Some(
                    before
                        .lease_transitions
                        .unwrap_or(0)
                        .saturating_add(i32::from(is_new)),
                ),
                ..before
            }),
        }
    }
}

fn holder(object: &Object) -> Option<&String> {
    object.spec.as_ref()?.holder_identity.as_ref()
}
