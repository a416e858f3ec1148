//! What a client sends: heads, and bodies as they are asked for.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http::StatusCode;
use http_body::SizeHint;
use tokio::time::Sleep;

use super::super::body_timeout::{BodyLimit, Paced};
use super::super::feed::{Feed, Wish, feed};
use super::super::limits::Limits;
use super::refusal::{BAD_CHUNK, NO_MEMORY, Refusal, SLOW_BODY};
use crate::http1::{self, Chunked, Framing, RequestHead};
use crate::lifecycle::{Phase, Watch};
use crate::memory::{Budget, Buffer, Charge, FREE, Purpose, cost};
use crate::request_body::RequestBody;
use crate::transport::deadline::Deadline;
use crate::transport::lend;
use crate::transport::write_timeout::WriteTimeout;

/// A body up to this size is read before anything is sent on, in bytes: one write then carries the whole request.
const READ_WHOLE: usize = 64 * 1024;
/// Most bytes that are read ahead of the request they belong to.
const MAX_AHEAD: usize = FREE;
/// How often it is asked whether a client that may not send on has left.
const LOOK: Duration = Duration::from_millis(200);
/// The reading side of a connection.
pub struct Inbound {
    /// Read, but not used yet.
    read: BytesMut,
    /// It lies in the buffer that all connections share, which it must not do for long.
    shared: bool,
    memory: Arc<Budget>,
    /// For what stays in `read`.
    charge: Charge,
    /// The body at hand, as far as it is still to be read.
    body: Body,
    feed: Option<Feed>,
    expects_continue: bool,
    /// One timer for the life of the connection, moved rather than made anew.
    timer: Pin<Box<Sleep>>,
    body_limit: Arc<BodyLimit>,
    head_timeout: Duration,
    idle_timeout: Duration,
    max_head: usize,
    served: bool,
}

/// What was read of a body at once.
enum First {
    /// As far as it came, in memory of its own.
    Gathered(Bytes),
    /// A slice of the read buffer.
    Part(BytesMut),
}

enum Body {
    None,
    Length(u64),
    Chunked(Chunked),
}

impl Inbound {
    pub fn new(
        first: BytesMut,
        limits: &Limits,
        body_limit: Arc<BodyLimit>,
        memory: &Arc<Budget>,
    ) -> Self {
        Self {
            read: first,
            shared: true,
            memory: Arc::clone(memory),
            charge: Charge::default(),
            body: Body::None,
            feed: None,
            expects_continue: false,
            timer: Box::pin(tokio::time::sleep(limits.head_timeout)),
            body_limit,
            head_timeout: limits.head_timeout,
            idle_timeout: limits.idle_timeout,
            max_head: limits.max_head,
            served: false,
        }
    }

    /// The next head; `None` when the connection is to be closed without a word.
    pub async fn head(
        &mut self,
        transport: &mut WriteTimeout,
        watch: &mut Watch,
    ) -> Result<Option<RequestHead>, Refusal> {
        // A new connection owes a head at once; one that has served may rest.
        let mut begun = !self.read.is_empty();
        let patience = if self.served && !begun {
            self.idle_timeout
        } else {
            self.head_timeout
        };
        let mut deadline = Instant::now() + patience;
        std::future::poll_fn(|cx| {
            loop {
                if !self.read.is_empty() {
                    match self.parse() {
                        Ok(None) => {}
                        other => return Poll::Ready(other),
                    }
                    if self.shared && !self.detach_head() {
                        return Poll::Ready(Err(NO_MEMORY));
                    }
                    if !begun {
                        begun = true;
                        deadline = Instant::now() + self.head_timeout;
                    }
                }
                match transport.poll_read_within(cx, &self.memory) {
                    Poll::Ready(Ok(bytes)) if !bytes.is_empty() => {
                        if self.read.is_empty() {
                            self.take(bytes);
                        } else if !self.add(&bytes) {
                            return Poll::Ready(Err(NO_MEMORY));
                        }
                        continue;
                    }
                    Poll::Ready(_) => return Poll::Ready(Ok(None)),
                    Poll::Pending => {}
                }
                // After the read: what has come is answered.
                let phase = watch.poll(cx);
                if phase == Phase::Ending || phase == Phase::Draining && !begun {
                    return Poll::Ready(Ok(None));
                }
                ready!(self.poll_timer(cx, deadline));
                if !begun {
                    return Poll::Ready(Ok(None));
                }
                return Poll::Ready(Err(Refusal {
                    status: StatusCode::REQUEST_TIMEOUT,
                    message: "the request head did not come in time",
                }));
            }
        })
        .await
    }

    /// Takes what was just read.
    fn take(&mut self, bytes: BytesMut) {
        self.read = bytes;
        self.shared = true;
    }

    /// Moves what was read out of the shared buffer: it will stay for a while.
    fn detach(&mut self) {
        if std::mem::take(&mut self.shared) {
            self.read = BytesMut::from(&self.read[..]);
        }
        self.account();
    }

