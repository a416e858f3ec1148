//! What a frontend is asked before it gets a share, and how it is reached.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, PATIENCE};
use crate::rig::tls::Authority;
use crate::rig::*;

/// A frontend of before there was `/v1/models/{m}/ready`: it lists its model, and answers requests while it `serves`.
fn older(serves: Arc<AtomicBool>) -> impl Fn(&Received) -> Script + Send + Sync + 'static {
    move |received| match received.target.as_str() {
        MODELS => models(&["tiny"]),
        CHAT if serves.load(Ordering::Relaxed) => unary("new"),
        CHAT | COMPLETIONS => status(503),
        _ => empty_404(),
    }
}

#[tokio::test]
async fn an_older_frontend_gets_its_share_once_it_answers_a_request_of_one_token() {
    let serves = Arc::new(AtomicBool::new(false));
    let mut fixture = Fixture::set().await;
    fixture.new = Upstream::start(older(Arc::clone(&serves))).await;
    fixture.begin(json!({})).await;
    let controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    let is_told = |object: &Value| {
        let said = object["status"]["message"].as_str().unwrap_or_default();
        said.contains("it does not serve the model tiny")
    };
    fixture.until("up", "told", is_told).await;
    fixture.keeps(&controller, "up", 0).await;
    serves.store(true, Ordering::Relaxed);
    fixture.splits("up", 4, 1).await;
    let asked = fixture.new.requests();
    let probe = asked.iter().rfind(|asked| asked.target == CHAT).unwrap();
    let body: Value = serde_json::from_slice(&probe.body()).unwrap();
    assert_eq!(
        (&body["model"], &body["max_tokens"]),
        (&json!("tiny"), &json!(1))
    );
    // It is proven: not every question costs a token.
    let probes = |asked: &[Arc<Received>]| asked.iter().filter(|one| one.target == CHAT).count();
    let before = (probes(&asked), asked.len());
    eventually("it was asked some times more", async || {
        fixture.new.requests().len() >= before.1 + 4
    })
    .await;
    assert_eq!(probes(&fixture.new.requests()), before.0);
}

#[tokio::test]
async fn the_files_of_tls_must_be_at_the_controller_and_are_read_again_when_they_change() {
    let (own, other) = (Authority::new(), Authority::new());
    let server = own.server(&own.issue("new"), &["http/1.1"], false);
    let mut fixture = Fixture::set().await;
    let serves = |received: &Received| match received.target.as_str() {
        MODELS => models(&["tiny"]),
        "/v1/models/tiny/ready" => Script::new().json(200, "{}"),
        _ => status(503),
    };
    fixture.new = Upstream::listen("127.0.0.1:0", Some(server), serves).await;
    let https = format!("https://{}", fixture.new.address);
    let trusting = |file: &str| json!({"newFrontendService": https, "tls": {"caFile": file}});
    fixture.begin(trusting(&other.file())).await;
    let _controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    let says = |text: &'static str| {
        move |object: &Value| {
            let said = object["status"]["message"].as_str().unwrap_or_default();
            said.contains(text)
        }
    };
    // Another's certificate: it is not even asked, and that is told.
    let object = fixture
        .until("up", "distrusted", says("invalid peer certificate"))
        .await;
    assert!(says("cannot be queried for models")(&object), "{object}");
    fixture.edit("up", trusting("/nowhere/ca.pem")).await;
    let object = fixture
        .until("up", "told", says("cannot read /nowhere/ca.pem"))
        .await;
    assert_eq!(object["status"]["phase"], "Pending");
    assert!(
        says("whose files the controller's pods must have, too")(&object),
        "{object}"
    );
    fixture.edit("up", trusting(&own.file())).await;
    fixture.splits("up", 4, 1).await;
    // As a tool that renews certificates does.
    let own_certificate = std::fs::read(own.file()).unwrap();
    std::fs::copy(other.file(), own.file()).unwrap();
    fixture.splits("up", 1, 0).await;
    std::fs::write(own.file(), own_certificate).unwrap();
    fixture.splits("up", 4, 1).await;
}

/// Frontends of a namespace that list 20,000 models, say of none whether it is ready, and answer no request.
async fn hoard() -> Upstream {
    let ids: Vec<_> = (0..20_000)
        .map(|i| json!({"id": format!("m{i}")}))
        .collect();
    let list = json!({"data": ids}).to_string();
    Upstream::start(move |received| match received.target.as_str() {
        MODELS => Script::new().json(200, &list),
        CHAT | COMPLETIONS => Script::new().pause(600_000),
        _ => empty_404(),
    })
    .await
}

