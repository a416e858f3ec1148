//! After an invalid edit or a deletion, the split still follows losses, and old does not get more requests than it has capacity for.

use serde_json::{Value, json};

use super::fixture::{Fixture, pods, updates};
use crate::rig::*;

/// A target that proxies may not use, which the schema cannot detect.
fn bad() -> Value {
    let same = json!({"selector": {"app": "any"}});
    json!({
        "targetDeployment": "old", "trafficSplitPercent": 0, "weights": null, "workers": {"old": same.clone(), "new": same},
    })
}

fn is_refused(words: &'static str) -> impl Fn(&Value) -> bool {
    move |object| {
        let status = &object["status"];
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let mut accepted = conditions.filter(|condition| condition["type"] == "Accepted");
        status["phase"] == "Degraded"
            && accepted.any(|condition| {
                condition["status"] == "False"
                    && condition["message"].as_str().unwrap().contains(words)
            })
    }
}

const FOLLOWED: &str = "the controller follows the last valid spec";

/// Whether the controller wants this split.
fn goes_by(old: u32, new: u32) -> impl Fn(&Value) -> bool {
    move |object| {
        object["status"]["lastValid"]["spec"]["weights"] == json!({"old": old, "new": new})
    }
}

async fn in_force(proxy: &Proxy) -> Value {
    serde_json::from_str(&proxy.plan().await).unwrap()
}

async fn follows(proxy: &Proxy, old: u32, new: u32) {
    eventually(&format!("the proxy goes by {old} : {new}"), async || {
        in_force(proxy).await["weights"] == json!({"old": old, "new": new})
    })
    .await;
}

#[tokio::test]
async fn after_an_invalid_edit_the_split_still_follows_losses_of_either_generation() {
    let mut fixture = Fixture::with_update(json!({})).await;
    let mut first = fixture.controller(&[]).await;
    for i in 0..2 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 2, 1).await;
    follows(&fixture.proxies[0], 2, 1).await;
    fixture.edit("up", bad()).await;
    fixture.until("up", "refused", is_refused(FOLLOWED)).await;
    // The split in the invalid edit is neither applied nor overwritten.
    assert_eq!(fixture.get("up").await["spec"]["trafficSplitPercent"], 0);
    follows(&fixture.proxies[0], 2, 1).await;

    // A loss of new, a loss of old, and a gain, which waits for a valid spec.
    fixture.pod_ready("new-worker-0", false).await;
    fixture.until("up", "new lost", goes_by(4, 1)).await;
    follows(&fixture.proxies[0], 4, 1).await;
    fixture.pod_ready("old-worker-0", false).await;
    fixture.pod_ready("old-worker-1", false).await;
    fixture.until("up", "old lost", goes_by(2, 1)).await;
    follows(&fixture.proxies[0], 2, 1).await;
    fixture.pod_ready("new-worker-0", true).await;

    // Another controller continues, and so does a proxy that starts now.
    first.kill();
    let second = fixture.controller(&[]).await;
    super::faults::leads(&second).await;
    fixture.pod_ready("old-worker-2", false).await;
    fixture
        .until("up", "old lost again", |object| {
            goes_by(1, 1)(object) || goes_by(1, 2)(object)
        })
        .await;
    let object = fixture.get("up").await;
    let weights = &object["status"]["lastValid"]["spec"]["weights"];
    assert_eq!(*weights, json!({"old": 1, "new": 1}), "new gains nothing");
    fixture.proxy("up").await;
    for proxy in &fixture.proxies {
        follows(proxy, 1, 1).await;
        let page = in_force(proxy).await;
        let refused = page["lastRejection"]["problems"].to_string();
        assert!(refused.contains("same object"), "{page}");
    }
    fixture
        .until("up", "applied, as far as it can be", |object| {
            object["status"]["frontends"]["applied"] == 2
        })
        .await;

    let good = json!({"targetDeployment": "new", "workers": null});
    fixture.edit("up", good).await;
    let object = fixture.wait_for_split("up", 1, 2).await;
    assert_eq!(object["status"]["lastValid"], Value::Null);
    for proxy in &fixture.proxies {
        follows(proxy, 1, 2).await;
        assert_eq!(in_force(proxy).await["lastRejection"], Value::Null);
    }
}

#[tokio::test]
async fn without_a_valid_spec_the_status_says_that_losses_are_not_followed() {
    let fixture = Fixture::start().await;
    fixture.worker("old", 0, "worker").await;
    fixture.update("up", bad()).await;
    let _controller = fixture.controller(&[]).await;
    let unknown = "this update has no earlier valid spec to follow";
    let object = fixture
        .until("up", "the status reports it", is_refused(unknown))
        .await;
    assert_eq!(object["status"]["lastValid"], Value::Null);
}

#[tokio::test]
async fn after_a_deletion_old_gets_no_more_requests_than_its_capacity() {
    let fixture = Fixture::with_update(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    for i in 0..3 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.wait_for_split("up", 4, 3).await;
    // Old is scaled down worker by worker.
    for i in 0..3 {
        fixture.delete(&pods(), &format!("old-worker-{i}")).await;
    }
    fixture.wait_for_split("up", 1, 3).await;
    fixture
        .until("up", "the status reports it", |object| {
            object["status"]["old"]["capacityPercent"] == 25
        })
        .await;
    let proxy = &fixture.proxies[0];
    follows(proxy, 1, 3).await;
    fixture.delete(&updates(), "up").await;
    let message = fixture.wait_for_event("DeletedNewKept").await;
    assert!(message.contains("old had 25% of its capacity"), "{message}");
    follows(proxy, 1, 3).await;
    let page = in_force(proxy).await;
    assert!(
        page["remarks"][0].as_str().unwrap().contains("25%"),
        "{page}"
    );
    // The next update takes over from there.
    fixture
        .update("next", json!({"trafficSplitPercent": 0}))
        .await;
    follows(proxy, 1, 3).await;
}
