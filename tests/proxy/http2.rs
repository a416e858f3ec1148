//! HTTP/2 without TLS, by prior knowledge, on both sides.

use crate::rig::client::http2::Client as Http2;
use crate::rig::frames::*;
use crate::rig::*;
use http::Version;

#[tokio::test]
async fn all_four_pairs_of_versions_pass_a_stream() {
    for protocol in ["http1", "http2"] {
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        proxy.chat().await.assert_is(chat_text("old"));
        let client = Http2::connect(proxy.address).await;
        let response = client.chat().await.response().await;
        response.assert_is(chat_text("old"));
        assert_eq!(response.generation(), "old");
        for name in ["connection", "transfer-encoding", "keep-alive"] {
            assert_eq!(response.header(name), None);
        }
        let version = if protocol == "http2" {
            Version::HTTP_2
        } else {
            Version::HTTP_11
        };
        for request in old.requests() {
            assert_eq!(request.version, version);
            assert_eq!(request.body(), STREAMING.as_bytes());
        }
        client.get("/health").await.assert_is("old: GET /health");
    }
}

#[tokio::test]
async fn the_authority_becomes_the_host_and_vice_versa() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--upstream-protocol", "http1"]).await;
    let client = Http2::connect(proxy.address).await;
    client.chat().await.response().await;
    let seen = old.last();
    assert_eq!(seen.all("host").collect::<Vec<_>>(), ["models.example"]);
    assert_eq!(seen.header("x-forwarded-host"), Some("models.example"));
    assert!(
        seen.header("via").unwrap().starts_with("2"),
        "{}",
        seen.head
    );

    let proxy = Proxy::before(&old, &["--upstream-protocol", "http2"]).await;
    client::post(proxy.address, CHAT, &[("host", "api.example")], STREAMING).await;
    let seen = old.last();
    let authority = seen.header(":authority").or(seen.header("host"));
    assert_eq!(authority, Some("api.example"), "{}", seen.head);
    for name in [
        "connection",
        "transfer-encoding",
        "keep-alive",
        "te",
        "upgrade",
    ] {
        assert_eq!(seen.header(name), None, "{}", seen.head);
    }
}

#[tokio::test]
async fn the_streams_of_one_connection_are_split_one_by_one() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    for protocol in ["http1", "http2"] {
        let flags = ["--upstream-protocol", protocol];
        let proxy = Proxy::split_with(&old, &new, 25, &flags).await;
        let client = Http2::connect(proxy.address).await;
        let (before_old, before_new) = (old.count(), new.count());
        for _ in 0..40 {
            let response = client.chat().await.response().await;
            response.assert_is(chat_text(response.generation()));
        }
        assert_eq!(
            (old.count() - before_old, new.count() - before_new),
            (30, 10)
        );
    }
}

#[tokio::test]
async fn a_hundred_streams_run_concurrently_on_one_connection() {
    for protocol in ["http1", "http2"] {
        let gate = Gate::closed();
        let script = Script::new()
            .sse()
            .events(&content("old", 0))
            .wait(&gate)
            .events(DONE);
        let old = Upstream::always(script).await;
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let client = Http2::connect(proxy.address).await;
        let mut streams = Vec::new();
        for _ in 0..100 {
            let mut stream = client.chat().await;
            stream.until(&content("old", 0)).await;
            streams.push(stream);
        }
        proxy
            .counts("crossfade_open_streams", &[("generation", "old")], 100.0)
            .await;
        gate.open();
        for stream in streams {
            stream.response().await.assert_is(DONE);
        }
        proxy.counts("crossfade_open_streams", &[], 0.0).await;
    }
}

/// A server whose streams never end, and the number of bytes that it has sent.
async fn flooding() -> (Upstream, std::sync::Arc<std::sync::atomic::AtomicU64>) {
    let sent = std::sync::Arc::default();
    let events = content("old", 0).repeat(64).into();
    let flood = upstream::Step::Flood(events, 4000, std::sync::Arc::clone(&sent));
    let flood = Script::new().sse().step(flood).chunk(DONE);
    let old = Upstream::start(move |received| match &*received.target {
        CHAT => flood.clone(),
        _ => unary("old"),
    });
    (old.await, sent)
}

#[tokio::test]
async fn a_stream_that_is_not_read_does_not_block_other_streams() {
    let (old, _) = flooding().await;
    for protocol in ["http1", "http2"] {
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let client = Http2::connect(proxy.address).await;
        let mut unread = client.chat().await;
        unread.piece().await;
        for _ in 0..20 {
            let response = client
                .post("/v1/embeddings", &[], UNARY)
                .await
                .response()
                .await;
            response.assert_is(unary_text("old"));
        }
    }
}

#[tokio::test]
async fn large_bodies_pass_both_ways() {
    let body: Vec<u8> = (0..3 << 20).map(|n: u32| (n * 31 % 253) as u8).collect();
    let answer = body.clone();
    let old =
        Upstream::start(move |_| Script::new().answer(200, "application/octet-stream", &answer))
            .await;
    for protocol in ["http1", "http2"] {
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let client = Http2::connect(proxy.address).await;
        let response = client.post(CHAT, &[], &body).await.response().await;
        assert_eq!((response.status, response.end), (200, End::Clean));
        assert!(response.body == body);
        assert!(old.last().body() == body);
    }
}

#[tokio::test]
async fn an_early_response_reaches_the_client() {
    let old = Upstream::always(status(413).leaving_the_body()).await;
    let proxy = Proxy::before(&old, &["--upstream-protocol", "http2"]).await;
    let client = Http2::connect(proxy.address).await;
    let body = vec![b'x'; 4 << 20];
    let sent = client.send("POST", CHAT, &[], &body);
    match within("an answer", sent).await {
        Ok(stream) => assert_eq!(stream.status, 413),
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn no_request_fails_when_an_upstream_sends_goaway() {
    let port = Port::take();
    let old = Upstream::at(port.address, healthy("old")).await;
    let proxy = Proxy::before(&old, &["--upstream-protocol", "http2"]).await;
    proxy.chat().await.assert_is(chat_text("old"));
    drop(old);
    let _old = Upstream::at(port.address, healthy("again")).await;
    proxy.chat().await.assert_is(chat_text("again"));
}

#[tokio::test]
async fn an_http1_only_upstream_is_a_clear_error_for_http2() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let old = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut some = [0; 1024];
            let _ = stream.read(&mut some).await;
            let _ = stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                .await;
        }
    });
    let proxy = Proxy::before_url(&old, &["--upstream-protocol", "http2"]).await;
    let response = proxy.chat().await;
    assert_eq!(response.status, 502);
    response.own_error();
    serving.abort();
}

/// A proxy in front of one frame-by-frame server.
async fn before_frames(server: &FrameServer, more: &[&str]) -> Proxy {
    let flags = [&["--upstream-protocol", "http2"], more].concat();
    Proxy::before_url(&server.url(), &flags).await
}

const SSE: (&str, &str) = ("content-type", "text/event-stream");
const OK: (&str, &str) = (":status", "200");

/// How an HTTP/2 model server may break off a response.
#[derive(Clone, Copy, Debug)]
enum Break {
    /// RST_STREAM with this error code.
    Reset(u32),
    /// GOAWAY that does not include the stream.
    GoAway(u32),
    /// The end of the connection.
    Eof,
    /// The end of the stream before the announced length.
    Short,
}

