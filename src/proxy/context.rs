//! The state that all requests of a process share, and the limits on concurrent requests and connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::HeaderName;

use super::body_timeout::BodyLimit;
use super::error::Error;
use super::route::Routes;
use crate::failover::RetryBudget;
use crate::lifecycle::Lifecycle;
use crate::memory::Budget;
use crate::snapshot::{Snapshot, SnapshotStore};
use crate::telemetry::{Metrics, Timeout, trace};
use crate::upstream::Demand;

/// Settings of a process, independent of the plan.
#[derive(Clone, Debug)]
pub struct ProxySettings {
    pub routes: Routes,
    /// A header that selects the generation for one request; off if `None`.
    pub override_header: Option<HeaderName>,
    /// Maximum number of concurrent exchanges.
    pub max_requests: usize,
    /// Largest request body, in bytes.
    pub max_body: u64,
    /// Limit of the memory budget for requests and responses, in bytes. See [`Budget`].
    pub replay_budget: usize,
    /// How long to wait for the client: at each pause of a request body, or in total for a small body.
    pub body_timeout: Duration,
    /// Idle time after which an event stream gets a keep-alive comment; no comments if `None`.
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

/// State that all requests of a process share.
pub struct ProxyContext {
    pub snapshots: Arc<SnapshotStore>,
    pub metrics: Arc<Metrics>,
    /// Set if exchanges are traced.
    pub tracer: Option<Arc<trace::Tracer>>,
    pub settings: ProxySettings,
    pub lifecycle: Lifecycle,
    pub(super) retries: RetryBudget,
    /// The models that requests name, so that endpoints can be probed about them in advance.
    pub demand: Arc<Demand>,
    /// The start of the retry budget's clock.
    started: Instant,
    /// Accounts for the memory that clients and model servers can make the process hold.
    pub memory: Arc<Budget>,
    open: AtomicUsize,
    /// Open client connections, across all threads.
    connections: AtomicUsize,
    body_limit: Arc<BodyLimit>,
}

impl ProxyContext {
    #[must_use]
    pub fn new(
        snapshots: Arc<SnapshotStore>,
        metrics: Arc<Metrics>,
        tracer: Option<Arc<trace::Tracer>>,
        settings: ProxySettings,
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
            retries: RetryBudget::default(),
            demand: Arc::default(),
            started: Instant::now(),
            memory,
            settings,
            lifecycle: Lifecycle::default(),
            open: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        })
    }

    /// The time limit for request bodies.
    pub fn body_limit(&self) -> Arc<BodyLimit> {
        Arc::clone(&self.body_limit)
    }

    /// The number of open exchanges.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Admits one more request, before anything is held for it.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] at the limit of concurrent exchanges.
    pub fn admit(self: &Arc<Self>) -> Result<Permit, Error> {
        let permit = Permit(Arc::clone(self));
        if self.open.fetch_add(1, Ordering::Relaxed) < self.settings.max_requests {
            return Ok(permit);
        }
        Err(Error::TooManyRequests)
    }

    /// Records a request that has arrived in part, until the result is dropped: the request is not assigned yet, so nothing else
    /// reports it. `is_client_use` tells whether a client may depend on it.
    pub fn arrives(self: &Arc<Self>, is_client_use: bool) -> ArrivingRequest {
        self.metrics.arrives();
        ArrivingRequest {
            context: Arc::clone(self),
            is_client_use,
        }
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

/// A request that has arrived in part.
pub struct ArrivingRequest {
    context: Arc<ProxyContext>,
    is_client_use: bool,
}

impl Drop for ArrivingRequest {
    fn drop(&mut self) {
        if self.is_client_use {
            self.context.metrics.used(Instant::now());
        }
        self.context.metrics.arrived();
    }
}

/// Counts one request against the limit of concurrent exchanges until it is dropped.
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

/// Counts one client connection as open until it is dropped.
pub struct ConnectionPermit(Arc<ProxyContext>);

impl ConnectionPermit {
    /// `None` if `most` connections are already open.
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
