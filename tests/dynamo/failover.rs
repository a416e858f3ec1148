//! A worker or frontend fails before the first token: the other generation serves the request, and the client sees no error.

use crate::pair::{Pair, RequestKind, access, read_until};
use crate::rig::{Client, Family, Proxy, eventually};

const CHAT: RequestKind = RequestKind {
    family: Family::Chat,
    stream: true,
};

/// Opens one request of each kind that waits for its first token on `generation`. The other generation would send five words.
async fn in_prefill(
    proxy: &Proxy,
    pair: &Pair,
    generation: &str,
    name: &str,
) -> Vec<(RequestKind, Client)> {
    let mut open = Vec::new();
    for (index, kind) in RequestKind::all().enumerate() {
        let tag = format!("{name}{index}");
        let prompt = format!("<<words=5>> <<for={generation} tag={tag} hang_after=0>>");
        open.push((kind, kind.open(proxy.address, generation, &prompt).await));
        let stack = if generation == "old" {
            &pair.old
        } else {
            &pair.new
        };
        stack.wait_event(&format!("started {tag}")).await;
    }
    open
}

async fn assert_recovered(open: Vec<(RequestKind, Client)>, by: &crate::dynamo::Stack) {
    for (kind, mut client) in open {
        kind.assert_text(&client.response().await, by, 5);
    }
}

#[tokio::test]
async fn requests_of_a_worker_that_is_killed_before_the_first_token_are_recovered() {
    let mut pair = Pair::start().await;
    let proxies = pair.proxies().await;
    let mut open = Vec::new();
    for (proxy, name) in proxies.iter().zip(["a", "b"]) {
        open.push(in_prefill(proxy, &pair, "old", name).await);
    }
    pair.old.kill_worker(0);
    for open in open {
        assert_recovered(open, &pair.new).await;
    }
    for proxy in &proxies {
        let lines = access(proxy, 8, &["generation", "answered", "attempts", "outcome"]).await;
        assert_eq!(lines, ["old new 2 completed"; 8]);
        let metrics = proxy.metrics().await;
        assert_eq!(metrics.sum("crossfade_recovered_requests_total", &[]), 8.0);
        let events = metrics.sum(
            "crossfade_recovered_requests_total",
            &[("cause", "error_event")],
        );
        let statuses = metrics.sum(
            "crossfade_recovered_requests_total",
            &[("cause", "unavailable")],
        );
        assert_eq!(
            (events, statuses),
            (4.0, 4.0),
            "{:?}",
            metrics.of("crossfade_recovered_requests_total")
        );
        // The frontend still routes to the dead worker until its lease expires.
        for kind in RequestKind::all() {
            kind.assert_text(
                &kind.response(proxy.address, "old", "<<words=5>>").await,
                &pair.new,
                5,
            );
        }
    }
}

#[tokio::test]
async fn requests_of_a_frontend_that_is_killed_before_the_first_token_are_recovered() {
    let mut pair = Pair::start().await;
    let proxies = pair.proxies().await;
    let mut open = Vec::new();
    for (proxy, name) in proxies.iter().zip(["a", "b"]) {
        open.push(in_prefill(proxy, &pair, "new", name).await);
    }
    pair.new.kill_frontend();
    for open in open {
        assert_recovered(open, &pair.old).await;
    }
    for proxy in &proxies {
        let lines = access(proxy, 8, &["generation", "answered", "cause", "outcome"]).await;
        assert_eq!(lines, ["new old broken completed"; 8]);
        for kind in RequestKind::all() {
            kind.assert_text(
                &kind.response(proxy.address, "new", "<<words=5>>").await,
                &pair.old,
                5,
            );
        }
        proxy.recovers(&[("cause", "connect")], 8.0).await;
        proxy.outcomes("completed", 16).await;
    }
}

#[tokio::test]
async fn requests_to_a_frontend_without_workers_are_recovered() {
    let mut pair = Pair::start().await;
    let proxies = pair.proxies().await;
    // Unlike a killed worker, it deregisters at once.
    pair.new.term_worker(0);
    pair.new.worker_exit(0).await;
    pair.new.wait_empty().await;
    // At first the frontend responds that the model is not found. Then it disables its routes.
    eventually("an empty 404 to each kind of request", async || {
        for kind in RequestKind::all() {
            let refusal = kind.response(pair.new.address(), "new", "").await;
            if (refusal.status, refusal.text()) != (404, String::new()) {
                return false;
            }
        }
        true
    })
    .await;
    for proxy in &proxies {
        for kind in RequestKind::all() {
            let response = kind.response(proxy.address, "new", "<<words=5>>").await;
            kind.assert_text(&response, &pair.old, 5);
            assert_eq!(response.generation(), "old");
        }
        let lines = access(proxy, 8, &["generation", "answered", "cause", "outcome"]).await;
        assert_eq!(lines, ["new old no_workers completed"; 8]);
    }
    // At 100 percent, old is still a failover target. At 0 percent, new is not.
    let all = pair.proxy(100, &[]).await;
    CHAT.assert_text(
        &CHAT.response(all.address, "new", "<<words=5>>").await,
        &pair.old,
        5,
    );
    pair.new.start_worker().await;
    pair.old.term_worker(0);
    pair.old.wait_empty().await;
    let none = pair.proxy(0, &[]).await;
    assert_eq!(CHAT.response(none.address, "old", "").await.status, 404);
}

