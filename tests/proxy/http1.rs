//! HTTP/1.1 semantics: which headers the proxy forwards, adds and removes, connection reuse, framing, upgrades, and methods other
//! than POST.

use crate::rig::upstream::Step;
use crate::rig::*;

#[tokio::test]
async fn hop_by_hop_headers_of_a_request_are_removed_and_all_others_stay() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let headers = [
        ("host", "api.example:8443"),
        ("connection", "keep-alive, X-Mine"),
        ("x-mine", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("upgrade", "h2c"),
        ("authorization", "Bearer secret"),
        (
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ),
        ("tracestate", "a=b"),
        ("x-request-id", "abc"),
        ("cookie", "a=1"),
        ("x-empty", ""),
        ("accept", "text/event-stream"),
        ("user-agent", "test"),
        ("x-latin", "caf\u{e9}"),
    ];
    let response = client::post(proxy.address, CHAT, &headers, STREAMING).await;
    response.assert_is(chat_text("old"));
    let seen = old.last();
    for gone in ["x-mine", "keep-alive", "proxy-connection", "upgrade"] {
        assert_eq!(seen.header(gone), None, "{}", seen.head);
    }
    for (name, value) in &headers {
        if ![
            "connection",
            "x-mine",
            "keep-alive",
            "proxy-connection",
            "upgrade",
        ]
        .contains(name)
        {
            assert_eq!(seen.header(name), Some(*value), "{name}");
        }
    }
    assert_eq!(seen.all("host").count(), 1);
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x-forwarded-host"), Some("api.example:8443"));
    assert!(
        seen.header("via").unwrap().starts_with("1.1 "),
        "{}",
        seen.head
    );
}

#[tokio::test]
async fn the_forwarding_headers_of_other_proxies_are_extended() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let headers = [
        ("x-forwarded-for", "10.1.1.1"),
        ("x-forwarded-for", "10.2.2.2"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "outer.example"),
        ("forwarded", "for=10.1.1.1"),
        ("via", "1.0 edge"),
    ];
    client::post(proxy.address, CHAT, &headers, STREAMING).await;
    let seen = old.last();
    let all = |name: &str| seen.all(name).collect::<Vec<_>>().join(", ");
    assert_eq!(all("x-forwarded-for"), "10.1.1.1, 10.2.2.2, 127.0.0.1");
    assert_eq!(all("x-forwarded-proto"), "https");
    assert_eq!(all("x-forwarded-host"), "outer.example");
    assert!(
        all("forwarded").starts_with("for=10.1.1.1, for=127.0.0.1"),
        "{}",
        seen.head
    );
    assert!(all("via").starts_with("1.0 edge, 1.1 "), "{}", seen.head);
}

#[tokio::test]
async fn hop_by_hop_headers_of_a_response_are_removed() {
    let headers = [
        ("content-type", "application/json"),
        ("content-length", "2"),
        ("connection", "x-mine"),
        ("x-mine", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("x-theirs", "1"),
    ];
    let old = Upstream::always(Script::new().head(200, &headers).chunk("{}")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let response = client::post(proxy.address, CHAT, &[], UNARY).await;
    response.assert_is("{}");
    for gone in ["x-mine", "keep-alive", "proxy-connection"] {
        assert_eq!(response.header(gone), None);
    }
    assert_eq!(response.header("x-theirs"), Some("1"));
}

#[tokio::test]
async fn connections_to_the_upstream_are_reused() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for _ in 0..10 {
        proxy.chat().await.assert_is(chat_text("old"));
        client::post(proxy.address, CHAT, &[], UNARY)
            .await
            .assert_is(unary_text("old"));
        assert_eq!(client::get(proxy.address, "/health").await.status, 200);
    }
    assert_eq!(old.connections(), 1);
}

#[tokio::test]
async fn no_request_fails_because_the_upstream_closed_an_idle_connection() {
    let port = Port::take();
    let old = Upstream::at(port.address, healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.chat().await.assert_is(chat_text("old"));
    // The next server at this address does not know the old connection.
    drop(old);
    let old = Upstream::at(port.address, healthy("again")).await;
    proxy.chat().await.assert_is(chat_text("again"));
    assert_eq!(old.count(), 1);
}

/// A server that reads its second request, which arrives on the connection of the first, and then breaks off.
async fn breaks_the_second(breaks: Script) -> Upstream {
    let count = std::sync::atomic::AtomicUsize::new(0);
    Upstream::start(
        move |request| match count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            1 => breaks.clone(),
            _ => healthy("old")(request),
        },
    )
    .await
}

#[tokio::test]
async fn a_post_that_the_server_may_have_read_is_not_resent_to_it() {
    for (name, breaks) in [
        ("a reset", Script::new().reset()),
        ("an end", Script::new().eof()),
        (
            "a reset after a sign of life",
            Script::new().raw("HTTP/1.1 102 Processing\r\n\r\n").reset(),
        ),
        (
            "an end amid the head",
            Script::new()
                .raw("HTTP/1.1 200 OK\r\ncontent-le")
                .pause(5)
                .eof(),
        ),
    ] {
        for path in [CHAT, "/v1/embeddings", "/anything"] {
            let old = breaks_the_second(breaks.clone()).await;
            let proxy = Proxy::before(&old, &[]).await;
            proxy.chat().await.assert_is(chat_text("old"));
            let response = client::post(proxy.address, path, &[], UNARY).await;
            assert_eq!(response.status, 502, "{name}, {path}");
            let seen = old.requests();
            assert_eq!(seen.len(), 2, "{name}, {path}");
            assert_eq!(seen[0].connection, seen[1].connection, "{name}, {path}");
        }
    }
}

#[tokio::test]
async fn a_get_is_resent_once_unless_the_server_has_started_to_respond() {
    for (breaks, status, count) in [
        (Script::new().reset(), 200, 3),
        (Script::new().eof(), 200, 3),
        (Script::new().raw("HTTP/1.1 102 Pro").eof(), 502, 2),
        (
            Script::new()
                .raw("HTTP/1.1 103 Early Hints\r\n\r\n")
                .reset(),
            502,
            2,
        ),
    ] {
        let old = breaks_the_second(breaks).await;
        let proxy = Proxy::before(&old, &[]).await;
        proxy.chat().await.assert_is(chat_text("old"));
        let response = client::get(proxy.address, "/health").await;
        assert_eq!((response.status, old.count()), (status, count));
    }
}

#[tokio::test]
async fn a_chunked_request_body_arrives_complete() {
    let old = Upstream::start(healthy("old")).await;
    for protocol in ["http1", "http2"] {
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let mut client = Client::connect(proxy.address).await;
        client
            .send(format!(
                "POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
            ))
            .await;
        let (first, second) = STREAMING.split_at(10);
        client
            .send(format!("{:x};name=value\r\n{first}\r\n", first.len()))
            .await;
        client
            .send(format!("0{:X}\r\n{second}\r\n0\r\n\r\n", second.len()))
            .await;
        client.response().await.assert_is(chat_text("old"));
        assert_eq!(old.last().body(), STREAMING.as_bytes());
        // The connection is still in sync.
        client.post(CHAT, &[], UNARY).await;
        client.response().await.assert_is(unary_text("old"));
    }
}

#[tokio::test]
async fn a_large_body_arrives_byte_for_byte_in_any_pieces() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let body: Vec<u8> = (0..400 * 1024u32).map(|n| (n * 31 % 253) as u8).collect();
    for size in [body.len(), 1000, 65_536] {
        let mut client = Client::connect(proxy.address).await;
        client
            .send(format!(
                "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n",
                body.len()
            ))
            .await;
        for piece in body.chunks(size) {
            client.send(piece).await;
        }
        client.response().await.assert_is(unary_text("old"));
        assert!(old.last().body() == body);
    }
}

