//! Requests of different clients share a connection to an HTTP/2 model server. None of them may break the others, or open
//! connections for nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::rig::frames::*;
use crate::rig::*;

const SSE: (&str, &str) = ("content-type", "text/event-stream");
const OK: (&str, &str) = (":status", "200");

async fn before_frames(server: &FrameServer) -> Proxy {
    // Each thread has its own connections.
    let flags = ["--upstream-protocol", "http2", "--threads", "1"];
    Proxy::before_url(&server.url(), &flags).await
}

/// Frames of a kind that each connection of a server has received.
#[derive(Clone, Default)]
struct FrameCounts(Arc<Mutex<BTreeMap<(usize, u8), usize>>>);

impl FrameCounts {
    fn count(&self, connection: usize, frame: &Frame) {
        let mut seen = self.0.lock().unwrap();
        *seen.entry((connection, frame.kind)).or_default() += 1;
    }

    /// How many, by connection.
    fn of(&self, kind: u8) -> Vec<usize> {
        let seen = self.0.lock().unwrap();
        let of_kind = seen.iter().filter(|((_, one), _)| *one == kind);
        of_kind.map(|(_, count)| *count).collect()
    }

    fn sum(&self, kind: u8) -> usize {
        self.of(kind).iter().sum()
    }
}

