//! What dies before its first token is saved by the other generation, and its client does not notice.

use crate::pair::{Pair, Way, access, read_until};
use crate::rig::{Client, Family, Proxy, eventually};

const CHAT: Way = Way {
    family: Family::Chat,
    stream: true,
};

/// One request of each kind that waits for its first token on `side`; the other side would say five words.
async fn in_prefill(proxy: &Proxy, pair: &Pair, side: &str, name: &str) -> Vec<(Way, Client)> {
    let mut open = Vec::new();
    for (index, way) in Way::all().enumerate() {
        let tag = format!("{name}{index}");
        let prompt = format!("<<words=5>> <<for={side} tag={tag} hang_after=0>>");
        open.push((way, way.open(proxy.address, side, &prompt).await));
        let stack = if side == "old" { &pair.old } else { &pair.new };
        stack.wait_event(&format!("started {tag}")).await;
    }
    open
}

async fn assert_saved(open: Vec<(Way, Client)>, by: &crate::dynamo::Stack) {
    for (way, mut client) in open {
        way.assert_says(&client.response().await, by, 5);
    }
}

#[tokio::test]
async fn a_worker_that_is_killed_before_its_first_token_costs_nothing() {
    let mut pair = Pair::start().await;
    let proxies = pair.proxies().await;
    let mut open = Vec::new();
    for (proxy, name) in proxies.iter().zip(["a", "b"]) {
        open.push(in_prefill(proxy, &pair, "old", name).await);
    }
    pair.old.kill_worker(0);
    for open in open {
        assert_saved(open, &pair.new).await;
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
        // The frontend still counts on the dead worker, until its lease ends.
        for way in Way::all() {
            way.assert_says(
                &way.ask(proxy.address, "old", "<<words=5>>").await,
                &pair.new,
                5,
            );
        }
    }
}

#[tokio::test]
async fn a_frontend_that_is_killed_before_the_first_token_costs_nothing() {
    let mut pair = Pair::start().await;
    let proxies = pair.proxies().await;
    let mut open = Vec::new();
    for (proxy, name) in proxies.iter().zip(["a", "b"]) {
        open.push(in_prefill(proxy, &pair, "new", name).await);
    }
    pair.new.kill_frontend();
    for open in open {
        assert_saved(open, &pair.old).await;
    }
    for proxy in &proxies {
        let lines = access(proxy, 8, &["generation", "answered", "cause", "outcome"]).await;
        assert_eq!(lines, ["new old broken completed"; 8]);
        for way in Way::all() {
            way.assert_says(
                &way.ask(proxy.address, "new", "<<words=5>>").await,
                &pair.old,
                5,
            );
        }
        proxy.recovers(&[("cause", "connect")], 8.0).await;
        proxy.outcomes("completed", 16).await;
    }
}

#[tokio::test]
async fn a_frontend_without_workers_costs_nothing() {
    let mut pair = Pair::start().await;
    let proxies = pair.proxies().await;
    // It deregisters at once, unlike one that is killed.
    pair.new.term_worker(0);
    pair.new.worker_exit(0).await;
    pair.new.wait_empty().await;
    // For a moment it says that the model is not found; then its routes are switched off.
    eventually("an empty 404 to each kind of request", async || {
        for way in Way::all() {
            let refusal = way.ask(pair.new.address(), "new", "").await;
            if (refusal.status, refusal.text()) != (404, String::new()) {
                return false;
            }
        }
        true
    })
    .await;
    for proxy in &proxies {
        for way in Way::all() {
            let response = way.ask(proxy.address, "new", "<<words=5>>").await;
            way.assert_says(&response, &pair.old, 5);
            assert_eq!(response.generation(), "old");
        }
        let lines = access(proxy, 8, &["generation", "answered", "cause", "outcome"]).await;
        assert_eq!(lines, ["new old no_workers completed"; 8]);
    }
    // With all on new, old is still a failover target; with nothing on new, new is none for old.
    let all = pair.proxy(100, &[]).await;
    CHAT.assert_says(
        &CHAT.ask(all.address, "new", "<<words=5>>").await,
        &pair.old,
        5,
    );
    pair.new.start_worker().await;
    pair.old.term_worker(0);
    pair.old.wait_empty().await;
    let none = pair.proxy(0, &[]).await;
    assert_eq!(CHAT.ask(none.address, "old", "").await.status, 404);
}

#[tokio::test]
async fn a_draining_frontend_completes_its_streams_and_new_requests_fail_over() {
    const WORDS: usize = 200;
    let mut pair = Pair::start().await;
    let proxies = pair.proxies().await;
    let mut open = Vec::new();
    for proxy in &proxies {
        for way in Way::streams() {
            let prompt = format!("<<words={WORDS} each_ms=20>>");
            let mut client = way.open(proxy.address, "old", &prompt).await;
            let head = client.head().await;
            let begun = read_until(&mut client, "old:0").await;
            open.push((way, client, head, begun));
        }
    }
    pair.old.term_frontend();
    eventually("the frontend drains", async || {
        let answer = pair.old.get("/live").await;
        answer.is_ok_and(|(status, _)| status == 503)
    })
    .await;
    for proxy in &proxies {
        for way in Way::all() {
            way.assert_says(
                &way.ask(proxy.address, "old", "<<words=5>>").await,
                &pair.new,
                5,
            );
        }
        // The first are told so; then the endpoint rests, and is not asked.
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
    for (way, mut client, head, begun) in open {
        let mut response = client.rest(head).await;
        response.body.splice(0..0, begun.into_bytes());
        way.assert_says(&response, &pair.old, WORDS);
    }
    for proxy in &proxies {
        proxy.outcomes("completed", 12).await;
    }
    assert!(pair.old.frontend_exit().await.success());
}

#[tokio::test]
async fn a_silent_worker_costs_no_more_than_the_deadline_for_the_first_event() {
    let pair = Pair::start().await;
    let proxy = pair.proxy(50, &["--first-event-timeout", "1"]).await;
    let open = in_prefill(&proxy, &pair, "new", "a").await;
    assert_saved(open, &pair.old).await;
    let lines = access(&proxy, 8, &["generation", "answered", "cause", "outcome"]).await;
    assert_eq!(lines, ["new old deadline completed"; 8]);
    for tag in 0..8 {
        let cancelled = pair.new.wait_event(&format!("cancelled a{tag}")).await;
        assert!(cancelled.ends_with(" 0"), "{cancelled}");
    }
}

#[tokio::test]
async fn an_engine_that_fails_on_new_is_recovered_on_old_but_not_the_other_way_round() {
    let pair = Pair::start().await;
    let proxy = pair.proxy(50, &[]).await;
    let prompt = "<<words=5>> <<for=new http_error=500>>";
    for way in Way::all() {
        way.assert_says(&way.ask(proxy.address, "new", prompt).await, &pair.old, 5);
    }
    proxy.recovers(&[("cause", "server_error")], 8.0).await;
    let prompt = "<<words=5>> <<for=old http_error=500>>";
    for way in Way::all() {
        let direct = way.ask(pair.old.address(), "old", prompt).await;
        let through = way.ask(proxy.address, "old", prompt).await;
        assert_eq!(
            (through.status, through.end),
            (direct.status, direct.end),
            "{way:?}"
        );
        let (through, direct) = (through.text(), direct.text());
        assert_eq!(
            crate::pair::normal(&through),
            crate::pair::normal(&direct),
            "{way:?}"
        );
        assert!(direct.contains("Internal server error"), "{direct}");
    }
    proxy.outcomes("failed", 8).await;
    proxy.recovers(&[], 8.0).await;
}
