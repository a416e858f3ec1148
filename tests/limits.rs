//! Limits, and the clear answers that tell of them.

#[path = "support/rig.rs"]
mod rig;

use std::time::{Duration, Instant};

use rig::*;

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let old = Upstream::start(healthy("old")).await;
    let flags = ["--max-header-bytes", "8192"];
    let proxy = Proxy::before(&old, &flags).await;
    let head = |size: usize| {
        format!(
            "GET /health HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "x".repeat(size)
        )
    };
    let mut client = Client::connect(proxy.address).await;
    client.send(head(6000)).await;
    assert_eq!(client.response().await.status, 200);
    for text in [head(20_000), head(20_000_000)] {
        let mut client = Client::connect(proxy.address).await;
        let sending = client.try_send(&text);
        let _ = tokio::time::timeout(Duration::from_millis(200), sending).await;
        let response = client.response().await;
        assert_eq!(response.status, 431);
        response.own_error();
        client.until_closed().await;
    }
    assert_eq!(old.count(), 1);
    let labels = [("cause", "head_too_large")];
    proxy
        .counts("crossfade_rejected_requests_total", &labels, 2.0)
        .await;
}

#[tokio::test]
async fn too_many_header_lines_are_431() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client
        .send(format!(
            "GET /health HTTP/1.1\r\nHost: a\r\n{}\r\n",
            "x: y\r\n".repeat(5000)
        ))
        .await;
    assert_eq!(client.response().await.status, 431);
    assert_eq!(old.count(), 0);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_413() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--max-body-bytes", "1000"]).await;
    let response = client::post(proxy.address, CHAT, &[], "x".repeat(1000)).await;
    assert_eq!(response.status, 200);
    let response = client::post(proxy.address, CHAT, &[], "x".repeat(1001)).await;
    assert_eq!(response.status, 413);
    response.own_error();
    assert_eq!(old.count(), 1);

    // With no length to judge by, it is noticed on the way.
    let mut client = Client::connect(proxy.address).await;
    client
        .send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        ))
        .await;
    for _ in 0..11 {
        client.send(format!("64\r\n{}\r\n", "x".repeat(100))).await;
    }
    let response = client.response().await;
    assert_eq!(response.status, 413);
    response.own_error();
    assert!(
        old.requests()[1..]
            .iter()
            .all(|request| !request.is_complete())
    );

    // And no 100 is said to what will be refused.
    let mut client = Client::connect(proxy.address).await;
    client
        .send(format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5000\r\n\r\n"))
        .await;
    assert_eq!(client.head().await.status, 413);
    let labels = [("cause", "body_too_large")];
    proxy
        .counts("crossfade_rejected_requests_total", &labels, 3.0)
        .await;
}

#[tokio::test]
async fn a_body_too_large_over_http2_is_413() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--max-body-bytes", "1000"]).await;
    let client = client::http2::Client::connect(proxy.address).await;
    let response = client
        .post(CHAT, &[], "x".repeat(2000))
        .await
        .response()
        .await;
    assert_eq!(response.status, 413);
    response.own_error();
}

#[tokio::test]
async fn requests_beyond_the_limit_are_503_with_retry_after() {
    let gate = Gate::closed();
    let script = Script::new().sse().wait(&gate).events(&chat_text("old"));
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &["--max-requests", "2"]).await;
    let mut open = vec![
        client::open_chat(proxy.address).await,
        client::open_chat(proxy.address).await,
    ];
    old.request(2).await;
    let response = proxy.chat().await;
    assert_eq!(response.status, 503);
    assert!(
        response
            .header("retry-after")
            .unwrap()
            .parse::<u32>()
            .is_ok()
    );
    let error = response.own_error();
    assert!(!error["message"].as_str().unwrap().is_empty());
    assert_eq!(old.count(), 2);
    let labels = [("cause", "too_many_requests")];
    proxy
        .counts("crossfade_rejected_requests_total", &labels, 1.0)
        .await;
    gate.open();
    for client in &mut open {
        client.response().await.assert_is(chat_text("old"));
    }
    proxy.chat().await.assert_is(chat_text("old"));
}