    /// The same for the beginning of a head. False when the budget has no room for it.
    fn detach_head(&mut self) -> bool {
        if self.read.len() > FREE {
            let wanted = cost(self.read.len());
            if !self.charge.resize(&self.memory, wanted, Purpose::Head) {
                return false;
            }
        }
        self.detach();
        true
    }

    /// Charges what stays.
    fn account(&mut self) {
        let held = match self.read.len() {
            0..=FREE => 0,
            held => cost(held),
        };
        if held != self.charge.bytes() {
            self.charge.force(&self.memory, held);
        }
    }

    /// Adds to what stays. False when the budget has no room for it.
    fn add(&mut self, bytes: &[u8]) -> bool {
        let length = self.read.len() + bytes.len();
        if length > self.read.capacity() {
            // As `BytesMut` grows.
            let capacity = length.max(self.read.capacity() * 2);
            if length > FREE
                && !self
                    .charge
                    .resize(&self.memory, cost(capacity), Purpose::Head)
            {
                return false;
            }
        }
        self.read.extend_from_slice(bytes);
        true
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        loop {
            let armed = self.timer.deadline();
            if armed > deadline.into() || (self.timer.is_elapsed() && Instant::now() < deadline) {
                self.timer.as_mut().reset(deadline.into());
            }
            ready!(self.timer.as_mut().poll(cx));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
        }
    }

    fn parse(&mut self) -> Result<Option<RequestHead>, Refusal> {
        let head = http1::parse_request(&self.read)?;
        let length = head.as_ref().map_or(self.read.len(), |head| head.length);
        if length > self.max_head {
            return Err(Refusal {
                status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                message: "the request head is too large",
            });
        }
        if let Some(head) = &head {
            self.read.advance(head.length);
            self.let_go_if_empty();
            self.served = true;
        }
        Ok(head)
    }

