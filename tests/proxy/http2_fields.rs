//! Fields that an HTTP/2 model server does not accept. It closes a connection on which they arrive, with the streams of other clients,
//! so crossfade rejects the request and sends nothing (RFC 9113 §6.5.2).

use std::sync::{Arc, Mutex};

use crate::rig::frames::*;
use crate::rig::*;

const MAX_HEADER_LIST_SIZE: u16 = 6;
const LIMIT: u32 = 6000;
const OK: (&str, &str) = (":status", "200");

/// The frames with fields that a server has received.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<Frame>>>);

impl Received {
    fn all(&self) -> Vec<Frame> {
        self.0.lock().unwrap().clone()
    }
}

/// A server that accepts [`LIMIT`] bytes of fields.
async fn server(received: &Received) -> FrameServer {
    let received = received.clone();
    let settings = &[(MAX_HEADER_LIST_SIZE, LIMIT), (MAX_CONCURRENT_STREAMS, 100)];
    FrameServer::start(settings, move |_, mut frames| {
        let received = received.clone();
        async move {
            while let Some(next) = frames.try_next().await {
                if [HEADERS, CONTINUATION, RST_STREAM].contains(&next.kind) {
                    received.0.lock().unwrap().push(next.clone());
                }
                if next.ends_stream() {
                    frames.headers(next.stream, END_STREAM, &[OK]).await;
                }
            }
        }
    })
    .await
}

async fn before_frames(server: &FrameServer) -> Proxy {
    // Each thread has its own connections.
    let flags = ["--upstream-protocol", "http2", "--threads", "1"];
    Proxy::before_url(&server.url(), &flags).await
}

async fn assert_rejected(proxy: &Proxy, count: f64) {
    let metrics = proxy.metrics().await;
    let rejected = [("cause", "head_too_large")];
    let total = metrics.sum("crossfade_rejected_requests_total", &rejected);
    assert_eq!(total, count);
    assert_eq!(metrics.sum("crossfade_failed_attempts_total", &[]), 0.0);
}

#[tokio::test]
async fn a_large_head_waits_for_the_limit_of_the_server() {
    let received = Received::default();
    let server = server(&received).await;
    let proxy = before_frames(&server).await;
    for (length, status) in [(7000, 431), (5000, 200), (7000, 431)] {
        let mut client = Client::connect(proxy.address).await;
        client.get("/health", &[("x-a", &"x".repeat(length))]).await;
        assert_eq!(client.response().await.status, status, "{length}");
    }
    let streams: Vec<_> = received.all().iter().map(|frame| frame.stream).collect();
    assert_eq!(streams, [1]);
    assert_rejected(&proxy, 2.0).await;
}

#[tokio::test]
async fn a_target_that_is_too_long_once_it_is_percent_encoded_is_431() {
    let received = Received::default();
    let server = server(&received).await;
    let proxy = before_frames(&server).await;
    let mut client = Client::connect(proxy.address).await;
    client.get(&format!("/{}", "é".repeat(11_000)), &[]).await;
    assert_eq!(client.response().await.status, 431);
    assert_eq!(received.all(), []);
    assert_rejected(&proxy, 1.0).await;
}

#[tokio::test]
async fn trailers_larger_than_the_server_accepts_are_431() {
    let received = Received::default();
    let server = server(&received).await;
    let proxy = before_frames(&server).await;
    for (length, status) in [(5000, 200), (7000, 431)] {
        let mut client = Client::connect(proxy.address).await;
        let head = "POST /v1/files HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        let value = "x".repeat(length);
        client
            .send(format!("{head}2\r\nab\r\n0\r\nx-a: {value}\r\n\r\n"))
            .await;
        assert_eq!(client.response().await.status, status, "{length}");
    }
    eventually("the request is cancelled", async || {
        let all = received.all();
        all.last().is_some_and(|frame| frame.kind == RST_STREAM)
    })
    .await;
    // A head and trailers, and then a head.
    let kinds: Vec<_> = received
        .all()
        .iter()
        .map(|one| (one.kind, one.stream))
        .collect();
    let expected = [(HEADERS, 1), (HEADERS, 1), (HEADERS, 3), (RST_STREAM, 3)];
    assert_eq!(kinds, expected);
    assert_eq!(server.connections(), 1);
    assert_rejected(&proxy, 1.0).await;
}
