//! Clients use up the file descriptors of a process with a low limit.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::rig::frames::{END_STREAM, FrameServer, MAX_CONCURRENT_STREAMS};
use crate::rig::*;
use client::http2::Client as Http2;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// The limit, and the part that the process reserves for itself.
const LIMIT: usize = 128;
const RESERVE: usize = 32;
/// More clients than the limit allows.
const CLIENTS: usize = 3 * LIMIT;
const REFUSED: &str = "crossfade_connections_refused_total";

/// A server that streams half a response until the gate is open, and sends no response to `/hang`.
async fn server(gate: &Gate) -> Upstream {
    let rest = chat_text("old").replace(&role("old"), "");
    let stream = stream_of(&role("old"))
        .chunk(content("old", 9))
        .wait(gate)
        .chunk(rest);
    Upstream::start(move |received| match &*received.target {
        CHAT => stream.clone(),
        "/hang" => Script::new().hang(),
        _ => unary("old"),
    })
    .await
}

fn descriptors(proxy: &Proxy) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", proxy.pid()));
    open.unwrap().count()
}

/// Opens connections and sends nothing.
async fn idle(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for _ in 0..count {
        open.push(TcpStream::connect(address).await.unwrap());
    }
    open
}

fn times_logged(proxy: &Proxy, what: &str) -> u64 {
    let lines = proxy.lines();
    lines.iter().filter(|line| line.contains(what)).count() as u64
}

async fn assert_lives(proxy: &Proxy) {
    for path in ["/livez", "/metrics", "/plan"] {
        assert_eq!(proxy.admin(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn the_admin_port_responds_and_streams_continue_when_clients_exhaust_descriptors() {
    let gate = Gate::closed();
    let old = server(&gate).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let begun = Instant::now();
    proxy.limit_descriptors(Some(LIMIT as u64));
    let mut stream = client::open_chat(proxy.address).await;
    stream.head().await;
    let mut client = Client::connect(proxy.address).await;
    let hog = Arc::new(Http2::connect(proxy.address).await);
    assert_eq!(hog.get("/quick").await.status, 200);

    // Idle clients can use half of the descriptors that are not reserved.
    let open = idle(proxy.address, CLIENTS).await;
    let all = (CLIENTS + 3) as f64;
    eventually("each connection is accepted or refused", async || {
        let metrics = proxy.metrics().await;
        let taken = metrics.sum("crossfade_connections", &[]);
        assert!(taken <= ((LIMIT - RESERVE) / 2) as f64, "{taken}");
        taken + metrics.sum(REFUSED, &[]) == all
    })
    .await;
    assert!(proxy.metrics().await.sum(REFUSED, &[]) > (CLIENTS / 2) as f64);
    assert_lives(&proxy).await;
    // The other half is for connections to model servers.
    client.get("/quick", &[]).await;
    assert_eq!(client.response().await.status, 200);

    // Requests can use the rest.
    let mut asked = JoinSet::new();
    for _ in 0..100 {
        let hog = Arc::clone(&hog);
        asked.spawn(async move {
            hog.send("GET", "/hang", &[], "")
                .await
                .map(|answer| answer.status)
        });
    }
    let refused = within("a request is refused", asked.join_next()).await;
    assert_eq!(refused.unwrap().unwrap().unwrap(), 503);
    eventually("all are used", async || {
        descriptors(&proxy) >= LIMIT - RESERVE
    })
    .await;
    assert_lives(&proxy).await;
    client.get("/quick", &[]).await;
    let response = client.response().await;
    assert_eq!(response.status, 503);
    let error = response.own_error();
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("cannot open a connection"), "{message}");
    let mut late = Client::connect(proxy.address).await;
    assert_eq!(late.until_closed().await.0, b"");

    for what in [
        "closed new client connections immediately",
        "cannot open connections to a model server",
    ] {
        let times = until(what, async || {
            let times = times_logged(&proxy, what);
            (times > 0).then_some(times)
        })
        .await;
        assert!(times <= begun.elapsed().as_secs() + 1, "{times}: {what}");
    }
    gate.open();
    let rest = stream.body().await;
    assert_eq!(stream.end, Some(End::Clean));
    assert!(String::from_utf8_lossy(&rest).ends_with(DONE));

    drop((asked, hog, open));
    eventually("the clients have disconnected", async || {
        proxy.metrics().await.sum("crossfade_connections", &[]) <= 2.0
    })
    .await;
    client.get("/quick", &[]).await;
    assert_eq!(client.response().await.status, 200);
    let response = proxy.chat().await;
    assert_eq!((response.status, response.end), (200, End::Clean));
    let metrics = proxy.metrics().await;
    let ejected = [("state", "ejected")];
    assert_eq!(metrics.sum("crossfade_pool_endpoints", &ejected), 0.0);
    assert_eq!(metrics.sum("crossfade_accept_errors_total", &[]), 0.0);
    drop((client, late, stream));
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
}

#[tokio::test]
async fn one_address_cannot_use_all_descriptors_of_the_admin_port() {
    let gate = Gate::closed();
    let old = server(&gate).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.limit_descriptors(Some(LIMIT as u64));
    let before = descriptors(&proxy);
    let mut strangers = Vec::new();
    for _ in 0..CLIENTS {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 2], 0).into()).unwrap();
        strangers.push(socket.connect(proxy.admin).await.unwrap());
    }
    let open = idle(proxy.address, CLIENTS).await;
    eventually("clients are refused", async || {
        proxy.metrics().await.sum(REFUSED, &[]) > 0.0
    })
    .await;
    assert_lives(&proxy).await;
    drop(open);
    eventually("the clients have disconnected", async || {
        descriptors(&proxy) < before + RESERVE / 2
    })
    .await;
    drop(strangers);
}

