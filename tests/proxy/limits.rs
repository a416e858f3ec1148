//! Limits, and the responses to requests that exceed them.

use std::time::{Duration, Instant};

use crate::rig::tls::{Authority, connect};
use crate::rig::upstream::Step;
use crate::rig::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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

    // Without a content length, the proxy notices while it forwards.
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

    // A request that will be rejected gets no `100 Continue`.
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
async fn a_cancelled_request_returns_its_permit() {
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

    // Sending a byte now and then does not extend the timeout.
    let mut client = Client::connect(proxy.address).await;
    for byte in b"GET /health HTTP/1.1\r\nHost: aaaaaaaaaaaa" {
        if !client.try_send([*byte]).await {
            break;
        }
        // The sending rate of the client.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = tokio::time::timeout(Duration::from_millis(100), client.try_head()).await;
    if let Ok(head) = answer.expect("no answer though the head took twice its time") {
        assert_eq!(head.status, 408);
    }
    assert_eq!(old.count(), 0);
}

#[tokio::test]
async fn a_slow_head_on_a_reused_connection_is_ended() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--head-timeout", "0.2"]).await;
    let mut client = Client::connect(proxy.address).await;
    client.get("/health", &[]).await;
    assert_eq!(client.response().await.status, 200);
    client.send("GET /").await;
    client.until_closed().await;
}

#[tokio::test]
async fn a_slow_body_or_response_does_not_count_as_a_slow_head() {
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
        // Slower in total than the timeout for a head.
        tokio::time::sleep(Duration::from_millis(80)).await;
        client.send(piece).await;
    }
    client.response().await.assert_is(chat_text("old"));

    let slow = Upstream::always(Script::new().pause(300).then(chat_stream("slow"))).await;
    let proxy = Proxy::before(&slow, &["--head-timeout", "0.2"]).await;
    proxy.chat().await.assert_is(chat_text("slow"));
}

#[tokio::test]
async fn a_slow_response_head_is_a_504_if_it_is_limited() {
    let old = Upstream::always(Script::new().hang()).await;
    let proxy = Proxy::before(&old, &["--upstream-head-timeout", "0.1"]).await;
    let response = proxy.chat().await;
    assert_eq!(response.status, 504);
    response.own_error();
    eventually("cancelled upstream", async || old.last().is_gone()).await;
}

#[tokio::test]
async fn the_proxys_own_errors_have_the_format_of_the_family() {
    let nobody = Upstream::nobody().to_string();
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

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_at_once_and_counted() {
    let old = Upstream::start(healthy("old")).await;
    let flags = ["--max-connections", "10", "--threads", "2"];
    let proxy = Proxy::before(&old, &flags).await;
    let mut open = Vec::new();
    for _ in 0..10 {
        open.push(Client::connect(proxy.address).await);
    }
    proxy.counts("crossfade_connections", &[], 10.0).await;
    for _ in 0..90 {
        let mut client = Client::connect(proxy.address).await;
        assert_eq!(client.until_closed().await.0, b"");
    }
    let refused = "crossfade_connections_refused_total";
    proxy.counts(refused, &[], 90.0).await;
    // Open connections are served, and a closed one makes room for another.
    for client in &mut open {
        client.get("/health", &[]).await;
        assert_eq!(client.response().await.status, 200);
    }
    open.pop();
    proxy.counts("crossfade_connections", &[], 9.0).await;
    proxy.chat().await.assert_is(chat_text("old"));
    drop(open);
    proxy.counts("crossfade_connections", &[], 0.0).await;
    proxy.counts(refused, &[], 90.0).await;
}

/// Processor time that a process has used so far, in seconds.
fn processor_time(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks: Vec<f64> = fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse().unwrap())
        .collect();
    (ticks[0] + ticks[1]) / 100.0
}

/// Shuts down the listening socket of another process, so that every `accept` on it fails.
fn break_listener(pid: u32, port: u16) {
    let inode = std::fs::read_to_string("/proc/net/tcp")
        .unwrap()
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|fields| fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == "0A")
        .unwrap()[9]
        .to_owned();
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let fd: i64 = entries
        .map(|entry| entry.unwrap().path())
        .find(|path| {
            std::fs::read_link(path)
                .is_ok_and(|link| link.to_string_lossy() == format!("socket:[{inode}]"))
        })
        .and_then(|path| path.file_name()?.to_str()?.parse().ok())
        .unwrap();
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        assert!(process >= 0);
        let ours = libc::syscall(libc::SYS_pidfd_getfd, process, fd, 0);
        assert!(ours >= 0, "{}", std::io::Error::last_os_error());
        let ours = i32::try_from(ours).unwrap();
        assert_eq!(libc::shutdown(ours, libc::SHUT_RD), 0);
        libc::close(ours);
        libc::close(i32::try_from(process).unwrap());
    }
}

