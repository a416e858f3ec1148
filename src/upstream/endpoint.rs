//! One address of a generation: how much it carries, and whether it is let rest after failures.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::acks::Trials;
use super::lifetime::Life;

/// Failures in a row after which an endpoint is ejected.
const FAILURES: u32 = 3;
/// How long an endpoint rests the first time; each further time twice as long.
const FIRST_REST: Duration = Duration::from_secs(1);
/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// How long a connection may take that only proves that there is someone.
const PROVE: Duration = Duration::from_millis(500);

/// One address. Shared by all threads and by all snapshots that hold the address.
#[derive(Debug)]
pub struct Endpoint {
    /// Unique in this process: the key of its idle connections.
    pub id: u64,
    pub address: SocketAddr,
    /// What TLS calls it, where TLS is spoken.
    pub server_name: Option<rustls::pki_types::ServerName<'static>>,
    /// Behind it there may be several servers, as behind the address of a Service: connections to it have a limited life.
    pub shared: bool,
    open: AtomicUsize,
    failures: AtomicU32,
    rests: AtomicU32,
    /// Milliseconds since [`epoch`] until which it rests; 0 when it does not.
    rests_until: AtomicU64,
    probe_failed: AtomicBool,
    /// The last thing known of it is that it answered.
    proven: AtomicBool,
    /// What ALPN chose last: 0 unknown, else the minor or major version.
    spoken: AtomicU8,
    /// Of whether its servers wait for acknowledgements.
    pub(super) trials: Trials,
}

fn epoch() -> Instant {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

fn millis(now: Instant) -> u64 {
    // One more than the difference: 0 means never.
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
            server_name,
            shared,
            open: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            rests: AtomicU32::new(0),
            rests_until: AtomicU64::new(0),
            probe_failed: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            spoken: AtomicU8::new(0),
            trials: Trials::default(),
        }
    }

    /// Exchanges that it carries now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// May requests go to it at `now`?
    #[must_use]
    pub fn is_healthy(&self, now: Instant) -> bool {
        let until = self.rests_until.load(Ordering::Relaxed);
        (until == 0 || until <= millis(now)) && !self.probe_failed.load(Ordering::Relaxed)
    }

    /// Is the last thing known of it that it answered?
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// Proves it by a connection, which is closed at once.
    pub async fn prove(&self) -> bool {
        let connecting = tokio::net::TcpStream::connect(self.address);
        let proven = matches!(tokio::time::timeout(PROVE, connecting).await, Ok(Ok(_)));
        if proven {
            self.proven.store(true, Ordering::Relaxed);
        }
        proven
    }

    /// An attempt reached it and it worked.
    pub fn succeeded(&self) {
        // Reads first: a store by every request would bounce the line between cores.
        if !self.is_proven() {
            self.proven.store(true, Ordering::Relaxed);
        }
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.rests.load(Ordering::Relaxed) != 0 {
            self.rests.store(0, Ordering::Relaxed);
            self.rests_until.store(0, Ordering::Relaxed);
        }
    }

    /// An attempt failed by its fault. True when this ejects it.
    pub fn failed(&self, now: Instant) -> bool {
        self.proven.store(false, Ordering::Relaxed);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let rests = self.rests.load(Ordering::Relaxed);
        // After a rest one failure is enough.
        if failures < FAILURES && rests == 0 || !self.is_healthy(now) {
            return false;
        }
        let rest = FIRST_REST
            .saturating_mul(1 << rests.min(10))
            .min(LONGEST_REST);
        self.rests.store(rests.saturating_add(1), Ordering::Relaxed);
        self.rests_until
            .store(millis(now + rest), Ordering::Relaxed);
        true
    }

    /// What an active probe found.
    pub fn probed(&self, healthy: bool) {
        self.probe_failed.store(!healthy, Ordering::Relaxed);
        if healthy {
            self.succeeded();
        }
    }

    pub(crate) fn speaks_http2(&self) -> Option<bool> {
        match self.spoken.load(Ordering::Relaxed) {
            0 => None,
            version => Some(version == 2),
        }
    }

    pub(crate) fn spoke(&self, http2: bool) {
        self.spoken.store(1 + u8::from(http2), Ordering::Relaxed);
    }
}

/// One exchange at an endpoint, counted while it lives.
#[derive(Debug)]
pub struct Lease {
    endpoint: Arc<Endpoint>,
    /// Of the connection that carries it.
    pub(super) life: Life,
}

impl Lease {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        endpoint.open.fetch_add(1, Ordering::Relaxed);
        Self {
            endpoint,
            life: Life::ENDLESS,
        }
    }
}

impl std::ops::Deref for Lease {
    type Target = Arc<Endpoint>;

    fn deref(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.endpoint.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_rests_after_three_failures_in_a_row_and_longer_each_time() {
        let endpoint = Endpoint::new(([127, 0, 0, 1], 1).into(), None, false);
        let mut now = Instant::now();
        assert!(!endpoint.failed(now) && !endpoint.failed(now));
        endpoint.succeeded();
        assert!(!endpoint.failed(now) && !endpoint.failed(now) && endpoint.failed(now));
        let mut rests = Vec::new();
        for _ in 0..7 {
            let start = now;
            while !endpoint.is_healthy(now) {
                now += Duration::from_millis(100);
            }
            rests.push((now - start).as_secs());
            assert!(endpoint.failed(now), "one failure after a rest is enough");
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 30, 30]);
        endpoint.succeeded();
        assert!(endpoint.is_healthy(now));
    }

    #[test]
    fn an_endpoint_whose_probe_fails_is_not_healthy() {
        let endpoint = Endpoint::new(([127, 0, 0, 1], 1).into(), None, false);
        endpoint.probed(false);
        assert!(!endpoint.is_healthy(Instant::now()));
        endpoint.probed(true);
        assert!(endpoint.is_healthy(Instant::now()));
    }
}
