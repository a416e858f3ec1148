//! Exchanges over HTTP/2 connections to a model server.
//!
//! The future sends the request and waits for the head of its answer; the body reads the stream. A task drives each
//! connection, and another one what is still to be sent of a request while its answer comes.

mod link;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use ::h2::Reason;
use ::h2::client::ResponseFuture;
use bytes::Bytes;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri, Version, header::HOST};
use http_body::{Body, Frame, SizeHint};
use tokio::task::JoinHandle;

pub(super) use self::link::sweep;
use self::link::{Link, Stream};
use super::connect::Connector;
use super::endpoint::Lease;
use super::{Endpoint, Error, Outgoing, UpstreamBody};
use crate::memory::Purpose;
use crate::request_body::{Fault, RequestBody};
use crate::transport::Transport;
use crate::transport::h2::{Received, Sending, Sent, prepare};

/// Most interim answers (1xx) to one request.
const MAX_INTERIM: u32 = 64;

/// Sends over a connection that this thread has, or over a new one.
pub(super) async fn send(
    lease: Lease,
    connector: &Connector<'_>,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Response<UpstreamBody>, Error> {
    let sent = match link::existing(lease.id, !body.is_end_stream()) {
        Some(link) => over(lease, link, outgoing, body).await,
        None => over_new(lease, connector, outgoing, body).await?,
    };
    match sent {
        Err(Failed::Unread { error, lease, body }) => {
            let Some(body) = body.and_then(|body| body.again()) else {
                return Err(Error::Http2(error));
            };
            let sent = over_new(lease, connector, outgoing, body).await?;
            sent.map_err(Failed::into)
        }
        sent => sent.map_err(Failed::into),
    }
}

async fn over_new(
    mut lease: Lease,
    connector: &Connector<'_>,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Result<Response<UpstreamBody>, Failed>, Error> {
    let (transport, _, life) = connector.connect().await?;
    lease.life = life;
    let link = link::begin(lease.id, transport, life, outgoing.memory).await?;
    Ok(over(lease, link, outgoing, body).await)
}

/// Sends over a new connection and keeps it for others.
pub(super) async fn send_over(
    lease: Lease,
    transport: Transport,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Response<UpstreamBody>, Error> {
    let link = link::begin(lease.id, transport, lease.life, outgoing.memory).await?;
    let sent = over(lease, link, outgoing, body).await;
    sent.map_err(Failed::into)
}

/// Why there is no answer.
enum Failed {
    /// The server has not begun with the request, so it may be sent again, whatever it is.
    Unread {
        error: ::h2::Error,
        lease: Lease,
        /// Absent when it cannot be sent again.
        body: Option<RequestBody>,
    },
    Server(::h2::Error),
    Client(Fault),
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unread { error, .. } | Failed::Server(error) => Self::Http2(error),
            Failed::Client(fault) => Self::RequestBody(std::io::Error::other(fault)),
        }
    }
}

/// Does the server say that it has not begun with the request? It does by a GOAWAY that does not include the stream (h2
/// lets those run on that it includes) and by REFUSED_STREAM (RFC 9113 §8.7), not by errors that h2 itself has found.
fn is_unprocessed(error: &::h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM))
}

