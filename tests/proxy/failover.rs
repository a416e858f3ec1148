//! Requests that fail on their first generation and are recovered by the other, and requests that must not be retried.

use std::time::Duration;

use crate::rig::*;
use plan_file::{mostly_new, mostly_old};

const PROTOCOLS: [&str; 2] = ["http1", "http2"];

/// The ways to fail before the first content, each with its cause in the metrics and the lines of the plan that it needs.
fn failures() -> Vec<(&'static str, &'static str, Script)> {
    let deadline = "failover: {firstEventTimeoutSeconds: 0.4}";
    let preamble = || stream_of(&role("failed"));
    let comment = || Script::new().sse().chunk(": waiting\n\n");
    vec![
        ("broken", "", Script::new().reset()),
        ("broken", "", Script::new().eof()),
        ("broken", "", Script::new().sse().reset()),
        ("broken", "", Script::new().sse().eof()),
        ("broken", "", Script::new().sse().end()),
        ("broken", "", preamble().reset()),
        ("broken", "", preamble().eof()),
        ("broken", "", preamble().end()),
        ("broken", "", comment().reset()),
        (
            "broken",
            "",
            preamble().chunk("data: {\"choices\":[{\"del").reset(),
        ),
        ("bad_gateway", "", status(502)),
        ("unavailable", "", status(503)),
        ("gateway_timeout", "", status(504)),
        ("no_workers", "", empty_404()),
        ("model_not_found", "", model_not_found()),
        ("error_event", "", error_first(502)),
        ("error_event", "", error_first(503)),
        ("error_event", "", error_first(504)),
        (
            "error_event",
            "",
            preamble().chunk(error_event(503)).chunk(DONE),
        ),
        (
            "error_event",
            "",
            comment().chunk(error_event(503)).chunk(DONE),
        ),
        ("deadline", deadline, Script::new().hang()),
        ("deadline", deadline, Script::new().sse().hang()),
        ("deadline", deadline, preamble().hang()),
        (
            "overloaded",
            "failover: {retryOverloaded: true}",
            status(529),
        ),
        (
            "overloaded",
            "failover: {retryOverloaded: true}",
            error_first(529),
        ),
    ]
}

/// Asserts that the client got a complete stream of `by`, and nothing of the failed generation except comments.
fn assert_saved(response: &Response, by: &str, what: &str) {
    assert_eq!((response.status, response.end), (200, End::Clean), "{what}");
    let text = response.text().replace(": waiting\n\n", "");
    assert_eq!(text, chat_text(by), "{what}");
    let kind = response.header("content-type").unwrap_or_default();
    assert!(kind.starts_with("text/event-stream"), "{what}");
}

/// Asserts what the metrics and the access line tell of `response`.
async fn assert_counted(
    proxy: &Proxy,
    response: &Response,
    [assigned, answered]: [&str; 2],
    cause: &str,
) {
    proxy.outcomes("completed", 1).await;
    let metrics = proxy.metrics().await;
    let saved = metrics.sum("crossfade_recovered_requests_total", &[("cause", cause)]);
    assert_eq!(
        saved,
        1.0,
        "{cause}: {:?}",
        metrics.of("crossfade_recovered_requests_total")
    );
    let labels = [
        ("generation", assigned),
        ("class", "chat"),
        ("outcome", "completed"),
    ];
    assert_eq!(metrics.sum("crossfade_requests_total", &labels), 1.0);
    let line = proxy.access_line(1).await;
    assert_eq!(line["generation"], assigned);
    assert_eq!(line["answered"], answered);
    assert_eq!(line["attempts"], 2);
    // Without what the client did not get of the first response.
    assert_eq!(line["bytes"], response.body.len(), "{line}");
    let bytes = metrics.sum("crossfade_response_bytes_total", &[]);
    assert_eq!(bytes, response.body.len() as f64);
}

#[tokio::test]
async fn old_recovers_what_new_fails_by_any_cause() {
    for protocol in PROTOCOLS {
        for (index, (cause, lines, script)) in failures().into_iter().enumerate() {
            let what = format!("{protocol} {index}: {cause}");
            let old = Upstream::start(healthy("old")).await;
            let new = Upstream::always(script).await;
            let plan = mostly_new(&new, lines);
            let flags = ["--upstream-protocol", protocol];
            let proxy = Proxy::planned(&old, &plan, &flags).await;
            let response = proxy.chat().await;
            assert_saved(&response, "old", &what);
            assert_eq!((old.count(), new.count()), (1, 1), "{what}");
            assert_eq!(old.last().body(), STREAMING.as_bytes(), "{what}");
            assert_counted(&proxy, &response, ["new", "old"], cause).await;
        }
    }
}

#[tokio::test]
async fn new_recovers_what_old_fails_by_any_cause() {
    for protocol in PROTOCOLS {
        for (index, (cause, lines, script)) in failures().into_iter().enumerate() {
            let what = format!("{protocol} {index}: {cause}");
            let old = Upstream::always(script).await;
            let new = Upstream::start(healthy("new")).await;
            let plan = mostly_old(&new, lines);
            let flags = ["--upstream-protocol", protocol];
            let proxy = Proxy::planned(&old, &plan, &flags).await;
            let response = proxy.chat().await;
            assert_saved(&response, "new", &what);
            assert_eq!((old.count(), new.count()), (1, 1), "{what}");
            assert_counted(&proxy, &response, ["old", "new"], cause).await;
        }
    }
}

