//! The controller's live page in a real browser: its figures are the sums over all proxies, it names unreachable proxies, it
//! reconnects, and it works with a keyboard and on a small screen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::fixture::{Controller, Fixture, pods, resource};
use crate::browser::Browser;
use crate::page::{Figures, expected, figures};
use crate::rig::proxy::Metrics;
use crate::rig::*;

fn url(controller: &Controller, query: &str) -> String {
    format!("http://{}/{query}", controller.admin)
}

/// A client that reads the event stream of the page.
pub async fn reader(controller: &Controller) -> Client {
    let mut reader = Client::connect(controller.admin).await;
    reader.get("/live", &[]).await;
    assert_eq!(reader.head().await.status, 200);
    reader
}

/// The next event.
pub async fn event(reader: &mut Client) -> Value {
    let event = reader.until("\n\n").await;
    let data = event.lines().find_map(|line| line.strip_prefix("data: "));
    serde_json::from_str(data.unwrap()).unwrap()
}

/// Reads events until `condition` holds for one.
pub async fn wait_for_page_event(
    reader: &mut Client,
    mut condition: impl FnMut(&Value) -> bool,
) -> Value {
    let mut event_seen = Value::Null;
    let deadline = Instant::now() + super::fixture::PATIENCE;
    while Instant::now() < deadline {
        event_seen = event(reader).await;
        if condition(&event_seen) {
            return event_seen;
        }
    }
    panic!("no such event; last: {event_seen}");
}

/// A fixture with two proxies and an even split.
async fn fading() -> Fixture {
    let mut fixture = Fixture::with_update(json!({})).await;
    fixture.proxy("up").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    fixture
}

/// Sends the same number of requests to each proxy, some of which fail.
async fn load(fixture: &Fixture) {
    for ends in ["well", "cut", "refused"] {
        for proxy in &fixture.proxies {
            for _ in 0..4 {
                client::post(proxy.address, CHAT, &[("x-ends", ends)], STREAMING).await;
            }
        }
    }
}

/// The figures that the page must show for the metrics of these proxies.
async fn sums(proxies: &[Proxy], edit: u64) -> Figures {
    let mut text = String::new();
    let mut lines = Figures::new();
    for (i, proxy) in proxies.iter().enumerate() {
        let metrics = proxy.metrics().await;
        let one = expected(&metrics);
        let mut line = |cell: &str, text: String| {
            lines.insert(format!("proxy.old-frontend-{i}.{cell}"), text);
        };
        line("plan", format!("edit {edit}"));
        line("phase", "ready".to_owned());
        line("old", one["old.openStreams"].clone());
        line("new", one["new.openStreams"].clone());
        line("observed", one["split.observed"].clone());
        line("heard", "now".to_owned());
        text += &metrics.text;
    }
    let mut wanted = expected(&Metrics::parse(&text));
    wanted.extend(lines);
    wanted
}

/// The number of open connections to a proxy's admin port.
fn watches(proxy: &Proxy) -> usize {
    let all = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let to = format!(":{:04X}", proxy.admin.port());
    let is_one = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The remote end, and ESTABLISHED.
        fields[2].ends_with(&to) && fields[3] == "01"
    };
    all.lines().skip(1).filter(is_one).count()
}