#[tokio::test]
async fn repeated_accept_errors_are_counted_and_do_not_use_a_core() {
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let mut open = Client::connect(proxy.address).await;
    proxy.counts("crossfade_connections", &[], 1.0).await;
    break_listener(proxy.pid(), proxy.address.port());
    eventually("it is counted", async || {
        let metrics = proxy.metrics().await;
        metrics.sum("crossfade_accept_errors_total", &[]) > 3.0
    })
    .await;
    let (begun, used) = (Instant::now(), processor_time(proxy.pid()));
    eventually("a second passed", async || begun.elapsed().as_secs() > 0).await;
    let used = processor_time(proxy.pid()) - used;
    assert!(used < 0.3, "{used} s of processor time in a second");
    let logged = || {
        let lines = proxy.lines();
        lines
            .iter()
            .filter(|line| line.contains("cannot accept connections"))
            .count()
    };
    assert!((1..5).contains(&logged()), "{} times", logged());
    // Open connections are served, and the process drains normally.
    open.get("/health", &[]).await;
    assert_eq!(open.response().await.status, 200);
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
}

/// The kernel's timer for the proxy's side of a connection (`tr` in proc(5)); 2 is keep-alive.
fn kernel_timer(proxy: std::net::SocketAddr, client: std::net::SocketAddr) -> Option<String> {
    let port = |address: std::net::SocketAddr| format!(":{:04X}", address.port());
    std::fs::read_to_string("/proc/net/tcp")
        .unwrap()
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|fields| fields[1].ends_with(&port(proxy)) && fields[2].ends_with(&port(client)))
        .map(|fields| fields[5].split(':').next().unwrap().to_owned())
}

#[tokio::test]
async fn connections_of_both_ports_have_tcp_keep_alive() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for address in [proxy.address, proxy.admin] {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let client = stream.local_addr().unwrap();
        eventually("a keep-alive timer", async || {
            kernel_timer(address, client).as_deref() == Some("02")
        })
        .await;
    }
}

/// A server that sends more than all buffers on the path can hold.
async fn flooding() -> Upstream {
    let event = content("old", 0).repeat(64);
    let times = (200 << 20) / event.len();
    let flood = Step::Flood(event.into(), times, std::sync::Arc::default());
    Upstream::always(Script::new().sse().step(flood).chunk(DONE)).await
}

/// One frame of HTTP/2 (RFC 9113 §4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An HTTP/2 connection with the head of a chat and the largest possible windows.
fn wide_open_head() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]));
    bytes.extend(frame(8, 0, 0, &0x7fff_0000_u32.to_be_bytes()));
    let mut fields = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", CHAT),
        (":authority", "a"),
        ("content-type", "application/json"),
    ] {
        // Literals without indexing (RFC 7541 §6.2.2).
        fields.push(0);
        for text in [name, value] {
            fields.push(u8::try_from(text.len()).unwrap());
            fields.extend(text.as_bytes());
        }
    }
    bytes.extend(frame(1, 4, 1, &fields));
    bytes
}