#[tokio::test]
async fn a_namespace_with_20000_models_takes_nothing_from_another() {
    let server = tokio::task::spawn_blocking(super::fixture::new_server).await;
    let server = server.unwrap();
    let mut greedy = Fixture::on(&server).await;
    greedy.new = hoard().await;
    let mut other = Fixture::on(&server).await;
    other.begin(json!({})).await;
    other.worker("new", 0, "worker").await;
    let args = [
        "--all-namespaces",
        "--lease-namespace",
        &other.namespace,
        "--allow-any-target",
    ];
    let controller = Controller::start(&other.kubeconfig, &args).await;
    other.splits("up", 4, 1).await;
    let before = (controller.memory(), controller.descriptors());
    greedy.begin(json!({})).await;
    greedy.worker("new", 0, "worker").await;
    let tried = || {
        let asked = greedy.new.requests();
        asked.iter().filter(|asked| asked.target == CHAT).count()
    };
    let mut most = before;
    let deadline = Instant::now() + PATIENCE;
    while tried() == 0 {
        assert!(Instant::now() < deadline, "no model is tried");
        most.0 = most.0.max(controller.memory());
        most.1 = most.1.max(controller.descriptors());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..40 {
        most.0 = most.0.max(controller.memory());
        most.1 = most.1.max(controller.descriptors());
        let object = other.get("up").await;
        assert_eq!(object["spec"]["trafficSplitPercent"], 20, "{object}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let more = (most.0 - before.0, most.1 - before.1);
    eprintln!("{} KiB and {} descriptors more", more.0, more.1);
    assert!(more.0 < 64 * 1024, "{} KiB more", more.0);
    assert!(more.1 < 100, "{} descriptors more", more.1);
    // It still follows.
    other.worker("new", 1, "worker").await;
    other.splits("up", 2, 1).await;
}

#[tokio::test]
async fn who_has_no_descriptor_left_to_ask_with_takes_nothing_away() {
    let fixture = Fixture::begun(json!({})).await;
    let controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.splits("up", 4, 1).await;
    // Connections that are kept serve on for a while, and no other can be made.
    let usual = controller.limit_descriptors(3);
    let object = fixture
        .until("up", "told", |object| {
            let mut conditions = object["status"]["conditions"].as_array().unwrap().iter();
            conditions.any(|told| {
                let said = told["message"].as_str().unwrap();
                told["reason"] == "NoAnswer" && said.contains("Too many open files")
            })
        })
        .await;
    assert_eq!(object["spec"]["trafficSplitPercent"], 20, "{object}");
    controller.limit_descriptors(usual);
    fixture.worker("new", 1, "worker").await;
    fixture.splits("up", 2, 1).await;
}

/// Questions about models that came so far, but for requests of a token.
fn asked(frontend: &Upstream) -> Vec<Arc<Received>> {
    let mut asked = frontend.requests();
    asked.retain(|one| one.target.starts_with(MODELS));
    asked
}

#[tokio::test]
async fn a_frontend_is_asked_on_one_connection_and_seldom_once_the_update_is_complete() {
    let fixture = Fixture::begun(json!({})).await;
    let controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.splits("up", 4, 1).await;
    let before = asked(&fixture.new).len();
    eventually("it was asked some times more", async || {
        asked(&fixture.new).len() >= before + 12
    })
    .await;
    let asked_then = asked(&fixture.new);
    let connections: BTreeSet<_> = asked_then[before..]
        .iter()
        .map(|one| one.connection)
        .collect();
    // One, or two where the first has been kept for long enough.
    assert!(connections.len() <= 2, "{connections:?}");

    fixture.delete_old_workers().await;
    let is_complete = |object: &Value| object["status"]["phase"] == "Complete";
    fixture.until("up", "complete", is_complete).await;
    // It is looked at every five seconds all the same: twice in a time in which it would have been asked ten times.
    let looks = async || {
        let metrics = controller.metrics().await;
        metrics.sum("crossfade_controller_reconciles_total", &[])
    };
    let patience = Instant::now() + PATIENCE;
    let looked = async |more: f64| {
        let before = looks().await;
        while looks().await < before + more {
            assert!(Instant::now() < patience, "it is not looked at");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    looked(1.0).await;
    let (begun, before) = (Instant::now(), asked(&fixture.new).len());
    looked(3.0).await;
    // Two questions each time.
    let seldom = asked(&fixture.new).len() - before;
    let usual = usize::try_from(begun.elapsed().as_secs()).unwrap() * 2;
    assert!(
        seldom <= 4 && seldom * 2 < usual,
        "{seldom} instead of {usual}"
    );

    // Whoever may still send to old ends it at once: that was never a matter of these questions.
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
    });
    fixture.pod("old-frontend-late", labels, json!([])).await;
    fixture.pod_ready("old-frontend-late", true).await;
    fixture
        .until("up", "no longer complete", |object| !is_complete(object))
        .await;
    let before = asked(&fixture.new).len();
    eventually("it is asked as often as before", async || {
        asked(&fixture.new).len() >= before + 8
    })
    .await;
}

/// A frontend that closes each connection after its answer without a word.
fn curt(received: &Received) -> Script {
    match received.target.as_str() {
        MODELS => models(&["tiny"]).eof(),
        "/v1/models/tiny/ready" => Script::new().json(200, "{}").eof(),
        _ => status(503),
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_says_nothing_against_a_frontend() {
    let mut fixture = Fixture::set().await;
    fixture.new = Upstream::start(curt).await;
    fixture.begin(json!({})).await;
    let controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.splits("up", 4, 1).await;
    let before = asked(&fixture.new).len();
    eventually("it was asked some times more", async || {
        asked(&fixture.new).len() >= before + 10
    })
    .await;
    fixture.keeps(&controller, "up", 20).await;
}
