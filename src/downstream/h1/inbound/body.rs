//! Reads the beginning of a request's body, and small bodies in full.

use std::sync::Arc;
use std::task::{Poll, Waker, ready};
use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::Inbound;
use super::payload::{self, Payload};
use crate::downstream::body_channel::body_channel;
use crate::downstream::refusal::{BAD_CHUNK, Refusal, SHUTTING_DOWN, SLOW_BODY};
use crate::http1::RequestHead;
use crate::lifecycle::{ProcessPhase, Watch};
use crate::memory::{Buffer, FREE, Purpose};
use crate::proxy::TimedBody;
use crate::request_body::RequestBody;
use crate::transport::deadline::Deadline;
use crate::transport::lend;
use crate::transport::write_timeout::WriteTimeout;

/// A body of at most this size, in bytes, is read in full before anything is sent, so that a single write sends the whole
/// request.
const READ_WHOLE: usize = 64 * 1024;

/// The first part of a body.
enum First {
    /// All bytes that were read, in their own buffer.
    Gathered(Bytes),
    /// A slice of the read buffer.
    Part(BytesMut),
}

impl Inbound {
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
    /// A rejection, or `None` if the client disconnected.
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
            // Nothing reads the body yet.
            sender.data(Waker::noop(), first, &self.memory);
        }
        if ended {
            sender.end(Waker::noop(), trailers);
        }
        self.body_sender = Some(sender);
        Ok(RequestBody::stream(TimedBody::new(
            receiver,
            Arc::clone(&self.body_limit),
        )))
    }

    /// The body of a request that will be rejected. It is only read on demand.
    pub fn unread_body(&mut self, head: &RequestHead) -> RequestBody {
        let (sender, receiver) = body_channel(payload::length(head.framing));
        self.body_sender = Some(sender);
        RequestBody::stream(receiver)
    }

    /// Reads a small body in full, and the part of any other body that has arrived. Stops early if the memory budget has no room.
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
                // Nothing of the request has been forwarded yet, so it need not be completed.
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
                if watch.poll(cx) == ProcessPhase::Ending {
                    return Poll::Ready(Err(Some(SHUTTING_DOWN)));
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
}
