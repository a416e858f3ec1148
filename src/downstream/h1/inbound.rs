//! The reading side of an HTTP/1.1 connection: request heads, and bodies on demand.

mod ahead;
mod body;
mod payload;
mod timer;

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use http::StatusCode;

use crate::downstream::body_channel::{BodySender, Demand};
use crate::downstream::limits::Limits;
use crate::downstream::refusal::{NO_MEMORY, Refusal};
use crate::http1::{self, RequestHead};
use crate::lifecycle::{ProcessPhase, Watch};
use crate::memory::{Budget, FREE};
use crate::proxy::{BodyLimit, ProxyContext};
use crate::telemetry::Reject;
use crate::transport::allowance::Allowance;
use crate::transport::write_timeout::WriteTimeout;
use ahead::Ahead;
use payload::Payload;
use timer::Timer;

/// Maximum number of bytes read ahead of the request that they belong to.
const MAX_AHEAD: usize = FREE;
/// How much of a body is read before the thread polls its sockets again, in bytes, and in at most how many reads.
const AT_ONCE: usize = 512 * 1024;
const READS_AT_ONCE: usize = 8;
/// How long the next request may take during a drain if the client was not told that the connection will close.
const NEXT_REQUEST_GRACE: Duration = Duration::from_secs(1);
/// How often to check for a disconnect while nothing is read from the client.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

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
    allowance: Allowance,
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
            allowance: Allowance::default(),
        }
    }

    /// Reads the next head. `None` means to close the connection without a response.
    pub async fn head(
        &mut self,
        context: &Arc<ProxyContext>,
        transport: &mut WriteTimeout,
        watch: &mut Watch,
    ) -> Result<Option<RequestHead>, Refusal> {
        // A new connection must send a head immediately; one that has served a request may be idle.
        let mut begun = !self.read.bytes.is_empty();
        // The last response began before the drain, so it did not announce that the connection would close, and the client may
        // already have sent its next request.
        let is_expected = self.served && watch.phase() == ProcessPhase::Draining;
        let patience = match self.served && !begun {
            true if is_expected => NEXT_REQUEST_GRACE.min(self.idle_timeout),
            true => self.idle_timeout,
            false => self.head_timeout,
        };
        let mut deadline = Instant::now() + patience;
        let mut arriving = None;
        std::future::poll_fn(|cx| {
            loop {
                if !self.read.bytes.is_empty() {
                    match self.parse() {
                        Ok(None) => {}
                        other => return Poll::Ready(other),
                    }
                    arriving.get_or_insert_with(|| context.arrives(false));
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
                let is_idle = !begun && !is_expected;
                if phase == ProcessPhase::Ending || phase == ProcessPhase::Draining && is_idle {
                    return Poll::Ready(Ok(None));
                }
                ready!(self.timer.poll(cx, deadline));
                if !begun {
                    return Poll::Ready(Ok(None));
                }
                return Poll::Ready(Err(Refusal {
                    status: StatusCode::REQUEST_TIMEOUT,
                    message: "the request head did not arrive in time",
                    cause: Some(Reject::HeadTimeout),
                }));
            }
        })
        .await
    }

    /// Whether what was read begins with the method HEAD. Only of use for a head that could not be parsed.
    pub fn begins_with_head_method(&self) -> bool {
        self.read.bytes.trim_ascii_start().starts_with(b"HEAD ")
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

    /// Extracts the payload from the bytes read.
    fn decode(&mut self) -> Result<BytesMut, Refusal> {
        let before = self.read.bytes.len();
        let payload = self.body.split(&mut self.read.bytes);
        let taken = before - self.read.bytes.len();
        self.read.let_go_if_empty();
        let length = payload.as_ref().map_or(0, BytesMut::len);
        let work = http1::decoding_work(taken, length);
        self.allowance.spend(work.max(AT_ONCE / READS_AT_ONCE));
        if !self.body.charge_trailers(&self.memory) {
            return Err(NO_MEMORY);
        }
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
        ready!(self.allowance.poll(cx, AT_ONCE));
        if self.read.bytes.is_empty() {
            match transport.poll_read_within(cx, &self.memory) {
                Poll::Ready(Ok(bytes)) if !bytes.is_empty() => self.read.take(bytes),
                Poll::Ready(_) => return Poll::Ready(Err(None)),
                Poll::Pending => {
                    self.allowance.renew();
                    return Poll::Pending;
                }
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
                sender.data(cx.waker(), payload, &self.memory);
            }
            if done {
                sender.end(cx.waker(), trailers);
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
            if transport.is_peer_closed() {
                return Poll::Ready(Err(None));
            }
            ready!(self.timer.poll_within(cx, CHECK_INTERVAL));
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

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use http_body::Body;
    use prometheus::IntCounter;

    use super::*;
    use crate::transport::allowance::tests::{polls_of_the_sockets, sends_at_once};
    use crate::transport::write_timeout::WriteLimit;

    #[test]
    fn a_client_that_sends_tiny_chunks_lets_the_thread_poll_its_sockets() {
        let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        let head = http1::parse_request(head.as_bytes())
            .expect("valid")
            .expect("whole");
        let limit = Duration::from_secs(60);
        let passed = IntCounter::new("passed", "for a test").expect("a counter");
        let body_limit = Arc::new(BodyLimit {
            limit,
            passed: passed.clone(),
        });
        let write_limit = Arc::new(WriteLimit { limit, passed });
        let mut left = 256 * 1024;
        let mut connection = Some(sends_at_once(b"1\r\nx\r\n".repeat(left)));
        let mut parts = None;
        let polls = polls_of_the_sockets(move |cx| {
            let (inbound, transport, body) = parts.get_or_insert_with(|| {
                let connection = connection.take().expect("taken once").transport();
                let memory = Budget::new(usize::MAX);
                let limits = Limits::default();
                let limit = Arc::clone(&body_limit);
                let mut inbound = Inbound::new(BytesMut::new(), &limits, limit, &memory);
                assert!(inbound.body_at_once(&head).is_none(), "it has not arrived");
                let body = inbound.unread_body(&head);
                (
                    inbound,
                    WriteTimeout::new(connection, Arc::clone(&write_limit)),
                    body,
                )
            });
            // As a connection does whose request is forwarded over HTTP/1.1.
            loop {
                while let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) {
                    let frame = frame.expect("more follows").expect("it is whole");
                    left -= frame.into_data().expect("no trailers").len();
                    if left == 0 {
                        return Poll::Ready(());
                    }
                }
                let polled = ready!(inbound.poll_body(cx, transport, &mut Vec::new()));
                assert!(polled.is_ok(), "the client is there");
            }
        });
        // One for each read buffer.
        assert!(polls >= 20, "{polls}");
    }
}
