//! Serves one HTTP/2 client connection: each stream is a task that runs its request through the proxy.

mod connection;
mod head;
mod on_demand;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::h2::server::{Builder, SendResponse};
use ::h2::{Reason, RecvStream};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use self::connection::{OpenStreams, StreamGuard};
use self::on_demand::{ContinueExpected, OnDemand, continue_response, expectation};
use super::limits::Limits;
use super::linger;
use super::refusal::{NO_MEMORY, Refusal};
use crate::lifecycle::{Lifecycle, ProcessPhase, Watch};
use crate::memory::{Budget, Charge, Purpose};
use crate::proxy::{BodyLimit, Client, Cut, OldBackend, Proxy, Rejected, SplitBody, TimedBody};
use crate::request_body::{Fault, RequestBody};
use crate::transport::h2::{
    Broken, CountedTransport, SMALL_FRAMES, Sending, Sent, Spooled, Traffic, head_size, prepare,
    waiting_charge,
};
use crate::transport::reclaimable::Reclaimable;
use crate::transport::write_timeout::{UNREAD, WriteLimit, WriteTimeout};
use crate::transport::{Prefixed, lend};

/// Maximum number of concurrent streams per connection. Clients open another connection beyond it.
const MAX_STREAMS: u32 = 128;
/// How much of a request body a stream accepts before it is read, in bytes (RFC 9113 §6.9.2: the default initial
/// window).
pub(super) const STREAM_WINDOW: u32 = 65_535;
/// The connection window, in bytes. Large enough that unread uploads cannot use it up, so that no upload blocks
/// another.
const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// Maximum number of bytes buffered per stream for a client that does not read.
const SEND_BUFFER: usize = 16 * 1024;
/// Streams that a client may reset before they are accepted (CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 20;
/// Streams that may be reset for protocol errors of the client over the life of a connection.
const MAX_ERRORS: usize = 1024;
/// How long an error event has to be sent before its stream is reset: a reset discards what is still queued.
const BEFORE_RESET: Duration = Duration::from_millis(50);

