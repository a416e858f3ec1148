//! From the first socket to the exit status: readiness, settling, draining, and the end of what does not end.

#[path = "support/rig.rs"]
mod rig;

use std::time::{Duration, Instant};

use rig::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A stream that goes on when the gate opens; its text.
fn waiting(gate: &Gate) -> (Script, String) {
    let text = chat_text("old");
    let first = role("old") + &content("old", 0);
    let rest = text.strip_prefix(&first).unwrap().to_owned();
    (
        Script::new().sse().events(&first).wait(gate).events(&rest),
        text,
    )
}

/// A chat that has got its first content.
async fn open(proxy: &Proxy) -> (Client, String) {
    let mut client = client::open_chat(proxy.address).await;
    assert_eq!(client.head().await.status, 200);
    let seen = client.until(&content("old", 0)).await;
    (client, seen)
}

#[tokio::test]
async fn it_is_ready_once_it_says_so() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    eventually("ready", async || proxy.admin("/readyz").await.status == 200).await;
    assert_eq!(proxy.admin("/livez").await.status, 200);
}

#[tokio::test]
async fn an_idle_proxy_ends_at_once_with_status_0() {
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    proxy.chat().await;
    let start = Instant::now();
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    assert!(tokio::net::TcpStream::connect(proxy.address).await.is_err());
}

