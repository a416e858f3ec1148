//! One exchange over an HTTP/1.1 connection to a model server.
//!
//! The future writes the request and reads the response head. After that the body reads the connection itself, in the task that
//! polls the body, and returns the connection to the idle pool at its end. The connection is never half-closed: model servers
//! treat that as a disconnect.

mod incoming;
mod sender;
mod unread;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{HOST, UPGRADE};
use http::{HeaderMap, Response, StatusCode};
use http_body::Body;

use super::endpoint::InFlight;
use super::{AnsweredBy, Error, Outgoing, UpstreamBody};
use crate::http1::{self, Framing, ResponseHead};
use crate::memory::{Budget, Charge, Purpose, holding_cost};
use crate::request_body::RequestBody;
use crate::transport::{Prefixed, Transport, batching, with_write_buffer};
pub use incoming::Incoming;
use sender::Sender;
use unread::Unread;

/// Maximum size of a response head, in bytes, including the interim heads before it. This stops a server that sends interim
/// responses forever.
const MAX_HEAD: usize = 64 * 1024;
/// Reads of a response head before the task yields.
const READS_AT_ONCE: u32 = 8;
/// A complete body up to this size, in bytes, is sent in one write with its head.
const ONE_WRITE: usize = 16 * 1024;
/// How long a model server may leave `Expect: 100-continue` unanswered before the body is sent anyway.
const CONTINUE_WAIT: Duration = Duration::from_secs(1);

/// Sends a request over `transport` and reads the response head. `used` tells whether the connection has served an exchange
/// before.
///
/// # Errors
/// The error, with the exchange in flight and the body, so that the caller can retry over a new connection.
pub(super) async fn exchange(
    in_flight: InFlight,
    mut transport: Transport,
    used: bool,
    outgoing: Outgoing<'_>,
    body: RequestBody,
) -> Result<Response<UpstreamBody>, (Error, InFlight, RequestBody)> {
    let original = body.for_retry();
    let waits = outgoing.head.expects_continue && body.is_untouched() && !body.is_end_stream();
    let unread = Unread::before(&transport);
    let mut sender = begin(&transport, outgoing, in_flight.address, body, waits);
    let outcome = drive(&mut transport, used, &mut sender, &unread, outgoing).await;
    let (head, rest) = match outcome {
        Ok(found) => found,
        Err(error) => {
            let body = original.or(sender.into_rest());
            return Err((error, in_flight, body.unwrap_or(RequestBody::empty())));
        }
    };
    // RFC 9110 §7.8, §15.2.2: a server must not switch to a protocol that was not requested, nor before the request is complete.
    // The rest of the request would be read as the new protocol.
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let error = match switches_as_requested(&outgoing.head.headers, &head.headers) {
            false => Some(Error::Head(http1::ResponseError::Malformed)),
            true => (!sender.is_done()).then_some(Error::SwitchedEarly),
        };
        if let Some(error) = error {
            return Err((error, in_flight, RequestBody::empty()));
        }
    }
    Ok(respond(
        in_flight,
        transport,
        sender,
        (head, rest),
        outgoing.memory,
    ))
}

/// Whether a `101` names the new protocol, or several on top of each other, and the request asked for each of them.
fn switches_as_requested(request: &HeaderMap, response: &HeaderMap) -> bool {
    let is_requested = |protocol: &str| {
        http1::list_members(request, &UPGRADE).any(|offered| offered.eq_ignore_ascii_case(protocol))
    };
    let mut protocols = http1::list_members(response, &UPGRADE).peekable();
    protocols.peek().is_some() && protocols.all(is_requested)
}

