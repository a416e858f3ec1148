//! The pool of a generation: its endpoints, and one attempt at one of them.

mod attempt;
mod choice;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use http::{Response, StatusCode};

use super::endpoint::InFlight;
use super::head::Outgoing;
use super::kept::Connection;
use super::lifetime::LifetimeLimits;
use super::{Endpoint, EndpointFailure, Error, ProvenConnection, UpstreamBody, h1, h2};
use crate::error_chain::error_chain;
use crate::request_body::RequestBody;
use crate::resource::{Host, TargetAddress};
use crate::tls::{ClientFiles, Reloading};
use crate::transport::{batching, deadline};

/// The HTTP version used with a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Protocol {
    /// HTTP/1.1 in cleartext; with TLS, the version that ALPN selects.
    #[default]
    Auto,
    /// Always HTTP/1.1.
    Http1,
    /// Always HTTP/2; in cleartext, with prior knowledge (RFC 9113 §3.3).
    Http2,
}

/// How a pool connects.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    pub protocol: Protocol,
    pub connect_timeout: Duration,
    /// Time limit for a response head; `None` means no limit, because a unary response takes as long as its generation.
    pub head_timeout: Option<Duration>,
    /// Limits of connections to addresses that several servers may share.
    pub lifetime: LifetimeLimits,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            protocol: Protocol::Auto,
            connect_timeout: Duration::from_secs(2),
            head_timeout: None,
            lifetime: LifetimeLimits::default(),
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
pub struct SendOptions {
    pub fail_fast: FailFast,
    /// The latest time for a response head: the deadline for the first event. It is extended by [`RequestBody::awaited`].
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
pub type Resolved = (TargetAddress, Vec<SocketAddr>);

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
            let server_name = target.tls.then(|| called.server_name()).flatten();
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
                // A name may belong to a Service. A literal IP address belongs to a single server.
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

    /// Sends one request to one endpoint. If the first endpoint certainly did not receive it, tries a second one if that may help
    /// ([`Error::is_retryable_on_another_endpoint`]).
    ///
    /// # Errors
    /// Why there is no response head.
    pub async fn send(
        &self,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        options: SendOptions,
    ) -> Result<Response<UpstreamBody>, Error> {
        // Before an endpoint or a connection is chosen, so that the choice is not stale when it is used.
        batching::before_head_write().await;
        let now = Instant::now();
        if self.should_fail_fast(options.fail_fast, now) {
            return Err(Error::Ejected);
        }
        let draw = fastrand::u32(..);
        let endpoint = self.pick(now, draw, None).ok_or(Error::NoEndpoint)?;
        let for_retry = (self.endpoints.len() > 1)
            .then(|| body.for_retry())
            .flatten();
        let result = self.watched(endpoint, outgoing, body, now, options).await;
        match (result, for_retry) {
            (Err(error), Some(body)) if error.is_retryable_on_another_endpoint() => {
                let other = self.pick(now, draw, Some(endpoint)).ok_or(error)?;
                let options = SendOptions {
                    was_sent: true,
                    ..options
                };
                Box::pin(self.watched(other, outgoing, body, Instant::now(), options)).await
            }
            (result, _) => result,
        }
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
        options: SendOptions,
    ) -> Result<Response<UpstreamBody>, Error> {
        batching::before_head_write().await;
        let sent = self.watched(endpoint, outgoing, body, Instant::now(), options);
        sent.await
    }