#[tokio::test]
async fn a_head_may_come_in_single_bytes() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    let text = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{STREAMING}",
        STREAMING.len()
    );
    for byte in text.as_bytes() {
        client.send([*byte]).await;
    }
    client.response().await.assert_is(chat_text("old"));
}

#[tokio::test]
async fn a_client_that_expects_100_continue_gets_it_before_it_sends_its_body() {
    let old = Upstream::start(healthy("old")).await;
    for protocol in ["http1", "http2"] {
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let mut client = Client::connect(proxy.address).await;
        for _ in 0..2 {
            client
                .send(format!(
                    "POST {CHAT} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
                    STREAMING.len()
                ))
                .await;
            assert_eq!(client.head().await.status, 100);
            client.send(STREAMING).await;
            client.response().await.assert_is(chat_text("old"));
            assert_eq!(old.last().body(), STREAMING.as_bytes());
        }
    }
}

#[tokio::test]
async fn a_response_may_arrive_before_the_body_was_sent() {
    let refusal = || status(413).leaving_the_body();
    let old = Upstream::always(refusal()).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    let length = 20 << 20;
    client
        .send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"
        ))
        .await;
    client.send(vec![b'x'; 100_000]).await;
    let response = client.response().await;
    assert_eq!((response.status, response.text()), (413, status_text(413)));
}

#[tokio::test]
async fn an_early_response_reaches_a_client_that_is_still_sending() {
    let old = Upstream::always(status(413).leaving_the_body()).await;
    let proxy = Proxy::before(&old, &[]).await;
    let stream = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
    let (reader, mut writer) = stream.into_split();
    let sending = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        let length = 8 << 20;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        let mut is_open = writer.write_all(head.as_bytes()).await.is_ok();
        for _ in 0..length / 10_000 {
            is_open = is_open && writer.write_all(&[b'x'; 10_000]).await.is_ok();
        }
        // A client that gets its response stops sending.
        std::future::pending::<()>().await;
    });
    let mut client = Client::over(tokio::io::join(reader, tokio::io::sink()));
    let response = client.response().await;
    assert_eq!((response.status, response.text()), (413, status_text(413)));
    sending.abort();
}

#[tokio::test]
async fn a_head_request_gets_the_head_only() {
    let headers = [("content-type", "text/plain"), ("content-length", "1234")];
    let old = Upstream::always(Script::new().head(200, &headers)).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    for path in ["/health", CHAT] {
        client
            .send(format!("HEAD {path} HTTP/1.1\r\nhost: a\r\n\r\n"))
            .await;
        let response = client.bodiless().await;
        assert_eq!(response.status, 200);
        assert_eq!(response.header("content-length"), Some("1234"));
        assert_eq!(old.last().method, "HEAD");
    }
    proxy.outcomes("completed", 2).await;
}

#[tokio::test]
async fn responses_without_a_body_leave_the_connection_in_sync() {
    for code in [204, 304] {
        let old = Upstream::always(Script::new().head(code, &[("content-length", "0")])).await;
        let proxy = Proxy::before(&old, &[]).await;
        let mut client = Client::connect(proxy.address).await;
        for _ in 0..3 {
            client.get("/x", &[]).await;
            let response = client.response().await;
            assert_eq!((response.status, response.body.len()), (code, 0));
        }
    }
}

