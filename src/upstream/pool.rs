//! A generation's pool: the less loaded of two endpoints, and one attempt at it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;

use super::endpoint::Lease;
use super::head::Outgoing;
use super::lifetime::{Life, Lifetime};
use super::{Endpoint, Error, UpstreamBody, connect, h1, h2, idle};
use crate::request_body::RequestBody;
use crate::resource::{Host, Target};
use crate::tls::{ClientFiles, Reloading, server_name};
use crate::transport::{Transport, deadline, turn};

/// Which HTTP is spoken to a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// HTTP/1.1 in clear text, what ALPN chooses with TLS.
    #[default]
    Auto,
    /// HTTP/1.1 always.
    Http1,
    /// HTTP/2 always; in clear text by prior knowledge (RFC 9113 §3.3).
    Http2,
}

/// How soon a connection shows that it was closed already when it was taken.
const STALE: Duration = Duration::from_millis(50);

/// How a pool connects.
#[derive(Clone, Debug)]
pub struct Settings {
    pub protocol: Protocol,
    pub connect_timeout: Duration,
    /// Time that a response head may take; none when absent (a unary answer takes as long as its generation).
    pub head_timeout: Option<Duration>,
    /// Of connections to addresses behind which there may be several servers.
    pub lifetime: Lifetime,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            protocol: Protocol::Auto,
            connect_timeout: Duration::from_secs(2),
            head_timeout: None,
            lifetime: Lifetime::default(),
        }
    }
}

/// The endpoints of one side. Immutable: a changed address makes a new pool that shares the endpoints that stayed.
pub struct Pool {
    endpoints: Vec<Arc<Endpoint>>,
    settings: Settings,
    tls: Option<Arc<Reloading<ClientFiles>>>,
}

/// A target with the addresses that its name has now.
pub type Resolved = (Target, Vec<SocketAddr>);

impl Pool {
    /// A pool over `resolved`, whose servers TLS calls `called` where that is given; endpoints that `previous` had keep their state and connections.
    #[must_use]
    pub fn new(
        resolved: &[Resolved],
        settings: Settings,
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

    /// The less loaded of two healthy endpoints chosen by `draw` (Mitzenmacher 2001); of all, when none is healthy: a
    /// request that has nowhere else to go is better tried than refused. Never `but`.
    fn pick(&self, now: Instant, draw: u32, but: Option<&Arc<Endpoint>>) -> Option<&Arc<Endpoint>> {
        if let ([only], None) = (&self.endpoints[..], but) {
            return Some(only);
        }
        let others = self
            .endpoints
            .iter()
            .filter(|endpoint| but.is_none_or(|but| !Arc::ptr_eq(but, endpoint)));
        let healthy = others.clone().filter(|endpoint| endpoint.is_healthy(now));
        match healthy.clone().count() {
            0 => two_choices(others.clone(), others.count(), draw),
            count => two_choices(healthy, count, draw),
        }
    }

    /// Sends one request to one endpoint; to another one, where there is one, if no connection can be made to the first.
    /// With `fail_fast` a pool without a healthy endpoint is not tried.
    ///
    /// # Errors
    /// Why there is no response head.
    pub async fn send(
        &self,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        fail_fast: bool,
    ) -> Result<Response<UpstreamBody>, Error> {
        // Before anything is chosen or taken: what is found good now is to be used now.
        turn::others_first().await;
        let now = Instant::now();
        if fail_fast && !self.endpoints.is_empty() && !self.is_healthy(now) {
            return Err(Error::Resting);
        }
        let draw = fastrand::u32(..);
        let endpoint = self.pick(now, draw, None).ok_or(Error::NoEndpoint)?;
        let again = (self.endpoints.len() > 1).then(|| body.again()).flatten();
        let result = self.watched(endpoint, outgoing, body, now).await;
        match (result, again) {
            (Err(error), Some(body)) if error.nothing_sent() => {
                let other = self.pick(now, draw, Some(endpoint)).ok_or(error)?;
                Box::pin(self.watched(other, outgoing, body, Instant::now())).await
            }
            (result, _) => result,
        }
    }

    /// One attempt at one endpoint, from which its health follows.
    async fn watched(
        &self,
        endpoint: &Arc<Endpoint>,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        now: Instant,
    ) -> Result<Response<UpstreamBody>, Error> {
        let lease = Lease::new(Arc::clone(endpoint));
        // Here and below what is rare is boxed, so that it does not make the future of every request larger. What is not is
        // awaited where it is made, so that it is not moved.
        let result = match self.settings.head_timeout {
            None => self.attempt(lease, outgoing, body, now).await,
            Some(limit) => {
                let attempt = Box::pin(self.attempt(lease, outgoing, body, now));
                deadline::timeout(limit, attempt)
                    .await
                    .unwrap_or(Err(Error::HeadTimeout(limit)))
            }
        };
        let ejected = match &result {
            Ok(response) if !matches!(response.status().as_u16(), 502..=504) => {
                endpoint.succeeded();
                false
            }
            Err(Error::RequestBody(_)) => false,
            _ => endpoint.failed(Instant::now()),
        };
        if ejected {
            let why = match &result {
                Ok(response) => format!("answered {}", response.status()),
                Err(error) => super::story(&error),
            };
            tracing::warn!(endpoint = %endpoint.address, why, "endpoint ejected");
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
        self.attempt(lease, outgoing, body, Instant::now()).await
    }

    async fn attempt(
        &self,
        mut lease: Lease,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        now: Instant,
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
            return match h1::exchange(lease, transport, outgoing, body).await {
                // The server closed the connection as we took it, so that it never read the request: a new one is tried.
                // What breaks later may have been at work, and is for those to decide who know the retry budget.
                Err((error @ Error::Broken(_), lease, body)) if now.elapsed() < STALE => {
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
        h1::exchange(lease, transport, outgoing, body)
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

/// What it takes to open a connection to an endpoint.
pub(super) struct Connector<'a> {
    endpoint: &'a Endpoint,
    tls: Option<&'a Arc<Reloading<ClientFiles>>>,
    /// What is offered by ALPN: only HTTP/2, only HTTP/1.1, or both.
    http2: Option<bool>,
    limit: Duration,
    lifetime: Lifetime,
}

impl Connector<'_> {
    /// A connection, whether HTTP/2 was agreed on, and the life it has before it.
    pub(super) async fn connect(&self) -> Result<(Transport, bool, Life), Error> {
        let (transport, http2) =
            connect::connect(self.endpoint, self.tls, self.http2, self.limit).await?;
        let life = match self.endpoint.shared {
            true => self.lifetime.begin(Instant::now(), fastrand::u32(..)),
            false => Life::ENDLESS,
        };
        Ok((transport, http2, life))
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
