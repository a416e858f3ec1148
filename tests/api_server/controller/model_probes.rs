//! How the controller probes a frontend for its models before it gives new a share, and which connections it uses.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, PATIENCE};
use crate::rig::tls::Authority;
use crate::rig::*;

/// A frontend without `/v1/models/{m}/ready`: it lists its model, and serves requests while `serves` is set.
fn older(serves: Arc<AtomicBool>) -> impl Fn(&Received) -> Script + Send + Sync + 'static {
    move |received| match received.target.as_str() {
        MODELS => models(&["tiny"]),
        CHAT if serves.load(Ordering::Relaxed) => unary("new"),
        CHAT | COMPLETIONS => status(503),
        _ => empty_404(),
    }
}

#[tokio::test]
async fn an_older_frontend_gets_its_share_once_it_serves_a_request_for_one_token() {
    let serves = Arc::new(AtomicBool::new(false));
    let mut fixture = Fixture::start().await;
    fixture.new = Upstream::start(older(Arc::clone(&serves))).await;
    fixture.begin(json!({})).await;
    let controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    let is_reported = |object: &Value| {
        let message = object["status"]["message"].as_str().unwrap_or_default();
        message.contains("it does not serve the model tiny")
    };
    fixture
        .until("up", "the status reports it", is_reported)
        .await;
    fixture.keeps(&controller, "up", 0).await;
    serves.store(true, Ordering::Relaxed);
    fixture.wait_for_split("up", 4, 1).await;
    let asked = fixture.new.requests();
    let probe = asked.iter().rfind(|asked| asked.target == CHAT).unwrap();
    let body: Value = serde_json::from_slice(&probe.body()).unwrap();
    assert_eq!(
        (&body["model"], &body["max_tokens"]),
        (&json!("tiny"), &json!(1))
    );
    // Once proven, not every probe costs a token.
    let probes = |asked: &[Arc<Received>]| asked.iter().filter(|one| one.target == CHAT).count();
    let before = (probes(&asked), asked.len());
    eventually("it was probed again", async || {
        fixture.new.requests().len() >= before.1 + 4
    })
    .await;
    assert_eq!(probes(&fixture.new.requests()), before.0);
}

#[tokio::test]
async fn tls_files_must_exist_at_the_controller_and_are_reloaded_when_they_change() {
    let (own, other) = (Authority::new(), Authority::new());
    let server = own.server(&own.issue("new"), &["http/1.1"], false);
    let mut fixture = Fixture::start().await;
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
            let message = object["status"]["message"].as_str().unwrap_or_default();
            message.contains(text)
        }
    };
    // With another certificate, the frontend is not probed, and the status says why.
    let object = fixture
        .until("up", "distrusted", says("invalid peer certificate"))
        .await;
    assert!(says("cannot be queried for models")(&object), "{object}");
    fixture.edit("up", trusting("/nowhere/ca.pem")).await;
    let object = fixture
        .until(
            "up",
            "the status reports it",
            says("cannot read /nowhere/ca.pem"),
        )
        .await;
    assert_eq!(object["status"]["phase"], "Pending");
    assert!(
        says("the controller's pods need these files, too")(&object),
        "{object}"
    );
    fixture.edit("up", trusting(&own.file())).await;
    fixture.wait_for_split("up", 4, 1).await;
    // Replaced as by a tool that renews certificates.
    let own_certificate = std::fs::read(own.file()).unwrap();
    std::fs::copy(other.file(), own.file()).unwrap();
    fixture.wait_for_split("up", 1, 0).await;
    std::fs::write(own.file(), own_certificate).unwrap();
    fixture.wait_for_split("up", 4, 1).await;
}

/// A frontend that lists 20,000 models, does not report whether they are ready, and serves no requests.
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
async fn a_namespace_with_20000_models_does_not_delay_another() {
    let server = tokio::task::spawn_blocking(super::fixture::new_server).await;
    let server = server.unwrap();
    let mut greedy = Fixture::start_on(&server).await;
    greedy.new = hoard().await;
    let mut other = Fixture::start_on(&server).await;
    other.begin(json!({})).await;
    other.worker("new", 0, "worker").await;
    let args = [
        "--all-namespaces",
        "--lease-namespace",
        &other.namespace,
        "--allow-any-target",
    ];
    let controller = Controller::start(&other.kubeconfig, &args).await;
    other.wait_for_split("up", 4, 1).await;
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
        // The interval of the measurement.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let more = (most.0 - before.0, most.1 - before.1);
    eprintln!("{} KiB and {} descriptors more", more.0, more.1);
    assert!(more.0 < 64 * 1024, "{} KiB more", more.0);
    assert!(more.1 < 100, "{} descriptors more", more.1);
    // The other update still follows its workers.
    other.worker("new", 1, "worker").await;
    other.wait_for_split("up", 2, 1).await;
}

