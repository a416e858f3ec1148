//! Attempts to be told that old may go while somebody could still need it.

use serde_json::{Value, json};

use super::stage::{Stage, pods, resource, updates};

fn slices() -> kube::api::ApiResource {
    resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
}

/// Of the clients' Service, with this pod behind it.
fn slice(pod: &str) -> Value {
    json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "clients"}}, "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["10.9.0.1"], "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "name": pod},
        }],
    })
}

fn is_safe(object: &Value) -> bool {
    let status = &object["status"];
    status["safeToDeleteOld"] == true && status["lastOldWorkerDispensable"] == true
}

/// Is this promised, and that not, for this reason?
fn lacks(last_worker: bool, reason: &'static str) -> impl Fn(&Value) -> bool {
    move |object| {
        let status = &object["status"];
        status["safeToDeleteOld"] == false
            && status["lastOldWorkerDispensable"] == last_worker
            && status["missingForDeletion"].to_string().contains(reason)
    }
}

#[tokio::test]
async fn old_may_not_go_while_a_pod_of_unknown_kin_or_another_update_leads_to_it() {
    let stage = Stage::begun(json!({"clientService": "clients"})).await;
    stage.frontend_of_new("new-frontend-0").await;
    stage
        .create(&slices(), "clients-1", slice("new-frontend-0"))
        .await;
    for i in 0..4 {
        stage.worker("new", i, "worker").await;
    }
    let _controller = stage.controller(&[]).await;
    stage.splits("up", 1, 1).await;
    stage.delete_old_workers().await;
    stage.until("up", "safe", is_safe).await;

    // A frontend of old that somebody has relabelled to look at it serves its clients as ever.
    stage
        .pod("relabelled", json!({"app": "any"}), json!([]))
        .await;
    stage.pod_ready("relabelled", true).await;
    stage
        .create(&slices(), "clients-2", slice("relabelled"))
        .await;
    let has_not_left = lacks(true, "have left the frontends of old");
    stage.until("up", "a pod of nobody", has_not_left).await;
    stage.delete(&slices(), "clients-2").await;
    stage.delete(&pods(), "relabelled").await;
    stage.until("up", "safe again", is_safe).await;

    // Somebody goes back: the frontends of new send half of all to old.
    let back = json!({
        "sourceDeployment": "new", "targetDeployment": "old", "trafficSplitPercent": 50, "paused": true, "strict": true,
    });
    stage.update("back", back).await;
    let leads_back = lacks(false, "these updates lead to the frontends of old: back");
    stage
        .until("up", "another update needs old", leads_back)
        .await;
    stage.delete(&updates(), "back").await;
    stage.until("up", "safe once more", is_safe).await;

    // One of the same name is another one: nothing was proven of it.
    stage.delete(&updates(), "up").await;
    stage
        .update("up", json!({"clientService": "clients"}))
        .await;
    stage
        .until("up", "looked at", |object| {
            let status = &object["status"];
            object["spec"]["trafficSplitPercent"] == 100
                && status["wanted"]["percent"] == 100
                && status["safeToDeleteOld"] == false
                && status["lastOldWorkerDispensable"] == false
        })
        .await;
}
