//! What all requests of a process share, and the leave to be one of those that are open at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::HeaderName;

use super::body_timeout::BodyLimit;
use super::error::Error;
use super::route::Routes;
use crate::failover::RetryBudget;
use crate::memory::Budget;
use crate::snapshot::{Snapshot, SnapshotStore};
use crate::split::Diffusion;
use crate::telemetry::{Metrics, Timeout, trace};

/// What a process sets once for all plans.
#[derive(Clone, Debug)]
pub struct ProxySettings {
    pub routes: Routes,
    /// A header that chooses a generation for one request; off when absent.
    pub override_header: Option<HeaderName>,
    /// Most exchanges that are open at once.
    pub max_requests: usize,
    /// Largest request body, in bytes.
    pub max_body: u64,
    /// Bytes that everything may take that is held of requests and answers. See [`Budget`].
    pub replay_budget: usize,
    /// How long a client may be waited for: at each pause of a request body, or for all of a small one.
    pub body_timeout: Duration,
    /// How long a client hears nothing before it is sent a comment; never when absent.
    pub comments: Option<Duration>,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            routes: Routes::default(),
            override_header: None,
            max_requests: 100_000,
            max_body: 256 * 1024 * 1024,
            replay_budget: 256 * 1024 * 1024,
            body_timeout: Duration::from_secs(60),
            comments: None,
        }
    }
}

/// What all requests of a process share.
pub struct ProxyContext {
    pub snapshots: Arc<SnapshotStore>,
    pub metrics: Arc<Metrics>,
    /// Present where exchanges are traced.
    pub tracer: Option<Arc<trace::Tracer>>,
    pub settings: ProxySettings,
    /// Outside the plan, so that a plan change does not begin the count anew.
    pub(super) diffusion: Diffusion,
    pub(super) retries: RetryBudget,
    /// The clock of the retry budget.
    started: Instant,
    /// What clients and model servers can make the process hold.
    pub memory: Arc<Budget>,
    open: AtomicUsize,
    /// Connections of clients that are open now, over all threads.
    connections: AtomicUsize,
    body_limit: Arc<BodyLimit>,
}

impl ProxyContext {
    /// `phase` is a random draw: proxies that start together must not all begin with old.
    #[must_use]
    pub fn new(
        snapshots: Arc<SnapshotStore>,
        metrics: Arc<Metrics>,
        tracer: Option<Arc<trace::Tracer>>,
        settings: ProxySettings,
        phase: u64,
    ) -> Arc<Self> {
        let body_limit = BodyLimit {
            limit: settings.body_timeout,
            passed: metrics.timed_out(Timeout::Body),
        };
        let memory = Budget::new(settings.replay_budget);
        metrics.watch(&memory);
        Arc::new(Self {
            snapshots,
            body_limit: Arc::new(body_limit),
            metrics,
            tracer,
            diffusion: Diffusion::new(phase),
            retries: RetryBudget::default(),
            started: Instant::now(),
            memory,
            settings,
            open: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        })
    }

    /// What a client may take for a request's body.
    pub fn body_limit(&self) -> Arc<BodyLimit> {
        Arc::clone(&self.body_limit)
    }

    /// Exchanges that are open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Lets one more request in, before anything is held for it.
    pub fn admit(self: &Arc<Self>) -> Result<Permit, Error> {
        let permit = Permit(Arc::clone(self));
        if self.open.fetch_add(1, Ordering::Relaxed) < self.settings.max_requests {
            return Ok(permit);
        }
        Err(Error::TooManyRequests)
    }

    pub(super) fn may_retry(&self, snapshot: &Snapshot) -> bool {
        let percent = snapshot.plan.failover.retry_budget_percent;
        let allowed = self
            .retries
            .spend(percent, self.started.elapsed().as_secs());
        if !allowed {
            self.metrics.retries_refused.inc();
        }
        allowed
    }
}

/// One of the requests that may be open at once, while it lives.
pub struct Permit(Arc<ProxyContext>);

impl std::ops::Deref for Permit {
    type Target = ProxyContext;

    fn deref(&self) -> &ProxyContext {
        &self.0
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts one client connection as open for as long as it lives.
pub struct ConnectionPermit(Arc<ProxyContext>);

impl ConnectionPermit {
    /// `None` when `most` are open already.
    pub fn take(context: &Arc<ProxyContext>, most: usize) -> Option<Self> {
        let open = &context.connections;
        if open.fetch_add(1, Ordering::Relaxed) >= most {
            open.fetch_sub(1, Ordering::Relaxed);
            context.metrics.connections_refused.inc();
            return None;
        }
        context.metrics.connections.inc();
        Some(Self(Arc::clone(context)))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.connections.dec();
    }
}
