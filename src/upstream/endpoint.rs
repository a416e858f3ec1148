//! One address of a generation: its load, and whether it is ejected after failures.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::kept::Slot;
use super::lifetime::RemainingLifetime;
use super::outlier::{Ejection, EndpointFailure, Record};
use super::proofs::Proofs;
use super::quick_ack::DelayTests;

/// Duration of the first ejection. It doubles with each subsequent one.
const FIRST_EJECTION: Duration = Duration::from_secs(1);
/// Maximum duration of an ejection.
const LONGEST_EJECTION: Duration = Duration::from_secs(30);

/// Timeout for the connection that [`Endpoint::prove`] opens.
const PROVE_TIMEOUT: Duration = Duration::from_millis(500);

/// One address. Shared by all threads and by all snapshots that contain the address.
#[derive(Debug)]
pub struct Endpoint {
    /// Unique in this process: the key of its pooled connections.
    pub id: u64,
    pub address: SocketAddr,
    /// The text of the address, for access lines.
    pub text: Box<str>,
    /// The name that TLS verifies, if TLS is used.
    pub server_name: Option<rustls::pki_types::ServerName<'static>>,
    /// Whether several servers may share the address, as with the address of a Service. Connections to it have a limited
    /// lifetime.
    pub shared: bool,
    /// When it was added.
    pub since: Instant,
    open: AtomicUsize,
    /// A packed [`Record`] of its results: 0 while there is no failure.
    record: AtomicU64,
    /// When the ejection ends, in milliseconds since [`epoch`]; 0 if the endpoint is not ejected.
    ejected_until: AtomicU64,
    probe_failed: AtomicBool,
    /// Set by a success or a connection, cleared by a failure.
    proven: AtomicBool,
    /// Whether ALPN selected HTTP/2 for the last connection.
    spoke_http2: AtomicBool,
    /// Whether its servers wait for TCP acknowledgements.
    pub(super) delay_tests: DelayTests,
    /// The models of which it can continue a text.
    pub(super) proofs: Proofs,
}

fn epoch() -> Instant {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

fn millis(now: Instant) -> u64 {
    // Plus one, because 0 means that the endpoint is not ejected.
    u64::try_from(now.saturating_duration_since(epoch()).as_millis()).unwrap_or(u64::MAX - 1) + 1
}

impl Endpoint {
    pub(crate) fn new(
        address: SocketAddr,
        server_name: Option<rustls::pki_types::ServerName<'static>>,
        shared: bool,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        epoch();
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            address,
            text: address.to_string().into(),
            server_name,
            shared,
            since: Instant::now(),
            open: AtomicUsize::new(0),
            record: AtomicU64::new(0),
            ejected_until: AtomicU64::new(0),
            probe_failed: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            spoke_http2: AtomicBool::new(false),
            delay_tests: DelayTests::default(),
            proofs: Proofs::default(),
        }
    }

    /// The number of exchanges in flight.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether requests may be sent to it at `now`.
    #[must_use]
    pub fn is_healthy(&self, now: Instant) -> bool {
        !self.is_ejected(now) && !self.failed_probe()
    }

    fn is_ejected(&self, now: Instant) -> bool {
        let until = self.ejected_until.load(Ordering::Relaxed);
        until != 0 && until > millis(now)
    }

    /// Whether it is unlikely to respond at all at `now`. Not if it was ejected only because of error responses.
    #[must_use]
    pub fn is_gone(&self, now: Instant) -> bool {
        self.is_unreachable(now) || self.is_ejected_as_unresponsive(now)
    }

    /// Whether it is ejected at `now` because it did not respond in time.
    #[must_use]
    pub fn is_ejected_as_unresponsive(&self, now: Instant) -> bool {
        self.is_ejected(now) && self.ejected_for() == Some(Ejection::Unresponsive)
    }

    /// Whether the last active probe failed. Only the next probe can clear this, or the end of probing.
    #[must_use]
    pub fn failed_probe(&self) -> bool {
        self.probe_failed.load(Ordering::Relaxed)
    }

    /// Whether it is unlikely to accept a connection at `now`.
    #[must_use]
    pub fn is_unreachable(&self, now: Instant) -> bool {
        self.failed_probe()
            || self.is_ejected(now) && self.ejected_for() == Some(Ejection::Unreachable)
    }

    fn ejected_for(&self) -> Option<Ejection> {
        Record::unpack(self.record.load(Ordering::Relaxed)).why()
    }

    /// Whether it accepted a connection or handled a request after its last failure.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// Checks that the endpoint accepts a connection, and closes that connection immediately.
    pub async fn prove(&self) -> bool {
        let connecting = tokio::net::TcpStream::connect(self.address);
        let proven = matches!(
            tokio::time::timeout(PROVE_TIMEOUT, connecting).await,
            Ok(Ok(_))
        );
        if proven {
            self.proven.store(true, Ordering::Relaxed);
        }
        proven
    }

    /// Records a successful attempt. This ends an ejection.
    pub fn succeeded(&self, now: Instant) {
        // Load first: a store by every request would bounce the cache line between cores.
        if !self.is_proven() {
            self.proven.store(true, Ordering::Relaxed);
        }
        if self.record.load(Ordering::Relaxed) != 0 {
            self.count(|record| record.succeeded(millis(now) / 1000));
        }
        if self.ejected_until.load(Ordering::Relaxed) != 0 {
            self.ejected_until.store(0, Ordering::Relaxed);
        }
    }

    /// Records an attempt that failed because of the endpoint. This may eject it. `why` is logged.
    pub fn failed(&self, failure: EndpointFailure, now: Instant, why: &dyn std::fmt::Display) {
        self.proven.store(false, Ordering::Relaxed);
        let is_ejected = self.is_ejected(now);
        let mut ejected = (Record::default(), None);
        self.count(|record| {
            ejected = record.failed(failure, millis(now) / 1000, is_ejected);
            ejected.0
        });
        let (record, Some(reason)) = ejected else {
            return;
        };
        let doublings = u32::from(record.ejections().saturating_sub(1));
        let length = FIRST_EJECTION
            .saturating_mul(1 << doublings)
            .min(LONGEST_EJECTION);
        self.ejected_until
            .store(millis(now + length), Ordering::Relaxed);
        tracing::warn!(endpoint = %self.address, ?reason, ?length, %why, "endpoint ejected");
    }

    fn count(&self, mut next: impl FnMut(Record) -> Record) {
        let _ = self
            .record
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                Some(next(Record::unpack(word)).pack())
            });
    }

    /// Records the result of an active probe.
    pub fn probed(&self, healthy: bool) {
        self.probe_failed.store(!healthy, Ordering::Relaxed);
        if healthy {
            self.succeeded(Instant::now());
        }
    }

    /// Forgets the result of the last active probe: there will be no other.
    pub fn forget_probe(&self) {
        self.probe_failed.store(false, Ordering::Relaxed);
    }

    /// Whether ALPN selected HTTP/2 for the last connection. The next one may get another version.
    pub(crate) fn spoke_http2(&self) -> bool {
        self.spoke_http2.load(Ordering::Relaxed)
    }

    pub(crate) fn spoke(&self, http2: bool) {
        self.spoke_http2.store(http2, Ordering::Relaxed);
    }
}

