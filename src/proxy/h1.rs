//! One HTTP/1.1 connection of a client: heads are read and judged, requests answered one after the other, answers written
//! as their bodies come. The one task of the connection does all of it, down to reading the model server's socket.

mod inbound;
mod outbound;
mod refusal;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode, Version};
use tokio::io::AsyncWriteExt;

use super::body::SplitBody;
use super::error;
use super::head::Client;
use super::prefetch::prefetch;
use super::server::Limits;
use super::service::{OldSide, Proxy};
use super::tunnel::Tunnel;
use crate::http1::RequestHead;
use crate::lifecycle::{Phase, Watch};
use crate::request_body::RequestBody;
use crate::sse::Api;
use crate::telemetry::Reject;
use crate::transport::{Rewound, Transport, turn};
use inbound::Inbound;
use outbound::{End, Outbound};
use refusal::Refusal;

/// A connection, with what was read of it and what is still to be written.
pub struct Connection<O> {
    proxy: Proxy<O>,
    client: Arc<Client>,
    transport: Transport,
    inbound: Inbound,
    outbound: Outbound,
    watch: Watch,
}

/// What a request without an answer is told when the time to drain is over.
const SHUTTING_DOWN: Refusal = Refusal {
    status: StatusCode::SERVICE_UNAVAILABLE,
    message: "the proxy is shutting down",
};

/// The client went away.
struct Gone;

/// What follows an exchange.
enum Next {
    Another,
    Close,
    Tunnel(Tunnel),
}

impl<O: OldSide> Connection<O> {
    pub fn new(
        proxy: Proxy<O>,
        client: Arc<Client>,
        limits: &Limits,
        transport: Transport,
        first: bytes::BytesMut,
        watch: Watch,
    ) -> Self {
        Self {
            proxy,
            client,
            transport,
            inbound: Inbound::new(first, limits),
            outbound: Outbound::default(),
            watch,
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
                    break;
                }
            };
            // What is rare is boxed: its state would otherwise lie idle in every open stream.
            match self.exchange(head).await {
                Ok(Next::Another) => {}
                Ok(Next::Close) => {
                    Box::pin(self.inbound.linger(&mut self.transport)).await;
                    break;
                }
                Ok(Next::Tunnel(tunnel)) => return Box::pin(self.tunnel(tunnel)).await,
                Err(Gone) => return,
            }
        }
        // Without TLS to say goodbye in, closing the socket says it for one call less.
        if let Transport::Tls(_) = self.transport {
            let _ = self.transport.shutdown().await;
        }
    }

    async fn exchange(&mut self, head: RequestHead) -> Result<Next, Gone> {
        let version = head.version;
        let is_head = head.method == http::Method::HEAD;
        let keep_alive = head.keep_alive;
        let body = match self.inbound.body_at_once(&head) {
            Some(body) => body,
            None => match Box::pin(
                self.inbound
                    .body(&head, &mut self.transport, &mut self.watch),
            )
            .await
            {
                Ok(body) => body,
                Err(Some(refusal)) => {
                    Box::pin(self.refuse(refusal)).await;
                    return Ok(Next::Close);
                }
                Err(None) => return Err(Gone),
            },
        };
        let response = match self.answer(request(head, body)).await {
            Ok(response) => response,
            Err(Some(refusal)) => {
                Box::pin(self.refuse(refusal)).await;
                return Ok(Next::Close);
            }
            Err(None) => return Err(Gone),
        };
        let (tunnel, persists, mut body) = self.begin(response, version, is_head, keep_alive);
        turn::others_first().await;
        let end = std::future::poll_fn(|cx| self.poll_write_out(cx, &mut body)).await?;
        drop(body);
        if let Some(tunnel) = tunnel {
            return Ok(Next::Tunnel(tunnel));
        }
        Ok(match end {
            End::Clean if persists && self.inbound.is_at_a_head() => Next::Another,
            End::Clean | End::Cut => Next::Close,
        })
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
        (tunnel, persists, body)
    }

    /// Runs the request through the proxy, while its body is read as it is asked for and the client is watched.
    fn answer(
        &mut self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<SplitBody>, Option<Refusal>>> {
        let client = Arc::clone(&self.client);
        // Boxed: its state is large, and it is gone once the head of the answer is there. There is a box first, for the future to
        // be made in; otherwise all of it would be copied there.
        let place = Box::new_uninit();
        let handled = self.proxy.clone().handle(request, Some(client));
        let mut handled = Box::into_pin(Box::write(place, handled));
        std::future::poll_fn(move |cx| {
            loop {
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
        })
    }

    /// Reads what is wanted of the request's body, or else watches for the client's end. `Ok`: something was handed on.
    fn poll_inbound(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Option<Refusal>>> {
        let polled = self
            .inbound
            .poll_feed(cx, &mut self.transport, self.outbound.pending());
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
        loop {
            if let Poll::Ready(end) = self.outbound.poll(cx, &mut self.transport, body) {
                return Poll::Ready(end);
            }
            match self.poll_inbound(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Gone)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Answers what is no request, and says no more.
    async fn refuse(&mut self, refusal: Refusal) {
        let metrics = &self.proxy.shared().metrics;
        match refusal.status {
            StatusCode::SERVICE_UNAVAILABLE => {}
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => metrics.rejected(Reject::HeadTooLarge),
            StatusCode::REQUEST_TIMEOUT => metrics.rejected(Reject::HeadTimeout),
            _ => metrics.rejected(Reject::MalformedHead),
        }
        tracing::debug!(client = ?self.client, reason = refusal.message, "refused");
        let answer = error::answer(Api::Other, refusal.status, refusal.message);
        let (parts, body) = answer.map(SplitBody::own).into_parts();
        self.outbound = Outbound::default();
        self.outbound
            .begin(Version::HTTP_11, &parts, &body, false, false);
        let mut body = body;
        let written =
            std::future::poll_fn(|cx| self.outbound.poll(cx, &mut self.transport, &mut body));
        if written.await.is_ok() {
            self.inbound.linger(&mut self.transport).await;
        }
    }

    async fn tunnel(self, tunnel: Tunnel) {
        let ending = self.watch.reached(Phase::Ending);
        let client = Rewound::new(self.inbound.into_read().freeze(), self.transport);
        tunnel.join(client, ending).await;
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
