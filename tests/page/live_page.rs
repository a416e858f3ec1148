//! The proxy's live page in a real browser: its figures equal the metrics, it reconnects, and it shows no request data.

use std::time::Duration;

use crate::browser::Browser;
use crate::page::{expected, figures};
use crate::rig::wait::eventually;
use crate::rig::*;
use serde_json::Value;

const SECRET: &str = "sk-nobody-may-read-this";

fn url(proxy: &Proxy) -> String {
    format!("http://{}/", proxy.admin)
}

#[tokio::test]
async fn its_figures_are_those_of_the_metrics() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(|request: &Received| match request.header("x-ends") {
        Some("cut") => Script::new()
            .sse()
            .events(&role("new"))
            .events(&content("new", 0))
            .reset(),
        Some("refused") => status(503),
        _ => chat_stream("new"),
    })
    .await;
    let proxy = Proxy::split(&old, &new, 50).await;
    browser.open(&url(&proxy)).await;
    browser.until("#link", |text| text == "live").await;
    for ending in ["well", "cut", "refused"] {
        for _ in 0..4 {
            client::post(proxy.address, CHAT, &[("x-ends", ending)], STREAMING).await;
        }
    }
    proxy.counts("crossfade_requests_total", &[], 12.0).await;
    let metrics = proxy.metrics().await;
    // The sum of no series is -0.0, which is the same as 0.
    let sum = |name: &str, labels: &[(&str, &str)]| metrics.sum(name, labels) + 0.0;
    let recovered = sum("crossfade_recovered_requests_total", &[]);
    assert_eq!(recovered, 2.0);
    browser
        .until("[data-figure=recovered]", |text| text == "2")
        .await;
    browser
        .until("[data-figure='new.truncated']", |text| text == "2")
        .await;

    let mut wanted = expected(&metrics);
    assert_eq!(wanted["recovered.unavailable"], "2");
    let plan = [
        ("epoch", "crossfade_plan_epoch"),
        ("refused", "crossfade_plans_rejected_total"),
    ];
    for (figure, name) in plan {
        wanted.insert(format!("plan.{figure}"), sum(name, &[]).to_string());
    }
    assert_eq!(figures(&mut browser).await, wanted);
    assert_eq!(browser.console_errors, [""; 0]);
}

#[tokio::test]
async fn it_shows_the_state_in_one_line_then_rates_and_totals_only_on_demand() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(|request: &Received| match request.header("x-ends") {
        Some("cut") => Script::new()
            .sse()
            .events(&role("new"))
            .events(&content("new", 0))
            .reset(),
        _ => chat_stream("new"),
    })
    .await;
    let proxy = Proxy::split(&old, &new, 50).await;
    browser.open(&url(&proxy)).await;
    browser.until("#link", |text| text == "live").await;
    let says = |begins: &'static str| move |text: &str| text.starts_with(begins);
    browser
        .until(
            "#assessment",
            says("New gets 50.0% of the requests. No requests ended"),
        )
        .await;
    // It is the first visible element.
    let shown =
        "[...document.querySelectorAll('main > *')].find((part) => part.checkVisibility()).id";
    assert_eq!(browser.value(shown).await, "assessment");
    let send = async |ending: &str, count: u32| {
        for _ in 0..count {
            client::post(proxy.address, CHAT, &[("x-ends", ending)], STREAMING).await;
        }
    };
    send("well", 120).await;
    browser
        .until(
            "#assessment",
            says("New gets 50.0% of the requests. Not enough data: "),
        )
        .await;
    for generation in ["old", "new"] {
        let rate = format!("[data-recent='{generation}.lastMinute.requests']");
        browser
            .until(&rate, |text| text.parse().is_ok_and(|rate: f64| rate > 0.0))
            .await;
        let errors = format!("[data-recent='{generation}.lastMinute.errors']");
        browser.until(&errors, |text| text == "0.0%").await;
    }
    send("cut", 40).await;
    browser
        .until("#assessment", says("New fails more requests than old: "))
        .await;
    assert_eq!(
        browser
            .value("document.querySelector('#assessment').className")
            .await,
        "wide attention"
    );
    browser
        .until("[data-recent='new.lastMinute.errors']", |text| {
            text == "25.0%"
        })
        .await;
    // The totals since the start are visible once opened.
    let totals = "document.querySelector('#since-start').open";
    let is_seen = "document.querySelector('#totals').checkVisibility()";
    assert_eq!(browser.value(totals).await, false);
    assert_eq!(browser.value(is_seen).await, false);
    browser
        .value("document.querySelector('#since-start summary').click()")
        .await;
    assert_eq!(browser.value(is_seen).await, true);
}

