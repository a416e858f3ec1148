//! How a generation is reached: endpoints, connections and one attempt at sending a request.
//!
//! Knows nothing of splits: a pool sends to its own endpoints and says typed why it could not.

mod acks;
mod body;
mod connect;
mod endpoint;
mod h1;
mod h2;
mod head;
pub mod idle;
mod lifetime;
mod pool;

pub use body::{BodyError, UpstreamBody};
pub use endpoint::Endpoint;
pub use h1::Upgraded;
pub use head::{Added, Head, Outgoing, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO};
pub use lifetime::Lifetime;
pub use pool::{Pool, Protocol, Resolved, Settings};

use std::net::SocketAddr;
use std::time::Duration;

/// Why a request got no response head.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pool has no address, or its name does not resolve.
    #[error("no address is known")]
    NoEndpoint,
    /// Every address rests after failures, and the caller has somewhere else to go.
    #[error("every address rests after failures")]
    Resting,
    #[error("cannot connect to {address}")]
    Connect {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot connect to {address} within {limit:?}")]
    ConnectTimeout {
        address: SocketAddr,
        limit: Duration,
    },
    #[error("the connection broke before the response head")]
    Broken(#[source] std::io::Error),
    /// The client's fault, not the model server's.
    #[error("the request body broke off")]
    RequestBody(#[source] std::io::Error),
    #[error("no response head within {0:?}")]
    HeadTimeout(Duration),
    #[error("the response head cannot be used")]
    Head(#[source] crate::http1::ResponseError),
    #[error("the response head is too large")]
    HeadTooLarge,
    #[error("HTTP/2")]
    Http2(#[source] hyper::Error),
    /// Of a generation that is a service in this process.
    #[error("the service in this process failed")]
    Local(#[source] tower::BoxError),
}

impl Error {
    /// Was the request never on its way? Then another try costs no model server anything.
    #[must_use]
    pub fn nothing_sent(&self) -> bool {
        matches!(
            self,
            Self::NoEndpoint | Self::Resting | Self::Connect { .. } | Self::ConnectTimeout { .. }
        )
    }
}

/// A few words for people: the error and its causes.
#[must_use]
pub fn story(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
