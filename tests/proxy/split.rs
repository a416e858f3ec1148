//! Which generation gets a request: exact shares, sessions, pinned workers, overrides, and requests that are not split.

use crate::rig::*;

async fn pair() -> (Upstream, Upstream) {
    (
        Upstream::start(healthy("old")).await,
        Upstream::start(healthy("new")).await,
    )
}

/// Sends `count` requests on one connection, and returns the generation of each.
async fn generations(
    proxy: &Proxy,
    count: usize,
    headers: &[(&str, &str)],
    body: &str,
) -> Vec<String> {
    let mut client = Client::connect(proxy.address).await;
    let mut seen = Vec::new();
    for _ in 0..count {
        client.post(CHAT, headers, body).await;
        let response = client.response().await;
        assert_eq!(response.status, 200);
        assert!(
            response
                .text()
                .contains(&format!("-{}", response.generation()))
        );
        seen.push(response.generation().to_owned());
    }
    seen
}

fn new_among(seen: &[String]) -> usize {
    seen.iter()
        .filter(|generation| *generation == "new")
        .count()
}

#[tokio::test]
async fn every_run_of_400_requests_on_one_connection_sends_25_percent_to_new_exactly() {
    let (old, new) = pair().await;
    let proxy = Proxy::split(&old, &new, 25).await;
    let seen = generations(&proxy, 400, &[], UNARY).await;
    assert_eq!(new_among(&seen), 100);
    assert_eq!((old.count(), new.count()), (300, 100));
    for four in seen.chunks(4) {
        assert_eq!(new_among(four), 1, "{four:?}");
    }
}

#[tokio::test]
async fn requests_of_many_connections_are_one_sequence() {
    let (old, new) = pair().await;
    let proxy = Proxy::split(&old, &new, 10).await;
    for _ in 0..100 {
        let response = client::post(proxy.address, CHAT, &[], UNARY).await;
        assert_eq!(response.status, 200);
    }
    assert_eq!((old.count(), new.count()), (90, 10));
}

#[tokio::test]
async fn the_threads_of_a_proxy_share_one_sequence() {
    let (old, new) = pair().await;
    let proxy = Proxy::split_with(&old, &new, 25, &["--threads", "4"]).await;
    for _ in 0..200 {
        client::post(proxy.address, CHAT, &[], UNARY).await;
    }
    assert_eq!((old.count(), new.count()), (150, 50));
}

#[tokio::test]
async fn proxies_that_start_together_do_not_all_begin_with_the_same_generation() {
    let (old, new) = pair().await;
    for _ in 0..24 {
        let proxy = Proxy::split(&old, &new, 50).await;
        proxy.chat().await;
    }
    // By chance, this fails once in 2^23 runs.
    assert!(old.count() > 0 && new.count() > 0);
}

#[tokio::test]
async fn weights_are_an_exact_ratio() {
    let (old, new) = pair().await;
    let plan = PlanFile::new(&manifest(&new.url(), 2, 1, ""));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let seen = generations(&proxy, 99, &[], UNARY).await;
    assert_eq!(new_among(&seen), 33);
}

#[tokio::test]
async fn nothing_goes_to_new_at_0_and_all_at_100() {
    for (percent, counts) in [(0, (40, 0)), (100, (0, 40))] {
        let (old, new) = pair().await;
        let proxy = Proxy::split(&old, &new, percent).await;
        generations(&proxy, 40, &[], UNARY).await;
        assert_eq!((old.count(), new.count()), counts);
    }
}

#[tokio::test]
async fn a_session_stays_on_its_generation_and_only_ever_moves_to_new_as_the_share_rises() {
    let (old, new) = pair().await;
    let mut before: Vec<String> = vec!["old".into(); 24];
    for percent in [20, 50, 80] {
        let proxy = Proxy::split(&old, &new, percent).await;
        for (session, before) in before.iter_mut().enumerate() {
            let name = format!("session-{session}");
            let seen = generations(&proxy, 3, &[("x-session-id", &name)], UNARY).await;
            assert!(
                seen.iter().all(|generation| *generation == seen[0]),
                "{seen:?}"
            );
            assert!(before == "old" || seen[0] == "new", "{name} moved back");
            before.clone_from(&seen[0]);
        }
        assert_eq!(proxy.access_line(1).await["reason"], "sticky");
    }
    let moved = new_among(&before);
    assert!((14..=24).contains(&moved), "{moved} of 24 at 80%");
}

#[tokio::test]
async fn each_default_affinity_header_holds_a_session() {
    let (old, new) = pair().await;
    let proxy = Proxy::split(&old, &new, 50).await;
    for header in [
        "x-dynamo-session-id",
        "x-claude-code-session-id",
        "thread-id",
        "session-id",
        "x-session-id",
    ] {
        let seen = generations(&proxy, 6, &[(header, "a")], UNARY).await;
        assert!(
            seen.iter().all(|generation| *generation == seen[0]),
            "{header}: {seen:?}"
        );
    }
}

