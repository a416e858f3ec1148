//! The values of the metrics, and their closed label sets.

use std::collections::BTreeSet;

use crate::rig::*;

#[tokio::test]
async fn every_metric_exists_with_help_and_labels_from_closed_sets() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    for family in Family::ALL {
        for _ in 0..2 {
            client::post(proxy.address, family.path(), &[], STREAMING).await;
        }
    }
    client::post(proxy.address, "/v1/embeddings", &[], UNARY).await;
    client::get(proxy.address, "/health").await;
    client::get(proxy.address, MODELS).await;
    client::get(proxy.address, "/some/path?with=query").await;
    proxy.counts("crossfade_requests_total", &[], 12.0).await;
    let metrics = proxy.metrics().await;
    for name in [
        "crossfade_requests_total",
        "crossfade_split_ratio",
        "crossfade_open_streams",
        "crossfade_time_to_first_event_seconds_bucket",
        "crossfade_inter_event_seconds_bucket",
        "crossfade_stream_duration_seconds_bucket",
        "crossfade_events_total",
        "crossfade_response_bytes_total",
        "crossfade_tokens_total",
        "crossfade_recovered_requests_total",
        "crossfade_failed_attempts_total",
        "crossfade_retries_refused_total",
        "crossfade_plan_epoch",
        "crossfade_plan_age_seconds",
        "crossfade_plans_rejected_total",
        "crossfade_pool_endpoints",
        "crossfade_event_loop_lag_seconds_bucket",
        "crossfade_build_info",
        "process_resident_memory_bytes",
    ] {
        assert!(metrics.has(name), "{name} is not in\n{}", metrics.text);
        let base = name.strip_suffix("_bucket").unwrap_or(name);
        assert!(metrics.text.contains(&format!("# HELP {base} ")), "{base}");
        assert!(metrics.text.contains(&format!("# TYPE {base} ")), "{base}");
    }
    let allowed = |label: &str| -> &[&str] {
        match label {
            "generation" => &["old", "new"],
            "reason" => &[
                "weighted", "sticky", "pinned", "override", "guarded", "failover", "local",
                "models",
            ],
            "class" => &["chat", "completions", "responses", "messages", "other"],
            "outcome" => &["completed", "truncated", "failed", "cancelled"],
            _ => unreachable!(),
        }
    };
    let mut classes = BTreeSet::new();
    for (labels, _) in metrics.of("crossfade_requests_total") {
        let names: Vec<_> = labels.keys().map(String::as_str).collect();
        assert_eq!(names, ["class", "generation", "outcome", "reason"]);
        for (label, value) in labels {
            assert!(allowed(label).contains(&&**value), "{label}={value}");
        }
        classes.insert(labels["class"].clone());
    }
    assert_eq!(classes.len(), 5, "{classes:?}");
    assert!(!metrics.text.contains("/some/path") && !metrics.text.contains("tiny"));
}

#[tokio::test]
async fn exchanges_are_counted_by_assignment_reason_and_class() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    for _ in 0..4 {
        proxy.chat().await;
    }
    client::post(proxy.address, MESSAGES, &[("x-session-id", "a")], STREAMING).await;
    client::post(
        proxy.address,
        RESPONSES,
        &[("x-gateway-worker-id", "a")],
        STREAMING,
    )
    .await;
    client::get(proxy.address, "/health").await;
    client::get(proxy.address, MODELS).await;
    for (labels, count) in [
        (
            &[
                ("generation", "old"),
                ("reason", "weighted"),
                ("class", "chat"),
            ][..],
            2.0,
        ),
        (
            &[
                ("generation", "new"),
                ("reason", "weighted"),
                ("class", "chat"),
            ],
            2.0,
        ),
        (&[("reason", "sticky"), ("class", "messages")], 1.0),
        (
            &[
                ("generation", "old"),
                ("reason", "pinned"),
                ("class", "responses"),
            ],
            1.0,
        ),
        (
            &[
                ("generation", "old"),
                ("reason", "local"),
                ("class", "other"),
            ],
            1.0,
        ),
        (&[("reason", "models"), ("class", "other")], 1.0),
        (&[("outcome", "completed")], 8.0),
    ] {
        proxy
            .counts("crossfade_requests_total", labels, count)
            .await;
    }
}

