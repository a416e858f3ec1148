//! Serves one HTTP/1.1 client connection: reads and validates request heads, handles requests one after another, and
//! writes each response as its body arrives. All of it, including reading the model server's socket, runs in the
//! connection's task.

mod inbound;
mod outbound;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Request, Response, Version};
use tokio::io::AsyncWriteExt;

use super::limits::{Limits, should_reconnect};
use super::linger;
use super::refusal::Refusal;
use crate::http1::RequestHead;
use crate::lifecycle::{ProcessPhase, Watch};
use crate::proxy::{
    Client, OldBackend, Permit, Proxy, ProxyContext, Rejected, SplitBody, Tunnel, TunnelIdle,
    prefetch,
};
use crate::request_body::RequestBody;
use crate::telemetry::{Reject, Timeout};
use crate::transport::write_timeout::{UNREAD, WriteTimeout};
use crate::transport::{Prefixed, batching, tcp};
use inbound::Inbound;
use outbound::{End, Outbound};

/// A connection with its read and write state.
pub struct Connection<O> {
    proxy: Proxy<O>,
    client: Arc<Client>,
    transport: WriteTimeout,
    inbound: Inbound,
    outbound: Outbound,
    watch: Watch,
    tunnel_idle_timeout: Duration,
    /// When the connection began.
    since: Instant,
}

/// The client disconnected.
struct ClientGone;

/// The known parts of a rejected request.
enum RejectedRequest<'a> {
    /// Its head could not be read.
    Unread,
    /// It is not routed yet.
    Head(&'a RequestHead, Instant),
    /// It has been routed, so its exchange writes the access line.
    Routed,
}