/// One exchange in flight at an endpoint, counted until it is dropped.
#[derive(Debug)]
pub struct InFlight {
    endpoint: Arc<Endpoint>,
    /// The lifetime of the connection that the exchange uses.
    pub(super) life: RemainingLifetime,
    /// Where the exchange leaves the connection, if not in the thread's pool.
    pub(super) slot: Option<Slot>,
}

impl InFlight {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        endpoint.open.fetch_add(1, Ordering::Relaxed);
        Self {
            endpoint,
            life: RemainingLifetime::ENDLESS,
            slot: None,
        }
    }
}

impl std::ops::Deref for InFlight {
    type Target = Arc<Endpoint>;

    fn deref(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.endpoint.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint::new(([127, 0, 0, 1], 1).into(), None, false)
    }

    #[test]
    fn an_endpoint_that_takes_no_connection_is_ejected_and_longer_each_time() {
        let endpoint = endpoint();
        let mut now = Instant::now();
        let fails = |now| endpoint.failed(EndpointFailure::Connect, now, &"a test");
        for _ in 0..2 {
            fails(now);
            assert!(endpoint.is_healthy(now));
        }
        endpoint.succeeded(now);
        (0..3).for_each(|_| fails(now));
        assert!(endpoint.is_gone(now));
        let mut ejections = Vec::new();
        for _ in 0..7 {
            let start = now;
            while !endpoint.is_healthy(now) {
                now += Duration::from_millis(100);
            }
            ejections.push((now - start).as_secs());
            fails(now);
        }
        assert_eq!(ejections, [1, 2, 4, 8, 16, 30, 30]);
        endpoint.succeeded(now);
        assert!(endpoint.is_healthy(now));
    }

    #[test]
    fn one_success_ends_an_ejection_by_answers() {
        let endpoint = endpoint();
        let now = Instant::now();
        for _ in 0..3 {
            endpoint.failed(EndpointFailure::Answer, now, &"a test");
        }
        assert!(endpoint.is_healthy(now));
        for _ in 0..7 {
            endpoint.failed(EndpointFailure::Answer, now, &"a test");
        }
        assert!(!endpoint.is_healthy(now) && !endpoint.is_gone(now));
        endpoint.succeeded(now);
        assert!(endpoint.is_healthy(now));
    }

    #[test]
    fn an_endpoint_whose_probe_fails_is_not_healthy() {
        let endpoint = endpoint();
        endpoint.probed(false);
        assert!(!endpoint.is_healthy(Instant::now()));
        endpoint.probed(true);
        assert!(endpoint.is_healthy(Instant::now()));
    }
}
