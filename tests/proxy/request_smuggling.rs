//! Request smuggling: requests that two parsers could read differently are rejected, and neither forwarded nor repaired (RFC 9112).

use crate::rig::frames::*;
use crate::rig::*;

/// A POST with these header lines.
fn post(lines: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nHost: a\r\n{lines}\r\n")
}

/// A second request, hidden in the body of the first.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test]
async fn a_malformed_head_is_rejected_and_nothing_of_it_is_forwarded() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let get = |rest: &str| format!("GET / HTTP/1.1\r\n{rest}\r\n");
    let cases = [
        // Lengths (§6.3).
        post("Content-Length: 3\r\nContent-Length: 4\r\n"),
        post("Content-Length: 3, 4\r\n"),
        post("Content-Length: +3\r\n"),
        post("Content-Length: -3\r\n"),
        post("Content-Length: 0x3\r\n"),
        post("Content-Length: 3 3\r\n"),
        post("Content-Length: 3.0\r\n"),
        post("Content-Length:\r\n"),
        post("Content-Length: 99999999999999999999999999\r\n"),
        // Transfer codings (§6.1).
        post("Transfer-Encoding: gzip\r\n"),
        post("Transfer-Encoding: chunked, gzip\r\n"),
        post("Transfer-Encoding: chunked, chunked\r\n"),
        post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        post("Transfer-Encoding: xchunked\r\n"),
        post("Transfer-Encoding: \"chunked\"\r\n"),
        post("Transfer-Encoding: identity\r\n"),
        post("Transfer-Encoding: chunked\u{b}\r\n"),
        format!("POST {CHAT} HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"),
        // Lines (§2.2, §5).
        post("X: a\r\n b\r\n"),
        post("X: a\r\n\tb\r\n"),
        post("X : a\r\n"),
        post(" X: a\r\n"),
        post(": a\r\n"),
        post("X\r\n"),
        post("X Y: a\r\n"),
        post("X(Y): a\r\n"),
        post("X: a\0b\r\n"),
        post("X: a\u{1}b\r\n"),
        post("X: a\u{7f}b\r\n"),
        post("X: a\rY: b\r\n"),
        post("X\u{e9}: a\r\n"),
        // Host (§3.2).
        get(""),
        get("Host: a\r\nHost: a\r\n"),
        get("Host: a\r\nHost: b\r\n"),
        get("Host: a b\r\n"),
        get("Host: a/b\r\n"),
        get("Host: a, b\r\n"),
        get("Host: u@a\r\n"),
        get("Host: a:b\r\n"),
        get("Host: a:99999\r\n"),
        get("Host: [::1\r\n"),
        get("Host: a\u{1}\r\n"),
        // The request line (§3).
        "GET / HTTP/1.1 \r\nHost: a\r\n\r\n".into(),
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET / x HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET / HTTP/1.1x\r\nHost: a\r\n\r\n".into(),
        "GET / http/1.1\r\nHost: a\r\n\r\n".into(),
        "GET / HTTP/1\r\nHost: a\r\n\r\n".into(),
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(),
        "GET / HTTP/3.7\r\nHost: a\r\n\r\n".into(),
        "GET /\r\nHost: a\r\n\r\n".into(),
        "GET\r\nHost: a\r\n\r\n".into(),
        "GET a HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET * HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET /a\0b HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET /a\u{1}b HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "G(T / HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "G\0T / HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        " GET / HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "\u{16}\u{3}\u{1}\u{2}hello".repeat(20) + "\r\n\r\n",
    ];
    for text in &cases {
        let mut client = Client::connect(proxy.address).await;
        client.send(text.clone() + SMUGGLED).await;
        match within("an answer or a close", client.try_head()).await {
            Err(_) => {}
            Ok(head) => {
                assert!(
                    [400, 414, 417, 431, 501, 505].contains(&head.status),
                    "{} for {text:?}",
                    head.status
                );
                let response = client.rest(head).await;
                response.own_error();
                assert_eq!(response.header("connection"), Some("close"), "{text:?}");
                let (rest, _) = client.until_closed().await;
                assert!(
                    rest.is_empty(),
                    "{text:?}: then {:?}",
                    String::from_utf8_lossy(&rest)
                );
            }
        }
        assert_eq!(
            old.count(),
            0,
            "{text:?} was forwarded:\n{}",
            old.last().head
        );
    }
    assert_eq!(old.bytes(), 0);
    eventually("they are counted", async || {
        let metrics = proxy.metrics().await;
        metrics.sum(
            "crossfade_rejected_requests_total",
            &[("cause", "malformed_head")],
        ) > 40.0
    })
    .await;
    // The proxy still serves valid requests.
    proxy.chat().await.assert_is(chat_text("old"));
}