#[tokio::test]
async fn interim_responses_of_the_upstream_do_not_end_the_exchange() {
    let script = Script::new()
        .raw("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        .then(chat_stream("old"));
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.chat().await.assert_is(chat_text("old"));
}

/// A server that sends without end does not block its thread: other requests are served, and a disconnect of the client is
/// noticed.
#[tokio::test]
async fn a_server_that_sends_without_end_is_disconnected_and_other_requests_are_served() {
    let interim = "HTTP/1.1 102 Processing\r\n\r\n".repeat(100);
    let extension = format!("1;{}\r\nx\r\n", "e".repeat(1000)).repeat(16);
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for (name, first, flood, status) in [
        ("interim answers", "", interim, 502),
        ("chunk extensions", head, extension, 200),
    ] {
        let sent = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let script = Script::new()
            .raw(first)
            .step(Step::Flood(flood.into(), 40_000, sent.clone()));
        let old = Upstream::always(script).await;
        let proxy = Proxy::before(&old, &[]).await;
        let mut client = Client::connect(proxy.address).await;
        client.post(CHAT, &[], UNARY).await;
        let response = client.response().await;
        assert_eq!(response.status, status, "{name}");
        if status == 200 {
            assert!(response.end.is_unclean(), "{name}");
        }
        eventually("the server is left", async || old.last().is_gone()).await;
        // More than the socket buffers of both sides can hold.
        let most = 16 << 20;
        let sent = sent.load(std::sync::atomic::Ordering::Relaxed);
        assert!(sent < most, "{name}: {sent}");
    }
}

#[tokio::test]
async fn a_client_disconnect_is_noticed_while_the_server_sends_without_end() {
    // Comments are not content, so the response stays retryable while they are read.
    let comment = format!(":{}\n\n", "c".repeat(1000)).repeat(30);
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let times = 100_000;
    let all = (comment.len() * times) as u64;
    let script = Script::new()
        .sse()
        .step(Step::Flood(comment.into(), times, sent.clone()));
    let old = Upstream::start(move |request| match request.target.as_str() {
        CHAT => script.clone(),
        _ => status(200),
    })
    .await;
    let proxy = Proxy::before(&old, &[]).await;
    let client = client::open_chat(proxy.address).await;
    let first = old.request(1).await;
    let mut client = client;
    client.head().await;
    let mut reading = tokio::spawn(async move { while client.piece().await.is_some() {} });
    // Other requests on the same thread are served.
    for _ in 0..20 {
        assert_eq!(client::get(proxy.address, "/nowhere").await.status, 200);
    }
    assert!(sent.load(std::sync::atomic::Ordering::Relaxed) < all);
    assert!(!reading.is_finished());
    reading.abort();
    let _ = (&mut reading).await;
    eventually("the server is left", async || first.is_gone()).await;
    assert!(sent.load(std::sync::atomic::Ordering::Relaxed) < all);
}

#[tokio::test]
async fn http_1_0_gets_a_response_that_ends_with_the_connection() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for host in ["", "Host: a\r\n"] {
        let mut client = Client::connect(proxy.address).await;
        let length = STREAMING.len();
        client
            .send(format!(
                "POST {CHAT} HTTP/1.0\r\n{host}content-length: {length}\r\n\r\n{STREAMING}"
            ))
            .await;
        let response = client.response().await;
        response.assert_is(chat_text("old"));
        assert_eq!(response.header("transfer-encoding"), None);
        assert_eq!(client.until_closed().await.1, End::Eof);
    }
    let seen = old.last();
    assert!(
        seen.head.contains("HTTP/1.1\r\n") && seen.all("host").count() == 1,
        "{}",
        seen.head
    );
}

