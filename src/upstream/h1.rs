//! One exchange over an HTTP/1.1 connection to a model server.
//!
//! The future writes the request and reads the head; after it the body reads the connection by itself, in the task of
//! whoever reads the body, and gives the connection back when it has ended. The connection is never half-closed:
//! model servers take that for a disconnect.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http::header::UPGRADE;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::io::AsyncWrite;

use super::endpoint::Lease;
use super::{BodyError, Error, Outgoing, UpstreamBody, idle};
use crate::http1::{self, Chunked, Framing, ResponseHead};
use crate::request_body::RequestBody;
use crate::transport::{Rewound, Transport, with_write_buffer};

/// Largest response head, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// A whole body up to this size goes out in one write with its head, in bytes.
const ONE_WRITE: usize = 16 * 1024;
/// How long a model server may leave `Expect: 100-continue` unanswered before the body is sent all the same.
const CONTINUE_WAIT: Duration = Duration::from_secs(1);

/// What is still to be written of a request.
struct Sender {
    pending: VecDeque<Bytes>,
    body: Option<RequestBody>,
    chunked: bool,
    /// The model server no longer reads. It may still answer, as it does to a body that is too large.
    broken: Option<io::Error>,
    /// The client broke its body off: there is nothing more to send, and no answer to wait for.
    abandoned: bool,
}

impl Sender {
    fn poll(&mut self, transport: &mut Transport, cx: &mut Context<'_>) -> Poll<()> {
        if self.broken.is_some() {
            return Poll::Ready(());
        }
        loop {
            if let Err(error) = ready!(self.poll_flush(transport, cx)) {
                self.broken = Some(error);
                return Poll::Ready(());
            }
            let Some(body) = &mut self.body else {
                return Poll::Ready(());
            };
            match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                Some(Ok(frame)) => self.push(frame),
                Some(Err(error)) => {
                    self.broken = Some(io::Error::other(error));
                    self.abandoned = true;
                    return Poll::Ready(());
                }
                None => {
                    self.body = None;
                    if self.chunked {
                        self.pending.push_back(Bytes::from_static(b"0\r\n\r\n"));
                    }
                }
            }
        }
    }

    fn push(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) if self.chunked => {
                let mut head = Vec::with_capacity(18);
                http1::chunk_head(&mut head, data.len());
                self.pending
                    .extend([head.into(), data, Bytes::from_static(b"\r\n")]);
            }
            Ok(data) => self.pending.push_back(data),
            Err(frame) => {
                if let (true, Ok(trailers)) = (self.chunked, frame.into_trailers()) {
                    let mut last = Vec::new();
                    http1::last_chunk(&mut last, Some(&trailers));
                    self.pending.push_back(last.into());
                    self.body = None;
                }
            }
        }
    }

    fn poll_flush(
        &mut self,
        transport: &mut Transport,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(first) = self.pending.front_mut() {
            let written = ready!(Pin::new(&mut *transport).poll_write(cx, first))?;
            first.advance(written);
            if first.is_empty() {
                self.pending.pop_front();
            }
        }
        match transport {
            Transport::Tcp(_) => Poll::Ready(Ok(())),
            Transport::Tls(_) => Pin::new(transport).poll_flush(cx),
        }
    }

    fn is_done(&self) -> bool {
        self.body.is_none() && self.pending.is_empty() && self.broken.is_none()
    }
}

