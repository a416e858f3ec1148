//! Response heads that wait for clients that do not read are charged to the memory budget.

use tokio::net::TcpSocket;

use crate::rig::frames::*;
use crate::rig::*;

/// Codes of RST_STREAM (RFC 9113 §7).
const ENHANCE_YOUR_CALM: u32 = 11;
const REFUSED_STREAM: u32 = 7;
const USED: [(&str, &str); 1] = [("kind", "used")];

/// A server whose responses have a head of this length and no body.
async fn with_head_of(length: usize) -> Upstream {
    let long = "v".repeat(length);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-long: {long}\r\n\r\n");
    Upstream::always(Script::new().raw(&head)).await
}

/// A connection with the smallest receive buffer.
async fn connect(address: std::net::SocketAddr) -> tokio::net::TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(address).await.unwrap()
}

#[tokio::test]
async fn over_http2_heads_for_which_there_is_no_memory_are_dropped() {
    let old = with_head_of(15_000).await;
    let proxy = Proxy::before(&old, &["--replay-budget-bytes", "400000"]).await;
    let mut frames = Frames::over(connect(proxy.address).await);
    frames.raw(PREFACE).await;
    frames.settings(&[]).await;
    let mut last = 1;
    let refused = [("purpose", "head")];
    // The buffers of the kernel take the first ones.
    eventually("a head is dropped", async || {
        let before = old.count();
        for _ in 0..100 {
            frames.request(last, END_STREAM, "GET", "/x").await;
            last += 2;
        }
        eventually("the requests arrive", async || old.count() > before).await;
        let metrics = proxy.metrics().await;
        let used = metrics.sum("crossfade_memory_bytes", &USED);
        // The budget, and its reserve for heads that are incomplete.
        assert!(used <= f64::from(400_000 + (16 << 20)), "{used}");
        metrics.sum("crossfade_memory_refused_total", &refused) >= 1.0
    })
    .await;
    let (mut complete, mut dropped) = (0, 0);
    while complete == 0 || dropped == 0 {
        let frame = frames.next_of(&[HEADERS, RST_STREAM]).await.unwrap();
        match frame.kind {
            HEADERS => complete += 1,
            _ if frame.code() == ENHANCE_YOUR_CALM => dropped += 1,
            _ => assert_eq!(frame.code(), REFUSED_STREAM, "too many at a time"),
        }
    }
    drop(frames);
    proxy.counts("crossfade_memory_bytes", &USED, 0.0).await;
}

#[tokio::test]
async fn over_http1_responses_for_which_there_is_no_memory_are_cut() {
    let old = with_head_of(60_000).await;
    let proxy = Proxy::before(&old, &["--replay-budget-bytes", "100000"]).await;
    let mut clients = Vec::new();
    for _ in 0..450 {
        let client = connect(proxy.address).await;
        let request = b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n";
        // The buffers of the kernel take the first responses.
        for _ in 0..100 {
            client.writable().await.unwrap();
            client.try_write(request).unwrap();
        }
        clients.push(client);
    }
    let refused = [("purpose", "answer")];
    eventually("a response is cut", async || {
        let metrics = proxy.metrics().await;
        let used = metrics.sum("crossfade_memory_bytes", &USED);
        // The budget and its reserve.
        assert!(used <= f64::from(100_000 + (16 << 20)), "{used}");
        metrics.sum("crossfade_memory_refused_total", &refused) >= 1.0
    })
    .await;
    drop(clients);
    proxy.counts("crossfade_memory_bytes", &USED, 0.0).await;
}