fn http_1_0(path: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// If a response ends with its connection, the client treats every end except a reset as the end of a complete response.
#[tokio::test]
async fn a_cut_response_to_an_http_1_0_client_ends_with_a_reset() {
    let begun = || Script::new().sse().chunk(content("old", 0));
    let whole = || Script::new().head(200, &[]).chunk("begun");
    let until_close = || {
        Script::new()
            .head(200, &[("connection", "close")])
            .chunk("begun")
    };
    let authority = tls::Authority::new();
    let files = authority.issue("server");
    for (name, script, begins) in [
        ("a stream that is reset", begun().reset(), content("old", 0)),
        ("a stream that ends", begun().eof(), content("old", 0)),
        ("an answer that is reset", whole().reset(), "begun".into()),
        ("an answer that ends", whole().eof(), "begun".into()),
        ("one until the close", until_close().reset(), "begun".into()),
    ] {
        let old = Upstream::always(script).await;
        for with_tls in [false, true] {
            let flags = ["--tls-cert", files.cert(), "--tls-key", files.key()];
            let flags = if with_tls { &flags[..] } else { &[] };
            let proxy = Proxy::before(&old, flags).await;
            let mut client = if with_tls {
                let config = authority.client(&["http/1.1"], None);
                Client::over(tls::connect(proxy.address, config).await.unwrap())
            } else {
                Client::connect(proxy.address).await
            };
            client.send(http_1_0(CHAT, STREAMING)).await;
            let response = client.response().await;
            assert!(response.text().starts_with(&begins), "{name}");
            assert_eq!(response.end, End::Reset, "{name}, TLS {with_tls}");
        }
    }
}

#[tokio::test]
async fn a_cut_response_ends_with_a_reset_if_its_client_half_closed_or_its_proxy_died() {
    let script = Script::new().sse().chunk(content("old", 0)).hang();
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client.send(http_1_0(CHAT, STREAMING)).await;
    client.head().await;
    client.until(&content("old", 0)).await;
    client.half_close().await;
    client.body().await;
    assert_eq!(client.end, Some(End::Reset));
    let mut client = Client::connect(proxy.address).await;
    client.send(http_1_0(CHAT, STREAMING)).await;
    client.head().await;
    client.until(&content("old", 0)).await;
    proxy.signal(libc::SIGKILL);
    client.body().await;
    assert_eq!(client.end, Some(End::Reset));
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_gets_no_response() {
    let old = Upstream::always(Script::new().pause(300).json(200, "{}")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client.post(CHAT, &[], UNARY).await;
    client.half_close().await;
    assert_eq!(client.until_closed().await, (Vec::new(), End::Eof));
    proxy.outcomes("cancelled", 1).await;
}

#[tokio::test]
async fn a_tunnel_that_is_cut_ends_with_a_reset() {
    let switch =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let upgrade =
        "GET /v1/realtime HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    for (ends, end) in [
        (Script::new().reset(), End::Reset),
        (Script::new().eof(), End::Eof),
    ] {
        let script = Script::new().raw(switch).raw("begun").then(ends);
        let old = Upstream::always(script).await;
        let proxy = Proxy::before(&old, &[]).await;
        let mut client = Client::connect(proxy.address).await;
        client.send(upgrade).await;
        assert_eq!(client.head().await.status, 101);
        assert_eq!(client.exactly(5).await, b"begun");
        if end == End::Eof {
            client.half_close().await;
        }
        assert_eq!(client.until_closed().await.1, end);
    }
}

#[tokio::test]
async fn a_request_without_a_host_gets_that_of_the_server() {
    let old = Upstream::start(healthy("old")).await;
    for protocol in ["http1", "http2"] {
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let mut client = Client::connect(proxy.address).await;
        client.send("GET /health HTTP/1.0\r\n\r\n").await;
        client.response().await.assert_is("old: GET /health");
        let seen = old.last();
        let authority = seen.header(":authority").or(seen.header("host"));
        assert_eq!(authority, Some(&*old.url()), "{protocol}: {}", seen.head);
    }
}

#[tokio::test]
async fn a_response_that_has_no_content_has_no_content_length() {
    for length in ["5", "0"] {
        let script = Script::new().head(204, &[("content-length", length)]);
        let old = Upstream::always(script).await;
        let proxy = Proxy::before(&old, &[]).await;
        let mut client = Client::connect(proxy.address).await;
        for _ in 0..2 {
            client.get("/x", &[]).await;
            let response = client.response().await;
            assert_eq!(response.status, 204);
            assert_eq!(response.header("content-length"), None);
        }
        let client = client::http2::Client::connect(proxy.address).await;
        let response = client.get("/x").await;
        assert_eq!(response.status, 204);
        assert_eq!(response.header("content-length"), None);
    }
}

#[tokio::test]
async fn trailers_reach_the_server_no_matter_how_the_body_was_read() {
    let old = Upstream::start(healthy("old")).await;
    let rest = "0\r\nx-sum: 1\r\nhost: b\r\nauthorization: c\r\nx-crossfade-guard: d\r\n\r\n";
    for protocol in ["http1", "http2"] {
        for affinity in [&[][..], &["--affinity-body-field", "user"]] {
            let flags = [&["--upstream-protocol", protocol][..], affinity].concat();
            let proxy = Proxy::before(&old, &flags).await;
            for pauses in [false, true] {
                let mut client = Client::connect(proxy.address).await;
                let chunk = format!("{:x}\r\n{UNARY}\r\n", UNARY.len());
                let head = format!(
                    "POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
                );
                if pauses {
                    let before = old.count();
                    client.send(head + &chunk).await;
                    if affinity.is_empty() {
                        old.request(before + 1).await;
                    }
                    client.send(rest).await;
                } else {
                    client.send(head + &chunk + rest).await;
                }
                client.response().await.assert_is(unary_text("old"));
                let wanted = [("x-sum".to_owned(), "1".to_owned())];
                let seen = old.last();
                assert_eq!(seen.body(), UNARY.as_bytes());
                assert_eq!(seen.trailers(), wanted, "{protocol} {affinity:?} {pauses}");
            }
        }
    }
}

#[tokio::test]
async fn trailers_of_a_response_that_belong_in_a_head_are_removed() {
    let trailers = [
        ("x-sum", "1"),
        ("content-length", "5"),
        ("transfer-encoding", "chunked"),
        ("set-cookie", "a=b"),
        ("x-crossfade-generation", "new"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    for code in [200, 404] {
        let script = Script::new()
            .head(code, &[])
            .chunk("{}")
            .step(Step::End(trailers.clone()));
        let old = Upstream::always(script).await;
        let proxy = Proxy::before(&old, &[]).await;
        let response = client::post(proxy.address, CHAT, &[], UNARY).await;
        assert_eq!((response.status, response.text()), (code, "{}".into()));
        assert_eq!(response.end, End::Clean);
        assert_eq!(
            response.trailers.0,
            [("x-sum".into(), "1".into())],
            "{code}"
        );
    }
}

#[tokio::test]
async fn trailers_that_are_named_in_connection_are_removed() {
    let answer = "HTTP/1.1 200 OK\r\nconnection: X-Hop\r\nx-hop: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-hop: 2\r\nx-sum: 3\r\n\r\n";
    let old = Upstream::always(Script::new().raw(answer)).await;
    for affinity in [&[][..], &["--affinity-body-field", "user"]] {
        let proxy = Proxy::before(&old, affinity).await;
        let mut client = Client::connect(proxy.address).await;
        client
            .send(format!(
                "POST {CHAT} HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, X-Hop\r\nx-hop: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\nx-hop: 2\r\nx-sum: 3\r\n\r\n"
            ))
            .await;
        let response = client.response().await;
        let wanted = [("x-sum".to_owned(), "3".to_owned())];
        assert_eq!(response.header("x-hop"), None);
        assert_eq!(response.trailers.0, wanted);
        let seen = old.last();
        assert_eq!(seen.header("x-hop"), None);
        assert_eq!(seen.trailers(), wanted, "{affinity:?}");
    }
}

/// More bytes than all buffers on the path hold.
const MUCH: usize = 64 << 20;

/// A server that starts a response of `MUCH` bytes at once, and reads the body of the request only if `reads`.
async fn talks_while_it_listens(
    reads: bool,
) -> (std::net::SocketAddr, tokio::sync::watch::Receiver<usize>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (count, counted) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut reader, mut writer) = stream.into_split();
        let mut piece = vec![0; 64 * 1024];
        let _ = reader.read(&mut piece).await;
        let reading = tokio::spawn(async move {
            while reads
                && let Ok(read) = reader.read(&mut piece).await
                && read > 0
            {
                count.send_modify(|count| *count += read);
            }
            std::future::pending::<()>().await;
        });
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {MUCH}\r\n\r\n");
        let _ = writer.write_all(head.as_bytes()).await;
        for _ in 0..MUCH / 65_536 {
            let _ = writer.write_all(&[b'a'; 65_536]).await;
        }
        let _ = reading.await;
    });
    (address, counted)
}

#[tokio::test]
async fn a_request_is_forwarded_while_its_client_does_not_read_the_response() {
    let (address, mut counted) = talks_while_it_listens(true).await;
    let proxy = Proxy::before_url(&address.to_string(), &[]).await;
    let mut client = Client::connect_narrow(proxy.address).await;
    client
        .send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {MUCH}\r\n\r\n"
        ))
        .await;
    for _ in 0..MUCH / 65_536 {
        client.send([b'x'; 65_536]).await;
    }
    within(
        "all is sent",
        counted.wait_for(|count| *count > MUCH - 65_536),
    )
    .await
    .unwrap();
    assert_eq!(client.response().await.body.len(), MUCH);
}