#[tokio::test]
async fn the_time_to_the_first_event_ends_with_the_first_content() {
    let script = Script::new()
        .sse()
        .chunk(": hello\n\n")
        .chunk(role("old"))
        .pause(120)
        .chunk(content("old", 0))
        .pause(200)
        .chunk(content("old", 1))
        .chunk(DONE);
    let old = Upstream::always(script).await;
    let proxy = Proxy::before(&old, &[]).await;
    proxy.chat().await;
    proxy.outcomes("completed", 1).await;
    let metrics = proxy.metrics().await;
    let old = [("generation", "old")];
    let name = "crossfade_time_to_first_event_seconds";
    assert_eq!(metrics.sum(&format!("{name}_count"), &old), 1.0);
    let seconds = metrics.sum(&format!("{name}_sum"), &old);
    assert!((0.11..0.9).contains(&seconds), "{seconds}");
    let name = "crossfade_inter_event_seconds";
    assert!(metrics.sum(&format!("{name}_count"), &old) >= 1.0);
    let seconds = metrics.sum(&format!("{name}_sum"), &old);
    assert!((0.05..0.9).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn a_stream_is_timed_to_its_end_and_counted_once_for_the_generation_that_served_it() {
    let paced = |name: &'static str| {
        let script = Script::new().sse().chunk(content(name, 0)).pause(200);
        script.chunk(DONE)
    };
    let old = Upstream::start(move |received| match received.header("x-case") {
        Some("unary") => unary("old"),
        Some("long") => paced("old").then(Script::new().hang()),
        _ => paced("old"),
    })
    .await;
    let new = Upstream::always(status(503)).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    // Every other stream fails on new and is recovered.
    for _ in 0..4 {
        proxy.chat().await;
    }
    client::post(proxy.address, CHAT, &[("x-case", "unary")], UNARY).await;
    proxy.outcomes("completed", 5).await;
    let name = "crossfade_stream_duration_seconds";
    let metrics = proxy.metrics().await;
    let count = |generation| {
        let labels = [("generation", generation)];
        metrics.sum(&format!("{name}_count"), &labels)
    };
    assert_eq!((count("old"), count("new")), (4.0, 0.0));
    let seconds = metrics.sum(&format!("{name}_sum"), &[]);
    assert!((0.8..8.0).contains(&seconds), "{seconds}");
    // A stream whose client disconnects has ended, too.
    let old_only = Proxy::before(&old, &[]).await;
    let mut leaving = Client::connect(old_only.address).await;
    leaving.post(CHAT, &[("x-case", "long")], STREAMING).await;
    leaving.head().await;
    leaving.until(&content("old", 0)).await;
    let counted = format!("{name}_count");
    old_only.counts(&counted, &[], 0.0).await;
    drop(leaving);
    old_only.counts(&counted, &[], 1.0).await;
}

#[tokio::test]
async fn every_gap_byte_and_token_is_counted() {
    let usage = "data: {\"id\":\"a\",\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":3,\"total_tokens\":19}}\n\n";
    let text: String = (0..10).map(|index| content("old", index)).collect();
    let text = role("old") + &text + usage + DONE;
    let old = Upstream::always(stream_of(&text)).await;
    let proxy = Proxy::before(&old, &[]).await;
    for _ in 0..3 {
        proxy.chat().await.assert_is(&text);
    }
    proxy.outcomes("completed", 3).await;
    let metrics = proxy.metrics().await;
    let old = [("generation", "old")];
    let bytes = metrics.sum("crossfade_response_bytes_total", &old);
    assert_eq!(bytes, (3 * text.len()) as f64);
    let events = metrics.sum("crossfade_events_total", &old);
    assert!((30.0..=39.0).contains(&events), "{events}");
    let gaps = metrics.sum("crossfade_inter_event_seconds_count", &old);
    // Each stream has one gap fewer than events, however many arrive together.
    assert_eq!(gaps, events - 3.0);
    let tokens = |kind| {
        metrics.sum(
            "crossfade_tokens_total",
            &[("generation", "old"), ("kind", kind)],
        )
    };
    assert_eq!((tokens("prompt"), tokens("completion")), (48.0, 9.0));
}

#[tokio::test]
async fn tokens_of_a_unary_response_are_counted() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    client::post(proxy.address, CHAT, &[], UNARY)
        .await
        .assert_is(unary_text("old"));
    let labels = [("generation", "old"), ("kind", "prompt")];
    proxy.counts("crossfade_tokens_total", &labels, 5.0).await;
}

#[tokio::test]
async fn a_recovered_stream_is_counted_for_the_generation_that_served_it() {
    let new = Upstream::always(stream_of(&role("new")).reset()).await;
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::split(&old, &new, 100).await;
    proxy.chat().await.assert_is(chat_text("old"));
    let labels = [("generation", "new"), ("outcome", "completed")];
    proxy.counts("crossfade_requests_total", &labels, 1.0).await;
    let metrics = proxy.metrics().await;
    let first = |generation| {
        metrics.sum(
            "crossfade_time_to_first_event_seconds_count",
            &[("generation", generation)],
        )
    };
    assert_eq!((first("old"), first("new")), (1.0, 0.0));
    assert_eq!(
        metrics.sum("crossfade_events_total", &[("generation", "new")]),
        0.0
    );
}