#[tokio::test]
async fn a_list_of_affinity_headers_replaces_the_default() {
    let (old, new) = pair().await;
    let proxy = Proxy::split_with(&old, &new, 50, &["--affinity-header", "x-mine"]).await;
    let seen = generations(&proxy, 6, &[("x-session-id", "a")], UNARY).await;
    assert_eq!(new_among(&seen), 3);
    let seen = generations(&proxy, 6, &[("x-mine", "a")], UNARY).await;
    assert!(
        seen.iter().all(|generation| *generation == seen[0]),
        "{seen:?}"
    );
}

#[tokio::test]
async fn a_body_field_holds_a_session_when_it_is_enabled() {
    let (old, new) = pair().await;
    let body = r#"{"model":"tiny","user":"someone","messages":[]}"#;
    let proxy = Proxy::split(&old, &new, 50).await;
    assert_eq!(new_among(&generations(&proxy, 6, &[], body).await), 3);
    let proxy = Proxy::split_with(&old, &new, 50, &["--affinity-body-field", "user"]).await;
    let seen = generations(&proxy, 6, &[], body).await;
    assert!(
        seen.iter().all(|generation| *generation == seen[0]),
        "{seen:?}"
    );
    // The body arrives complete although the proxy has read it.
    let last = if seen[0] == "old" {
        old.last()
    } else {
        new.last()
    };
    assert_eq!(String::from_utf8(last.body()).unwrap(), body);
}

#[tokio::test]
async fn requests_with_a_session_count_so_that_the_total_matches_the_share() {
    let (old, new) = pair().await;
    let proxy = Proxy::split(&old, &new, 50).await;
    // All requests of one session go to one generation. Those without a session compensate for it.
    let sticky = generations(&proxy, 20, &[("x-session-id", "a")], UNARY).await;
    let free = generations(&proxy, 60, &[], UNARY).await;
    let all = new_among(&sticky) + new_among(&free);
    assert!((39..=41).contains(&all), "{all} of 80");
}

#[tokio::test]
async fn a_busy_session_raises_the_share_of_others_to_at_most_twice_the_weight() {
    let (old, new) = pair().await;
    let proxy = Proxy::split(&old, &new, 5).await;
    let mut session = String::new();
    for number in 0.. {
        session = format!("session-{number}");
        if generations(&proxy, 1, &[("x-session-id", &session)], UNARY).await == ["old"] {
            break;
        }
    }
    generations(&proxy, 400, &[("x-session-id", &session)], UNARY).await;
    let others = new_among(&generations(&proxy, 100, &[], UNARY).await);
    assert!((5..=11).contains(&others), "{others} of 100");
}

#[tokio::test]
async fn requests_with_a_pinned_worker_go_to_old_until_new_gets_everything() {
    for (percent, expected) in [(50, "old"), (99, "old"), (100, "new")] {
        let (old, new) = pair().await;
        let proxy = Proxy::split(&old, &new, percent).await;
        for header in ["x-dynamo-worker-instance-id", "x-gateway-worker-id"] {
            let seen = generations(&proxy, 4, &[(header, "7")], UNARY).await;
            assert!(
                seen.iter().all(|generation| generation == expected),
                "{seen:?}"
            );
        }
        assert_eq!(proxy.access_line(1).await["reason"], "pinned");
    }
}

#[tokio::test]
async fn the_override_header_chooses_only_where_it_is_enabled() {
    let (old, new) = pair().await;
    let proxy = Proxy::split(&old, &new, 0).await;
    let seen = generations(&proxy, 3, &[("x-generation", "new")], UNARY).await;
    assert_eq!(new_among(&seen), 0);
    for (percent, value) in [(0, "new"), (100, "old")] {
        let flags = ["--override-header", "x-generation"];
        let proxy = Proxy::split_with(&old, &new, percent, &flags).await;
        let seen = generations(&proxy, 3, &[("x-generation", value)], UNARY).await;
        assert!(
            seen.iter().all(|generation| generation == value),
            "{seen:?}"
        );
        let seen = generations(&proxy, 3, &[("x-generation", "other")], UNARY).await;
        assert!(
            seen.iter().all(|generation| generation != value),
            "{seen:?}"
        );
        assert_eq!(proxy.access_line(1).await["reason"], "override");
    }
}

#[tokio::test]
async fn while_old_drains_the_override_header_cannot_select_it() {
    let (old, new) = pair().await;
    let plan = PlanFile::new(&manifest(&new.url(), 0, 1, "oldDraining: true"));
    let proxy = Proxy::planned(&old, &plan, &["--override-header", "x-generation"]).await;
    let seen = generations(&proxy, 3, &[("x-generation", "old")], UNARY).await;
    assert_eq!(seen, ["new"; 3]);
    assert_eq!(proxy.access_line(1).await["reason"], "weighted");
}

