//! From the first socket to the exit status: readiness, settling, draining, and the end of what does not end.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::rig::proxy::Reading;
use crate::rig::tls::{Authority, connect};
use crate::rig::*;
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
async fn a_server_is_ready_once_it_reports_it() {
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
    let told = Instant::now();
    if let Ok(head) = within("an answer or a close", client.try_head()).await {
        assert!(head.status >= 500, "{}", head.status);
    }
    assert_eq!(proxy.end().await, Some(3));
    // The client has all of its answer, so nothing more is waited for than that it closes.
    let took = told.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    let line = proxy.access_line(1).await;
    assert_eq!(
        (&line["outcome"], &line["status"]),
        (&"cancelled".into(), &0.into())
    );
}

#[tokio::test]
async fn at_the_drain_limit_a_client_that_is_still_sending_its_request_is_told() {
    for (framing, part) in [
        ("content-length: 100", "x"),
        ("content-length: 100000", "x"),
        ("transfer-encoding: chunked", "1\r\nx\r\n"),
        ("transfer-encoding: chunked", ""),
    ] {
        let old = Upstream::start(healthy("old")).await;
        let mut proxy = Proxy::before(&old, &["--drain", "0.2"]).await;
        let mut client = Client::connect(proxy.address).await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n{part}");
        client.send(head).await;
        proxy.terminate();
        let answer = within("an answer", client.response()).await;
        assert_eq!(answer.status, 503, "{framing}");
        drop(client);
        proxy.end().await;
    }
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

/// Waits until it says that it drains.
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
async fn a_connection_that_has_sent_nothing_yet_is_still_answered_when_a_drain_begins() {
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
        let told = Instant::now();
        proxy.terminate();
        drains(&proxy).await;
        fresh.get("/health", &[]).await;
        let head = fresh.head().await;
        assert_eq!(
            (head.status, head.headers.get("connection")),
            (200, Some("close"))
        );
        // Who stays silent is not waited for longer than a moment.
        silent.until_closed().await;
        assert_eq!(proxy.end().await, Some(0));
        assert!(told.elapsed() < Duration::from_secs(4));
    }
}