fn wide_open_chat() -> Vec<u8> {
    [wide_open_head(), frame(0, 1, 1, STREAMING.as_bytes())].concat()
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_reset_after_the_write_timeout_and_counts_as_cancelled() {
    let old = flooding().await;
    let authority = Authority::new();
    let files = authority.issue("server");
    let limit = ["--write-timeout", "0.5"];
    let tls = ["--tls-cert", files.cert(), "--tls-key", files.key()];
    for version in ["http1", "http2", "tls"] {
        let tls = if version == "tls" { &tls[..] } else { &[] };
        let proxy = Proxy::before(&old, &[&limit[..], tls].concat()).await;
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(proxy.address).await.unwrap();
        let begun = Instant::now();
        let mut encrypted = None;
        match version {
            "http1" => {
                let length = STREAMING.len();
                let head =
                    format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
                stream
                    .write_all((head + STREAMING).as_bytes())
                    .await
                    .unwrap();
            }
            "http2" => stream.write_all(&wide_open_chat()).await.unwrap(),
            _ => {
                drop(stream);
                let config = authority.client(&["http/1.1"], None);
                let mut client = Client::over(connect(proxy.address, config).await.unwrap());
                client.post(CHAT, &[], STREAMING).await;
                stream = tokio::net::TcpStream::connect(proxy.admin).await.unwrap();
                encrypted = Some(client);
            }
        }
        proxy.outcomes("cancelled", 1).await;
        assert!(begun.elapsed() > Duration::from_millis(500), "{version}");
        let labels = [("limit", "write")];
        let timeouts = "crossfade_client_timeouts_total";
        proxy.counts(timeouts, &labels, 1.0).await;
        proxy.counts("crossfade_open_streams", &[], 0.0).await;
        proxy.counts("crossfade_connections", &[], 0.0).await;
        match encrypted {
            Some(mut client) => assert_eq!(client.until_closed().await.1, crate::rig::End::Reset),
            None => {
                let end = stream.read_to_end(&mut Vec::new()).await;
                assert!(end.is_err(), "{version}: no reset");
            }
        }
        let line = proxy.access_line(1).await;
        let why = line["why"].as_str().unwrap_or_default();
        assert!(why.contains("read nothing"), "{version}: {line}");
    }
}

#[tokio::test]
async fn a_stream_that_waits_for_the_model_does_not_count_as_a_stalled_client_even_with_comments() {
    for comments in [&[][..], &["--keep-alive-comments", "0.02"]] {
        let gate = Gate::closed();
        let script = Script::new().sse().chunk(role("old")).wait(&gate);
        let old = Upstream::always(script.chunk(content("old", 0)).chunk(DONE)).await;
        let limits = ["--write-timeout", "0.1"];
        let proxy = Proxy::before(&old, &[&limits[..], comments].concat()).await;
        let mut client = client::open_chat(proxy.address).await;
        let begun = Instant::now();
        eventually("five limits pass", async || {
            begun.elapsed() > Duration::from_millis(500)
        })
        .await;
        gate.open();
        let response = client.response().await;
        assert_eq!(response.end, crate::rig::End::Clean);
        assert!(response.text().ends_with(DONE));
        assert_eq!(response.text().contains(":\n\n"), !comments.is_empty());
    }
}

#[tokio::test]
async fn time_in_which_the_process_was_stopped_does_not_count_against_a_client() {
    let sent = std::sync::Arc::<std::sync::atomic::AtomicU64>::default();
    let event = content("old", 0).repeat(64);
    let times = (24 << 20) / event.len();
    let flood = Step::Flood(event.clone().into(), times, sent.clone());
    let old = Upstream::always(Script::new().sse().step(flood).chunk(DONE)).await;
    let proxy = Proxy::before(&old, &["--write-timeout", "1"]).await;
    let mut client = Client::connect_narrow(proxy.address).await;
    client.post(CHAT, &[], STREAMING).await;
    client.head().await;
    stands_still(&sent).await;
    let mut reading = None;
    proxy
        .stand_still(Duration::from_secs(2), || {
            reading = Some(tokio::spawn(async move {
                let body = client.body().await;
                (body, client.end)
            }));
        })
        .await;
    let (body, end) = reading.unwrap().await.unwrap();
    assert_eq!(end, Some(crate::rig::End::Clean));
    assert_eq!(body.len(), event.len() * times + DONE.len());
}

/// A tunnel through the proxy to a server that echoes everything.
async fn tunnel(proxy: &Proxy) -> Client {
    let mut client = Client::connect(proxy.address).await;
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    client.get("/v1/realtime", &upgrade).await;
    assert_eq!(client.head().await.status, 101);
    client
}

#[tokio::test]
async fn an_idle_tunnel_is_closed_after_its_timeout() {
    let head =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let old = Upstream::always(Script::new().raw(head).step(Step::Echo)).await;
    let proxy = Proxy::before(&old, &["--tunnel-idle-timeout", "0.5"]).await;
    let mut client = tunnel(&proxy).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1500) {
        client.send("ping").await;
        assert_eq!(client.exactly(4).await, b"ping");
        // Traffic at intervals shorter than the idle timeout.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let idle = Instant::now();
    client.until_closed().await;
    assert!(
        idle.elapsed() > Duration::from_millis(400),
        "{:?}",
        idle.elapsed()
    );
    let labels = [("limit", "tunnel_idle")];
    proxy
        .counts("crossfade_client_timeouts_total", &labels, 1.0)
        .await;
    proxy.counts("crossfade_open_streams", &[], 0.0).await;
    eventually("the upstream connection is closed", async || {
        old.open() == 0
    })
    .await;
}

#[tokio::test]
async fn a_request_body_that_stalls_is_408_after_the_body_timeout() {
    let old = Upstream::start(healthy("old")).await;
    let post = |fields: &str| format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n");
    let http1 = [
        post("content-length: 200000") + &"x".repeat(100_000),
        post("content-length: 100") + "x",
        post("content-length: 100"),
        post("transfer-encoding: chunked") + "1\r\nx\r\n",
        post("transfer-encoding: chunked"),
        post("expect: 100-continue\r\ncontent-length: 100"),
        post("expect: 100-continue\r\ncontent-length: 200000") + "x",
    ];
    let flags = ["--body-timeout", "0.4"];
    for sent in http1.map(String::into_bytes) {
        let proxy = Proxy::before(&old, &flags).await;
        let begun = Instant::now();
        let mut client = Client::connect(proxy.address).await;
        client.send(&sent).await;
        let response = client.response().await;
        assert!(begun.elapsed() > Duration::from_millis(400));
        assert_eq!(response.status, 408);
        assert_eq!(response.header("connection"), Some("close"));
        response.own_error();
        client.until_closed().await;
        counts_one_slow_body(&proxy).await;
    }
    for (part, upstream) in [(100, "http1"), (0, "http1"), (100, "http2")] {
        let flags = [&flags[..], &["--upstream-protocol", upstream]].concat();
        let proxy = Proxy::before(&old, &flags).await;
        let mut client = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
        let part = frame(0, 0, 1, &vec![b'x'; part]);
        let sent = [wide_open_head(), part].concat();
        client.write_all(&sent).await.unwrap();
        counts_one_slow_body(&proxy).await;
    }
    eventually("the upstream is disconnected", async || {
        old.requests().iter().all(|request| request.is_gone())
    })
    .await;
}

async fn counts_one_slow_body(proxy: &Proxy) {
    let labels = [("limit", "body")];
    proxy
        .counts("crossfade_client_timeouts_total", &labels, 1.0)
        .await;
    let labels = [("cause", "body_timeout")];
    proxy
        .counts("crossfade_rejected_requests_total", &labels, 1.0)
        .await;
    proxy.counts("crossfade_open_streams", &[], 0.0).await;
}

#[tokio::test]
async fn a_small_body_that_arrives_byte_by_byte_has_one_limit_for_all_of_it() {
    let old = Upstream::start(healthy("old")).await;
    let flags = ["--body-timeout", "0.5", "--head-timeout", "0.5"];
    for expect in ["", "expect: 100-continue\r\n"] {
        let proxy = Proxy::before(&old, &flags).await;
        let mut client = Client::connect(proxy.address).await;
        let head =
            format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{expect}content-length: 60000\r\n\r\n");
        client.send(head).await;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) && client.try_send("x").await {
            // The sending rate of the client.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
        counts_one_slow_body(&proxy).await;
    }
}

#[tokio::test]
async fn a_body_of_any_length_that_arrives_byte_by_byte_is_ended_in_time() {
    let old = Upstream::start(healthy("old")).await;
    let flags = ["--body-timeout", "0.2", "--head-timeout", "0.2"];
    for framing in ["transfer-encoding: chunked", "content-length: 100000"] {
        let proxy = Proxy::before(&old, &flags).await;
        let mut client = Client::connect(proxy.address).await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n");
        client.send(head).await;
        let byte = match framing.starts_with('t') {
            true => "1\r\nx\r\n",
            false => "x",
        };
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) && client.try_send(byte).await {
            // The sending rate of the client.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{framing}");
        counts_one_slow_body(&proxy).await;
    }
}

#[tokio::test]
async fn a_large_body_may_take_as_long_as_it_makes_progress() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--body-timeout", "0.5"]).await;
    let piece = "x".repeat(10_000);
    for framing in ["content-length: 100000", "transfer-encoding: chunked"] {
        let mut client = Client::connect(proxy.address).await;
        let chunked = framing.starts_with('t');
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n");
        client.send(head).await;
        for _ in 0..10 {
            // The sending rate of the client.
            tokio::time::sleep(Duration::from_millis(100)).await;
            match chunked {
                true => client.send(format!("2710\r\n{piece}\r\n")).await,
                false => client.send(&piece).await,
            }
        }
        if chunked {
            client.send("0\r\n\r\n").await;
        }
        assert_eq!(client.response().await.status, 200);
        assert_eq!(old.last().body_length(), 100_000);
    }
}

