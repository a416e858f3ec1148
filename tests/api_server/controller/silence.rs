//! An API server that grants everything and withholds the news, or takes no status: what was promised must not rest on that.

use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, pods};
use super::holes::{clients, is_safe, lacks, lead_clients_to, services, slice, slices};
use crate::gateway::{Gateway, Withheld};

/// What a controller that reaches the API server through a gateway needs, with an update of which old may be deleted.
async fn safe() -> (Fixture, Gateway, Controller) {
    let mut fixture = Fixture::begun(json!({"clientService": "clients"})).await;
    fixture.frontend_of_new("new-frontend-0").await;
    lead_clients_to(&fixture, "new-frontend-0").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    let gateway = Gateway::before(&fixture.client).await;
    fixture.kubeconfig = gateway.kubeconfig();
    let controller = fixture.controller(&[]).await;
    fixture.splits("up", 1, 1).await;
    fixture.delete_old_workers().await;
    fixture.until("up", "safe", is_safe).await;
    (fixture, gateway, controller)
}

const NO_CONTACT: &str = "no recent contact with the API server";

#[tokio::test]
async fn old_may_not_go_while_every_watch_is_granted_and_silent() {
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
    // What is gone is noticed, too, and so is what was changed.
    fixture.delete(&services(), "legacy").await;
    fixture.until("up", "safe again", is_safe).await;
    let reaches = "to a ready frontend of new on each of its ports";
    let not_ready = json!({
        "phase": "Running", "podIP": "10.9.0.1", "podIPs": [{"ip": "10.9.0.1"}],
        "conditions": [{"type": "Ready", "status": "False"}],
    });
    fixture.status(&pods(), "new-frontend-0", not_ready).await;
    fixture.until("up", "not ready", lacks(true, reaches)).await;
    // A pod of old that nobody has heard of: its proxy may send to old.
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
    // The watches go on from where they were, which the lists have told already.
    fixture.delete(&services(), "clients").await;
    fixture.until("up", "gone", lacks(true, reaches)).await;
    fixture.create(&services(), "clients", clients()).await;
    fixture.until("up", "safe after all", is_safe).await;
}

#[tokio::test]
async fn old_may_not_go_while_no_list_confirms_that_silent_watches_have_nothing_to_say() {
    let (fixture, gateway, _controller) = safe().await;
    gateway.withhold(Withheld {
        watches: true,
        lists: true,
        ..Withheld::default()
    });
    fixture
        .until("up", "unconfirmed", lacks(false, NO_CONTACT))
        .await;
    // It stays so, however often a watch is granted anew.
    for _ in 0..100 {
        let object = fixture.get("up").await;
        assert!(!is_safe(&object), "{object}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    gateway.withhold(Withheld::default());
    fixture.until("up", "safe again", is_safe).await;
}