/// Composes the head, plus the body if it is small, and writes what the socket accepts. If the client waits for `100 Continue`,
/// the body is held back.
fn begin(
    transport: &Transport,
    outgoing: Outgoing<'_>,
    address: SocketAddr,
    body: RequestBody,
    waits: bool,
) -> Sender {
    let framing = match body.size_hint().exact() {
        Some(0) => Framing::None,
        Some(length) => Framing::Length(length),
        None => Framing::Chunked,
    };
    let whole = body
        .as_whole()
        .filter(|bytes| bytes.len() <= ONE_WRITE && !waits)
        .cloned();
    let (written, first) = with_write_buffer(|out| {
        encode(out, outgoing, address, framing, waits);
        if let Some(bytes) = &whole {
            out.extend_from_slice(bytes);
        }
        // The next write returns the same error, which is handled there.
        let written = transport.try_write(out).unwrap_or(0);
        let rest = out.get(written..);
        (written, rest.map_or(Bytes::new(), Bytes::copy_from_slice))
    });
    let rest = (whole.is_none() && !body.is_end_stream()).then_some(body);
    Sender::new(written, first, rest, framing, waits)
}

fn encode(
    out: &mut Vec<u8>,
    outgoing: Outgoing<'_>,
    address: SocketAddr,
    framing: Framing,
    waits: bool,
) {
    let Outgoing { head, extra, .. } = outgoing;
    http1::request_line(out, &head.method, &head.uri);
    let mut has_host = false;
    for (name, value) in &head.headers {
        has_host |= name == HOST;
        if extra.is_none_or(|(extra, _)| extra != name) {
            http1::field(out, name, value.as_bytes());
        }
    }
    if !has_host {
        // HTTP/1.0 clients may omit Host, but HTTP/1.1 requires it (RFC 9112 §3.2).
        http1::field(out, &HOST, address.to_string().as_bytes());
    }
    head.each_added(|name, value| http1::field(out, &name, value));
    if let Some((name, value)) = extra {
        http1::field(out, name, value.as_bytes());
    }
    http1::request_end(out, &head.method, waits, framing);
}

/// The part of a response head that has been read.
#[derive(Default)]
struct Gathered {
    bytes: BytesMut,
    /// Whether the bytes were moved out of the read buffer that all connections of a thread share.
    apart: bool,
    charge: Charge,
}

impl Gathered {
    fn add(&mut self, bytes: BytesMut, memory: &Arc<Budget>) -> Result<(), Error> {
        if self.bytes.is_empty() {
            self.bytes = bytes;
            self.apart = false;
            return Ok(());
        }
        let length = self.bytes.len() + bytes.len();
        if length > self.bytes.capacity() {
            let capacity = length.max(self.bytes.capacity() * 2);
            self.charge(capacity, memory)?;
        }
        self.bytes.extend_from_slice(&bytes);
        Ok(())
    }

    /// Moves the bytes out of the shared read buffer and charges them, because they will be held for a while.
    fn keep(&mut self, memory: &Arc<Budget>) -> Result<(), Error> {
        if !self.apart {
            self.bytes = BytesMut::from(&self.bytes[..]);
            self.apart = true;
        }
        self.charge(self.bytes.capacity(), memory)
    }

    fn charge(&mut self, capacity: usize, memory: &Arc<Budget>) -> Result<(), Error> {
        let wanted = holding_cost(capacity);
        match self.charge.overdraw(memory, wanted, Purpose::Head) {
            true => Ok(()),
            false => Err(Error::NoMemory),
        }
    }
}

