//! What HTTP/2 costs besides its data. Frames that carry little or nothing are legal, but h2 closes a connection after too many of
//! them, which would break the streams of other clients. A connection to a model server takes memory, even for one request.

use crate::rig::client::http2::Client as Http2;
use crate::rig::frames::*;
use crate::rig::*;

const SSE: (&str, &str) = ("content-type", "text/event-stream");
const OK: (&str, &str) = (":status", "200");
const PADDED: u8 = 8;
const MAX_HEADER_LIST_SIZE: u16 = 6;

async fn before_frames(server: &FrameServer) -> Proxy {
    Proxy::before_url(&server.url(), &["--upstream-protocol", "http2"]).await
}

/// A client that has received the first event of its stream.
async fn begun(proxy: &Proxy) -> Client {
    let mut client = client::open_chat(proxy.address).await;
    assert_eq!(client.head().await.status, 200);
    client.until("\n\n").await;
    client
}

#[tokio::test]
async fn clients_that_leave_do_not_break_the_other_streams_of_the_upstream_connection() {
    // For each stream that is reset, the server sends frames of one byte that were already on their way.
    let server = FrameServer::start(&[], |_, mut frames| async move {
        while let Some(next) = frames.try_next().await {
            let stream = next.stream;
            if next.ends_stream() {
                frames.headers(stream, 0, &[OK, SSE]).await;
                let event = content("old", 0);
                frames.send(DATA, 0, stream, event.as_bytes()).await;
            } else if next.kind == RST_STREAM {
                frames.raw(&frame(DATA, 0, stream, b":").repeat(200)).await;
            }
        }
    })
    .await;
    let proxy = before_frames(&server).await;
    let mut stays = begun(&proxy).await;
    // Each leaves 200 × 255 bytes of h2's budget of 8 MiB uncollected.
    for _ in 0..400 {
        begun(&proxy).await;
    }
    proxy.counts("crossfade_open_streams", &[], 1.0).await;
    stays.assert_silent(200).await;
    let connections = server.connections();
    assert!((2..20).contains(&connections), "{connections}");
}

#[tokio::test]
async fn an_upstream_connection_carries_streams_with_any_number_of_empty_frames() {
    let server = FrameServer::answering(&[], |mut frames, stream| async move {
        frames.headers(stream, 0, &[OK, SSE]).await;
        for n in 0..4 {
            let event = content("old", n);
            let data = frame(DATA, 0, stream, event.as_bytes());
            let empty = frame(DATA, 0, stream, &[]).repeat(40);
            // Over the boundaries of TCP's segments.
            let bytes = [data, empty].concat();
            let (first, rest) = bytes.split_at(bytes.len() - 100 - n);
            frames.raw(first).await;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            frames.raw(rest).await;
        }
        frames.send(DATA, END_STREAM, stream, DONE.as_bytes()).await;
        frames
    })
    .await;
    let proxy = before_frames(&server).await;
    let expected = (0..4).map(|n| content("old", n)).collect::<String>() + DONE;
    for _ in 0..4 {
        proxy.chat().await.assert_is(&expected);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_client_connection_carries_requests_with_any_number_of_empty_frames() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut frames = Frames::connect(proxy.address, &[]).await;
    for stream in [1, 3, 5] {
        frames.request(stream, 0, "POST", CHAT).await;
        let (start, rest) = UNARY.as_bytes().split_at(5);
        frames.send(DATA, 0, stream, start).await;
        frames.raw(&frame(DATA, 0, stream, &[]).repeat(150)).await;
        frames.send(DATA, END_STREAM, stream, rest).await;
        let (body, end) = frames.end_of(stream).await;
        assert_eq!(String::from_utf8(body).unwrap(), unary_text("old"));
        assert!(end.unwrap().ends_stream());
    }
}

#[tokio::test]
async fn a_client_that_pads_empty_frames_is_asked_to_reconnect_before_its_streams_break() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut frames = Frames::connect(proxy.address, &[]).await;
    let mut stream = 1;
    loop {
        frames.request(stream, 0, "POST", CHAT).await;
        // Flow control counts the padding, so that these cannot be removed.
        let padded = frame(DATA, PADDED, stream, &[0]);
        frames.raw(&padded.repeat(20)).await;
        frames
            .send(DATA, END_STREAM, stream, UNARY.as_bytes())
            .await;
        let end = frames.next_of(&[DATA, GOAWAY]).await.unwrap();
        if end.kind == GOAWAY {
            assert_eq!(end.code(), NO_ERROR);
            break;
        }
        assert!(stream < 11, "no GOAWAY");
        stream += 2;
    }
    let (body, end) = frames.end_of(stream).await;
    assert_eq!(String::from_utf8(body).unwrap(), unary_text("old"));
    assert!(end.unwrap().ends_stream());
}