/// Sends a request over `transport` and reads the head of its answer.
///
/// # Errors
/// What went wrong, with the lease and the body: the caller may try again over a new connection.
pub(super) async fn exchange(
    lease: Lease,
    mut transport: Transport,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Response<UpstreamBody>, (Error, Lease, RequestBody)> {
    let original = body.again();
    let waits = outgoing.head.expects_continue && body.is_untouched() && !body.is_end_stream();
    let (mut sender, held) = begin(&transport, outgoing, body, waits);
    let outcome = drive(&mut transport, &mut sender, held, &outgoing.head.method).await;
    let (head, rest) = match outcome {
        Ok(found) => found,
        Err(error) => {
            let body = original.or(sender.body).unwrap_or(RequestBody::empty());
            return Err((error, lease, body));
        }
    };
    // RFC 9110 §15.2.2: nobody switches protocols unasked.
    if head.status == StatusCode::SWITCHING_PROTOCOLS
        && !outgoing.head.headers.contains_key(UPGRADE)
    {
        let error = Error::Head(http1::ResponseError::Malformed);
        return Err((error, lease, RequestBody::empty()));
    }
    Ok(respond(lease, transport, sender, head, rest))
}

/// Composes the head, with the body where it is small, and writes what the socket takes of it. While the client waits for
/// `100 Continue` the body is held back.
fn begin(
    transport: &Transport,
    outgoing: Outgoing<'_>,
    mut body: RequestBody,
    waits: bool,
) -> (Sender, Option<RequestBody>) {
    let framing = match body.size_hint().exact() {
        Some(0) => Framing::None,
        Some(length) => Framing::Length(length),
        None => Framing::Chunked,
    };
    let whole = body
        .as_whole()
        .filter(|bytes| bytes.len() <= ONE_WRITE && !waits)
        .cloned();
    let first = with_write_buffer(|out| {
        encode(out, outgoing, framing, waits);
        if let Some(bytes) = &whole {
            out.extend_from_slice(bytes);
        }
        // An error comes again with the next write, where it is dealt with.
        let written = transport.try_write(out).unwrap_or(0);
        out.get(written..)
            .map_or(Bytes::new(), Bytes::copy_from_slice)
    });
    let mut sender = Sender {
        pending: (!first.is_empty()).then_some(first).into_iter().collect(),
        body: None,
        chunked: framing == Framing::Chunked,
        broken: None,
        abandoned: false,
    };
    if whole.is_some() {
        body = RequestBody::empty();
    }
    if waits {
        return (sender, Some(body));
    }
    if !body.is_end_stream() {
        sender.body = Some(body);
    }
    (sender, None)
}

fn encode(out: &mut Vec<u8>, outgoing: Outgoing<'_>, framing: Framing, waits: bool) {
    let head = outgoing.head;
    http1::request_head(
        out,
        &head.method,
        &head.uri,
        &head.headers,
        outgoing.extra,
        waits,
        framing,
    );
}

/// Writes and reads until the head of the answer is there.
async fn drive(
    transport: &mut Transport,
    sender: &mut Sender,
    mut held: Option<RequestBody>,
    method: &Method,
) -> Result<(ResponseHead, BytesMut), Error> {
    let patience = held.as_ref().map(|_| tokio::time::sleep(CONTINUE_WAIT));
    let mut patience = std::pin::pin!(patience);
    let mut gathered = BytesMut::new();
    std::future::poll_fn(|cx| {
        loop {
            let _ = sender.poll(transport, cx);
            if sender.abandoned {
                let error = sender.broken.take().unwrap_or(io::ErrorKind::Other.into());
                return Poll::Ready(Err(Error::RequestBody(error)));
            }
            if let Some(wait) = patience.as_mut().as_pin_mut()
                && wait.poll(cx).is_ready()
            {
                patience.set(None);
                sender.body = held.take();
                continue;
            }
            let bytes = match ready!(transport.poll_read_shared(cx)) {
                Ok(bytes) if bytes.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
                other => other,
            };
            let bytes =
                bytes.map_err(|error| Error::Broken(sender.broken.take().unwrap_or(error)))?;
            if gathered.is_empty() {
                gathered = bytes;
            } else {
                gathered.extend_from_slice(&bytes);
            }
            while let Some(head) = http1::parse_response(&gathered, method).map_err(Error::Head)? {
                let rest = gathered.split_off(head.length);
                let interim = head.status.is_informational()
                    && head.status != StatusCode::SWITCHING_PROTOCOLS;
                if !interim {
                    return Poll::Ready(Ok((head, rest)));
                }
                gathered = rest;
                if head.status == StatusCode::CONTINUE && held.is_some() {
                    patience.set(None);
                    sender.body = held.take();
                }
                if gathered.is_empty() {
                    break;
                }
            }
            if gathered.len() > MAX_HEAD {
                return Poll::Ready(Err(Error::HeadTooLarge));
            }
        }
    })
    .await
}

fn respond(
    lease: Lease,
    transport: Transport,
    sender: Sender,
    head: ResponseHead,
    rest: BytesMut,
) -> Response<UpstreamBody> {
    let mut response = Response::new(UpstreamBody::empty());
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let io = Rewound::new(rest.freeze(), transport);
        response.extensions_mut().insert(Upgraded::new(io, lease));
        return response;
    }
    let mut incoming = Incoming {
        keep_alive: head.keep_alive,
        until_close: head.framing == Framing::UntilClose,
        framing: match head.framing {
            Framing::None => Reading::Done,
            Framing::Length(left) => Reading::Length(left),
            Framing::Chunked => Reading::Chunked(Chunked::default()),
            Framing::UntilClose => Reading::UntilClose,
        },
        rest,
        trailers: None,
        link: Some(Link { transport, lease }),
        sender: (!sender.is_done()).then(|| Box::new(sender)),
    };
    if matches!(incoming.framing, Reading::Done) {
        incoming.release();
    } else {
        *response.body_mut() = UpstreamBody::Http1(incoming);
    }
    response
}