#[tokio::test]
async fn a_draining_frontend_completes_its_streams_and_new_requests_fail_over() {
    const WORDS: usize = 200;
    let mut pair = Pair::start().await;
    let proxies = pair.proxies().await;
    let mut open = Vec::new();
    for proxy in &proxies {
        for kind in RequestKind::streams() {
            let prompt = format!("<<words={WORDS} each_ms=20>>");
            let mut client = kind.open(proxy.address, "old", &prompt).await;
            let head = client.head().await;
            let begun = read_until(&mut client, "old:0").await;
            open.push((kind, client, head, begun));
        }
    }
    pair.old.term_frontend();
    eventually("the frontend drains", async || {
        let answer = pair.old.get("/live").await;
        answer.is_ok_and(|(status, _)| status == 503)
    })
    .await;
    for proxy in &proxies {
        for kind in RequestKind::all() {
            kind.assert_text(
                &kind.response(proxy.address, "old", "<<words=5>>").await,
                &pair.new,
                5,
            );
        }
        // The first requests get a 503 from it. Then the endpoint is ejected.
        let lines = access(proxy, 8, &["answered", "attempts", "outcome"]).await;
        assert_eq!(
            lines, ["new 2 completed"; 8],
            "while the open streams go on"
        );
        let metrics = proxy.metrics().await;
        assert!(
            metrics.sum(
                "crossfade_recovered_requests_total",
                &[("cause", "unavailable")]
            ) >= 1.0
        );
        assert_eq!(metrics.sum("crossfade_open_streams", &[]), 4.0);
    }
    for (kind, mut client, head, begun) in open {
        let mut response = client.rest(head).await;
        response.body.splice(0..0, begun.into_bytes());
        kind.assert_text(&response, &pair.old, WORDS);
    }
    for proxy in &proxies {
        proxy.outcomes("completed", 12).await;
    }
    assert!(pair.old.frontend_exit().await.success());
}

#[tokio::test]
async fn requests_of_a_silent_worker_are_recovered_after_the_first_event_timeout() {
    let pair = Pair::start().await;
    let proxy = pair.proxy(50, &["--first-event-timeout", "1"]).await;
    let open = in_prefill(&proxy, &pair, "new", "a").await;
    assert_recovered(open, &pair.old).await;
    let lines = access(&proxy, 8, &["generation", "answered", "cause", "outcome"]).await;
    assert_eq!(lines, ["new old deadline completed"; 8]);
    for tag in 0..8 {
        let cancelled = pair.new.wait_event(&format!("cancelled a{tag}")).await;
        assert!(cancelled.ends_with(" 0"), "{cancelled}");
    }
}

#[tokio::test]
async fn engine_failures_of_new_are_recovered_on_old_but_not_the_other_way_round() {
    let pair = Pair::start().await;
    let proxy = pair.proxy(50, &[]).await;
    let prompt = "<<words=5>> <<for=new http_error=500>>";
    for kind in RequestKind::all() {
        kind.assert_text(
            &kind.response(proxy.address, "new", prompt).await,
            &pair.old,
            5,
        );
    }
    proxy.recovers(&[("cause", "server_error")], 8.0).await;
    let prompt = "<<words=5>> <<for=old http_error=500>>";
    for kind in RequestKind::all() {
        let direct = kind.response(pair.old.address(), "old", prompt).await;
        let through = kind.response(proxy.address, "old", prompt).await;
        assert_eq!(
            (through.status, through.end),
            (direct.status, direct.end),
            "{kind:?}"
        );
        let (through, direct) = (through.text(), direct.text());
        assert_eq!(
            crate::pair::normal(&through),
            crate::pair::normal(&direct),
            "{kind:?}"
        );
        assert!(direct.contains("Internal server error"), "{direct}");
    }
    proxy.outcomes("failed", 8).await;
    proxy.recovers(&[], 8.0).await;
}
