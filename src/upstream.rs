//! Sends requests to the endpoints of one generation: pools, connections, and single attempts.
//!
//! Contains no split or failover policy across generations: a pool sends to its own endpoints and returns a typed error if it
//! cannot.

mod ahead;
mod body;
mod capability;
mod connect;
mod endpoint;
mod h1;
mod h2;
mod h2_link;
mod head;
mod idle;
mod kept;
mod lifetime;
mod outlier;
mod pool;
mod proofs;
mod quick_ack;

pub use body::{AnsweredBy, BodyError, UpstreamBody, sender};
pub use capability::{Demand, GuardField, ModelDemand, PROBE_HEADER, ProvenConnection};
pub use endpoint::Endpoint;
pub use h1::Upgraded;
pub use head::{
    AddedFields, Head, Outgoing, Proto, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO,
    X_REQUEST_ID,
};
pub use lifetime::LifetimeLimits;
pub use outlier::EndpointFailure;
pub use pool::{FailFast, Pool, PoolSettings, Protocol, Resolved, SendOptions};

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::transport::h2::Http2Error;

/// Why a request got no response head.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pool has no address, or its name does not resolve.
    #[error("no address is known")]
    NoEndpoint,
    /// All endpoints are ejected after failures, and the caller can fail over to another target.
    #[error("every address is ejected after failures")]
    Ejected,
    /// This host cannot open a connection: it is out of descriptors, memory, or ports for connections to the address. Not a
    /// failure of the model server.
    #[error("this host cannot open a connection")]
    Exhausted {
        /// The limit applies to this address only: ports are counted per destination.
        here_only: bool,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot connect to {address}")]
    Connect {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot connect to {address} within {}", crate::printable::seconds(*limit))]
    ConnectTimeout {
        address: SocketAddr,
        limit: Duration,
    },
    /// The server closed the connection before any part of the request reached it, as can happen to an idle connection.
    #[error("the connection was closed before the request arrived")]
    Unread(#[source] std::io::Error),
    /// The connection broke before the first byte of the response. The server may still have read the request.
    #[error("the connection broke before the response")]
    BrokenBeforeResponse(#[source] std::io::Error),
    #[error("the connection broke before the response head")]
    BrokenInHead(#[source] std::io::Error),
    /// The client's fault, not the model server's.
    #[error("the request body was cut off")]
    RequestBody(#[source] std::io::Error),
    /// The client's fault. Nothing was sent: the server would close the connection, with the streams of other clients.
    #[error("the request head is larger than the {0} bytes that the model server accepts")]
    RequestHeadTooLarge(u32),
    #[error("no response head within {}", crate::printable::seconds(*.0))]
    HeadTimeout(Duration),
    /// The caller's deadline for the first event passed before the response head.
    #[error("no first event in time")]
    Deadline,
    #[error("the response head is invalid")]
    Head(#[source] crate::http1::ResponseError),
    /// Interim response heads (1xx) count towards the limit.
    #[error("the response head is too large, including interim responses")]
    HeadTooLarge,
    /// The memory budget has no room for the part of the response head that has arrived.
    #[error("the memory budget is exhausted")]
    NoMemory,
    #[error("HTTP/2")]
    Http2(#[source] Http2Error),
    /// The server reset only this stream, because it considers the request malformed, or because of its number of fields. Like a
    /// response with status 400, that is not its fault: a client could otherwise eject servers with requests that only crossfade
    /// accepts.
    #[error("the model server rejected the request as malformed")]
    Malformed(#[source] Http2Error),
    /// The server switched protocols before the request was complete. That is not its fault alone: a client could otherwise eject
    /// servers that switch as soon as they have read the head (Node.js).
    #[error("the server switched protocols before the request was complete")]
    SwitchedEarly,
    /// The request asks for an upgrade, and the server can only be reached over HTTP/2, which has none. Nothing was sent.
    #[error("an upgrade needs HTTP/1.1, and the model server is reached over HTTP/2 only")]
    NoUpgrade,
    /// From a generation that is a service in this process.
    #[error("the service in this process failed")]
    Local(#[source] tower::BoxError),
}

impl Error {
    /// Whether it is certain that no model server received any of the request. Then a retry is safe.
    #[must_use]
    pub fn nothing_sent(&self) -> bool {
        matches!(
            self,
            Self::NoEndpoint
                | Self::Ejected
                | Self::Exhausted { .. }
                | Self::Connect { .. }
                | Self::ConnectTimeout { .. }
                | Self::Unread(_)
        )
    }

    /// Whether the connection broke before the response. A later request needs another connection.
    #[must_use]
    pub const fn is_break(&self) -> bool {
        matches!(
            self,
            Self::Unread(_)
                | Self::BrokenBeforeResponse(_)
                | Self::BrokenInHead(_)
                | Self::Http2(_)
        )
    }

    /// Whether another endpoint of the same pool can help. Only if no model server saw the request and the failure is specific
    /// to this endpoint or address.
    #[must_use]
    pub fn is_retryable_on_another_endpoint(&self) -> bool {
        self.nothing_sent()
            && !matches!(
                self,
                Self::Exhausted {
                    here_only: false,
                    ..
                }
            )
    }

    /// Whether the server speaks none of the protocols that ALPN offered (RFC 7301 §3.2).
    fn is_alpn_refusal(&self) -> bool {
        use rustls::{AlertDescription::NoApplicationProtocol, Error::AlertReceived};
        let Self::Connect { source, .. } = self else {
            return false;
        };
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref());
        matches!(inner, Some(AlertReceived(NoApplicationProtocol)))
    }

    /// How the endpoint failed, or `None` if the failure is not its fault.
    #[must_use]
    pub const fn endpoint_failure(&self) -> Option<EndpointFailure> {
        match self {
            Self::Connect { .. } | Self::ConnectTimeout { .. } => Some(EndpointFailure::Connect),
            Self::HeadTimeout(_) | Self::Deadline => Some(EndpointFailure::Timeout),
            // The server may have closed the connection because of what the client sent.
            Self::Unread(_)
            | Self::BrokenBeforeResponse(_)
            | Self::BrokenInHead(_)
            | Self::Http2(_)
            | Self::Head(_)
            | Self::HeadTooLarge => Some(EndpointFailure::Answer),
            Self::NoEndpoint
            | Self::Ejected
            | Self::Exhausted { .. }
            | Self::NoMemory
            | Self::RequestBody(_)
            | Self::RequestHeadTooLarge(_)
            | Self::Malformed(_)
            | Self::SwitchedEarly
            | Self::NoUpgrade
            | Self::Local(_) => None,
        }
    }
}

impl Error {
    /// A description for clients. It does not reveal the addresses of model servers.
    #[must_use]
    pub fn client_message(&self) -> &'static str {
        match self {
            Self::NoEndpoint => "no endpoint is known",
            Self::Ejected => "no endpoint is healthy",
            Self::Exhausted { .. } => "this proxy cannot open a connection",
            Self::Deadline => "no first event in time",
            Self::Connect { source, .. } => match source.kind() {
                ErrorKind::ConnectionRefused => "connection refused",
                ErrorKind::ConnectionReset => "connection reset",
                ErrorKind::TimedOut => "connecting timed out",
                ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => "unreachable",
                _ => "cannot connect",
            },
            Self::ConnectTimeout { .. } => "connecting timed out",
            Self::Unread(_) => "the connection was closed before the request arrived",
            Self::BrokenBeforeResponse(source) | Self::BrokenInHead(source) => {
                match source.kind() {
                    ErrorKind::ConnectionReset => "connection reset before the response",
                    ErrorKind::UnexpectedEof => "connection closed before the response",
                    ErrorKind::TimedOut => "timed out before the response",
                    _ => "connection broken before the response",
                }
            }
            Self::RequestBody(_) => "the request body was cut off",
            Self::RequestHeadTooLarge(_) => "the request head is too large for the model server",
            Self::HeadTimeout(_) => "timed out before the response",
            Self::Head(_) => "the response head is invalid",
            Self::HeadTooLarge => "the response head is too large",
            Self::NoMemory => "the memory budget is exhausted",
            Self::Http2(_) => "HTTP/2 error before the response",
            Self::Malformed(_) => "rejected the request as malformed",
            Self::SwitchedEarly => "switched protocols before the request was complete",
            Self::NoUpgrade => "no upgrade over HTTP/2",
            Self::Local(_) => "the service failed",
        }
    }
}

/// Drops connections of this thread that have been idle too long, have exceeded their lifetime, or were closed by the server.
/// Call it periodically on each thread.
pub fn sweep(now: Instant) {
    let are_short = idle::are_descriptors_short();
    h2_link::sweep(now, are_short);
    idle::sweep(now, are_short);
}
