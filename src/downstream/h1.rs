//! One HTTP/1.1 connection of a client: heads are read and judged, requests answered one after the other, answers written
//! as their bodies come. The one task of the connection does all of it, down to reading the model server's socket.

mod inbound;
mod linger;
mod outbound;
mod refusal;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode, Version};
use tokio::io::AsyncWriteExt;

use super::limits::Limits;
use crate::http1::RequestHead;
use crate::lifecycle::{Phase, Watch};
use crate::proxy::{
    Client, OldBackend, Permit, Proxy, ProxyContext, SplitBody, Tunnel, TunnelIdle, error_answer,
    prefetch,
};
use crate::request_body::RequestBody;
use crate::sse::Api;
use crate::telemetry::{Reject, Timeout};
use crate::transport::write_timeout::{UNREAD, WriteTimeout};
use crate::transport::{Rewound, batching, tcp};
use inbound::Inbound;
use outbound::{End, Outbound};
use refusal::Refusal;

/// A connection, with what was read of it and what is still to be written.
pub struct Connection<O> {
    proxy: Proxy<O>,
    client: Arc<Client>,
    transport: WriteTimeout,
    inbound: Inbound,
    outbound: Outbound,
    watch: Watch,
    tunnel_idle_timeout: Duration,
}

/// What a request without an answer is told when the time to drain is over.
const SHUTTING_DOWN: Refusal = Refusal {
    status: StatusCode::SERVICE_UNAVAILABLE,
    message: "the proxy is shutting down",
};

/// Reads of a client's body before others have their turn.
const READS_AT_ONCE: u32 = 8;

/// The client went away.
struct Gone;

/// What follows an exchange.
enum Next {
    Another,
    Close,
    /// The answer was cut, and only a reset says so.
    Reset,
    Tunnel(Tunnel),
}

impl<O: OldBackend> Connection<O> {
    pub fn new(
        proxy: Proxy<O>,
        client: Arc<Client>,
        limits: &Limits,
        transport: WriteTimeout,
        first: bytes::BytesMut,
        watch: Watch,
    ) -> Self {
        let memory = &proxy.context().memory;
        let body_limit = proxy.context().body_limit();
        Self {
            inbound: Inbound::new(first, limits, body_limit, memory),
            outbound: Outbound::new(memory),
            proxy,
            client,
            transport,
            watch,
            tunnel_idle_timeout: limits.tunnel_idle_timeout,
        }
    }

    /// Serves the connection to its end.
    pub async fn run(mut self) {
        loop {
            let head = match self
                .inbound
                .head(&mut self.transport, &mut self.watch)
                .await
            {
                Ok(Some(head)) => head,
                Ok(None) => break,
                Err(refusal) => {
                    Box::pin(self.refuse(refusal)).await;
                    Box::pin(linger::linger(&mut self.transport)).await;
                    break;
                }
            };
            // What is rare is boxed: its state would otherwise lie idle in every open stream.
            match self.exchange(head).await {
                Ok(Next::Another) => {}
                Ok(Next::Close) => {
                    if self.outbound.ends_with_connection() {
                        tcp::reset_on_close(self.transport.socket(), false);
                    }
                    self.inbound.discard();
                    Box::pin(linger::linger(&mut self.transport)).await;
                    break;
                }
                Ok(Next::Reset) => return Box::pin(linger::reset(self.transport)).await,
                Ok(Next::Tunnel(tunnel)) => return Box::pin(self.tunnel(tunnel)).await,
                Err(Gone) => return,
            }
        }
        // Without TLS to say goodbye in, closing the socket says it for one call less.
        if self.transport.is_tls() {
            let _ = Box::pin(self.transport.shutdown()).await;
        }
    }

    async fn exchange(&mut self, head: RequestHead) -> Result<Next, Gone> {
        let version = head.version;
        let is_head = head.method == http::Method::HEAD;
        let keep_alive = head.keep_alive;
        let (body, permit) = match self.gather(&head).await {
            Ok(gathered) => gathered,
            Err(Some(refusal)) => {
                Box::pin(self.refuse(refusal)).await;
                return Ok(Next::Close);
            }
            Err(None) => return Err(Gone),
        };
        let response = match self.answer(request(head, body), permit).await {
            Ok(response) => response,
            Err(Some(refusal)) => {
                Box::pin(self.refuse(refusal)).await;
                return Ok(Next::Close);
            }
            Err(None) => return Err(Gone),
        };
        let (tunnel, persists, mut body) = self.begin(response, version, is_head, keep_alive);
        batching::before_head_write().await;
        let end = std::future::poll_fn(|cx| self.poll_write_out(cx, &mut body)).await;
        if end.is_err() && self.transport.is_timed_out() {
            body.because(UNREAD);
        }
        drop(body);
        let end = end?;
        if let Some(tunnel) = tunnel {
            return Ok(Next::Tunnel(tunnel));
        }
        Ok(match end {
            End::Clean if persists && self.inbound.is_at_a_head() => Next::Another,
            End::Cut if self.outbound.ends_with_connection() => Next::Reset,
            End::Clean | End::Cut => Next::Close,
        })
    }

    /// The body of a request, and where it had to be waited for the leave to be open. What is over the limit of requests is not
    /// waited for: it will be refused.
    async fn gather(
        &mut self,
        head: &RequestHead,
    ) -> Result<(RequestBody, Option<Permit>), Option<Refusal>> {
        if let Some(body) = self.inbound.body_at_once(head) {
            return Ok((body, None));
        }
        let Ok(permit) = self.proxy.context().admit() else {
            return Ok((self.inbound.unread_body(head), None));
        };
        let gathering = self
            .inbound
            .body(head, &mut self.transport, &mut self.watch);
        let body = Box::pin(gathering).await?;
        Ok((body, Some(permit)))
    }