#[tokio::test]
async fn a_model_server_that_does_not_read_does_not_count_against_the_client() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let args = ["--old", &address, "--body-timeout", "0.3"];
    let proxy = Proxy::start(&args).await;
    let size = 64 << 20;
    let mut client = Client::connect(proxy.address).await;
    let sending = tokio::spawn(async move {
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n");
        client.send(head).await;
        client.send(vec![b'x'; size]).await;
        client
    });
    let (mut upstream, _) = within("a connection", listener.accept()).await.unwrap();
    let begun = Instant::now();
    eventually("five limits pass", async || {
        begun.elapsed() > Duration::from_millis(1500)
    })
    .await;
    assert!(!sending.is_finished());
    let mut piece = vec![0; 1 << 20];
    let mut read = 0;
    while read < size {
        read += within("more", upstream.read(&mut piece)).await.unwrap();
    }
    upstream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        .await
        .unwrap();
    sending.await.unwrap().response().await.assert_is("{}");
}

#[tokio::test]
async fn a_started_response_continues_although_the_rest_of_its_request_does_not_arrive() {
    let gate = Gate::closed();
    let script = Script::new().sse().events(&content("old", 0)).wait(&gate);
    let script = script.events(&content("old", 1)).events(DONE);
    let old = Upstream::always(script.leaving_the_body()).await;
    let proxy = Proxy::before(&old, &["--body-timeout", "0.2"]).await;
    let mut client = Client::connect(proxy.address).await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n");
    client.send(head + &"x".repeat(70_000)).await;
    assert_eq!(client.head().await.status, 200);
    client.until(&content("old", 0)).await;
    let labels = [("limit", "body")];
    proxy
        .counts("crossfade_client_timeouts_total", &labels, 1.0)
        .await;
    gate.open();
    let rest = String::from_utf8(client.body().await).unwrap();
    assert_eq!(rest, content("old", 1) + DONE);
    assert_eq!(client.end, Some(crate::rig::End::Clean));
    client.until_closed().await;
}