#[tokio::test]
async fn open_streams_follow_the_generation_that_carries_them() {
    let gate = Gate::closed();
    let script = Script::new().sse().wait(&gate).events(&chat_text("old"));
    let old = Upstream::always(script).await;
    let new = Upstream::always(status(503)).await;
    let proxy = Proxy::split(&old, &new, 100).await;
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    proxy
        .counts("crossfade_open_streams", &[("generation", "old")], 1.0)
        .await;
    proxy
        .counts("crossfade_open_streams", &[("generation", "new")], 0.0)
        .await;
    gate.open();
    client.body().await;
    proxy.counts("crossfade_open_streams", &[], 0.0).await;
}

#[tokio::test]
async fn an_ejected_endpoint_does_not_count_as_healthy() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::always(status(503)).await;
    let proxy = Proxy::split(&old, &new, 100).await;
    let count = async |state| {
        let labels = [("generation", "new"), ("state", state)];
        proxy
            .metrics()
            .await
            .sum("crossfade_pool_endpoints", &labels)
    };
    assert_eq!(count("healthy").await, 1.0);
    // Three error responses do not eject: any client could provoke them.
    for _ in 0..3 {
        proxy.chat().await;
    }
    assert_eq!(count("healthy").await, 1.0);
    for _ in 0..7 {
        proxy.chat().await;
    }
    assert_eq!(count("ejected").await, 1.0);
}

#[tokio::test]
async fn a_probe_finds_a_dead_generation_before_a_request_does() {
    let old = Upstream::start(healthy("old")).await;
    let empty = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let new = Upstream::start({
        let empty = empty.clone();
        move |received| match received.method.as_str() {
            // `/health` does not tell; an empty list of models does.
            "GET" if empty.load(std::sync::atomic::Ordering::Relaxed) => models(&[]),
            "GET" => models(&["tiny"]),
            _ => chat_stream("new"),
        }
    })
    .await;
    let proxy = Proxy::split_with(&old, &new, 100, &["--probe-interval", "0.1"]).await;
    let healthy = [("generation", "new"), ("state", "healthy")];
    proxy
        .counts("crossfade_pool_endpoints", &healthy, 0.0)
        .await;
    proxy.chat().await.assert_is(chat_text("old"));
    assert!(new.requests().iter().all(|request| request.method == "GET"));
    empty.store(false, std::sync::atomic::Ordering::Relaxed);
    proxy.serves("new").await;
}

/// Reads a stream and returns the gaps between its pieces, in seconds, sorted.
async fn measured_gaps(proxy: &Proxy) -> Vec<f64> {
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    let mut times = Vec::new();
    while client.piece().await.is_some() {
        times.push(std::time::Instant::now());
    }
    let mut gaps: Vec<f64> = times
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .collect();
    gaps.sort_by(f64::total_cmp);
    gaps
}

#[tokio::test]
async fn the_figures_of_the_last_minutes_are_those_that_clients_measured() {
    let paced = |millis: u64| {
        move |_: &Received| {
            let script = Script::new().sse().events(&role("old"));
            let script = (0..60).fold(script, |script, index| {
                script.events(&content("old", index)).pause(millis)
            });
            script.events("data: [DONE]\n\n").end()
        }
    };
    let figures = |proxy: &Proxy, window: &str| {
        let address = proxy.admin.to_string();
        let output = crate::rig::proxy::run(&["status", "--proxy", &address, "--output", "json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        status["total"]["old"][window].clone()
    };
    let old = Upstream::start(paced(30)).await;
    let proxy = Proxy::before(&old, &[]).await;
    assert_eq!(
        figures(&proxy, "lastMinute")["gap"]["p50"],
        serde_json::Value::Null
    );
    let gaps = measured_gaps(&proxy).await;
    proxy.outcomes("completed", 1).await;
    let median = gaps[gaps.len() / 2];
    for window in ["lastMinute", "lastFiveMinutes"] {
        let recent = figures(&proxy, window);
        let p50 = recent["gap"]["p50"].as_f64().unwrap();
        assert!(
            (p50 / median - 1.0).abs() < 0.1,
            "{window}: {p50} for {median}"
        );
        // A single first token is too little data.
        assert_eq!(recent["firstEvent"]["count"], 1);
        assert_eq!(recent["firstEvent"]["p50"], serde_json::Value::Null);
        assert_eq!(recent["outcomes"]["completed"], 1);
    }
    let text = crate::rig::proxy::run(&["status", "--proxy", &proxy.admin.to_string()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("not enough data"), "{text}");
    assert!(text.contains("LAST 5 MINUTES"), "{text}");
}
