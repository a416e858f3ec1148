//! The reading side of an HTTP/1.1 connection: request heads, and bodies on demand.

mod ahead;
mod payload;
mod timer;

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http::StatusCode;

use super::refusal::{BAD_CHUNK, NO_MEMORY, Refusal, SLOW_BODY};
use crate::downstream::body_channel::{BodySender, Demand, body_channel};
use crate::downstream::limits::Limits;
use crate::http1::{self, RequestHead};
use crate::lifecycle::{Phase, Watch};
use crate::memory::{Budget, Buffer, FREE, Purpose};
use crate::proxy::{BodyLimit, Paced};
use crate::request_body::RequestBody;
use crate::telemetry::Reject;
use crate::transport::deadline::Deadline;
use crate::transport::lend;
use crate::transport::write_timeout::WriteTimeout;
use ahead::Ahead;
use payload::Payload;
use timer::Timer;

/// A body of at most this size, in bytes, is read in full before anything is sent, so that one write carries the whole
/// request.
const READ_WHOLE: usize = 64 * 1024;
/// Maximum number of bytes read ahead of the request that they belong to.
const MAX_AHEAD: usize = FREE;
/// How often to check for a disconnect while nothing is read from the client.
const LOOK: Duration = Duration::from_millis(200);

/// The reading side of a connection.
pub struct Inbound {
    /// Bytes that were read but not used yet.
    read: Ahead,
    memory: Arc<Budget>,
    /// The unread rest of the current body.
    body: Payload,
    body_sender: Option<BodySender>,
    expects_continue: bool,
    timer: Timer,
    body_limit: Arc<BodyLimit>,
    head_timeout: Duration,
    idle_timeout: Duration,
    max_head: usize,
    served: bool,
}

/// The first part of a body.
enum First {
    /// Everything that was read, in its own buffer.
    Gathered(Bytes),
    /// A slice of the read buffer.
    Part(BytesMut),
}

impl Inbound {
    pub fn new(
        first: BytesMut,
        limits: &Limits,
        body_limit: Arc<BodyLimit>,
        memory: &Arc<Budget>,
    ) -> Self {
        Self {
            read: Ahead::new(first, memory),
            memory: Arc::clone(memory),
            body: Payload::None,
            body_sender: None,
            expects_continue: false,
            timer: Timer::new(limits.head_timeout),
            body_limit,
            head_timeout: limits.head_timeout,
            idle_timeout: limits.idle_timeout,
            max_head: limits.max_head,
            served: false,
        }
    }

    /// Reads the next head. `None` means to close the connection without a response.
    pub async fn head(
        &mut self,
        transport: &mut WriteTimeout,
        watch: &mut Watch,
    ) -> Result<Option<RequestHead>, Refusal> {
        // A new connection must send a head at once; one that has served a request may be idle.
        let mut begun = !self.read.bytes.is_empty();
        let patience = if self.served && !begun {
            self.idle_timeout
        } else {
            self.head_timeout
        };
        let mut deadline = Instant::now() + patience;
        std::future::poll_fn(|cx| {
            loop {
                if !self.read.bytes.is_empty() {
                    match self.parse() {
                        Ok(None) => {}
                        other => return Poll::Ready(other),
                    }
                    if !self.read.detach_head() {
                        return Poll::Ready(Err(NO_MEMORY));
                    }
                    if !begun {
                        begun = true;
                        deadline = Instant::now() + self.head_timeout;
                    }
                }
                match transport.poll_read_within(cx, &self.memory) {
                    Poll::Ready(Ok(bytes)) if !bytes.is_empty() => {
                        if self.read.bytes.is_empty() {
                            self.read.take(bytes);
                        } else if !self.read.add(&bytes) {
                            return Poll::Ready(Err(NO_MEMORY));
                        }
                        continue;
                    }
                    Poll::Ready(_) => return Poll::Ready(Ok(None)),
                    Poll::Pending => {}
                }
                // Checked after the read, so that a request that has arrived is served.
                let phase = watch.poll(cx);
                if phase == Phase::Ending || phase == Phase::Draining && !begun {
                    return Poll::Ready(Ok(None));
                }
                ready!(self.timer.poll(cx, deadline));
                if !begun {
                    return Poll::Ready(Ok(None));
                }
                return Poll::Ready(Err(Refusal {
                    status: StatusCode::REQUEST_TIMEOUT,
                    message: "the request head did not come in time",
                    cause: Some(Reject::HeadTimeout),
                }));
            }
        })
        .await
    }