#[tokio::test]
async fn a_request_is_forwarded_while_its_http2_client_does_not_read_the_response() {
    let (address, mut counted) = talks_while_it_listens(true).await;
    let proxy = Proxy::before_url(&address.to_string(), &[]).await;
    let client = client::http2::Client::connect(proxy.address).await;
    let unread = client.post(CHAT, &[], vec![b'x'; MUCH]).await;
    within(
        "all is sent",
        counted.wait_for(|count| *count > MUCH - 65_536),
    )
    .await
    .unwrap();
    assert_eq!(unread.response().await.body.len(), MUCH);
}

#[tokio::test]
async fn a_response_is_forwarded_while_its_server_does_not_read_the_request() {
    let (address, _) = talks_while_it_listens(false).await;
    let proxy = Proxy::before_url(&address.to_string(), &[]).await;
    let stream = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
    let (reader, mut writer) = stream.into_split();
    let sending = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {MUCH}\r\n\r\n");
        let _ = writer.write_all(head.as_bytes()).await;
        for _ in 0..MUCH / 65_536 {
            let _ = writer.write_all(&[b'x'; 65_536]).await;
        }
        std::future::pending::<()>().await;
    });
    let mut client = Client::over(tokio::io::join(reader, tokio::io::sink()));
    assert_eq!(client.response().await.body.len(), MUCH);
    sending.abort();
}

#[tokio::test]
async fn a_connection_is_closed_if_its_client_requests_it() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client
        .post(CHAT, &[("connection", "close")], STREAMING)
        .await;
    let response = client.response().await;
    response.assert_is(chat_text("old"));
    assert_eq!(response.header("connection"), Some("close"));
    assert_eq!(client.until_closed().await, (vec![], End::Eof));
    // The header applied to the client's connection only.
    proxy.chat().await;
    assert_eq!(old.connections(), 1);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    let post = |body: &str| {
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let get = "GET /health HTTP/1.1\r\nhost: a\r\n\r\n";
    client
        .send(post(STREAMING) + get + &post(UNARY) + get)
        .await;
    client.response().await.assert_is(chat_text("old"));
    client.response().await.assert_is("old: GET /health");
    client.response().await.assert_is(unary_text("old"));
    client.response().await.assert_is("old: GET /health");
}

#[tokio::test]
async fn an_absolute_target_replaces_the_host() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client
        .send("GET http://real.example:81/health?x=1 HTTP/1.1\r\nhost: other\r\n\r\n")
        .await;
    client.response().await.assert_is("old: GET /health?x=1");
    assert_eq!(
        old.last().all("host").collect::<Vec<_>>(),
        ["real.example:81"]
    );
    client
        .send(format!(
            "POST http://real.example{CHAT} HTTP/1.1\r\nhost: other\r\ncontent-length: {}\r\n\r\n{STREAMING}",
            STREAMING.len()
        ))
        .await;
    client.response().await.assert_is(chat_text("old"));
}

