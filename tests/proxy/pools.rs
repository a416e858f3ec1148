//! The endpoints of one generation: load balancing, ejection and probes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::rig::*;
use plan_file::{manifest, mostly_old};

/// New has no listener, and all requests go to old.
const ALL_OLD: [&str; 4] = ["--new", "127.0.0.1:9", "--split", "0"];

async fn two() -> [Upstream; 2] {
    [
        Upstream::start(healthy("old")).await,
        Upstream::start(healthy("old")).await,
    ]
}

async fn before([a, b]: &[Upstream; 2], more: &[&str]) -> Proxy {
    let (a, b) = (a.url(), b.url());
    let mut args = vec!["--old", &a, "--old", &b];
    args.extend(ALL_OLD);
    args.extend(more);
    Proxy::start(&args).await
}

/// An endpoint on `/plan`.
async fn endpoint(proxy: &Proxy, address: SocketAddr) -> serde_json::Value {
    let page: serde_json::Value = serde_json::from_str(&proxy.plan().await).unwrap();
    let endpoints = page["endpoints"].as_array().unwrap();
    let mut endpoints = endpoints.iter();
    let found = endpoints.find(|endpoint| endpoint["address"] == address.to_string());
    found.expect("the endpoint is in the plan").clone()
}

async fn is_healthy(proxy: &Proxy, address: SocketAddr) -> bool {
    endpoint(proxy, address).await["healthy"] == true
}

fn inferences(server: &Upstream) -> usize {
    let requests = server.requests();
    let posts = requests.iter().filter(|request| request.method == "POST");
    posts.count()
}

/// A server that lists a model only while `lists` is set.
async fn listing(lists: &Arc<AtomicBool>) -> Upstream {
    let lists = lists.clone();
    let answer = healthy("old");
    Upstream::start(move |received| {
        if received.target == MODELS && !lists.load(Ordering::Relaxed) {
            models(&[])
        } else {
            answer(received)
        }
    })
    .await
}

/// Asserts that, of two probed servers, the one without a model gets no requests until it has one.
async fn assert_left_out_while_empty(
    proxy: &Proxy,
    [empty, full]: [&Upstream; 2],
    lists: &AtomicBool,
) {
    eventually("the endpoint without a model is unhealthy", async || {
        !is_healthy(proxy, empty.address).await
    })
    .await;
    eventually("the endpoint with a model is probed", async || {
        full.count() > 0
    })
    .await;
    for _ in 0..20 {
        proxy.chat().await.assert_is(chat_text("old"));
    }
    assert_eq!((inferences(empty), inferences(full)), (0, 20));
    lists.store(true, Ordering::Relaxed);
    eventually("it is healthy again", async || {
        is_healthy(proxy, empty.address).await
    })
    .await;
    eventually("it gets requests again", async || {
        proxy.chat().await.assert_is(chat_text("old"));
        inferences(empty) > 0
    })
    .await;
}

#[tokio::test]
async fn requests_are_balanced_over_two_servers_named_in_either_way() {
    let servers = two().await;
    let [a, b] = [servers[0].url(), servers[1].url()];
    let both = format!("{a},{b}");
    for flags in [vec!["--old", &a, "--old", &b], vec!["--old", &both]] {
        let earlier = [servers[0].count(), servers[1].count()];
        let proxy = Proxy::start(&[&flags[..], &ALL_OLD].concat()).await;
        for _ in 0..60 {
            proxy.chat().await.assert_is(chat_text("old"));
        }
        // By chance, this fails less than once in a million runs.
        for (server, earlier) in servers.iter().zip(earlier) {
            let count = server.count() - earlier;
            assert!((10..=50).contains(&count), "{count} of 60 by {flags:?}");
        }
        assert_eq!(
            servers[0].count() + servers[1].count() - earlier[0] - earlier[1],
            60
        );
    }
}