    fn parse(&mut self) -> Result<Option<RequestHead>, Refusal> {
        let head = http1::parse_request(&self.read.bytes)?;
        let length = head
            .as_ref()
            .map_or(self.read.bytes.len(), |head| head.length);
        if length > self.max_head {
            return Err(Refusal {
                status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                message: "the request head is too large",
                cause: Some(Reject::HeadTooLarge),
            });
        }
        if let Some(head) = &head {
            self.read.bytes.advance(head.length);
            self.read.let_go_if_empty();
            self.served = true;
        }
        Ok(head)
    }

    /// The body of the request whose head was read, if that needs no further read: there is no body, or a small one
    /// came with the head. `None` otherwise, or if the memory budget has no room.
    pub fn body_at_once(&mut self, head: &RequestHead) -> Option<RequestBody> {
        self.body_sender = None;
        self.expects_continue = head.expects_continue;
        self.body = Payload::of(head.framing);
        match self.body {
            Payload::None => Some(RequestBody::empty()),
            Payload::Length(length) if length <= self.read.bytes.len().min(READ_WHOLE) as u64 => {
                // Copy it: data that stays for a while must not keep the buffer that all connections share.
                if length <= FREE as u64 {
                    let whole = self.decode().ok()?;
                    return Some(RequestBody::whole(Bytes::copy_from_slice(&whole)));
                }
                let length = usize::try_from(length).ok()?;
                let mut copy = Buffer::new(&self.memory, Purpose::RequestBody, Some(length));
                if !copy.reserve(length) {
                    return None;
                }
                let whole = self.decode().ok()?;
                copy.push(&whole).then(|| RequestBody::whole(copy.freeze()))
            }
            _ => None,
        }
    }

    /// The body of the request whose head was read, if [`Inbound::body_at_once`] has none. A small body is read in
    /// full.
    ///
    /// # Errors
    /// A refusal, or `None` if the client went away.
    pub async fn body(
        &mut self,
        head: &RequestHead,
        transport: &mut WriteTimeout,
        watch: &mut Watch,
    ) -> Result<RequestBody, Option<Refusal>> {
        let length = payload::length(head.framing);
        // A client that waits for `100 Continue` has not sent any of the body yet.
        let first = if head.expects_continue && self.read.bytes.is_empty() {
            First::Gathered(Bytes::new())
        } else {
            self.gather(transport, watch, length.exact()).await?
        };
        let ended = self.is_at_a_head();
        let trailers = self.body.take_trailers();
        let first = match first {
            First::Gathered(bytes) if ended && trailers.is_none() => {
                return Ok(RequestBody::whole(bytes));
            }
            First::Part(bytes) if ended && trailers.is_none() => {
                return Ok(RequestBody::whole(lend(bytes.freeze(), &self.memory)));
            }
            First::Gathered(bytes) => BytesMut::from(bytes),
            First::Part(bytes) => bytes,
        };
        let (sender, receiver) = body_channel(length);
        if !first.is_empty() {
            sender.data(first, &self.memory);
        }
        if ended {
            sender.end(trailers);
        }
        self.body_sender = Some(sender);
        Ok(RequestBody::stream(Paced::new(
            receiver,
            Arc::clone(&self.body_limit),
        )))
    }

    /// The body of a request that will be refused. Nothing of it is read except on demand.
    pub fn unread_body(&mut self, head: &RequestHead) -> RequestBody {
        let (sender, receiver) = body_channel(payload::length(head.framing));
        self.body_sender = Some(sender);
        RequestBody::stream(receiver)
    }

    /// Reads a small body in full, and of any other what has arrived. Stops early if the memory budget has no room.
    async fn gather(
        &mut self,
        transport: &mut WriteTimeout,
        watch: &mut Watch,
        length: Option<u64>,
    ) -> Result<First, Option<Refusal>> {
        let length = length.and_then(|length| usize::try_from(length).ok());
        let small = length.is_some_and(|length| length <= READ_WHOLE);
        let mut gathered = Buffer::new(&self.memory, Purpose::RequestBody, length);
        let mut deadline = Deadline::new(Instant::now() + self.body_limit.limit);
        loop {
            if !self.read.bytes.is_empty() {
                if small && !gathered.reserve(self.read.bytes.len()) {
                    self.read.detach();
                    return Ok(First::Gathered(gathered.freeze()));
                }
                let payload = self.decode()?;
                // Nothing of the request has been sent on yet, so nothing of it needs to be.
                if self.body.is_broken() {
                    return Err(Some(BAD_CHUNK));
                }
                if !small && !payload.is_empty() {
                    return Ok(First::Part(payload));
                }
                // The room was reserved above.
                let _ = gathered.push(&payload);
            }
            if self.is_at_a_head() {
                return Ok(First::Gathered(gathered.freeze()));
            }
            let read = std::future::poll_fn(|cx| {
                if watch.poll(cx) == Phase::Ending {
                    return Poll::Ready(Err(None));
                }
                if let Poll::Ready(read) = transport.poll_read_within(cx, &self.memory) {
                    return Poll::Ready(read.map_err(|_| None));
                }
                loop {
                    ready!(self.timer.poll(cx, deadline.until()));
                    if !deadline.extend(Instant::now()) {
                        return Poll::Ready(Err(Some(SLOW_BODY)));
                    }
                }
            });
            match read.await? {
                bytes if bytes.is_empty() => return Err(None),
                bytes => self.read.take(bytes),
            }
        }
    }

