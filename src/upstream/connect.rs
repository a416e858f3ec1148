//! Opens connections to an endpoint: TCP with `TCP_NODELAY`, and TLS if the target uses it.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::TcpSocket;
use tokio_rustls::{TlsConnector, TlsStream};

use super::lifetime::{LifetimeLimits, RemainingLifetime};
use super::{Endpoint, Error, h2_link, idle};
use crate::tls::{ClientFiles, Reloading};
use crate::transport::descriptors::{self, Shares};
use crate::transport::log_throttle::LogThrottle;
use crate::transport::{Transport, Yielding, deadline, keep_alive};

thread_local! {
    static EXHAUSTED: RefCell<LogThrottle> = RefCell::default();
}

/// Everything needed to open a connection to an endpoint.
pub(super) struct Connector<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) tls: Option<&'a Arc<Reloading<ClientFiles>>>,
    /// What ALPN offers: HTTP/2 only (`true`), HTTP/1.1 only (`false`), or both (`None`).
    pub(super) http2: Option<bool>,
    /// The time limit for connecting, including the TLS handshake.
    pub(super) limit: Duration,
    pub(super) lifetime: LifetimeLimits,
}

impl Connector<'_> {
    /// Opens a connection. Also returns whether ALPN selected HTTP/2, `None` if it selected nothing, and the connection's
    /// lifetime.
    pub(super) async fn connect(
        &self,
    ) -> Result<(Transport, Option<bool>, RemainingLifetime), Error> {
        let (transport, http2) = connect(self.endpoint, self.tls, self.http2, self.limit).await?;
        let life = match self.endpoint.shared {
            true => self.lifetime.begin(Instant::now(), fastrand::u32(..)),
            false => RemainingLifetime::ENDLESS,
        };
        Ok((transport, http2, life))
    }
}

/// Opens a connection. Also returns whether ALPN selected HTTP/2, or `None`.
async fn connect(
    endpoint: &Endpoint,
    tls: Option<&Arc<Reloading<ClientFiles>>>,
    http2: Option<bool>,
    limit: Duration,
) -> Result<(Transport, Option<bool>), Error> {
    let address = endpoint.address;
    match deadline::timeout(limit, open(endpoint, tls, http2)).await {
        Some(Ok(connection)) => Ok(connection),
        Some(Err(source)) => Err(failure(address, source)),
        None => Err(Error::ConnectTimeout { address, limit }),
    }
}

/// Distinguishes resource exhaustion on this host from a failure of the endpoint.
fn failure(address: SocketAddr, source: io::Error) -> Error {
    let code = source.raw_os_error();
    let here_only = code == Some(libc::EADDRNOTAVAIL);
    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    if here_only || code.is_some_and(|code| exhausted.contains(&code)) {
        let times = EXHAUSTED.with_borrow_mut(|throttle| throttle.record(Instant::now()));
        if let Some(times) = times {
            tracing::warn!(%address, error = %source, times, descriptors = descriptors::limit(), "this host cannot open connections to a model server");
        }
        return Error::Exhausted { here_only, source };
    }
    Error::Connect { address, source }
}

/// How long an HTTP/2 connection may take to close once its task is told to.
const CLOSING: Duration = Duration::from_millis(2);

/// A socket for a connection to `address`, with a descriptor that is not reserved. If none is free, idle connections of this
/// thread are closed.
async fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    loop {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        };
        let socket = socket.and_then(|socket| match Shares::now().allow(&socket) {
            true => Ok(socket),
            false => Err(io::Error::from_raw_os_error(libc::EMFILE)),
        });
        match socket {
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                if idle::give_up_one() {
                    continue;
                }
                if h2_link::give_up_one() {
                    tokio::time::sleep(CLOSING).await;
                    continue;
                }
                descriptors::ran_out();
                return Err(error);
            }
            socket => return socket,
        }
    }
}

async fn open(
    endpoint: &Endpoint,
    tls: Option<&Arc<Reloading<ClientFiles>>>,
    http2: Option<bool>,
) -> io::Result<(Transport, Option<bool>)> {
    let socket = socket(endpoint.address).await?;
    let stream = socket.connect(endpoint.address).await?;
    stream.set_nodelay(true)?;
    keep_alive(&SockRef::from(&stream))?;
    let (Some(name), Some(tls)) = (&endpoint.server_name, tls) else {
        return Ok((Transport::Tcp(stream), None));
    };
    let mut config = tls.current();
    if let Some(http2) = http2 {
        let only: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
        Arc::make_mut(&mut config).alpn_protocols = vec![only.to_vec()];
    }
    let connector = TlsConnector::from(config);
    let stream = connector
        .connect(name.clone(), Yielding::new(stream))
        .await?;
    let agreed = stream.get_ref().1.alpn_protocol();
    let http2 = agreed.map(|protocol| protocol == b"h2");
    let stream = Box::new(TlsStream::Client(stream));
    Ok((Transport::Tls(stream), http2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_exhaustion_is_not_a_failure_of_the_endpoint() {
        let address = ([127, 0, 0, 1], 9).into();
        for (code, expected) in [
            (libc::EMFILE, Some(false)),
            (libc::ENFILE, Some(false)),
            (libc::ENOBUFS, Some(false)),
            (libc::ENOMEM, Some(false)),
            (libc::EADDRNOTAVAIL, Some(true)),
            (libc::ECONNREFUSED, None),
            (libc::EHOSTUNREACH, None),
            (libc::ENETUNREACH, None),
            (libc::ETIMEDOUT, None),
        ] {
            let error = failure(address, io::Error::from_raw_os_error(code));
            let found = match &error {
                Error::Exhausted { here_only, .. } => Some(*here_only),
                _ => None,
            };
            assert_eq!(found, expected, "{error:?}");
            assert_eq!(error.endpoint_failure().is_some(), expected.is_none());
        }
    }
}
