//! What a client sends: heads, and bodies as they are asked for.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http::StatusCode;
use http_body::SizeHint;
use tokio::io::AsyncWriteExt;
use tokio::time::Sleep;

use super::super::feed::{Feed, Wish, feed};
use super::super::server::Limits;
use super::refusal::{BAD_CHUNK, Refusal, SLOW_BODY};
use crate::http1::{self, Chunked, Framing, RequestHead};
use crate::lifecycle::{Phase, Watch};
use crate::request_body::RequestBody;
use crate::transport::Transport;

/// A body up to this size is read before anything is sent on, in bytes: one write then carries the whole request.
const READ_WHOLE: usize = 64 * 1024;
/// Most bytes that are read ahead of the request they belong to.
const MAX_AHEAD: usize = 64 * 1024;
/// How often it is asked whether a client that may not send on has left.
const LOOK: Duration = Duration::from_millis(200);
/// What is still read of a client that was given its last answer, so that the answer is not lost to a reset
/// (RFC 9112 §9.6).
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1024 * 1024;

/// The reading side of a connection.
pub struct Inbound {
    /// Read, but not used yet.
    read: BytesMut,
    /// The body at hand, as far as it is still to be read.
    body: Body,
    feed: Option<Feed>,
    expects_continue: bool,
    /// One timer for the life of the connection, moved rather than made anew.
    timer: Pin<Box<Sleep>>,
    head_timeout: Duration,
    idle_timeout: Duration,
    max_head: usize,
    served: bool,
}

enum Body {
    None,
    Length(u64),
    Chunked(Chunked),
}

impl Inbound {
    pub fn new(first: BytesMut, limits: &Limits) -> Self {
        Self {
            read: first,
            body: Body::None,
            feed: None,
            expects_continue: false,
            timer: Box::pin(tokio::time::sleep(limits.head_timeout)),
            head_timeout: limits.head_timeout,
            idle_timeout: limits.idle_timeout,
            max_head: limits.max_head,
            served: false,
        }
    }

    /// The next head; `None` when the connection is to be closed without a word.
    pub async fn head(
        &mut self,
        transport: &mut Transport,
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
                    if !begun {
                        begun = true;
                        // What stays for a while does not stay in the buffer that all connections share.
                        self.read = BytesMut::from(&self.read[..]);
                        deadline = Instant::now() + self.head_timeout;
                    }
                } else if watch.poll(cx) >= Phase::Draining {
                    return Poll::Ready(Ok(None));
                }
                match transport.poll_read_shared(cx) {
                    Poll::Ready(Ok(bytes)) if !bytes.is_empty() => {
                        if self.read.is_empty() {
                            self.read = bytes;
                        } else {
                            self.read.extend_from_slice(&bytes);
                        }
                        continue;
                    }
                    Poll::Ready(_) => return Poll::Ready(Ok(None)),
                    Poll::Pending => {}
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
                let whole = self.decode().ok()?;
                // A copy of its own: what stays for a while does not stay in the buffer that all connections share.
                Some(RequestBody::whole(Bytes::copy_from_slice(&whole)))
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
        transport: &mut Transport,
        watch: &mut Watch,
    ) -> Result<RequestBody, Option<Refusal>> {
        let length = match head.framing {
            Framing::Length(length) => SizeHint::with_exact(length),
            _ => SizeHint::default(),
        };
        // A client that waits for `100 Continue` has nothing to read yet.
        let first = if head.expects_continue && self.read.is_empty() {
            Bytes::new()
        } else {
            self.gather(transport, watch, length.exact()).await?
        };
        if self.is_at_a_head() && self.take_trailers().is_none() {
            return Ok(RequestBody::whole(first));
        }
        let (feed, fed) = feed(length);
        if !first.is_empty() {
            feed.data(first);
        }
        if self.is_at_a_head() {
            feed.end(self.take_trailers());
        }
        self.feed = Some(feed);
        Ok(RequestBody::stream(fed))
    }

    /// Reads a body that is small to its end, and of another one what has come.
    async fn gather(
        &mut self,
        transport: &mut Transport,
        watch: &mut Watch,
        length: Option<u64>,
    ) -> Result<Bytes, Option<Refusal>> {
        let small = length.is_some_and(|length| length <= READ_WHOLE as u64);
        let mut gathered = BytesMut::new();
        loop {
            if !self.read.is_empty() {
                let payload = self.decode()?;
                gathered.extend_from_slice(&payload);
            }
            let enough = !small && !gathered.is_empty() || gathered.len() >= READ_WHOLE;
            if self.is_at_a_head() || enough {
                return Ok(gathered.freeze());
            }
            let deadline = Instant::now() + self.head_timeout;
            let read = std::future::poll_fn(|cx| {
                if watch.poll(cx) == Phase::Ending {
                    return Poll::Ready(Err(None));
                }
                if let Poll::Ready(read) = transport.poll_read_shared(cx) {
                    return Poll::Ready(read.map_err(|_| None));
                }
                ready!(self.poll_timer(cx, deadline));
                Poll::Ready(Err(Some(SLOW_BODY)))
            });
            match read.await? {
                bytes if bytes.is_empty() => return Err(None),
                bytes => self.read = bytes,
            }
        }
    }

    /// Takes the payload out of what was read.
    fn decode(&mut self) -> Result<BytesMut, Option<Refusal>> {
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
        self.is_at_a_head() || self.feed.is_some() && !self.expects_continue
    }

    /// The answer begins: `100 Continue` would come too late, and is not owed any more (RFC 9110 §10.1.1).
    pub fn answered(&mut self) {
        self.expects_continue = false;
    }

    /// Reads what is wanted of the body, or watches for the client's end.
    pub fn poll_feed(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut Transport,
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
            match ready!(transport.poll_read_shared(cx)) {
                Ok(bytes) if !bytes.is_empty() => self.read = bytes,
                _ => return Poll::Ready(Err(None)),
            }
        }
        let payload = match self.decode() {
            Ok(payload) => payload.freeze(),
            Err(refusal) => return Poll::Ready(Err(refusal)),
        };
        let trailers = self.take_trailers();
        let done = self.is_at_a_head();
        if let Some(feed) = &self.feed {
            if !payload.is_empty() {
                feed.data(payload);
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
        transport: &mut Transport,
    ) -> Poll<Result<(), Option<Refusal>>> {
        while self.read.len() < MAX_AHEAD {
            match ready!(transport.poll_read_shared(cx)) {
                Ok(bytes) if !bytes.is_empty() => self.read.extend_from_slice(&bytes),
                _ => return Poll::Ready(Err(None)),
            }
        }
        self.poll_left(cx, transport)
    }

    /// Watches for the client's end behind bytes that are not wanted yet: the kernel is asked, now and then.
    fn poll_left(
        &mut self,
        cx: &mut Context<'_>,
        transport: &Transport,
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

    /// Ends our side and reads on for a moment, so that a client that is still sending gets to read its answer.
    pub async fn linger(&mut self, transport: &mut Transport) {
        let read_on = async {
            transport.shutdown().await?;
            let mut left = LINGER_BYTES;
            while left > 0 {
                let bytes = std::future::poll_fn(|cx| transport.poll_read_shared(cx)).await?;
                if bytes.is_empty() {
                    break;
                }
                left = left.saturating_sub(bytes.len());
            }
            std::io::Result::Ok(())
        };
        let _ = tokio::time::timeout(LINGER, read_on).await;
    }

    /// What was read ahead.
    pub fn into_read(self) -> BytesMut {
        self.read
    }
}