struct Link {
    transport: Transport,
    lease: Lease,
}

#[derive(Debug)]
enum Reading {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    Done,
}

/// The body of an answer over HTTP/1.1. Dropped before its end it closes the connection, which cancels the request.
pub struct Incoming {
    framing: Reading,
    /// What was read together with the head.
    rest: BytesMut,
    trailers: Option<Box<HeaderMap>>,
    keep_alive: bool,
    until_close: bool,
    link: Option<Link>,
    /// What is still to be sent of the request while the answer is coming.
    sender: Option<Box<Sender>>,
}

impl Incoming {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if let Some(trailers) = self.trailers.take() {
                return Poll::Ready(Some(Ok(Frame::trailers(*trailers))));
            }
            let Some(link) = &mut self.link else {
                return Poll::Ready(None);
            };
            if let Some(sender) = &mut self.sender
                && sender.poll(&mut link.transport, cx).is_ready()
            {
                self.keep_alive &= sender.is_done();
                self.sender = None;
            }
            let bytes = if self.rest.is_empty() {
                ready!(link.transport.poll_read_shared(cx)).map_err(BodyError::Broken)
            } else {
                Ok(std::mem::take(&mut self.rest))
            };
            match bytes.and_then(|bytes| self.take_in(bytes)) {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(error) => {
                    self.link = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    /// What of `bytes` is payload. Ends the body, and gives the connection back, when it is complete.
    fn take_in(&mut self, mut bytes: BytesMut) -> Result<Bytes, BodyError> {
        let eof = bytes.is_empty();
        let surplus = match &mut self.framing {
            Reading::UntilClose if eof => {
                self.framing = Reading::Done;
                false
            }
            _ if eof => return Err(BodyError::Broken(io::ErrorKind::UnexpectedEof.into())),
            Reading::Length(left) => {
                let here = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                let surplus = here < bytes.len();
                bytes.truncate(here);
                *left -= here as u64;
                if *left == 0 {
                    self.framing = Reading::Done;
                }
                surplus
            }
            Reading::Chunked(chunked) => {
                let decoded = chunked.decode(&mut bytes).map_err(BodyError::Malformed)?;
                let surplus = decoded.consumed < bytes.len();
                bytes.truncate(decoded.payload.end);
                bytes.advance(decoded.payload.start);
                if chunked.is_done() {
                    self.trailers = chunked.take_trailers().map(Box::new);
                    self.framing = Reading::Done;
                }
                surplus
            }
            Reading::UntilClose | Reading::Done => false,
        };
        // Bytes behind the end are nobody's answer: such a connection is not used again.
        self.keep_alive &= !surplus;
        if matches!(self.framing, Reading::Done) {
            self.release();
        }
        Ok(bytes.freeze())
    }

    /// Gives the connection back if it may carry another request, and ends the lease.
    fn release(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.keep_alive &= sender.is_done();
        }
        if let Some(link) = self.link.take()
            && self.keep_alive
            && self.rest.is_empty()
        {
            idle::put(&link.lease, link.transport, Instant::now());
        }
    }

    pub(super) fn ends_with_connection(&self) -> bool {
        self.until_close
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.link.is_none() && self.trailers.is_none()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match &self.framing {
            Reading::Length(left) => SizeHint::with_exact(*left),
            Reading::Done => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}

/// The connection behind `101 Switching Protocols`, to be taken once.
#[derive(Clone)]
pub struct Upgraded(Arc<Mutex<Option<(Rewound, Lease)>>>);

impl Upgraded {
    fn new(io: Rewound, lease: Lease) -> Self {
        Self(Arc::new(Mutex::new(Some((io, lease)))))
    }

    /// The connection, with the lease to hold while it is in use.
    #[must_use]
    pub fn take(&self) -> Option<(Rewound, Lease)> {
        self.0.lock().ok()?.take()
    }
}
