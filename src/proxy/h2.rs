//! One HTTP/2 connection of a client: hyper's server, with the proxy behind each stream.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::Sleep;

use super::body::{Cut, SplitBody};
use super::error;
use super::head::Client;
use super::server::Limits;
use super::service::{OldSide, Proxy};
use crate::http1::host_is_valid;
use crate::lifecycle::{Lifecycle, Phase, Watch};
use crate::request_body::RequestBody;
use crate::sse::Api;
use crate::telemetry::Reject;
use crate::transport::Rewound;

/// Streams that a client may have open on one connection.
const MAX_STREAMS: u32 = 1000;
/// Bytes that wait per stream for a client that does not read.
const SEND_BUFFER: usize = 64 * 1024;
/// Resetting a stream throws away what is still queued for it (hyper offers no way to wait for the queue), so the reset
/// after an error event leaves the event this long to go out.
const BEFORE_RESET: Duration = Duration::from_millis(50);

/// Serves the connection to its end.
pub async fn run<O: OldSide>(
    proxy: Proxy<O>,
    client: Arc<Client>,
    limits: Arc<Limits>,
    transport: Rewound,
    lifecycle: Lifecycle,
) {
    let mut watch = lifecycle.watch();
    let service = service_fn(move |request: Request<Incoming>| {
        let proxy = proxy.clone();
        let client = Arc::clone(&client);
        let watch = lifecycle.watch();
        async move { Ok::<_, Infallible>(answer(proxy, client, watch, request).await) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(limits.max_head).unwrap_or(u32::MAX))
        .keep_alive_interval(Duration::from_secs(30));
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(transport), service));
    let mut leaving = false;
    let ended = std::future::poll_fn(|cx| {
        // It is polled for each event of its streams, so the look must cost little.
        if !leaving && watch.poll(cx) >= Phase::Draining {
            leaving = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    })
    .await;
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP/2 connection of a client ended");
    }
}

async fn answer<O: OldSide>(
    proxy: Proxy<O>,
    client: Arc<Client>,
    watch: Watch,
    request: Request<Incoming>,
) -> Response<Streamed> {
    let answer = match refusal(&request) {
        None => {
            let ending = watch.reached(Phase::Ending);
            tokio::select! {
                // Boxed: its state is large, and hyper keeps the room for it as long as the stream lives.
                answer = Box::pin(proxy.handle(request.map(RequestBody::stream), Some(client))) => answer,
                () = ending => refused(StatusCode::SERVICE_UNAVAILABLE, "the proxy is shutting down"),
            }
        }
        Some((status, message)) => {
            proxy.shared().metrics.rejected(Reject::MalformedHead);
            refused(status, message)
        }
    };
    let mut response = answer.map(|body| Streamed {
        body,
        watch,
        cut: None,
    });
    // RFC 9113 §8.2.2: such fields make the message malformed.
    response
        .headers_mut()
        .remove(http::header::TRANSFER_ENCODING);
    response
}

fn refused(status: StatusCode, message: &str) -> Response<SplitBody> {
    error::answer(Api::Other, status, message).map(SplitBody::own)
}

/// What HTTP/1.1 heads are refused for, and HTTP/2 itself lets pass (RFC 9113 §8.3.1).
fn refusal<B>(request: &Request<B>) -> Option<(StatusCode, &'static str)> {
    if request.method() == Method::CONNECT {
        return Some((StatusCode::NOT_IMPLEMENTED, "CONNECT is not served here"));
    }
    let authority = request.uri().authority().map(Authority::as_str);
    let mut hosts = request.headers().get_all(HOST).iter();
    let is_valid = match (authority, hosts.next(), hosts.next()) {
        (_, Some(_), Some(_)) | (None, None, _) => false,
        (Some(authority), Some(host), None) if host.as_bytes() != authority.as_bytes() => false,
        (None, Some(host), None) => host_is_valid(host),
        (Some(authority), ..) => {
            HeaderValue::from_str(authority).is_ok_and(|host| host_is_valid(&host))
        }
    };
    (!is_valid).then_some((
        StatusCode::BAD_REQUEST,
        "the request needs exactly one valid authority",
    ))
}

/// An answer's body over HTTP/2, which ends with the process.
struct Streamed {
    body: SplitBody,
    watch: Watch,
    cut: Option<(Cut, Pin<Box<Sleep>>)>,
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = self.get_mut();
        if this.watch.poll(cx) == Phase::Ending {
            this.body.interrupt();
        }
        if this.cut.is_none() {
            match std::task::ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Err(cut)) => {
                    let pause = Box::pin(tokio::time::sleep(BEFORE_RESET));
                    this.cut = Some((cut, pause));
                }
                other => return Poll::Ready(other),
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
