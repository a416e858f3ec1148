//! The limits on the number of updates that a controller follows, and the memory that each update costs.

use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, PATIENCE, updates};
use crate::rig::*;

fn is_refused(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let stalled = conditions.find(|condition| condition["type"] == "Stalled");
    stalled.is_some_and(|condition| {
        condition["status"] == "True" && condition["reason"] == "TooManyUpdates"
    })
}

#[tokio::test]
async fn beyond_the_limit_only_the_oldest_updates_of_a_namespace_are_followed() {
    let server = tokio::task::spawn_blocking(super::fixture::new_server).await;
    let server = server.unwrap();
    let mut fixture = Fixture::start_on(&server).await;
    fixture.begin(json!({})).await;
    let mut other = Fixture::start_on(&server).await;
    other.begin(json!({})).await;
    // The API server stores whole seconds. Among updates of the same second, the name decides.
    for name in ["young-1", "young-2"] {
        fixture
            .update(
                name,
                json!({"sourceDeployment": name, "targetDeployment": "x"}),
            )
            .await;
    }
    let args = [
        "--all-namespaces",
        "--lease-namespace",
        &fixture.namespace,
        "--allow-any-target",
        "--max-updates-per-namespace",
        "2",
        "--max-updates",
        "3",
    ];
    let _controller = Controller::start(&fixture.kubeconfig, &args).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    let object = fixture.until("young-2", "refused", is_refused).await;
    let message = object["status"]["message"].as_str().unwrap();
    assert!(message.contains("--max-updates-per-namespace"), "{message}");
    let note = fixture.wait_for_event("TooManyUpdates").await;
    assert!(note.contains("the 2 oldest updates"), "{note}");
    assert!(!is_refused(&fixture.get("young-1").await));
    other.worker("new", 0, "worker").await;
    other.wait_for_split("up", 4, 1).await;
    // The next update exceeds the total limit.
    other
        .update(
            "young",
            json!({"sourceDeployment": "third", "targetDeployment": "x"}),
        )
        .await;
    let object = other.until("young", "refused", is_refused).await;
    let message = object["status"]["message"].as_str().unwrap();
    assert!(message.contains("(--max-updates)"), "{message}");
    // An old update is deleted, and the next one is followed instead.
    fixture.delete(&updates(), "young-1").await;
    let is_followed = |object: &Value| !is_refused(object) && !object["status"].is_null();
    fixture.until("young-2", "followed", is_followed).await;
}

/// The memory in KiB that a controller needs for each additional update.
async fn cost(fixture: &Fixture, controller: &Controller, names: std::ops::Range<usize>) -> f64 {
    let count = names.len();
    let before = controller.memory();
    for i in names {
        let source = format!("source-{i}");
        let spec = json!({"sourceDeployment": source, "targetDeployment": format!("target-{i}")});
        fixture.update(&format!("many-{i:04}"), spec).await;
    }
    let deadline = tokio::time::Instant::now() + 2 * PATIENCE;
    loop {
        let all = fixture.api(&updates()).list(&Default::default()).await;
        let untold = all.unwrap().items.into_iter();
        let untold = untold.filter(|update| update.data["status"].is_null());
        if untold.count() == 0 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "never reported");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    // The controller's own writes arrive through the watch.
    eventually("everything is known", async || {
        let metrics = controller.metrics().await;
        metrics.sum("crossfade_controller_updates", &[]) >= count as f64
    })
    .await;
    controller.memory().saturating_sub(before) as f64 / count as f64
}

#[tokio::test]
async fn an_update_needs_little_memory_and_an_ignored_one_needs_less() {
    let fixture = Fixture::start().await;
    let most = ["--max-updates-per-namespace", "400"];
    let controller = fixture.controller(&most).await;
    // Memory that is allocated once.
    cost(&fixture, &controller, 0..50).await;
    let followed = cost(&fixture, &controller, 50..400).await;
    let unfollowed = cost(&fixture, &controller, 400..800).await;
    eprintln!(
        "KiB for each update: {followed:.1}, and for each that is not followed: {unfollowed:.1}"
    );
}