#[tokio::test]
async fn requests_to_a_generation_without_a_listener_are_recovered_by_the_other() {
    for protocol in PROTOCOLS {
        let nobody = Upstream::nobody().to_string();
        let up = Upstream::start(healthy("up")).await;
        let plan = PlanFile::new(&manifest(&nobody, 1, 999_999_999, ""));
        let flags = ["--upstream-protocol", protocol];
        let proxy = Proxy::planned(&up, &plan, &flags).await;
        let response = proxy.chat().await;
        response.assert_is(chat_text("up"));
        assert_eq!(response.generation(), "old");
        assert_counted(&proxy, &response, ["new", "old"], "connect").await;

        let plan = PlanFile::new(&manifest(&up.url(), 999_999_999, 1, ""));
        let plan = plan.as_str();
        let proxy = Proxy::start(&[
            "--old",
            &nobody,
            "--plan",
            &plan,
            "--upstream-protocol",
            protocol,
        ])
        .await;
        let response = proxy.chat().await;
        response.assert_is(chat_text("up"));
        assert_eq!(response.generation(), "new");
        assert_counted(&proxy, &response, ["old", "new"], "connect").await;
    }
}

#[tokio::test]
async fn an_endpoint_that_accepts_no_connection_in_time_is_given_up() {
    // A listener with a full backlog completes no more handshakes.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut fill = Vec::new();
    loop {
        let connect = tokio::net::TcpStream::connect(address);
        match tokio::time::timeout(Duration::from_millis(100), connect).await {
            Ok(stream) => fill.push(stream.unwrap()),
            Err(_) => break,
        }
    }
    let old = Upstream::start(healthy("old")).await;
    let plan = PlanFile::new(&manifest(&address.to_string(), 1, 999_999_999, ""));
    let proxy = Proxy::planned(&old, &plan, &["--connect-timeout", "0.2"]).await;
    let response = proxy.chat().await;
    response.assert_is(chat_text("old"));
    assert_counted(&proxy, &response, ["new", "old"], "connect").await;
}

#[tokio::test]
async fn each_family_is_recovered_after_all_of_its_preamble() {
    for family in Family::ALL {
        let failed = stream_of(&family.preamble("failed")).reset();
        let new = Upstream::always(failed).await;
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::split(&old, &new, 100).await;
        let response = client::post(proxy.address, family.path(), &[], STREAMING).await;
        response.assert_is(family.stream("old", 3));
        assert_eq!(new.count(), 1, "{family:?}");
        let labels = [("class", family.class()), ("outcome", "completed")];
        proxy.counts("crossfade_requests_total", &labels, 1.0).await;
    }
}

#[tokio::test]
async fn a_unary_response_is_recovered_as_well() {
    for script in [
        status(503),
        Script::new().reset(),
        empty_404(),
        model_not_found(),
        status(500),
    ] {
        let new = Upstream::always(script).await;
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::split(&old, &new, 100).await;
        let response = client::post(proxy.address, CHAT, &[], UNARY).await;
        response.assert_is(unary_text("old"));
        assert_eq!(response.generation(), "old");
    }
}

#[tokio::test]
async fn a_500_of_new_is_retried_on_old() {
    for script in [status(500), error_first(500)] {
        let new = Upstream::always(script).await;
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::planned(&old, &mostly_new(&new, ""), &[]).await;
        let response = proxy.chat().await;
        response.assert_is(chat_text("old"));
        assert_counted(&proxy, &response, ["new", "old"], "server_error").await;
    }
}

#[tokio::test]
async fn a_500_of_old_is_retried_on_new_only_if_enabled() {
    for script in [status(500), error_first(500)] {
        let old = Upstream::always(script).await;
        let new = Upstream::start(healthy("new")).await;
        let proxy = Proxy::planned(&old, &mostly_old(&new, ""), &[]).await;
        let response = proxy.chat().await;
        assert!(response.text().contains("500"), "{}", response.text());
        assert_eq!(new.count(), 0);

        let lines = "failover: {retryOldServerErrors: true}";
        let proxy = Proxy::planned(&old, &mostly_old(&new, lines), &[]).await;
        proxy.chat().await.assert_is(chat_text("new"));
    }
}

#[tokio::test]
async fn a_529_is_retried_only_if_enabled() {
    for script in [status(529), error_first(529)] {
        let new = Upstream::always(script).await;
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::planned(&old, &mostly_new(&new, ""), &[]).await;
        let response = proxy.chat().await;
        assert!(response.text().contains("529"), "{}", response.text());
        assert_eq!(old.count(), 0);
    }
}

#[tokio::test]
async fn any_other_error_status_passes_unchanged_and_is_not_retried() {
    let json = |code| (code, status_text(code));
    let route = r#"{"message":"Route not found: POST /v1/x","type":"Not Found","code":404}"#;
    let cases = [
        json(400),
        json(401),
        json(403),
        (404, route.to_owned()),
        json(405),
        json(409),
        json(413),
        json(415),
        json(422),
        json(429),
        json(499),
        json(501),
    ];
    for (code, body) in cases {
        for to_new in [true, false] {
            let headers = [
                ("content-type", "application/json"),
                ("x-some", "thing"),
                ("retry-after", "7"),
                ("content-length", &body.len().to_string()),
            ];
            let failing = Upstream::always(Script::new().head(code, &headers).chunk(&body)).await;
            let other = Upstream::start(healthy("other")).await;
            let proxy = if to_new {
                Proxy::planned(&other, &mostly_new(&failing, ""), &[]).await
            } else {
                Proxy::planned(&failing, &mostly_old(&other, ""), &[]).await
            };
            let response = proxy.chat().await;
            assert_eq!((response.status, response.end), (code, End::Clean));
            assert_eq!(response.text(), body);
            assert_eq!(response.header("x-some"), Some("thing"));
            assert_eq!(response.header("retry-after"), Some("7"));
            assert_eq!((failing.count(), other.count()), (1, 0), "{code}");
        }
    }
}

