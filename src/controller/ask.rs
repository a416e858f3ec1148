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

/// Largest answer that is read, in bytes.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the name cannot be resolved")]
    Name(#[source] std::io::Error),
    #[error("cannot be reached")]
    Unreachable(#[source] std::io::Error),
    #[error("answers no HTTP")]
    Http(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("does not answer in time")]
    Late,
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
    /// GET `path`, or POST `body` to it, within `patience`.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn ask(
        &self,
        path: &str,
        body: Option<String>,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), Error> {
        let asking = tokio::time::timeout(patience, self.exchange(path, body));
        asking.await.unwrap_or(Err(Error::Late))
    }

    async fn exchange(
        &self,
        path: &str,
        body: Option<String>,
    ) -> Result<(StatusCode, Bytes), Error> {
        let address = match self.address {
            Some(address) => address,
            None => self.resolved().await?,
        };
        let stream = TcpStream::connect(address)
            .await
            .map_err(Error::Unreachable)?;
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
            None => send(TokioIo::new(stream), request).await,
            Some((config, name)) => {
                if let Err(error) = config.refresh() {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "TLS files have changed and cannot be used");
                }
                let mut config = (*config.current()).clone();
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
                let stream = connector.connect(name.clone(), stream).await;
                send(TokioIo::new(stream.map_err(Error::Unreachable)?), request).await
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

async fn send<S>(stream: S, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), Error>
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
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        Ok((status, body.map_err(Error::Http)?.to_bytes()))
    };
    let mut connection = std::pin::pin!(connection);
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        done = exchange.as_mut() => done,
        _ = connection.as_mut() => exchange.await,
    }
}