    /// Composes the head of an answer and lets go of all of it but what is still needed.
    fn begin(
        &mut self,
        response: Response<SplitBody>,
        version: Version,
        is_head: bool,
        keep_alive: bool,
    ) -> (Option<Tunnel>, bool, SplitBody) {
        let (mut parts, body) = response.into_parts();
        let tunnel = parts.extensions.remove::<Tunnel>();
        // What is left of the request's body cannot be told from the next head in time.
        let persists =
            keep_alive && self.watch.phase() < Phase::Draining && self.inbound.will_be_at_a_head();
        self.inbound.answered();
        let persists = self
            .outbound
            .begin(version, &parts, &body, is_head, persists);
        // Its client takes any end but a reset for the right one, that of a process that is killed, too.
        if self.outbound.ends_with_connection() {
            tcp::reset_on_close(self.transport.socket(), true);
        }
        (tunnel, persists, body)
    }

    /// Runs the request through the proxy, while its body is read as it is asked for and the client is watched.
    fn answer(
        &mut self,
        request: Request<RequestBody>,
        permit: Option<Permit>,
    ) -> impl Future<Output = Result<Response<SplitBody>, Option<Refusal>>> {
        let client = Arc::clone(&self.client);
        // Boxed: its state is large, and it is gone once the head of the answer is there. There is a box first, for the future to
        // be made in; otherwise all of it would be copied there.
        let place = Box::new_uninit();
        let handled = self.proxy.clone().handle(request, Some(client), permit);
        let mut handled = Box::into_pin(Box::write(place, handled));
        std::future::poll_fn(move |cx| {
            for _ in 0..READS_AT_ONCE {
                if let Poll::Ready(response) = Pin::as_mut(&mut handled).poll(cx) {
                    return Poll::Ready(Ok(response));
                }
                if self.watch.poll(cx) == Phase::Ending {
                    return Poll::Ready(Err(Some(SHUTTING_DOWN)));
                }
                // Polled again when it got something: it may have more to ask for.
                match self.poll_inbound(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(refusal)) => return Poll::Ready(Err(refusal)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            batching::wake_after_poll(cx);
            Poll::Pending
        })
    }

    /// Reads what is wanted of the request's body, or else watches for the client's end. `Ok`: something was handed on.
    fn poll_inbound(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Option<Refusal>>> {
        let polled = self
            .inbound
            .poll_body(cx, &mut self.transport, self.outbound.pending());
        // A `100 Continue` may have been put there.
        match self.outbound.poll_flush(cx, &mut self.transport) {
            Poll::Ready(Err(Gone)) => Poll::Ready(Err(None)),
            _ => polled,
        }
    }

    fn poll_write_out(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut SplitBody,
    ) -> Poll<Result<End, Gone>> {
        prefetch(self);
        if self.watch.poll(cx) == Phase::Ending {
            body.interrupt();
        }
        for _ in 0..READS_AT_ONCE {
            if let Poll::Ready(end) = self.outbound.poll(cx, &mut self.transport, body) {
                return Poll::Ready(end);
            }
            // An answer that waits for its client was not polled, and nor was what sends the request.
            if self.outbound.is_blocked() {
                body.poll_unread(cx);
            }
            match self.poll_inbound(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Gone)),
                Poll::Pending => return Poll::Pending,
            }
        }
        batching::wake_after_poll(cx);
        Poll::Pending
    }

    /// Answers what is no request, and says no more.
    async fn refuse(&mut self, refusal: Refusal) {
        let ProxyContext {
            metrics, memory, ..
        } = &**self.proxy.context();
        match refusal.status {
            StatusCode::SERVICE_UNAVAILABLE => {}
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => metrics.rejected(Reject::HeadTooLarge),
            StatusCode::REQUEST_TIMEOUT if !self.inbound.is_at_a_head() => {
                metrics.timed_out(Timeout::Body).inc();
                metrics.rejected(Reject::BodyTimeout);
            }
            StatusCode::REQUEST_TIMEOUT => metrics.rejected(Reject::HeadTimeout),
            _ => metrics.rejected(Reject::MalformedHead),
        }
        tracing::debug!(client = ?self.client, reason = refusal.message, "refused");
        let answer = error_answer(Api::Other, refusal.status, refusal.message);
        let (parts, body) = answer.map(SplitBody::own).into_parts();
        self.inbound.discard();
        self.outbound = Outbound::new(memory);
        self.outbound
            .begin(Version::HTTP_11, &parts, &body, false, false);
        let mut body = body;
        let written =
            std::future::poll_fn(|cx| self.outbound.poll(cx, &mut self.transport, &mut body));
        // Where it cannot be written the connection has ended, as whoever closes it will find.
        let _ = written.await;
    }

    async fn tunnel(self, tunnel: Tunnel) {
        let ending = self.watch.reached(Phase::Ending);
        let client = Rewound::new(self.inbound.into_read().freeze(), self.transport);
        let metrics = &self.proxy.context().metrics;
        let idle = TunnelIdle {
            limit: self.tunnel_idle_timeout,
            passed: metrics.timed_out(Timeout::TunnelIdle),
        };
        tunnel.join(client, idle, ending).await;
    }
}

fn request(head: RequestHead, body: RequestBody) -> Request<RequestBody> {
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.uri_mut() = head.uri;
    *request.version_mut() = head.version;
    *request.headers_mut() = head.headers;
    // Of an HTTP/1.0 client it is ignored, and so not passed on.
    if head.version == Version::HTTP_10 {
        request.headers_mut().remove(http::header::EXPECT);
    }
    request
}