    /// Sends one request over this connection and no other, and records the result for the health of its endpoint.
    ///
    /// # Errors
    /// Why there is no response head.
    pub async fn send_over(
        &self,
        proven: ProvenConnection,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        options: SendOptions,
    ) -> Result<Response<UpstreamBody>, Error> {
        batching::before_head_write().await;
        let endpoint = proven.endpoint;
        let mut in_flight = InFlight::new(Arc::clone(&endpoint));
        in_flight.life = proven.life;
        let view = body.view();
        let sending = async {
            match proven.connection {
                Connection::Http1(transport) => {
                    let sent = h1::exchange(in_flight, transport, true, outgoing, body).await;
                    sent.map_err(|(error, ..)| error)
                }
                Connection::Http2(reserved) => {
                    h2::send_on(in_flight, reserved, outgoing, body).await
                }
            }
        };
        let result = match self.limit(Instant::now(), options, &view) {
            None => sending.await,
            Some((at, error)) => deadline::timeout_excluding(at, || view.awaited(), sending)
                .await
                .unwrap_or(Err(error)),
        };
        record_result(&endpoint, &result, options, &view);
        result
    }

    /// The deadline for the response head, which the time that the client takes to send `body` extends, and the error after it.
    fn limit(
        &self,
        now: Instant,
        options: SendOptions,
        body: &RequestBody,
    ) -> Option<(Instant, Error)> {
        let head_limit = self.settings.head_timeout;
        let begun = || now - body.awaited().total;
        let limits = [
            head_limit.map(|limit| (begun() + limit, Error::HeadTimeout(limit))),
            options.deadline.map(|at| (at, Error::Deadline)),
        ];
        limits.into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Makes one attempt at one endpoint and records the result for its health. The time limits are applied here, so that an
    /// attempt dropped by the caller does not count as a failure of the endpoint.
    async fn watched(
        &self,
        endpoint: &Arc<Endpoint>,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        now: Instant,
        options: SendOptions,
    ) -> Result<Response<UpstreamBody>, Error> {
        let in_flight = InFlight::new(Arc::clone(endpoint));
        let view = body.view();
        // Here and below, rare paths are boxed to keep the future of every request small. The common path is awaited in place
        // to avoid a move.
        let result = match self.limit(now, options, &body) {
            None => {
                self.attempt(in_flight, outgoing, body, now, options.was_sent)
                    .await
            }
            Some((at, error)) => {
                let attempt =
                    Box::pin(self.attempt(in_flight, outgoing, body, now, options.was_sent));
                deadline::timeout_excluding(at, || view.awaited(), attempt)
                    .await
                    .unwrap_or(Err(error))
            }
        };
        record_result(endpoint, &result, options, &view);
        result
    }

    /// Sends to a specific endpoint of this pool, healthy or not. Used by probes.
    ///
    /// # Errors
    /// Same as [`Pool::send`].
    pub async fn send_to(
        &self,
        endpoint: &Arc<Endpoint>,
        outgoing: Outgoing<'_>,
        body: RequestBody,
    ) -> Result<Response<UpstreamBody>, Error> {
        let in_flight = InFlight::new(Arc::clone(endpoint));
        self.attempt(in_flight, outgoing, body, Instant::now(), false)
            .await
    }
}

/// Records the result of an attempt for the health of the endpoint.
fn record_result(
    endpoint: &Endpoint,
    result: &Result<Response<UpstreamBody>, Error>,
    options: SendOptions,
    body: &RequestBody,
) {
    let now = Instant::now();
    match result {
        Ok(response) if matches!(response.status().as_u16(), 502..=504) => {
            let why = format_args!("answered {}", response.status());
            endpoint.failed(EndpointFailure::Answer, now, &why);
        }
        // With a deadline for the first event, the head of an event stream is not a success yet: the reader of the body
        // records it.
        Ok(response) if options.deadline.is_some() && response.status() == StatusCode::OK => {}
        Ok(_) => endpoint.succeeded(now),
        // A server may close the connection because the rest of the request does not arrive.
        Err(error) if error.is_break() && body.is_stalled() => {}
        Err(error) => {
            if matches!(error, Error::Connect { .. }) {
                endpoint.went_away();
            }
            if let Some(failure) = error.endpoint_failure() {
                endpoint.failed(failure, now, &error_chain(error));
            }
        }
    }
}