#[tokio::test]
async fn asked_to_stop_it_settles_then_drains_then_ends() {
    let gate = Gate::closed();
    let (script, text) = waiting(&gate);
    let old = Upstream::start(move |received| match &*received.target {
        CHAT => script.clone(),
        _ => Script::new().answer(200, "text/plain", "fine"),
    })
    .await;
    let mut proxy = Proxy::before(&old, &["--settle", "1"]).await;
    let (mut stream, seen) = open(&proxy).await;
    let mut idle = Client::connect(proxy.address).await;
    idle.get("/health", &[]).await;
    idle.response().await.assert_is("fine");
    let mut busy = Client::connect(proxy.address).await;

    proxy.terminate();
    let asked = Instant::now();
    eventually("not ready", async || {
        proxy.admin("/readyz").await.status == 503
    })
    .await;
    assert!(
        asked.elapsed() < Duration::from_millis(900),
        "not ready at once"
    );
    // Settling: old and new connections are served.
    let response = client::get(proxy.address, "/health").await;
    response.assert_is("fine");
    // Draining: what is answered is told to go elsewhere, then nothing more is accepted.
    let mut closes = false;
    while !closes {
        assert!(asked.elapsed() < Duration::from_secs(5), "never draining");
        busy.get("/health", &[]).await;
        match busy.try_head().await {
            Err(_) => break,
            Ok(head) => {
                closes = head.headers.get("connection") == Some("close");
                busy.rest(head).await.assert_is("fine");
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(
        asked.elapsed() >= Duration::from_millis(950),
        "settled for {:?} only",
        asked.elapsed()
    );
    assert_eq!(idle.until_closed().await.0, b"");
    eventually(
        "no connection is accepted",
        async || match tokio::net::TcpStream::connect(proxy.address).await {
            Err(_) => true,
            Ok(stream) => {
                let mut client = Client::over(stream);
                client.get("/health", &[]).await;
                client.try_head().await.is_err()
            }
        },
    )
    .await;
    // The open stream runs on to its natural end.
    stream.assert_silent(100).await;
    assert_eq!(proxy.ended(), None);
    assert_eq!(proxy.admin("/livez").await.status, 200);
    assert_eq!(proxy.admin("/metrics").await.status, 200);
    gate.open();
    let rest = String::from_utf8(stream.body().await).unwrap();
    assert_eq!((seen + &rest, stream.end), (text, Some(End::Clean)));
    assert_eq!(proxy.end().await, Some(0));
    assert_eq!(proxy.access().last().unwrap()["outcome"], "completed");
}

#[tokio::test]
async fn at_the_drain_limit_the_rest_is_ended_honestly_with_status_3() {
    let gate = Gate::closed();
    let old = Upstream::always(waiting(&gate).0).await;
    let mut proxy = Proxy::before(&old, &["--drain", "0.2"]).await;
    let (mut stream, _) = open(&proxy).await;
    let http2 = client::http2::Client::connect(proxy.address).await;
    let mut second = http2.chat().await;
    second.until(&content("old", 0)).await;
    proxy.terminate();
    let rest = String::from_utf8(stream.body().await).unwrap();
    let end = stream.end.unwrap();
    assert!(end.is_unclean(), "{end:?} after {rest}");
    assert!(
        rest.starts_with("data: {\"error\":{") && rest.ends_with("}}\n\n"),
        "{rest}"
    );
    assert!(!rest.contains("[DONE]"));
    let second = second.response().await;
    assert!(second.end.is_unclean());
    assert!(
        second.text().starts_with("data: {\"error\":{"),
        "{}",
        second.text()
    );
    assert_eq!(proxy.end().await, Some(3));
    eventually("cancelled upstream", async || {
        old.requests().iter().all(|request| request.is_gone())
    })
    .await;
}

#[tokio::test]
async fn at_the_drain_limit_what_has_no_head_yet_is_ended_too() {
    let old = Upstream::always(Script::new().hang()).await;
    let mut proxy = Proxy::before(&old, &["--drain", "0.1"]).await;
    let mut client = client::open_chat(proxy.address).await;
    old.request(1).await;
    proxy.terminate();
    if let Ok(head) = within("an answer or a close", client.try_head()).await {
        assert!(head.status >= 500, "{}", head.status);
    }
    assert_eq!(proxy.end().await, Some(3));
}

#[tokio::test]
async fn who_comes_while_it_is_out_of_file_descriptors_waits() {
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let mut idle = Client::connect(proxy.address).await;
    for drains in [false, true] {
        proxy.chat().await;
        proxy.limit_descriptors(Some(3));
        let mut waits = client::open_chat(proxy.address).await;
        if drains {
            proxy.terminate();
            idle.until_closed().await;
        } else {
            eventually("it says why", async || {
                proxy.lines().concat().contains("cannot accept connections")
            })
            .await;
        }
        let early = tokio::time::timeout(Duration::from_millis(200), waits.try_head()).await;
        assert!(early.is_err(), "{early:?}");
        proxy.limit_descriptors(None);
        waits.response().await.assert_is(chat_text("old"));
    }
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let gate = Gate::closed();
    let old = Upstream::always(waiting(&gate).0).await;
    for settle in ["0", "60"] {
        let mut proxy = Proxy::before(&old, &["--settle", settle]).await;
        let (mut stream, _) = open(&proxy).await;
        proxy.terminate();
        eventually("not ready", async || {
            // While draining the admin port may be the first to go.
            tokio::net::TcpStream::connect(proxy.admin).await.is_err()
                || proxy.admin("/readyz").await.status == 503
        })
        .await;
        let start = Instant::now();
        proxy.terminate();
        assert_eq!(proxy.end().await, Some(3));
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{:?}",
            start.elapsed()
        );
        stream.body().await;
        assert!(stream.end.unwrap().is_unclean());
    }
}

#[tokio::test]
async fn an_interrupt_is_as_good_as_a_termination() {
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    proxy.signal(libc::SIGINT);
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn an_http2_connection_is_told_to_go_away_and_its_streams_run_on() {
    let gate = Gate::closed();
    let (script, text) = waiting(&gate);
    let old = Upstream::always(script).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let client = client::http2::Client::connect(proxy.address).await;
    let mut stream = client.chat().await;
    let seen = stream.until(&content("old", 0)).await;
    let idle = client::http2::Client::connect(proxy.address).await;
    proxy.terminate();
    idle.ended().await;
    eventually("no new stream is taken", async || {
        client.send("GET", "/health", &[], "").await.is_err()
    })
    .await;
    gate.open();
    let rest = stream.response().await;
    assert_eq!((seen + &rest.text(), rest.end), (text, End::Clean));
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn a_keep_alive_connection_is_closed_behind_the_stream_it_carries() {
    let gate = Gate::closed();
    let (script, _) = waiting(&gate);
    let old = Upstream::always(script).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let (mut stream, _) = open(&proxy).await;
    proxy.terminate();
    stream.assert_silent(50).await;
    gate.open();
    stream.body().await;
    assert_eq!(stream.until_closed().await, (vec![], End::Eof));
    assert_eq!(proxy.end().await, Some(0));
}

/// Runs `crossfade drain`, as a hook does.
fn tell_to_drain(proxy: &Proxy) {
    let output = rig::proxy::run(&["drain", "--admin", &proxy.admin.to_string()]);
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn told_to_drain_it_says_when_its_last_stream_has_ended_and_stays_until_the_signal() {
    let gate = Gate::closed();
    let (script, text) = waiting(&gate);
    let old = Upstream::always(script).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let (mut stream, seen) = open(&proxy).await;
    let mut waits = Client::connect(proxy.admin).await;
    waits.get("/drained", &[]).await;
    let told = tokio::spawn(async move { waits.response().await });

    tell_to_drain(&proxy);
    assert_eq!(proxy.admin("/readyz").await.status, 503);
    tell_to_drain(&proxy);
    stream.assert_silent(300).await;
    assert!(!told.is_finished(), "while a stream is open");
    gate.open();
    assert_eq!(
        seen + &String::from_utf8(stream.body().await).unwrap(),
        text
    );
    told.await.unwrap().assert_is("drained\n");
    assert_eq!(proxy.admin("/livez").await.status, 200);
    assert!(proxy.ended().is_none(), "before the signal");
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn a_signal_while_it_drains_as_told_changes_nothing_and_a_second_one_ends_it() {
    let gate = Gate::closed();
    let old = Upstream::always(waiting(&gate).0).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let (mut stream, _) = open(&proxy).await;
    tell_to_drain(&proxy);
    proxy.terminate();
    stream.assert_silent(300).await;
    assert!(proxy.ended().is_none());
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(3));
}

#[tokio::test]
async fn who_waits_for_a_drain_that_does_not_begin_is_told_so() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let asked = Instant::now();
    let mut stream = tokio::net::TcpStream::connect(proxy.admin).await.unwrap();
    let request = b"GET /drained HTTP/1.1\r\nhost: any\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    let reading = stream.read_to_string(&mut answer);
    let limit = Duration::from_secs(40);
    tokio::time::timeout(limit, reading).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
    // A hook that begins late, on a busy node, is still waited for.
    assert!(asked.elapsed() > Duration::from_secs(14));
    proxy.chat().await.assert_is(chat_text("old"));
}

#[test]
fn a_drain_of_nobody_is_an_error() {
    let output = rig::proxy::run(&["drain", "--admin", "127.0.0.1:9"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("nobody answers at 127.0.0.1:9"), "{said}");
}

#[tokio::test]
async fn a_put_to_any_other_page_of_the_admin_port_changes_nothing() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for path in ["/plan", "/metrics", "/readyz", "/livez", "/drained"] {
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            let mut client = Client::connect(proxy.admin).await;
            client
                .send(format!(
                    "{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{{}}"
                ))
                .await;
            let status = client.response().await.status;
            assert!([404, 405].contains(&status), "{method} {path}: {status}");
        }
    }
    assert_eq!(proxy.admin("/no/such").await.status, 404);
    let set = async |level: &str| {
        let mut client = Client::connect(proxy.admin).await;
        let length = level.len();
        let head =
            format!("PUT /log-level HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        client.send(head + level).await;
        client.response().await.status
    };
    assert_eq!(set("debug").await, 200);
    assert_eq!(set("crossfade=loudly").await, 400);
    proxy.chat().await.assert_is(chat_text("old"));
}

#[tokio::test]
async fn credentials_and_prompts_are_never_logged() {
    for format in ["json", "text"] {
        let new = Upstream::always(stream_of(&role("new")).reset()).await;
        let old = Upstream::start(healthy("old")).await;
        let flags = ["--log-format", format, "--log", "trace"];
        let proxy = Proxy::split_with(&old, &new, 100, &flags).await;
        let headers = [
            ("authorization", "Bearer s3cr3t-token"),
            ("cookie", "c=s3cr3t-cookie"),
            ("x-api-key", "s3cr3t-key"),
        ];
        let body = STREAMING.replace("hello", "s3cr3t-prompt");
        client::post(
            proxy.address,
            &format!("{CHAT}?key=s3cr3t-query"),
            &headers,
            body,
        )
        .await;
        eventually("an access line", async || {
            proxy
                .lines()
                .iter()
                .any(|line| line.contains("access") && line.contains("attempts"))
        })
        .await;
        let lines = proxy.lines().join("\n");
        assert!(!lines.contains("s3cr3t"), "{lines}");
        assert_eq!(proxy.stderr(), "");
    }
}

#[tokio::test]
async fn there_is_one_access_line_per_exchange_with_all_that_is_known_of_it() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    client::post(proxy.address, CHAT, &[("traceparent", &parent)], STREAMING).await;
    let line = proxy.access_line(1).await;
    for (field, expected) in [
        ("generation", "old"),
        ("reason", "weighted"),
        ("answered", "old"),
        ("outcome", "completed"),
        ("class", "chat"),
        ("path", CHAT),
        ("trace_id", trace),
    ] {
        assert_eq!(line[field], expected, "{line}");
    }
    assert_eq!(
        (line["attempts"].as_u64(), line["status"].as_u64()),
        (Some(1), Some(200))
    );
    assert_eq!(line["bytes"].as_u64(), Some(chat_text("old").len() as u64));
    assert!(line["events"].as_u64().unwrap() >= 3 && line["first_event_seconds"].is_number());
    client::get(proxy.address, "/health").await;
    assert_eq!(proxy.access_line(2).await["reason"], "local");
    assert_eq!(proxy.access().len(), 2);
}

#[tokio::test]
async fn access_lines_can_be_switched_off_and_come_as_text() {
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &["--no-access-log"]).await;
    proxy.chat().await;
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
    assert_eq!(proxy.access().len(), 0);

    let mut proxy = Proxy::before(&old, &["--log-format", "text"]).await;
    proxy.chat().await;
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
    eventually("an access line", async || {
        proxy.lines().iter().any(|line| {
            line.contains(" access generation=old reason=weighted")
                && line.contains("outcome=completed")
        })
    })
    .await;
}