/// What to do after an exchange.
enum AfterExchange {
    Another,
    Close,
    /// Reset the connection: nothing else shows the client that the response was cut.
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
            since: Instant::now(),
        }
    }

    /// Serves the connection until it ends.
    pub async fn run(mut self) {
        loop {
            let head = match self
                .inbound
                .head(self.proxy.context(), &mut self.transport, &mut self.watch)
                .await
            {
                Ok(Some(head)) => head,
                Ok(None) => break,
                Err(refusal) => {
                    let is_head = self.inbound.begins_with_head_method();
                    Box::pin(self.refuse(refusal, &RejectedRequest::Unread, is_head)).await;
                    Box::pin(linger::linger(&mut self.transport, linger::HTTP1_PATIENCE)).await;
                    break;
                }
            };
            // Rare branches are boxed: otherwise every open stream would contain their idle state.
            match self.exchange(head).await {
                Ok(AfterExchange::Another) => {}
                Ok(AfterExchange::Close) => {
                    if self.outbound.ends_with_connection() {
                        tcp::reset_on_close(self.transport.socket(), false);
                    }
                    self.inbound.discard();
                    Box::pin(linger::linger(&mut self.transport, linger::HTTP1_PATIENCE)).await;
                    break;
                }
                Ok(AfterExchange::Reset) => return Box::pin(linger::reset(self.transport)).await,
                Ok(AfterExchange::Tunnel(tunnel)) => return Box::pin(self.tunnel(tunnel)).await,
                Err(ClientGone) => return,
            }
        }
        // Without TLS there is no close_notify to send, and closing the socket saves a system call.
        if self.transport.is_tls() {
            let _ = Box::pin(self.transport.shutdown()).await;
        }
    }

    async fn exchange(&mut self, head: RequestHead) -> Result<AfterExchange, ClientGone> {
        let version = head.version;
        let is_head = head.method == http::Method::HEAD;
        let keep_alive = head.keep_alive;
        let (body, permit) = match self.gather(&head).await {
            Ok(gathered) => gathered,
            Err((Some(refusal), since)) => {
                let refused = RejectedRequest::Head(&head, since);
                Box::pin(self.refuse(refusal, &refused, is_head)).await;
                return Ok(AfterExchange::Close);
            }
            Err((None, since)) => {
                let metrics = &self.proxy.context().metrics;
                rejected(&self.client, Some(&head), since).left(metrics);
                return Err(ClientGone);
            }
        };
        let response = match self.answer(request(head, body), permit).await {
            Ok(response) => response,
            Err(Some(refusal)) => {
                Box::pin(self.refuse(refusal, &RejectedRequest::Routed, is_head)).await;
                return Ok(AfterExchange::Close);
            }
            Err(None) => return Err(ClientGone),
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
            return Ok(AfterExchange::Tunnel(tunnel));
        }
        Ok(match end {
            End::Clean if persists && self.inbound.is_at_a_head() => AfterExchange::Another,
            End::Cut if self.outbound.ends_with_connection() => AfterExchange::Reset,
            End::Clean | End::Cut => AfterExchange::Close,
        })
    }

    /// The request body, and a permit if the proxy had to wait for the body. At the limit of concurrent requests, it does not
    /// wait, because the request will be rejected. The error contains the time since which it waited, and is `None` if the client
    /// disconnected.
    async fn gather(
        &mut self,
        head: &RequestHead,
    ) -> Result<(RequestBody, Option<Permit>), (Option<Refusal>, Instant)> {
        if let Some(body) = self.inbound.body_at_once(head) {
            return Ok((body, None));
        }
        let Ok(permit) = self.proxy.context().admit() else {
            return Ok((self.inbound.unread_body(head), None));
        };
        let _arriving = self.proxy.context().arrives(true);
        let gathering = self
            .inbound
            .body(head, &mut self.transport, &mut self.watch);
        let since = Instant::now();
        let body = Box::pin(gathering).await;
        let body = body.map_err(|refusal| (refusal, since))?;
        Ok((body, Some(permit)))
    }

    /// Composes the response head and drops everything that is no longer needed.
    fn begin(
        &mut self,
        response: Response<SplitBody>,
        version: Version,
        is_head: bool,
        keep_alive: bool,
    ) -> (Option<Tunnel>, bool, SplitBody) {
        let (mut parts, body) = response.into_parts();
        let tunnel = parts.extensions.remove::<Tunnel>();
        // Keep the connection only if the request body will have been read to its end: otherwise its rest could not be
        // distinguished from the next head in time. Clients learn that it closes before the drain begins, so that they lose no
        // request.
        let persists = keep_alive
            && self.watch.phase() < ProcessPhase::Settling
            && self.inbound.will_be_at_a_head();
        let snapshots = &self.proxy.context().snapshots;
        let persists = persists && !should_reconnect(snapshots, self.since);
        self.inbound.answered();
        let persists = self
            .outbound
            .begin(version, &parts, &body, is_head, persists);
        // The client takes any end except a reset for a complete response, even if the process is killed.
        if self.outbound.ends_with_connection() {
            tcp::reset_on_close(self.transport.socket(), true);
        }
        (tunnel, persists, body)
    }

    /// Runs the request through the proxy. Meanwhile reads its body on demand and watches for the client's disconnect.
    fn answer(
        &mut self,
        request: Request<RequestBody>,
        permit: Option<Permit>,
    ) -> impl Future<Output = Result<Response<SplitBody>, Option<Refusal>>> {
        let client = Arc::clone(&self.client);
        // Boxed: the future is large, and it is dropped once there is a response head. The box is allocated first so
        // that the future is built in place instead of being copied into it.
        let slot = Box::new_uninit();
        let handled = self.proxy.clone().handle(request, Some(client), permit);
        let mut handled = Box::into_pin(Box::write(slot, handled));
        std::future::poll_fn(move |cx| {
            // Wakes this task when the process ends, so that `handled` notices.
            self.watch.poll(cx);
            loop {
                if let Poll::Ready(response) = Pin::as_mut(&mut handled).poll(cx) {
                    return Poll::Ready(Ok(response));
                }
                // Poll again after passing on data: the request may need more.
                match self.poll_inbound(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(refusal)) => return Poll::Ready(Err(refusal)),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
    }

    /// Reads the request body on demand, and otherwise watches for the client's disconnect. `Ok` means that data was passed on.
    fn poll_inbound(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Option<Refusal>>> {
        let polled = self
            .inbound
            .poll_body(cx, &mut self.transport, self.outbound.pending());
        // A `100 Continue` may have been queued.
        match self.outbound.poll_flush(cx, &mut self.transport) {
            Poll::Ready(Err(ClientGone)) => Poll::Ready(Err(None)),
            _ => polled,
        }
    }

    fn poll_write_out(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut SplitBody,
    ) -> Poll<Result<End, ClientGone>> {
        prefetch(self);
        if self.watch.poll(cx) == ProcessPhase::Ending {
            body.interrupt();
        }
        loop {
            if let Poll::Ready(end) = self.outbound.poll(cx, &mut self.transport, body) {
                return Poll::Ready(end);
            }
            // While a response waits for its client, it is not polled, so the request is not forwarded either.
            if self.outbound.is_blocked() {
                body.poll_unread(cx);
            }
            match self.poll_inbound(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(ClientGone)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Rejects an invalid or failed request; the connection is closed afterwards. The response to a HEAD request has no content
    /// (RFC 9110 §9.3.2).
    async fn refuse(&mut self, refusal: Refusal, refused: &RejectedRequest<'_>, is_head: bool) {
        let ProxyContext {
            metrics, memory, ..
        } = &**self.proxy.context();
        if let Some(cause) = refusal.cause {
            metrics.rejected(cause);
        }
        if refusal.cause == Some(Reject::BodyTimeout) {
            metrics.timed_out(Timeout::Body).inc();
        }
        tracing::debug!(client = ?self.client, reason = refusal.message, "refused");
        let mut answer = refusal.answer();
        let client = &self.client;
        let known = match refused {
            RejectedRequest::Unread => Some(rejected(client, None, Instant::now())),
            RejectedRequest::Head(head, since) => Some(rejected(client, Some(head), *since)),
            RejectedRequest::Routed => None,
        };
        if let Some(known) = known {
            known.answered_with(&mut answer, refusal.message);
        }
        let (parts, body) = answer.map(SplitBody::own).into_parts();
        self.inbound.discard();
        self.outbound = Outbound::new(memory);
        self.outbound
            .begin(Version::HTTP_11, &parts, &body, is_head, false);
        let mut body = body;
        let written =
            std::future::poll_fn(|cx| self.outbound.poll(cx, &mut self.transport, &mut body));
        // If the write fails the connection is gone, which the caller will notice when closing it.
        let _ = written.await;
    }

    async fn tunnel(self, tunnel: Tunnel) {
        let ending = self.watch.reached(ProcessPhase::Ending);
        let client = Prefixed::new(self.inbound.into_read().freeze(), self.transport);
        let metrics = &self.proxy.context().metrics;
        let idle = TunnelIdle {
            limit: self.tunnel_idle_timeout,
            passed: metrics.timed_out(Timeout::TunnelIdle),
        };
        tunnel.join(client, idle, ending).await;
    }
}

fn rejected<'a>(client: &'a Client, head: Option<&'a RequestHead>, since: Instant) -> Rejected<'a> {
    let head = head.map(|head| (&head.method, &head.uri, &head.headers));
    Rejected::unrouted(client, head, since)
}

fn request(head: RequestHead, body: RequestBody) -> Request<RequestBody> {
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    *request.uri_mut() = head.uri;
    *request.version_mut() = head.version;
    *request.headers_mut() = head.headers;
    // An `Expect` from an HTTP/1.0 client is ignored, so it is not forwarded.
    if head.version == Version::HTTP_10 {
        request.headers_mut().remove(http::header::EXPECT);
    }
    request
}
