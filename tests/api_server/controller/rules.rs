//! The split follows the workers, within the limits that a user sets.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::fixture::{Fixture, pods};

#[tokio::test]
async fn the_split_follows_the_workers_one_by_one_and_exactly() {
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    // The numbers of workers, and the split that follows.
    let (mut old, mut new) = (4, 0);
    for weights in [(4, 1), (3, 1), (3, 2), (1, 1), (2, 3), (1, 3), (1, 4)] {
        let grows = new < 4 && old + new == 4;
        if grows {
            fixture.worker("new", new, "worker").await;
            new += 1;
        } else {
            old -= 1;
            fixture.delete(&pods(), &format!("old-worker-{old}")).await;
        }
        let object = fixture.wait_for_split("up", weights.0, weights.1).await;
        let percent = (100 * weights.1 + (weights.0 + weights.1) / 2) / (weights.0 + weights.1);
        assert_eq!(object["spec"]["trafficSplitPercent"], percent);
        let status = &object["status"];
        assert_eq!(status["rule"], "Capacity", "{status}");
        assert_eq!(status["old"]["workers"], format!("{old}/{old}"));
        assert_eq!(status["old"]["roles"]["worker"]["fullSize"], 4);
    }
    fixture.delete(&pods(), "old-worker-0").await;
    fixture.wait_for_split("up", 0, 1).await;
}

#[tokio::test]
async fn the_scarcer_of_prefill_and_decode_counts() {
    let mut fixture = Fixture::start().await;
    for (role, count) in [("prefill", 4), ("decode", 2)] {
        for i in 0..count {
            fixture.worker("old", i, role).await;
        }
    }
    fixture.update("up", json!({})).await;
    fixture.proxy("up").await;
    let controller = fixture.controller(&[]).await;
    fixture
        .until("up", "seen", |object| {
            object["status"]["rule"] == "NewCannotServe"
        })
        .await;
    fixture.worker("new", 0, "prefill").await;
    fixture.keeps(&controller, "up", 0).await;
    fixture.worker("new", 0, "decode").await;
    let object = fixture.wait_for_split("up", 4, 1).await;
    assert_eq!(object["spec"]["trafficSplitPercent"], 20);
    assert_eq!(object["status"]["new"]["capacityPercent"], 25);
    // Without workers of one role, the generation has no capacity.
    fixture.pod_ready("new-decode-0", false).await;
    let object = fixture.wait_for_split("up", 1, 0).await;
    let message = object["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("it has no ready decode worker"),
        "{message}"
    );
}

#[tokio::test]
async fn a_pause_holds_an_edit_of_a_user_and_a_cap_holds_the_split() {
    let fixture = Fixture::with_update(json!({"paused": true})).await;
    let controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.worker("new", 1, "worker").await;
    fixture
        .until("up", "paused", |object| {
            object["status"]["phase"] == "Paused"
        })
        .await;
    fixture.edit("up", json!({"trafficSplitPercent": 7})).await;
    fixture
        .until("up", "seen", |object| {
            object["status"]["wanted"]["percent"] == 7
        })
        .await;
    fixture.keeps(&controller, "up", 7).await;
    assert_eq!(fixture.events().await.get("SplitContested"), None);
    fixture
        .edit("up", json!({"paused": false, "maxTrafficSplitPercent": 10}))
        .await;
    let object = fixture.wait_for_split("up", 9, 1).await;
    assert_eq!(object["status"]["rule"], "Cap", "{object}");
    fixture
        .edit("up", json!({"maxTrafficSplitPercent": null}))
        .await;
    fixture.wait_for_split("up", 2, 1).await;
}

#[tokio::test]
async fn an_edit_of_the_split_without_a_pause_is_reverted_and_reported_once() {
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    for percent in [90, 60] {
        fixture
            .edit(
                "up",
                json!({"trafficSplitPercent": percent, "weights": null}),
            )
            .await;
        fixture.wait_for_split("up", 4, 1).await;
    }
    let message = fixture.wait_for_event("SplitContested").await;
    assert!(message.contains("set spec.paused"), "{message}");
    assert_eq!(fixture.events().await["SplitContested"].len(), 1);
}

#[tokio::test]
async fn without_its_model_new_gets_nothing_even_if_its_workers_are_ready() {
    let fixture = Fixture::with_update(json!({})).await;
    fixture.new_serves.store(false, Ordering::Relaxed);
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    let controller = fixture.controller(&[]).await;
    let is_reported = |object: &serde_json::Value| {
        let message = object["status"]["message"].as_str().unwrap_or_default();
        message.contains("it does not serve the model tiny")
    };
    fixture
        .until("up", "the status reports it", is_reported)
        .await;
    fixture.keeps(&controller, "up", 0).await;
    fixture.new_serves.store(true, Ordering::Relaxed);
    fixture.wait_for_split("up", 1, 1).await;
    fixture.new_serves.store(false, Ordering::Relaxed);
    fixture.wait_for_split("up", 1, 0).await;
}

#[tokio::test]
async fn the_share_of_new_workers_that_crash_returns_to_old() {
    let fixture = Fixture::with_update(
        json!({"stableSeconds": 3600, "workers": {"old": {"replicas": {"worker": 4}}}}),
    )
    .await;
    for i in 0..2 {
        fixture.worker("new", i, "worker").await;
    }
    let _controller = fixture.controller(&[]).await;
    // The share of new grows only after its workers have been stable, and drops at once.
    fixture
        .until("up", "waiting", |object| {
            let message = object["status"]["message"].as_str().unwrap_or_default();
            message.contains("waiting for the workers of new to stay ready")
        })
        .await;
    fixture.edit("up", json!({"stableSeconds": 0})).await;
    fixture.wait_for_split("up", 2, 1).await;
    fixture.edit("up", json!({"stableSeconds": 3600})).await;
    let crashed = std::time::Instant::now();
    fixture.pod_ready("new-worker-0", false).await;
    fixture.wait_for_split("up", 4, 1).await;
    fixture.pod_ready("new-worker-1", false).await;
    fixture.wait_for_split("up", 1, 0).await;
    eprintln!("both losses were followed within {:?}", crashed.elapsed());
    fixture.proxies[0].serves("old").await;
}