async fn shows(browser: &mut Browser, wanted: &Figures) {
    let mut shown = Figures::new();
    let deadline = Instant::now() + super::fixture::PATIENCE;
    while Instant::now() < deadline {
        shown = figures(browser).await;
        if shown == *wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(shown, *wanted);
}

#[tokio::test]
async fn its_figures_are_the_sums_over_all_proxies_even_if_some_restart() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let mut fixture = fading().await;
    let mut controller = fixture.controller(&[]).await;
    let update = fixture.wait_for_split("up", 1, 1).await;
    let edit = update["metadata"]["generation"].as_u64().unwrap();
    for proxy in &fixture.proxies {
        eventually("both proxies have the split", async || {
            proxy
                .metrics()
                .await
                .sum("crossfade_split_ratio", &[("kind", "wanted")])
                == 0.5
        })
        .await;
    }
    // With one update, the user does not have to choose.
    browser.open(&url(&controller, "")).await;
    browser.until("#link", |text| text == "live").await;
    load(&fixture).await;
    for proxy in &fixture.proxies {
        proxy.counts("crossfade_requests_total", &[], 12.0).await;
    }
    let wanted = sums(&fixture.proxies, edit).await;
    assert_eq!(wanted["recovered"], "4");
    assert_eq!(wanted["new.truncated"], "4");
    shows(&mut browser, &wanted).await;
    let title = browser.text("#h-update").await;
    assert_eq!(title, format!("{}/up", fixture.namespace));
    assert_eq!(browser.text("#phase").await, update["status"]["phase"]);
    let message = browser.text("#message").await;
    assert!(message.starts_with("50% to new"), "{message}");
    // The page updates while requests complete, so "1 request recovered" may come first.
    browser
        .until("#log", |log| {
            log.contains("requests recovered") && log.contains("streams truncated")
        })
        .await;
    assert_eq!(browser.console_errors, [""; 0]);
    // The page opens no further connections to the proxies: it uses the controller's watch.
    for proxy in &fixture.proxies {
        eventually("one watch", async || watches(proxy) == 1).await;
    }

    // A restart of the controller does not change the proxies' counts.
    let admin = controller.admin.to_string();
    controller.kill();
    browser.until("#link", |text| text.contains("lost")).await;
    assert_eq!(browser.text("[data-figure=recovered]").await, "4");
    let controller = fixture.controller(&["--admin", &admin]).await;
    browser.until("#link", |text| text == "live").await;
    // It leads once the lease of its predecessor has expired.
    browser
        .until("#who", |text| text.contains(" · leader · "))
        .await;
    shows(&mut browser, &wanted).await;
    let log = browser.text("#log").await;
    let starts = log.matches("the controller started").count();
    assert_eq!(starts, 2, "{log}");

    // A proxy that becomes unreachable is named and excluded.
    fixture.proxies[1].signal(libc::SIGKILL);
    let of = |text: &str| text == "Proxies: 1 of 2 proxies responds";
    browser.until("#h-proxies", of).await;
    fixture.proxies.truncate(1);
    shows(&mut browser, &sums(&fixture.proxies, edit).await).await;
    let alert = browser.text("#alert").await;
    assert!(
        alert.starts_with(
            "1 proxy does not respond and is left out of all figures: old-frontend-1 ("
        ),
        "{alert}"
    );
    let line = browser.text("#proxy-table tr.silent").await;
    assert!(line.contains("does not respond, last heard"), "{line}");
    browser
        .until("#log", |text| text.contains("1 of 2 proxies responds"))
        .await;
    browser.emulate_screen(360, "light").await;
    browser.picture("controller-silent").await;
    drop(controller);
}

#[tokio::test]
async fn it_fits_a_phone_in_light_and_dark_and_an_update_is_chosen_by_keyboard() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let fixture = fading().await;
    fixture
        .update("waits", json!({"sourceDeployment": "elsewhere"}))
        .await;
    let controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 1, 1).await;
    load(&fixture).await;
    browser.open(&url(&controller, "")).await;
    // With several updates, nothing is shown until the user chooses one.
    let list = browser
        .until("#list", |text| {
            text.contains("/waits") && text.contains("50.0%")
        })
        .await;
    assert!(
        list.contains("Progressing") || list.contains("Pending"),
        "{list}"
    );
    assert_eq!(browser.text("#h-update").await, "");
    browser.emulate_screen(360, "light").await;
    browser.picture("controller-list").await;
    let link = "document.activeElement?.textContent ?? ''";
    let wanted = format!("{}/up", fixture.namespace);
    for _ in 0..5 {
        browser.press("Tab", 9).await;
        if browser.value(link).await == json!(wanted) {
            break;
        }
    }
    assert_eq!(browser.value(link).await, json!(wanted));
    browser.press("Enter", 13).await;
    browser.until("#h-update", |text| text == wanted).await;
    let query = browser.value("location.search").await;
    assert_eq!(query, json!(format!("?update={wanted}")));
    browser
        .until("#h-proxies", |text| text.contains("2 of 2"))
        .await;
    browser
        .until("[data-figure='new.truncated']", |text| text == "4")
        .await;
    let stretched = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
    for (width, scheme) in [
        (360, "light"),
        (360, "dark"),
        (1100, "light"),
        (1100, "dark"),
    ] {
        browser.emulate_screen(width, scheme).await;
        browser
            .open(&url(&controller, &format!("?update={wanted}")))
            .await;
        browser.until("#log", |text| !text.is_empty()).await;
        browser
            .until("#h-proxies", |text| text.contains("2 of 2"))
            .await;
        assert_eq!(browser.value(stretched).await, 0, "{width} {scheme}");
        browser
            .picture(&format!("controller-{width}-{scheme}"))
            .await;
    }
    let mute = "[...document.querySelectorAll('.chart svg')].filter((svg) => !svg.getAttribute('aria-label')).length";
    assert_eq!(browser.value(mute).await, 0);
    assert_eq!(browser.console_errors, [""; 0]);
}