#[tokio::test]
async fn a_controller_without_free_descriptors_does_not_reduce_the_share() {
    let fixture = Fixture::with_update(json!({})).await;
    let controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    // Kept connections still work for a while, and no others can be opened.
    let usual = controller.limit_descriptors(3);
    let object = fixture
        .until("up", "the status reports it", |object| {
            let mut conditions = object["status"]["conditions"].as_array().unwrap().iter();
            conditions.any(|condition| {
                let message = condition["message"].as_str().unwrap();
                condition["reason"] == "NoAnswer" && message.contains("Too many open files")
            })
        })
        .await;
    assert_eq!(object["spec"]["trafficSplitPercent"], 20, "{object}");
    controller.limit_descriptors(usual);
    fixture.worker("new", 1, "worker").await;
    fixture.wait_for_split("up", 2, 1).await;
}

/// The probes received so far, without the requests for one token.
fn model_queries(frontend: &Upstream) -> Vec<Arc<Received>> {
    let mut asked = frontend.requests();
    asked.retain(|one| one.target.starts_with(MODELS));
    asked
}

#[tokio::test]
async fn a_frontend_is_probed_on_one_connection_and_rarely_after_the_update_is_complete() {
    let fixture = Fixture::with_update(json!({})).await;
    let controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    let before = model_queries(&fixture.new).len();
    eventually("it was probed again", async || {
        model_queries(&fixture.new).len() >= before + 12
    })
    .await;
    let asked_then = model_queries(&fixture.new);
    let connections: BTreeSet<_> = asked_then[before..]
        .iter()
        .map(|one| one.connection)
        .collect();
    // One connection, or two if the first has reached its maximum age.
    assert!(connections.len() <= 2, "{connections:?}");

    fixture.delete_old_workers().await;
    let is_complete = |object: &Value| object["status"]["phase"] == "Complete";
    fixture.until("up", "complete", is_complete).await;
    // The update is still reconciled every five seconds: in a time that had ten probes before.
    let reconciles = async || {
        let metrics = controller.metrics().await;
        metrics.sum("crossfade_controller_reconciles_total", &[])
    };
    let patience = Instant::now() + PATIENCE;
    let wait_for_reconciles = async |more: f64| {
        let before = reconciles().await;
        while reconciles().await < before + more {
            assert!(Instant::now() < patience, "it is reconciled");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    wait_for_reconciles(1.0).await;
    let (begun, before) = (Instant::now(), model_queries(&fixture.new).len());
    // What is listed only now causes more of them, at first.
    while begun.elapsed() < Duration::from_secs(10) {
        wait_for_reconciles(1.0).await;
    }
    // Two requests per probe.
    let rarely = model_queries(&fixture.new).len() - before;
    let usual = usize::try_from(begun.elapsed().as_secs()).unwrap() * 2;
    assert!(
        rarely <= 4 && rarely * 2 < usual,
        "{rarely} instead of {usual}"
    );

    // A proxy that may still send to old is noticed at once, because that does not depend on these probes.
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
    });
    fixture.pod("old-frontend-late", labels, json!([])).await;
    fixture.pod_ready("old-frontend-late", true).await;
    fixture
        .until("up", "no longer complete", |object| !is_complete(object))
        .await;
    let before = model_queries(&fixture.new).len();
    eventually("it is probed as often as before", async || {
        model_queries(&fixture.new).len() >= before + 8
    })
    .await;
}

/// A frontend that closes each connection after its response without announcing it.
fn curt(received: &Received) -> Script {
    match received.target.as_str() {
        MODELS => models(&["tiny"]).eof(),
        "/v1/models/tiny/ready" => Script::new().json(200, "{}").eof(),
        _ => status(503),
    }
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_does_not_count_as_a_failed_probe() {
    let mut fixture = Fixture::start().await;
    fixture.new = Upstream::start(curt).await;
    fixture.begin(json!({})).await;
    let controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    let before = model_queries(&fixture.new).len();
    eventually("it was probed again", async || {
        model_queries(&fixture.new).len() >= before + 10
    })
    .await;
    fixture.keeps(&controller, "up", 20).await;
}