#[tokio::test]
async fn line_ends_without_a_carriage_return_are_rejected_or_read_as_one_head() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for text in [
        "GET /a HTTP/1.1\nHost: a\n\n",
        "GET /a HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\nX: b\n\r\n",
    ] {
        let mut client = Client::connect(proxy.address).await;
        client.send(text).await;
        client.half_close().await;
        if let Ok(head) = within("an answer or a close", client.try_head()).await {
            assert_eq!(head.status, 400, "{text:?}");
        }
        assert_eq!(old.count(), 0, "{text:?}");
    }
}

#[tokio::test]
async fn a_content_length_with_a_transfer_encoding_is_rejected_or_ignored_and_the_connection_closed()
 {
    for lines in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    ] {
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::before(&old, &[]).await;
        let mut client = Client::connect(proxy.address).await;
        let chunk = format!("{:x}\r\n{UNARY}\r\n0\r\n\r\n", UNARY.len());
        client.send(post(lines) + &chunk + SMUGGLED).await;
        match within("an answer or a close", client.try_head()).await {
            Ok(head) if head.status == 200 => {
                client.rest(head).await;
                assert_eq!(old.count(), 1);
                assert_eq!(old.last().header("content-length"), None);
                assert_eq!(old.last().body(), UNARY.as_bytes());
            }
            Ok(head) => assert_eq!(head.status, 400),
            Err(_) => {}
        }
        let (rest, _) = client.until_closed().await;
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
        assert!(
            old.requests()
                .iter()
                .all(|request| !request.target.contains("smuggled"))
        );
    }
}

#[tokio::test]
async fn a_body_with_malformed_chunks_never_arrives_as_complete() {
    let good = format!("{:x}\r\n{STREAMING}\r\n", STREAMING.len());
    let bad = [
        "zz\r\nabc\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        " 3\r\nabc\r\n0\r\n\r\n",
        "\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nab\r\n0\r\n\r\n",
        "3\nabc\n0\n\n",
        "3;a\rb\r\nabc\r\n0\r\n\r\n",
        "3;a\nb\r\nabc\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        "10000000000000000\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc\r\n0\r\nX\r\n\r\n",
        "3\r\nabc\r\n0\r\nX : y\r\n\r\n",
        "3\r\nabc\r\n0\r\nX: a\0b\r\n\r\n",
    ];
    for begin in ["", good.as_str()] {
        for bad in bad {
            let old = Upstream::start(healthy("old")).await;
            let proxy = Proxy::before(&old, &[]).await;
            let mut client = Client::connect(proxy.address).await;
            let head = post("Transfer-Encoding: chunked\r\n");
            client.send(head + begin + bad + SMUGGLED).await;
            // The whole request arrives at once, so nothing is forwarded.
            let head = within("an answer", client.try_head()).await;
            assert_eq!(head.unwrap().status, 400, "{bad:?}");
            client.until_closed().await;
            assert_eq!(old.count(), 0, "{begin:?}{bad:?}");
            if begin.is_empty() {
                continue;
            }
            // The valid part arrives first, so the request is already in progress.
            let mut client = Client::connect(proxy.address).await;
            let head = post("Transfer-Encoding: chunked\r\n");
            client.send(head + begin).await;
            eventually("it is sent on", async || {
                old.requests()
                    .iter()
                    .any(|request| request.body_length() > 0)
            })
            .await;
            client.send(bad.to_owned() + SMUGGLED).await;
            if let Ok(head) = within("an answer or a close", client.try_head()).await {
                assert_eq!(head.status, 400, "{bad:?}");
            }
            client.until_closed().await;
            let requests = old.requests();
            assert_eq!(requests.len(), 1, "{bad:?}");
            for request in &requests {
                assert!(
                    !request.is_complete(),
                    "{bad:?} was repaired: {:?}",
                    request.body()
                );
                assert!(!request.target.contains("smuggled"), "{bad:?}");
            }
        }
    }
}