#[tokio::test]
async fn it_shows_the_streams_that_are_to_move_off_old_until_they_have() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let old = Counting::new("old", 20).breaking(5, Script::hang);
    let old = Upstream::start(old.handler()).await;
    let new = Upstream::start(Counting::new("new", 20).handler()).await;
    let plan = |[old, new_weight]: [u32; 2], seconds: u32| {
        let more = format!(
            "failover: {{continuation: {{mode: AnyGeneration}}}}\ndrain: {{moveAfterSeconds: {seconds}}}"
        );
        manifest(&new.url(), old, new_weight, &more)
    };
    let file = PlanFile::new(&plan([1, 0], 3600));
    let proxy = Proxy::planned(&old, &file, &[]).await;
    let labels = [("generation", "new"), ("state", "supported")];
    proxy
        .counts("crossfade_continuation_capability", &labels, 1.0)
        .await;
    let mut client = client::open_chat(proxy.address).await;
    let head = client.head().await;
    browser.open(&url(&proxy)).await;
    browser.until("#link", |text| text == "live").await;
    browser
        .until("[data-figure=moving]", |text| text == "0")
        .await;
    file.write(&plan([0, 1], 3600));
    browser
        .until("[data-figure=moving]", |text| text == "1")
        .await;
    file.write(&plan([0, 1], 0));
    let response = client.rest(head).await;
    assert_eq!(response.end, End::Clean, "{}", response.text());
    browser
        .until("[data-figure=moving]", |text| text == "0")
        .await;
    browser
        .until("[data-figure='continued.planned_move']", |text| text == "1")
        .await;
    assert_eq!(browser.console_errors, [""; 0]);
}

#[tokio::test]
async fn with_an_analysis_it_shows_the_verdict_first() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(|request: &Received| match request.header("x-ends") {
        Some("refused") => status(500),
        _ => chat_stream("new"),
    })
    .await;
    let analysis = "analysis: {warmupSeconds: 0, minSamples: 20, ttftP95Ratio: 100, gapP99Ratio: 100, onFailure: RollBack}";
    let plan = PlanFile::new(&manifest(&new.url(), 1, 1, analysis));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    browser.open(&url(&proxy)).await;
    for (ending, requests, says, level) in [
        (
            "well",
            0,
            "It is not yet known whether new is good enough: No requests were received",
            "notEnoughData",
        ),
        (
            "well",
            4,
            "New is good enough: New is within the margins. New gets 50.0% of the requests.",
            "good",
        ),
        (
            "refused",
            4,
            "New has failed and was rolled back: New fails ",
            "attention",
        ),
    ] {
        until(says, async || {
            for _ in 0..requests {
                client::post(proxy.address, CHAT, &[("x-ends", ending)], STREAMING).await;
            }
            let text = browser.text("#assessment").await;
            text.starts_with(says).then_some(())
        })
        .await;
        let class = browser
            .value("document.querySelector('#assessment').className")
            .await;
        assert_eq!(class, format!("wide {level}"));
        browser.picture(&format!("verdict-{level}")).await;
    }
    assert_eq!(browser.console_errors, [""; 0]);
}

#[tokio::test]
async fn a_page_that_is_opened_late_shows_earlier_events() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let plan = PlanFile::new(&manifest(&new.url(), 1, 0, ""));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    let samples = async |proxy: &Proxy| {
        let mut client = Client::connect(proxy.admin).await;
        client.get("/live", &[("host", "localhost")]).await;
        client.head().await;
        let event = client.until("\n\n").await;
        let data = event.lines().find_map(|line| line.strip_prefix("data: "));
        let event: Value = serde_json::from_str(data.unwrap()).unwrap();
        event["samples"].as_array().unwrap().clone()
    };
    eventually("a sample of the first plan", async || {
        !samples(&proxy).await.is_empty()
    })
    .await;
    plan.write(&manifest(&new.url(), 3, 1, ""));
    eventually("a sample of the second plan", async || {
        samples(&proxy).await.last().unwrap()["plan"] == 2
    })
    .await;
    browser.open(&url(&proxy)).await;
    let log = browser.until("#log", |text| text.contains("plan 2")).await;
    assert!(log.contains("plan 2 in force: 25.0% to new"), "{log}");
    assert!(log.contains("the process started"), "{log}");
}

#[tokio::test]
async fn while_the_split_changes_the_wanted_share_is_also_shown_over_the_seconds_of_the_observed_one()
 {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let plan = PlanFile::new(&manifest(&new.url(), 1, 0, ""));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    browser.open(&url(&proxy)).await;
    let lately = async |browser: &mut Browser, is: fn(f64) -> bool| {
        eventually("the share of the last minute", async || {
            proxy.chat().await;
            let text = browser.text("#share-recent").await;
            let share = text.strip_suffix("%").and_then(|text| text.parse().ok());
            share.is_some_and(is)
        })
        .await;
    };
    lately(&mut browser, |share| share == 0.0).await;
    plan.write(&manifest(&new.url(), 0, 1, ""));
    lately(&mut browser, |share| 0.0 < share && share < 100.0).await;
    let now = browser.text("[data-figure='split.wanted']").await;
    assert_eq!(now, "100.0%");
}

