//! Exchanges over HTTP/2 connections to a model server: hyper's client, a few connections per thread and endpoint.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri, header::HOST};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use super::endpoint::Lease;
use super::lifetime::Life;
use super::pool::Connector;
use super::{Error, Outgoing, UpstreamBody};
use crate::request_body::{Fault, RequestBody};
use crate::transport::Transport;

/// Streams that a connection carries before another one is opened. Dynamo's frontends allow 200.
const MAX_STREAMS: usize = 100;
/// Flow-control windows, in bytes: small enough that a slow reader holds little (RFC 9113 §6.9).
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// A connection, and the count of its streams.
#[derive(Clone)]
struct Link {
    sender: SendRequest<RequestBody>,
    streams: Arc<()>,
    life: Life,
}

thread_local! {
    static LINKS: RefCell<HashMap<u64, Vec<Link>>> = RefCell::new(HashMap::new());
}

fn existing(endpoint: u64) -> Option<Link> {
    LINKS.with_borrow_mut(|links| {
        let links = links.get_mut(&endpoint)?;
        links.retain(|link| !link.sender.is_closed());
        let has_room = |link: &Link| Arc::strong_count(&link.streams) <= MAX_STREAMS;
        let at = links.iter().position(has_room)?;
        // One that has carried enough is let go: it ends with the last of its streams.
        match links[at].life.spend() {
            true => Some(links[at].clone()),
            false => Some(links.swap_remove(at)),
        }
    })
}

/// Sends over a connection that this thread has, or over a new one.
pub(super) async fn send(
    mut lease: Lease,
    connector: &Connector<'_>,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Response<UpstreamBody>, Error> {
    if let Some(link) = existing(lease.id) {
        match over(lease, link, outgoing, body).await {
            // The server never took it up: a new connection is tried.
            Err((Failed::Server(error), mut lease, body)) if is_unprocessed(&error) => {
                let Some(body) = body.again() else {
                    return Err(Error::Http2(error));
                };
                let (transport, _, life) = connector.connect().await?;
                lease.life = life;
                return send_over(lease, transport, outgoing, body).await;
            }
            other => return other.map_err(|(failed, ..)| failed.into()),
        }
    }
    let (transport, _, life) = connector.connect().await?;
    lease.life = life;
    send_over(lease, transport, outgoing, body).await
}

/// Sends over a new connection and keeps it for others.
pub(super) async fn send_over(
    lease: Lease,
    transport: Transport,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Response<UpstreamBody>, Error> {
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(std::time::Duration::from_secs(30))
        .handshake(TokioIo::new(transport))
        .await
        .map_err(Error::Http2)?;
    // Supervised by its streams: they see the error that ends it.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an HTTP/2 connection to a model server ended");
        }
    });
    let mut life = lease.life;
    let link = Link {
        sender,
        streams: Arc::new(()),
        life,
    };
    if life.spend() {
        LINKS.with_borrow_mut(|links| links.entry(lease.id).or_default().push(link.clone()));
    }
    over(lease, link, outgoing, body)
        .await
        .map_err(|(failed, ..)| failed.into())
}

/// Whose fault it was that there is no answer.
enum Failed {
    Server(hyper::Error),
    Client(Fault),
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Server(error) => Self::Http2(error),
            Failed::Client(fault) => Self::RequestBody(std::io::Error::other(fault)),
        }
    }
}

/// Does the error mean that the server has not begun with the request (RFC 9113 §8.7)?
fn is_unprocessed(error: &hyper::Error) -> bool {
    let reset =
        std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    error.is_canceled()
        || error.is_closed()
        || reset.is_some_and(|reset| {
            reset.reason() == Some(h2::Reason::REFUSED_STREAM) || reset.is_go_away()
        })
}

async fn over(
    lease: Lease,
    mut link: Link,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Response<UpstreamBody>, (Failed, Lease, RequestBody)> {
    let original = body.again();
    let view = body.view();
    let request = request(&lease, outgoing, body);
    let sent = match link.sender.ready().await {
        Ok(()) => link.sender.send_request(request).await,
        Err(error) => Err(error),
    };
    let (head, incoming) = match sent {
        Ok(response) => response.into_parts(),
        Err(error) => {
            let failed = match view.fault() {
                Some(fault) => Failed::Client(fault),
                None => Failed::Server(error),
            };
            return Err((failed, lease, original.unwrap_or(RequestBody::empty())));
        }
    };
    Ok(Response::from_parts(
        head,
        UpstreamBody::Http2 {
            incoming,
            lease,
            stream: Stream(link.streams),
        },
    ))
}

/// A stream, counted at its connection while it lives.
pub struct Stream(#[allow(dead_code)] Arc<()>);

/// HTTP/2 names the authority in the target (RFC 9113 §8.3.1).
fn request(lease: &Lease, outgoing: Outgoing<'_>, body: RequestBody) -> Request<RequestBody> {
    let head = outgoing.head;
    let mut request = Request::new(body);
    *request.method_mut() = head.method.clone();
    *request.headers_mut() = head.fields();
    if let Some((name, value)) = outgoing.extra {
        request.headers_mut().insert(name.clone(), value.clone());
    }
    let host = request.headers_mut().remove(HOST);
    let authority = host
        .and_then(|host| Authority::try_from(host.as_bytes()).ok())
        .or_else(|| lease.address.to_string().parse().ok());
    let mut parts = head.uri.clone().into_parts();
    parts.scheme = Some(if lease.server_name.is_some() {
        Scheme::HTTPS
    } else {
        Scheme::HTTP
    });
    parts.authority = authority;
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

/// Forgets connections that have ended or are too old. Call it now and then on each thread.
pub(super) fn sweep(now: Instant) {
    LINKS.with_borrow_mut(|links| {
        links.retain(|_, links| {
            links.retain(|link| !link.sender.is_closed() && !link.life.is_over(now));
            !links.is_empty()
        });
    });
}