#[tokio::test]
async fn a_cancelled_request_frees_its_place() {
    let old = Upstream::always(Script::new().hang()).await;
    let proxy = Proxy::before(&old, &["--max-requests", "1"]).await;
    for n in 1..=5 {
        let client = client::open_chat(proxy.address).await;
        old.request(n).await;
        drop(client);
        proxy.outcomes("cancelled", u32::try_from(n).unwrap()).await;
    }
}

#[tokio::test]
async fn a_slow_head_is_408_or_a_close() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--head-timeout", "0.2"]).await;
    let start = Instant::now();
    let mut client = Client::connect(proxy.address).await;
    client.send("GET /health HTTP/1.1\r\nHost:").await;
    if let Ok(head) = within("an answer or a close", client.try_head()).await {
        assert_eq!(head.status, 408);
        client.rest(head).await.own_error();
    }
    client.until_closed().await;
    assert!(start.elapsed() >= Duration::from_millis(180));

    // A byte now and then does not help.
    let mut client = Client::connect(proxy.address).await;
    for byte in b"GET /health HTTP/1.1\r\nHost: aaaaaaaaaaaa" {
        if !client.try_send([*byte]).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = tokio::time::timeout(Duration::from_millis(100), client.try_head()).await;
    if let Ok(head) = answer.expect("no answer though the head took twice its time") {
        assert_eq!(head.status, 408);
    }
    assert_eq!(old.count(), 0);
}

#[tokio::test]
async fn a_slow_head_is_ended_on_a_connection_used_before() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--head-timeout", "0.2"]).await;
    let mut client = Client::connect(proxy.address).await;
    client.get("/health", &[]).await;
    assert_eq!(client.response().await.status, 200);
    client.send("GET /").await;
    client.until_closed().await;
}

#[tokio::test]
async fn a_slow_body_and_a_slow_answer_are_no_slow_head() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--head-timeout", "0.2"]).await;
    let mut client = Client::connect(proxy.address).await;
    client
        .send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n",
            STREAMING.len()
        ))
        .await;
    for piece in STREAMING.as_bytes().chunks(STREAMING.len() / 4) {
        tokio::time::sleep(Duration::from_millis(80)).await;
        client.send(piece).await;
    }
    client.response().await.assert_is(chat_text("old"));

    let slow = Upstream::always(Script::new().pause(300).then(chat_stream("slow"))).await;
    let proxy = Proxy::before(&slow, &["--head-timeout", "0.2"]).await;
    proxy.chat().await.assert_is(chat_text("slow"));
}

#[tokio::test]
async fn an_upstream_s_slow_head_is_a_504_where_that_is_limited() {
    let old = Upstream::always(Script::new().hang()).await;
    let proxy = Proxy::before(&old, &["--upstream-head-timeout", "0.1"]).await;
    let response = proxy.chat().await;
    assert_eq!(response.status, 504);
    response.own_error();
    eventually("cancelled upstream", async || old.last().is_gone()).await;
}

#[tokio::test]
async fn an_error_of_its_own_has_the_family_s_form() {
    let nobody = Upstream::nobody().await.to_string();
    let proxy = Proxy::start(&["--old", &nobody, "--new", &nobody, "--split", "50"]).await;
    for path in [CHAT, COMPLETIONS, RESPONSES, "/v1/embeddings"] {
        let response = client::post(proxy.address, path, &[], UNARY).await;
        assert_eq!(response.status, 502);
        assert_eq!(response.header("content-type"), Some("application/json"));
        let message = response.own_error()["message"].to_string();
        assert!(
            message.contains("old") && message.contains("new"),
            "{message}"
        );
    }
    let response = client::post(proxy.address, MESSAGES, &[], UNARY).await;
    assert_eq!(response.status, 502);
    assert_eq!(response.json()["type"], "error");
    assert_eq!(response.json()["error"]["type"], "api_error");
}