#[tokio::test]
async fn options_asterisk_and_other_methods_pass() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    for line in [
        "OPTIONS *",
        "OPTIONS /v1/chat/completions",
        "DELETE /v1/files/x",
        "PATCH /x",
        "QUERY /x",
    ] {
        client
            .send(format!("{line} HTTP/1.1\r\nhost: a\r\n\r\n"))
            .await;
        let response = client.response().await;
        assert_eq!(response.status, 200);
        assert!(
            old.last().head.starts_with(&format!("{line} HTTP/1.1\r\n")),
            "{}",
            old.last().head
        );
    }
}

#[tokio::test]
async fn request_targets_pass_unchanged() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for target in [
        "/a%2Fb/../c?d=e%20f&g",
        "/a//b",
        "/%7Euser;x=1",
        "/x?",
        "/x?a?b=/c",
    ] {
        client::get(proxy.address, target).await;
        assert_eq!(old.last().target, target);
    }
}

#[tokio::test]
async fn a_websocket_is_tunnelled_both_ways() {
    let (old, new) = (Upstream::start(healthy("old")).await, {
        let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: abc\r\n\r\nfirst";
        Upstream::always(Script::new().raw(head).step(Step::Echo)).await
    });
    let proxy = Proxy::split(&old, &new, 100).await;
    let mut client = Client::connect(proxy.address).await;
    client
        .send(
            "GET /v1/realtime?model=tiny HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-key: xyz\r\nsec-websocket-version: 13\r\n\r\nearly",
        )
        .await;
    let head = client.head().await;
    assert_eq!(head.status, 101);
    assert_eq!(head.headers.get("sec-websocket-accept"), Some("abc"));
    assert!(
        head.headers
            .get("upgrade")
            .unwrap()
            .eq_ignore_ascii_case("websocket")
    );
    assert!(
        head.headers
            .get("connection")
            .unwrap()
            .eq_ignore_ascii_case("upgrade")
    );
    assert_eq!(client.exactly(10).await, b"firstearly");
    let bytes: Vec<u8> = (0..200_000u32).map(|n| (n * 17 % 256) as u8).collect();
    for piece in bytes.chunks(20_000) {
        client.send(piece).await;
        assert!(client.exactly(piece.len()).await == piece);
    }
    assert_eq!(old.count(), 0);
    let seen = new.last();
    assert_eq!(seen.target, "/v1/realtime?model=tiny");
    assert_eq!(seen.header("sec-websocket-key"), Some("xyz"));
    assert!(
        seen.header("upgrade")
            .unwrap()
            .eq_ignore_ascii_case("websocket")
    );
    assert!(
        seen.header("connection")
            .unwrap()
            .to_lowercase()
            .contains("upgrade")
    );
    proxy
        .counts("crossfade_open_streams", &[("generation", "new")], 1.0)
        .await;
    drop(client);
    proxy
        .counts("crossfade_open_streams", &[("generation", "new")], 0.0)
        .await;
    let line = proxy.access_line(1).await;
    assert_eq!(line["endpoint"], new.url().replace("http://", ""), "{line}");
}

#[tokio::test]
async fn a_rejected_upgrade_is_an_ordinary_response() {
    let old = Upstream::always(status(426)).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    for _ in 0..2 {
        client
            .get(
                "/v1/realtime",
                &[("connection", "upgrade"), ("upgrade", "websocket")],
            )
            .await;
        let response = client.response().await;
        assert_eq!((response.status, response.text()), (426, status_text(426)));
    }
}

#[tokio::test]
async fn the_upstream_is_never_half_closed() {
    let gate = Gate::closed();
    let script = Script::new().sse().wait(&gate).events(&chat_text("old"));
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    // The scripted server treats a half-close as a disconnect, as Dynamo does.
    client.assert_silent(50).await;
    assert!(!old.last().is_gone());
    gate.open();
    assert_eq!(client.body().await, chat_text("old").as_bytes());
}

#[tokio::test]
async fn a_malformed_response_of_the_upstream_is_a_bad_gateway() {
    let long = "x".repeat(300_000);
    for raw in [
        "HELLO\r\n\r\n".to_owned(),
        "HTTP/1.1 999999 X\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n{}".to_owned(),
        "HTTP/1.1 200 OK\r\nx y: z\r\ncontent-length: 2\r\n\r\n{}".to_owned(),
        format!("HTTP/1.1 200 OK\r\nx: {long}\r\n\r\n"),
    ] {
        let old = Upstream::always(Script::new().raw(&raw).eof()).await;
        let proxy = Proxy::before(&old, &[]).await;
        let response = client::post(proxy.address, CHAT, &[], UNARY).await;
        assert_eq!(response.status, 502, "{:?}", &raw[..raw.len().min(60)]);
        response.own_error();
    }
}

#[tokio::test]
async fn malformed_chunks_of_the_upstream_break_the_stream() {
    for bad in [
        "zz\r\nabc\r\n",
        "3\r\nabcd\r\n",
        "-1\r\n",
        "fffffffffffffffff\r\n",
    ] {
        let gate = Gate::closed();
        let script = Script::new()
            .sse()
            .chunk(content("old", 0))
            .wait(&gate)
            .raw(bad)
            .hang();
        let old = Upstream::always(script).await;
        let proxy = Proxy::before(&old, &[]).await;
        let mut client = client::open_chat(proxy.address).await;
        client.head().await;
        client.until(&content("old", 0)).await;
        gate.open();
        let rest = String::from_utf8(client.body().await).unwrap();
        assert!(client.end.unwrap().is_unclean(), "{bad:?}: {rest}");
        assert!(
            rest.starts_with("data: {\"error\":") && rest.contains("\"code\":502"),
            "{bad:?}: {rest}"
        );
        eventually("the connection is given up", async || old.last().is_gone()).await;
    }
}