#[tokio::test]
async fn a_client_that_connects_while_a_drain_begins_is_answered_or_refused_but_never_reset() {
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
async fn a_hangup_cuts_nothing() {
    let gate = Gate::closed();
    let old = Upstream::always(waiting(&gate).0).await;
    let mut proxy = Proxy::before(&old, &["--settle", "0"]).await;
    let (mut stream, _) = open(&proxy).await;
    // Twice: the second SIGTERM would end it at once.
    for _ in 0..2 {
        proxy.signal(libc::SIGHUP);
    }
    eventually("it says that it heard it", async || {
        proxy.lines().concat().contains("SIGHUP is ignored")
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
async fn an_http2_connection_gets_goaway_and_its_streams_run_on() {
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
    let output = crate::rig::proxy::run(&["drain", "--admin", &proxy.admin.to_string()]);
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn a_requested_drain_reports_when_its_last_stream_has_ended_and_stays_until_the_signal() {
    let gate = Gate::closed();
    let (script, text) = waiting(&gate);
    let old = Upstream::always(script).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let (mut stream, seen) = open(&proxy).await;
    let mut waits = Client::connect(proxy.admin).await;
    waits.get("/drained", &[("host", "localhost")]).await;
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
async fn a_signal_while_it_drains_on_request_changes_nothing_and_a_second_one_ends_it() {
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
    // A hook that begins late, on a busy node, is still waited for.
    assert!(asked.elapsed() > Duration::from_secs(14));
    proxy.chat().await.assert_is(chat_text("old"));
}

#[test]
fn a_drain_without_a_process_is_an_error() {
    let output = crate::rig::proxy::run(&["drain", "--admin", "127.0.0.1:9"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("no crossfade on this machine has the admin port 127.0.0.1:9"),
        "{said}"
    );
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
    for wrong in ["crossfade=loudly", "nonsense", ""] {
        assert_eq!(set(wrong).await, 400, "{wrong}");
    }
    // What it would change is not for who comes over TCP, though it be from this machine.
    assert_eq!(set("debug").await, 403);
    proxy.chat().await.assert_is(chat_text("old"));
}

/// What a process of `user` gets for a request on the local socket of a proxy; `None` where this process may not become that
/// user.
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
            // By the system call alone it is so for this thread only, which ends with it.
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
        let mut said = String::new();
        // One that is sent away may find that out while it writes or while it reads.
        let _ = stream.write_all(request.as_bytes());
        match stream.read_to_string(&mut said) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no end"),
            _ => Some(said),
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
        // Only root can be somebody else.
        if let Some(said) = ask(Some(65534), request).await {
            assert_eq!(said, "");
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
async fn an_admin_port_answers_to_no_name_of_strangers() {
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
async fn an_output_that_no_one_reads_holds_no_request_and_no_end() {
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    proxy.read(Reading::Stopped);
    // Some 300 bytes each: far more than the pipe and a thread's own lines take.
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
async fn lines_for_which_there_is_no_room_are_dropped_and_counted() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.read(Reading::Stopped);
    // Each line holds its path.
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
    // What the proxy itself has to say still has room.
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
async fn an_output_that_was_closed_is_no_reason_to_stop_serving_or_to_spin() {
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    proxy.read(Reading::Closed);
    chats(&proxy, 500).await;
    eventually("lines are counted", async || {
        proxy.metrics().await.sum(DROPPED, &[("kind", "access")]) > 100.0
    })
    .await;
    let before = proxy.processor_time();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let taken = proxy.processor_time() - before;
    assert!(taken < Duration::from_millis(300), "{taken:?}");
    chats(&proxy, 10).await;
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
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
            line.contains(" access client=127.0.0.1 request_id=")
                && line.contains(" generation=old reason=weighted")
                && line.contains("outcome=completed")
        })
    })
    .await;
}

/// What a client does that could hold a drain.
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

    /// Does it until the future is dropped.
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
                // No window is given for what is not read.
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
            let told = {
                let is_ready = Cell::new(false);
                let mut holding = std::pin::pin!(holds.hold(&proxy, authority, &is_ready));
                let is_held = async {
                    eventually("it holds", async || is_ready.get()).await;
                    tokio::time::sleep(Duration::from_millis(300)).await;
                };
                tokio::select! {
                    () = holding.as_mut() => unreachable!("it holds for ever"),
                    () = is_held => {}
                }
                proxy.terminate();
                let told = Instant::now();
                // It goes on with it to the end.
                let _ = tokio::time::timeout(Duration::from_millis(3500), async {
                    tokio::select! {
                        () = holding.as_mut() => {}
                        () = eventually("the admin port is gone", async || {
                            tokio::net::TcpStream::connect(proxy.admin).await.is_err()
                        }) => {}
                    }
                })
                .await;
                told
            };
            let status = proxy.end().await;
            assert!(matches!(status, Some(0 | 3)), "{holds:?}: {status:?}");
            let took = told.elapsed();
            assert!(took < Duration::from_secs(4), "{holds:?} took {took:?}");
        }
    });
    futures_util::future::join_all(drains).await;
}

#[tokio::test]
async fn an_http2_client_without_a_request_does_not_hold_a_drain() {
    use crate::rig::frames::{END_STREAM, Frames, HEADERS, INITIAL_WINDOW_SIZE};
    use client::http2::Client as Http2;
    let authority = tls::Authority::new();
    let files = authority.issue("proxy");
    let old = Upstream::start(healthy("old")).await;
    let more = ["--tls-cert", files.cert(), "--tls-key", files.key()];
    let config = authority.client(&["h2"], None);
    for what in 0..6 {
        let flags = if what == 0 { &more[..] } else { &[] };
        let mut proxy = Proxy::before(&old, flags).await;
        let address = proxy.address;
        // One that has said nothing behind its TLS handshake, one that acknowledges nothing, one that has had an answer and
        // then acknowledges nothing, one that goes on to ask, one that takes nothing of its answer, and a friendly one.
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
        proxy.counts("crossfade_open_streams", &[], 0.0).await;
        let start = Instant::now();
        proxy.terminate();
        let asking = tokio::spawn(async move {
            let mut stream = 3;
            while what == 3 && kept[0].request(stream, END_STREAM, "GET", "/health").await {
                stream += 2;
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
