//! Exchanges over HTTP/2 connections to a model server.
//!
//! The future sends the request and waits for the response head; the body reads the stream. One task drives each connection,
//! and another sends the rest of a request while its response arrives.

mod upload;
mod waiting;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::h2::Reason;
use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, StatusCode, Uri, Version, header::HOST};
use http_body::{Body, Frame, SizeHint};
use percent_encoding::{CONTROLS, utf8_percent_encode};

use self::upload::{Task, Upload};
use self::waiting::{NoHead, PendingResponse};
use super::endpoint::InFlight;
use super::h2_link::{self, Answered, Link, Reserved};
use super::kept::Connection;
use super::lifetime::RemainingLifetime;
use super::{Endpoint, Error, Outgoing, UpstreamBody};
use crate::http1::MAX_HEADERS;
use crate::memory::Purpose;
use crate::request_body::{Fault, RequestBody};
use crate::transport::Transport;
use crate::transport::h2::{FIELD_COST, Received, field_list_size, prepare};

/// Sends a request over a new connection and keeps the connection for others.
pub(super) async fn send_over(
    in_flight: InFlight,
    transport: Transport,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Response<UpstreamBody>, Error> {
    let link = h2_link::begin(in_flight.id, transport, in_flight.life, outgoing.memory).await?;
    let sent = over(in_flight, link, outgoing, body).await;
    sent.map_err(Failed::into)
}

/// Sends a request over this connection and no other.
pub(super) async fn send_on(
    in_flight: InFlight,
    reserved: Reserved,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Response<UpstreamBody>, Error> {
    let sent = over(in_flight, reserved.link.clone(), outgoing, body).await;
    sent.map_err(Failed::into)
}

/// Why there is no response.
pub(super) enum Failed {
    /// The server has not begun to process the request, so it may be retried whatever its method is.
    Unprocessed {
        error: ::h2::Error,
        in_flight: InFlight,
        /// `None` if the body cannot be sent again.
        body: Option<RequestBody>,
    },
    Server(::h2::Error),
    /// The server rejected this request.
    Malformed(::h2::Error),
    Client(Fault),
    /// The server has announced that it accepts at most this many bytes of fields. h2 does not check that.
    TooLarge(u32),
    /// The response has too many fields.
    ResponseTooLarge,
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unprocessed { error, .. } | Failed::Server(error) => Self::Http2(error.into()),
            Failed::Malformed(error) => Self::Malformed(error.into()),
            Failed::Client(fault) => Self::RequestBody(std::io::Error::other(fault)),
            Failed::TooLarge(limit) => Self::RequestHeadTooLarge(limit),
            Failed::ResponseTooLarge => Self::HeadTooLarge,
        }
    }
}

/// Whether the server said that it has not begun to process the request. It does so with a GOAWAY that does not include the
/// stream (h2 lets included streams continue) or with REFUSED_STREAM (RFC 9113 §8.7), but not with errors that h2 detected
/// itself. A server that has sent an interim response contradicts itself if it says so.
fn is_unprocessed(error: &::h2::Error, interim: u32) -> bool {
    interim == 0
        && error.is_remote()
        && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM))
}

/// Whether the server reset the stream because the request is malformed (RFC 9113 §8.1.1), or has too many fields, for
/// which Node.js uses ENHANCE_YOUR_CALM. The other codes blame the server, this process or the connection.
fn is_bad_request(error: &::h2::Error) -> bool {
    let reasons = [Reason::PROTOCOL_ERROR, Reason::ENHANCE_YOUR_CALM];
    error.is_remote() && error.is_reset() && error.reason().is_some_and(|it| reasons.contains(&it))
}

