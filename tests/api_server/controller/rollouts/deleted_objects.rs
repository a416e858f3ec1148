//! The workloads, the update or the revisions of a rollout are deleted while it is in progress, or the API server rejects its
//! writes.

use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use super::super::fixture::{pods, resource, updates};
use super::operator::deployments;
use super::{Managed, frontends, rollouts, services};
use crate::rig::eventually;

impl Managed {
    /// Waits until each generation has two workers and half of the requests.
    async fn half_way(&self) {
        self.phase("Partition").await;
        self.rests_at(2, 2).await;
        self.fixture.wait_for_split("chat", 1, 1).await;
    }

    /// Deletes a Deployment with its pods.
    async fn lose(&self, name: &str) {
        self.fixture.delete(&deployments(), name).await;
        let made = ListParams::default().labels(&format!("made-by={name}"));
        let now = DeleteParams::default().grace_period(0);
        let pods = self.fixture.api(&pods());
        pods.delete_collection(&now, &made).await.unwrap();
    }

    async fn wait_for_message(&self, phase: &str, message: &str) -> Value {
        self.until(message, |status| {
            let text = status["message"].as_str().unwrap_or_default();
            status["phase"] == phase && text.contains(message)
        })
        .await
    }
}

fn half() -> Value {
    json!({"strategy": {"partition": 2}})
}

#[tokio::test]
async fn after_a_rollback_the_new_generation_may_be_deleted_and_another_one_is_rolled_out() {
    let mut managed = Managed::with_rollout(half()).await;
    managed.deployment("v3", 0).await;
    let _controller = managed.controller().await;
    managed.half_way().await;
    managed.edit(json!({"intent": "Abort"})).await;
    managed.phase("RolledBack").await;
    managed.lose("v2").await;
    // The rollout is reconciled again, and is still rolled back.
    managed.edit(json!({"revisionHistoryLimit": 9})).await;
    managed
        .until("reconciled", |status| {
            status["observedGeneration"] == 3 && status["phase"] == "RolledBack"
        })
        .await;
    let target = json!({"kind": "Deployment", "name": "v3"});
    managed
        .edit(json!({"intent": "Run", "target": target}))
        .await;
    managed
        .until("half way to the third", |status| {
            status["phase"] == "Partition"
                && status["accepted"]["target"]["roles"]["worker"]["name"] == "v3"
        })
        .await;
    managed.fixture.wait_for_split("chat", 1, 1).await;
}

#[tokio::test]
async fn requests_leave_a_new_generation_that_is_deleted_and_the_rollout_can_go_back() {
    let mut managed = Managed::with_rollout(half()).await;
    let _controller = managed.controller().await;
    managed.half_way().await;
    managed.lose("v2").await;
    managed.fixture.wait_for_split("chat", 1, 0).await;
    managed
        .wait_for_message("Stalled", "there is no Deployment v2")
        .await;
    assert_eq!(managed.sizes().await, (2, 0, 2));
    // A new object with the same name is not the accepted one.
    managed.deployment("v2", 0).await;
    managed
        .wait_for_message("Stalled", "its UID has changed")
        .await;
    managed.edit(json!({"intent": "Abort"})).await;
    managed.phase("RolledBack").await;
    managed.rests_at(4, 0).await;
}

#[tokio::test]
async fn requests_leave_an_old_generation_that_is_deleted_and_new_is_scaled_up_without_it() {
    let mut managed = Managed::with_rollout(half()).await;
    let _controller = managed.controller().await;
    managed.half_way().await;
    managed.lose("v1").await;
    managed.fixture.wait_for_split("chat", 0, 1).await;
    let intents = [
        // At least half of the workers would have to stay.
        json!({"revisionHistoryLimit": 9}),
        json!({"intent": "Abort"}),
    ];
    for intent in intents {
        managed.edit(intent).await;
        let object = managed.rollout().await;
        managed
            .until("refused", |status| {
                let text = status["message"].as_str().unwrap_or_default();
                status["phase"] == "Stalled"
                    && status["observedGeneration"] == object["metadata"]["generation"]
                    && (text.contains("no Deployment v1") || text.contains("has been deleted"))
            })
            .await;
        assert_eq!(managed.sizes().await, (0, 2, 2));
    }
    managed
        .edit(json!({"intent": "Run", "strategy": {"partition": 0}}))
        .await;
    managed.waits_for("clients to be routed").await;
    managed.rests_at(0, 4).await;
}