#[tokio::test]
async fn an_error_status_with_an_event_stream_passes_unchanged() {
    for (code, body) in [
        (429, "data: {\"error\":{\"code\":429}}\n\n"),
        (400, "data: half"),
        (422, ""),
    ] {
        let length = body.len().to_string();
        let headers = [
            ("content-type", "text/event-stream"),
            ("content-length", &*length),
        ];
        let refusal = Script::new().head(code, &headers);
        let refusal = if body.is_empty() {
            refusal
        } else {
            refusal.chunk(body)
        };
        let old = Upstream::always(refusal).await;
        let proxy = Proxy::before(&old, &[]).await;
        let response = proxy.chat().await;
        assert_eq!((response.status, response.end), (code, End::Clean));
        assert_eq!(response.text(), body);
        assert_eq!(response.header("content-length"), Some(&*length));
        proxy.outcomes("completed", 1).await;
    }
}

#[tokio::test]
async fn a_first_error_event_with_another_code_passes_unchanged() {
    for code in [400, 404, 429] {
        let new = Upstream::always(error_first(code)).await;
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::planned(&old, &mostly_new(&new, ""), &[]).await;
        proxy.chat().await.assert_is(error_event(code) + DONE);
        assert_eq!(old.count(), 0, "{code}");
        proxy.outcomes("failed", 1).await;
    }
}

#[tokio::test]
async fn a_model_that_both_generations_lack_is_not_found() {
    for both in [model_not_found, empty_404] {
        let old = Upstream::always(both()).await;
        let new = Upstream::always(both()).await;
        let proxy = Proxy::split(&old, &new, 50).await;
        let response = proxy.chat().await;
        assert_eq!((response.status, response.end), (404, End::Clean));
        assert!(old.count() <= 1 && new.count() <= 1);
    }
}

#[tokio::test]
async fn nothing_is_retried_after_content_was_forwarded() {
    for protocol in PROTOCOLS {
        for end in [Script::reset, Script::eof] {
            let gate = Gate::closed();
            let text = role("new") + &content("new", 0);
            let new = Upstream::always(end(stream_of(&text).wait(&gate))).await;
            let old = Upstream::start(healthy("old")).await;
            let plan = mostly_new(&new, "");
            let flags = ["--upstream-protocol", protocol];
            let proxy = Proxy::planned(&old, &plan, &flags).await;
            let mut client = client::open_chat(proxy.address).await;
            assert_eq!(client.head().await.status, 200);
            let seen = client.until(&content("new", 0)).await;
            assert_eq!(seen, text);
            gate.open();
            let rest = client.body().await;
            assert!(
                String::from_utf8_lossy(&rest).starts_with("data: {\"error\":"),
                "{rest:?}"
            );
            assert!(client.end.unwrap().is_unclean());
            assert_eq!(old.count(), 0);
            proxy.outcomes("completed", 0).await;
        }
    }
}

#[tokio::test]
async fn nothing_is_retried_on_a_generation_of_weight_0() {
    let old = Upstream::always(status(503)).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 0).await;
    let response = proxy.chat().await;
    assert_eq!((response.status, response.text()), (503, status_text(503)));
    assert_eq!(new.count(), 0);

    let nobody = Upstream::nobody().to_string();
    let proxy = Proxy::start(&["--old", &nobody, "--new", &new.url(), "--split", "0"]).await;
    let response = proxy.chat().await;
    assert_eq!(response.status, 502);
    let message = response.own_error()["message"].to_string();
    assert!(message.contains("old"), "{message}");
    assert_eq!(new.count(), 0);
    proxy.outcomes("failed", 1).await;
    // The proxy generates the response.
    assert_eq!(proxy.access_line(1).await["answered"], "none");
}

#[tokio::test]
async fn old_is_a_failover_target_at_100_percent_until_the_plan_drains_it() {
    let new = Upstream::always(status(503)).await;
    let old = Upstream::start(healthy("old")).await;
    // Otherwise the retry budget would also end the failovers.
    let budget = "failover: {retryBudgetPercent: 100}";
    let draining = format!("{budget}\noldDraining: true");
    let plan = PlanFile::new(&manifest(&new.url(), 0, 1, budget));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    proxy.chat().await.assert_is(chat_text("old"));
    plan.replace(&manifest(&new.url(), 0, 1, &draining));
    eventually("old drains", async || proxy.chat().await.status == 503).await;
    let before = old.count();
    assert_eq!(proxy.chat().await.text(), status_text(503));
    assert_eq!(old.count(), before);
}

