//! When a client disconnects, its upstream request is cancelled at once and counted as cancelled.

use crate::rig::*;

/// Scripts that hang, one for each stage of a request.
fn stages() -> Vec<(&'static str, Script)> {
    vec![
        ("prefill, before the head", Script::new().hang()),
        ("prefill, behind the head", Script::new().sse().hang()),
        ("behind the role", stream_of(&role("old")).hang()),
        ("mid-stream", stream_of(&content("old", 0)).hang()),
        (
            "an answer of known length",
            Script::new()
                .head(200, &[("content-length", "9")])
                .chunk("x")
                .hang(),
        ),
    ]
}

#[tokio::test]
async fn a_client_that_disconnects_cancels_its_upstream_request_at_every_stage() {
    for protocol in ["http1", "http2"] {
        for (stage, script) in stages() {
            let old = Upstream::always(script).await;
            let new = Upstream::start(healthy("new")).await;
            let plan = plan_file::mostly_old(&new, "");
            let flags = ["--upstream-protocol", protocol];
            let proxy = Proxy::planned(&old, &plan, &flags).await;
            let client = client::open_chat(proxy.address).await;
            let request = old.request(1).await;
            assert!(!request.is_gone());
            drop(client);
            eventually(&format!("cancelled: {protocol}, {stage}"), async || {
                request.is_gone()
            })
            .await;
            proxy.outcomes("cancelled", 1).await;
            proxy.counts("crossfade_open_streams", &[], 0.0).await;
            assert_eq!(new.count(), 0, "cancelled is not failed");
            let line = proxy.access_line(1).await;
            assert_eq!(line["outcome"], "cancelled");
            if stage == "prefill, before the head" {
                assert_eq!(
                    (&line["status"], &line["answered"]),
                    (&0.into(), &"none".into())
                );
            }
        }
    }
}

#[tokio::test]
async fn a_reset_stream_cancels_only_its_own_upstream() {
    for protocol in ["http1", "http2"] {
        let old = Upstream::always(stream_of(&content("old", 0)).hang()).await;
        let proxy = Proxy::before(&old, &["--upstream-protocol", protocol]).await;
        let client = client::http2::Client::connect(proxy.address).await;
        let mut first = client.chat().await;
        first.until("\n\n").await;
        let mut second = client.chat().await;
        second.until("\n\n").await;
        drop(first);
        eventually("cancelled upstream", async || old.requests()[0].is_gone()).await;
        assert!(!old.requests()[1].is_gone());
        proxy.outcomes("cancelled", 1).await;
        proxy.counts("crossfade_open_streams", &[], 1.0).await;
    }
}

#[tokio::test]
async fn an_http2_connection_that_breaks_cancels_all_its_upstreams() {
    let old = Upstream::always(Script::new().hang()).await;
    let proxy = Proxy::before(&old, &[]).await;
    let client = std::sync::Arc::new(client::http2::Client::connect(proxy.address).await);
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let _ = client.send("POST", CHAT, &[], STREAMING).await;
            })
        })
        .collect();
    old.request(5).await;
    eventually("all bodies have arrived", async || {
        old.requests().iter().all(|request| request.is_complete())
    })
    .await;
    client.break_off();
    eventually("all are cancelled", async || {
        old.requests().iter().all(|request| request.is_gone())
    })
    .await;
    proxy.outcomes("cancelled", 5).await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn an_upload_that_breaks_off_does_not_reach_the_upstream_as_complete() {
    let old = Upstream::always(chat_stream("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for framing in ["content-length: 100", "transfer-encoding: chunked"] {
        let mut client = Client::connect(proxy.address).await;
        let body = if framing.starts_with('c') {
            "{\"half\":"
        } else {
            "8\r\n{\"half\":\r\n"
        };
        client
            .send(format!(
                "POST {CHAT} HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n{body}"
            ))
            .await;
        drop(client);
    }
    // Earlier uploads that reached the upstream have ended before this request.
    eventually("nothing is open", async || {
        proxy.metrics().await.sum("crossfade_open_streams", &[]) == 0.0
    })
    .await;
    eventually("no incomplete request looks complete", async || {
        old.requests()
            .iter()
            .all(|request| request.is_gone() && !request.is_complete())
    })
    .await;
    proxy.chat().await.assert_is(chat_text("old"));
}

#[tokio::test]
async fn the_tunnel_of_a_client_that_disconnects_is_closed() {
    let head =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let old = Upstream::always(Script::new().raw(head).step(upstream::Step::Echo)).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client
        .get(
            "/v1/realtime",
            &[("connection", "upgrade"), ("upgrade", "websocket")],
        )
        .await;
    assert_eq!(client.head().await.status, 101);
    drop(client);
    eventually("the tunnel is closed", async || old.open() == 0).await;
    proxy.counts("crossfade_open_streams", &[], 0.0).await;
}
