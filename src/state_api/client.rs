//! A client of another proxy's state: connects, asks once or watches, and never waits for ever.

use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use super::v1::proxy_client::ProxyClient;
use super::v1::{GetRequest, State, WatchRequest};

/// Why a proxy's state is not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is no host:port")]
    Address(String),
    #[error("cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It was reached and said nothing in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// It has as many watchers as it takes: ask again later, or ask once.
    #[error("has too many watchers")]
    Busy,
    /// It does not speak `crossfade.v1`.
    #[error("is not the admin port (by default 9464) of a crossfade of this version")]
    Stranger(#[source] Box<Status>),
    #[error("answers with an error")]
    Refused(#[source] Box<Status>),
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::Unimplemented => Self::Stranger(status.into()),
            Code::ResourceExhausted => Self::Busy,
            // Its connection broke: tonic makes these of transport errors.
            Code::Unavailable | Code::Unknown => Self::Unreachable(status.into()),
            _ => Self::Refused(status.into()),
        }
    }
}

/// A connection to the admin port of a proxy. Cheap to clone; the clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    proxy: ProxyClient<Channel>,
    deadline: Duration,
}

impl Client {
    /// Connects to `address`, a `host:port`. Each step, this one included, may take as long as `deadline`.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Unreachable`], [`Error::Late`].
    pub async fn connect(address: &str, deadline: Duration) -> Result<Self, Error> {
        let wrong = || Error::Address(address.to_owned());
        let authority: http::uri::Authority = address.parse().map_err(|_| wrong())?;
        if authority.port_u16().is_none() || address.contains('@') {
            return Err(wrong());
        }
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))
            .map_err(|_| wrong())?
            // So that a watch notices a host that is gone.
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10));
        let channel = within(deadline, async {
            let connected = endpoint.connect().await;
            connected.map_err(|error| Error::Unreachable(error.into()))
        });
        Ok(Self {
            proxy: ProxyClient::new(channel.await?),
            deadline,
        })
    }

    /// A client over a connection that is there already, as one that is forwarded to a pod. It is not made anew when it
    /// breaks.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Late`].
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
            connected.map_err(|error| Error::Unreachable(error.into()))
        });
        Ok(Self {
            proxy: ProxyClient::new(channel.await?),
            deadline,
        })
    }

    /// The state now.
    ///
    /// # Errors
    /// All but [`Error::Address`] and [`Error::Busy`].
    pub async fn get(&self) -> Result<State, Error> {
        let mut proxy = self.proxy.clone();
        let asking = async { Ok(proxy.get(GetRequest {}).await?.into_inner()) };
        within(self.deadline, asking).await
    }

    /// The state now and whenever it changes, at least once per `interval` (100 ms or more).
    ///
    /// # Errors
    /// All but [`Error::Address`].
    pub async fn watch(&self, interval: Duration) -> Result<Watching, Error> {
        let mut proxy = self.proxy.clone();
        let interval_ms = u32::try_from(interval.as_millis())
            .unwrap_or(u32::MAX)
            .max(1);
        let asking = async {
            Ok(proxy
                .watch(WatchRequest { interval_ms })
                .await?
                .into_inner())
        };
        Ok(Watching {
            states: within(self.deadline, asking).await?,
            patience: interval.saturating_add(self.deadline),
        })
    }
}

/// The states of a proxy, as they come. Dropped, it ends the watch.
#[derive(Debug)]
pub struct Watching {
    states: Streaming<State>,
    patience: Duration,
}

impl Watching {
    /// The next state; `None` once the process has ended in good order. Dropping the future loses no state.
    ///
    /// # Errors
    /// [`Error::Late`] when it is silent for longer than the interval and the deadline together, else as
    /// [`Client::watch`]. After an error the watch is over.
    pub async fn next(&mut self) -> Result<Option<State>, Error> {
        let patience = self.patience;
        let message = async { Ok(self.states.message().await?) };
        within(patience, message).await
    }
}

async fn within<T>(
    deadline: Duration,
    step: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let step = tokio::time::timeout(deadline, step).await;
    step.unwrap_or(Err(Error::Late(deadline)))
}