#[tokio::test]
async fn a_request_of_an_earlier_plan_is_reported_while_it_may_still_be_sent_to_old() {
    let new = Upstream::always(Script::new().pause(4000).json(503, "{}")).await;
    let old = Upstream::start(healthy("old")).await;
    let plan = PlanFile::new(&manifest(&new.url(), 0, 1, ""));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client.post(CHAT, &[], STREAMING).await;
    eventually("new is asked", async || new.count() == 1).await;
    plan.replace(&manifest(&new.url(), 0, 1, "oldDraining: true"));
    let state = || {
        let address = proxy.admin.to_string();
        let output = crate::rig::proxy::run(&["status", "--proxy", &address, "--output", "json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let all = &status["total"];
        let plan = &all["plan"];
        let earlier = plan["earlierRequestsThatMayReachOld"].as_u64();
        let open = all["old"]["openStreams"].as_u64();
        (plan["oldDrains"] == true, earlier, open)
    };
    // No stream is open on old, but this request is about to be retried there.
    eventually("old drains", async || state() == (true, Some(1), Some(0))).await;
    client.head().await;
    client.body().await;
    assert_eq!(old.count(), 1);
    eventually("it has ended", async || state() == (true, Some(0), Some(0))).await;
}

#[tokio::test]
async fn other_old_pods_are_a_failover_target_for_old() {
    let peers = Upstream::start(healthy("peers")).await;
    let nobody = Upstream::nobody().to_string();
    let peers_url = peers.url();
    let proxy = Proxy::before_url(&nobody, &["--old-peers", &peers_url]).await;
    let response = proxy.chat().await;
    response.assert_is(chat_text("peers"));
    assert_eq!(response.generation(), "old");

    let old = Upstream::always(stream_of(&role("failed")).reset()).await;
    let proxy = Proxy::before(&old, &["--old-peers", &peers_url]).await;
    proxy.chat().await.assert_is(chat_text("peers"));
    assert_eq!(old.count(), 1);
}

#[tokio::test]
async fn other_old_pods_are_tried_when_both_generations_fail() {
    let old = Upstream::always(status(503)).await;
    let new = Upstream::always(stream_of(&role("failed")).reset()).await;
    let peers = Upstream::start(healthy("peers")).await;
    let flags = ["--old-peers", &peers.url()];
    let proxy = Proxy::split_with(&old, &new, 100, &flags).await;
    proxy.chat().await.assert_is(chat_text("peers"));
    assert_eq!((old.count(), new.count(), peers.count()), (1, 1, 1));
    assert_eq!(proxy.access_line(1).await["attempts"], 3);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_forwarded_but_not_resent() {
    // A short body is complete in memory before it is sent.
    for (limit, length, more) in [
        (100_000, 200_000, ""),
        (1000, 1100, ""),
        (0, 100, ""),
        (1000, 50_000, "affinity: {bodyFields: [user]}"),
    ] {
        let body = format!(r#"{{"stream":true,"x":"{}"}}"#, "y".repeat(length));
        let lines = format!("failover: {{maxReplayBytes: {limit}}}\n{more}");
        let new = Upstream::always(Script::new().reset()).await;
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::planned(&old, &mostly_new(&new, &lines), &[]).await;
        let response = client::post(proxy.address, CHAT, &[], &body).await;
        assert_eq!(response.status, 502, "{limit} {length}");
        response.own_error();
        assert_eq!((new.count(), old.count()), (1, 0), "{limit} {length}");
        assert_eq!(new.last().body_length(), body.len());

        let new = Upstream::start(healthy("new")).await;
        let proxy = Proxy::planned(&old, &mostly_new(&new, &lines), &[]).await;
        let response = client::post(proxy.address, CHAT, &[], &body).await;
        response.assert_is(chat_text("new"));
    }
}

#[tokio::test]
async fn bodies_beyond_the_memory_budget_are_forwarded_but_not_resent() {
    let body = format!(r#"{{"stream":true,"x":"{}"}}"#, "y".repeat(200_000));
    let old = Upstream::start(healthy("old")).await;
    let failing = Upstream::always(Script::new().reset()).await;
    let flags = ["--replay-budget-bytes", "100000"];
    let proxy = Proxy::split_with(&old, &failing, 100, &flags).await;
    let response = client::post(proxy.address, CHAT, &[], &body).await;
    assert_eq!(response.status, 502);
    assert_eq!((failing.count(), old.count()), (1, 0));
    // The budget is returned: smaller bodies are recovered one after the other.
    let smaller = &body[..70_000];
    for _ in 0..2 {
        let response = client::post(proxy.address, CHAT, &[], smaller).await;
        assert_eq!((response.status, response.generation()), (200, "old"));
    }
}

#[tokio::test]
async fn a_body_within_the_limit_is_resent_byte_for_byte() {
    let body = format!(r#"{{"stream":true,"x":"{}"}}"#, "y".repeat(400_000));
    for protocol in PROTOCOLS {
        let new = Upstream::always(stream_of(&role("failed")).eof()).await;
        let old = Upstream::start(healthy("old")).await;
        let flags = ["--upstream-protocol", protocol];
        let proxy = Proxy::planned(&old, &mostly_new(&new, ""), &flags).await;
        let response = client::post(proxy.address, CHAT, &[], &body).await;
        response.assert_is(chat_text("old"));
        assert!(old.last().body() == body.as_bytes());
        assert!(new.last().body() == body.as_bytes());
    }
}

#[tokio::test]
async fn a_body_that_is_too_long_to_be_read_for_affinity_is_resent_like_any_other() {
    let body = format!(r#"{{"stream":true,"x":"{}"}}"#, "y".repeat(1_500_000));
    let new = Upstream::always(stream_of(&role("failed")).eof()).await;
    let old = Upstream::start(healthy("old")).await;
    let plan = mostly_new(&new, "affinity: {bodyFields: [user]}");
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n",
        body.len()
    );
    client.send(head + &body + "\r\n0\r\n\r\n").await;
    client.response().await.assert_is(chat_text("old"));
    assert!(old.last().body() == body.as_bytes());
}

#[tokio::test]
async fn a_budget_of_0_denies_retries_and_counts_them() {
    let new = Upstream::always(status(503)).await;
    let old = Upstream::start(healthy("old")).await;
    let lines = "failover: {retryBudgetPercent: 0}";
    let proxy = Proxy::planned(&old, &mostly_new(&new, lines), &[]).await;
    let response = proxy.chat().await;
    assert_eq!((response.status, response.text()), (503, status_text(503)));
    assert_eq!(old.count(), 0);
    proxy
        .counts("crossfade_retries_refused_total", &[], 1.0)
        .await;
}

#[tokio::test]
async fn failover_can_be_disabled() {
    let new = Upstream::always(status(503)).await;
    let old = Upstream::start(healthy("old")).await;
    let lines = "failover: {enabled: false}";
    let proxy = Proxy::planned(&old, &mostly_new(&new, lines), &[]).await;
    assert_eq!(proxy.chat().await.status, 503);
    assert_eq!(old.count(), 0);
}

#[tokio::test]
async fn a_failing_generation_does_not_double_the_load() {
    let new = Upstream::always(status(503)).await;
    let old = Upstream::start(healthy("old")).await;
    let lines = "failover: {retryBudgetPercent: 1}";
    let proxy = Proxy::planned(&old, &mostly_new(&new, lines), &[]).await;
    let mut client = Client::connect(proxy.address).await;
    let mut statuses = Vec::new();
    for _ in 0..100 {
        client.post(CHAT, &[], UNARY).await;
        statuses.push(client.response().await.status);
    }
    let refused = statuses.iter().filter(|status| **status == 503).count();
    let metrics = proxy.metrics().await;
    let saved = metrics.sum(
        "crossfade_recovered_requests_total",
        &[("cause", "unavailable")],
    );
    let counted = metrics.sum("crossfade_retries_refused_total", &[]);
    assert!(saved <= 20.0, "{saved} retries at 1%");
    assert!(
        refused as f64 <= counted,
        "{refused} refused, {counted} counted"
    );
}

#[tokio::test]
async fn if_the_second_target_fails_too_a_started_stream_ends_with_an_error_event() {
    let new = Upstream::always(stream_of(&role("failed")).reset()).await;
    let old = Upstream::always(status(400)).await;
    let proxy = Proxy::split(&old, &new, 100).await;
    let response = proxy.chat().await;
    assert!(response.end.is_unclean());
    let text = response.text();
    assert!(text.starts_with("data: {\"error\":"), "{text}");
    assert!(!text.contains("[DONE]"));
    assert_ne!(proxy.access_line(1).await["outcome"], "completed");
}

#[tokio::test]
async fn when_both_fail_the_client_gets_the_error_of_one_of_them() {
    let new = Upstream::always(status(503)).await;
    let old = Upstream::always(status(503)).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    let response = proxy.chat().await;
    assert_eq!((response.status, response.text()), (503, status_text(503)));
    assert_eq!((old.count(), new.count()), (1, 1));
}

#[tokio::test]
async fn a_deadline_without_another_target_ends_the_stream() {
    let old = Upstream::always(stream_of(&role("old")).hang()).await;
    let flags = ["--first-event-timeout", "0.1"];
    let proxy = Proxy::before(&old, &flags).await;
    let response = proxy.chat().await;
    assert!(response.end.is_unclean(), "{}", response.text());
    assert!(
        response.text().contains("\"code\":504"),
        "{}",
        response.text()
    );
    eventually("cancelled upstream", async || old.last().is_gone()).await;
}

/// Neither requests that wait for a response head nor streams that wait for content.
#[tokio::test]
async fn a_proxy_that_was_stopped_beyond_the_first_event_timeout_gives_up_no_response_that_has_arrived()
 {
    for protocol in PROTOCOLS {
        for early in ["", ": waiting\n\n"] {
            let gate = Gate::closed();
            let script = match early {
                "" => Script::new().wait(&gate).sse(),
                early => stream_of(early).wait(&gate),
            };
            let old = Upstream::always(script.events(&chat_text("old"))).await;
            let limit = ["--first-event-timeout", "1"];
            let flags = [&limit[..], &["--upstream-protocol", protocol]].concat();
            let proxy = Proxy::before(&old, &flags).await;
            let mut client = Client::connect(proxy.address).await;
            client.post(CHAT, &[], STREAMING).await;
            eventually("asked", async || old.count() == 1).await;
            let beyond = Duration::from_millis(1200);
            proxy.stand_still(beyond, || gate.open()).await;
            let response = client.response().await;
            assert_eq!(response.text(), early.to_owned() + &chat_text("old"));
        }
    }
}

/// RFC 9110 §10.1.1: the client need not send its body any more, so another target would wait for it without end.
#[tokio::test]
async fn a_request_whose_client_got_a_response_instead_of_100_continue_is_not_retried() {
    let gate = Gate::closed();
    let script = stream_of(": waiting\n\n").wait(&gate).reset();
    let new = Upstream::always(script.leaving_the_body()).await;
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::planned(&old, &mostly_new(&new, ""), &[]).await;
    let mut client = Client::connect(proxy.address).await;
    let expects = "host: a\r\nexpect: 100-continue\r\ncontent-length: 100";
    client
        .send(format!("POST {CHAT} HTTP/1.1\r\n{expects}\r\n\r\n"))
        .await;
    let head = client.head().await;
    assert_eq!(head.status, 200);
    client.until(": waiting\n\n").await;
    gate.open();
    let rest = client.rest(head).await;
    let text = rest.text();
    assert!(text.contains("\"code\":502"), "{text}");
    assert!(rest.end.is_unclean());
    assert_eq!((old.count(), new.count()), (0, 1));
}

#[tokio::test]
async fn the_failed_attempt_is_cancelled() {
    for protocol in PROTOCOLS {
        let new = Upstream::always(stream_of(&role("failed")).hang()).await;
        let old = Upstream::start(healthy("old")).await;
        let lines = "failover: {firstEventTimeoutSeconds: 0.4}";
        let flags = ["--upstream-protocol", protocol];
        let proxy = Proxy::planned(&old, &mostly_new(&new, lines), &flags).await;
        proxy.chat().await.assert_is(chat_text("old"));
        eventually("cancelled upstream", async || new.last().is_gone()).await;
    }
}

#[tokio::test]
async fn events_without_content_are_held_but_the_head_and_comments_are_not() {
    for family in [Family::Chat, Family::Responses, Family::Messages] {
        let gate = Gate::closed();
        let script = Script::new()
            .sse()
            .chunk(": first\n\n")
            .events(&family.preamble("old"))
            .wait(&gate)
            .chunk(family.content("old", 0))
            .chunk(family.terminal("old"));
        let old = Upstream::always(script).await;
        let new = Upstream::start(healthy("new")).await;
        let proxy = Proxy::planned(&old, &mostly_old(&new, ""), &[]).await;
        let mut client = Client::connect(proxy.address).await;
        client.post(family.path(), &[], STREAMING).await;
        assert_eq!(client.head().await.status, 200);
        client.until(": first\n\n").await;
        client.assert_silent(50).await;
        gate.open();
        let rest = client.body().await;
        assert_eq!(String::from_utf8(rest).unwrap(), family.stream("old", 1));
    }
}

#[tokio::test]
async fn events_without_content_are_held_no_longer_than_configured() {
    for (hold, at_least) in [("0", 0), ("0.1", 90)] {
        let gate = Gate::closed();
        let old = Upstream::always(
            stream_of(&role("old"))
                .wait(&gate)
                .chunk(content("old", 0))
                .chunk(DONE),
        )
        .await;
        let new = Upstream::start(healthy("new")).await;
        let plan = mostly_old(&new, &format!("failover: {{holdSeconds: {hold}}}"));
        let proxy = Proxy::planned(&old, &plan, &[]).await;
        let start = std::time::Instant::now();
        let mut client = client::open_chat(proxy.address).await;
        client.head().await;
        client.until(&role("old")).await;
        assert!(start.elapsed() >= Duration::from_millis(at_least));
        gate.open();
        let rest = client.body().await;
        assert_eq!(String::from_utf8(rest).unwrap(), content("old", 0) + DONE);
    }
}

#[tokio::test]
async fn a_stream_whose_preamble_was_sent_is_recovered_without_a_second_one_or_ends_with_an_error()
{
    let gate = Gate::closed();
    let new = Upstream::always(stream_of(&role("new")).wait(&gate).reset()).await;
    let old = Upstream::start(healthy("old")).await;
    let plan = mostly_new(&new, "failover: {holdSeconds: 0}");
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let mut client = client::open_chat(proxy.address).await;
    client.head().await;
    client.until(&role("new")).await;
    gate.open();
    let rest = String::from_utf8(client.body().await).unwrap();
    if client.end == Some(End::Clean) {
        let rest_of_old = chat_text("old").replace(&role("old"), "");
        assert_eq!(rest, rest_of_old.replace("chatcmpl-old", "chatcmpl-new"));
    } else {
        assert!(rest.starts_with("data: {\"error\":"), "{rest}");
    }
}

/// The events of a stream, one by one.
fn events(stream: &str) -> Vec<&str> {
    stream.split_inclusive("\n\n").collect()
}

#[tokio::test]
async fn a_stream_is_recovered_after_any_part_of_its_opening_was_sent() {
    for family in Family::ALL {
        let (opening, whole) = (family.preamble("new"), family.stream("old", 3));
        let opening = events(&opening);
        for sent in 0..=opening.len() {
            for hold in ["0", "0.05"] {
                let gate = Gate::closed();
                let begun = opening[..sent].concat();
                let script = stream_of(&begun).wait(&gate).reset();
                let new = Upstream::always(script).await;
                let old = Upstream::start(healthy("old")).await;
                let lines = format!("failover: {{holdSeconds: {hold}}}");
                let proxy = Proxy::planned(&old, &mostly_new(&new, &lines), &[]).await;
                let mut client = Client::connect(proxy.address).await;
                client.post(family.path(), &[], STREAMING).await;
                client.head().await;
                if sent > 0 {
                    client.until(&begun).await;
                }
                gate.open();
                let rest = String::from_utf8(client.body().await).unwrap();
                let mut expected = events(&whole)[sent..].concat();
                if sent > 0 {
                    // The client already has the ID of the first stream.
                    for (key, prefix) in [("id", ""), ("item_id", ""), ("id", "chatcmpl-")] {
                        let [own, known] =
                            ["old", "new"].map(|id| format!("\"{key}\":\"{prefix}{id}\""));
                        expected = expected.replace(&own, &known);
                    }
                }
                assert_eq!(rest, expected, "{family:?} after {sent}");
                assert_eq!(client.end, Some(End::Clean), "{family:?} after {sent}");
            }
        }
    }
}

#[tokio::test]
async fn a_stream_that_cannot_be_recovered_ends_with_an_error() {
    let tool = |name: &str, tool: &str| {
        family_stream(name).replace(
            r#""type":"text","text":"""#,
            &format!(r#""type":"tool_use","id":"{name}","name":"{tool}","input":{{}}"#),
        )
    };
    let gate = Gate::closed();
    let began = events(&tool("new", "forecast"))[..2].concat();
    let new = Upstream::always(stream_of(&began).wait(&gate).reset()).await;
    let old = Upstream::always(stream_of(&tool("old", "history"))).await;
    let plan = mostly_new(&new, "failover: {holdSeconds: 0}");
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client.post(MESSAGES, &[], STREAMING).await;
    client.head().await;
    client.until(&began).await;
    gate.open();
    let rest = String::from_utf8(client.body().await).unwrap();
    assert!(rest.starts_with("event: error\n"), "{rest}");
    assert!(client.end.unwrap().is_unclean());
    proxy.outcomes("failed", 1).await;
}

/// A server may start with content. Then the first chunk with content is also the first with its ID.
#[tokio::test]
async fn a_chat_that_is_recovered_after_its_role_event_keeps_one_id() {
    let late = [
        role("old") + &content("old", 0),
        content("old", 0),
        content("old", 0).replace(r#""content""#, r#""role":"assistant","content""#),
    ];
    for began in late {
        for continuation in ["Off", "AnyGeneration"] {
            let gate = Gate::closed();
            let new = Upstream::always(stream_of(&role("new")).wait(&gate).reset()).await;
            let rest = content("old", 1) + &Family::Chat.terminal("old");
            let old = Upstream::always(stream_of(&(began.clone() + &rest))).await;
            let lines =
                format!("failover: {{holdSeconds: 0, continuation: {{mode: {continuation}}}}}");
            let proxy = Proxy::planned(&old, &mostly_new(&new, &lines), &[]).await;
            let mut client = client::open_chat(proxy.address).await;
            client.head().await;
            client.until(&role("new")).await;
            gate.open();
            let text = String::from_utf8(client.body().await).unwrap();
            let expected =
                (began.replace(&role("old"), "") + &rest).replace("chatcmpl-old", "chatcmpl-new");
            assert_eq!(text, expected, "{continuation}");
            assert_eq!(client.end, Some(End::Clean));
        }
    }
}

/// In the middle of a stream, the mark would become a part of a field name, and clients would ignore that field.
#[tokio::test]
async fn a_byte_order_mark_of_the_second_server_is_removed() {
    let comment = ": waiting\n\n";
    let gate = Gate::closed();
    let new = Upstream::always(stream_of(comment).wait(&gate).reset()).await;
    let text = family_stream("old");
    let marked = format!("\u{feff}{text}");
    let old = Upstream::always(stream_of(&marked)).await;
    let proxy = Proxy::planned(&old, &mostly_new(&new, ""), &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client.post(MESSAGES, &[], STREAMING).await;
    client.head().await;
    client.until(comment).await;
    gate.open();
    assert_eq!(String::from_utf8(client.body().await).unwrap(), text);
}

/// The API guarantees that these members are the same in all chunks of a completion.
#[tokio::test]
async fn a_completion_that_is_recovered_after_its_first_event_keeps_its_time_model_and_fingerprint()
{
    let chunk = |name: &str, time: u32, choice: &str| {
        format!(
            "data: {{\"id\":\"{name}\",\"created\":{time},\"model\":\"tiny-{name}\",\"system_fingerprint\":\"fp_{name}\",\"choices\":[{{\"index\":0,{choice},\"finish_reason\":null}}]}}\n\n"
        )
    };
    for (path, empty, content) in [
        (
            CHAT,
            r#""delta":{"role":"assistant","content":""}"#,
            r#""delta":{"content":"a\"model\":1"}"#,
        ),
        (COMPLETIONS, r#""text":"""#, r#""text":"a\"model\":1""#),
    ] {
        let gate = Gate::closed();
        let first = chunk("new", 7, empty);
        let new = Upstream::always(stream_of(&first).wait(&gate).reset()).await;
        // Some servers send the current time in each chunk.
        let rest = [
            chunk("old", 8, empty),
            chunk("old", 8, content),
            chunk("old", 9, content),
            DONE.to_owned(),
        ];
        let old = Upstream::always(stream_of(&rest.concat())).await;
        let plan = mostly_new(&new, "failover: {holdSeconds: 0}");
        let proxy = Proxy::planned(&old, &plan, &[]).await;
        let mut client = Client::connect(proxy.address).await;
        client.post(path, &[], STREAMING).await;
        client.head().await;
        client.until(&first).await;
        gate.open();
        let text = String::from_utf8(client.body().await).unwrap();
        let chunk = chunk("new", 7, content);
        assert_eq!(text, chunk.clone() + &chunk + DONE, "{path}");
        assert_eq!(client.end, Some(End::Clean));
    }
}

/// The numbered events of a Responses stream with the text `delta`.
fn numbered(name: &str, delta: &str) -> Vec<String> {
    let item = format!(r#""item":{{"id":"{name}","type":"message"}},"output_index":0"#);
    let at = format!(r#""item_id":"{name}","output_index":0,"content_index":0"#);
    let response = format!(r#""response":{{"id":"{name}"}}"#);
    let events = [
        ("response.created", response.clone()),
        ("response.in_progress", response.clone()),
        ("response.output_item.added", item),
        (
            "response.content_part.added",
            format!(r#"{at},"part":{{"type":"output_text","text":""}}"#),
        ),
        (
            "response.output_text.delta",
            format!(r#"{at},"delta":"{delta}""#),
        ),
        ("response.completed", response),
    ];
    let event = |(number, (kind, rest)): (usize, (&str, String))| {
        format!(
            "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number},{rest}}}\n\n"
        )
    };
    events.into_iter().enumerate().map(event).collect()
}

fn named(kind: &str, rest: &str) -> String {
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n")
}

fn text_start(text: &str) -> String {
    let block = format!(r#","index":0,"content_block":{{"type":"text","text":"{text}"}}"#);
    named("content_block_start", &block)
}

fn text_block(index: u32) -> String {
    let start = format!(r#","index":{index},"content_block":{{"type":"text","text":""}}"#);
    let delta = format!(r#","index":{index},"delta":{{"type":"text_delta","text":"x"}}"#);
    named("content_block_start", &start) + &named("content_block_delta", &delta)
}

/// Clients build the response from the blocks that were opened. A call of a tool that no server made must not look complete.
#[tokio::test]
async fn a_recovered_stream_that_would_lack_a_block_or_its_text_ends_with_an_error() {
    let begun = named("message_start", r#","message":{"id":"m"}"#);
    let tool = named(
        "content_block_start",
        r#","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}"#,
    );
    let stop = named("message_stop", "");
    let created = named("response.created", r#","response":{"id":"r"}"#);
    let call = named(
        "response.output_item.added",
        r#","output_index":0,"item":{"type":"function_call","id":"i","name":"f"}"#,
    );
    let completed = named(
        "response.completed",
        r#","response":{"id":"r","output":[]}"#,
    );
    for (path, opened, second) in [
        (MESSAGES, begun.clone() + &tool, begun.clone() + &stop),
        (
            MESSAGES,
            begun.clone() + &tool,
            begun.clone() + &text_block(1) + &stop,
        ),
        (RESPONSES, created.clone() + &call, created + &completed),
        // Its text would be lost with the event.
        (
            MESSAGES,
            begun.clone() + &text_start(""),
            begun.clone() + &text_start("lost") + &stop,
        ),
    ] {
        let gate = Gate::closed();
        let new = Upstream::always(stream_of(&opened).wait(&gate).reset()).await;
        let old = Upstream::always(stream_of(&second)).await;
        let plan = mostly_new(&new, "failover: {holdSeconds: 0}");
        let proxy = Proxy::planned(&old, &plan, &[]).await;
        let mut client = Client::connect(proxy.address).await;
        client.post(path, &[], STREAMING).await;
        client.head().await;
        client.until(&opened).await;
        gate.open();
        let rest = String::from_utf8(client.body().await).unwrap();
        assert!(rest.contains("event: error\n"), "{rest}");
        assert!(
            !rest.contains("message_stop") && !rest.contains("completed"),
            "{rest}"
        );
        assert!(client.end.unwrap().is_unclean());
        proxy.outcomes("failed", 1).await;
    }
}

/// The first server's event stays with the client, and the second one's is dropped.
#[tokio::test]
async fn the_prompt_tokens_of_a_recovered_message_are_those_that_the_client_got() {
    let begun = |tokens: u32| {
        let message = format!(r#","message":{{"id":"m","usage":{{"input_tokens":{tokens}}}}}"#);
        named("message_start", &message)
    };
    let gate = Gate::closed();
    let new = Upstream::always(stream_of(&begun(10)).wait(&gate).reset()).await;
    let old = begun(20) + &text_block(0) + &named("message_stop", "");
    let old = Upstream::always(stream_of(&old)).await;
    let plan = mostly_new(&new, "failover: {holdSeconds: 0}");
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let mut client = Client::connect(proxy.address).await;
    client.post(MESSAGES, &[], STREAMING).await;
    client.head().await;
    client.until(&begun(10)).await;
    gate.open();
    client.body().await;
    assert_eq!(proxy.access_line(1).await["prompt_tokens"], 10);
}

/// The IDs of this event would have to be rewritten, but it is too long to be held until it is complete.
#[tokio::test]
async fn a_recovered_stream_with_an_event_that_cannot_be_held_ends_with_an_error_and_no_other_id() {
    for (budget, length) in [("30000", 100_000), ("100000000", 1_200_000)] {
        let opened = numbered("new", "")[..2].concat();
        let events = numbered("old", &"x".repeat(length));
        // The complete events arrive together with the start of the long one.
        let (begun, rest) = events[4].split_at(length / 2);
        let together = events[..4].concat() + begun;
        let gate = Gate::closed();
        let new = Upstream::always(stream_of(&opened).wait(&gate).reset()).await;
        let old = Script::new().sse().chunk(together).chunk(rest);
        let old = Upstream::always(old.chunk(&events[5])).await;
        let plan = mostly_new(&new, "failover: {holdSeconds: 0}");
        let flags = ["--replay-budget-bytes", budget];
        let proxy = Proxy::planned(&old, &plan, &flags).await;
        let mut client = Client::connect(proxy.address).await;
        client.post(RESPONSES, &[], STREAMING).await;
        client.head().await;
        client.until(&opened).await;
        gate.open();
        let rest = String::from_utf8(client.body().await).unwrap();
        let (whole, error) = rest.split_once("event: error\n").expect(&rest);
        let expected = numbered("new", "")[2..4].concat();
        assert_eq!(whole.trim_end(), expected.trim_end());
        assert!(error.ends_with("\n\n"), "{error}");
        assert!(error.contains("\"sequence_number\":4}"), "{error}");
        assert!(client.end.unwrap().is_unclean());
        proxy.outcomes("failed", 1).await;
    }
}

fn family_stream(name: &str) -> String {
    Family::Messages.stream(name, 2)
}

#[tokio::test]
async fn an_http2_client_is_recovered_as_well() {
    for (cause, _, script) in failures()
        .into_iter()
        .filter(|(_, lines, _)| lines.is_empty())
    {
        let new = Upstream::always(script).await;
        let old = Upstream::start(healthy("old")).await;
        let proxy = Proxy::planned(&old, &mostly_new(&new, ""), &[]).await;
        let client = client::http2::Client::connect(proxy.address).await;
        assert_saved(&client.chat().await.response().await, "old", cause);
    }
}

#[tokio::test]
async fn a_new_generation_that_dies_gets_fewer_attempts_and_comes_back() {
    let new_script = std::sync::Arc::new(std::sync::Mutex::new(status(503)));
    let new = Upstream::start({
        let script = new_script.clone();
        move |_| script.lock().unwrap().clone()
    })
    .await;
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::split(&old, &new, 100).await;
    for _ in 0..20 {
        assert_eq!(proxy.chat().await.status, 200);
    }
    assert!(
        new.count() < 20,
        "asked {} times though it failed each time",
        new.count()
    );
    *new_script.lock().unwrap() = chat_stream("new");
    proxy.serves("new").await;
}