#[tokio::test]
async fn idle_connections_to_model_servers_are_closed_when_descriptors_are_short() {
    for threads in ["1", "4"] {
        let gate = Gate::closed();
        let [old, new] = [server(&gate).await, server(&gate).await];
        let file = PlanFile::new(&manifest(&new.url(), 1, 0, ""));
        let proxy = Proxy::planned(&old, &file, &["--threads", threads]).await;
        let client = Http2::connect(proxy.address).await;
        let mut others = Vec::new();
        for _ in 0..8 {
            let other = Http2::connect(proxy.address).await;
            assert_eq!(other.get("/quick").await.status, 200);
            others.push(other);
        }
        // Concurrently, so that each leaves a connection.
        let mut streams = Vec::new();
        for _ in 0..60 {
            streams.push(client.chat().await);
        }
        gate.open();
        for stream in streams {
            assert_eq!(stream.response().await.end, End::Clean);
        }
        file.write(&manifest(&new.url(), 0, 1, ""));
        let wanted = [("kind", "wanted")];
        proxy.counts("crossfade_split_ratio", &wanted, 1.0).await;
        let held = descriptors(&proxy);
        assert!(held > 60, "{held}");
        proxy.limit_descriptors(Some((held + RESERVE) as u64));
        let stream = client.chat().await;
        let generation = stream.headers.get("x-crossfade-generation");
        assert_eq!((stream.status, generation), (200, Some("new")));
        // Other threads close theirs a little later.
        for other in others {
            eventually("it is served", async || other.chat().await.status == 200).await;
        }
    }
}

#[tokio::test]
async fn idle_http2_connections_are_closed_too_when_descriptors_are_short() {
    let (gate, opened) = tokio::sync::watch::channel(false);
    let settings = &[(MAX_CONCURRENT_STREAMS, 1)];
    let old = FrameServer::start(settings, move |_, mut frames| {
        let mut opened = opened.clone();
        async move {
            while let Some(next) = frames.try_next().await {
                if next.ends_stream() {
                    let _ = opened.wait_for(|is_open| *is_open).await;
                    let ok = (":status", "200");
                    frames.headers(next.stream, END_STREAM, &[ok]).await;
                }
            }
        }
    })
    .await;
    let new = Upstream::start(healthy("new")).await;
    let file = PlanFile::new(&manifest(&new.url(), 1, 0, ""));
    let args = ["--old", &old.url(), "--plan", &file.as_str()];
    let flags = ["--upstream-protocol", "http2", "--threads", "1"];
    let proxy = Proxy::start(&[&args[..], &flags].concat()).await;
    let client = Http2::connect(proxy.address).await;
    // Concurrently, so that each leaves a connection.
    let requests = (0..60).map(|_| client.chat());
    let opened = async {
        eventually("each has a connection", async || old.connections() >= 60).await;
        gate.send_replace(true);
    };
    futures_util::future::join(futures_util::future::join_all(requests), opened).await;
    file.write(&manifest(&new.url(), 0, 1, ""));
    let wanted = [("kind", "wanted")];
    proxy.counts("crossfade_split_ratio", &wanted, 1.0).await;
    let held = descriptors(&proxy);
    assert!(held > 60, "{held}");
    proxy.limit_descriptors(Some((held / 2 + RESERVE) as u64));
    let stream = client.chat().await;
    let generation = stream.headers.get("x-crossfade-generation");
    assert_eq!((stream.status, generation), (200, Some("new")));
}