    /// The body of the request whose head was read, where there is none or all of it came with the head.
    pub fn body_at_once(&mut self, head: &RequestHead) -> Option<RequestBody> {
        self.feed = None;
        self.expects_continue = head.expects_continue;
        self.body = match head.framing {
            Framing::Length(length) => Body::Length(length),
            Framing::Chunked => Body::Chunked(Chunked::default()),
            Framing::None | Framing::UntilClose => Body::None,
        };
        match self.body {
            Body::None => Some(RequestBody::empty()),
            Body::Length(length) if length <= self.read.len().min(READ_WHOLE) as u64 => {
                // A copy of its own: what stays for a while does not stay in the buffer that all connections share.
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

    /// The body of the request whose head was read, where [`Inbound::body_at_once`] has none: whole, if it is small.
    ///
    /// # Errors
    /// A refusal, or `None` when the client went away.
    pub async fn body(
        &mut self,
        head: &RequestHead,
        transport: &mut WriteTimeout,
        watch: &mut Watch,
    ) -> Result<RequestBody, Option<Refusal>> {
        let length = length(head);
        // A client that waits for `100 Continue` has nothing to read yet.
        let first = if head.expects_continue && self.read.is_empty() {
            First::Gathered(Bytes::new())
        } else {
            self.gather(transport, watch, length.exact()).await?
        };
        let ended = self.is_at_a_head();
        let trailers = self.take_trailers();
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
        let (feed, fed) = feed(length);
        if !first.is_empty() {
            feed.data(first, &self.memory);
        }
        if ended {
            feed.end(trailers);
        }
        self.feed = Some(feed);
        Ok(RequestBody::stream(Paced::new(
            fed,
            Arc::clone(&self.body_limit),
        )))
    }

    /// The body of a request that will be refused: nothing of it is read unless it is asked for.
    pub fn unread_body(&mut self, head: &RequestHead) -> RequestBody {
        let (feed, fed) = feed(length(head));
        self.feed = Some(feed);
        RequestBody::stream(fed)
    }

    /// Reads a body that is small to its end, and of another one what has come. Less, where the memory budget has no room.
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
            if !self.read.is_empty() {
                if small && !gathered.reserve(self.read.len()) {
                    self.detach();
                    return Ok(First::Gathered(gathered.freeze()));
                }
                let payload = self.decode()?;
                if !small && !payload.is_empty() {
                    return Ok(First::Part(payload));
                }
                // There is room.
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
                    ready!(self.poll_timer(cx, deadline.until()));
                    if !deadline.extend(Instant::now()) {
                        return Poll::Ready(Err(Some(SLOW_BODY)));
                    }
                }
            });
            match read.await? {
                bytes if bytes.is_empty() => return Err(None),
                bytes => self.take(bytes),
            }
        }
    }

    /// Even an empty slice keeps the buffer it lies in.
    fn let_go_if_empty(&mut self) {
        if self.read.is_empty() {
            self.read = BytesMut::new();
            self.charge.shrink(0);
        }
    }

    /// Takes the payload out of what was read.
    fn decode(&mut self) -> Result<BytesMut, Option<Refusal>> {
        let payload = self.split_payload();
        self.let_go_if_empty();
        payload
    }

    fn split_payload(&mut self) -> Result<BytesMut, Option<Refusal>> {
        match &mut self.body {
            Body::None => Ok(BytesMut::new()),
            Body::Length(left) => {
                let here = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(self.read.len());
                *left -= here as u64;
                Ok(self.read.split_to(here))
            }
            Body::Chunked(chunked) => {
                let decoded = chunked
                    .decode(&mut self.read)
                    .map_err(|_| Some(BAD_CHUNK))?;
                let mut payload = self.read.split_to(decoded.consumed);
                payload.truncate(decoded.payload.end);
                payload.advance(decoded.payload.start);
                Ok(payload)
            }
        }
    }

    fn take_trailers(&mut self) -> Option<http::HeaderMap> {
        match &mut self.body {
            Body::Chunked(chunked) => chunked.take_trailers(),
            _ => None,
        }
    }

    /// Is the body read to its end, so that what follows is a head?
    pub fn is_at_a_head(&self) -> bool {
        match &self.body {
            Body::None | Body::Length(0) => true,
            Body::Length(_) => false,
            Body::Chunked(chunked) => chunked.is_done(),
        }
    }

    /// Will it be, by the time the answer has been written?
    pub fn will_be_at_a_head(&self) -> bool {
        let comes = self.feed.as_ref().is_some_and(|feed| !feed.is_abandoned());
        self.is_at_a_head() || comes && !self.expects_continue
    }

    /// The answer begins: `100 Continue` would come too late, and is not owed any more (RFC 9110 §10.1.1).
    pub fn answered(&mut self) {
        self.expects_continue = false;
    }

    /// Reads what is wanted of the body, or watches for the client's end.
    pub fn poll_feed(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut WriteTimeout,
        pending: &mut Vec<u8>,
    ) -> Poll<Result<(), Option<Refusal>>> {
        if self.is_at_a_head() {
            return self.poll_gone(cx, transport);
        }
        let Some(feed) = &self.feed else {
            return Poll::Pending;
        };
        match feed.poll_wish(cx) {
            Poll::Ready(Wish::More) => {}
            Poll::Ready(Wish::Nothing) => return self.poll_gone(cx, transport),
            Poll::Pending => return self.poll_left(cx, transport),
        }
        if std::mem::take(&mut self.expects_continue) {
            pending.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        if self.read.is_empty() {
            match ready!(transport.poll_read_within(cx, &self.memory)) {
                Ok(bytes) if !bytes.is_empty() => self.take(bytes),
                _ => return Poll::Ready(Err(None)),
            }
        }
        let payload = match self.decode() {
            Ok(payload) => payload,
            Err(refusal) => return Poll::Ready(Err(refusal)),
        };
        self.account();
        let trailers = self.take_trailers();
        let done = self.is_at_a_head();
        if let Some(feed) = &self.feed {
            if !payload.is_empty() {
                feed.data(payload, &self.memory);
            }
            if done {
                feed.end(trailers);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Watches for the client's end; what else comes is kept for later, up to a bound.
    fn poll_gone(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut WriteTimeout,
    ) -> Poll<Result<(), Option<Refusal>>> {
        self.detach();
        while self.read.len() < MAX_AHEAD {
            let most = MAX_AHEAD - self.read.len();
            match ready!(transport.poll_read_apart(cx, most)) {
                Ok(bytes) if bytes.is_empty() => return Poll::Ready(Err(None)),
                Ok(bytes) if self.read.is_empty() => self.read = bytes,
                Ok(bytes) => self.read.extend_from_slice(&bytes),
                Err(_) => return Poll::Ready(Err(None)),
            }
        }
        self.poll_left(cx, transport)
    }

    /// Watches for the client's end behind bytes that are not wanted yet: the kernel is asked, now and then.
    fn poll_left(
        &mut self,
        cx: &mut Context<'_>,
        transport: &WriteTimeout,
    ) -> Poll<Result<(), Option<Refusal>>> {
        loop {
            if transport.is_left() {
                return Poll::Ready(Err(None));
            }
            let next = Instant::now() + LOOK;
            if self.timer.is_elapsed() || self.timer.deadline() > next.into() {
                self.timer.as_mut().reset(next.into());
            }
            ready!(self.timer.as_mut().poll(cx));
        }
    }

    /// Lets go of what was read: no more requests are taken from it.
    pub fn discard(&mut self) {
        self.read.clear();
        self.let_go_if_empty();
    }

    /// What was read ahead.
    pub fn into_read(self) -> BytesMut {
        self.read
    }
}

/// What the head says of its body's length.
fn length(head: &RequestHead) -> SizeHint {
    match head.framing {
        Framing::Length(length) => SizeHint::with_exact(length),
        _ => SizeHint::default(),
    }
}