#[tokio::test]
async fn the_admin_port_limits_the_size_of_a_head() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for (length, status) in [(20_000, 200), (40_000, 431)] {
        let mut client = Client::connect(proxy.admin).await;
        let filler = "a".repeat(length);
        let head = format!("GET /livez HTTP/1.1\r\nHost: localhost\r\nX: {filler}\r\n\r\n");
        client.send(&head).await;
        assert_eq!(client.head().await.status, status, "{length}");
    }
}

#[tokio::test]
async fn the_admin_port_limits_the_connections_of_one_address() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..200 {
        let mut client = Client::connect(proxy.admin).await;
        client.get("/livez", &[]).await;
        match within("an answer or a close", client.try_head()).await {
            Ok(head) => {
                client.rest(head).await.assert_is("alive\n");
                open.push(client);
            }
            Err(_) => refused += 1,
        }
    }
    assert_eq!((open.len(), refused), (128, 72));
    drop(open);
    eventually("it answers again", async || {
        let mut client = Client::connect(proxy.admin).await;
        client.get("/livez", &[("connection", "close")]).await;
        client.try_head().await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_tunnel_whose_client_reads_nothing_is_reset_after_the_write_timeout() {
    let head =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let flood = Step::Flood("x".repeat(65_536).into(), 3200, std::sync::Arc::default());
    let old = Upstream::always(Script::new().raw(head).step(flood)).await;
    let proxy = Proxy::before(&old, &["--write-timeout", "0.5"]).await;
    let mut client = Client::connect_narrow(proxy.address).await;
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    client.get("/v1/realtime", &upgrade).await;
    assert_eq!(client.head().await.status, 101);
    proxy.outcomes("cancelled", 1).await;
    let labels = [("limit", "write")];
    proxy
        .counts("crossfade_client_timeouts_total", &labels, 1.0)
        .await;
    let line = proxy.access_line(1).await;
    assert!(
        line["why"].as_str().unwrap().contains("read nothing"),
        "{line}"
    );
    assert_eq!(client.until_closed().await.1, crate::rig::End::Reset);
    eventually("the upstream connection is closed", async || {
        old.open() == 0
    })
    .await;
}