#[tokio::test]
async fn a_request_for_something_missing_says_so() {
    let fixture = Fixture::with_update(json!({})).await;
    let controller = fixture.controller(&[]).await;
    eventually("it has seen the updates", async || {
        controller.page("/readyz").await == 200
    })
    .await;
    let get = async |path: &str| client::get(controller.admin, path).await;
    let unknown = get(&format!("/live?update={}/nothing", fixture.namespace)).await;
    assert_eq!(unknown.status, 404);
    let why = format!("there is no update {}/nothing", fixture.namespace);
    assert_eq!(unknown.text().trim_end(), why);
    for wrong in ["?update=up", "?update=a/b&more=1", "?update=<b>/a"] {
        let answer = get(&format!(
            "/live{}",
            wrong.replace('<', "%3C").replace('>', "%3E")
        ))
        .await;
        assert_eq!(answer.status, 400, "{wrong}");
        assert!(answer.text().contains("?update=NAMESPACE/NAME"), "{wrong}");
    }
    for path in ["/", "/live", "/metrics", "/livez", "/readyz"] {
        let answer = client::post(controller.admin, path, &[], "").await;
        assert_eq!(answer.status, 405, "{path}");
        assert_eq!(answer.header("allow"), Some("GET,HEAD"), "{path}");
    }
    assert_eq!(controller.page("/plan").await, 404);
    let mut browsing = Client::connect(controller.admin).await;
    browsing.get("/", &[("accept", "text/html")]).await;
    let head = browsing.head().await;
    let policy = head.headers.get("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'sha256-"),
        "{policy}"
    );

    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let nothing = format!("?update={}/nothing", fixture.namespace);
    browser.open(&url(&controller, &nothing)).await;
    browser.until("#why", |text| text == why).await;
    assert!(browser.text("#link").await.starts_with("rejected"));
    // The page waits for the update and shows it once it exists.
    fixture
        .update("nothing", json!({"sourceDeployment": "elsewhere"}))
        .await;
    browser
        .until("#h-update", |text| text.ends_with("/nothing"))
        .await;
    assert_eq!(browser.text("#why").await, why);
    assert_eq!(
        browser
            .value("document.getElementById('refusal').hidden")
            .await,
        true
    );
    let open = "document.querySelector('#refusal a').href";
    let address = browser.value(open).await;
    assert_eq!(address, json!(url(&controller, "")));
}

/// A standby replica does not connect to proxies unless a user opens its page.
#[tokio::test]
async fn a_standby_replica_queries_the_proxies_only_while_its_page_is_open() {
    let fixture = Fixture::start().await;
    let leases = resource("coordination.k8s.io", "v1", "Lease", "leases");
    let spec = json!({
        "holderIdentity": "another-pod_1_1700000000000", "leaseDurationSeconds": 3600,
        "renewTime": "2026-01-01T00:00:00.000000Z", "acquireTime": "2026-01-01T00:00:00.000000Z",
    });
    fixture
        .create(&leases, "crossfade-controller", json!({"spec": spec}))
        .await;
    fixture.update("up", json!({})).await;
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ports = json!([{"name": "crossfade", "containerPort": proxy.local_addr().unwrap().port()}]);
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
    });
    fixture.pod("old-frontend-0", labels, ports).await;
    fixture.pod_ready("old-frontend-0", true).await;
    let (asks, mut asked) = watch::channel(0);
    tokio::spawn(async move {
        while let Ok((stream, _)) = proxy.accept().await {
            asks.send_modify(|asked| *asked += 1);
            drop(stream);
        }
    });
    let controller = fixture.controller(&[]).await;
    eventually("it has seen the updates", async || {
        controller.page("/readyz").await == 200
    })
    .await;
    assert_eq!(*asked.borrow(), 0, "before the page was opened");
    let mut reader = reader(&controller).await;
    wait_for_page_event(&mut reader, |event_seen| {
        let (controller, proxy) = (&event_seen["controller"], &event_seen["proxies"][0]);
        controller["role"] == "standby"
            && controller["leader"] == "another-pod"
            && proxy["answers"] == false
            && proxy["silence"].is_string()
    })
    .await;
    assert!(*asked.borrow_and_update() > 0);
    drop(reader);
    eventually("no proxy is queried", async || {
        let asking = asked.changed();
        let next = tokio::time::timeout(Duration::from_secs(3), asking).await;
        next.is_err()
    })
    .await;
}

