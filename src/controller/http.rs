//! An HTTP/1.1 client for polling frontends: keep-alive connections, and a limit on the time and the size of every response.
//!
//! Does not interpret the responses.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::limits::{IdlePermit, TargetPermit};
use crate::guard::GENERATION;
use crate::resource::TargetAddress;
use crate::tls::{ClientFiles, Reloading};
use crate::transport;

/// Maximum size of a model list, in bytes.
pub(super) const MAX_LIST: usize = 512 * 1024;
/// Maximum time for which a connection is kept. The actual time is randomized between half of this and all of it.
const KEPT: Duration = Duration::from_secs(30);
/// How much of an unread response body is drained so that the connection can be reused: in bytes, and for how long.
const MAX_REST: usize = 4096;
const REST: Duration = Duration::from_millis(100);

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot resolve the name")]
    Name(#[source] std::io::Error),
    #[error("cannot connect from this host")]
    Local(#[source] std::io::Error),
    #[error("cannot be reached")]
    Unreachable(#[source] std::io::Error),
    #[error("cannot be trusted")]
    Untrusted(#[source] std::io::Error),
    #[error("does not speak HTTP")]
    Http(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("timed out")]
    Late,
}

impl Error {
    /// Whether the request never reached the frontend, so that the error says nothing about it.
    pub const fn was_not_sent(&self) -> bool {
        matches!(self, Self::Name(_) | Self::Local(_))
    }

    /// Whether the frontend responded, although the TLS handshake failed.
    pub const fn is_answer(&self) -> bool {
        matches!(self, Self::Untrusted(_))
    }

    fn of_handshake(error: std::io::Error) -> Self {
        let is_of_tls = error
            .get_ref()
            .is_some_and(|inner| inner.is::<rustls::Error>());
        match is_of_tls {
            true => Self::Untrusted(error),
            false => Self::Unreachable(error),
        }
    }

    fn of_connect(error: std::io::Error) -> Self {
        match is_local(&error) {
            true => Self::Local(error),
            false => Self::Unreachable(error),
        }
    }
}

/// Whether the cause is on this host: out of descriptors, memory or ports, no route, or not permitted (`errno(3)`).
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

/// A frontend and how to reach it.
#[derive(Clone)]
pub(super) struct FrontendAddress {
    pub target: TargetAddress,
    /// Overrides name resolution.
    pub address: Option<SocketAddr>,
    /// With TLS: the configuration, and the name that the certificate must have.
    pub tls: Option<(Arc<Reloading<ClientFiles>>, ServerName<'static>)>,
}

/// All parts that distinguish this address from another one.
impl fmt::Display for FrontendAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}", self.target, self.address)?;
        match &self.tls {
            Some((config, name)) => write!(f, " as {name:?} by {:?}", config.files()),
            None => Ok(()),
        }
    }
}

/// A request: GET `path`, or POST `body` to it.
#[derive(Clone)]
pub(super) struct FrontendQuery<'a> {
    pub path: &'a str,
    pub body: Option<String>,
    /// How much of the response body to read, in bytes. With 0 the body is discarded.
    pub most: usize,
}

impl FrontendAddress {
    /// Sends a request on a new connection, with the timeout `patience`.
    ///
    /// # Errors
    /// Why there is no response.
    pub async fn send(
        &self,
        query: &FrontendQuery<'_>,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), Error> {
        let sending = async {
            let mut connection = self.connect().await?;
            let request = self.request(query)?;
            let answer = connection.send(request, query.most).await?;
            Ok((answer.status, answer.body))
        };
        let sending = tokio::time::timeout(patience, sending);
        sending.await.unwrap_or(Err(Error::Late))
    }

    fn request(&self, query: &FrontendQuery<'_>) -> Result<Request<Full<Bytes>>, Error> {
        let method = match query.body {
            Some(_) => Method::POST,
            None => Method::GET,
        };
        let body = query.body.clone().unwrap_or_default();
        Request::builder()
            .method(method)
            .uri(query.path)
            .header(HOST, self.target.authority())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Error::Http(error.into()))
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let address = match self.address {
            Some(address) => address,
            None => self.resolved().await?,
        };
        let stream = TcpStream::connect(address)
            .await
            .map_err(Error::of_connect)?;
        let Some((_, name)) = &self.tls else {
            return Connection::open(TokioIo::new(stream), None).await;
        };
        let current = self.tls_cache();
        let mut config = current.as_deref().cloned().expect("it is TLS");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name.clone(), stream).await;
        let stream = stream.map_err(Error::of_handshake)?;
        Connection::open(TokioIo::new(stream), current).await
    }

    /// The current TLS configuration, if the target uses TLS. Reloads files that have changed.
    fn tls_cache(&self) -> Option<Arc<ClientConfig>> {
        let (config, _) = self.tls.as_ref()?;
        if let Err(error) = config.refresh() {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot use the changed TLS files");
        }
        Some(config.current())
    }

    async fn resolved(&self) -> Result<SocketAddr, Error> {
        let (name, confined) = (self.target.name(), self.target.is_confined());
        let found = transport::resolve(&name, self.target.port, confined).await;
        let found = found.map_err(Error::Name)?;
        let none = || Error::Name(std::io::ErrorKind::NotFound.into());
        found.first().copied().ok_or_else(none)
    }
}