#[tokio::test]
async fn once_old_drains_unsplit_requests_go_to_new_except_those_about_the_frontend_itself() {
    let (old, new) = pair().await;
    let plan = PlanFile::new(&manifest(&new.url(), 0, 1, ""));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let generation = async |method: &str, path: &str| {
        let mut client = Client::connect(proxy.address).await;
        let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
        client.send(head).await;
        client.response().await.generation().to_owned()
    };
    const UNSPLIT: [(&str, &str); 4] = [
        ("POST", "/tokenize"),
        ("PUT", "/v1/files/1"),
        ("DELETE", "/v1/responses/1"),
        ("GET", "/v1/responses/1"),
    ];
    const LOCAL: [(&str, &str); 3] = [("GET", "/health"), ("GET", "/metrics"), ("OPTIONS", "/x")];
    for (method, path) in UNSPLIT.into_iter().chain(LOCAL) {
        assert_eq!(generation(method, path).await, "old", "{method} {path}");
    }
    plan.replace(&manifest(&new.url(), 0, 1, "oldDraining: true"));
    eventually("old drains", async || {
        generation("POST", "/any").await == "new"
    })
    .await;
    for (method, path) in UNSPLIT {
        assert_eq!(generation(method, path).await, "new", "{method} {path}");
    }
    for (method, path) in LOCAL {
        assert_eq!(generation(method, path).await, "old", "{method} {path}");
    }
    // While old has a share, it does not drain, even if the plan says so.
    plan.replace(&manifest(&new.url(), 1, 99, "oldDraining: true"));
    eventually("old has a share", async || {
        generation("POST", "/any").await == "old"
    })
    .await;
}

#[tokio::test]
async fn the_time_since_the_last_client_request_is_reported_and_health_checks_do_not_count() {
    let (old, new) = pair().await;
    let proxy = Proxy::split(&old, &new, 50).await;
    let quiet = || {
        let address = proxy.admin.to_string();
        let output = crate::rig::proxy::run(&["status", "--proxy", &address, "--output", "json"]);
        let state: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        state["total"]["quietSeconds"].as_f64().unwrap()
    };
    eventually("no client request for two seconds", async || quiet() >= 2.0).await;
    for path in ["/health", "/metrics", MODELS] {
        client::get(proxy.address, path).await;
    }
    assert!(quiet() >= 2.0, "old was asked, which cannot serve it");
    for path in [CHAT, "/tokenize"] {
        client::post(proxy.address, path, &[], UNARY).await;
        assert!(quiet() < 1.0, "{path}");
        eventually("no more requests", async || quiet() >= 1.5).await;
    }
}

/// The output of `crossfade status` for a proxy.
fn state(proxy: &Proxy) -> serde_json::Value {
    let address = proxy.admin.to_string();
    let output = crate::rig::proxy::run(&["status", "--proxy", &address, "--output", "json"]);
    let state: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    state["total"].clone()
}

fn quiet(proxy: &Proxy) -> f64 {
    state(proxy)["quietSeconds"].as_f64().unwrap()
}

#[tokio::test]
async fn a_request_that_is_still_being_sent_counts_as_a_client_and_uses_the_plan_at_its_end() {
    let (old, new) = pair().await;
    let plan = PlanFile::new(&manifest(&new.url(), 1, 1, ""));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let body = r#"{"stream": true}"#;
    let length = body.len();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    let mut slow = Client::connect(proxy.address).await;
    slow.send(format!("{head}{}", &body[..10])).await;
    eventually("the change is noticed", async || quiet(&proxy) == 0.0).await;
    plan.replace(&manifest(&new.url(), 0, 1, "oldDraining: true"));
    eventually("old drains", async || {
        state(&proxy)["plan"]["oldDrains"] == true
    })
    .await;
    // The client pauses for this long. Meanwhile, nothing changes that the test could wait for.
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    let now = state(&proxy);
    assert_eq!(now["quietSeconds"], 0.0, "{now}");
    assert_eq!(now["old"]["openStreams"], 0, "{now}");
    slow.send(&body[10..]).await;
    assert_eq!(slow.response().await.generation(), "new");
    eventually("no sending clients", async || quiet(&proxy) > 1.5).await;

    // The client pauses in the middle of the head.
    slow.send(&head[..30]).await;
    eventually("the head has arrived", async || quiet(&proxy) == 0.0).await;
    slow.send(format!("{}{body}", &head[30..])).await;
    assert_eq!(slow.response().await.generation(), "new");
    eventually("no more sending clients", async || quiet(&proxy) > 1.5).await;

    let mut gone = Client::connect(proxy.address).await;
    gone.send(format!("{head}{}", &body[..10])).await;
    eventually("another connection is counted", async || {
        quiet(&proxy) == 0.0
    })
    .await;
    drop(gone);
    eventually("it has disconnected", async || quiet(&proxy) > 1.5).await;
}

