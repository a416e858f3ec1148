//! A client for the state of another proxy: reads it once or watches it, always with a timeout.

use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use super::limits::{Limited, MAX_STATE};
use super::v1::proxy_client::ProxyClient;
use super::v1::{CompareRequest, Comparison, GetRequest, State, WatchRequest};
use crate::error_chain::root_cause;

/// Why a proxy's state is unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is not a host:port")]
    Address(String),
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// It was reached but did not respond in time.
    #[error("no response within {}", crate::printable::seconds(*.0))]
    Timeout(Duration),
    /// It has reached its limit of watches: try again later, or read once.
    #[error("has too many watches")]
    TooManyWatches,
    /// It does not support `crossfade.v1`, or does not speak gRPC at all.
    #[error("is not the admin port (by default 9464) of a crossfade process of this version")]
    Unsupported,
    #[error("reports more than a crossfade process does")]
    Excessive,
    #[error("responded with an error: {0}")]
    Refused(String),
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        match status.code() {
            // Admin ports do not return Internal: tonic does, for a response that is not gRPC.
            Code::Unimplemented | Code::Internal => Self::Unsupported,
            Code::ResourceExhausted => Self::TooManyWatches,
            // Admin ports do not return this: tonic does, for a message that is too large.
            Code::OutOfRange => Self::Excessive,
            // Its connection broke: tonic creates these for transport errors.
            Code::Unavailable | Code::Unknown => Self::Unreachable(cause(&status)),
            code => Self::Refused(format!("{code:?}: {}", status.message())),
        }
    }
}

/// The cause of a broken connection. The text of a status itself is meant for debugging.
fn cause(status: &Status) -> String {
    use std::error::Error as _;
    match status.source() {
        Some(source) => describe(source),
        None => status.message().to_owned(),
    }
}

/// Why a connection failed. The libraries in between only report which of their steps failed.
fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let of_system = causes.find_map(|cause| {
        let error = cause.downcast_ref::<io::Error>()?;
        error.raw_os_error().map(|_| error.kind().to_string())
    });
    of_system.unwrap_or_else(|| root_cause(error))
}

/// A connection to the admin port of a proxy. Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    proxy: ProxyClient<Channel>,
    deadline: Duration,
}

impl Client {
    /// Connects to `address`, a `host:port`. `deadline` is the timeout of each step, including this one.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Unreachable`], [`Error::Timeout`].
    pub async fn connect(address: &str, deadline: Duration) -> Result<Self, Error> {
        let wrong = || Error::Address(address.to_owned());
        let authority: http::uri::Authority = address.parse().map_err(|_| wrong())?;
        if authority.port_u16().is_none() || address.contains('@') {
            return Err(wrong());
        }
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))
            .map_err(|_| wrong())?
            // This lets a watch detect that the host is gone.
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10));
        let channel = within(deadline, async {
            let connected = endpoint.connect().await;
            connected.map_err(|error| Error::Unreachable(describe(&error)))
        });
        Ok(Self {
            proxy: ProxyClient::new(channel.await?),
            deadline,
        })
    }

    /// A client over an existing connection, such as a port forwarded to a pod. It does not reconnect.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Timeout`].
    pub async fn over<S>(stream: S, deadline: Duration) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut stream = Some(TokioIo::new(stream));
        let connector = tower::service_fn(move |_: http::Uri| {
            let stream = stream.take().ok_or(io::ErrorKind::NotConnected);
            std::future::ready(stream.map_err(io::Error::from))
        });
        let channel = within(deadline, async {
            let endpoint = Endpoint::from_static("http://forwarded");
            let connected = endpoint.connect_with_connector(connector).await;
            connected.map_err(|error| Error::Unreachable(describe(&error)))
        });
        Ok(Self {
            proxy: ProxyClient::new(channel.await?),
            deadline,
        })
    }

    /// The current state.
    ///
    /// # Errors
    /// All except [`Error::Address`] and [`Error::TooManyWatches`].
    pub async fn get(&self) -> Result<State, Error> {
        let mut proxy = self.proxy.clone().max_decoding_message_size(MAX_STATE);
        let call = async { within_limits(proxy.get(GetRequest {}).await?.into_inner()) };
        within(self.deadline, call).await
    }

    /// The counts of both generations per kind of request; `None` if the proxy is too old to report them. Includes the counts of
    /// the last minutes if `with_past`.
    ///
    /// # Errors
    /// All except [`Error::Address`] and [`Error::TooManyWatches`].
    pub async fn compare(&self, with_past: bool) -> Result<Option<Comparison>, Error> {
        let mut proxy = self.proxy.clone();
        let call = async {
            match proxy.compare(CompareRequest { with_past }).await {
                Ok(answer) => within_limits(answer.into_inner()).map(Some),
                Err(status) if status.code() == tonic::Code::Unimplemented => Ok(None),
                Err(status) => Err(status.into()),
            }
        };
        within(self.deadline, call).await
    }

    /// The current state and its changes, at least one state per `interval` (100 ms or more).
    ///
    /// # Errors
    /// All except [`Error::Address`].
    pub async fn watch(&self, interval: Duration) -> Result<StateStream, Error> {
        let mut proxy = self.proxy.clone().max_decoding_message_size(MAX_STATE);
        let interval_ms = u32::try_from(interval.as_millis())
            .unwrap_or(u32::MAX)
            .max(1);
        let call = async {
            Ok(proxy
                .watch(WatchRequest { interval_ms })
                .await?
                .into_inner())
        };
        Ok(StateStream {
            states: within(self.deadline, call).await?,
            patience: interval.saturating_add(self.deadline),
        })
    }
}

/// The states of a proxy. Dropping it ends the watch.
#[derive(Debug)]
pub struct StateStream {
    states: Streaming<State>,
    patience: Duration,
}

impl StateStream {
    /// The next state; `None` once the process has ended normally. Dropping the future loses no state.
    ///
    /// # Errors
    /// [`Error::Timeout`] if nothing arrives within the interval plus the deadline, otherwise as for [`Client::watch`]. An error
    /// ends the watch.
    pub async fn next(&mut self) -> Result<Option<State>, Error> {
        let patience = self.patience;
        let message = async { self.states.message().await?.map(within_limits).transpose() };
        within(patience, message).await
    }
}

fn within_limits<T: Limited>(report: T) -> Result<T, Error> {
    match report.is_within_limits() {
        true => Ok(report),
        false => Err(Error::Excessive),
    }
}

async fn within<T>(
    deadline: Duration,
    step: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let step = tokio::time::timeout(deadline, step).await;
    step.unwrap_or(Err(Error::Timeout(deadline)))
}
