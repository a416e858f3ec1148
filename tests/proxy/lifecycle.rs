//! The lifecycle of the process: readiness, settling, draining, the drain limit, and exit statuses.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::rig::proxy::Reading;
use crate::rig::tls::{Authority, connect};
use crate::rig::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A stream that continues when the gate opens, and its text.
fn waiting(gate: &Gate) -> (Script, String) {
    let text = chat_text("old");
    let first = role("old") + &content("old", 0);
    let rest = text.strip_prefix(&first).unwrap().to_owned();
    (
        Script::new().sse().events(&first).wait(gate).events(&rest),
        text,
    )
}

/// Opens a chat and waits for its first content.
async fn open(proxy: &Proxy) -> (Client, String) {
    let mut client = client::open_chat(proxy.address).await;
    assert_eq!(client.head().await.status, 200);
    let seen = client.until(&content("old", 0)).await;
    (client, seen)
}

#[tokio::test]
async fn readyz_reports_readiness() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    eventually("ready", async || proxy.admin("/readyz").await.status == 200).await;
    assert_eq!(proxy.admin("/livez").await.status, 200);
}

#[tokio::test]
async fn an_idle_proxy_exits_at_once_with_status_0() {
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
async fn after_sigterm_a_proxy_settles_then_drains_then_exits() {
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
    // Settling: existing and new connections are served, and close.
    idle.get("/health", &[]).await;
    let head = idle.head().await;
    assert_eq!(head.headers.get("connection"), Some("close"));
    idle.rest(head).await.assert_is("fine");
    assert_eq!(idle.until_closed().await.0, b"");
    let mut served = 0;
    let served_until = loop {
        assert!(asked.elapsed() < Duration::from_secs(5), "never draining");
        let Ok(stream) = tokio::net::TcpStream::connect(proxy.address).await else {
            break asked.elapsed();
        };
        let mut client = Client::over(stream);
        client.get("/health", &[]).await;
        let Ok(head) = client.try_head().await else {
            break asked.elapsed();
        };
        assert_eq!(head.headers.get("connection"), Some("close"));
        client.rest(head).await.assert_is("fine");
        served += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(served > 0);
    // Draining: no new connections are accepted.
    assert!(
        served_until >= Duration::from_millis(950),
        "settled for {served_until:?} only"
    );
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
    // The open stream completes.
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
async fn at_the_drain_limit_open_streams_end_with_an_error_event_and_status_3() {
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
async fn nothing_follows_the_terminal_event_or_an_error_event_of_the_server() {
    let begun = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n\
                 event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"own\"}}\n\n";
    let failed = "data: {\"error\":{\"message\":\"own\",\"code\":400}}\n\n";
    for (path, text, is_complete) in [
        (MESSAGES, begun.to_owned() + stop, true),
        (MESSAGES, begun.to_owned() + error, false),
        (CHAT, content("old", 0) + DONE, true),
        (CHAT, content("old", 0) + failed, false),
    ] {
        // The server leaves the body open.
        let script = Script::new().sse().chunk(&text).hang();
        let old = Upstream::always(script).await;
        for flags in [["--drain", "0.2"], ["--gap-timeout", "0.3"]] {
            let proxy = Proxy::before(&old, &flags).await;
            let mut client = Client::connect(proxy.address).await;
            client.post(path, &[], STREAMING).await;
            client.head().await;
            let seen = client.until(&text).await;
            if flags[0] == "--drain" {
                proxy.terminate();
            }
            let rest = String::from_utf8(client.body().await).unwrap();
            assert_eq!(seen + &rest, text, "{flags:?}");
            let end = client.end.unwrap();
            assert_eq!(end.is_unclean(), !is_complete, "{flags:?} {text}: {end:?}");
            let outcome = if is_complete { "completed" } else { "failed" };
            let line = proxy.access_line(1).await;
            assert_eq!(line["outcome"], outcome, "{flags:?} {text}");
        }
    }
}

#[tokio::test]
async fn a_stream_whose_client_does_not_read_gets_its_access_line_when_the_process_ends() {
    let event = content("old", 0) + &format!(": {}\n\n", "x".repeat(100_000));
    let script = Script::new().sse().chunk(event.repeat(200)).hang();
    let old = Upstream::always(script).await;
    for (drain, signals) in [("0.1", 1), ("60", 2)] {
        let mut proxy = Proxy::before(&old, &["--drain", drain]).await;
        let mut client = Client::connect(proxy.address).await;
        client.post(CHAT, &[], STREAMING).await;
        client.head().await;
        for _ in 0..signals {
            proxy.terminate();
            drains(&proxy).await;
        }
        assert_eq!(proxy.end().await, Some(3));
        let line = proxy.access_line(1).await;
        assert_eq!(line["outcome"], "truncated");
        assert_eq!(line["why"], "the proxy is shutting down");
    }
}

#[tokio::test]
async fn at_the_drain_limit_requests_without_a_response_head_get_a_503_with_their_id() {
    let ids = [("x-request-id", "waits")];
    for (version, method, path) in [
        ("http1", "POST", CHAT),
        ("http2", "POST", CHAT),
        ("http1", "GET", "/v1/models"),
        ("http1", "GET", "/v1/models/m"),
    ] {
        let old = Upstream::always(Script::new().hang()).await;
        let new = Upstream::always(Script::new().hang()).await;
        let mut proxy = Proxy::split_with(&old, &new, 1, &["--drain", "0.1"]).await;
        let address = proxy.address;
        let response = tokio::spawn(async move {
            if version == "http2" {
                let client = client::http2::Client::connect(address).await;
                return client.post(path, &ids, STREAMING).await.response().await;
            }
            let mut client = Client::connect(address).await;
            match method {
                "GET" => client.get(path, &ids).await,
                _ => client.post(path, &ids, STREAMING).await,
            }
            client.response().await
        });
        old.request(1).await;
        proxy.terminate();
        let started = Instant::now();
        let response = response.await.unwrap();
        assert_eq!(response.status, 503, "{version} {path}");
        assert_eq!(response.header("x-request-id"), Some("waits"));
        response.own_error();
        assert_eq!(proxy.end().await, Some(3));
        // The client has its complete response, so the proxy only waits for the client to close.
        let took = started.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
        let line = proxy.access_line(1).await;
        assert_eq!(line["request_id"], "waits");
        assert_eq!(
            (&line["outcome"], &line["status"]),
            (&"failed".into(), &503.into())
        );
        assert_eq!(line["why"], "the proxy is shutting down");
    }
}

#[tokio::test]
async fn at_the_drain_limit_a_client_that_is_still_sending_its_request_gets_a_response() {
    let by_user = &["--affinity-body-field", "user"][..];
    for (framing, part, flags) in [
        ("content-length: 100", "x", &[][..]),
        ("content-length: 100000", "x", &[]),
        ("transfer-encoding: chunked", "1\r\nx\r\n", &[]),
        ("transfer-encoding: chunked", "1\r\nx\r\n", by_user),
        ("transfer-encoding: chunked", "", &[]),
    ] {
        let old = Upstream::start(healthy("old")).await;
        let flags = [&["--drain", "0.2"], flags].concat();
        let mut proxy = Proxy::before(&old, &flags).await;
        let mut client = Client::connect(proxy.address).await;
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\nx-request-id: part\r\n{framing}\r\n\r\n{part}"
        );
        client.send(head).await;
        proxy.terminate();
        let answer = within("an answer", client.response()).await;
        assert_eq!(answer.status, 503, "{framing}");
        assert_eq!(answer.header("x-request-id"), Some("part"), "{framing}");
        drop(client);
        proxy.end().await;
        let line = proxy.access_line(1).await;
        assert_eq!(line["request_id"], "part");
        assert_eq!(
            (&line["outcome"], &line["status"]),
            (&"failed".into(), &503.into())
        );
    }
}

#[tokio::test]
async fn clients_wait_while_the_proxy_is_out_of_file_descriptors() {
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
            eventually("the reason is reported", async || {
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

/// Waits until the proxy reports that it drains.
async fn drains(proxy: &Proxy) {
    eventually("it drains", async || {
        proxy
            .lines()
            .iter()
            .any(|line| line.contains("\"draining\""))
    })
    .await;
}

#[tokio::test]
async fn the_first_request_on_an_idle_connection_is_still_served_when_a_drain_begins() {
    let old = Upstream::start(healthy("old")).await;
    let authority = Authority::new();
    let files = authority.issue("server");
    let tls = ["--tls-cert", files.cert(), "--tls-key", files.key()];
    for flags in [&[][..], &tls] {
        let mut proxy = Proxy::before(&old, flags).await;
        let mut fresh = match flags.is_empty() {
            true => Client::connect(proxy.address).await,
            false => {
                let config = authority.client(&["http/1.1"], None);
                Client::over(connect(proxy.address, config).await.unwrap())
            }
        };
        let mut silent = Client::connect(proxy.address).await;
        proxy.counts("crossfade_connections", &[], 2.0).await;
        let started = Instant::now();
        proxy.terminate();
        drains(&proxy).await;
        fresh.get("/health", &[]).await;
        let head = fresh.head().await;
        assert_eq!(
            (head.status, head.headers.get("connection")),
            (200, Some("close"))
        );
        // The proxy waits only briefly for a client that stays silent.
        silent.until_closed().await;
        assert_eq!(proxy.end().await, Some(0));
        assert!(started.elapsed() < Duration::from_secs(4));
    }
}

#[tokio::test]
async fn a_client_that_connects_while_a_drain_begins_is_served_or_refused_but_never_reset() {
    let old = Upstream::start(healthy("old")).await;
    for _ in 0..3 {
        let before = old.count();
        let mut proxy = Proxy::before(&old, &["--threads", "2"]).await;
        let address = proxy.address;
        let clients: Vec<_> = (0..16)
            .map(|_| {
                tokio::spawn(async move {
                    let mut answered = 0;
                    while let Ok(stream) = tokio::net::TcpStream::connect(address).await {
                        let mut client = Client::over(stream);
                        client.get("/health", &[]).await;
                        let head = within("an answer", client.try_head()).await;
                        assert_eq!(head.map(|head| head.status), Ok(200), "after {answered}");
                        answered += 1;
                    }
                    answered
                })
            })
            .collect();
        old.request(before + 100).await;
        proxy.terminate();
        for client in clients {
            assert!(client.await.unwrap() > 0);
        }
        assert_eq!(proxy.end().await, Some(0));
    }
}

#[tokio::test]
async fn sighup_cuts_nothing() {
    let gate = Gate::closed();
    let old = Upstream::always(waiting(&gate).0).await;
    let mut proxy = Proxy::before(&old, &["--settle", "0"]).await;
    let (mut stream, _) = open(&proxy).await;
    // Twice, because a second SIGTERM would end the process at once.
    for _ in 0..2 {
        proxy.signal(libc::SIGHUP);
    }
    eventually("the signal is logged", async || {
        proxy.lines().concat().contains("ignored SIGHUP")
    })
    .await;
    assert_eq!(proxy.admin("/readyz").await.status, 200);
    gate.open();
    stream.body().await;
    assert_eq!(stream.end, Some(End::Clean));
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    let gate = Gate::closed();
    let old = Upstream::always(waiting(&gate).0).await;
    for settle in ["0", "60"] {
        let mut proxy = Proxy::before(&old, &["--settle", settle]).await;
        let (mut stream, _) = open(&proxy).await;
        let http2 = client::http2::Client::connect(proxy.address).await;
        let mut second = http2.chat().await;
        second.until(&content("old", 0)).await;
        proxy.terminate();
        eventually("not ready", async || {
            // While the proxy drains, the admin port may be closed first.
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
        second.response().await;
        for number in [1, 2] {
            let line = proxy.access_line(number).await;
            assert_eq!(line["outcome"], "truncated");
            assert_eq!(line["why"], "the proxy is shutting down");
        }
    }
}

#[tokio::test]
async fn sigint_has_the_same_effect_as_sigterm() {
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    proxy.signal(libc::SIGINT);
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn an_http2_connection_gets_goaway_and_its_streams_complete() {
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
async fn a_keep_alive_connection_is_closed_after_its_open_stream() {
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

#[tokio::test]
async fn a_client_that_was_not_told_that_its_connection_closes_can_send_one_more_request() {
    let gate = Gate::closed();
    let (script, _) = waiting(&gate);
    let old = Upstream::start(move |received| match &*received.target {
        CHAT => script.clone(),
        _ => Script::new().answer(200, "text/plain", "fine"),
    })
    .await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let (mut stream, _) = open(&proxy).await;
    proxy.terminate();
    drains(&proxy).await;
    gate.open();
    stream.body().await;
    stream.get("/health", &[]).await;
    let head = stream.head().await;
    assert_eq!(head.headers.get("connection"), Some("close"));
    stream.rest(head).await.assert_is("fine");
    assert_eq!(stream.until_closed().await, (vec![], End::Eof));
    assert_eq!(proxy.end().await, Some(0));
}

/// Runs `crossfade drain`, as a preStop hook does.
fn run_drain_command(proxy: &Proxy) {
    let output = crate::rig::proxy::run(&["drain", "--admin", &proxy.admin.to_string()]);
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn a_requested_drain_reports_the_end_of_its_last_stream_and_the_process_stays_until_the_signal()
 {
    let gate = Gate::closed();
    let (script, text) = waiting(&gate);
    let old = Upstream::always(script).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let (mut stream, seen) = open(&proxy).await;
    let mut waits = Client::connect(proxy.admin).await;
    waits.get("/drained", &[("host", "localhost")]).await;
    let drained = tokio::spawn(async move { waits.response().await });

    run_drain_command(&proxy);
    assert_eq!(proxy.admin("/readyz").await.status, 503);
    run_drain_command(&proxy);
    stream.assert_silent(300).await;
    assert!(!drained.is_finished(), "while a stream is open");
    gate.open();
    assert_eq!(
        seen + &String::from_utf8(stream.body().await).unwrap(),
        text
    );
    drained.await.unwrap().assert_is("drained\n");
    assert_eq!(proxy.admin("/livez").await.status, 200);
    assert!(proxy.ended().is_none(), "before the signal");
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn the_first_signal_during_a_requested_drain_changes_nothing_and_the_second_ends_the_process()
{
    let gate = Gate::closed();
    let old = Upstream::always(waiting(&gate).0).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let (mut stream, _) = open(&proxy).await;
    run_drain_command(&proxy);
    proxy.terminate();
    stream.assert_silent(300).await;
    assert!(proxy.ended().is_none());
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(3));
}

#[tokio::test]
async fn waiting_for_a_drain_that_does_not_begin_ends_with_an_error() {
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
    // The proxy still waits for a hook that starts late on a busy node.
    assert!(asked.elapsed() > Duration::from_secs(14));
    proxy.chat().await.assert_is(chat_text("old"));
}

#[test]
fn a_drain_without_a_process_is_an_error() {
    let output = crate::rig::proxy::run(&["drain", "--admin", "127.0.0.1:9"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("no crossfade process on this machine listens on the admin port 127.0.0.1:9"),
        "{text}"
    );
}

#[tokio::test]
async fn a_put_to_any_other_path_of_the_admin_port_changes_nothing() {
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
    for wrong in ["crossfade=loudly", "nonsense", ""] {
        assert_eq!(set(wrong).await, 400, "{wrong}");
    }
    // Changes are not allowed over TCP, even from this machine.
    assert_eq!(set("debug").await, 403);
    proxy.chat().await.assert_is(chat_text("old"));
}

/// The response to a request that a process of `user` sends to the local socket of a proxy; `None` if this process may not
/// become that user.
fn asked_by(
    user: Option<u32>,
    admin: std::net::SocketAddr,
    request: &'static str,
) -> Option<String> {
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    let asking = std::thread::spawn(move || {
        if let Some(user) = user {
            // The raw system call applies to this thread only, which ends afterwards.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
            if changed != 0 {
                return None;
            }
        }
        let name = SocketAddr::from_abstract_name(format!("crossfade/admin/{admin}")).unwrap();
        let mut stream = UnixStream::connect_addr(&name).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut response = String::new();
        // A rejected client may notice while it writes or while it reads.
        let _ = stream.write_all(request.as_bytes());
        match stream.read_to_string(&mut response) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no end"),
            _ => Some(response),
        }
    });
    asking.join().unwrap()
}

#[tokio::test]
async fn another_user_of_the_same_machine_gets_nothing_from_the_local_socket() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let admin = proxy.admin;
    let ask = async |user: Option<u32>, request: &'static str| {
        let asking = tokio::task::spawn_blocking(move || asked_by(user, admin, request));
        asking.await.unwrap()
    };
    let page = "GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let own = ask(None, page).await.unwrap();
    assert!(own.starts_with("HTTP/1.1 200"), "{own}");
    let drain = "PUT /drain HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    for request in [page, drain] {
        // Only root can become another user.
        if let Some(response) = ask(Some(65534), request).await {
            assert_eq!(response, "");
        }
    }
    assert_eq!(proxy.admin("/readyz").await.status, 200);
    assert!(ask(None, drain).await.unwrap().starts_with("HTTP/1.1 2"));
    assert_eq!(proxy.admin("/readyz").await.status, 503);
}

#[tokio::test]
async fn a_proxy_cannot_be_drained_over_tcp_even_from_this_machine() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for more in [
        "",
        "authorization: Bearer x\r\n",
        "x-forwarded-for: ::1\r\n",
    ] {
        let mut client = Client::connect(proxy.admin).await;
        let head =
            format!("PUT /drain HTTP/1.1\r\nhost: localhost\r\n{more}content-length: 0\r\n\r\n");
        client.send(head).await;
        let answer = client.response().await;
        assert_eq!(answer.status, 403);
        assert!(
            answer.text().contains("crossfade drain"),
            "{}",
            answer.text()
        );
    }
    assert_eq!(proxy.admin("/readyz").await.status, 200);
    proxy.chat().await.assert_is(chat_text("old"));
}

#[tokio::test]
async fn the_log_level_is_changed_from_the_same_machine() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let admin = proxy.admin.to_string();
    let has_debug = || proxy.lines().iter().any(|line| line.contains("\"DEBUG\""));
    proxy.admin("/livez").await;
    assert!(!has_debug());
    let output = crate::rig::proxy::run(&["log-level", "debug", "--admin", &admin]);
    assert!(output.status.success(), "{output:?}");
    eventually("a line of level debug", async || {
        let mut client = Client::connect(proxy.admin).await;
        client.send("nonsense\r\n\r\n").await;
        client.until_closed().await;
        has_debug()
    })
    .await;
    let output = crate::rig::proxy::run(&["log-level", "inof", "--admin", &admin]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[tokio::test]
async fn the_admin_port_rejects_unknown_host_names() {
    let old = Upstream::start(healthy("old")).await;
    let flags = [
        "--admin-host",
        "proxy.example",
        "--cluster-domain",
        "k8s.test",
    ];
    let proxy = Proxy::before(&old, &flags).await;
    let port = proxy.admin.port();
    for path in ["/", "/plan", "/metrics", "/livez", "/live", "/drained"] {
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
        ] {
            let mut client = Client::connect(proxy.admin).await;
            let host = format!("{host}:{port}");
            client.get(path, &[("host", &host)]).await;
            let status = client.head().await.status;
            assert_eq!(status, 421, "{host} {path}");
        }
    }
    for host in [
        "127.0.0.1",
        "[::1]",
        "10.1.2.3",
        "localhost",
        "a-pod",
        "crossfade.dev.svc",
        "crossfade.dev.svc.k8s.test",
        "proxy.example",
    ] {
        let mut client = Client::connect(proxy.admin).await;
        let host = format!("{host}:{port}");
        client.get("/plan", &[("host", &host)]).await;
        assert_eq!(client.head().await.status, 200, "{host}");
    }
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
async fn there_is_one_complete_access_line_per_exchange() {
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

const DROPPED: &str = "crossfade_log_lines_dropped_total";

/// Chats over one connection.
async fn chats(proxy: &Proxy, count: usize) {
    let mut client = Client::connect(proxy.address).await;
    for _ in 0..count {
        client.post(CHAT, &[], UNARY).await;
        assert_eq!(client.response().await.status, 200);
    }
}

#[tokio::test]
async fn an_output_that_is_not_read_delays_neither_requests_nor_the_exit() {
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    proxy.read(Reading::Stopped);
    // About 300 bytes each: much more than the pipe and a thread's buffer hold.
    chats(&proxy, 2000).await;
    assert_eq!(proxy.admin("/livez").await.status, 200);
    assert_eq!(proxy.metrics().await.sum(DROPPED, &[]), 0.0, "they wait");
    proxy.read(Reading::On);
    eventually("all lines come", async || proxy.access().len() == 2000).await;

    proxy.read(Reading::Stopped);
    chats(&proxy, 1000).await;
    let asked = Instant::now();
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
    assert!(asked.elapsed() < Duration::from_secs(6), "{asked:?}");
}

#[tokio::test]
async fn lines_that_do_not_fit_are_dropped_and_counted() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.read(Reading::Stopped);
    // Each line contains the path.
    let path = format!("/v1/chat/completions/{}", "x".repeat(60_000));
    let before = proxy.memory();
    let mut client = Client::connect(proxy.address).await;
    let mut sent = 0;
    while proxy.metrics().await.sum(DROPPED, &[("kind", "access")]) < 50.0 {
        for _ in 0..50 {
            client.get(&path, &[]).await;
            client.response().await;
        }
        sent += 50;
        assert!(sent < 2000, "nothing is dropped");
    }
    let grown = proxy.memory() - before;
    assert!(grown < 24 << 20, "{grown} bytes");
    // The proxy's own log lines still fit.
    let metrics = proxy.metrics().await;
    assert_eq!(metrics.sum(DROPPED, &[("kind", "log")]), 0.0);
    proxy.read(Reading::On);
    chats(&proxy, 1).await;
    let labels = [("kind", "access")];
    eventually("every line has come or is counted", async || {
        let dropped = proxy.metrics().await.sum(DROPPED, &labels);
        proxy.access().len() as f64 + dropped == f64::from(sent + 1)
    })
    .await;
}

#[tokio::test]
async fn a_proxy_whose_output_was_closed_keeps_serving_and_does_not_spin() {
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    proxy.read(Reading::Closed);
    chats(&proxy, 500).await;
    eventually("lines are counted", async || {
        proxy.metrics().await.sum(DROPPED, &[("kind", "access")]) > 100.0
    })
    .await;
    let before = proxy.processor_time();
    // The interval of the measurement.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let taken = proxy.processor_time() - before;
    assert!(taken < Duration::from_millis(300), "{taken:?}");
    chats(&proxy, 10).await;
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn access_lines_can_be_disabled_and_written_as_text() {
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
            line.contains(" access client=127.0.0.1 request_id=")
                && line.contains(" generation=old reason=weighted")
                && line.contains("outcome=completed")
        })
    })
    .await;
}

/// Client behaviour that could delay a drain.
#[derive(Clone, Copy, Debug)]
enum Holds {
    NeverReads,
    NeverReadsOverTls,
    NeverReadsOverHttp2,
    HalfCloses,
    StallsAnUpload,
    StallsASmallUpload,
    SendsHalfAHead,
    SendsNothing,
    SendsHalfATlsHandshake,
    Pipelines,
    KeepsATunnel,
    IsIdle,
}

impl Holds {
    const ALL: [Self; 12] = [
        Self::NeverReads,
        Self::NeverReadsOverTls,
        Self::NeverReadsOverHttp2,
        Self::HalfCloses,
        Self::StallsAnUpload,
        Self::StallsASmallUpload,
        Self::SendsHalfAHead,
        Self::SendsNothing,
        Self::SendsHalfATlsHandshake,
        Self::Pipelines,
        Self::KeepsATunnel,
        Self::IsIdle,
    ];

    fn over_tls(self) -> bool {
        matches!(self, Self::NeverReadsOverTls | Self::SendsHalfATlsHandshake)
    }

    /// Behaves this way until the future is dropped.
    async fn hold(self, proxy: &Proxy, authority: &Authority, is_ready: &Cell<bool>) {
        let post = |fields: &str| format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n");
        let mut client = match self {
            Self::NeverReadsOverTls => {
                let config = authority.client(&["http/1.1"], None);
                Client::over(connect(proxy.address, config).await.unwrap())
            }
            _ => Client::connect_narrow(proxy.address).await,
        };
        let mut http2 = None;
        match self {
            Self::NeverReads | Self::NeverReadsOverTls => {
                client.post("/v1/flood", &[], STREAMING).await;
            }
            Self::NeverReadsOverHttp2 => {
                let client = client::http2::Client::connect(proxy.address).await;
                // The window is not reopened for data that is not read.
                http2 = Some(client.post("/v1/flood", &[], STREAMING).await);
            }
            Self::HalfCloses => {
                client.post("/v1/hang", &[], STREAMING).await;
                client.half_close().await;
            }
            Self::StallsAnUpload => {
                let half = "x".repeat(100_000);
                client.send(post("content-length: 200000") + &half).await;
            }
            Self::StallsASmallUpload => client.send(post("content-length: 20") + "half").await,
            Self::SendsHalfAHead => client.send("GET /health HTTP/1.1\r\nhost:").await,
            Self::SendsNothing => {}
            Self::SendsHalfATlsHandshake => client.send([22, 3, 1, 2, 0, 1, 0]).await,
            Self::Pipelines => {
                let one = post("content-length: 2") + "{}";
                client.send(one.replace(CHAT, "/v1/hang").repeat(100)).await;
            }
            Self::KeepsATunnel => {
                let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
                client.get("/v1/realtime", &upgrade).await;
                assert_eq!(client.head().await.status, 101);
            }
            Self::IsIdle => {
                client.get("/health", &[]).await;
                assert_eq!(client.response().await.status, 200);
            }
        }
        is_ready.set(true);
        std::future::pending::<()>().await;
        drop(http2);
    }
}

#[tokio::test]
async fn a_drain_ends_within_its_limit_whatever_clients_do() {
    let event = content("old", 0).repeat(64);
    let old = Upstream::start(move |received| match &*received.target {
        "/v1/flood" => {
            let times = (200 << 20) / event.len();
            let flood = crate::rig::upstream::Step::Flood(event.clone().into(), times, Arc::default());
            Script::new().sse().step(flood)
        }
        "/v1/hang" => Script::new().hang(),
        "/v1/realtime" => {
            let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
            Script::new().raw(head).step(crate::rig::upstream::Step::Echo)
        }
        _ => Script::new().answer(200, "text/plain", "fine"),
    })
    .await;
    let authority = Authority::new();
    let files = authority.issue("server");
    let tls = ["--tls-cert", files.cert(), "--tls-key", files.key()];
    let drains = Holds::ALL.map(|holds| {
        let (old, authority) = (&old, &authority);
        let flags = if holds.over_tls() { &tls[..] } else { &[] };
        async move {
            let mut proxy = Proxy::before(old, &[&["--drain", "1"], flags].concat()).await;
            let started = {
                let is_ready = Cell::new(false);
                let mut holding = std::pin::pin!(holds.hold(&proxy, authority, &is_ready));
                let is_held = async {
                    eventually("the hold is in force", async || is_ready.get()).await;
                    // The effect at the proxy, for example full buffers, cannot be seen from outside.
                    tokio::time::sleep(Duration::from_millis(300)).await;
                };
                tokio::select! {
                    () = holding.as_mut() => unreachable!("it holds for ever"),
                    () = is_held => {}
                }
                proxy.terminate();
                let started = Instant::now();
                // The client behaves this way until the process exits.
                let _ = tokio::time::timeout(Duration::from_millis(3500), async {
                    tokio::select! {
                        () = holding.as_mut() => {}
                        () = eventually("the admin port is gone", async || {
                            tokio::net::TcpStream::connect(proxy.admin).await.is_err()
                        }) => {}
                    }
                })
                .await;
                started
            };
            let status = proxy.end().await;
            assert!(matches!(status, Some(0 | 3)), "{holds:?}: {status:?}");
            let took = started.elapsed();
            assert!(took < Duration::from_secs(4), "{holds:?} took {took:?}");
        }
    });
    futures_util::future::join_all(drains).await;
}

#[tokio::test]
async fn an_http2_client_without_a_request_does_not_delay_a_drain() {
    use crate::rig::frames::{END_STREAM, Frames, HEADERS, INITIAL_WINDOW_SIZE};
    use client::http2::Client as Http2;
    let authority = tls::Authority::new();
    let files = authority.issue("proxy");
    let old = Upstream::start(healthy("old")).await;
    let more = ["--tls-cert", files.cert(), "--tls-key", files.key()];
    let config = authority.client(&["h2"], None);
    for what in 0..6 {
        let flags = match what {
            0 => &more[..],
            // Its response is not complete before the client has read it, but no drain waits longer than this.
            4 => &["--write-timeout", "2"],
            _ => &[],
        };
        let mut proxy = Proxy::before(&old, flags).await;
        let address = proxy.address;
        // A client that sends nothing after its TLS handshake, one that acknowledges nothing, one that got a response and
        // then acknowledges nothing, one that keeps sending requests, one that does not read its response, and a normal one.
        let (mut kept, mut friendly) = (Vec::new(), Vec::new());
        match what {
            0 => kept.push(Frames::over(
                tls::connect(address, config.clone()).await.unwrap(),
            )),
            1..=3 => {
                let mut frames = Frames::connect(address, &[]).await;
                frames.answers = what == 3;
                if what > 1 {
                    frames.request(1, END_STREAM, "GET", "/health").await;
                    frames.end_of(1).await;
                }
                frames.answers = false;
                kept.push(frames);
            }
            4 => {
                let mut frames = Frames::connect(address, &[(INITIAL_WINDOW_SIZE, 1)]).await;
                frames.request(1, END_STREAM, "GET", "/health").await;
                frames.next_of(&[HEADERS]).await;
                kept.push(frames);
            }
            _ => {
                let client = Http2::connect(address).await;
                client.get("/health").await;
                friendly.push(client);
            }
        }
        let open = if what == 4 { 1.0 } else { 0.0 };
        proxy.counts("crossfade_open_streams", &[], open).await;
        let start = Instant::now();
        proxy.terminate();
        let asking = tokio::spawn(async move {
            let mut stream = 3;
            while what == 3 && kept[0].request(stream, END_STREAM, "GET", "/health").await {
                stream += 2;
                // Limits the request rate.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            kept
        });
        assert_eq!(proxy.end().await, Some(0), "{what}");
        let took = start.elapsed();
        assert!(took < Duration::from_secs(5), "{what}: {took:?}");
        drop(asking.await);
    }
}
