//! One attempt at one endpoint: over a connection of this thread, or over a new one.

use std::time::{Duration, Instant};

use http::Response;
use http::header::UPGRADE;
use http_body::Body;

use super::{Pool, Protocol};
use crate::request_body::RequestBody;
use crate::upstream::connect::Connector;
use crate::upstream::endpoint::InFlight;
use crate::upstream::head::Outgoing;
use crate::upstream::{Endpoint, Error, UpstreamBody, h1, h2, h2_link, idle};

/// A reused connection that breaks within this time was probably already closed when it was taken. After this time the server
/// may have been processing the request.
const STALE: Duration = Duration::from_millis(50);

/// What is constant during an attempt.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    outgoing: Outgoing<'a>,
    /// HTTP/2 only (`true`), HTTP/1.1 only (`false`), or what ALPN selects for the connection (`None`).
    http2: Option<bool>,
    since: Instant,
    was_sent: bool,
}

impl Pool {
    pub(in crate::upstream) async fn attempt(
        &self,
        mut in_flight: InFlight,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        now: Instant,
        was_sent: bool,
    ) -> Result<Response<UpstreamBody>, Error> {
        let attempt = Attempt {
            outgoing,
            http2: self.version(&in_flight, outgoing)?,
            since: now,
            was_sent,
        };
        // The last result of ALPN only decides which connections are looked for first: the servers behind an address may differ,
        // or be replaced by others.
        let http2_first = attempt.http2.unwrap_or_else(|| in_flight.spoke_http2());
        if !http2_first && let Some((transport, life)) = idle::take(in_flight.id) {
            in_flight.life = life;
            return match h1::exchange(in_flight, transport, true, outgoing, body).await {
                Ok(response) => Ok(response),
                Err(failed) => Box::pin(self.after(failed, attempt)).await,
            };
        }
        Box::pin(self.send_over_another(in_flight, body, attempt, http2_first)).await
    }

    /// The HTTP version of a request to the endpoint, as [`Attempt::http2`]. Only HTTP/1.1 has `Upgrade` (RFC 9113 §8.2.2).
    fn version(&self, endpoint: &Endpoint, outgoing: Outgoing<'_>) -> Result<Option<bool>, Error> {
        let upgrades = || outgoing.head.headers.contains_key(UPGRADE);
        match self.settings.protocol {
            Protocol::Http1 => Ok(Some(false)),
            Protocol::Http2 if upgrades() => Err(Error::NoUpgrade),
            Protocol::Http2 => Ok(Some(true)),
            Protocol::Auto if endpoint.server_name.is_none() || upgrades() => Ok(Some(false)),
            Protocol::Auto => Ok(None),
        }
    }

    /// Sends over an HTTP/2 connection of this thread, over an idle HTTP/1.1 connection that was not looked for yet, or over a new
    /// connection.
    async fn send_over_another(
        &self,
        mut in_flight: InFlight,
        body: RequestBody,
        attempt: Attempt<'_>,
        http2_first: bool,
    ) -> Result<Response<UpstreamBody>, Error> {
        let outgoing = attempt.outgoing;
        if attempt.http2 != Some(false)
            && let Some(link) = h2_link::existing(in_flight.id, body.size_hint().exact())
        {
            return match h2::over(in_flight, link, outgoing, body).await {
                Err(h2::Failed::Unprocessed {
                    error,
                    in_flight,
                    body,
                }) => {
                    let Some(body) = body.and_then(|body| body.for_retry()) else {
                        return Err(Error::Http2(error.into()));
                    };
                    Box::pin(self.fresh(in_flight, body, attempt)).await
                }
                sent => sent.map_err(h2::Failed::into),
            };
        }
        if http2_first
            && attempt.http2.is_none()
            && let Some((transport, life)) = idle::take(in_flight.id)
        {
            in_flight.life = life;
            let sending = h1::exchange(in_flight, transport, true, outgoing, body);
            return match Box::pin(sending).await {
                Ok(response) => Ok(response),
                Err(failed) => Box::pin(self.after(failed, attempt)).await,
            };
        }
        Box::pin(self.fresh(in_flight, body, attempt)).await
    }

    /// Repeats an exchange over a new connection if it failed because the server had already closed the reused one.
    async fn after(
        &self,
        (error, in_flight, body): (Error, InFlight, RequestBody),
        attempt: Attempt<'_>,
    ) -> Result<Response<UpstreamBody>, Error> {
        let may_repeat = !attempt.was_sent && attempt.outgoing.head.method.is_idempotent();
        if !is_stale(&error, may_repeat, attempt.since) {
            return Err(error);
        }
        match body.for_retry() {
            Some(body) => self.fresh(in_flight, body, attempt).await,
            None => Err(error),
        }
    }

    /// Opens a connection and sends over it, by the version that ALPN selected for this connection.
    async fn fresh(
        &self,
        mut in_flight: InFlight,
        body: RequestBody,
        attempt: Attempt<'_>,
    ) -> Result<Response<UpstreamBody>, Error> {
        // An upgrade to a server that may speak HTTP/2.
        let needs_http1 = self.settings.protocol == Protocol::Auto
            && attempt.http2 == Some(false)
            && in_flight.server_name.is_some();
        let connector = self.connector(&in_flight, attempt.http2);
        let connected = connector.connect().await;
        let (transport, agreed, life) = connected.map_err(|error| {
            // A server without HTTP/1.1 works; only this request cannot be sent to it.
            match needs_http1 && error.is_alpn_refusal() {
                true => Error::NoUpgrade,
                false => error,
            }
        })?;
        in_flight.life = life;
        if needs_http1 && agreed.is_none() && in_flight.spoke_http2() {
            // A server that ignores what ALPN offers speaks HTTP/2 anyway.
            return Err(Error::NoUpgrade);
        }
        let agreed = agreed == Some(true);
        if attempt.http2.is_none() {
            in_flight.spoke(agreed);
        }
        if attempt.http2.unwrap_or(agreed) {
            return h2::send_over(in_flight, transport, attempt.outgoing, body).await;
        }
        h1::exchange(in_flight, transport, false, attempt.outgoing, body)
            .await
            .map_err(|(error, ..)| error)
    }

    fn connector<'a>(&'a self, endpoint: &'a Endpoint, http2: Option<bool>) -> Connector<'a> {
        Connector {
            endpoint,
            tls: self.tls.as_ref(),
            http2,
            limit: self.settings.connect_timeout,
            lifetime: self.settings.lifetime,
        }
    }
}

/// Whether an exchange over a reused connection, begun at `since`, failed because the server had already closed it. If so, it
/// is repeated immediately on a new connection. If the server may have read the request, this applies only if it `may_repeat`
/// (RFC 9110 §9.2.2). Otherwise it is a failed attempt, and the caller decides with the retry budget.
fn is_stale(error: &Error, may_repeat: bool, since: Instant) -> bool {
    match error {
        Error::Unread(_) => true,
        Error::BrokenBeforeResponse(_) => may_repeat && since.elapsed() < STALE,
        _ => false,
    }
}
