//! The API server accepts watches but sends no events, or rejects status writes: `safeToDeleteOld` must not rely on outdated data.

use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, pods};
use super::safe_to_delete::{clients, is_safe, lacks, lead_clients_to, services, slice, slices};
use crate::gateway::{Gateway, Withheld};

/// A controller that reaches the API server through a gateway, and an update whose old is safe to delete.
async fn safe() -> (Fixture, Gateway, Controller) {
    let mut fixture = Fixture::with_update(json!({"clientService": "clients"})).await;
    fixture.frontend_of_new("new-frontend-0").await;
    lead_clients_to(&fixture, "new-frontend-0").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    let gateway = Gateway::before(&fixture.client).await;
    fixture.kubeconfig = gateway.kubeconfig();
    let controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 1, 1).await;
    fixture.delete_old_workers().await;
    fixture.until("up", "safe", is_safe).await;
    (fixture, gateway, controller)
}

const NO_CONTACT: &str = "no recent contact with the API server";

#[tokio::test]
async fn old_is_not_safe_to_delete_while_all_watches_are_silent() {
    let (fixture, gateway, _controller) = safe().await;
    gateway.withhold(Withheld {
        watches: true,
        ..Withheld::default()
    });
    let graph = "nvidia.com/dynamo-graph-deployment-name";
    let selects = json!({"spec": {"selector": {graph: "old"}, "ports": [{"port": 80}]}});
    fixture.create(&services(), "legacy", selects).await;
    fixture
        .until("up", "led to", lacks(true, "Service legacy"))
        .await;
    // Deleted and changed objects are noticed, too.
    fixture.delete(&services(), "legacy").await;
    fixture.until("up", "safe again", is_safe).await;
    let reaches = "to a ready frontend of new on each of its ports";
    let not_ready = json!({
        "phase": "Running", "podIP": "10.9.0.1", "podIPs": [{"ip": "10.9.0.1"}],
        "conditions": [{"type": "Ready", "status": "False"}],
    });
    fixture.status(&pods(), "new-frontend-0", not_ready).await;
    fixture.until("up", "not ready", lacks(true, reaches)).await;
    // An unknown pod of old, whose proxy may send to old.
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
    });
    fixture.pod("old-frontend-late", labels, json!([])).await;
    fixture.pod_ready("old-frontend-late", true).await;
    let is_unsafe = |object: &Value| {
        let status = &object["status"];
        status["lastOldWorkerDispensable"] == false && status["phase"] == "Draining"
    };
    fixture.until("up", "an unheard pod", is_unsafe).await;
    fixture.delete(&pods(), "old-frontend-late").await;
    fixture.delete(&slices(), "clients-1").await;
    fixture.frontend_of_new("new-frontend-1").await;
    fixture
        .create(&slices(), "clients-2", slice("new-frontend-1"))
        .await;
    fixture.until("up", "safe at the end", is_safe).await;
    gateway.withhold(Withheld::default());
    // The watches resume where they were, with events that the lists have already shown.
    fixture.delete(&services(), "clients").await;
    fixture.until("up", "gone", lacks(true, reaches)).await;
    fixture.create(&services(), "clients", clients()).await;
    fixture.until("up", "safe after all", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_no_list_confirms_the_state_of_silent_watches() {
    let (fixture, gateway, _controller) = safe().await;
    gateway.withhold(Withheld {
        watches: true,
        lists: true,
        ..Withheld::default()
    });
    fixture
        .until("up", "unconfirmed", lacks(false, NO_CONTACT))
        .await;
    // This does not change, however often a watch is restarted.
    for _ in 0..100 {
        let object = fixture.get("up").await;
        assert!(!is_safe(&object), "{object}");
        // Must hold for ten seconds.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    gateway.withhold(Withheld::default());
    fixture.until("up", "safe again", is_safe).await;
}