/// Serves the connection until it ends.
pub async fn run<O: OldBackend>(
    proxy: Proxy<O>,
    client: Arc<Client>,
    limits: Arc<Limits>,
    transport: Prefixed<WriteTimeout>,
    lifecycle: Lifecycle,
) {
    let memory = Arc::clone(&proxy.context().memory);
    let write_limit = Arc::clone(transport.get_ref().limit());
    let (transport, returned) = Reclaimable::new(transport);
    let (transport, traffic) = CountedTransport::new(transport, &memory);
    let counted = Arc::clone(&traffic);
    let handshake = Builder::new()
        .max_concurrent_streams(MAX_STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(SMALL_FRAMES)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(limits.max_head).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(Some(MAX_ERRORS))
        .handshake(transport);
    let open = Arc::<OpenStreams>::default();
    let serve = |mut request: Request<RecvStream>, respond| {
        let admitted = head::admit(&mut request, &memory);
        let (reads, continue_expected) = expectation(request.headers()).unzip();
        let stream = Stream {
            respond,
            write_limit: Arc::clone(&write_limit),
            traffic: Arc::clone(&counted),
            continue_expected,
            guard: open.guard(),
        };
        let (proxy, client, traffic) = (proxy.clone(), Arc::clone(&client), Arc::clone(&counted));
        let answer = answer(
            proxy,
            client,
            traffic,
            lifecycle.watch(),
            request,
            admitted,
            reads,
        );
        tokio::spawn(stream.serve(answer));
    };
    let ended = connection::serve(
        handshake,
        traffic,
        &open,
        (&limits, &write_limit),
        &lifecycle,
        (&memory, &proxy.context().snapshots),
        serve,
    )
    .await;
    match (ended, returned.take()) {
        // The client may not have received all of the last responses. Until then, data from it must not cause a reset.
        (Ok(()), Some(transport)) => {
            Box::pin(linger::linger(
                &mut transport.into_inner(),
                linger::HTTP2_PATIENCE,
            ))
            .await;
        }
        (Ok(()), None) => {}
        (Err(error), _) => tracing::debug!(error, "an HTTP/2 connection of a client ended"),
    }
}

/// The result of waiting for a client to take earlier response heads.
enum HeadRoom {
    Given,
    /// The client has reset the stream.
    Cancelled,
    /// The memory budget has no room for a head that waits.
    NoMemory,
}

/// Sends the response to one request.
struct Stream {
    respond: SendResponse<Bytes>,
    /// How long the client may leave the response unread.
    write_limit: Arc<WriteLimit>,
    /// The traffic of the connection.
    traffic: Arc<Traffic>,
    /// Set while the client may wait for `100 Continue`.
    continue_expected: Option<ContinueExpected>,
    guard: StreamGuard,
}

impl Stream {
    /// Sends the response once there is one, unless the client resets the stream first.
    async fn serve(mut self, answer: impl Future<Output = Response<Streamed>>) {
        let mut answer = std::pin::pin!(answer);
        let answered = std::future::poll_fn(|cx| {
            // First, so that a request that its client has already reset is not sent.
            if self.respond.poll_reset(cx).is_ready() {
                return Poll::Ready(None);
            }
            let answered = answer.as_mut().poll(cx).map(Some);
            if answered.is_pending() {
                self.poll_continue(cx);
            }
            answered
        });
        let Some(response) = answered.await else {
            return self.guard.cancelled();
        };
        let (mut head, body) = response.into_parts();
        prepare(&mut head.headers, &body);
        let ends = body.is_end_stream();
        let memory = Arc::clone(&body.memory);
        match self.room_for(&head.headers, &memory).await {
            HeadRoom::Given => {}
            HeadRoom::Cancelled => return self.guard.cancelled(),
            HeadRoom::NoMemory => {
                let mut body = body.body;
                body.because(NO_MEMORY.message);
                body.not_delivered();
                return self.respond.send_reset(Reason::ENHANCE_YOUR_CALM);
            }
        }
        let response = Response::from_parts(head, ());
        // An error means that the client or its connection is gone.
        let Ok(stream) = self.respond.send_response(response, ends) else {
            return self.respond.send_reset(Reason::INTERNAL_ERROR);
        };
        if !ends {
            let sending = Sending::new(stream, body, Reason::INTERNAL_ERROR);
            let sending = sending.limited_by(&self.traffic, &memory);
            self.send(sending).await;
        }
    }

    /// Waits until the connection takes a response head, which is charged meanwhile.
    async fn room_for(&mut self, fields: &HeaderMap, memory: &Arc<Budget>) -> HeadRoom {
        let size = head_size(fields);
        if self.traffic.takes_head(size) {
            return HeadRoom::Given;
        }
        let Some(_charge) = waiting_charge(fields, memory) else {
            return HeadRoom::NoMemory;
        };
        let mut room = std::pin::pin!(self.traffic.head_room(size));
        std::future::poll_fn(|cx| match self.respond.poll_reset(cx) {
            Poll::Ready(_) => Poll::Ready(HeadRoom::Cancelled),
            Poll::Pending => room.as_mut().poll(cx).map(|()| HeadRoom::Given),
        })
        .await
    }

    /// Sends `100 Continue` once the body of the request is read.
    fn poll_continue(&mut self, cx: &mut Context<'_>) {
        if let Some(continue_expected) = &mut self.continue_expected
            && let Poll::Ready(is_read) = Pin::new(continue_expected).poll(cx)
        {
            self.continue_expected = None;
            if is_read.is_ok() {
                // An error means that the client or its connection is gone.
                let _ = self.respond.send_informational(continue_response());
            }
        }
    }

    /// Sends the body. Gives up if the client leaves the flow-control window of the stream or the connection closed for
    /// too long.
    async fn send(self, mut sending: Sending<Streamed>) {
        let mut stalled: Option<(u64, Pin<Box<Sleep>>)> = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(sent) = sending.poll(cx) {
                if let Sent::Cancelled = sent {
                    if sending.is_blocked() {
                        sending.body_mut().body.not_delivered();
                    }
                    if self.traffic.is_timed_out() {
                        sending.body_mut().body.because(UNREAD);
                    }
                    self.guard.cancelled();
                }
                return Poll::Ready(());
            }
            if !sending.is_blocked() {
                stalled = None;
                return Poll::Pending;
            }
            // Keep sending the request: a client may send all of it before it reads the response.
            sending.body_mut().body.poll_unread(cx);
            let sent = sending.sent();
            let since = stalled.take().filter(|(at, _)| *at == sent);
            let limit = self.write_limit.limit;
            let begin = || (sent, Box::pin(tokio::time::sleep(limit)));
            let (_, timer) = stalled.insert(since.unwrap_or_else(begin));
            std::task::ready!(timer.as_mut().poll(cx));
            while self.traffic.is_blocked() {
                // The write timeout of the connection applies.
                timer.as_mut().reset(tokio::time::Instant::now() + limit);
                std::task::ready!(timer.as_mut().poll(cx));
            }
            self.write_limit.passed.inc();
            let body = &mut sending.body_mut().body;
            body.because(UNREAD);
            body.not_delivered();
            sending.reset(Reason::CANCEL);
            Poll::Ready(())
        })
        .await;
    }
}