#[tokio::test]
async fn a_request_whose_body_is_still_being_read_for_affinity_counts_as_a_client() {
    let (old, new) = pair().await;
    let lines = "affinity: {bodyFields: [user]}\noldDraining: true";
    let plan = PlanFile::new(&manifest(&new.url(), 0, 1, lines));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut slow = Client::connect(proxy.address).await;
    slow.send(format!("{head}9\r\n{{\"user\": \r\n")).await;
    eventually("the change is noticed", async || quiet(&proxy) == 0.0).await;
    // The client pauses for this long. Meanwhile, nothing changes that the test could wait for.
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    let now = state(&proxy);
    assert_eq!(now["quietSeconds"], 0.0, "{now}");
    assert_eq!(now["new"]["openStreams"], 0, "{now}");
    slow.send("4\r\n\"a\"}\r\n0\r\n\r\n").await;
    assert_eq!(slow.response().await.generation(), "new");
    eventually("no sending clients", async || quiet(&proxy) > 1.5).await;
}

#[tokio::test]
async fn only_posts_under_the_prefixes_are_split_and_all_others_go_to_old() {
    let (old, new) = pair().await;
    let proxy = Proxy::split(&old, &new, 100).await;
    let mut client = Client::connect(proxy.address).await;
    for path in [
        "/v1/embeddings",
        "/generate",
        "/inference/v1/generate",
        "/v1/x?y=z",
    ] {
        client.post(path, &[], UNARY).await;
        assert_eq!(client.response().await.generation(), "new", "{path}");
        assert_eq!(new.last().target, path);
    }
    for path in ["/busy_threshold", "/v1", "/generated"] {
        client.post(path, &[], UNARY).await;
        assert_eq!(client.response().await.generation(), "old", "{path}");
    }
    for path in [
        "/health",
        "/live",
        "/metrics",
        "/docs",
        "/",
        "/no/such",
        "/v1/chat/completions",
    ] {
        client.get(path, &[]).await;
        let response = client.response().await;
        assert_eq!(response.text(), format!("old: GET {path}"));
    }
}

#[tokio::test]
async fn other_prefixes_replace_the_default_ones() {
    let (old, new) = pair().await;
    let flags = ["--inference-prefix", "/team/v1/"];
    let proxy = Proxy::split_with(&old, &new, 100, &flags).await;
    let response = client::post(proxy.address, "/team/v1/chat/completions", &[], STREAMING).await;
    response.assert_is(chat_text("new"));
    let response = client::post(proxy.address, CHAT, &[], STREAMING).await;
    response.assert_is(chat_text("old"));
}

#[tokio::test]
async fn the_observed_share_is_reported_and_absent_without_traffic() {
    let (old, new) = pair().await;
    let proxy = Proxy::split(&old, &new, 25).await;
    let kind = |metrics: &proxy::Metrics, kind: &str| {
        let series = metrics.of("crossfade_split_ratio");
        let found = series.iter().find(|(labels, _)| labels["kind"] == kind);
        found.map(|(_, value)| *value)
    };
    let metrics = proxy.metrics().await;
    assert_eq!(kind(&metrics, "wanted"), Some(0.25));
    assert_eq!(kind(&metrics, "observed"), None);
    generations(&proxy, 40, &[], UNARY).await;
    // Not split, so not counted.
    generations(&proxy, 40, &[("x-gateway-worker-id", "1")], UNARY).await;
    client::get(proxy.address, "/health").await;
    assert_eq!(kind(&proxy.metrics().await, "observed"), Some(0.25));
}

#[tokio::test]
async fn several_servers_of_a_generation_share_its_load() {
    let servers = [
        Upstream::start(healthy("old")).await,
        Upstream::start(healthy("old")).await,
        Upstream::start(healthy("old")).await,
    ];
    let both = format!("{},http://{}", servers[0].url(), servers[1].url());
    let third = servers[2].url();
    let proxy = Proxy::before_url(&both, &["--old", &third]).await;
    generations(&proxy, 60, &[], UNARY).await;
    for server in &servers {
        assert!(server.count() > 5, "{}", server.count());
    }
    let healthy = [("generation", "old"), ("state", "healthy")];
    proxy
        .counts("crossfade_pool_endpoints", &healthy, 3.0)
        .await;
}

#[tokio::test]
async fn a_name_is_resolved() {
    let old = Upstream::start(healthy("old")).await;
    let by_name = format!("http://localhost:{}", old.address.port());
    let proxy = Proxy::before_url(&by_name, &[]).await;
    proxy.chat().await.assert_is(chat_text("old"));
}