/// Sends a request over a connection that has room for it.
pub(super) async fn over(
    mut in_flight: InFlight,
    mut link: Link,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Response<UpstreamBody>, Failed> {
    let (original, view) = (body.for_retry(), body.view());
    let stream = link.stream();
    let sent_before = link.sent();
    let ends = body.is_end_stream();
    let Some(request) = request(&in_flight, outgoing, &body) else {
        return Err(Failed::TooLarge(MAX_TARGET));
    };
    if !link.accepts(|| header_list_size(&request)).await {
        return Err(Failed::TooLarge(link.max_header_list()));
    }
    let (response, stream_out) = match link.sender.send_request(request, ends) {
        Ok(begun) => begun,
        Err(error) => {
            let body = original;
            return Err(Failed::Unprocessed {
                error,
                in_flight,
                body,
            });
        }
    };
    let upload = (!ends).then(|| Upload::new(stream_out, body, link.clone(), outgoing.memory));
    let waiting = PendingResponse::new(response, upload, stream);
    let mut interim = 0;
    let (response, upload, stream) = match waiting.head(&mut interim).await {
        Ok(answered) => answered,
        Err(NoHead::TrailersTooLarge(limit)) => return Err(Failed::TooLarge(limit)),
        Err(NoHead::Http2(error)) => {
            // Nothing was written since the request was queued, so whatever ended the connection, the server has not seen the
            // request.
            let unsent = link.sent() == sent_before;
            return Err(match view.fault() {
                Some(fault) => Failed::Client(fault),
                None if unsent || is_unprocessed(&error, interim) => Failed::Unprocessed {
                    error,
                    in_flight,
                    body: original,
                },
                None if is_bad_request(&error) => Failed::Malformed(error),
                None => Failed::Server(error),
            });
        }
    };
    let (head, received) = response.into_parts();
    if head.headers.len() > MAX_HEADERS {
        return Err(Failed::ResponseTooLarge);
    }
    if let Some(slot) = in_flight.slot.take() {
        let reserved = Reserved::new(link.clone());
        // The link counts its own exchanges.
        slot.put(Connection::Http2(reserved), RemainingLifetime::ENDLESS);
    }
    let (memory, purpose) = (outgoing.memory, Purpose::Answer);
    let incoming = Incoming {
        received: match head.status {
            // RFC 9110 §15.3.5, §15.4.5: these have no content.
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => Received::empty(memory, purpose),
            _ => Received::new(received, link.traffic(), &head.headers, memory, purpose),
        },
        held: Some(HeldUpload {
            upload: upload.map(Upload::continue_in_task),
            stream,
            in_flight,
        }),
    };
    Ok(Response::from_parts(
        head,
        UpstreamBody::Http2(Box::new(incoming)),
    ))
}

/// The resources that an exchange holds while its response arrives.
struct HeldUpload {
    upload: Option<Task>,
    stream: Answered,
    in_flight: InFlight,
}

impl HeldUpload {
    /// The response has ended. A request that has not ended by now is reset.
    fn answered(self) {
        if self.upload.as_ref().is_none_or(Task::is_finished) {
            self.stream.ended();
        }
    }
}

/// The response body over HTTP/2. Dropping it before its end resets the stream, which cancels the request.
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
            self.answered();
        }
        Poll::Ready(frame)
    }

    /// The response has been read to its end.
    fn answered(&mut self) {
        if let Some(held) = self.held.take() {
            held.answered();
        }
    }

    /// Buffers data that has arrived while the reader is stuck.
    pub(super) fn poll_hold(&mut self, cx: &mut Context<'_>) {
        self.received.poll_hold(cx);
    }

    pub(super) fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        self.held.as_ref().map(|held| &*held.in_flight)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.received.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.received.size_hint()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // A reader that knows the end does not have to poll for it.
        if self.received.is_end_stream() {
            self.answered();
        }
    }
}

/// The size of a request's fields, in bytes as RFC 9113 §6.5.2 counts them.
fn header_list_size(request: &Request<()>) -> u64 {
    let uri = request.uri();
    let path = uri.path_and_query().map_or(1, |path| path.as_str().len());
    let authority = uri
        .authority()
        .map_or(0, |authority| authority.as_str().len());
    let scheme = uri.scheme_str().map_or(0, str::len);
    let pseudo = [
        (":method", request.method().as_str().len()),
        (":scheme", scheme),
        (":authority", authority),
        (":path", path),
    ];
    let pseudo = pseudo.map(|(name, value)| name.len() + value);
    let pseudo: usize = pseudo.into_iter().map(|field| field + FIELD_COST).sum();
    pseudo as u64 + field_list_size(request.headers())
}

/// The longest target that a URI can have, in bytes.
const MAX_TARGET: u32 = u16::MAX as u32 - 1;

/// In HTTP/2 the target includes the authority (RFC 9113 §8.3.1). `None` if the target is too long.
fn request(
    in_flight: &InFlight,
    outgoing: Outgoing<'_>,
    body: &RequestBody,
) -> Option<Request<()>> {
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
        .or_else(|| in_flight.address.to_string().parse().ok());
    let mut parts = head.uri.clone().into_parts();
    parts.scheme = Some(if in_flight.server_name.is_some() {
        Scheme::HTTPS
    } else {
        Scheme::HTTP
    });
    parts.authority = authority;
    if let Some(target) = parts.path_and_query {
        parts.path_and_query = Some(in_ascii(target)?);
    }
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    Some(request)
}

/// The target with all octets of other than ASCII characters percent-encoded (RFC 3986 §2.5). HTTP/1.1 clients and servers
/// exchange them raw, but some servers close an HTTP/2 connection at the first. `None` if the result is too long.
fn in_ascii(target: PathAndQuery) -> Option<PathAndQuery> {
    match target.as_str().is_ascii() {
        true => Some(target),
        false => {
            // This set has only control characters, which no target contains.
            let encoded = utf8_percent_encode(target.as_str(), CONTROLS);
            encoded.to_string().parse().ok()
        }
    }
}
