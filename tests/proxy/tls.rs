//! TLS on both sides: trust, client certificates, ALPN, and certificates that are renewed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::rig::client::http2::Client as Http2;
use crate::rig::tls::{Authority, Files, connect};
use crate::rig::*;
use http::Version;
use tokio::net::{TcpListener, TcpStream};

const BOTH: [&str; 2] = ["h2", "http/1.1"];

#[tokio::test]
async fn clients_are_served_over_tls_by_the_protocol_they_choose() {
    let authority = Authority::new();
    let files = authority.issue("server");
    let old = Upstream::start(healthy("old")).await;
    let flags = ["--tls-cert", files.cert(), "--tls-key", files.key()];
    let proxy = Proxy::before(&old, &flags).await;

    for alpn in [&["http/1.1"][..], &[]] {
        let io = connect(proxy.address, authority.client(alpn, None))
            .await
            .unwrap();
        let mut client = Client::over(io);
        for _ in 0..2 {
            client.post(CHAT, &[], STREAMING).await;
            client.response().await.assert_is(chat_text("old"));
        }
        assert_eq!(old.last().header("x-forwarded-proto"), Some("https"));
    }
    let io = connect(proxy.address, authority.client(&BOTH, None))
        .await
        .unwrap();
    assert_eq!(io.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let client = Http2::over(io).await;
    client
        .chat()
        .await
        .response()
        .await
        .assert_is(chat_text("old"));

    // Clear text is rejected and does no harm.
    let mut client = Client::connect(proxy.address).await;
    client.get("/health", &[]).await;
    let (bytes, _) = client.until_closed().await;
    assert!(
        !String::from_utf8_lossy(&bytes).contains("200"),
        "{bytes:?}"
    );
}

#[tokio::test]
async fn a_cut_over_tls_has_no_close_notify() {
    let authority = Authority::new();
    let files = authority.issue("server");
    let old = Upstream::always(stream_of(&content("old", 0)).reset()).await;
    let flags = ["--tls-cert", files.cert(), "--tls-key", files.key()];
    let proxy = Proxy::before(&old, &flags).await;
    let io = connect(proxy.address, authority.client(&["http/1.1"], None))
        .await
        .unwrap();
    let mut client = Client::over(io);
    client.post(CHAT, &[], STREAMING).await;
    let response = client.response().await;
    assert!(response.end.is_unclean());
    assert!(response.text().contains("\"error\""), "{}", response.text());
}

#[tokio::test]
async fn a_client_without_a_certificate_is_rejected_if_one_is_required() {
    let authority = Authority::new();
    let files = authority.issue("server");
    let old = Upstream::start(healthy("old")).await;
    let ca = authority.file();
    let flags = [
        "--tls-cert",
        files.cert(),
        "--tls-key",
        files.key(),
        "--tls-client-ca",
        &ca,
    ];
    let proxy = Proxy::before(&old, &flags).await;

    let own = authority.issue("client");
    let io = connect(proxy.address, authority.client(&["http/1.1"], Some(&own)))
        .await
        .unwrap();
    let mut client = Client::over(io);
    client.post(CHAT, &[], STREAMING).await;
    client.response().await.assert_is(chat_text("old"));
    assert_eq!(old.count(), 1);

    let others = Authority::new();
    let stranger = others.issue("stranger");
    for own in [None, Some(&stranger)] {
        if let Ok(io) = connect(proxy.address, authority.client(&["http/1.1"], own)).await {
            let mut client = Client::over(io);
            client.post(CHAT, &[], STREAMING).await;
            assert!(client.try_head().await.is_err());
        }
    }
    assert_eq!(old.count(), 1);
}

#[tokio::test]
async fn a_renewed_certificate_is_presented_to_the_next_client() {
    let authority = Authority::new();
    let files = authority.issue("server");
    let old = Upstream::start(healthy("old")).await;
    let flags = ["--tls-cert", files.cert(), "--tls-key", files.key()];
    let proxy = Proxy::before(&old, &flags).await;
    let shown = async || {
        let io = connect(proxy.address, authority.client(&["http/1.1"], None))
            .await
            .unwrap();
        io.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let first = shown().await;
    assert_eq!(shown().await, first);
    let io = connect(proxy.address, authority.client(&["http/1.1"], None))
        .await
        .unwrap();
    let mut before = Client::over(io);
    authority.issue("server");
    eventually("the new certificate is shown", async || {
        shown().await != first
    })
    .await;
    before.post(CHAT, &[], STREAMING).await;
    before.response().await.assert_is(chat_text("old"));

    // An invalid file changes nothing.
    let second = shown().await;
    std::fs::write(&files.cert, "garbage").unwrap();
    for _ in 0..20 {
        assert_eq!(shown().await, second);
    }
}

#[tokio::test]
async fn upstreams_are_reached_over_tls_by_the_protocol_that_they_choose() {
    let authority = Authority::new();
    let files = authority.issue("upstream");
    let ca = authority.file();
    for (alpn, version) in [
        (&["http/1.1"][..], Version::HTTP_11),
        (&[], Version::HTTP_11),
        (&["h2"], Version::HTTP_2),
        (&BOTH, Version::HTTP_2),
    ] {
        let config = authority.server(&files, alpn, false);
        let old = Upstream::listen("127.0.0.1:0", Some(config), healthy("old")).await;
        for host in ["localhost", "127.0.0.1"] {
            let url = format!("https://{host}:{}", old.address.port());
            let proxy = Proxy::start(&[
                "--old",
                &url,
                "--new",
                "https://127.0.0.1:9",
                "--split",
                "0",
                "--upstream-ca",
                &ca,
            ])
            .await;
            for _ in 0..2 {
                proxy.chat().await.assert_is(chat_text("old"));
            }
            assert_eq!(old.last().version, version, "{alpn:?}");
        }
        assert!(old.connections() <= 4, "connections are used again");
    }
}

#[tokio::test]
async fn an_upstream_that_is_not_trusted_gets_nothing() {
    let authority = Authority::new();
    let files = authority.issue("upstream");
    let old = Upstream::listen(
        "127.0.0.1:0",
        Some(authority.server(&files, &BOTH, false)),
        healthy("old"),
    )
    .await;
    let others = Authority::new();
    let (other, ca) = (others.file(), authority.file());
    // Another authority, and a name that is not on the certificate.
    for (host, ca) in [("localhost", &other), ("127.0.0.2", &ca)] {
        let url = format!("https://{host}:{}", old.address.port());
        let proxy = Proxy::start(&[
            "--old",
            &url,
            "--new",
            "https://127.0.0.1:9",
            "--split",
            "0",
            "--upstream-ca",
            ca,
        ])
        .await;
        let response = proxy.chat().await;
        assert_eq!(response.status, 502);
        response.own_error();
        assert_eq!(old.count(), 0);
    }
}

#[tokio::test]
async fn an_upstream_may_require_the_proxys_certificate() {
    let authority = Authority::new();
    let files = authority.issue("upstream");
    let own = authority.issue("proxy");
    let ca = authority.file();
    let old = Upstream::listen(
        "127.0.0.1:0",
        Some(authority.server(&files, &BOTH, true)),
        healthy("old"),
    )
    .await;
    let url = format!("https://localhost:{}", old.address.port());
    let base = [
        "--old",
        &url,
        "--new",
        "https://127.0.0.1:9",
        "--split",
        "0",
        "--upstream-ca",
        &ca,
    ];
    let with_own = [
        &base[..],
        &["--upstream-cert", own.cert(), "--upstream-key", own.key()],
    ]
    .concat();
    let proxy = Proxy::start(&with_own).await;
    proxy.chat().await.assert_is(chat_text("old"));
    let proxy = Proxy::start(&base).await;
    assert_eq!(proxy.chat().await.status, 502);
    assert_eq!(old.count(), 1);
}

#[tokio::test]
async fn a_stream_over_tls_is_recovered_and_cancelled_like_any_other() {
    let authority = Authority::new();
    let files = authority.issue("upstream");
    let ca = authority.file();
    for alpn in BOTH {
        let new = Upstream::listen(
            "127.0.0.1:0",
            Some(authority.server(&files, &[alpn], false)),
            |_| stream_of(&role("failed")).eof(),
        )
        .await;
        let old = Upstream::listen(
            "127.0.0.1:0",
            Some(authority.server(&files, &[alpn], false)),
            |received| {
                if received.target.ends_with("hang") {
                    Script::new().hang()
                } else {
                    chat_stream("old")
                }
            },
        )
        .await;
        let [old_url, new_url] =
            [&old, &new].map(|up| format!("https://localhost:{}", up.address.port()));
        let proxy = Proxy::start(&[
            "--old",
            &old_url,
            "--new",
            &new_url,
            "--split",
            "100",
            "--upstream-ca",
            &ca,
        ])
        .await;
        proxy.chat().await.assert_is(chat_text("old"));
        let mut client = Client::connect(proxy.address).await;
        client.get("/hang", &[]).await;
        let request = old.request(2).await;
        drop(client);
        eventually("cancelled upstream", async || request.is_gone()).await;
    }
}

#[tokio::test]
async fn the_plan_configures_the_tls_of_the_new_generation() {
    let authority = Authority::new();
    let files = authority.issue("upstream");
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::listen(
        "127.0.0.1:0",
        Some(authority.server(&files, &BOTH, false)),
        healthy("new"),
    )
    .await;
    let more = format!(
        "tls: {{caFile: \"{}\", serverName: localhost}}",
        authority.file()
    );
    let target = format!("https://127.0.0.1:{}", new.address.port());
    let plan = PlanFile::new(&manifest(&target, 0, 1, &more));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    proxy.chat().await.assert_is(chat_text("new"));
    assert_eq!(old.count(), 0);
}

/// A server of old that offers these protocols by ALPN.
async fn old_that_offers(authority: &Authority, files: &Files, alpn: &[&str]) -> Upstream {
    let config = authority.server(files, alpn, false);
    Upstream::listen("127.0.0.1:0", Some(config), healthy("old")).await
}

/// An address that forwards each connection to one of two servers.
struct Either {
    port: u16,
    picked: Arc<AtomicUsize>,
}

impl Either {
    async fn start(servers: [&Upstream; 2]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let servers = servers.map(|server| server.address);
        let picked = Arc::new(AtomicUsize::new(0));
        let pick = Arc::clone(&picked);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = servers[pick.load(Ordering::Relaxed)];
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { port, picked }
    }

    /// Forwards the connections that follow to this server.
    fn pick(&self, server: usize) {
        self.picked.store(server, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn each_connection_uses_the_protocol_that_alpn_selected_for_it() {
    let authority = Authority::new();
    let files = authority.issue("upstream");
    let ca = authority.file();
    let server = async |alpn: &[&str]| old_that_offers(&authority, &files, alpn).await;
    let (http1, http2) = (server(&["http/1.1"]).await, server(&BOTH).await);
    let either = Either::start([&http1, &http2]).await;
    let url = format!("https://localhost:{}", either.port);
    let flags = ["--upstream-ca", &ca, "--threads", "1"];
    // Each request has a connection of its own.
    let once = [&flags[..], &["--upstream-max-exchanges", "1"]].concat();
    for first in [0, 1] {
        let proxy = Proxy::before_url(&url, &once).await;
        for server in [first, 1 - first, 1 - first, first, 1 - first, first, first] {
            either.pick(server);
            let before = [&http1, &http2].map(Upstream::count);
            proxy.chat().await.assert_is(chat_text("old"));
            let after = [&http1, &http2].map(Upstream::count);
            let sent: Vec<_> = after
                .iter()
                .zip(before)
                .map(|(now, was)| now - was)
                .collect();
            assert_eq!(sent[server], 1, "{sent:?}");
            assert_eq!(sent.iter().sum::<usize>(), 1, "{sent:?}");
        }
    }
    assert_eq!(http1.last().version, Version::HTTP_11);
    assert_eq!(http2.last().version, Version::HTTP_2);
}

#[tokio::test]
async fn a_server_that_is_replaced_by_one_with_another_protocol_is_reached() {
    let authority = Authority::new();
    let files = authority.issue("upstream");
    let ca = authority.file();
    let server = async |alpn: &[&str]| old_that_offers(&authority, &files, alpn).await;
    for order in [[&["http/1.1"][..], &BOTH], [&BOTH, &["http/1.1"]]] {
        let [before, after] = [server(order[0]).await, server(order[1]).await];
        let either = Either::start([&before, &after]).await;
        let url = format!("https://127.0.0.1:{}", either.port);
        let flags = ["--upstream-ca", &ca, "--threads", "1"];
        let proxy = Proxy::before_url(&url, &flags).await;
        for _ in 0..2 {
            proxy.chat().await.assert_is(chat_text("old"));
        }
        assert_eq!((before.count(), before.connections()), (2, 1));
        either.pick(1);
        drop(before);
        // A request on the connection that is just closing may still fail.
        eventually("the other server responds", async || {
            proxy.chat().await.status == 200
        })
        .await;
        for _ in 0..2 {
            proxy.chat().await.assert_is(chat_text("old"));
        }
        assert_eq!((after.count(), after.connections()), (3, 1));
    }
}

const UPGRADE: [(&str, &str); 2] = [("connection", "upgrade"), ("upgrade", "websocket")];

#[tokio::test]
async fn an_upgrade_uses_http_1_1_with_a_server_that_prefers_http2() {
    let switch =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let authority = Authority::new();
    let files = authority.issue("upstream");
    let ca = authority.file();
    let config = authority.server(&files, &BOTH, false);
    let old = Upstream::listen("127.0.0.1:0", Some(config), move |received| match received
        .header("upgrade")
    {
        Some(_) => Script::new().raw(switch).raw("begun").hang(),
        None => healthy("old")(received),
    })
    .await;
    let url = format!("https://127.0.0.1:{}", old.address.port());
    let flags = ["--upstream-ca", &ca, "--threads", "1"];
    let proxy = Proxy::before_url(&url, &flags).await;
    for round in 1..3 {
        proxy.chat().await.assert_is(chat_text("old"));
        assert_eq!(old.last().version, Version::HTTP_2);
        assert_eq!(old.connections(), round);
        let mut client = Client::connect(proxy.address).await;
        client.get("/v1/realtime", &UPGRADE).await;
        assert_eq!(client.head().await.status, 101);
        assert_eq!(client.exactly(5).await, b"begun");
        let seen = old.last();
        assert_eq!(seen.version, Version::HTTP_11);
        assert_eq!(seen.header("upgrade"), Some("websocket"));
        assert_eq!(old.connections(), round + 1);
    }
}

#[tokio::test]
async fn an_upgrade_that_could_only_be_sent_over_http2_is_501() {
    let authority = Authority::new();
    let files = authority.issue("upstream");
    let ca = authority.file();
    for (protocol, alpn) in [("auto", &["h2"][..]), ("http2", &BOTH)] {
        let config = authority.server(&files, alpn, false);
        let old = Upstream::listen("127.0.0.1:0", Some(config), healthy("old")).await;
        let url = format!("https://127.0.0.1:{}", old.address.port());
        let flags = ["--upstream-ca", &ca, "--upstream-protocol", protocol];
        let proxy = Proxy::before_url(&url, &flags).await;
        // More than would eject a server that fails.
        for path in ["/v1/realtime", "/ws"].repeat(5) {
            let mut client = Client::connect(proxy.address).await;
            client.get(path, &UPGRADE).await;
            let response = client.response().await;
            assert_eq!(response.status, 501, "{protocol} {path}");
            assert_eq!(
                response.own_error()["message"],
                "an upgrade needs HTTP/1.1, and the model server is reached over HTTP/2 only"
            );
        }
        assert_eq!(old.count(), 0);
        proxy.chat().await.assert_is(chat_text("old"));
        let ejected = |line: &String| line.contains("endpoint ejected");
        assert!(!proxy.lines().iter().any(ejected));
    }
}

#[tokio::test]
async fn an_upgrade_to_a_server_that_ignores_alpn_is_501() {
    let authority = Authority::new();
    let files = authority.issue("upstream");
    let ca = authority.file();
    let server = async |alpn: &[&str]| old_that_offers(&authority, &files, alpn).await;
    let (http2, no_alpn) = (server(&["h2"]).await, server(&[]).await);
    let either = Either::start([&http2, &no_alpn]).await;
    let url = format!("https://localhost:{}", either.port);
    let flags = ["--upstream-ca", &ca, "--threads", "1"];
    let proxy = Proxy::before_url(&url, &flags).await;
    proxy.chat().await.assert_is(chat_text("old"));
    either.pick(1);
    let mut client = Client::connect(proxy.address).await;
    client.get("/v1/realtime", &UPGRADE).await;
    assert_eq!(client.response().await.status, 501);
    assert_eq!(no_alpn.count(), 0);
}

#[tokio::test]
async fn a_server_without_a_common_protocol_is_a_failed_connection() {
    let authority = Authority::new();
    let files = authority.issue("upstream");
    let config = authority.server(&files, &["spdy/3"], false);
    let new = Upstream::listen("127.0.0.1:0", Some(config), healthy("new")).await;
    let old = Upstream::start(healthy("old")).await;
    let more = format!("tls: {{caFile: \"{}\"}}", authority.file());
    let target = format!("https://127.0.0.1:{}", new.address.port());
    let plan = PlanFile::new(&manifest(&target, 0, 1, &more));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    proxy.chat().await.assert_is(chat_text("old"));
    let recovered = [("cause", "connect")];
    let metrics = proxy.metrics().await;
    let total = metrics.sum("crossfade_recovered_requests_total", &recovered);
    assert_eq!(total, 1.0);
}
