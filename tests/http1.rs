//! HTTP/1.1 between a client and the upstream: what a good proxy forwards, adds and takes off, and all that is not a plain POST.

#[path = "support/rig.rs"]
mod rig;

use rig::upstream::Step;
use rig::*;

#[tokio::test]
async fn what_is_meant_for_one_connection_is_taken_off_and_the_rest_stays() {
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
async fn what_other_proxies_said_is_continued() {
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
async fn what_a_response_means_for_one_connection_is_taken_off() {
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
async fn connections_to_the_upstream_are_used_again() {
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
async fn a_connection_that_the_upstream_closed_while_idle_costs_no_request() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.chat().await.assert_is(chat_text("old"));
    // The next server at that address knows nothing of the old connection.
    let address = old.address;
    drop(old);
    let old = Upstream::again(address, healthy("again")).await;
    proxy.chat().await.assert_is(chat_text("again"));
    assert_eq!(old.count(), 1);
}

#[tokio::test]
async fn a_chunked_request_body_arrives_whole() {
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
        // The connection is still in step.
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
async fn an_answer_may_come_before_the_body_was_sent() {
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
async fn an_early_answer_reaches_a_client_that_is_still_sending() {
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
        // A client that gets its answer stops sending.
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
async fn answers_without_a_body_leave_the_connection_in_step() {
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
async fn interim_answers_of_the_upstream_do_not_end_the_exchange() {
    let script = Script::new()
        .raw("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        .then(chat_stream("old"));
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.chat().await.assert_is(chat_text("old"));
}

#[tokio::test]
async fn http_1_0_gets_an_answer_that_ends_with_the_connection() {
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

#[tokio::test]
async fn a_client_that_asks_for_it_has_its_connection_closed() {
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
    // That was about the client's connection only.
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
async fn options_for_the_server_itself_and_other_methods_pass() {
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
async fn targets_pass_as_they_are() {
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
}

#[tokio::test]
async fn an_upgrade_that_is_refused_is_a_plain_answer() {
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
    // The scripted server takes a half-close for a disconnect, as Dynamo does.
    client.assert_silent(50).await;
    assert!(!old.last().is_gone());
    gate.open();
    assert_eq!(client.body().await, chat_text("old").as_bytes());
}

#[tokio::test]
async fn a_malformed_answer_of_the_upstream_is_a_bad_gateway() {
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
async fn bad_chunks_of_the_upstream_are_a_broken_stream() {
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
async fn an_answer_that_nobody_asked_for_spoils_only_its_connection() {
    // A server that sends a second answer behind the first must not have it taken for that of the next request.
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