const BREAKS: [Break; 7] = [
    Break::Reset(NO_ERROR),
    Break::Reset(CANCEL),
    Break::Reset(INTERNAL_ERROR),
    Break::GoAway(NO_ERROR),
    Break::GoAway(INTERNAL_ERROR),
    Break::Eof,
    Break::Short,
];

/// A server that sends `body` as the start of a longer response and then breaks it off.
async fn breaking(how: Break, content_type: &'static str, body: String) -> FrameServer {
    FrameServer::answering(&[], move |mut frames, stream| {
        let body = body.clone();
        async move {
            let mut fields = vec![OK, ("content-type", content_type)];
            let length = (body.len() + 10).to_string();
            if matches!(how, Break::Short) {
                fields.push(("content-length", &length));
            }
            frames.headers(stream, 0, &fields).await;
            frames.send(DATA, 0, stream, body.as_bytes()).await;
            match how {
                Break::Reset(code) => drop(frames.reset(stream, code).await),
                Break::GoAway(code) => drop(frames.go_away(0, code).await),
                Break::Eof => return Frames::over(tokio::io::empty()),
                Break::Short => drop(frames.send(DATA, END_STREAM, stream, b"").await),
            }
            frames
        }
    })
    .await
}

#[tokio::test]
async fn a_response_that_an_http2_server_breaks_off_never_looks_complete() {
    let half = &unary_text("old")[..40];
    for how in BREAKS {
        let server = breaking(how, "application/json", half.to_owned()).await;
        let proxy = before_frames(&server, &[]).await;
        let response = client::post(proxy.address, CHAT, &[], UNARY).await;
        assert!(response.end.is_unclean(), "{how:?}");
        assert!(half.starts_with(&response.text()), "{how:?}");
        let line = proxy.access_line(1).await;
        assert_eq!(line["outcome"], "truncated", "{how:?}: {line}");

        // An HTTP/2 client gets a reset with an error code.
        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.request(1, 0, "POST", CHAT).await;
        frames.send(DATA, END_STREAM, 1, UNARY.as_bytes()).await;
        let (_, end) = frames.end_of(1).await;
        let end = end.unwrap();
        assert_eq!(end.kind, RST_STREAM, "{how:?}: {end:?}");
        assert_ne!(end.code(), NO_ERROR, "{how:?}");
    }
}

#[tokio::test]
async fn a_stream_that_an_http2_server_breaks_off_ends_with_an_error_event() {
    for how in BREAKS {
        let begun = role("old") + &content("old", 0);
        let server = breaking(how, SSE.1, begun.clone()).await;
        let proxy = before_frames(&server, &[]).await;
        let response = proxy.chat().await;
        let text = response.text();
        assert!(response.end.is_unclean(), "{how:?}: {text}");
        let rest = text.strip_prefix(&begun).unwrap();
        assert!(rest.starts_with("data: {\"error\":"), "{how:?}: {text}");
        assert!(!text.contains("[DONE]"), "{how:?}: {text}");
        let line = proxy.access_line(1).await;
        assert_ne!(line["outcome"], "completed", "{how:?}: {line}");

        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.request(1, 0, "POST", CHAT).await;
        frames.send(DATA, END_STREAM, 1, STREAMING.as_bytes()).await;
        let (body, end) = frames.end_of(1).await;
        let end = end.unwrap();
        assert_eq!(end.kind, RST_STREAM, "{how:?}: {end:?}");
        assert_ne!(end.code(), NO_ERROR, "{how:?}");
        let body = String::from_utf8(body).unwrap();
        assert!(body.contains("data: {\"error\":"), "{how:?}: {body}");
    }
}

#[tokio::test]
async fn a_stream_that_an_http2_server_breaks_off_before_content_is_recovered() {
    let old = Upstream::start(healthy("old")).await;
    for how in BREAKS {
        for begun in [String::new(), role("new")] {
            let new = breaking(how, SSE.1, begun).await;
            let (old, new) = (old.url(), format!("http://{}", new.address));
            let args = ["--old", &old, "--new", &new, "--split", "100"];
            let more = ["--upstream-protocol", "http2"];
            let proxy = Proxy::start(&[&args[..], &more].concat()).await;
            let response = proxy.chat().await;
            response.assert_is(chat_text("old"));
        }
    }
}

