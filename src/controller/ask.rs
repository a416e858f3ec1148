//! One question to a frontend over HTTP/1.1, on a connection of its own, with a limit to its time and to its answer.
//!
//! Must not know what the answer means.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use crate::resource::Target;
use crate::tls::{ClientFiles, Reloading};
use crate::transport;

/// Largest list of models that is read, in bytes.
pub(super) const MAX_LIST: usize = 512 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot resolve its name")]
    Name(#[source] std::io::Error),
    #[error("cannot connect from this host")]
    Local(#[source] std::io::Error),
    #[error("cannot be reached")]
    Unreachable(#[source] std::io::Error),
    #[error("does not speak HTTP")]
    Http(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("timed out")]
    Late,
}

impl Error {
    /// Does it say nothing of who was asked, because the question never came so far?
    pub const fn is_unasked(&self) -> bool {
        matches!(self, Self::Name(_) | Self::Local(_))
    }

    fn of_connect(error: std::io::Error) -> Self {
        match is_local(&error) {
            true => Self::Local(error),
            false => Self::Unreachable(error),
        }
    }
}

/// Is it this host that has no descriptor, no memory, no port or no way (`errno(3)`)?
fn is_local(error: &std::io::Error) -> bool {
    const LOCAL: [i32; 12] = [
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOBUFS,
        libc::ENOMEM,
        libc::EAGAIN,
        libc::EADDRNOTAVAIL,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::EHOSTUNREACH,
        libc::EAFNOSUPPORT,
        libc::EACCES,
        libc::EPERM,
    ];
    error
        .raw_os_error()
        .is_some_and(|code| LOCAL.contains(&code))
}

/// A frontend, and how it is reached.
#[derive(Clone)]
pub(super) struct Place {
    pub target: Target,
    /// In place of what a resolver says.
    pub address: Option<SocketAddr>,
    /// With TLS: its configuration and the name that the certificate must carry.
    pub tls: Option<(Arc<Reloading<ClientFiles>>, ServerName<'static>)>,
}

/// All that tells it from another place.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}", self.target, self.address)?;
        match &self.tls {
            Some((config, name)) => write!(f, " as {name:?} by {:?}", config.files()),
            None => Ok(()),
        }
    }
}

impl Place {
    /// GET `path`, or POST `body` to it, within `patience`. Of the answer's body `most` bytes are read; with 0, none is
    /// waited for.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn ask(
        &self,
        path: &str,
        body: Option<String>,
        patience: Duration,
        most: usize,
    ) -> Result<(StatusCode, Bytes), Error> {
        let asking = tokio::time::timeout(patience, self.exchange(path, body, most));
        asking.await.unwrap_or(Err(Error::Late))
    }

    async fn exchange(
        &self,
        path: &str,
        body: Option<String>,
        most: usize,
    ) -> Result<(StatusCode, Bytes), Error> {
        let address = match self.address {
            Some(address) => address,
            None => self.resolved().await?,
        };
        let stream = TcpStream::connect(address)
            .await
            .map_err(Error::of_connect)?;
        let method = if body.is_some() {
            Method::POST
        } else {
            Method::GET
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.target.authority())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| Error::Http(error.into()))?;
        match &self.tls {
            None => send(TokioIo::new(stream), request, most).await,
            Some((config, name)) => {
                if let Err(error) = config.refresh() {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "TLS files have changed and cannot be used");
                }
                let mut config = (*config.current()).clone();
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
                let stream = connector.connect(name.clone(), stream).await;
                let stream = stream.map_err(Error::Unreachable)?;
                send(TokioIo::new(stream), request, most).await
            }
        }
    }

    async fn resolved(&self) -> Result<SocketAddr, Error> {
        let (name, confined) = (self.target.name(), self.target.is_confined());
        let found = transport::resolve(&name, self.target.port, confined).await;
        let found = found.map_err(Error::Name)?;
        let none = || Error::Name(std::io::ErrorKind::NotFound.into());
        found.first().copied().ok_or_else(none)
    }
}

async fn send<S>(
    stream: S,
    request: Request<Full<Bytes>>,
    most: usize,
) -> Result<(StatusCode, Bytes), Error>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let wrong = |error: hyper::Error| Error::Http(error.into());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream)
        .await
        .map_err(wrong)?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(wrong)?;
        let status = answer.status();
        if most == 0 {
            return Ok((status, Bytes::new()));
        }
        let body = Limited::new(answer.into_body(), most).collect().await;
        Ok((status, body.map_err(Error::Http)?.to_bytes()))
    };
    let mut connection = std::pin::pin!(connection);
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        done = exchange.as_mut() => done,
        _ = connection.as_mut() => exchange.await,
    }
}
