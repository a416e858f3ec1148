//! Several servers behind one address, like a Kubernetes Service that selects a server for each connection. The proxy must renew
//! its connections so that servers that start later get their share.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::rig::*;
use tokio::net::{TcpListener, TcpStream};

/// One address that connects each client to the next of its servers.
struct Service {
    port: u16,
    servers: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Service {
    async fn before(first: &Upstream) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let service = Self {
            port,
            servers: Arc::new(Mutex::new(vec![first.address])),
        };
        service.serve(listener);
        // If `localhost` also resolves to this address.
        if let Ok(listener) = TcpListener::bind(("::1", port)).await {
            service.serve(listener);
        }
        service
    }

    fn serve(&self, listener: TcpListener) {
        let servers = Arc::clone(&self.servers);
        tokio::spawn(async move {
            for count in 0.. {
                let (mut client, _) = listener.accept().await.unwrap();
                let server = {
                    let servers = servers.lock().unwrap();
                    servers[count % servers.len()]
                };
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
    }

    fn add(&self, server: &Upstream) {
        self.servers.lock().unwrap().push(server.address);
    }

    /// By name, as a Service is addressed.
    fn url(&self) -> String {
        format!("http://localhost:{}", self.port)
    }
}

/// Sends chats in `lanes` concurrent lanes until `enough`.
async fn load(proxy: &Proxy, lanes: usize, enough: impl Fn(usize) -> bool) {
    let mut count = 0;
    while !enough(count) {
        let lanes = (0..lanes).map(|_| proxy.chat());
        for answer in futures_util::future::join_all(lanes).await {
            assert_eq!(answer.status, 200);
            count += 1;
        }
    }
}

/// The shares of three servers, two of which start after the first has all connections.
async fn shares(flags: &[&str], lanes: usize, enough: impl Fn(usize) -> bool) -> Vec<f64> {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Upstream::start(healthy("new")).await);
    }
    let service = Service::before(&servers[0]).await;
    let (old, new) = (Upstream::nobody().to_string(), service.url());
    let mut args = vec!["--old", &old, "--new", &new, "--split", "100"];
    args.extend(flags);
    let proxy = Proxy::start(&args).await;
    load(&proxy, lanes, |count| count >= 2 * lanes).await;
    let before = servers[0].count();
    service.add(&servers[1]);
    service.add(&servers[2]);
    load(&proxy, lanes, enough).await;
    let counts = [
        servers[0].count() - before,
        servers[1].count(),
        servers[2].count(),
    ];
    let all: usize = counts.iter().sum();
    counts
        .iter()
        .map(|count| *count as f64 / all as f64)
        .collect()
}

#[track_caller]
fn are_equal(shares: &[f64]) {
    assert!(
        shares.iter().all(|share| (0.2..=0.47).contains(share)),
        "{shares:?}"
    );
}

#[tokio::test]
async fn servers_that_start_later_get_equal_shares() {
    are_equal(&shares(&[], 8, |count| count >= 1600).await);
}

#[tokio::test]
async fn servers_that_start_later_get_equal_shares_over_http2_too() {
    are_equal(&shares(&["--upstream-protocol", "http2"], 8, |count| count >= 1600).await);
}

/// The shares if connections are closed only because of their age.
async fn by_age(protocol: &str, seconds: u64) {
    let flags = [
        "--upstream-max-exchanges",
        "0",
        "--upstream-max-age",
        "0.2",
        "--upstream-protocol",
        protocol,
    ];
    let begin = Instant::now();
    let shares = shares(&flags, 4, |_| {
        begin.elapsed() > Duration::from_secs(seconds)
    })
    .await;
    assert!(
        shares.iter().all(|share| *share > 0.1),
        "{protocol}: {shares:?}"
    );
}

#[tokio::test]
async fn connections_are_also_closed_by_age() {
    // HTTP/2 connections are checked every two seconds.
    tokio::join!(by_age("http1", 3), by_age("http2", 8));
}

#[tokio::test]
async fn without_limits_connections_are_not_renewed() {
    let flags = ["--upstream-max-exchanges", "0", "--upstream-max-age", "0"];
    let shares = shares(&flags, 1, |count| count >= 200).await;
    assert_eq!(shares, [1.0, 0.0, 0.0]);
}
