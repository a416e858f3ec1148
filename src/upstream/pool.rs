//! The pool of a generation: picks an endpoint by load and health, and makes one attempt.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use http::{Response, StatusCode};

use super::connect::Connector;
use super::endpoint::Lease;
use super::head::Outgoing;
use super::lifetime::Lifetime;
use super::{Endpoint, Error, Failure, UpstreamBody, h1, h2, idle};
use crate::continuation::Capability;
use crate::error_chain::error_chain;
use crate::request_body::RequestBody;
use crate::resource::{Host, Target};
use crate::tls::{ClientFiles, Reloading, server_name};
use crate::transport::{batching, deadline};

/// The HTTP version used with a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Protocol {
    /// HTTP/1.1 in clear text, what ALPN chooses with TLS.
    #[default]
    Auto,
    /// HTTP/1.1 always.
    Http1,
    /// HTTP/2 always; in clear text by prior knowledge (RFC 9113 §3.3).
    Http2,
}

/// A reused connection that breaks within this time was probably already closed when it was taken. After this time the server
/// may have been processing the request.
const STALE: Duration = Duration::from_millis(50);

/// While no endpoint is healthy, one request in this many is sent anyway, as a trial.
const TRIAL_EVERY: u32 = 2;
const TRIAL_EVERY_UNREACHABLE: u32 = 4;

/// How a pool connects.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    pub protocol: Protocol,
    pub connect_timeout: Duration,
    /// Time limit for a response head; `None` means no limit, because a unary response takes as long as its generation.
    pub head_timeout: Option<Duration>,
    /// Limits of connections to addresses that several servers may share.
    pub lifetime: Lifetime,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            protocol: Protocol::Auto,
            connect_timeout: Duration::from_secs(2),
            head_timeout: None,
            lifetime: Lifetime::default(),
        }
    }
}

/// When to fail a request without trying, if the pool has no healthy endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailFast {
    /// The caller has no other target.
    #[default]
    Never,
    /// If all endpoints are unreachable or do not respond. Not if they respond with errors, because a client can provoke those.
    IfGone,
    /// If no endpoint is healthy, for any reason.
    IfEjected,
}

/// The limits for sending one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    pub fail_fast: FailFast,
    /// The latest time for a response head: the deadline for the first event.
    pub deadline: Option<Instant>,
    /// The request was sent before. If a reused connection breaks, it is then repeated only if the server certainly did not
    /// read it.
    pub was_sent: bool,
}

/// The endpoints of one generation. Immutable: a change of addresses creates a new pool, which shares the endpoints that
/// remain.
pub struct Pool {
    endpoints: Vec<Arc<Endpoint>>,
    settings: PoolSettings,
    tls: Option<Arc<Reloading<ClientFiles>>>,
    /// Requests that arrived while no endpoint was healthy.
    turns: AtomicU32,
}

/// A target with the addresses that its name currently resolves to.
pub type Resolved = (Target, Vec<SocketAddr>);

impl Pool {
    /// Creates a pool over `resolved`. TLS verifies the name `called`, if given, instead of the target's own. Endpoints that
    /// `previous` already had keep their state and connections.
    #[must_use]
    pub fn new(
        resolved: &[Resolved],
        settings: PoolSettings,
        tls: Option<Arc<Reloading<ClientFiles>>>,
        called: Option<&Host>,
        previous: Option<&Pool>,
    ) -> Self {
        let mut endpoints: Vec<Arc<Endpoint>> = Vec::new();
        // Do not reuse connections that were opened with another TLS identity.
        let previous = previous
            .filter(|pool| pool.tls.as_ref().map(Arc::as_ptr) == tls.as_ref().map(Arc::as_ptr));
        for (target, addresses) in resolved {
            let called = called.unwrap_or(target.called());
            let server_name = target.tls.then(|| server_name(called)).flatten();
            if target.tls && server_name.is_none() {
                tracing::error!(%target, "TLS cannot verify this name; the target is left out");
                continue;
            }
            for &address in addresses {
                let same = |known: &&Arc<Endpoint>| {
                    known.address == address && known.server_name == server_name
                };
                if endpoints.iter().any(|known| same(&known)) {
                    continue;
                }
                let known = previous.and_then(|pool| pool.endpoints.iter().find(same));
                // A name may be that of a Service. A literal IP address is that of a single server.
                let shared = matches!(target.host, Host::Name(_));
                endpoints.push(known.cloned().unwrap_or_else(|| {
                    Arc::new(Endpoint::new(address, server_name.clone(), shared))
                }));
            }
        }
        Self {
            endpoints,
            settings,
            tls,
            turns: AtomicU32::new(0),
        }
    }

