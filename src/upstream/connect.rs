//! Opens connections to an endpoint: TCP without delay, TLS where the target says so.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

use super::{Endpoint, Error};
use crate::tls::{ClientFiles, Reloading};
use crate::transport::{Transport, deadline};

/// A new connection, and whether HTTP/2 was agreed on by ALPN.
pub(super) async fn connect(
    endpoint: &Endpoint,
    tls: Option<&Arc<Reloading<ClientFiles>>>,
    http2: Option<bool>,
    limit: Duration,
) -> Result<(Transport, bool), Error> {
    let address = endpoint.address;
    match deadline::timeout(limit, open(endpoint, tls, http2)).await {
        Some(Ok(connection)) => Ok(connection),
        Some(Err(source)) => Err(Error::Connect { address, source }),
        None => Err(Error::ConnectTimeout { address, limit }),
    }
}

async fn open(
    endpoint: &Endpoint,
    tls: Option<&Arc<Reloading<ClientFiles>>>,
    http2: Option<bool>,
) -> io::Result<(Transport, bool)> {
    let stream = TcpStream::connect(endpoint.address).await?;
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    let (Some(name), Some(tls)) = (&endpoint.server_name, tls) else {
        return Ok((Transport::Tcp(stream), false));
    };
    let mut config = tls.current();
    if let Some(http2) = http2 {
        let only: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
        Arc::make_mut(&mut config).alpn_protocols = vec![only.to_vec()];
    }
    let connector = TlsConnector::from(config);
    let stream = connector.connect(name.clone(), stream).await?;
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stream = Box::new(TlsStream::Client(stream));
    Ok((Transport::Tls(stream), http2))
}

/// A model server whose machine is gone sends nothing: without this a silent stream would wait for ever.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let probes = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket2::SockRef::from(stream).set_tcp_keepalive(&probes)
}