#[tokio::test]
async fn a_no_error_reset_after_a_complete_response_is_ignored() {
    let server = FrameServer::answering(&[], |mut frames, stream| async move {
        frames.headers(stream, 0, &[OK]).await;
        frames.send(DATA, END_STREAM, stream, b"whole").await;
        frames.reset(stream, NO_ERROR).await;
        frames
    })
    .await;
    let proxy = before_frames(&server, &[]).await;
    for _ in 0..3 {
        client::get(proxy.address, "/health")
            .await
            .assert_is("whole");
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_response_that_is_longer_than_announced_is_rejected() {
    let server = FrameServer::answering(&[], |mut frames, stream| async move {
        let fields = [OK, ("content-length", "3")];
        frames.headers(stream, 0, &fields).await;
        frames.send(DATA, END_STREAM, stream, b"longer").await;
        frames
    })
    .await;
    let proxy = before_frames(&server, &[]).await;
    let response = client::get(proxy.address, "/health").await;
    assert!(
        response.status == 502 || response.end.is_unclean(),
        "{response:?}"
    );
}

/// It may quote requests of other clients.
#[tokio::test]
async fn the_debug_data_of_a_goaway_is_not_logged() {
    let server = FrameServer::answering(&[], |mut frames, _| async move {
        let payload = [
            &[0; 4],
            &INTERNAL_ERROR.to_be_bytes(),
            &b"a secret prompt"[..],
        ]
        .concat();
        frames.send(GOAWAY, 0, 0, &payload).await;
        frames
    })
    .await;
    let proxy = before_frames(&server, &[]).await;
    assert_eq!(proxy.chat().await.status, 502);
    let line = proxy.access_line(1).await.to_string();
    assert!(line.contains("connection error received"), "{line}");
    let log = proxy.lines().join("\n") + &proxy.stderr();
    assert!(!log.contains("secret"), "{log}");
}

#[tokio::test]
async fn a_goaway_that_includes_the_stream_lets_it_complete() {
    let server = FrameServer::answering(&[], |mut frames, stream| async move {
        let text = chat_text("old");
        let (first, rest) = text.split_at(100);
        frames.headers(stream, 0, &[OK, SSE]).await;
        frames.send(DATA, 0, stream, first.as_bytes()).await;
        frames.go_away(stream, NO_ERROR).await;
        frames.send(DATA, END_STREAM, stream, rest.as_bytes()).await;
        frames
    })
    .await;
    let proxy = before_frames(&server, &[]).await;
    for _ in 0..3 {
        proxy.chat().await.assert_is(chat_text("old"));
    }
    assert_eq!(server.connections(), 3);
}

/// How a server rejects the second request of a connection.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// GOAWAY that does not include the request (RFC 9113 §6.8).
    GoAway,
    /// REFUSED_STREAM (RFC 9113 §8.7).
    Refused,
    /// One of the two above, after an interim response.
    AfterInterim { goes_away: bool },
    /// A reset that does not exclude that the request was processed.
    Reset(u32),
    /// A frame that the proxy detects as a connection error.
    Malformed,
    /// GOAWAY that includes the request, and the end of the connection.
    LateGoAway,
    /// The end of the connection.
    Eof,
}

/// The number of requests that reached a server that rejects the second one, and the status that the client got for it.
async fn refused(how: Refusal) -> (usize, u16) {
    let requests = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = requests.clone();
    let server = FrameServer::answering(&[], move |mut frames, stream| {
        let number = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        async move {
            match (number, how) {
                (2, Refusal::GoAway) => drop(frames.go_away(stream - 2, NO_ERROR).await),
                (2, Refusal::Refused) => drop(frames.reset(stream, REFUSED_STREAM).await),
                (2, Refusal::AfterInterim { goes_away }) => {
                    frames.headers(stream, 0, &[(":status", "103")]).await;
                    match goes_away {
                        true => frames.go_away(stream - 2, NO_ERROR).await,
                        false => frames.reset(stream, REFUSED_STREAM).await,
                    };
                }
                (2, Refusal::Reset(code)) => drop(frames.reset(stream, code).await),
                (2, Refusal::Malformed) => drop(frames.send(DATA, 0, 0, b"x").await),
                (2, Refusal::LateGoAway) => {
                    frames.go_away(stream, INTERNAL_ERROR).await;
                    return Frames::over(tokio::io::empty());
                }
                (2, Refusal::Eof) => return Frames::over(tokio::io::empty()),
                _ => {
                    frames.headers(stream, END_STREAM, &[OK]).await;
                }
            }
            frames
        }
    })
    .await;
    let proxy = before_frames(&server, &[]).await;
    client::post(proxy.address, CHAT, &[], UNARY).await;
    let response = client::post(proxy.address, CHAT, &[], UNARY).await;
    (
        requests.load(std::sync::atomic::Ordering::Relaxed),
        response.status,
    )
}

#[tokio::test]
async fn a_request_is_resent_only_if_the_server_says_that_it_has_not_processed_it() {
    for how in [Refusal::GoAway, Refusal::Refused] {
        assert_eq!(refused(how).await, (3, 200), "{how:?}");
    }
    for how in [
        Refusal::AfterInterim { goes_away: true },
        Refusal::AfterInterim { goes_away: false },
        Refusal::Reset(NO_ERROR),
        Refusal::Reset(CANCEL),
        Refusal::Reset(INTERNAL_ERROR),
        Refusal::Reset(PROTOCOL_ERROR),
        Refusal::Malformed,
        Refusal::LateGoAway,
        Refusal::Eof,
    ] {
        assert_eq!(refused(how).await, (2, 502), "{how:?}");
    }
}

#[tokio::test]
async fn beyond_a_servers_limit_of_streams_another_connection_is_opened() {
    const STREAMS: usize = 15;
    let server = FrameServer::answering(
        &[(MAX_CONCURRENT_STREAMS, 10)],
        |mut frames, stream| async move {
            frames.headers(stream, 0, &[OK, SSE]).await;
            frames
                .send(DATA, 0, stream, content("old", 0).as_bytes())
                .await;
            frames
        },
    )
    .await;
    let proxy = before_frames(&server, &[]).await;
    let mut clients = Vec::new();
    for _ in 0..STREAMS {
        let mut client = client::open_chat(proxy.address).await;
        assert_eq!(client.head().await.status, 200);
        client.until(&content("old", 0)).await;
        clients.push(client);
    }
    assert_eq!(server.connections(), 2);
    drop(clients);
    proxy.counts("crossfade_open_streams", &[], 0.0).await;
    // Cancelled streams free their places.
    let mut client = client::open_chat(proxy.address).await;
    assert_eq!(client.head().await.status, 200);
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn streams_that_are_not_read_do_not_block_another_one_on_the_same_upstream_connection() {
    let (old, sent) = flooding().await;
    let proxy = Proxy::before(&old, &["--upstream-protocol", "http2"]).await;
    let mut unread = Vec::new();
    for _ in 0..60 {
        let mut client = Client::connect_narrow(proxy.address).await;
        client.post(CHAT, &[], STREAMING).await;
        assert_eq!(client.head().await.status, 200);
        unread.push(client);
    }
    // Each stream has filled all buffers between the client and the server.
    stands_still(&sent).await;
    for _ in 0..5 {
        let response = client::post(proxy.address, "/v1/embeddings", &[], UNARY).await;
        response.assert_is(unary_text("old"));
    }
    assert_eq!(old.connections(), 1);
}

#[tokio::test]
async fn an_upload_that_a_server_does_not_read_does_not_block_another_request_to_it() {
    // A server that never opens the window of a stream, as if its application did not read.
    let server = FrameServer::start(&[], |_, mut frames| async move {
        while let Some(frame) = frames.try_next().await {
            if frame.ends_stream() {
                frames
                    .headers(frame.stream, END_STREAM, &[(":status", "200")])
                    .await;
            }
        }
    })
    .await;
    let proxy = before_frames(&server, &[]).await;
    let mut stalled = Client::connect(proxy.address).await;
    let large = vec![b'x'; 200_000];
    stalled.post(CHAT, &[], &large).await;
    for _ in 0..5 {
        let response = client::post(proxy.address, CHAT, &[], UNARY).await;
        assert_eq!((response.status, response.end), (200, End::Clean));
    }
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn an_upload_that_a_server_does_not_read_does_not_stop_a_slow_one() {
    // A server that reads the second upload of its connection only. It never opens the window for what it does not read.
    let settings = &[(MAX_CONCURRENT_STREAMS, 100)];
    let server = FrameServer::start(settings, |_, mut frames| async move {
        while let Some(frame) = frames.try_next().await {
            if frame.kind == DATA && frame.stream == 3 && !frame.payload.is_empty() {
                let length = (frame.payload.len() as u32).to_be_bytes();
                frames.send(WINDOW_UPDATE, 0, 0, &length).await;
                frames.send(WINDOW_UPDATE, 0, 3, &length).await;
            }
            if frame.ends_stream() {
                frames.headers(frame.stream, END_STREAM, &[OK]).await;
            }
        }
    })
    .await;
    let proxy = before_frames(&server, &["--threads", "1"]).await;
    // From now on there is a connection whose server has announced its limit of streams.
    let first = client::post(proxy.address, CHAT, &[], UNARY).await;
    assert_eq!(first.status, 200);
    let head =
        |length| format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    let [mut slow, mut unread] = [
        Client::connect(proxy.address).await,
        Client::connect(proxy.address).await,
    ];
    let length = 100_000;
    slow.send(head(length) + "x").await;
    proxy.counts("crossfade_open_streams", &[], 1.0).await;
    unread.send(head(length) + &"x".repeat(length)).await;
    proxy.counts("crossfade_open_streams", &[], 2.0).await;
    slow.send("x".repeat(length - 1)).await;
    assert_eq!(slow.response().await.status, 200);
}

#[tokio::test]
async fn interim_responses_of_an_http2_server_are_bounded() {
    let server = FrameServer::answering(&[], |mut frames, stream| async move {
        while frames.headers(stream, 0, &[(":status", "103")]).await {
            tokio::task::yield_now().await;
        }
        frames
    })
    .await;
    let proxy = before_frames(&server, &[]).await;
    let response = client::get(proxy.address, "/health").await;
    assert_eq!(response.status, 502);
}

/// Frames that a peer can send without end: no window limits them.
fn control_frames(stream: u32) -> [Vec<u8>; 7] {
    [
        frame(PING, 0, 0, &[0; 8]),
        frame(SETTINGS, 0, 0, &[]),
        frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
        frame(WINDOW_UPDATE, 0, stream, &[0, 0, 0, 1]),
        frame(PRIORITY, 0, stream, &[0, 0, 0, 0, 1]),
        frame(DATA, 0, stream, &[]),
        // Of an unknown type.
        frame(77, 0, 0, &[]),
    ]
}

#[tokio::test]
async fn an_http2_server_that_sends_control_frames_without_end_fails_its_request() {
    for which in 0..control_frames(1).len() {
        let server = FrameServer::answering(&[], move |mut frames, stream| async move {
            frames.headers(stream, 0, &[(":status", "103")]).await;
            let flood = control_frames(stream)[which].repeat(1000);
            while frames.raw(&flood).await {}
            frames
        });
        let server = server.await;
        let proxy = before_frames(&server, &[]).await;
        let response = proxy.chat().await;
        assert_eq!(response.status, 502, "{which}");
        let labels = [("generation", "old")];
        let failed = proxy.metrics().await;
        let failed = failed.sum("crossfade_failed_attempts_total", &labels);
        assert!(failed >= 1.0, "{which}: {failed}");
        proxy.counts("crossfade_open_streams", &[], 0.0).await;
    }
}

#[tokio::test]
async fn an_http2_server_that_sends_without_end_when_no_client_is_left_is_disconnected() {
    let (closed, mut is_closed) = tokio::sync::mpsc::unbounded_channel();
    let server = FrameServer::start(&[], move |connection, mut frames| {
        let closed = closed.clone();
        async move {
            frames.next_of(&[HEADERS]).await;
            let event = content("old", 0);
            let data = frame(DATA, 0, 1, event.as_bytes());
            frames.headers(1, 0, &[OK, SSE]).await;
            frames.raw(&data).await;
            // The proxy resets the stream once its client has left.
            frames.next_of(&[RST_STREAM]).await;
            let flood = match connection {
                1 => data.repeat(100),
                _ => frame(PING, 0, 0, &[0; 8]).repeat(1000),
            };
            while frames.raw(&flood).await {}
            closed.send(connection).unwrap();
        }
    });
    let server = server.await;
    let proxy = before_frames(&server, &[]).await;
    for connections in 1..3 {
        let mut client = client::open_chat(proxy.address).await;
        client.head().await;
        client.until(&content("old", 0)).await;
        drop(client);
        within("the end of the connection", is_closed.recv()).await;
        assert_eq!(server.connections(), connections);
    }
}

/// HTTP/2 requests that must not reach a model server: `(what, fields)`, in addition to the default fields.
const MALFORMED: [(&str, &[(&str, &str)]); 21] = [
    (
        "no authority",
        &[(":method", "GET"), (":scheme", "http"), (":path", "/a")],
    ),
    (
        "no path",
        &[(":method", "GET"), (":scheme", "http"), (":authority", "a")],
    ),
    (
        "an empty path",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", ""),
        ],
    ),
    (
        "no scheme",
        &[(":method", "GET"), (":authority", "a"), (":path", "/a")],
    ),
    (
        "no method",
        &[(":scheme", "http"), (":authority", "a"), (":path", "/a")],
    ),
    (
        "a status",
        &[
            (":status", "200"),
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/a"),
        ],
    ),
    (
        "an asterisk",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "*"),
        ],
    ),
    (
        "an asterisk to post to",
        &[
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "*"),
        ],
    ),
    (
        "a path without its slash",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "a/b"),
        ],
    ),
    (
        "a path that begins with its query",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "?a"),
        ],
    ),
    (
        "a path that is a URL",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "http://b/c"),
        ],
    ),
    (
        "a user in the authority",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "me@a"),
            (":path", "/a"),
        ],
    ),
    (
        "a host beside another authority",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/a"),
            ("host", "b"),
        ],
    ),
    (
        "a field of the connection",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/a"),
            ("connection", "close"),
        ],
    ),
    (
        "a coding of the transfer",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/a"),
            ("transfer-encoding", "chunked"),
        ],
    ),
    (
        "more than trailers in te",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/a"),
            ("te", "gzip"),
        ],
    ),
    (
        "a name in capitals",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/a"),
            ("X-A", "b"),
        ],
    ),
    (
        "a scheme of another protocol",
        &[
            (":method", "GET"),
            (":scheme", "ftp"),
            (":authority", "a"),
            (":path", "/a"),
        ],
    ),
    (
        "a space before a value",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/a"),
            ("x-a", " b"),
        ],
    ),
    (
        "a tab behind a value",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/a"),
            ("x-a", "b\t"),
        ],
    ),
    (
        "a pseudo-header field behind another",
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            ("x-a", "b"),
            (":path", "/a"),
        ],
    ),
];