async fn answer<O: OldBackend>(
    proxy: Proxy<O>,
    client: Arc<Client>,
    traffic: Arc<Traffic>,
    mut watch: Watch,
    request: Request<RecvStream>,
    admitted: Result<Charge, Refusal>,
    reads: Option<oneshot::Sender<()>>,
) -> Response<Streamed> {
    let memory = Arc::clone(&proxy.context().memory);
    let is_head = request.method() == Method::HEAD;
    let mut answer = match admitted {
        Ok(charge) => {
            // The proxy charges the head itself, in its first poll.
            drop(charge);
            let limit = proxy.context().body_limit();
            let request = with_body(request, traffic, reads, limit, &memory);
            // Boxed: the future is large, and this task would otherwise keep room for it as long as the stream lives.
            let mut handled = Box::pin(proxy.handle(request, Some(client), None));
            std::future::poll_fn(|cx| {
                // Wakes this task when the process ends, so that `handled` notices.
                watch.poll(cx);
                handled.as_mut().poll(cx)
            })
            .await
        }
        Err(refusal) => {
            if let Some(cause) = refusal.cause {
                proxy.context().metrics.rejected(cause);
            }
            let head = (request.method(), request.uri(), request.headers());
            let rejected = Rejected::unrouted(&client, Some(head), Instant::now());
            let mut answer = refusal.answer();
            rejected.answered_with(&mut answer, refusal.message);
            answer.map(SplitBody::own)
        }
    };
    if is_head {
        answer.body_mut().omit_content();
    }
    answer.map(|body| Streamed {
        body,
        memory: Arc::clone(&memory),
        watch,
        cut: None,
    })
}

/// Converts the request. Its body is complete only if its stream ends cleanly, and is subject to the body timeout.
fn with_body(
    request: Request<RecvStream>,
    traffic: Arc<Traffic>,
    reads: Option<oneshot::Sender<()>>,
    limit: Arc<BodyLimit>,
    memory: &Arc<Budget>,
) -> Request<RequestBody> {
    let (head, stream) = request.into_parts();
    let body = Spooled::new(stream, traffic, &head.headers, memory, Purpose::RequestBody);
    let body = body.map_err(|error| match error {
        Broken::NoMemory => Fault::NoMemory,
        Broken::Trailers => Fault::Broken,
        // RFC 9113 §5.1: a stream whose request breaks off is closed, in both directions.
        Broken::Stream(_) => Fault::Gone,
    });
    let body = match reads {
        Some(reads) => RequestBody::stream(TimedBody::new(OnDemand::new(body, reads), limit)),
        None => RequestBody::stream(TimedBody::new(body, limit)),
    };
    Request::from_parts(head, body)
}

/// A response body over HTTP/2. Interrupts the response when the process ends, and delays the reset after a cut.
struct Streamed {
    body: SplitBody,
    memory: Arc<Budget>,
    watch: Watch,
    cut: Option<(Cut, Pin<Box<Sleep>>)>,
}

impl Streamed {
    /// Charges a frame that the connection queues until the client takes it.
    fn queued(&self, frame: Frame<Bytes>) -> Frame<Bytes> {
        frame.map_data(|data| lend(data, &self.memory))
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = self.get_mut();
        if this.watch.poll(cx) == ProcessPhase::Ending {
            this.body.interrupt();
        }
        if this.cut.is_none() {
            match std::task::ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Err(cut)) => {
                    let pause = Box::pin(tokio::time::sleep(BEFORE_RESET));
                    this.cut = Some((cut, pause));
                }
                frame => {
                    return Poll::Ready(frame.map(|frame| frame.map(|frame| this.queued(frame))));
                }
            }
        }
        if let Some((_, pause)) = &mut this.cut {
            std::task::ready!(pause.as_mut().poll(cx));
        }
        Poll::Ready(this.cut.take().map(|(cut, _)| Err(cut)))
    }

    fn is_end_stream(&self) -> bool {
        self.cut.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