#[tokio::test]
async fn it_has_a_table_of_rollouts() {
    let Some(mut browser) = Browser::start().await else {
        return;
    };
    let fixture = Fixture::start().await;
    let rollouts = resource("nvidia.com", "v1alpha1", "DynamoRollout", "dynamorollouts");
    let spec = json!({
        "source": {"kind": "Deployment", "name": "v1"}, "target": {"kind": "Deployment", "name": "v2"},
        "frontends": {"source": "old", "target": "new", "service": "new"}, "clientService": "clients",
    });
    for name in ["chat", "embed"] {
        fixture
            .create(&rollouts, name, json!({ "spec": spec }))
            .await;
    }
    let controller = fixture.controller(&["--rollouts"]).await;
    let refused = |object: &Value| object["status"]["phase"] == "Refused";
    for name in ["chat", "embed"] {
        eventually("it is refused", async || {
            let object = fixture.api(&rollouts).get(name).await.unwrap();
            refused(&serde_json::to_value(object).unwrap())
        })
        .await;
    }
    // The details of a started rollout stay when it cannot continue.
    let generation = |frontends: &str| json!({"roles": {}, "frontends": frontends});
    let status = json!({
        "phase": "Progressing", "step": {"old": 3, "new": 1, "next": 4}, "gpus": {"used": 40, "peak": 40},
        "split": {"percent": 25}, "analysis": {"verdict": "Inconclusive", "message": "too few requests"},
        "accepted": {
            "at": "2026-01-01T00:00:00Z", "units": 4, "source": generation("old"), "target": generation("new"), "service": "new:8000",
        },
        "source": {"workers": "3/3"}, "target": {"workers": "0/1"},
    });
    fixture.status(&rollouts, "chat", status).await;
    browser.emulate_screen(1100, "light").await;
    browser.open(&url(&controller, "")).await;
    browser
        .until("#h-rollouts", |text| text == "2 rollouts")
        .await;
    let shown = browser
        .until("#rollout-table", |text| {
            text.contains("there is no Deployment v1") && text.contains("1 of 4, next 4")
        })
        .await;
    for part in ["chat", "embed", "Refused", "waiting for", "3/3", "25% new"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    browser.picture("controller-rollouts").await;
}

/// Not a test: creates the screenshot `docs/controller-page.png`.
#[tokio::test]
#[ignore = "takes minutes: draws a fade for the documentation"]
async fn a_screenshot_of_an_update() {
    let mut browser = Browser::start().await.unwrap();
    let mut fixture = Fixture::with_update(json!({})).await;
    fixture.proxy("up").await;
    let controller = fixture.controller(&[]).await;
    let new_refuses = Arc::new(AtomicBool::new(false));
    for client in 0..24 {
        let address = fixture.proxies[client % 2].address;
        let new_refuses = Arc::clone(&new_refuses);
        tokio::spawn(async move {
            loop {
                let ends = match new_refuses.load(Ordering::Relaxed) {
                    true => "late, refused by new",
                    false => "late",
                };
                client::post(address, CHAT, &[("x-ends", ends)], STREAMING).await;
            }
        });
    }
    // The screenshot shows a history, so these pauses must be fixed.
    let pause = async |seconds| tokio::time::sleep(Duration::from_secs(seconds)).await;
    for i in 0..4 {
        pause(20).await;
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 1, 1).await;
    pause(20).await;
    // The model list is still served, so that only the proxies notice the failure.
    new_refuses.store(true, Ordering::Relaxed);
    pause(3).await;
    new_refuses.store(false, Ordering::Relaxed);
    pause(17).await;
    for i in 0..2 {
        fixture.delete(&pods(), &format!("old-worker-{i}")).await;
        pause(20).await;
    }
    browser.emulate_screen(1100, "light").await;
    browser.open(&url(&controller, "")).await;
    browser
        .until("#log", |text| text.contains("recovered"))
        .await;
    browser.picture("controller-page").await;
}