    /// Takes the payload out of the bytes read.
    fn decode(&mut self) -> Result<BytesMut, Refusal> {
        let payload = self.body.split(&mut self.read.bytes);
        self.read.let_go_if_empty();
        payload
    }

    /// Whether the body was read to its end, so that a head comes next.
    pub fn is_at_a_head(&self) -> bool {
        self.body.is_read()
    }

    /// Whether [`Inbound::is_at_a_head`] will be true once the response has been written.
    pub fn will_be_at_a_head(&self) -> bool {
        let comes = self
            .body_sender
            .as_ref()
            .is_some_and(|sender| !sender.is_abandoned());
        self.is_at_a_head() || comes && !self.expects_continue
    }

    /// Records that the response begins: `100 Continue` is no longer required and would come too late (RFC 9110
    /// §10.1.1).
    pub fn answered(&mut self) {
        self.expects_continue = false;
    }

    /// Reads the body on demand, or watches for the client's disconnect.
    pub fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut WriteTimeout,
        pending: &mut Vec<u8>,
    ) -> Poll<Result<(), Option<Refusal>>> {
        if self.is_at_a_head() {
            return self.poll_gone(cx, transport);
        }
        let Some(sender) = &self.body_sender else {
            return Poll::Pending;
        };
        match sender.poll_demand(cx) {
            Poll::Ready(Demand::More) => {}
            Poll::Ready(Demand::Nothing) => return self.poll_gone(cx, transport),
            Poll::Pending => return self.poll_left(cx, transport),
        }
        if std::mem::take(&mut self.expects_continue) {
            pending.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        if self.read.bytes.is_empty() {
            match ready!(transport.poll_read_within(cx, &self.memory)) {
                Ok(bytes) if !bytes.is_empty() => self.read.take(bytes),
                _ => return Poll::Ready(Err(None)),
            }
        }
        let payload = match self.decode() {
            Ok(payload) => payload,
            Err(refusal) => return Poll::Ready(Err(Some(refusal))),
        };
        self.read.account();
        let trailers = self.body.take_trailers();
        let done = self.is_at_a_head();
        if let Some(sender) = &self.body_sender {
            if !payload.is_empty() {
                sender.data(payload, &self.memory);
            }
            if done {
                sender.end(trailers);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Watches for the client's disconnect. Keeps data that arrives meanwhile, up to `MAX_AHEAD`.
    fn poll_gone(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut WriteTimeout,
    ) -> Poll<Result<(), Option<Refusal>>> {
        self.read.detach();
        while self.read.bytes.len() < MAX_AHEAD {
            let most = MAX_AHEAD - self.read.bytes.len();
            match ready!(transport.poll_read_apart(cx, most)) {
                Ok(bytes) if bytes.is_empty() => return Poll::Ready(Err(None)),
                Ok(bytes) if self.read.bytes.is_empty() => self.read.bytes = bytes,
                Ok(bytes) => self.read.bytes.extend_from_slice(&bytes),
                Err(_) => return Poll::Ready(Err(None)),
            }
        }
        self.poll_left(cx, transport)
    }

    /// Watches for the client's disconnect behind unread data, by asking the kernel at intervals.
    fn poll_left(
        &mut self,
        cx: &mut Context<'_>,
        transport: &WriteTimeout,
    ) -> Poll<Result<(), Option<Refusal>>> {
        loop {
            if transport.is_left() {
                return Poll::Ready(Err(None));
            }
            ready!(self.timer.poll_within(cx, LOOK));
        }
    }

    /// Drops the bytes that were read: no further request is served.
    pub fn discard(&mut self) {
        self.read.bytes.clear();
        self.read.let_go_if_empty();
    }

    /// The bytes that were read ahead.
    pub fn into_read(self) -> BytesMut {
        self.read.bytes
    }
}