#[tokio::test]
async fn forbidden_trailers_are_not_merged_into_the_head() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    let body = format!(
        "{:x}\r\n{STREAMING}\r\n0\r\ncontent-length: 5\r\nhost: b\r\nx-fine: 1\r\n\r\n",
        STREAMING.len()
    );
    client
        .send(post("Transfer-Encoding: chunked\r\n") + &body)
        .await;
    let _ = within("an answer", client.try_head()).await;
    for request in old.requests() {
        assert_eq!(request.all("host").collect::<Vec<_>>(), ["a"]);
        assert_eq!(request.header("content-length"), None);
        assert!(
            request
                .trailers()
                .iter()
                .all(|(name, _)| name != "content-length" && name != "host")
        );
    }
}

#[tokio::test]
async fn empty_lines_before_a_request_are_ignored() {
    // RFC 9112 §2.2: a server should ignore at least one.
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client
        .send("\r\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        .await;
    client.response().await.assert_is("old: GET /health");
}

#[tokio::test]
async fn unusual_but_valid_requests_are_served() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for lines in [
        "HOST: a\r\n",
        "Host:a\r\n",
        "Host: \t a \t \r\n",
        "Host: a:80\r\n",
        "Host: [::1]:80\r\n",
        "Host: a\r\nX:\r\n",
        "Host: a\r\nX: \u{e9}\t!\"#\r\n",
        "Host: a\r\nX-!#$%&'*+.^_`|~9: b\r\n",
        "Host: a\r\nX: a\r\nX: a\r\n",
        "Host: a\r\nContent-Length: 0\r\n",
    ] {
        let mut client = Client::connect(proxy.address).await;
        client
            .send(format!("GET /health HTTP/1.1\r\n{lines}\r\n"))
            .await;
        let response = client.response().await;
        assert_eq!(response.text(), "old: GET /health", "{lines:?}");
    }
}

/// The DATA of the response to an HTTP/2 HEAD request, after `act`.
async fn content_over_http2(proxy: &Proxy, act: impl AsyncFnOnce()) -> Vec<u8> {
    let mut frames = Frames::connect(proxy.address, &[]).await;
    frames.request(1, END_STREAM, "HEAD", "/health").await;
    act().await;
    let (content, end) = frames.end_of(1).await;
    assert_eq!(end.map(|frame| frame.kind), Some(HEADERS));
    content
}

#[tokio::test]
async fn a_head_request_gets_no_content_in_a_response_of_the_proxy_itself() {
    let head = |rest: &str| format!("HEAD /health HTTP/1.1\r\n{rest}\r\n");
    let slow = Upstream::always(Script::new().hang()).await;
    // Rejected; without a reachable server; and without a response when the drain ends.
    for (old, request, status) in [
        (slow.url(), head(""), 400),
        (
            format!("http://{}", Upstream::nobody()),
            head("Host: a\r\nConnection: close\r\n"),
            502,
        ),
        (slow.url(), head("Host: a\r\n"), 503),
    ] {
        let proxy = Proxy::before_url(&old, &["--drain", "0.5"]).await;
        let mut client = Client::connect(proxy.address).await;
        let before = slow.count();
        client.send(&request).await;
        if status == 502 {
            assert_eq!(content_over_http2(&proxy, async || {}).await, b"");
        }
        if status == 503 {
            let drain = async || {
                slow.request(before + 2).await;
                proxy.terminate();
            };
            assert_eq!(content_over_http2(&proxy, drain).await, b"");
        }
        let (bytes, _) = client.until_closed().await;
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
        assert!(text.ends_with("\r\n\r\n"), "{text}");
    }
}