#[tokio::test]
async fn a_malformed_request_over_http2_reaches_no_model_server() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for (what, fields) in MALFORMED {
        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.headers(1, END_STREAM, fields).await;
        let answer = frames
            .next_of(&[HEADERS, RST_STREAM, GOAWAY])
            .await
            .unwrap();
        match answer.kind {
            // The status, from the static table (RFC 7541 Appendix A).
            HEADERS => assert_eq!(answer.payload[0], 0x80 | 12, "{what}"),
            _ => assert_eq!(answer.code(), PROTOCOL_ERROR, "{what}"),
        }
    }
    for (client_expects, status) in [("100-continue", "200"), ("x", "417")] {
        let client = Http2::connect(proxy.address).await;
        let expect = [("expect", client_expects)];
        let sent = client.send("POST", CHAT, &expect, UNARY).await.unwrap();
        assert_eq!(sent.status.to_string(), status, "{client_expects}");
    }
    assert_eq!(old.count(), 1);
    // Valid requests: without a fault, with an asterisk where it is allowed, and with a fragment, which is not forwarded.
    for (method, path, target) in [
        ("GET", "/a", "/a"),
        ("OPTIONS", "*", "*"),
        ("GET", "/a#b", "/a"),
    ] {
        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.request(1, END_STREAM, method, path).await;
        let answer = frames
            .next_of(&[HEADERS, RST_STREAM, GOAWAY])
            .await
            .unwrap();
        assert_eq!((answer.kind, answer.payload[0]), (HEADERS, 0x88), "{path}");
        assert_eq!(old.last().target, target);
    }
}

