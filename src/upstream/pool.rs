//! A generation's pool: the less loaded of two endpoints, and one attempt at it.

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
use crate::error_chain::error_chain;
use crate::request_body::RequestBody;
use crate::resource::{Host, Target};
use crate::tls::{ClientFiles, Reloading, server_name};
use crate::transport::{batching, deadline};

/// Which HTTP is spoken to a pool.
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

/// How soon a connection shows that it was closed already when it was taken. What breaks later may have been at work.
const STALE: Duration = Duration::from_millis(50);

/// Of the requests that come while no endpoint is healthy, one in so many is sent to one of them all the same.
const TRIAL_EVERY: u32 = 2;
const TRIAL_EVERY_UNREACHABLE: u32 = 4;

/// How a pool connects.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    pub protocol: Protocol,
    pub connect_timeout: Duration,
    /// Time that a response head may take; none when absent (a unary answer takes as long as its generation).
    pub head_timeout: Option<Duration>,
    /// Of connections to addresses behind which there may be several servers.
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

/// When a pool without a healthy endpoint is left untried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailFast {
    /// There is nowhere else to go.
    #[default]
    Never,
    /// If no endpoint can be reached or answers. Not if they answer with errors: a client can make them do so.
    IfGone,
    /// Whyever its endpoints are ejected.
    IfEjected,
}

/// What bounds the sending of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    pub fail_fast: FailFast,
    /// When there must be a response head at the latest.
    pub deadline: Option<Instant>,
    /// It was sent before: over a used connection that breaks it is repeated only if it is certain that nobody read it.
    pub was_sent: bool,
}

/// The endpoints of one side. Immutable: a changed address makes a new pool that shares the endpoints that stayed.
pub struct Pool {
    endpoints: Vec<Arc<Endpoint>>,
    settings: PoolSettings,
    tls: Option<Arc<Reloading<ClientFiles>>>,
    /// Requests that came while no endpoint was healthy.
    turns: AtomicU32,
}

/// A target with the addresses that its name has now.
pub type Resolved = (Target, Vec<SocketAddr>);

impl Pool {
    /// A pool over `resolved`, whose servers TLS calls `called` where that is given; endpoints that `previous` had keep their state and connections.
    #[must_use]
    pub fn new(
        resolved: &[Resolved],
        settings: PoolSettings,
        tls: Option<Arc<Reloading<ClientFiles>>>,
        called: Option<&Host>,
        previous: Option<&Pool>,
    ) -> Self {
        let mut endpoints: Vec<Arc<Endpoint>> = Vec::new();
        // Connections that were opened with another identity are not this pool's.
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
                // A name may be that of a Service; an address that someone wrote is that of a server.
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

    /// Has it an endpoint that may be tried at `now`?
    #[must_use]
    pub fn is_healthy(&self, now: Instant) -> bool {
        self.endpoints
            .iter()
            .any(|endpoint| endpoint.is_healthy(now))
    }

    /// The less loaded of two endpoints chosen by `draw` (Mitzenmacher 2001), never `but`.
    ///
    /// Of the healthy ones, as long as they are at least half of all. If they are fewer, those that are ejected for their
    /// answers take part as well (a panic threshold, as Envoy has it): the rest would break down under the load of all, and
    /// errors that all give are rather the requests' fault. Of all, where none is left: better tried than refused.
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

    /// Is the pool to be left untried? Not, but where probes tell when it can serve again, by every [`TRIAL_EVERY`]nd request, so that the first success ends it; of what
    /// cannot be reached a trial may cost the whole connect timeout, so they are fewer.
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

    /// Sends one request to one endpoint; to another one, where there is one, if no connection can be made to the first.
    ///
    /// # Errors
    /// Why there is no response head.
    pub async fn send(
        &self,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        terms: Terms,
    ) -> Result<Response<UpstreamBody>, Error> {
        // Before anything is chosen or taken: what is found good now is to be used now.
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

    /// One attempt at one endpoint, from which its health follows. The limits are applied here: an attempt that someone
    /// else drops is no failure of the endpoint's.
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
        // Here and below what is rare is boxed, so that it does not make the future of every request larger. What is not is
        // awaited where it is made, so that it is not moved.
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
            // With a deadline for the first event an event stream must show more than a head:
            // whoever reads it counts it.
            Ok(response) if terms.deadline.is_some() && response.status() == StatusCode::OK => {}
            Ok(_) => endpoint.succeeded(now),
            Err(error) => {
                if let Some(failure) = error.of_endpoint() {
                    endpoint.failed(failure, now, &error_chain(error));
                }
            }
        }
        result
    }

    /// Sends to one endpoint of this pool, healthy or not: how it is probed.
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

/// Did an exchange over a used connection, begun at `since`, fail because the server had closed it, so that a new one is to
/// be tried at once? It is not where the server may have read the request, unless it `may_repeat` (RFC 9110 §9.2.2): that is
/// a failed attempt, for those to deal with who know the retry budget.
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
    // The order of the pair is itself drawn, so that a tie favours neither.
    let (a, b) = if first < second { (a, b) } else { (b, a) };
    Some(if a.open() <= b.open() { a } else { b })
}