    #[must_use]
    pub fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }

    /// Is any endpoint healthy at `now`?
    #[must_use]
    pub fn is_healthy(&self, now: Instant) -> bool {
        self.endpoints
            .iter()
            .any(|endpoint| endpoint.is_healthy(now))
    }

    /// Picks the less loaded of two endpoints chosen by `draw` (power of two choices, Mitzenmacher 2001), never `but`.
    ///
    /// The candidates are the healthy endpoints, as long as they are at least half of all. Below that, endpoints ejected for
    /// error responses are candidates too (a panic threshold, as in Envoy): otherwise the remaining ones would break down under
    /// the full load, and errors from all endpoints are more likely caused by the requests. If no candidate is left, all
    /// endpoints are candidates: an attempt is better than a refusal.
    fn pick(&self, now: Instant, draw: u32, but: Option<&Arc<Endpoint>>) -> Option<&Arc<Endpoint>> {
        if let ([only], None) = (&self.endpoints[..], but) {
            return Some(only);
        }
        let others = self
            .endpoints
            .iter()
            .filter(|endpoint| but.is_none_or(|but| !Arc::ptr_eq(but, endpoint)));
        let healthy = others.clone().filter(|endpoint| endpoint.is_healthy(now));
        let count = healthy.clone().count();
        if count * 2 >= self.endpoints.len() {
            return two_choices(healthy, count, draw);
        }
        let there = others.clone().filter(|endpoint| !endpoint.is_gone(now));
        match there.clone().count() {
            0 => two_choices(others.clone(), others.count(), draw),
            count => two_choices(there, count, draw),
        }
    }

    /// Should the request fail without an attempt? Every [`TRIAL_EVERY`]th request is sent anyway, so that the first success
    /// ends the ejection. If no endpoint is reachable, trials are rarer ([`TRIAL_EVERY_UNREACHABLE`]), because each may take
    /// the whole connect timeout. If all endpoints failed their probes there are no trials: the probes detect recovery.
    fn is_left(&self, fail_fast: FailFast, now: Instant) -> bool {
        if fail_fast == FailFast::Never || self.endpoints.is_empty() || self.is_healthy(now) {
            return false;
        }
        let gone = || self.endpoints.iter().all(|endpoint| endpoint.is_gone(now));
        if fail_fast == FailFast::IfGone && !gone() {
            return false;
        }
        if self
            .endpoints
            .iter()
            .all(|endpoint| endpoint.failed_probe())
        {
            return true;
        }
        let unreachable = |endpoint: &Arc<Endpoint>| endpoint.is_unreachable(now);
        let every = match self.endpoints.iter().all(unreachable) {
            true => TRIAL_EVERY_UNREACHABLE,
            false => TRIAL_EVERY,
        };
        !self
            .turns
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(every)
    }

    /// Sends one request to one endpoint. If the first endpoint certainly did not receive it, tries a second one where that may
    /// help ([`Error::another_may_do`]).
    ///
    /// # Errors
    /// Why there is no response head.
    pub async fn send(
        &self,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        terms: Terms,
    ) -> Result<Response<UpstreamBody>, Error> {
        // Before an endpoint or a connection is chosen, so that the choice is not stale when it is used.
        batching::before_head_write().await;
        let now = Instant::now();
        if self.is_left(terms.fail_fast, now) {
            return Err(Error::Ejected);
        }
        let draw = fastrand::u32(..);
        let endpoint = self.pick(now, draw, None).ok_or(Error::NoEndpoint)?;
        let again = (self.endpoints.len() > 1).then(|| body.again()).flatten();
        let result = self.watched(endpoint, outgoing, body, now, terms).await;
        match (result, again) {
            (Err(error), Some(body)) if error.another_may_do() => {
                let other = self.pick(now, draw, Some(endpoint)).ok_or(error)?;
                let terms = Terms {
                    was_sent: true,
                    ..terms
                };
                Box::pin(self.watched(other, outgoing, body, Instant::now(), terms)).await
            }
            (result, _) => result,
        }
    }

    /// Picks, like [`Pool::send`], a healthy endpoint that has proven that it can continue a text of `model`. Without a model, any
    /// healthy endpoint will do. Endpoints whose ids are in `but` are left out.
    #[must_use]
    pub fn pick_capable(
        &self,
        now: Instant,
        draw: u32,
        model: Option<&str>,
        but: &[u64],
    ) -> Option<&Arc<Endpoint>> {
        let can = |endpoint: &Endpoint| {
            model.is_none_or(|model| endpoint.capability(model, now) == Capability::Supported)
        };
        let capable = self.endpoints.iter().filter(|endpoint| {
            !but.contains(&endpoint.id) && endpoint.is_healthy(now) && can(endpoint)
        });
        two_choices(capable.clone(), capable.count(), draw)
    }

    /// Sends one request to this endpoint of the pool and to no other, and records the result for its health.
    ///
    /// # Errors
    /// Why there is no response head.
    pub async fn send_on(
        &self,
        endpoint: &Arc<Endpoint>,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        terms: Terms,
    ) -> Result<Response<UpstreamBody>, Error> {
        batching::before_head_write().await;
        let sent = self.watched(endpoint, outgoing, body, Instant::now(), terms);
        sent.await
    }

    /// Makes one attempt at one endpoint and records the result for its health. The time limits are applied here, so that an
    /// attempt dropped by the caller does not count as a failure of the endpoint.
    async fn watched(
        &self,
        endpoint: &Arc<Endpoint>,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        now: Instant,
        terms: Terms,
    ) -> Result<Response<UpstreamBody>, Error> {
        let lease = Lease::new(Arc::clone(endpoint));
        let head_limit = self.settings.head_timeout;
        let limits = [
            head_limit.map(|limit| (now + limit, Error::HeadTimeout(limit))),
            terms.deadline.map(|at| (at, Error::Deadline)),
        ];
        // Here and below, rare paths are boxed to keep the future of every request small. The common path is awaited in place
        // to avoid a move.
        let result = match limits.into_iter().flatten().min_by_key(|(at, _)| *at) {
            None => {
                self.attempt(lease, outgoing, body, now, terms.was_sent)
                    .await
            }
            Some((at, error)) => {
                let attempt = Box::pin(self.attempt(lease, outgoing, body, now, terms.was_sent));
                deadline::timeout_at(at, attempt)
                    .await
                    .unwrap_or(Err(error))
            }
        };
        let now = Instant::now();
        match &result {
            Ok(response) if matches!(response.status().as_u16(), 502..=504) => {
                let why = format_args!("answered {}", response.status());
                endpoint.failed(Failure::Answer, now, &why);
            }
            // With a deadline for the first event, the head of an event stream is not a success yet: the reader of the body
            // records it.
            Ok(response) if terms.deadline.is_some() && response.status() == StatusCode::OK => {}
            Ok(_) => endpoint.succeeded(now),
            Err(error) => {
                if matches!(error, Error::Connect { .. }) {
                    endpoint.went_away();
                }
                if let Some(failure) = error.of_endpoint() {
                    endpoint.failed(failure, now, &error_chain(error));
                }
            }
        }
        result
    }

    /// Sends to a specific endpoint of this pool, healthy or not. Used by probes.
    ///
    /// # Errors
    /// As [`Pool::send`].
    pub async fn send_to(
        &self,
        endpoint: &Arc<Endpoint>,
        outgoing: Outgoing<'_>,
        body: RequestBody,
    ) -> Result<Response<UpstreamBody>, Error> {
        let lease = Lease::new(Arc::clone(endpoint));
        self.attempt(lease, outgoing, body, Instant::now(), false)
            .await
    }

    async fn attempt(
        &self,
        mut lease: Lease,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        now: Instant,
        was_sent: bool,
    ) -> Result<Response<UpstreamBody>, Error> {
        let http2 = match self.settings.protocol {
            Protocol::Http1 => Some(false),
            Protocol::Http2 => Some(true),
            Protocol::Auto if lease.server_name.is_none() => Some(false),
            Protocol::Auto => lease.speaks_http2(),
        };
        if http2 == Some(true) {
            let endpoint = Arc::clone(&lease);
            let connector = self.connector(&endpoint);
            return Box::pin(h2::send(lease, &connector, outgoing, body)).await;
        }
        if let Some((transport, life)) = idle::take(lease.id) {
            lease.life = life;
            return match h1::exchange(lease, transport, true, outgoing, body).await {
                Err((error, lease, body))
                    if is_stale(
                        &error,
                        !was_sent && outgoing.head.method.is_idempotent(),
                        now,
                    ) =>
                {
                    match body.again() {
                        Some(body) => Box::pin(self.fresh(lease, outgoing, body, http2)).await,
                        None => Err(error),
                    }
                }
                other => other.map_err(|(error, ..)| error),
            };
        }
        Box::pin(self.fresh(lease, outgoing, body, http2)).await
    }

    async fn fresh(
        &self,
        mut lease: Lease,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        http2: Option<bool>,
    ) -> Result<Response<UpstreamBody>, Error> {
        let (transport, agreed, life) = self.connector(&lease).connect().await?;
        lease.life = life;
        if http2.is_none() {
            lease.spoke(agreed);
        }
        if agreed && http2 != Some(false) {
            return h2::send_over(lease, transport, outgoing, body).await;
        }
        h1::exchange(lease, transport, false, outgoing, body)
            .await
            .map_err(|(error, ..)| error)
    }

    fn connector<'a>(&'a self, endpoint: &'a Endpoint) -> Connector<'a> {
        Connector {
            endpoint,
            tls: self.tls.as_ref(),
            http2: match self.settings.protocol {
                Protocol::Auto => None,
                Protocol::Http1 => Some(false),
                Protocol::Http2 => Some(true),
            },
            limit: self.settings.connect_timeout,
            lifetime: self.settings.lifetime,
        }
    }
}

/// Did an exchange over a reused connection, begun at `since`, fail because the server had already closed it? Then it is
/// repeated at once on a new connection. If the server may have read the request, this applies only if it `may_repeat`
/// (RFC 9110 §9.2.2). Otherwise it is a failed attempt, and the caller decides with the retry budget.
fn is_stale(error: &Error, may_repeat: bool, since: Instant) -> bool {
    match error {
        Error::Unread(_) => true,
        Error::Silent(_) => may_repeat && since.elapsed() < STALE,
        _ => false,
    }
}

fn two_choices<'a>(
    mut endpoints: impl Iterator<Item = &'a Arc<Endpoint>>,
    count: usize,
    draw: u32,
) -> Option<&'a Arc<Endpoint>> {
    if count < 2 {
        return endpoints.next();
    }
    let first = (draw >> 16) as usize % count;
    let second = (first + 1 + (draw & 0xffff) as usize % (count - 1)) % count;
    let (low, high) = (first.min(second), first.max(second));
    let a = endpoints.nth(low)?;
    let b = endpoints.nth(high - low - 1)?;
    // The order of the pair is random too, so that a tie favours neither.
    let (a, b) = if first < second { (a, b) } else { (b, a) };
    Some(if a.open() <= b.open() { a } else { b })
}