#[tokio::test]
async fn an_http2_client_that_expects_100_continue_gets_it_before_it_sends_its_body() {
    for refuses in [false, true] {
        let old = match refuses {
            true => Upstream::always(status(401).leaving_the_body()).await,
            false => Upstream::start(healthy("old")).await,
        };
        for protocol in ["http1", "http2"] {
            let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
            let stream = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
            let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let request = http::Request::post(format!("http://models.example{CHAT}"))
                .header("expect", "100-continue")
                .body(())
                .unwrap();
            let (mut response, mut body) = sender.send_request(request, false).unwrap();
            let next = std::future::poll_fn(|cx| response.poll_informational(cx));
            let interim = within("an interim response", next).await;
            let interim = interim.map(|interim| interim.unwrap().status().as_u16());
            // The early rejection may come before or after `100 Continue`.
            if !refuses {
                assert_eq!(interim, Some(100), "{protocol}");
                body.send_data(STREAMING.into(), true).unwrap();
            }
            let response = within("the response", response).await.unwrap();
            let expected = if refuses { 401 } else { 200 };
            assert_eq!(response.status().as_u16(), expected, "{protocol}");
            if !refuses {
                eventually("the body comes", async || {
                    old.last().body() == STREAMING.as_bytes()
                })
                .await;
            }
        }
    }
}

/// What a server may send in addition to the response of a stream.
#[derive(Clone, Copy, Debug)]
enum Stray {
    DataBehindTheEnd,
    HeadBehindTheEnd,
    /// The response to a request that has not been sent yet.
    Ahead,
    Pushed,
    /// A second head.
    SecondHead,
}

#[tokio::test]
async fn frames_after_a_response_are_never_used_as_another_response() {
    for stray in [
        Stray::DataBehindTheEnd,
        Stray::HeadBehindTheEnd,
        Stray::Ahead,
        Stray::Pushed,
        Stray::SecondHead,
    ] {
        let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let server = FrameServer::answering(&[], move |mut frames, stream| {
            let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move {
                frames.headers(stream, 0, &[OK]).await;
                if number == 0 && matches!(stray, Stray::SecondHead) {
                    frames.headers(stream, 0, &[OK]).await;
                }
                frames.send(DATA, END_STREAM, stream, b"own").await;
                let next = stream + 2;
                match stray {
                    _ if number > 0 => {}
                    Stray::DataBehindTheEnd => {
                        frames.send(DATA, END_STREAM, stream, b"forged").await;
                    }
                    Stray::HeadBehindTheEnd => {
                        frames.headers(stream, END_STREAM, &[OK]).await;
                    }
                    Stray::Ahead => {
                        frames.headers(next, 0, &[OK]).await;
                        frames.send(DATA, END_STREAM, next, b"forged").await;
                    }
                    Stray::Pushed => {
                        let fields = block(&[(":method", "GET"), (":path", "/health")]);
                        let promise = [&2u32.to_be_bytes()[..], &fields].concat();
                        frames
                            .send(PUSH_PROMISE, END_HEADERS, stream, &promise)
                            .await;
                        frames.headers(2, 0, &[OK]).await;
                        frames.send(DATA, END_STREAM, 2, b"forged").await;
                    }
                    Stray::SecondHead => {}
                }
                frames
            }
        })
        .await;
        let proxy = before_frames(&server, &[]).await;
        let first = client::get(proxy.address, "/health").await;
        if matches!(stray, Stray::SecondHead) {
            assert!(first.status == 502 || first.end.is_unclean(), "{first:?}");
        } else {
            first.assert_is("own");
        }
        for _ in 0..5 {
            let response = client::get(proxy.address, "/health").await;
            assert_eq!(
                (response.status, response.text()),
                (200, "own".into()),
                "{stray:?}"
            );
        }
    }
}

#[tokio::test]
async fn split_cookie_fields_are_joined() {
    for protocol in ["http1", "http2"] {
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let client = Http2::connect(proxy.address).await;
        let cookies = [("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3; d=4")];
        client
            .post(CHAT, &cookies, STREAMING)
            .await
            .response()
            .await;
        let seen = old.last();
        let seen: Vec<_> = seen.all("cookie").collect();
        assert_eq!(seen, ["a=1; b=2; c=3; d=4"], "{protocol}");
    }
}

#[tokio::test]
async fn a_request_that_its_client_resets_never_looks_complete() {
    for protocol in ["http1", "http2"] {
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        for (n, code) in [NO_ERROR, CANCEL].into_iter().enumerate() {
            let mut frames = Frames::connect(proxy.address, &[]).await;
            frames.request(1, 0, "POST", CHAT).await;
            frames.send(DATA, 0, 1, &STREAMING.as_bytes()[..20]).await;
            let request = old.request(2 * n + 1).await;
            eventually("half a body", async || request.body_length() == 20).await;
            frames.reset(1, code).await;
            // The response to another request shows that the reset was read.
            frames.request(3, END_STREAM, "GET", "/health").await;
            frames.end_of(3).await;
            proxy.counts("crossfade_open_streams", &[], 0.0).await;
            // Gives a wrong end of the request time to arrive.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            assert!(!request.is_complete(), "{protocol}: {code}");
            if protocol == "http1" {
                // The server would read the next request as the missing part of the body.
                assert_ne!(old.last().connection, request.connection, "{code}");
            }
        }
        proxy.outcomes("cancelled", 2).await;
        // The same if the connection breaks.
        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.request(1, 0, "POST", CHAT).await;
        frames.send(DATA, 0, 1, &STREAMING.as_bytes()[..20]).await;
        let request = old.request(5).await;
        eventually("half a body", async || request.body_length() == 20).await;
        drop(frames);
        proxy.outcomes("cancelled", 3).await;
    }
}