#[tokio::test]
async fn data_before_malformed_chunks_is_forwarded() {
    let good = content("old", 0);
    for content_type in ["text/event-stream", "application/octet-stream"] {
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{good}\r\nzz\r\n",
            good.len()
        );
        let old = Upstream::always(Script::new().raw(answer).hang()).await;
        let proxy = Proxy::before(&old, &[]).await;
        let mut client = client::open_chat(proxy.address).await;
        assert_eq!(client.head().await.status, 200);
        let body = String::from_utf8(client.body().await).unwrap();
        assert!(client.end.unwrap().is_unclean(), "{content_type}");
        assert!(body.starts_with(&good), "{content_type}: {body}");
    }
}

#[tokio::test]
async fn a_response_head_is_bounded_regardless_of_the_number_of_pieces() {
    let head = |length: usize| {
        let padding = "x".repeat(length);
        format!("HTTP/1.1 200 OK\r\nx-padding: {padding}\r\ncontent-length: 2\r\n\r\n{{}}")
    };
    for (length, status) in [(60_000, 200), (66_000, 502), (120_000, 502)] {
        let old = Upstream::always(Script::new().raw(head(length))).await;
        let proxy = Proxy::before(&old, &[]).await;
        for _ in 0..3 {
            let response = client::get(proxy.address, "/health").await;
            assert_eq!(response.status, status, "{length}");
        }
    }
}

#[tokio::test]
async fn an_unsolicited_response_invalidates_only_its_connection() {
    // A second response after the first must not be used as the response to the next request.
    let extra = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged";
    let script = Script::new().json(200, "{}").raw(extra);
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    for _ in 0..5 {
        client.post(CHAT, &[], UNARY).await;
        client.response().await.assert_is("{}");
    }
}

/// An unsolicited response after the requested one.
const SURPLUS: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged";

