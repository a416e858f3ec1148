//! An edit that cannot be used, or none at all any more: what is lost meanwhile is followed, and what old cannot carry is not
//! sent to it.

use serde_json::{Value, json};

use super::fixture::{Fixture, pods, updates};
use crate::rig::*;

/// What the proxies cannot reach, and the definition cannot see.
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
        let mut accepted = conditions.filter(|told| told["type"] == "Accepted");
        status["phase"] == "Degraded"
            && accepted.any(|told| {
                told["status"] == "False" && told["message"].as_str().unwrap().contains(words)
            })
    }
}

const FOLLOWED: &str = "according to the last valid spec";

/// The split that the controller goes by meanwhile.
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
async fn an_edit_that_cannot_be_used_does_not_stop_losses_of_either_side_from_being_followed() {
    let mut fixture = Fixture::begun(json!({})).await;
    let mut first = fixture.controller(&[]).await;
    for i in 0..2 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.splits("up", 2, 1).await;
    follows(&fixture.proxies[0], 2, 1).await;
    fixture.edit("up", bad()).await;
    fixture.until("up", "refused", is_refused(FOLLOWED)).await;
    // Nobody takes the split of that edit, nor writes over it.
    assert_eq!(fixture.get("up").await["spec"]["trafficSplitPercent"], 0);
    follows(&fixture.proxies[0], 2, 1).await;

    // A loss of new, of old, and a gain, which waits for a spec that can be used.
    fixture.pod_ready("new-worker-0", false).await;
    fixture.until("up", "new lost", goes_by(4, 1)).await;
    follows(&fixture.proxies[0], 4, 1).await;
    fixture.pod_ready("old-worker-0", false).await;
    fixture.pod_ready("old-worker-1", false).await;
    fixture.until("up", "old lost", goes_by(2, 1)).await;
    follows(&fixture.proxies[0], 2, 1).await;
    fixture.pod_ready("new-worker-0", true).await;

    // Another controller goes on, and so does a proxy that begins only now.
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
    let object = fixture.splits("up", 1, 2).await;
    assert_eq!(object["status"]["lastValid"], Value::Null);
    for proxy in &fixture.proxies {
        follows(proxy, 1, 2).await;
        assert_eq!(in_force(proxy).await["lastRejection"], Value::Null);
    }
}

#[tokio::test]
async fn where_no_valid_spec_was_ever_seen_it_is_reported_that_losses_are_not_followed() {
    let fixture = Fixture::set().await;
    fixture.worker("old", 0, "worker").await;
    fixture.update("up", bad()).await;
    let _controller = fixture.controller(&[]).await;
    let unknown = "no valid spec of this update can be followed";
    let object = fixture.until("up", "told", is_refused(unknown)).await;
    assert_eq!(object["status"]["lastValid"], Value::Null);
}

#[tokio::test]
async fn an_update_that_is_deleted_sends_old_nothing_that_it_cannot_carry() {
    let fixture = Fixture::begun(json!({})).await;
    let _controller = fixture.controller(&[]).await;
    for i in 0..3 {
        fixture.worker("new", i, "worker").await;
    }
    fixture.splits("up", 4, 3).await;
    // Old is scaled down worker by worker.
    for i in 0..3 {
        fixture.delete(&pods(), &format!("old-worker-{i}")).await;
    }
    fixture.splits("up", 1, 3).await;
    fixture
        .until("up", "told", |object| {
            object["status"]["old"]["capacityPercent"] == 25
        })
        .await;
    let proxy = &fixture.proxies[0];
    follows(proxy, 1, 3).await;
    fixture.delete(&updates(), "up").await;
    let said = fixture.happens("DeletedNewKept").await;
    assert!(said.contains("old had 25 % of its capacity"), "{said}");
    follows(proxy, 1, 3).await;
    let page = in_force(proxy).await;
    assert!(
        page["remarks"][0].as_str().unwrap().contains("25 %"),
        "{page}"
    );
    // The next update takes over from there.
    fixture
        .update("next", json!({"trafficSplitPercent": 0}))
        .await;
    follows(proxy, 1, 3).await;
}