#[tokio::test]
async fn trailers_pass_both_ways_except_those_that_belong_in_a_head() {
    let owned = |fields: &[(&str, &str)]| -> Vec<(String, String)> {
        let fields = fields.iter();
        fields
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    let of_answer = owned(&[
        ("x-sum", "2"),
        ("set-cookie", "a=b"),
        ("www-authenticate", "c"),
    ]);
    let script = Script::new()
        .head(200, &[])
        .chunk("{}")
        .step(upstream::Step::End(of_answer));
    let old = Upstream::always(script).await;
    for protocol in ["http1", "http2"] {
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.request(1, 0, "POST", CHAT).await;
        frames.send(DATA, 0, 1, UNARY.as_bytes()).await;
        let of_request = [
            ("x-sum", "1"),
            ("host", "b"),
            ("authorization", "c"),
            ("x-crossfade-guard", "d"),
        ];
        frames.headers(1, END_STREAM, &of_request).await;
        let (body, end) = frames.end_of(1).await;
        assert_eq!((body, end.unwrap().kind), (b"{}".to_vec(), HEADERS));
        let seen = old.last();
        assert_eq!(seen.body(), UNARY.as_bytes());
        assert_eq!(seen.trailers(), owned(&[("x-sum", "1")]), "{protocol}");

        let client = Http2::connect(proxy.address).await;
        let response = client.post(CHAT, &[], UNARY).await.response().await;
        response.assert_is("{}");
        assert_eq!(response.trailers.0, owned(&[("x-sum", "2")]), "{protocol}");
    }
}

#[tokio::test]
async fn uploads_that_are_not_read_do_not_block_another_request_on_the_same_connection() {
    let old = Upstream::start(|received| match &*received.target {
        "/v1/stalled" => Script::new().hang().leaving_the_body(),
        _ => unary("old"),
    })
    .await;
    let proxy = Proxy::before(&old, &[]).await;
    let client = Http2::connect(proxy.address).await;
    let large = vec![b'x'; 16 << 20];
    let mut uploads = Vec::new();
    for n in 0..20 {
        let mut upload = Box::pin(client.send("POST", "/v1/stalled", &[], &large));
        let begun = async { old.request(n + 1).await };
        tokio::select! {
            _ = &mut upload => panic!("an answer"),
            _ = begun => {}
        }
        uploads.push(upload);
    }
    // Each upload has filled all buffers between the client and the server.
    stands_still_by(async || proxy.metrics().await.sum("crossfade_memory_bytes", &[]) as u64).await;
    for _ in 0..5 {
        let small = client.post("/v1/embeddings", &[], UNARY);
        small.await.response().await.assert_is(unary_text("old"));
    }
}

#[tokio::test]
async fn a_flood_of_an_http2_client_ends_its_connection_or_does_no_harm() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.chat().await.assert_is(chat_text("old"));
    let before = proxy.memory();
    // Streams that are reset at once (CVE-2023-44487) and heads without an end: the proxy closes the connection.
    let mut resets = Vec::new();
    for n in 0..1000 {
        let stream = 2 * n + 1;
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/health"),
            (":authority", "a"),
        ];
        resets.extend(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            stream,
            &block(&fields),
        ));
        resets.extend(frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
    }
    let mut head = frame(HEADERS, 0, 1, &block(&[(":method", "GET")]));
    for _ in 0..1000 {
        head.extend(frame(CONTINUATION, 0, 1, &block(&[("x-a", "b")])));
    }
    for flood in [resets, head] {
        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.raw(&flood).await;
        let seen = frames.until_closed().await;
        let calm = seen.iter().find(|frame| frame.kind == GOAWAY).unwrap();
        assert_eq!(calm.code(), ENHANCE_YOUR_CALM);
        proxy.chat().await.assert_is(chat_text("old"));
    }
    for flood in control_frames(1) {
        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.request(1, 0, "POST", CHAT).await;
        frames.raw(&flood.repeat(5000)).await;
        let seen = frames.until_closed().await;
        let calm = seen.iter().find(|frame| frame.kind == GOAWAY);
        assert_eq!(calm.unwrap().code(), ENHANCE_YOUR_CALM, "{flood:?}");
    }
    // Frames that need a reply, from a client that does not read: replies do not accumulate.
    for flood in [
        frame(PING, 0, 0, &[0; 8]).repeat(1_000_000),
        frame(SETTINGS, 0, 0, &[]).repeat(1_000_000),
    ] {
        let mut frames = Frames::connect(proxy.address, &[]).await;
        let flooding = frames.raw(&flood);
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), flooding).await;
        proxy.chat().await.assert_is(chat_text("old"));
    }
    proxy.counts("crossfade_open_streams", &[], 0.0).await;
    let grown = proxy.memory().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown}");
}

#[tokio::test]
async fn a_client_that_opens_streams_only_to_reset_them_is_disconnected() {
    let old = Upstream::start(healthy("old")).await;
    // The proxy waits for the bodies of these requests, so that nothing else takes time.
    let proxy = Proxy::before(&old, &["--affinity-body-field", "user"]).await;
    let mut frames = Frames::connect(proxy.address, &[]).await;
    let mut stream = 1;
    for batch in 0.. {
        assert!(batch < 200, "{} streams were reset", batch * 100);
        for _ in 0..100 {
            frames.request(stream, 0, "POST", CHAT).await;
            stream += 2;
        }
        // The proxy has accepted each stream before it is reset.
        frames.send(PING, 0, 0, &[0; 8]).await;
        let answer = frames.next_of(&[PING, GOAWAY]).await;
        if let Some(frame) = answer.filter(|frame| frame.kind == GOAWAY) {
            assert_eq!(frame.code(), ENHANCE_YOUR_CALM);
            break;
        }
        for back in 1..=100 {
            frames.reset(stream - 2 * back, CANCEL).await;
        }
    }
    proxy.chat().await.assert_is(chat_text("old"));
    assert_eq!(old.count(), 1);
}

#[tokio::test]
async fn a_head_over_http2_that_is_too_large_is_431() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--max-header-bytes", "8192"]).await;
    let client = Http2::connect(proxy.address).await;
    // The limit counts 32 for each field (RFC 9113 §6.5.2).
    for (length, status) in [(7000, 200), (9000, 431)] {
        let value = "x".repeat(length);
        let sent = client.send("GET", "/health", &[("x-a", &value)], "").await;
        assert_eq!(sent.unwrap().status, status, "{length}");
    }
    for (count, status) in [(128, 200), (129, 431)] {
        let fields = vec![("x", "y"); count];
        let sent = client.send("GET", "/health", &fields, "").await.unwrap();
        assert_eq!(sent.status, status, "{count}");
    }
    let labels = [("cause", "head_too_large")];
    let rejected = "crossfade_rejected_requests_total";
    proxy.counts(rejected, &labels, 1.0).await;
}

#[tokio::test]
async fn an_http2_connection_that_is_idle_for_too_long_is_closed() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--idle-timeout", "0.5"]).await;
    for busy in [true, false] {
        let mut frames = Frames::connect(proxy.address, &[]).await;
        if busy {
            frames.request(1, END_STREAM, "GET", "/health").await;
            frames.end_of(1).await;
        }
        // PINGs do not count as activity.
        frames.send(PING, 0, 0, &[0; 8]).await;
        let seen = frames.until_closed().await;
        assert!(seen.iter().any(|frame| frame.kind == GOAWAY), "{seen:?}");
        // The proxy does not wait for a client that acknowledges nothing.
        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.answers = false;
        frames.until_closed().await;
    }
    // A connection with an open stream is not idle.
    let gate = Gate::closed();
    let old = Upstream::always(Script::new().sse().events(&content("old", 0)).wait(&gate)).await;
    let proxy = Proxy::before(&old, &["--idle-timeout", "0.2"]).await;
    let client = Http2::connect(proxy.address).await;
    let mut stream = client.chat().await;
    stream.until(&content("old", 0)).await;
    // A newer connection is closed before it.
    let mut later = Frames::connect(proxy.address, &[]).await;
    later.until_closed().await;
    gate.open();
    assert_eq!(stream.response().await.end, End::Clean);
}

/// Why the proxy closes a connection whose client has not received its whole response yet.
#[derive(Clone, Copy, Debug)]
enum Closing {
    Idle,
    Drain,
    DrainWithTls,
}

