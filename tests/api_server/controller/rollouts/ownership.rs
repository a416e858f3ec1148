//! What a rollout leaves to its user: the client Service after completion, a Deployment with the frontends of both generations, and
//! quotas.

use serde_json::{Value, json};

use super::operator::deployments;
use super::{Managed, frontends, services};
use crate::controller::fixture::{pods, resource};

fn is_refused(status: &Value, why: &str) -> bool {
    let message = status["message"].as_str().unwrap_or_default();
    status["phase"] == "Refused" && message.contains(why)
}

impl Managed {
    async fn selector(&self) -> Value {
        let service = self.fixture.api(&services()).get("clients").await.unwrap();
        service.data["spec"]["selector"].clone()
    }
}

#[tokio::test]
async fn after_completion_the_client_service_belongs_to_the_user() {
    let mut managed = Managed::with_rollout(json!({"handover": {"clients": "Automatic"}})).await;
    let _controller = managed.controller().await;
    managed.phase("Complete").await;
    assert_eq!(managed.selector().await, frontends("new"));
    let back = json!({"spec": {"selector": frontends("old")}});
    managed.patch(&services(), "clients", back).await;
    managed.waits_for("clients to be routed").await;
    // An edit without an effect triggers a reconcile.
    managed
        .edit(json!({"strategy": {"stepIntervalSeconds": 1}}))
        .await;
    let is_seen = |status: &Value| status["observedGeneration"] == 2;
    managed.until("the edit seen", is_seen).await;
    assert_eq!(managed.selector().await, frontends("old"));
    // During a rollback and another run, the rollout routes the clients.
    managed.edit(json!({"intent": "Abort"})).await;
    managed.phase("RolledBack").await;
    managed.edit(json!({"intent": "Run"})).await;
    managed.phase("Complete").await;
    assert_eq!(managed.selector().await, frontends("new"));
}

#[tokio::test]
async fn a_deployment_with_the_frontends_of_both_generations_is_not_retired() {
    let mut managed = Managed::with_rollout(json!({"handover": {"retire": "Delete"}})).await;
    let component = "nvidia.com/dynamo-component-type";
    let both = json!({component: "frontend"});
    let template = json!({
        "metadata": {"labels": both}, "spec": {"containers": [{"name": "main", "image": "any"}]},
    });
    let spec = json!({"replicas": 2, "selector": {"matchLabels": both}, "template": template});
    let both = json!({"spec": spec});
    managed.fixture.create(&deployments(), "both", both).await;
    let _controller = managed.controller().await;
    managed.own_frontends("both").await;
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "both-5d9f7c", "uid": "1", "controller": true,
    });
    let owned = json!({"metadata": {"ownerReferences": [owner], "labels": {"pod-template-hash": "5d9f7c"}}});
    managed.patch(&pods(), "new-frontend-0", owned).await;
    let why = "Deployment both also has the frontend pod new-frontend-0 of the new generation";
    managed.until(why, |status| is_refused(status, why)).await;
    assert_eq!(managed.sizes().await.1, 0);
    managed.edit(json!({"handover": {"retire": "Keep"}})).await;
    managed.waits_for("clients to be routed").await;
    // Nor is it once everything else is complete.
    managed
        .edit(json!({"handover": {"retire": "Delete"}}))
        .await;
    managed.move_clients().await;
    managed.waits_for("of the new generation").await;
    assert_eq!(managed.replicas("both").await, 2);
}

#[tokio::test]
async fn a_quota_that_does_not_admit_a_new_worker_is_reported_before_the_first_write() {
    let mut managed = Managed::start(4).await;
    let container =
        json!({"name": "main", "image": "any", "resources": {"limits": {"example.com/nic": "2"}}});
    let template = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
    managed.patch(&deployments(), "v2", template).await;
    let quotas = resource("", "v1", "ResourceQuota", "resourcequotas");
    let hard = json!({"requests.example.com/nic": "9"});
    let quota = json!({"spec": {"hard": hard}});
    managed.fixture.create(&quotas, "nics", quota).await;
    let used = |used: &str| json!({"hard": hard, "used": {"requests.example.com/nic": used}});
    managed.fixture.status(&quotas, "nics", used("8")).await;
    managed.begin(json!({})).await;
    let _controller = managed.controller().await;
    let why = "2 more of requests.example.com/nic: the quota of the namespace has 1 left";
    managed.until(why, |status| is_refused(status, why)).await;
    assert_eq!(managed.sizes().await.1, 0);
    managed.fixture.status(&quotas, "nics", used("0")).await;
    managed.waits_for("clients to be routed").await;
}

#[tokio::test]
async fn a_rollout_without_a_proxy_says_that_none_was_found() {
    let mut managed = Managed::with_rollout(json!({})).await;
    let _controller = managed.fixture.controller(&["--rollouts"]).await;
    let object = managed.waits_for("none was found").await;
    let waits = object["status"]["waitingFor"].to_string();
    assert!(waits.contains("`frontends.source`"), "{waits}");
    // Old keeps its workers meanwhile.
    assert_eq!(managed.sizes().await.0, 4);
    managed.fixture.proxy("chat").await;
    managed.waits_for("clients to be routed").await;
}