/// A server that counts the frames it receives. It begins an event stream for each request, or only for its first one.
async fn counting(seen: &FrameCounts, only_first: bool) -> FrameServer {
    let seen = seen.clone();
    let settings = &[(MAX_CONCURRENT_STREAMS, 100)];
    FrameServer::start(settings, move |connection, mut frames| {
        let seen = seen.clone();
        async move {
            while let Some(next) = frames.try_next().await {
                seen.count(connection, &next);
                let stream = next.stream;
                if next.ends_stream() && (!only_first || (connection, stream) == (1, 1)) {
                    frames.headers(stream, 0, &[OK, SSE]).await;
                    let event = content("old", 0);
                    frames.send(DATA, 0, stream, event.as_bytes()).await;
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn simultaneous_uploads_share_a_connection() {
    let server = FrameServer::answering(
        &[(MAX_CONCURRENT_STREAMS, 100)],
        |mut frames, stream| async move {
            frames.headers(stream, END_STREAM, &[OK]).await;
            frames
        },
    )
    .await;
    let proxy = before_frames(&server).await;
    // From now on there is a connection whose server has announced its limit of streams.
    let first = client::post(proxy.address, CHAT, &[], UNARY).await;
    assert_eq!(first.status, 200);
    let mut clients = Vec::new();
    for _ in 0..60 {
        clients.push(Client::connect(proxy.address).await);
    }
    for client in &mut clients {
        client.post(CHAT, &[], UNARY).await;
    }
    for client in &mut clients {
        assert_eq!(client.head().await.status, 200);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_request_with_a_body_does_not_share_a_connection_whose_window_is_used_up() {
    const WINDOW: usize = 65_535;
    let exact = WINDOW - UNARY.len();
    // A part of the upload that is beyond the window, all of the window, and nearly all of it.
    for sent in [exact + 2500, exact, exact - 20] {
        let received = Arc::new(AtomicUsize::new(0));
        let count = received.clone();
        let settings = &[(MAX_CONCURRENT_STREAMS, 100)];
        let server = FrameServer::start(settings, move |connection, mut frames| {
            let count = count.clone();
            async move {
                while let Some(next) = frames.try_next().await {
                    if next.kind == DATA && connection == 1 {
                        count.fetch_add(next.payload.len(), Ordering::Relaxed);
                    }
                    if next.ends_stream() {
                        frames.headers(next.stream, END_STREAM, &[OK]).await;
                    }
                }
            }
        })
        .await;
        let proxy = before_frames(&server).await;
        let post = async || client::post(proxy.address, CHAT, &[], UNARY).await.status;
        assert_eq!(post().await, 200);
        let mut upload = Client::connect(proxy.address).await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n");
        upload.send(head + &"x".repeat(sent)).await;
        let first = WINDOW.min(UNARY.len() + sent);
        eventually("the server has the window's part", async || {
            received.load(Ordering::Relaxed) == first
        })
        .await;
        for _ in 0..3 {
            assert_eq!(post().await, 200, "{sent}");
        }
        assert_eq!(server.connections(), 2);
    }
}

#[tokio::test]
async fn a_body_that_the_window_has_no_room_for_does_not_share_it_with_an_unread_body() {
    const LENGTH: [usize; 2] = [45_000, 15_000];
    // The application does not read the first body. The server opens the window again after half of it was read, as Netty does.
    let settings = &[(MAX_CONCURRENT_STREAMS, 100)];
    let arrived = Arc::new(AtomicUsize::new(0));
    let unread = arrived.clone();
    let server = FrameServer::start(settings, move |connection, mut frames| {
        let unread = unread.clone();
        async move {
            let mut read = 0;
            while let Some(next) = frames.try_next().await {
                if next.kind == DATA && (connection, next.stream) == (1, 3) {
                    unread.fetch_add(next.payload.len(), Ordering::Relaxed);
                    continue;
                }
                read += match next.kind {
                    DATA => next.payload.len() as u32,
                    _ => 0,
                };
                if read > 65_535 / 2 {
                    frames.send(WINDOW_UPDATE, 0, 0, &read.to_be_bytes()).await;
                    read = 0;
                }
                if next.ends_stream() {
                    frames.headers(next.stream, END_STREAM, &[OK]).await;
                }
            }
        }
    })
    .await;
    let proxy = before_frames(&server).await;
    let post = async || client::post(proxy.address, CHAT, &[], UNARY).await.status;
    assert_eq!(post().await, 200);
    let mut unread = Client::connect(proxy.address).await;
    unread.post(CHAT, &[], &vec![b'x'; LENGTH[0]]).await;
    eventually("the server has all of it", async || {
        arrived.load(Ordering::Relaxed) == LENGTH[0]
    })
    .await;
    // Each of them would fit into the rest of the window.
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(Client::connect(proxy.address).await);
    }
    for other in &mut others {
        other.post(CHAT, &[], &vec![b'x'; LENGTH[1]]).await;
    }
    for other in &mut others {
        assert_eq!(other.response().await.status, 200);
    }
    assert!(server.connections() > 1);
}

#[tokio::test]
async fn a_request_that_its_client_has_already_cancelled_is_not_sent() {
    let seen = FrameCounts::default();
    let server = counting(&seen, false).await;
    let proxy = before_frames(&server).await;
    let mut client = Frames::connect(proxy.address, &[]).await;
    let fields = block(&[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/health"),
        (":authority", "models.example"),
    ]);
    let head = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields);
    let mut bytes = Vec::new();
    for stream in (1..=19).step_by(2) {
        bytes.extend(head(stream));
        bytes.extend(frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
    }
    bytes.extend(head(21));
    client.raw(&bytes).await;
    let answer = client.next_of(&[HEADERS]).await.expect("an answer");
    assert_eq!(answer.stream, 21);
    proxy.counts("crossfade_open_streams", &[], 1.0).await;
    assert_eq!((seen.sum(HEADERS), seen.sum(RST_STREAM)), (1, 0));
}

#[tokio::test]
async fn a_request_is_not_cancelled_before_its_server_had_time_to_accept_it() {
    let (reset, mut is_reset) = tokio::sync::mpsc::unbounded_channel();
    let seen = FrameCounts::default();
    let counted = seen.clone();
    let server = FrameServer::start(&[], move |connection, mut frames| {
        let (reset, seen) = (reset.clone(), counted.clone());
        async move {
            while let Some(next) = frames.try_next().await {
                seen.count(connection, &next);
                if next.kind == RST_STREAM {
                    reset.send(next.code()).unwrap();
                }
            }
        }
    })
    .await;
    let proxy = before_frames(&server).await;
    // With and without a body that is never complete.
    for (stream, flags) in [(1, END_STREAM), (3, 0)] {
        let start = std::time::Instant::now();
        let mut client = Frames::connect(proxy.address, &[]).await;
        client.request(stream, flags, "POST", CHAT).await;
        let sent = (stream as usize).div_ceil(2);
        eventually("it is sent", async || seen.sum(HEADERS) == sent).await;
        client.reset(stream, CANCEL).await;
        let code = within("the reset", is_reset.recv()).await;
        assert_eq!(code, Some(CANCEL));
        let after = start.elapsed().as_millis();
        assert!(after >= 100, "{after} ms");
    }
}

/// A hyper server that was busy for a while reads all of them at once, and closes the connection if there are more than 20.
#[tokio::test]
async fn a_server_that_reads_late_finds_only_a_few_resets_at_once() {
    const REQUESTS: usize = 40;
    let (read, mut frames_read) = tokio::sync::mpsc::unbounded_channel();
    let seen = FrameCounts::default();
    let counted = seen.clone();
    let settings = &[(MAX_CONCURRENT_STREAMS, 100)];
    let server = FrameServer::start(settings, move |connection, mut frames| {
        let (read, seen) = (read.clone(), counted.clone());
        async move {
            while let Some(next) = frames.try_next().await {
                seen.count(connection, &next);
                if next.ends_stream() && (connection, next.stream) == (1, 1) {
                    frames.headers(1, END_STREAM, &[OK]).await;
                }
                if [RST_STREAM, PING].contains(&next.kind) {
                    read.send(next.kind).unwrap();
                }
            }
        }
    })
    .await;
    let proxy = before_frames(&server).await;
    let first = client::post(proxy.address, CHAT, &[], UNARY).await;
    assert_eq!(first.status, 200);
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        clients.push(client::open_chat(proxy.address).await);
    }
    eventually("all are sent", async || seen.sum(HEADERS) == REQUESTS + 1).await;
    drop(clients);
    let mut resets = Vec::from([0]);
    while resets.iter().sum::<usize>() < REQUESTS {
        match within("a frame", frames_read.recv()).await.unwrap() {
            PING => resets.push(0),
            _ => *resets.last_mut().unwrap() += 1,
        }
    }
    assert_eq!(server.connections(), 1);
    assert_eq!(resets, [16, 16, 8]);
}

#[tokio::test]
async fn cancelled_requests_do_not_close_the_connection_of_other_clients() {
    const CANCELLED: u32 = 250;
    // Servers limit most strictly the requests that are cancelled before their response head.
    for (before_head, most) in [(true, 16), (false, 96)] {
        let seen = FrameCounts::default();
        let server = counting(&seen, before_head).await;
        let proxy = before_frames(&server).await;
        let mut stays = client::open_chat(proxy.address).await;
        assert_eq!(stays.head().await.status, 200);
        stays.until("\n\n").await;
        let mut client = Frames::connect(proxy.address, &[]).await;
        for n in 0..CANCELLED {
            let stream = 2 * n + 1;
            client.request(stream, END_STREAM, "GET", "/health").await;
            if before_head {
                let sent = n as usize + 2;
                eventually("it is sent", async || seen.sum(HEADERS) == sent).await;
            } else {
                client.next_of(&[DATA]).await.expect("an event");
            }
            client.reset(stream, CANCEL).await;
        }
        let cancelled = CANCELLED as usize;
        eventually("all are cancelled", async || {
            seen.sum(RST_STREAM) == cancelled
        })
        .await;
        let resets = seen.of(RST_STREAM);
        assert!(resets.iter().all(|resets| *resets <= most), "{resets:?}");
        // Each connection carries about as many as it may.
        let connections = server.connections();
        assert!(connections <= cancelled.div_ceil(most) + 4, "{resets:?}");
        stays.assert_silent(100).await;
    }
}

#[tokio::test]
async fn a_request_that_a_server_resets_as_malformed_is_not_retried_and_ejects_nothing() {
    let seen = FrameCounts::default();
    let serve = async || {
        let seen = seen.clone();
        FrameServer::start(&[], move |connection, mut frames| {
            let seen = seen.clone();
            async move {
                while let Some(next) = frames.try_next().await {
                    seen.count(connection, &next);
                    if next.payload == b"malformed" {
                        frames.reset(next.stream, PROTOCOL_ERROR).await;
                    } else if next.payload == b"too many fields" {
                        // As Node.js does.
                        frames.reset(next.stream, ENHANCE_YOUR_CALM).await;
                    } else if next.ends_stream() {
                        frames.headers(next.stream, END_STREAM, &[OK]).await;
                    }
                }
            }
        })
        .await
    };
    let [old, new] = [serve().await, serve().await];
    let urls = [old.url(), format!("http://{}", new.address)];
    let args = ["--old", &urls[0], "--new", &urls[1], "--split", "50"];
    let proxy = Proxy::start(&[&args[..], &["--upstream-protocol", "http2"]].concat()).await;
    for body in ["malformed", "too many fields"].repeat(20) {
        let response = client::post(proxy.address, CHAT, &[], body).await;
        assert_eq!(response.status, 502);
        let message = response.own_error()["message"].to_string();
        let expected = "rejected the request as malformed";
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(seen.sum(HEADERS), 40);
    let metrics = proxy.metrics().await;
    let malformed = [("cause", "malformed")];
    let failed = metrics.sum("crossfade_failed_attempts_total", &malformed);
    assert_eq!(failed, 40.0);
    let ejected = [("state", "ejected")];
    assert_eq!(metrics.sum("crossfade_pool_endpoints", &ejected), 0.0);
    for _ in 0..4 {
        let response = client::post(proxy.address, CHAT, &[], UNARY).await;
        assert_eq!(response.status, 200);
    }
}

#[tokio::test]
async fn complete_responses_do_not_count_as_cancelled() {
    let settings = &[(MAX_CONCURRENT_STREAMS, 100)];
    for shape in ["empty", "content", "last frame", "trailers", "event"] {
        let server = FrameServer::answering(settings, move |mut frames, stream| async move {
            let length = ("content-length", "2");
            match shape {
                "empty" => {
                    frames.headers(stream, END_STREAM, &[OK]).await;
                }
                "content" => {
                    frames.headers(stream, 0, &[OK, length]).await;
                    frames.send(DATA, END_STREAM, stream, b"{}").await;
                }
                "last frame" => {
                    frames.headers(stream, 0, &[OK]).await;
                    frames.send(DATA, 0, stream, b"{}").await;
                    frames.send(DATA, END_STREAM, stream, b"").await;
                }
                "trailers" => {
                    frames.headers(stream, 0, &[OK]).await;
                    frames.send(DATA, 0, stream, b"{}").await;
                    frames.headers(stream, END_STREAM, &[("x-a", "1")]).await;
                }
                _ => {
                    frames.headers(stream, 0, &[OK, SSE]).await;
                    let event = format!("{}data: [DONE]\n\n", content("old", 0));
                    frames
                        .send(DATA, END_STREAM, stream, event.as_bytes())
                        .await;
                }
            }
            frames
        })
        .await;
        let proxy = before_frames(&server).await;
        let mut client = Client::connect(proxy.address).await;
        // More than a connection may have cancelled.
        for _ in 0..150 {
            client.post(CHAT, &[], UNARY).await;
            assert_eq!(client.response().await.status, 200, "{shape}");
        }
        assert_eq!(server.connections(), 1, "{shape}");
    }
}