#[tokio::test]
async fn it_comes_back_after_a_restart_of_the_proxy() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let mut proxy = Proxy::before(&old, &[]).await;
    let admin = proxy.admin.to_string();
    proxy.chat().await;
    browser.open(&url(&proxy)).await;
    browser
        .until("[data-figure='old.completed']", |text| text == "1")
        .await;
    proxy.terminate();
    assert_eq!(proxy.end().await, Some(0));
    browser.until("#link", |text| text.contains("lost")).await;
    // Earlier events stay visible.
    assert_eq!(browser.text("[data-figure='old.completed']").await, "1");
    let again = Proxy::before(&old, &["--admin", &admin]).await;
    for _ in 0..3 {
        again.chat().await;
    }
    browser.until("#link", |text| text == "live").await;
    browser
        .until("[data-figure='old.completed']", |text| text == "3")
        .await;
    let log = browser.text("#log").await;
    assert_eq!(log.matches("the process started").count(), 2, "{log}");
}

#[tokio::test]
async fn it_contains_no_data_of_requests() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let body = STREAMING.replace("hello", SECRET);
    let path = format!("{CHAT}?key={SECRET}");
    let headers = [
        ("authorization", SECRET),
        ("x-session-id", SECRET),
        ("user-agent", SECRET),
    ];
    client::post(proxy.address, &path, &headers, &body).await;
    browser.open(&url(&proxy)).await;
    browser
        .until("[data-figure='old.completed']", |text| text == "1")
        .await;
    let page = browser.value("document.documentElement.outerHTML").await;
    assert!(!page.as_str().unwrap().contains(SECRET));
    let mut live = Client::connect(proxy.admin).await;
    live.get("/live", &[("host", "localhost")]).await;
    live.head().await;
    assert!(!live.until("\n\n").await.contains(SECRET));
}

#[tokio::test]
async fn it_fits_a_phone_and_works_without_a_mouse() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 50).await;
    proxy.chat().await;
    for scheme in ["light", "dark"] {
        browser.emulate_screen(360, scheme).await;
        browser.open(&url(&proxy)).await;
        browser.until("#link", |text| text == "live").await;
        let overflow =
            "document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(browser.value(overflow).await, 0, "{scheme}");
        browser.picture(&format!("proxy-360-{scheme}")).await;
    }
    browser.until("#log", |text| text.contains("started")).await;
    eventually("some samples", async || {
        browser
            .value("Number(document.getElementById('time').max)")
            .await
            .as_u64()
            >= Some(2)
    })
    .await;
    browser
        .value("document.getElementById('time').focus()")
        .await;
    browser.press("Home", 36).await;
    assert_eq!(
        browser.value("document.getElementById('time').value").await,
        "0"
    );
    let labels_match = "document.getElementById('time').getAttribute('aria-valuetext') === document.getElementById('reading').textContent";
    assert_eq!(browser.value(labels_match).await, true);
    // Every image has a text alternative, and every control has a name.
    let mute = "[...document.querySelectorAll('.chart svg')].filter((svg) => !svg.getAttribute('aria-label')).length";
    assert_eq!(browser.value(mute).await, 0);
    assert_eq!(browser.console_errors, [""; 0]);
}

#[tokio::test]
async fn its_content_security_policy_allows_nothing_else_and_text_is_escaped() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let mut client = Client::connect(proxy.admin).await;
    client
        .get(
            "/",
            &[("host", "localhost"), ("accept", "text/html,*/*;q=0.8")],
        )
        .await;
    let head = client.head().await;
    let policy = head.headers.get("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'sha256-"),
        "{policy}"
    );
    for open in ["unsafe", "*", "http:", "https:"] {
        assert!(!policy.contains(open), "{policy}");
    }
    assert_eq!(head.headers.get("cache-control"), Some("no-store"));
    let text = proxy.admin("/").await;
    assert_eq!(
        text.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
}

#[tokio::test]
async fn other_web_pages_on_this_machine_cannot_drain_the_proxy() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    for path in ["/drain", "/log-level"] {
        let mut client = Client::connect(proxy.admin).await;
        let request = format!(
            "PUT {path} HTTP/1.1\r\nhost: a\r\norigin: http://{}\r\ncontent-length: 0\r\n\r\n",
            proxy.admin
        );
        client.send(request).await;
        assert_eq!(client.head().await.status, 403, "{path}");
    }
    assert_eq!(proxy.admin("/readyz").await.status, 200);
}

/// Not a test: creates the screenshot whose upper part is `docs/live-page.png`.
#[tokio::test]
#[ignore = "takes a minute: draws the demo for the documentation"]
async fn a_picture_of_the_demo() {
    let mut browser = Browser::start().await.unwrap();
    let mut demo = crate::rig::proxy::program();
    let mut demo = demo
        .args(["demo", "--plain"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(demo.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(lines);
    let first = lines.next().unwrap().unwrap();
    let (_, page) = first.split_once("live page ").expect(&first);
    std::thread::spawn(move || lines.for_each(drop));
    browser.open(page).await;
    // The screenshot must show the history of the demo at a fixed time, shortly before its end.
    tokio::time::sleep(Duration::from_secs(48)).await;
    browser.emulate_screen(1100, "light").await;
    // The charts are redrawn with the next state, once per second. The page does not show when.
    tokio::time::sleep(Duration::from_secs(2)).await;
    browser.picture("live-page").await;
    demo.kill().unwrap();
    demo.wait().unwrap();
}