/// Writes the request and reads until the response head is complete.
async fn drive(
    transport: &mut Transport,
    used: bool,
    sender: &mut Sender,
    unread: &Unread,
    outgoing: Outgoing<'_>,
) -> Result<(ResponseHead, BytesMut), Error> {
    let patience = sender.is_held().then(|| tokio::time::sleep(CONTINUE_WAIT));
    let mut patience = std::pin::pin!(patience);
    let method = &outgoing.head.method;
    let mut gathered = Gathered::default();
    // Total length of the interim heads so far.
    let mut passed = 0;
    std::future::poll_fn(|cx| {
        let mut reads = 0;
        loop {
            let _ = sender.poll(transport, cx);
            if sender.is_abandoned() {
                let error = sender.error().unwrap_or(io::ErrorKind::Other.into());
                return Poll::Ready(Err(Error::RequestBody(error)));
            }
            if let Some(wait) = patience.as_mut().as_pin_mut()
                && wait.poll(cx).is_ready()
            {
                patience.set(None);
                sender.release_body();
                continue;
            }
            if reads == READS_AT_ONCE {
                batching::wake_after_poll(cx);
                return Poll::Pending;
            }
            reads += 1;
            let is_first = passed == 0 && gathered.bytes.is_empty();
            let bytes = match ready!(transport.poll_read_within(cx, outgoing.memory)) {
                Ok(bytes) if bytes.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
                // Sent before the server got the request, so it can only belong to the previous response: either the client of
                // that exchange caused it, or the server is broken.
                Ok(_) if used && is_first && unread.is_certain(transport, sender.written()) => {
                    Err(io::ErrorKind::InvalidData.into())
                }
                other => other,
            };
            let bytes = bytes.map_err(|error| match is_first {
                true => broken_before_response(error, transport, sender, unread),
                false => Error::BrokenInHead(sender.error().unwrap_or(error)),
            })?;
            gathered.add(bytes, outgoing.memory)?;
            while let Some(head) =
                http1::parse_response(&gathered.bytes, method).map_err(Error::Head)?
            {
                let rest = gathered.bytes.split_off(head.length);
                passed += head.length;
                if passed > MAX_HEAD {
                    return Poll::Ready(Err(Error::HeadTooLarge));
                }
                let interim = head.status.is_informational()
                    && head.status != StatusCode::SWITCHING_PROTOCOLS;
                if !interim {
                    return Poll::Ready(Ok((head, rest)));
                }
                gathered.bytes = rest;
                if head.status == StatusCode::CONTINUE {
                    patience.set(None);
                    sender.release_body();
                }
                if gathered.bytes.is_empty() {
                    break;
                }
            }
            if passed + gathered.bytes.len() > MAX_HEAD {
                return Poll::Ready(Err(Error::HeadTooLarge));
            }
            gathered.keep(outgoing.memory)?;
        }
    })
    .await
}

/// The error of a connection that broke before the first byte of the response.
fn broken_before_response(
    error: io::Error,
    transport: &Transport,
    sender: &mut Sender,
    unread: &Unread,
) -> Error {
    let has_ended = error.kind() == io::ErrorKind::UnexpectedEof;
    let why = sender.error().unwrap_or(error);
    match has_ended && unread.is_certain(transport, sender.written()) {
        true => Error::Unread(why),
        false => Error::BrokenBeforeResponse(why),
    }
}

fn respond(
    in_flight: InFlight,
    transport: Transport,
    sender: Sender,
    (head, rest): (ResponseHead, BytesMut),
    memory: &Arc<Budget>,
) -> Response<UpstreamBody> {
    let mut response = Response::new(UpstreamBody::empty());
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    let has_body = !matches!(head.framing, Framing::None | Framing::Length(0));
    if !has_body || head.status == StatusCode::SWITCHING_PROTOCOLS {
        let answered_by = AnsweredBy(Arc::clone(&in_flight));
        response.extensions_mut().insert(answered_by);
    }
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let io = Prefixed::new(rest.freeze(), transport);
        response
            .extensions_mut()
            .insert(Upgraded::new(io, in_flight));
        return response;
    }
    let incoming = Incoming::new(
        head.framing,
        head.keep_alive,
        rest,
        transport,
        in_flight,
        sender,
        memory,
    );
    if !incoming.is_end_stream() {
        *response.body_mut() = UpstreamBody::Http1(Box::new(incoming));
    }
    response
}

/// The connection behind `101 Switching Protocols`. It can be taken once.
#[derive(Clone)]
pub struct Upgraded(Arc<Mutex<Option<(Prefixed, InFlight)>>>);

impl Upgraded {
    fn new(io: Prefixed, in_flight: InFlight) -> Self {
        Self(Arc::new(Mutex::new(Some((io, in_flight)))))
    }

    /// The connection, with the exchange in flight, to hold while it is in use.
    #[must_use]
    pub fn take(&self) -> Option<(Prefixed, InFlight)> {
        self.0.lock().ok()?.take()
    }
}