#[tokio::test]
async fn the_next_stream_goes_to_the_server_with_fewer_open_ones() {
    let gate = Gate::closed();
    let script = Script::new()
        .sse()
        .chunk(role("old"))
        .wait(&gate)
        .chunk(Family::Chat.content("old", 0))
        .chunk(Family::Chat.terminal("old"));
    let servers = [
        Upstream::always(script.clone()).await,
        Upstream::always(script).await,
    ];
    let proxy = before(&servers, &[]).await;
    let mut streams = Vec::new();
    for pairs in 1..=6 {
        for _ in 0..2 {
            let stream = client::open_chat(proxy.address).await;
            // The proxy holds the chunk before the gate until content, so the test waits for the request at the server.
            let sent = streams.len() + 1;
            eventually("the stream reaches a server", async || {
                servers[0].count() + servers[1].count() == sent
            })
            .await;
            streams.push(stream);
        }
        assert_eq!((servers[0].count(), servers[1].count()), (pairs, pairs));
    }
    for server in &servers {
        assert_eq!(endpoint(&proxy, server.address).await["open"], 6);
    }
    gate.open();
    for stream in &mut streams {
        stream
            .response()
            .await
            .assert_is(Family::Chat.stream("old", 1));
    }
    for server in &servers {
        eventually("nothing is open", async || {
            endpoint(&proxy, server.address).await["open"] == 0
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_ejected_after_three_failures_and_comes_back_when_it_listens()
 {
    let up = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let dead = Upstream::nobody();
    let plan = mostly_old(&new, "");
    let (old, plan) = (format!("{},{dead}", up.url()), plan.as_str());
    let proxy = Proxy::start(&["--old", &old, "--plan", &plan]).await;
    assert!(is_healthy(&proxy, dead).await);

    let mut sent = 0;
    eventually("the dead endpoint is ejected", async || {
        let response = proxy.chat().await;
        sent += 1;
        let text = chat_text(response.generation());
        response.assert_is(text);
        !is_healthy(&proxy, dead).await
    })
    .await;
    assert!(is_healthy(&proxy, up.address).await);
    // The other endpoint of the pool recovered each request, so none had to leave the generation.
    assert_eq!((up.count(), new.count()), (sent, 0));
    assert_eq!(proxy.recovered(&[]).await, 0.0);

    let back = Upstream::at(dead, healthy("old")).await;
    eventually("it gets requests again", async || {
        let response = proxy.chat().await;
        assert_eq!((response.status, response.end), (200, End::Clean));
        back.count() > 0
    })
    .await;
    eventually("it is healthy", async || is_healthy(&proxy, dead).await).await;
}

#[tokio::test]
async fn no_request_fails_while_another_server_of_the_pool_is_reachable() {
    let up = Upstream::start(healthy("old")).await;
    let dead = Upstream::nobody();
    let (a, b) = (up.url(), dead.to_string());
    let flags = ["--old", &a, "--old", &b, "--hold", "0"];
    let proxy = Proxy::start(&[&flags[..], &ALL_OLD].concat()).await;
    eventually("the dead endpoint is ejected", async || {
        proxy.chat().await.assert_is(chat_text("old"));
        !is_healthy(&proxy, dead).await
    })
    .await;
}

#[tokio::test]
async fn a_probed_server_without_models_gets_no_requests_until_it_has_one() {
    let lists = Arc::new(AtomicBool::new(false));
    let servers = [listing(&lists).await, Upstream::start(healthy("old")).await];
    let proxy = before(&servers, &["--probe-interval", "0.1"]).await;
    let [empty, full] = &servers;
    assert_left_out_while_empty(&proxy, [empty, full], &lists).await;
}

#[tokio::test]
async fn a_plan_with_a_probe_skips_a_server_without_models_until_it_has_one() {
    let lists = Arc::new(AtomicBool::new(false));
    let [empty, full] = [listing(&lists).await, Upstream::start(healthy("old")).await];
    let new = Upstream::start(healthy("new")).await;
    let plan = mostly_old(&new, "probe: {intervalSeconds: 0.1}");
    let (a, b, plan) = (empty.url(), full.url(), plan.as_str());
    let proxy = Proxy::start(&["--old", &a, "--old", &b, "--plan", &plan]).await;
    assert_left_out_while_empty(&proxy, [&empty, &full], &lists).await;
}

#[tokio::test]
async fn a_plan_with_a_probe_also_does_so_after_a_plan_without_one() {
    let lists = Arc::new(AtomicBool::new(false));
    let [empty, full] = [listing(&lists).await, Upstream::start(healthy("old")).await];
    let new = Upstream::start(healthy("new")).await;
    let plan = mostly_old(&new, "");
    let (a, b, path) = (empty.url(), full.url(), plan.as_str());
    let proxy = Proxy::start(&["--old", &a, "--old", &b, "--plan", &path]).await;
    assert!(is_healthy(&proxy, empty.address).await);
    let probe = "probe: {intervalSeconds: 0.1}";
    plan.replace(&manifest(&new.url(), 999_999_999, 1, probe));
    assert_left_out_while_empty(&proxy, [&empty, &full], &lists).await;
}

#[tokio::test]
async fn a_probe_that_is_corrected_or_removed_leaves_nothing_behind() {
    let old = listing(&Arc::new(AtomicBool::new(false))).await;
    // The other server does not even respond: nobody waits for it.
    let never = Gate::closed();
    let new = Upstream::start({
        let (answer, never) = (healthy("new"), never.clone());
        move |received| match received.target.as_str() {
            "/v1/models" => Script::new().wait(&never),
            _ => answer(received),
        }
    })
    .await;
    // The server lists no models.
    let wrong = "probe: {intervalSeconds: 600, timeoutSeconds: 600}";
    let plan = mostly_old(&new, wrong);
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let becomes = async |healthy: bool| {
        eventually("the health of the server", async || {
            is_healthy(&proxy, old.address).await == healthy
        })
        .await;
    };
    for corrected in ["", "probe: {path: /live, intervalSeconds: 600}", ""] {
        becomes(false).await;
        plan.replace(&manifest(&new.url(), 999_999_999, 1, corrected));
        becomes(true).await;
        plan.replace(&manifest(&new.url(), 999_999_999, 1, wrong));
    }
}

#[tokio::test]
async fn each_server_is_probed_on_its_own_schedule_and_at_once_when_it_is_added() {
    let lists = Arc::new(AtomicBool::new(false));
    let old = listing(&lists).await;
    // A probe of this server never ends, and delays none of another.
    let new = Upstream::start(|_: &Received| Script::new().wait(&Gate::closed())).await;
    let probe =
        |interval: &str| format!("probe: {{intervalSeconds: {interval}, timeoutSeconds: 500}}");
    let plan = mostly_old(&new, &probe("0.1"));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let becomes = async |address, healthy: bool| {
        eventually("the health of the server", async || {
            is_healthy(&proxy, address).await == healthy
        })
        .await;
    };
    becomes(old.address, false).await;
    lists.store(true, Ordering::SeqCst);
    becomes(old.address, true).await;

    // The next probe of the servers that are known is far away.
    plan.replace(&manifest(&new.url(), 999_999_999, 1, &probe("600")));
    eventually("the plan is in force", async || {
        plan_page(&proxy).await.to_string().contains("600")
    })
    .await;
    let added = listing(&Arc::new(AtomicBool::new(false))).await;
    plan.replace(&manifest(&added.url(), 999_999_999, 1, &probe("600")));
    becomes(added.address, false).await;
}

#[tokio::test]
async fn a_server_is_not_queried_for_models_without_a_probe() {
    let lists = Arc::new(AtomicBool::new(false));
    let servers = [listing(&lists).await, listing(&lists).await];
    let proxy = before(&servers, &[]).await;
    for _ in 0..10 {
        proxy.chat().await.assert_is(chat_text("old"));
    }
    for server in &servers {
        assert!(is_healthy(&proxy, server.address).await);
        assert_eq!(server.count(), inferences(server));
    }
}

#[tokio::test]
async fn servers_of_either_generation_can_be_given_by_name() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let named = |server: &Upstream| format!("localhost:{}", server.address.port());
    let (old, new) = (named(&old), named(&new));
    let proxy = Proxy::start(&["--old", &old, "--new", &new, "--split", "50"]).await;
    proxy.serves("old").await;
    proxy.serves("new").await;
}

#[tokio::test]
async fn consecutive_requests_use_one_connection_of_their_thread() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &["--threads", "1"]).await;
    let mut client = Client::connect(proxy.address).await;
    for _ in 0..20 {
        client.post(CHAT, &[], UNARY).await;
        client.response().await.assert_is(unary_text("old"));
    }
    assert_eq!((old.count(), old.connections()), (20, 1));
    for _ in 0..20 {
        proxy.chat().await.assert_is(chat_text("old"));
    }
    assert_eq!((old.count(), old.connections()), (40, 1));
}

/// Responds with 503 to requests that ask for it.
fn on_demand(name: &'static str) -> impl Fn(&Received) -> Script + Send + Sync + 'static {
    let answer = healthy(name);
    move |received| match received.header("x-fail") {
        Some(_) => status(503),
        None => answer(received),
    }
}

async fn plan_page(proxy: &Proxy) -> serde_json::Value {
    serde_json::from_str(&proxy.plan().await).unwrap()
}

#[tokio::test]
async fn a_client_that_provokes_errors_of_old_does_not_affect_other_clients() {
    for attempts in [3, 30, 80] {
        let old = Upstream::start(on_demand("old")).await;
        let new = Upstream::start(healthy("new")).await;
        let proxy = Proxy::split(&old, &new, 5).await;
        for _ in 0..attempts {
            client::post(proxy.address, CHAT, &[("x-fail", "1")], STREAMING).await;
        }
        let mut by_new = 0;
        for _ in 0..40 {
            let response = proxy.chat().await;
            assert_eq!((response.status, response.end), (200, End::Clean));
            by_new += usize::from(response.generation() == "new");
        }
        assert!(by_new <= 3, "{by_new} of 40 by new after {attempts}");
    }
}

#[tokio::test]
async fn a_client_that_provokes_failures_of_one_server_does_not_eject_the_other() {
    let (a, b) = (
        Upstream::start(on_demand("old")).await,
        Upstream::start(on_demand("old")).await,
    );
    let new = Upstream::start(healthy("new")).await;
    let (a_url, b_url, new_url) = (a.url(), b.url(), new.url());
    let proxy = Proxy::start(&[
        "--old", &a_url, "--old", &b_url, "--new", &new_url, "--split", "5",
    ])
    .await;
    for _ in 0..100 {
        client::post(proxy.address, CHAT, &[("x-fail", "1")], STREAMING).await;
    }
    let mut by_new = 0;
    for _ in 0..40 {
        by_new += usize::from(proxy.chat().await.generation() == "new");
    }
    assert!(by_new <= 3, "{by_new} of 40 by new");
}

#[tokio::test]
async fn the_generation_that_served_a_request_is_reported_next_to_the_assigned_one() {
    let old = Upstream::always(status(503)).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 5).await;
    for _ in 0..20 {
        assert_eq!(proxy.chat().await.generation(), "new");
    }
    let page = plan_page(&proxy).await;
    assert!(page["split"]["observed"].as_f64().unwrap() <= 0.1, "{page}");
    eventually("all are counted by who answered", async || {
        plan_page(&proxy).await["split"]["answered"] == 1.0
    })
    .await;
    let metrics = proxy.metrics().await;
    let answered = metrics.sum("crossfade_split_ratio", &[("kind", "answered")]);
    assert_eq!(answered, 1.0);
}

#[tokio::test]
async fn a_server_that_never_responds_is_ejected() {
    let hung = Upstream::always(Script::new().hang()).await;
    let silent = Upstream::always(Script::new().sse().hang()).await;
    for bad in [&hung, &silent] {
        let (a, b) = (
            Upstream::start(healthy("old")).await,
            Upstream::start(healthy("old")).await,
        );
        let new = Upstream::start(healthy("new")).await;
        let flags = [a.url(), b.url(), bad.url()].map(|url| ["--old".to_owned(), url]);
        let mut args: Vec<&str> = flags.iter().flatten().map(String::as_str).collect();
        let url = new.url();
        args.extend([
            "--new",
            &url,
            "--split",
            "1",
            "--first-event-timeout",
            "0.1",
        ]);
        let proxy = Proxy::start(&args).await;
        eventually("it is ejected", async || {
            assert_eq!(proxy.chat().await.status, 200);
            !is_healthy(&proxy, bad.address).await
        })
        .await;
        assert!(is_healthy(&proxy, a.address).await && is_healthy(&proxy, b.address).await);
    }
}

#[tokio::test]
async fn a_generation_that_never_responds_is_not_tried_each_time() {
    for script in [Script::new().hang(), Script::new().sse().hang()] {
        let old = Upstream::always(script).await;
        let new = Upstream::start(healthy("new")).await;
        let flags = ["--first-event-timeout", "0.1"];
        let proxy = Proxy::split_with(&old, &new, 1, &flags).await;
        for _ in 0..20 {
            proxy.chat().await.assert_is(chat_text("new"));
        }
        assert!(old.count() < 20, "asked each of {} times", old.count());
    }
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_eject_an_endpoint() {
    let old = Upstream::always(Script::new().hang()).await;
    let proxy = Proxy::before(
        &old,
        &["--first-event-timeout", "30", "--head-timeout", "30"],
    )
    .await;
    for asked in 1..=10 {
        let client = client::open_chat(proxy.address).await;
        eventually("it is asked", async || old.count() == asked).await;
        drop(client);
        eventually("it is cancelled", async || old.last().is_gone()).await;
    }
    assert!(is_healthy(&proxy, old.address).await);
}

#[tokio::test]
async fn every_failover_from_a_dead_generation_is_charged_to_the_retry_budget() {
    let dead = Upstream::nobody();
    let new = Upstream::start(healthy("new")).await;
    let lines = "failover: {retryBudgetPercent: 1}";
    let plan = mostly_old(&new, lines);
    let (dead, plan) = (dead.to_string(), plan.as_str());
    let proxy = Proxy::start(&["--old", &dead, "--plan", &plan]).await;
    let mut by_new = 0;
    for _ in 0..100 {
        let response = proxy.chat().await;
        by_new += usize::from(response.status == 200);
        assert!(matches!(response.status, 200 | 502), "{}", response.text());
    }
    // A budget of 1 percent starts with three retries and earns more per request and per second.
    assert!((3..=10).contains(&by_new), "{by_new} moved");
    let metrics = proxy.metrics().await;
    assert!(metrics.sum("crossfade_retries_refused_total", &[]) >= 90.0);
}

#[tokio::test]
async fn a_process_without_descriptors_neither_ejects_servers_nor_fails_over() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split_with(&old, &new, 1, &["--threads", "1"]).await;
    let mut client = Client::connect(proxy.address).await;
    client.post(CHAT, &[], r#"{"close":true}"#).await;
    client.response().await;
    let open = std::fs::read_dir(format!("/proc/{}/fd", proxy.pid()))
        .unwrap()
        .count();
    let mut others = Vec::new();
    for _ in 0..8 {
        let mut other = Client::connect(proxy.address).await;
        other.get("/livez-of-nobody", &[]).await;
        other.response().await;
        others.push(other);
    }
    let (asked, moved) = (old.count(), new.count());
    proxy.limit_descriptors(Some(open as u64));
    let mut refused = 0;
    let gate: Vec<_> = others.iter_mut().collect();
    for other in gate {
        other.post(CHAT, &[], STREAMING).await;
    }
    for other in &mut others {
        refused += usize::from(other.response().await.status == 503);
    }
    assert!(refused > 0, "asked {} times", old.count() - asked);
    proxy.limit_descriptors(None);
    assert_eq!(new.count(), moved);
    assert!(is_healthy(&proxy, old.address).await);
    proxy.chat().await.assert_is(chat_text("old"));
    let reason = async || {
        let lines = proxy.access();
        let refused = lines.iter().find(|line| line["status"] == 503)?;
        refused["why"].as_str().map(str::to_owned)
    };
    let why = until("the reason is reported", reason).await;
    assert!(why.contains("this host cannot open"), "{why}");
}

#[tokio::test]
async fn the_proxy_asks_model_servers_not_to_compress_possible_streams() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let accept = [("accept-encoding", "gzip, br")];
    for (path, expected) in [(CHAT, "identity"), ("/v1/embeddings", "identity")] {
        client::post(proxy.address, path, &accept, UNARY).await;
        assert_eq!(
            old.last().all("accept-encoding").collect::<Vec<_>>(),
            [expected]
        );
    }
    client::post(proxy.address, CHAT, &[], UNARY).await;
    assert_eq!(old.last().header("accept-encoding"), None);
    client::post(proxy.address, "/tokenize", &accept, UNARY).await;
    assert_eq!(old.last().header("accept-encoding"), Some("gzip, br"));
}

#[tokio::test]
async fn a_stream_that_is_compressed_nevertheless_passes_unchanged_and_is_counted() {
    let headers = [
        ("content-type", "text/event-stream"),
        ("content-encoding", "gzip"),
    ];
    let script = Script::new()
        .head(200, &headers)
        .chunk("any bytes")
        .chunk("more")
        .end();
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &[]).await;
    for _ in 0..2 {
        let response = proxy.chat().await;
        assert_eq!(
            (response.text(), response.end),
            ("any bytesmore".into(), End::Clean)
        );
        assert_eq!(response.header("content-encoding"), Some("gzip"));
    }
    let labels = [("generation", "old")];
    proxy
        .counts("crossfade_encoded_streams_total", &labels, 2.0)
        .await;
    let logged = proxy.stderr().matches("compresses event streams").count()
        + proxy
            .lines()
            .iter()
            .filter(|line| line.contains("compresses event streams"))
            .count();
    assert_eq!(logged, 1);
}