#[tokio::test]
async fn a_deleted_update_is_recreated_with_the_same_split() {
    let mut managed = Managed::with_rollout(half()).await;
    let _controller = managed.controller().await;
    managed.half_way().await;
    managed.fixture.delete(&updates(), "chat").await;
    let api = managed.fixture.api(&updates());
    eventually("it is recreated", async || {
        let update = api.get_opt("chat").await.unwrap();
        let Some(update) = update else { return false };
        assert_eq!(update.data["spec"]["weights"], json!({"old": 1, "new": 1}));
        true
    })
    .await;
}

/// There is no garbage collector here, so the revisions of the deleted rollout stay.
#[tokio::test]
async fn a_rollout_that_is_deleted_and_recreated_continues_from_the_current_sizes() {
    let mut managed = Managed::with_rollout(half()).await;
    let _controller = managed.controller().await;
    managed.half_way().await;
    managed.fixture.delete(&rollouts(), "chat").await;
    managed.fixture.delete(&updates(), "chat").await;
    let source = json!({"kind": "Deployment", "name": "v1", "replicas": 4});
    let again = json!({"source": source, "strategy": {"partition": 1}});
    managed.begin(again).await;
    managed.phase("Partition").await;
    managed.rests_at(1, 3).await;
    managed.fixture.wait_for_split("chat", 1, 3).await;
}

#[tokio::test]
async fn old_may_initially_have_another_size_than_in_the_rollout() {
    let mut managed = Managed::start(2).await;
    let source = json!({"kind": "Deployment", "name": "v1", "replicas": 4});
    let given = json!({"source": source, "strategy": {"partition": 2}});
    managed.begin(given).await;
    let _controller = managed.controller().await;
    managed.half_way().await;
}

#[tokio::test]
async fn rejected_writes_are_reported() {
    let mut managed = Managed::with_rollout(half()).await;
    let policies = resource(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
    );
    let namespace = managed.fixture.namespace.clone();
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": namespace},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments/scale"],
            }]},
            "validations": [{"expression": "false", "message": "nobody scales today"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": namespace},
        "spec": {
            "policyName": namespace, "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {
                "matchLabels": {"kubernetes.io/metadata.name": namespace},
            }},
        },
    });
    let server = super::super::fixture::server();
    for object in [policy, binding] {
        let output = server.try_kubectl(&["apply", "-f", "-"], &object.to_string());
        assert!(output.status.success(), "{output:?}");
    }
    eventually("it is in force", async || {
        let size = server.try_kubectl(
            &["scale", "-n", &namespace, "deployment/v2", "--replicas=0"],
            "",
        );
        !size.status.success()
    })
    .await;
    let _controller = managed.controller().await;
    let object = managed
        .wait_for_message("Stalled", "nobody scales today")
        .await;
    let stalled = &object["status"]["conditions"][2];
    assert_eq!(
        (&stalled["type"], &stalled["status"], &stalled["reason"]),
        (&json!("Stalled"), &json!("True"), &json!("WriteRefused"))
    );
    managed
        .wait_for_event("Stalled", "nobody scales today")
        .await;
    let bindings = kube::Api::<kube::api::DynamicObject>::all_with(
        managed.fixture.client.clone(),
        &resource(
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
        ),
    );
    let params = DeleteParams::default();
    bindings.delete(&namespace, &params).await.unwrap();
    managed.half_way().await;
    let all =
        kube::Api::<kube::api::DynamicObject>::all_with(managed.fixture.client.clone(), &policies);
    all.delete(&namespace, &params).await.unwrap();
}

#[tokio::test]
async fn a_client_service_that_is_created_late_is_handed_over() {
    let automatic = json!({"handover": {"clients": "Automatic"}});
    let mut managed = Managed::with_rollout(automatic).await;
    managed.fixture.delete(&services(), "clients").await;
    let _controller = managed.controller().await;
    managed
        .wait_for_message("Stalled", "there is no Service clients with a selector")
        .await;
    let spec = json!({"selector": frontends("old"), "ports": [{"port": 8000}]});
    let service = json!({"spec": spec});
    managed
        .fixture
        .create(&services(), "clients", service)
        .await;
    let clients = managed.fixture.api(&services());
    eventually("it leads to new", async || {
        let service = clients.get("clients").await.unwrap();
        service.data["spec"]["selector"] == frontends("new")
    })
    .await;
}
