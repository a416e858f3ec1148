//! An API server that grants everything and withholds the news, or takes no status: what was promised must not rest on that.

use serde_json::{Value, json};

use super::holes::{clients, is_safe, lacks, lead_clients_to, services, slice, slices};
use super::stage::{Controller, Stage, pods};
use crate::gateway::{Gateway, Withheld};

/// What a controller that reaches the API server through a gateway needs, with an update of which old may be deleted.
async fn safe() -> (Stage, Gateway, Controller) {
    let mut stage = Stage::begun(json!({"clientService": "clients"})).await;
    stage.frontend_of_new("new-frontend-0").await;
    lead_clients_to(&stage, "new-frontend-0").await;
    for i in 0..4 {
        stage.worker("new", i, "worker").await;
    }
    let gateway = Gateway::before(&stage.client).await;
    stage.kubeconfig = gateway.kubeconfig();
    let controller = stage.controller(&[]).await;
    stage.splits("up", 1, 1).await;
    stage.delete_old_workers().await;
    stage.until("up", "safe", is_safe).await;
    (stage, gateway, controller)
}

const NO_CONTACT: &str = "no recent contact with the API server";

#[tokio::test]
async fn old_may_not_go_while_every_watch_is_granted_and_silent() {
    let (stage, gateway, _controller) = safe().await;
    gateway.withhold(Withheld {
        watches: true,
        ..Withheld::default()
    });
    let graph = "nvidia.com/dynamo-graph-deployment-name";
    let selects = json!({"spec": {"selector": {graph: "old"}, "ports": [{"port": 80}]}});
    stage.create(&services(), "legacy", selects).await;
    stage
        .until("up", "led to", lacks(true, "Service legacy"))
        .await;
    // What is gone is noticed, too, and so is what was changed.
    stage.delete(&services(), "legacy").await;
    stage.until("up", "safe again", is_safe).await;
    let reaches = "to a ready frontend of new on each of its ports";
    let not_ready = json!({
        "phase": "Running", "podIP": "10.9.0.1", "podIPs": [{"ip": "10.9.0.1"}],
        "conditions": [{"type": "Ready", "status": "False"}],
    });
    stage.status(&pods(), "new-frontend-0", not_ready).await;
    stage.until("up", "not ready", lacks(true, reaches)).await;
    // A pod of old that nobody has heard of: its proxy may send to old.
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
    });
    stage.pod("old-frontend-late", labels, json!([])).await;
    stage.pod_ready("old-frontend-late", true).await;
    let is_unsafe = |object: &Value| {
        let status = &object["status"];
        status["lastOldWorkerDispensable"] == false && status["phase"] == "Draining"
    };
    stage.until("up", "an unheard pod", is_unsafe).await;
    stage.delete(&pods(), "old-frontend-late").await;
    stage.delete(&slices(), "clients-1").await;
    stage.frontend_of_new("new-frontend-1").await;
    stage
        .create(&slices(), "clients-2", slice("new-frontend-1"))
        .await;
    stage.until("up", "safe at the end", is_safe).await;
    gateway.withhold(Withheld::default());
    // The watches go on from where they were, which the lists have told already.
    stage.delete(&services(), "clients").await;
    stage.until("up", "gone", lacks(true, reaches)).await;
    stage.create(&services(), "clients", clients()).await;
    stage.until("up", "safe after all", is_safe).await;
}

#[tokio::test]
async fn old_may_not_go_while_no_list_confirms_that_silent_watches_have_nothing_to_say() {
    let (stage, gateway, _controller) = safe().await;
    gateway.withhold(Withheld {
        watches: true,
        lists: true,
        ..Withheld::default()
    });
    stage
        .until("up", "unconfirmed", lacks(false, NO_CONTACT))
        .await;
    // It stays so, however often a watch is granted anew.
    for _ in 0..100 {
        let object = stage.get("up").await;
        assert!(!is_safe(&object), "{object}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    gateway.withhold(Withheld::default());
    stage.until("up", "safe again", is_safe).await;
}