/// A client for repeated requests to one frontend. Keeps its connection between requests if the limits allow it.
pub(super) struct FrontendClient {
    pub frontend: FrontendAddress,
    kept: Option<IdleConnection>,
}

struct IdleConnection {
    connection: Connection,
    until: Instant,
    _room: IdlePermit,
}

impl FrontendClient {
    pub fn new(frontend: FrontendAddress) -> Self {
        Self {
            frontend,
            kept: None,
        }
    }

    /// Sends a request with the timeout `patience`.
    ///
    /// # Errors
    /// Why there is no response.
    pub async fn send(
        &mut self,
        query: &FrontendQuery<'_>,
        patience: Duration,
        share: &TargetPermit,
    ) -> Result<FrontendResponse, Error> {
        let sending = tokio::time::timeout(patience, self.exchange(query, share));
        sending.await.unwrap_or(Err(Error::Late))
    }

    async fn exchange(
        &mut self,
        query: &FrontendQuery<'_>,
        share: &TargetPermit,
    ) -> Result<FrontendResponse, Error> {
        // The connection is taken out, so a request that times out drops it.
        if let Some(mut kept) = self.kept.take().filter(|kept| self.is_good(kept)) {
            let request = self.frontend.request(query)?;
            // The frontend may have closed the idle connection, which is not an error: use a new one.
            if let Ok(answer) = kept.connection.send(request, query.most).await {
                self.kept = answer.is_whole.then_some(kept);
                return Ok(answer);
            }
        }
        let mut connection = self.frontend.connect().await?;
        let request = self.frontend.request(query)?;
        let answer = connection.send(request, query.most).await?;
        if answer.is_whole
            && let Some(room) = share.connection()
        {
            // Jitter, so that connections do not expire together.
            let length = KEPT.mul_f64(0.5 + fastrand::f64() / 2.0);
            self.kept = Some(IdleConnection {
                connection,
                until: Instant::now() + length,
                _room: room,
            });
        }
        Ok(answer)
    }

    /// Whether a kept connection may be reused. It expires after a while, because the name may resolve to another address then,
    /// and becomes invalid when the TLS files change.
    fn is_good(&self, kept: &IdleConnection) -> bool {
        let connection = &kept.connection;
        let (now, before) = (self.frontend.tls_cache(), &connection.tls_cache);
        let is_trusted = match (&now, before) {
            (Some(now), Some(before)) => Arc::ptr_eq(now, before),
            (now, before) => now.is_none() && before.is_none(),
        };
        is_trusted && Instant::now() < kept.until && !connection.sender.is_closed()
    }
}

/// A connection to a frontend.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    tls_cache: Option<Arc<ClientConfig>>,
    /// Drives the connection until this is dropped.
    _task: JoinSet<()>,
}

/// A response.
pub(super) struct FrontendResponse {
    pub status: StatusCode,
    pub body: Bytes,
    /// Whether it came through a crossfade proxy.
    pub is_proxied: bool,
    /// Whether the body was read to its end, so that the connection can be reused.
    is_whole: bool,
}

impl Connection {
    async fn open<S>(stream: S, tls_cache: Option<Arc<ClientConfig>>) -> Result<Self, Error>
    where
        S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let shaken = hyper::client::conn::http1::handshake(stream).await;
        let (sender, connection) = shaken.map_err(|error| Error::Http(error.into()))?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            // The request sees this error, too.
            let _ = connection.await;
        });
        Ok(Self {
            sender,
            tls_cache,
            _task: task,
        })
    }

    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<FrontendResponse, Error> {
        let wrong = |error: hyper::Error| Error::Http(error.into());
        self.sender.ready().await.map_err(wrong)?;
        let answer = self.sender.send_request(request).await.map_err(wrong)?;
        let is_proxied = answer.headers().contains_key(GENERATION);
        let (status, body) = (answer.status(), answer.into_body());
        if most == 0 {
            let rest = Limited::new(body, MAX_REST).collect();
            let rest = tokio::time::timeout(REST, rest).await;
            return Ok(FrontendResponse {
                status,
                body: Bytes::new(),
                is_proxied,
                is_whole: matches!(rest, Ok(Ok(_))),
            });
        }
        let body = Limited::new(body, most).collect().await;
        Ok(FrontendResponse {
            status,
            body: body.map_err(Error::Http)?.to_bytes(),
            is_proxied,
            is_whole: true,
        })
    }
}
