//! New has several frontends, one of which does not serve; and proxies reach frontends that the controller cannot reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::{Value, json};

use super::fixture::{Fixture, PATIENCE};
use crate::rig::*;

/// What a frontend of new does: it serves.
const SERVES: u8 = 0;
/// It lists no model.
const BARE: u8 = 1;
/// It does not respond to queries for models, but serves every request.
const MUTE: u8 = 2;
/// It does not respond at all.
const DEAD: u8 = 3;

async fn frontend(does: Arc<AtomicU8>) -> Upstream {
    Upstream::start(move |received| {
        let never = || Script::new().pause(600_000);
        match (received.target.as_str(), does.load(Ordering::Relaxed)) {
            (_, DEAD) => never(),
            (CHAT, _) => chat_stream("new"),
            (_, MUTE) => never(),
            (MODELS, BARE) => models(&[]),
            (MODELS, _) => models(&["tiny"]),
            ("/v1/models/tiny/ready", SERVES) => Script::new().json(200, "{}"),
            _ => status(503),
        }
    })
    .await
}

/// A fixture in which half of all requests go to new, at these frontends.
async fn even(frontends: &[Upstream]) -> (Fixture, super::fixture::Controller) {
    let urls: Vec<String> = frontends.iter().map(Upstream::url).collect();
    let fixture = Fixture::with_update(json!({"newFrontendService": urls.join(",")})).await;
    let controller = fixture.controller(&[]).await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 1, 1).await;
    (fixture, controller)
}

fn condition(object: &Value, kind: &str) -> (bool, String) {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let found = conditions.find(|found| found["type"] == kind);
    let found = found.cloned().unwrap_or_default();
    let reason = found["reason"].as_str().unwrap_or_default();
    (found["status"] == "True", reason.to_owned())
}

#[tokio::test]
async fn one_of_four_frontends_that_does_not_serve_costs_new_a_quarter_of_its_share() {
    let does: Vec<_> = (0..4).map(|_| Arc::new(AtomicU8::new(SERVES))).collect();
    let mut frontends = Vec::new();
    for one in &does {
        frontends.push(frontend(Arc::clone(one)).await);
    }
    let (fixture, _controller) = even(&frontends).await;
    for fault in [BARE, DEAD] {
        does[2].store(fault, Ordering::Relaxed);
        let object = fixture.wait_for_split("up", 4, 3).await;
        let message = object["status"]["message"].as_str().unwrap();
        assert!(
            message.contains("1 of 4 frontends of new cannot serve"),
            "{message}"
        );
        let failing = "FrontendsFail".to_owned();
        assert_eq!(
            condition(&object, "NewFrontendReady"),
            (true, failing.clone())
        );
        assert_eq!(condition(&object, "Degraded"), (true, failing));
        does[2].store(SERVES, Ordering::Relaxed);
        fixture.wait_for_split("up", 1, 1).await;
    }
    for one in &does {
        one.store(BARE, Ordering::Relaxed);
    }
    fixture.wait_for_split("up", 1, 0).await;
}

#[tokio::test]
async fn an_unreachable_new_keeps_its_share_while_a_proxy_gets_responses() {
    let does = Arc::new(AtomicU8::new(SERVES));
    let frontends = [frontend(Arc::clone(&does)).await];
    let (fixture, controller) = even(&frontends).await;
    let proxy = &fixture.proxies[0];
    let clients = async {
        loop {
            proxy.chat().await;
            // Limits the request rate.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let watched = async {
        // New has responded through the proxy since the controller started to watch.
        eventually("new serves", async || {
            let ended = proxy.metrics().await;
            ended.sum("crossfade_events_total", &[("generation", "new")]) >= 5.0
        })
        .await;
        does.store(MUTE, Ordering::Relaxed);
        let object = fixture
            .until("up", "the status reports it", |object| {
                condition(object, "Degraded") == (true, "NoAnswer".to_owned())
            })
            .await;
        assert_eq!(object["spec"]["trafficSplitPercent"], 50, "{object}");
        assert_eq!(object["status"]["rule"], "Capacity");
        fixture.keeps(&controller, "up", 50).await;
        // A loss of workers still reduces the share of new.
        fixture.pod_ready("new-worker-0", false).await;
        fixture.wait_for_split("up", 4, 3).await;
        // Now the proxy gets no responses either.
        does.store(DEAD, Ordering::Relaxed);
        let ends = tokio::time::timeout(PATIENCE, fixture.wait_for_split("up", 1, 0));
        ends.await.expect("new sends nothing");
    };
    tokio::select! {
        () = clients => {}
        () = watched => {}
    }
}

/// A frontend that reports the number of workers that it knows, like Dynamo's.
async fn knowing(workers: Arc<AtomicU8>) -> Upstream {
    Upstream::start(move |received| match received.target.as_str() {
        MODELS => models(&["tiny"]),
        "/v1/models/tiny/ready" => {
            let aggregated = json!({"workers": workers.load(Ordering::Relaxed), "needs": []});
            let of_namespace = json!({"ready": true, "worker_types": {"aggregated": aggregated}});
            let page = json!({"model": "tiny", "ready": true, "namespaces": {"any": of_namespace}});
            Script::new().json(200, &page.to_string())
        }
        CHAT => chat_stream("any"),
        _ => status(503),
    })
    .await
}

#[tokio::test]
async fn a_ready_worker_counts_once_a_frontend_knows_it() {
    let known = Arc::new(AtomicU8::new(1));
    let mut fixture = Fixture::start().await;
    fixture.old = knowing(Arc::new(AtomicU8::new(4))).await;
    fixture.new = knowing(Arc::clone(&known)).await;
    fixture.begin(json!({})).await;
    let controller = fixture.controller(&[]).await;
    fixture
        .until("up", "seen", |object| {
            object["status"]["memory"]["registeredCount"] == true
        })
        .await;
    for i in 0..2 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 4, 1).await;
    let object = fixture
        .until("up", "both are ready", |object| {
            object["status"]["new"]["workers"] == "2/2"
        })
        .await;
    assert_eq!(object["status"]["new"]["roles"]["worker"]["ready"], 1);
    let message = object["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("1 more worker of new is ready"),
        "{message}"
    );
    fixture.keeps(&controller, "up", 20).await;
    known.store(2, Ordering::Relaxed);
    fixture.wait_for_split("up", 2, 1).await;
    // It deregisters from the frontend before its pod is deleted.
    known.store(1, Ordering::Relaxed);
    fixture.wait_for_split("up", 4, 1).await;
}