#[tokio::test]
async fn a_head_larger_than_an_http2_server_accepts_is_431_and_never_sent() {
    let server = FrameServer::answering(
        &[(MAX_HEADER_LIST_SIZE, 2000)],
        |mut frames, stream| async move {
            frames.headers(stream, END_STREAM, &[OK]).await;
            frames
        },
    )
    .await;
    let proxy = before_frames(&server).await;
    // The first request of a connection is sent before the server's settings have arrived.
    assert_eq!(client::get(proxy.address, "/health").await.status, 200);
    for (length, status) in [(500, 200), (2000, 431), (500, 200)] {
        let mut client = Client::connect(proxy.address).await;
        client.get("/health", &[("x-a", &"x".repeat(length))]).await;
        let response = client.response().await;
        assert_eq!(response.status, status, "{length}");
        if status == 431 {
            let message = response.own_error()["message"].to_string();
            assert!(message.contains("limit of 2000 bytes"), "{message}");
        }
    }
    assert_eq!(server.connections(), 1);
    let metrics = proxy.metrics().await;
    let rejected = [("cause", "head_too_large")];
    assert_eq!(
        metrics.sum("crossfade_rejected_requests_total", &rejected),
        1.0
    );
    assert_eq!(metrics.sum("crossfade_failed_attempts_total", &[]), 0.0);
}

#[tokio::test]
async fn a_response_that_must_have_no_content_has_none() {
    for status in ["204", "304"] {
        let server = FrameServer::answering(&[], move |mut frames, stream| async move {
            frames.headers(stream, 0, &[(":status", status)]).await;
            frames.send(DATA, END_STREAM, stream, b"content").await;
            frames
        })
        .await;
        let proxy = before_frames(&server).await;
        let client = Http2::connect(proxy.address).await;
        let response = client.get("/health").await;
        assert_eq!(
            (response.status.to_string().as_str(), response.end),
            (status, End::Clean)
        );
        assert_eq!(response.text(), "");
    }
}