/// Reads a response of `size` bytes slowly and returns every byte to the flow-control windows. Returns how many have arrived.
async fn received_slowly(closing: Closing, size: usize) -> usize {
    let authority = tls::Authority::new();
    let files = authority.issue("proxy");
    let gate = Gate::closed();
    let script = Script::new().wait(&gate);
    let old = Upstream::always(script.answer(200, "text/plain", "x".repeat(size))).await;
    let flags = match closing {
        Closing::Idle => &["--idle-timeout", "0.1"][..],
        Closing::Drain => &[],
        Closing::DrainWithTls => &["--tls-cert", files.cert(), "--tls-key", files.key()],
    };
    let mut proxy = Proxy::before(&old, flags).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(32 * 1024).unwrap();
    let stream = socket.connect(proxy.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut frames = match closing {
        Closing::DrainWithTls => {
            let config = authority.client(&["h2"], None);
            Frames::over(tls::over(stream, config).await.unwrap())
        }
        _ => Frames::over(stream),
    };
    // The windows let the proxy send the whole response at once.
    let window = u32::try_from(size).unwrap();
    frames.raw(PREFACE).await;
    frames.settings(&[(INITIAL_WINDOW_SIZE, window)]).await;
    let add = window.to_be_bytes();
    frames.send(WINDOW_UPDATE, 0, 0, &add).await;
    frames.request(1, END_STREAM, "GET", "/slow").await;
    if !matches!(closing, Closing::Idle) {
        eventually("the request arrives", async || old.count() == 1).await;
        proxy.terminate();
        // The client acknowledges the PING after it, so that the connection ends with the stream.
        frames.next_of(&[GOAWAY]).await.unwrap();
        frames.next_of(&[PING]).await.unwrap();
    }
    gate.open();
    let mut received = 0;
    let mut pauses = true;
    while let Some(frame) = frames.next_of(&[DATA]).await {
        received += frame.payload.len();
        if frame.ends_stream() {
            break;
        }
        if received > size / 4 && std::mem::take(&mut pauses) {
            tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let add = u32::try_from(frame.payload.len()).unwrap().to_be_bytes();
        frames.send(WINDOW_UPDATE, 0, 0, &add).await;
    }
    drop(frames);
    if !matches!(closing, Closing::Idle) {
        assert_eq!(proxy.end().await, Some(0), "{closing:?}");
    }
    received
}

#[tokio::test]
async fn a_slow_http2_client_receives_its_whole_response_before_its_connection_is_closed() {
    let size = 800_000;
    let received = [Closing::Idle, Closing::Drain, Closing::DrainWithTls]
        .map(|closing| async move { (closing, received_slowly(closing, size).await) });
    for (closing, received) in futures_util::future::join_all(received).await {
        assert_eq!(received, size, "{closing:?}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_complete_the_http2_preface_is_closed_at_the_head_timeout() {
    let authority = tls::Authority::new();
    let files = authority.issue("proxy");
    let old = Upstream::start(healthy("old")).await;
    let more = ["--head-timeout", "0.3"];
    let more_tls = [
        &more[..],
        &["--tls-cert", files.cert(), "--tls-key", files.key()],
    ]
    .concat();
    let clear = Proxy::before(&old, &more).await;
    let encrypted = Proxy::before(&old, &more_tls).await;
    let config = authority.client(&["h2"], None);
    for beginning in [&b""[..], &PREFACE[..10], PREFACE] {
        let stream = tls::connect(encrypted.address, config.clone())
            .await
            .unwrap();
        let connections = [Frames::over(stream), Frames::silent(clear.address).await];
        for mut frames in connections {
            let start = std::time::Instant::now();
            frames.answers = false;
            frames.raw(beginning).await;
            frames.until_closed().await;
            let took = start.elapsed();
            assert!(
                took < std::time::Duration::from_secs(3),
                "{beginning:?}: {took:?}"
            );
        }
    }
}

/// A limit of h2: RFC 9113 §8.1.1 asks for stream errors only.
#[tokio::test]
async fn a_field_that_http_does_not_allow_ends_its_connection_and_other_malformed_heads_their_stream()
 {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for (field, ends) in [
        (("X-Upper", "1"), GOAWAY),
        (("x y", "1"), GOAWAY),
        (("x-control", "a\u{1}b"), GOAWAY),
        ((":unknown", "1"), GOAWAY),
        ((":path", "/again"), RST_STREAM),
        (("connection", "close"), RST_STREAM),
        (("te", "gzip"), RST_STREAM),
    ] {
        let mut frames = Frames::connect(proxy.address, &[]).await;
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/health"),
            (":authority", "models.example"),
            field,
        ];
        frames.headers(1, END_STREAM, &fields).await;
        let end = frames.next_of(&[GOAWAY, RST_STREAM]).await.unwrap();
        assert_eq!((end.kind, end.code()), (ends, PROTOCOL_ERROR), "{field:?}");
        if ends == RST_STREAM {
            frames.request(3, END_STREAM, "GET", "/health").await;
            assert_eq!(frames.end_of(3).await.0, b"old: GET /health");
        }
    }
    // Pseudo-header fields in trailers are dropped.
    let mut frames = Frames::connect(proxy.address, &[]).await;
    frames.request(1, 0, "POST", "/tokenize").await;
    frames.send(DATA, 0, 1, b"{}").await;
    let trailers = [(":path", "/other"), ("x-checksum", "1")];
    frames.headers(1, END_STREAM, &trailers).await;
    assert_eq!(frames.end_of(1).await.0, unary_text("old").as_bytes());
}

/// Also while another stream of the connection is open.
#[tokio::test]
async fn a_head_over_http2_that_is_not_completed_ends_its_connection() {
    let gate = Gate::closed();
    let script = stream_of(&content("old", 0)).wait(&gate).chunk(DONE);
    let old = Upstream::start(move |_| script.clone()).await;
    let proxy = Proxy::before(&old, &["--head-timeout", "0.5"]).await;
    for with_stream in [false, true] {
        let mut frames = Frames::connect(proxy.address, &[]).await;
        frames.next_of(&[SETTINGS]).await.unwrap();
        if with_stream {
            frames.request(1, 0, "POST", CHAT).await;
            frames.send(DATA, END_STREAM, 1, UNARY.as_bytes()).await;
            frames.next_of(&[DATA]).await.unwrap();
        }
        let begun = std::time::Instant::now();
        // An acknowledgement would interrupt the header block.
        frames.answers = false;
        // Indexed fields (RFC 7541 §6.1).
        frames.send(HEADERS, END_STREAM, 3, &[0x82]).await;
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        frames.send(CONTINUATION, 0, 3, &[0x86]).await;
        let end = frames.next_of(&[GOAWAY]).await.unwrap();
        assert_eq!(end.code(), ENHANCE_YOUR_CALM);
        let took = begun.elapsed().as_secs_f64();
        assert!((0.4..5.0).contains(&took), "{took}");
    }
}

#[tokio::test]
async fn a_stream_whose_client_reads_nothing_is_reset_at_the_write_timeout() {
    let large = "x".repeat(1 << 20);
    let old = Upstream::start(move |received| match &*received.target {
        "/large" => Script::new().answer(200, "text/plain", &large),
        "/open" => Script::new().sse().hang(),
        _ => Script::new().answer(200, "text/plain", "fine"),
    })
    .await;
    let proxy = Proxy::before(&old, &["--write-timeout", "0.5"]).await;
    let settings = [(INITIAL_WINDOW_SIZE, 1)];
    let mut frames = Frames::connect(proxy.address, &settings).await;
    frames.request(1, END_STREAM, "GET", "/large").await;
    let labels = [("limit", "write")];
    let timeouts = "crossfade_client_timeouts_total";
    let (_, end) = frames.end_of(1).await;
    let end = end.unwrap();
    assert_eq!((end.kind, end.code()), (RST_STREAM, CANCEL));
    proxy.outcomes("cancelled", 1).await;
    let why = proxy.access_line(1).await["why"].to_string();
    assert!(why.contains("read nothing"), "{why}");
    proxy.counts(timeouts, &labels, 1.0).await;
    // A short response, which has arrived completely, is no exception, whatever other streams do.
    frames.request(3, END_STREAM, "GET", "/open").await;
    frames.request(5, END_STREAM, "GET", "/small").await;
    let (body, end) = frames.end_of(5).await;
    let end = end.unwrap();
    assert_eq!((body.len(), end.kind, end.code()), (1, RST_STREAM, CANCEL));
    proxy.counts(timeouts, &labels, 2.0).await;
    proxy.outcomes("cancelled", 2).await;
    let why = proxy.access_line(2).await["why"].to_string();
    assert!(why.contains("read nothing"), "{why}");
}

#[tokio::test]
async fn a_client_that_reads_slowly_but_steadily_is_served_beyond_the_write_timeout() {
    let old = Upstream::start(|received| {
        let length = received.target[1..].parse().unwrap_or(0);
        Script::new().answer(200, "text/plain", "x".repeat(length))
    })
    .await;
    let proxy = Proxy::before(&old, &["--write-timeout", "0.5"]).await;
    let mut frames = Frames::connect(proxy.address, &[(INITIAL_WINDOW_SIZE, 1)]).await;
    for (stream, length) in [(1, 60_000), (3, 2000)] {
        let path = format!("/{length}");
        frames.request(stream, END_STREAM, "GET", &path).await;
        for _ in 0..15 {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            let more = 50u32.to_be_bytes();
            frames.send(WINDOW_UPDATE, 0, stream, &more).await;
        }
        for stream in [0, stream] {
            let rest = 60_000u32.to_be_bytes();
            frames.send(WINDOW_UPDATE, 0, stream, &rest).await;
        }
        let (body, end) = frames.end_of(stream).await;
        let end = end.expect("the connection is open");
        assert!(end.ends_stream(), "{end:?}");
        assert_eq!(body.len(), length);
    }
    let labels = [("limit", "write")];
    let timeouts = "crossfade_client_timeouts_total";
    proxy.counts(timeouts, &labels, 0.0).await;
}

/// A server with small windows, which it reopens at once. It responds with the length of the body. If `refuses`, it rejects each
/// request on its first connection after it has received a part of the body.
async fn small_windows(refuses: bool) -> FrameServer {
    let settings = &[(INITIAL_WINDOW_SIZE, 2000), (MAX_CONCURRENT_STREAMS, 3)];
    FrameServer::start(settings, move |connection, mut frames| async move {
        let mut received = std::collections::HashMap::<u32, usize>::new();
        while let Some(frame) = frames.try_next().await {
            if frame.kind == DATA && refuses && connection == 1 {
                frames.reset(frame.stream, REFUSED_STREAM).await;
                continue;
            }
            if frame.kind == DATA && !frame.payload.is_empty() {
                *received.entry(frame.stream).or_default() += frame.payload.len();
                let more = u32::try_from(frame.payload.len()).unwrap().to_be_bytes();
                for stream in [0, frame.stream] {
                    frames.send(WINDOW_UPDATE, 0, stream, &more).await;
                }
            }
            if frame.ends_stream() {
                let length = received.remove(&frame.stream).unwrap_or(0).to_string();
                let fields = [(":status", "200"), ("x-received", length.as_str())];
                frames.headers(frame.stream, END_STREAM, &fields).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn uploads_in_pieces_arrive_through_small_windows_even_if_they_are_resent() {
    for refuses in [false, true] {
        let server = small_windows(refuses).await;
        let url = server.url();
        // With another target, the body is kept for a retry.
        let both = ["--old", &url, "--new", &url, "--split", "50"];
        let proxy = Proxy::start(&[&both[..], &["--upstream-protocol", "http2"]].concat()).await;
        let address = proxy.address;
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..60 {
            clients.spawn(async move {
                let piece = [100, 2323, 10_046][number % 3];
                let mut client = Client::connect(address).await;
                client
                    .send(format!(
                        "POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
                    ))
                    .await;
                for _ in 0..10 {
                    let chunk = format!("{piece:x}\r\n{}\r\n", "x".repeat(piece));
                    client.send(chunk).await;
                    // So that the proxy reads each piece separately.
                    tokio::time::sleep(std::time::Duration::from_millis(3)).await;
                }
                client.send("0\r\n\r\n").await;
                let response = client.response().await;
                let length = (10 * piece).to_string();
                assert_eq!(response.header("x-received"), Some(&*length), "{refuses}");
            });
        }
        clients.join_all().await;
    }
}

#[tokio::test]
async fn while_old_drains_connections_older_than_ten_seconds_are_closed() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let plan = PlanFile::new(&manifest(&new.url(), 0, 1, "oldDraining: true"));
    let drains = Proxy::planned(&old, &plan, &[]).await;
    let serves = Proxy::split(&old, &new, 100).await;
    let mut frames = Frames::connect(drains.address, &[]).await;
    let mut leaving = Client::connect(drains.address).await;
    let mut staying = Client::connect(serves.address).await;
    staying.post(CHAT, &[], UNARY).await;
    assert_eq!(staying.response().await.status, 200);
    let begun = std::time::Instant::now();
    eventually("the connection is told to close", async || {
        leaving.post(CHAT, &[], UNARY).await;
        let response = leaving.response().await;
        assert_eq!((response.status, response.generation()), (200, "new"));
        response.header("connection") == Some("close")
    })
    .await;
    assert!(begun.elapsed().as_secs() >= 10, "{:?}", begun.elapsed());
    frames.request(1, END_STREAM, "POST", "/tokenize").await;
    let answer = frames.next_of(&[GOAWAY]).await.unwrap();
    assert_eq!(answer.code(), 0);
    // Only while old drains.
    staying.post(CHAT, &[], UNARY).await;
    assert_eq!(staying.response().await.header("connection"), None);
}

#[tokio::test]
async fn response_heads_wait_for_a_client_that_reads_nothing() {
    let long = "v".repeat(15_000);
    for trailers in [false, true] {
        let old = if trailers {
            let body = format!("1\r\nx\r\n0\r\nx-long: {long}\r\n\r\n");
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            Upstream::always(Script::new().raw(&(head.to_owned() + &body))).await
        } else {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-long: {long}\r\n\r\n");
            Upstream::always(Script::new().raw(&head)).await
        };
        let proxy = Proxy::before(&old, &[]).await;
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let socket = socket.connect(proxy.address).await.unwrap();
        let mut frames = Frames::over(socket);
        frames.raw(PREFACE).await;
        frames.settings(&[]).await;
        let mut last = 1;
        // As many at a time as are allowed. The client knows nothing of the responses.
        for batch in 1..=20 {
            for _ in 0..100 {
                frames.request(last, END_STREAM, "GET", "/x").await;
                last += 2;
            }
            let until = std::time::Instant::now() + std::time::Duration::from_millis(500);
            while old.count() < batch * 100 && std::time::Instant::now() < until {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
        // The buffers of the kernel take some.
        assert!(
            old.count() < 1200,
            "{} with trailers: {trailers}",
            old.count()
        );
        // Once the client reads, it gets them.
        let (_, end) = frames.end_of(1).await;
        assert!(end.is_some_and(|end| end.ends_stream()));
    }
}