#[tokio::test]
async fn bytes_after_a_response_are_never_read_as_the_next_response() {
    let whole = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    let answers = [
        format!("{whole}content-length: 2\r\n\r\n{{}}"),
        format!("{whole}transfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"),
        format!("{whole}content-length: 0\r\n\r\n"),
        "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned(),
    ];
    let surpluses = [SURPLUS, "\r\n", "H", "HTTP/1.1 100 Continue\r\n\r\n"];
    for answer in &answers {
        for surplus in surpluses {
            for in_one_piece in [true, false] {
                let [gate, sent] = [Gate::closed(), Gate::closed()];
                let opened = sent.clone();
                let odd = match in_one_piece {
                    true => Script::new().raw(format!("{answer}{surplus}")),
                    // While the connection is idle.
                    false => Script::new().raw(answer).wait(&gate).raw(surplus),
                };
                let odd = odd.step(Step::Then(std::sync::Arc::new(move |_| {
                    opened.open();
                    Script::new()
                })));
                let old = Upstream::start(move |request| match request.header("x-odd") {
                    Some(_) => odd.clone(),
                    None => healthy("old")(request),
                })
                .await;
                let proxy = Proxy::before(&old, &[]).await;
                client::post(proxy.address, CHAT, &[("x-odd", "1")], UNARY).await;
                gate.open();
                within("the surplus", sent.wait()).await;
                for _ in 0..2 {
                    proxy.chat().await.assert_is(chat_text("old"));
                }
                let what = format!("{answer:?} {surplus:?} {in_one_piece}");
                let seen = old.requests();
                assert_eq!(seen.len(), 3, "{what}");
                assert_ne!(seen[0].connection, seen[1].connection, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn the_body_of_a_response_that_must_not_have_one_is_never_read_as_the_next_response() {
    // Responses to HEAD and with a status without content have no body, so any body is surplus.
    let with_body = |status: &str| {
        let length = SURPLUS.len();
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{SURPLUS}")
    };
    for (method, status) in [
        ("HEAD", "200 OK"),
        ("GET", "204 No Content"),
        ("GET", "304 Not Modified"),
    ] {
        let odd = Script::new().raw(with_body(status));
        let old = Upstream::start(move |request| match request.header("x-odd") {
            Some(_) => odd.clone(),
            None => healthy("old")(request),
        })
        .await;
        let proxy = Proxy::before(&old, &[]).await;
        let mut client = Client::connect(proxy.address).await;
        client
            .send(format!(
                "{method} /health HTTP/1.1\r\nhost: a\r\nx-odd: 1\r\n\r\n"
            ))
            .await;
        assert_eq!(client.head().await.status.to_string(), status[..3]);
        // The client's connection continues with the next response.
        client.post(CHAT, &[], STREAMING).await;
        client.response().await.assert_is(chat_text("old"));
    }
}

/// Error responses that a server may send before it has read the body of the request, with all framings.
fn early_answers() -> Vec<(&'static str, Script)> {
    let stream = [("content-type", "text/event-stream")];
    vec![
        ("a refusal", status(401)),
        ("one without content", Script::new().json(401, "")),
        ("one in chunks", Script::new().head(401, &[]).chunk("no")),
        (
            "one with trailers",
            Script::new()
                .head(401, &[])
                .chunk("no")
                .step(Step::End(vec![("x-sum".into(), "1".into())])),
        ),
        (
            "one that closes",
            Script::new().head(401, &[("content-length", "0"), ("connection", "close")]),
        ),
        ("204", Script::new().head(204, &[])),
        (
            "304",
            Script::new().raw("HTTP/1.1 304 Not Modified\r\n\r\n"),
        ),
        ("a 404", Script::new().json(404, "{\"detail\":\"no\"}")),
        ("an empty 404", Script::new().json(404, "")),
        ("a 503", status(503)),
        (
            "a stream",
            Script::new().head(200, &stream).events(&chat_text("old")),
        ),
        (
            "hints before it",
            Script::new()
                .raw("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
                .then(status(401)),
        ),
    ]
}

/// If the connection of an incomplete request were reused, the server would read the next request as the missing part of the
/// body.
#[tokio::test]
async fn a_connection_with_an_incomplete_request_is_never_reused() {
    let framings = ["content-length: 100000", "transfer-encoding: chunked"];
    let expectations = ["expect: 100-continue\r\n", ""];
    for (name, answer) in early_answers() {
        for framing in framings {
            for expects in expectations {
                let early = answer.clone().leaving_the_body();
                let old = Upstream::start(move |request| match request.header("x-early") {
                    Some(_) => early.clone(),
                    None => healthy("old")(request),
                })
                .await;
                let proxy = Proxy::before(&old, &[]).await;
                let mut client = Client::connect(proxy.address).await;
                client
                    .send(format!(
                        "POST {CHAT} HTTP/1.1\r\nhost: a\r\nx-early: 1\r\n{expects}{framing}\r\n\r\n"
                    ))
                    .await;
                if expects.is_empty() {
                    // The body starts but does not end.
                    client.send("6\r\nbegun!\r\n").await;
                }
                let head = client.head().await;
                assert!(head.status >= 200, "{name}: {}", head.status);
                client.rest(head).await;
                // The request of another client is not read as the rest of that body.
                let other = client::post(proxy.address, CHAT, &[], STREAMING).await;
                other.assert_is(chat_text("old"));
                let seen = old.requests();
                let what = format!("{name}, {framing}, {expects:?}");
                assert_eq!(seen.len(), 2, "{what}");
                assert_ne!(seen[0].connection, seen[1].connection, "{what}");
                assert_eq!(seen[1].body(), STREAMING.as_bytes(), "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_after_100_continue_ends_its_connection() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client
        .send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 400\r\n\r\n"
        ))
        .await;
    assert_eq!(client.head().await.status, 100);
    client.send("begun!").await;
    let first = old.request(1).await;
    eventually("the body begins", async || first.body_length() > 0).await;
    drop(client);
    eventually("its connection ends", async || first.is_gone()).await;
    proxy.chat().await.assert_is(chat_text("old"));
    assert_ne!(old.last().connection, first.connection);
}

#[tokio::test]
async fn a_connection_does_not_switch_protocols_before_the_request_has_ended() {
    let switch =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let early = Script::new().raw(switch).step(Step::Echo);
    let old = Upstream::always(early.leaving_the_body()).await;
    let proxy = Proxy::before(&old, &[]).await;
    let upgrade =
        "GET /v1/realtime HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n";
    for rest in [
        "content-length: 100000\r\n\r\nbegun!",
        "transfer-encoding: chunked\r\n\r\n6\r\nbegun!\r\n",
    ] {
        // So many failures would eject the server if they were its own.
        for _ in 0..14 {
            let mut client = Client::connect(proxy.address).await;
            client.send(format!("{upgrade}{rest}")).await;
            assert_eq!(client.response().await.status, 502);
        }
    }
    let failed = [("generation", "old"), ("cause", "malformed")];
    proxy
        .counts("crossfade_failed_attempts_total", &failed, 28.0)
        .await;
    assert!(!proxy.plan().await.contains("\"healthy\": false"));
}

#[tokio::test]
async fn a_server_only_switches_to_a_protocol_that_the_client_asked_for() {
    for (asked, answered, status) in [
        ("websocket", "upgrade: WebSocket\r\n", 101),
        ("websocket, irc/6.9", "upgrade: irc/6.9\r\n", 101),
        ("websocket", "upgrade: irc\r\n", 502),
        ("websocket", "upgrade: websocket, irc\r\n", 502),
        ("websocket", "upgrade: websocket\r\nupgrade: irc\r\n", 502),
        ("irc/6.9", "upgrade: irc/7\r\n", 502),
        ("websocket", "upgrade: \r\n", 502),
        ("websocket", "", 502),
    ] {
        let switch =
            format!("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n{answered}\r\n");
        let old = Upstream::always(Script::new().raw(&switch).step(Step::Echo)).await;
        let proxy = Proxy::before(&old, &[]).await;
        let mut client = Client::connect(proxy.address).await;
        let upgrade = [("connection", "upgrade"), ("upgrade", asked)];
        client.get("/v1/realtime", &upgrade).await;
        assert_eq!(client.head().await.status, status, "{asked}: {answered}");
    }
}

#[tokio::test]
async fn a_switch_to_another_protocol_is_a_failed_attempt() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: irc\r\n\r\n";
    let new = Upstream::always(Script::new().raw(switch).step(Step::Echo)).await;
    let old = Upstream::always(status(426)).await;
    let proxy = Proxy::split(&old, &new, 100).await;
    let mut client = Client::connect(proxy.address).await;
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    client.get("/v1/realtime", &upgrade).await;
    assert_eq!(client.response().await.status, 426);
    let failed = [("generation", "new"), ("cause", "broken")];
    proxy
        .counts("crossfade_failed_attempts_total", &failed, 1.0)
        .await;
}