#[tokio::test]
async fn a_client_that_uploads_single_bytes_does_not_break_the_other_streams_of_the_upstream_connection()
 {
    // A server that acknowledges each frame, for its stream and for the connection.
    let server = FrameServer::start(&[], |_, mut frames| async move {
        while let Some(next) = frames.try_next().await {
            let stream = next.stream;
            if next.kind == DATA && !next.payload.is_empty() {
                let one = [0, 0, 0, 1];
                let updates = [
                    frame(WINDOW_UPDATE, 0, 0, &one),
                    frame(WINDOW_UPDATE, 0, stream, &one),
                ];
                frames.raw(&updates.concat()).await;
            }
            if next.ends_stream() {
                frames.headers(stream, 0, &[OK, SSE]).await;
                let event = content("old", 0);
                frames.send(DATA, 0, stream, event.as_bytes()).await;
            }
        }
    })
    .await;
    let proxy = before_frames(&server).await;
    let mut stays = begun(&proxy).await;
    let mut uploads = Frames::connect(proxy.address, &[]).await;
    uploads.request(1, 0, "POST", CHAT).await;
    let bytes = frame(DATA, 0, 1, b" ").repeat(10_000);
    uploads.raw(&bytes).await;
    uploads.send(DATA, END_STREAM, 1, UNARY.as_bytes()).await;
    uploads.next_of(&[DATA]).await.expect("an event");
    stays.assert_silent(100).await;
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_client_that_acknowledges_every_event_gets_all_of_them() {
    let whole = (0..5000).map(|n| content("old", n)).collect::<String>() + DONE;
    let script = stream_of(&whole);
    let old = Upstream::start(move |_| script.clone()).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut frames = Frames::connect(proxy.address, &[]).await;
    frames.request(1, 0, "POST", CHAT).await;
    frames.send(DATA, END_STREAM, 1, STREAMING.as_bytes()).await;
    let mut body = Vec::new();
    loop {
        let next = frames
            .next_of(&[DATA, RST_STREAM, GOAWAY])
            .await
            .expect("more");
        assert_eq!(next.kind, DATA, "{next:?}");
        body.extend_from_slice(&next.payload);
        if next.ends_stream() {
            break;
        }
        let size = u32::try_from(next.payload.len()).unwrap().to_be_bytes();
        if size != [0; 4] {
            let updates = [
                frame(WINDOW_UPDATE, 0, 0, &size),
                frame(WINDOW_UPDATE, 0, 1, &size),
            ];
            frames.raw(&updates.concat()).await;
        }
    }
    assert!(body == whole.as_bytes(), "{} bytes", body.len());
}

#[tokio::test]
async fn a_connection_to_an_http2_server_is_charged_to_the_memory_budget() {
    // It never sends its settings, so each request has a connection of its own.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = silent.local_addr().unwrap().to_string();
    let serving = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((connection, _)) = silent.accept().await {
            open.push(connection);
        }
    });
    let budget = [
        "--upstream-protocol",
        "http2",
        "--replay-budget-bytes",
        "1048576",
    ];
    let proxy = Proxy::before_url(&url, &budget).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = Client::connect(proxy.address).await;
        client.get("/health", &[]).await;
        clients.push(client);
    }
    let used = [("kind", "used")];
    let charged = 20.0 * 48.0 * 1024.0;
    proxy.counts("crossfade_memory_bytes", &used, charged).await;
    // Of those beyond the budget and its reserve of 16 MiB, none is opened.
    for _ in 20..400 {
        let mut client = Client::connect(proxy.address).await;
        client.get("/health", &[]).await;
        clients.push(client);
    }
    let mut refused = clients.pop().unwrap();
    assert_eq!(refused.response().await.status, 503);
    let purpose = [("purpose", "connection")];
    let metrics = proxy.metrics().await;
    assert!(metrics.sum("crossfade_memory_refused_total", &purpose) >= 1.0);
    serving.abort();
    drop(clients);
    proxy.counts("crossfade_memory_bytes", &used, 0.0).await;
}

#[tokio::test]
async fn a_response_head_with_too_many_fields_is_not_accepted() {
    for (count, status) in [(127, 200), (128, 502)] {
        let server = FrameServer::answering(&[], move |mut frames, stream| async move {
            let fields = [&[OK][..], &vec![("x", ""); count], &[("y", "")]].concat();
            frames.headers(stream, END_STREAM, &fields).await;
            frames
        })
        .await;
        let proxy = before_frames(&server).await;
        let response = client::get(proxy.address, "/health").await;
        assert_eq!(response.status, status, "{count}");
        if status == 502 {
            let message = response.own_error()["message"].to_string();
            assert!(
                message.contains("the response head is too large"),
                "{message}"
            );
        }
    }
}

#[tokio::test]
async fn a_target_that_is_not_ascii_is_percent_encoded_for_an_http2_server() {
    for (protocol, expected) in [
        ("http2", "/v1/%C3%BC%20?q=%E2%82%AC&r=a%2Fb"),
        ("http1", "/v1/ü%20?q=€&r=a%2Fb"),
    ] {
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let target = "/v1/ü%20?q=€&r=a%2Fb";
        let mut client = Client::connect(proxy.address).await;
        client.get(target, &[]).await;
        client.response().await;
        assert_eq!(old.last().target, expected);
        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.request(1, END_STREAM, "GET", target).await;
        assert_eq!(
            frames.next_of(&[HEADERS, RST_STREAM]).await.unwrap().kind,
            HEADERS
        );
        assert_eq!(old.count(), 2);
        assert_eq!(old.last().target, expected);
    }
}
