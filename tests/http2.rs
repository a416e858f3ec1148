//! HTTP/2 without TLS, by prior knowledge, on both sides.

#[path = "support/rig.rs"]
mod rig;

use http::Version;
use rig::client::http2::Client as Http2;
use rig::*;

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
async fn the_authority_becomes_the_host_and_back() {
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
async fn a_hundred_streams_run_side_by_side_on_one_connection() {
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

#[tokio::test]
async fn a_stream_that_is_not_read_does_not_stop_its_neighbours() {
    let flood = upstream::Step::Flood(
        content("old", 0).repeat(64).into(),
        4000,
        std::sync::Arc::default(),
    );
    let flood = Script::new().sse().step(flood).chunk(DONE);
    let old = Upstream::start(move |received| match &*received.target {
        CHAT => flood.clone(),
        _ => unary("old"),
    })
    .await;
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
async fn an_early_answer_reaches_the_client() {
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
async fn an_upstream_that_says_goodbye_loses_no_request() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--upstream-protocol", "http2"]).await;
    proxy.chat().await.assert_is(chat_text("old"));
    let address = old.address;
    drop(old);
    let _old = Upstream::again(address, healthy("again")).await;
    proxy.chat().await.assert_is(chat_text("again"));
}

#[tokio::test]
async fn an_upstream_that_speaks_only_http1_is_a_clear_error_for_http2() {
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
    let proxy = Proxy::start(&[
        "--old",
        &old,
        "--new",
        "127.0.0.1:9",
        "--split",
        "0",
        "--upstream-protocol",
        "http2",
    ])
    .await;
    let response = proxy.chat().await;
    assert_eq!(response.status, 502);
    response.own_error();
    serving.abort();
}