async fn over(
    lease: Lease,
    mut link: Link,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Response<UpstreamBody>, Failed> {
    let (original, view) = (body.again(), body.view());
    let stream = link.stream();
    let sent_before = link.sent();
    let ends = body.is_end_stream();
    let request = request(&lease, outgoing, &body);
    let (response, stream_out) = match link.sender.send_request(request, ends) {
        Ok(begun) => begun,
        Err(error) => {
            let body = original;
            return Err(Failed::Unread { error, lease, body });
        }
    };
    let mut upload = (!ends).then(|| Upload {
        sending: Sending::new(stream_out, body, Reason::CANCEL),
        link: link.clone(),
        blocked: false,
    });
    let (head, received) = match head(response, &mut upload).await {
        Ok(response) => response.into_parts(),
        Err(error) => {
            // Not one byte went out since: whatever ended the connection, the server knows nothing of the request.
            let unsent = link.sent() == sent_before;
            return Err(match view.fault() {
                Some(fault) => Failed::Client(fault),
                None if unsent || is_unprocessed(&error) => Failed::Unread {
                    error,
                    lease,
                    body: original,
                },
                None => Failed::Server(error),
            });
        }
    };
    let incoming = Incoming {
        received: Received::new(received, &head.headers, outgoing.memory, Purpose::Answer),
        held: Some(HeldUpload {
            _upload: upload.map(Upload::go_on),
            _stream: stream,
            lease,
        }),
    };
    Ok(Response::from_parts(head, UpstreamBody::Http2(incoming)))
}

/// Sends the body until the head of the answer is there.
async fn head(
    mut response: ResponseFuture,
    upload: &mut Option<Upload>,
) -> Result<Response<::h2::RecvStream>, ::h2::Error> {
    let mut interim = 0;
    std::future::poll_fn(|cx| {
        if let Some(sending) = upload
            && let Poll::Ready(sent) = sending.poll(cx)
        {
            *upload = None;
            if let Sent::Broken(_) = sent {
                return Poll::Ready(Err(Reason::CANCEL.into()));
            }
        }
        while let Poll::Ready(Some(Ok(_))) = response.poll_informational(cx) {
            interim += 1;
            if interim > MAX_INTERIM {
                return Poll::Ready(Err(Reason::ENHANCE_YOUR_CALM.into()));
            }
        }
        Pin::new(&mut response).poll(cx)
    })
    .await
}

/// A request's body on its way.
struct Upload {
    sending: Sending<RequestBody>,
    link: Link,
    /// It waits for the server, and is counted so at its connection.
    blocked: bool,
}

impl Upload {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Sent<tower::BoxError>> {
        let polled = self.sending.poll(cx);
        self.is_blocked(polled.is_pending() && self.sending.is_blocked());
        polled
    }

    fn is_blocked(&mut self, blocked: bool) {
        let uploads = &self.link.load.blocked;
        match (std::mem::replace(&mut self.blocked, blocked), blocked) {
            (false, true) => uploads.fetch_add(1, Ordering::Relaxed),
            (true, false) => uploads.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Goes on by itself, so that an answer that is not read does not stop it.
    fn go_on(mut self) -> Task {
        Task(tokio::spawn(async move {
            std::future::poll_fn(|cx| self.poll(cx).map(drop)).await;
        }))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.is_blocked(false);
    }
}

/// A task that ends with whoever wants it.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What an exchange has while its answer comes.
struct HeldUpload {
    _upload: Option<Task>,
    _stream: Stream,
    lease: Lease,
}

/// The body of an answer over HTTP/2. Dropped before its end it resets the stream, which cancels the request.
pub struct Incoming {
    received: Received,
    held: Option<HeldUpload>,
}

impl Incoming {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ::h2::Error>>> {
        let frame = ready!(Pin::new(&mut self.received).poll_frame(cx));
        let frame = frame.map(|frame| frame.map_err(Into::into));
        if frame.is_none() {
            self.held = None;
        }
        Poll::Ready(frame)
    }

    /// Takes in what has come, while its reader can do nothing with it.
    pub(super) fn poll_hold(&mut self, cx: &mut Context<'_>) {
        self.received.poll_hold(cx);
    }

    pub(super) fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        self.held.as_ref().map(|held| &*held.lease)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.received.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.received.size_hint()
    }
}

/// HTTP/2 names the authority in the target (RFC 9113 §8.3.1).
fn request(lease: &Lease, outgoing: Outgoing<'_>, body: &RequestBody) -> Request<()> {
    let head = outgoing.head;
    let mut request = Request::new(());
    *request.version_mut() = Version::HTTP_2;
    *request.method_mut() = head.method.clone();
    *request.headers_mut() = head.fields();
    if let Some((name, value)) = outgoing.extra {
        request.headers_mut().insert(name.clone(), value.clone());
    }
    prepare(request.headers_mut(), body);
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
