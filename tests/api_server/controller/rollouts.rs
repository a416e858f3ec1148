//! Managed updates with a real API server: sizes, split and hand-over, step by step.

mod deleted_objects;
mod deletion_cost;
mod graphs;
mod in_place;
mod kinds;
mod late_writes;
mod operator;
mod ownership;
mod reapplied_manifests;
mod revisions;

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::rig::{POLL, until};
use kube::api::{ApiResource, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::operator::{Operator, deployments};
use super::fixture::{Controller, Fixture, PATIENCE, resource, server};
use crate::gateway::{Gateway, Withheld};

fn rollouts() -> ApiResource {
    resource("nvidia.com", "v1alpha1", "DynamoRollout", "dynamorollouts")
}

fn services() -> ApiResource {
    resource("", "v1", "Service", "services")
}

fn slices() -> ApiResource {
    resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
}

/// Two generations of a worker Deployment, their frontends, the client Service, and a rollout.
struct Managed {
    fixture: Fixture,
    operator: Operator,
}

fn frontends(generation: &str) -> Value {
    json!({
        "nvidia.com/dynamo-graph-deployment-name": generation,
        "nvidia.com/dynamo-component-type": "frontend",
    })
}

impl Managed {
    /// Everything but the rollout.
    async fn start(old: u32) -> Self {
        Self::start_on(Fixture::start().await, old).await
    }

    async fn start_on(fixture: Fixture, old: u32) -> Self {
        let managed = Self {
            operator: Operator::start(&fixture),
            fixture,
        };
        managed.deployment("v1", old).await;
        managed.deployment("v2", 0).await;
        managed.fixture.frontend_of_new("new-frontend-0").await;
        for (name, of) in [("clients", "old"), ("localhost", "new")] {
            let spec = json!({"selector": frontends(of), "ports": [{"port": 8000}]});
            let service = json!({"spec": spec});
            managed.fixture.create(&services(), name, service).await;
        }
        managed.slice("clients-1", "old-frontend-0").await;
        managed
    }

    async fn with_rollout(spec: Value) -> Self {
        let mut managed = Self::start(4).await;
        managed.begin(spec).await;
        managed
    }

    async fn begin(&mut self, more: Value) {
        let rollout = json!({"spec": self.spec(more)});
        self.fixture.create(&rollouts(), "chat", rollout).await;
    }

    /// The spec of the rollout with these additional fields.
    fn spec(&self, more: Value) -> Value {
        let mut spec = json!({
            "source": {"kind": "Deployment", "name": "v1"},
            "target": {"kind": "Deployment", "name": "v2"},
            "frontends": {
                "source": "old", "target": "new", "service": "localhost", "port": self.fixture.new.address.port(),
            },
            "clientService": "clients",
        });
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        spec
    }

    async fn deployment(&self, name: &str, replicas: u32) {
        let template = json!({
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "main", "image": "any"}]},
        });
        let spec = json!({
            "replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template,
        });
        self.fixture
            .create(&deployments(), name, json!({"spec": spec}))
            .await;
    }

    /// Creates a Deployment with another name that owns the old frontends.
    async fn owned_frontends(&self, name: &str) {
        let template = json!({
            "metadata": {"labels": frontends("old")},
            "spec": {"containers": [{"name": "main", "image": "any"}]},
        });
        let spec = json!({
            "replicas": 1, "selector": {"matchLabels": frontends("old")}, "template": template,
        });
        self.fixture
            .create(&deployments(), name, json!({"spec": spec}))
            .await;
    }

    /// Makes this Deployment the owner of the pod of the old frontends.
    async fn own_frontends(&self, name: &str) {
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{name}-5d9f7c"), "uid": "1", "controller": true,
        });
        let metadata =
            json!({"ownerReferences": [owner], "labels": {"pod-template-hash": "5d9f7c"}});
        self.patch(
            &super::fixture::pods(),
            "old-frontend-0",
            json!({"metadata": metadata}),
        )
        .await;
    }

    /// Makes the client Service route to this pod.
    async fn slice(&self, name: &str, pod: &str) {
        let slice = json!({
            "metadata": {"labels": {"kubernetes.io/service-name": "clients"}}, "addressType": "IPv4",
            "ports": [{"name": "", "port": 8000, "protocol": "TCP"}],
            "endpoints": [{
                "addresses": ["10.9.0.1"], "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "name": pod},
            }],
        });
        self.fixture.create(&slices(), name, slice).await;
    }

    /// Routes clients to the new frontends, as a user does.
    async fn move_clients(&self) {
        let selector = json!({"spec": {"selector": frontends("new")}});
        self.patch(&services(), "clients", selector).await;
        self.follow_clients().await;
    }

    /// Routes clients to the old frontends again.
    async fn move_clients_back(&self) {
        let selector = json!({"spec": {"selector": frontends("old")}});
        self.patch(&services(), "clients", selector).await;
        self.fixture.delete(&slices(), "clients-2").await;
        self.slice("clients-1", "old-frontend-0").await;
    }

    /// Updates the endpoints of the client Service according to its selector.
    async fn follow_clients(&self) {
        self.fixture.delete(&slices(), "clients-1").await;
        self.slice("clients-2", "new-frontend-0").await;
    }

    async fn controller(&mut self) -> Controller {
        let controller = self.fixture.controller(&["--rollouts"]).await;
        if self.fixture.proxies.is_empty() {
            self.fixture.proxy("chat").await;
        }
        controller
    }

    async fn patch(&self, kind: &ApiResource, name: &str, patch: Value) {
        let params = PatchParams {
            field_manager: Some("a-person".into()),
            ..PatchParams::default()
        };
        let api = self.fixture.api(kind);
        api.patch(name, &params, &Patch::Merge(patch))
            .await
            .unwrap();
    }

    async fn edit(&self, spec: Value) {
        self.patch(&rollouts(), "chat", json!({"spec": spec})).await;
    }

    async fn rollout(&self) -> Value {
        let object = self.fixture.api(&rollouts()).get("chat").await.unwrap();
        serde_json::to_value(object).unwrap()
    }

    /// The requested size of a Deployment.
    async fn replicas(&self, name: &str) -> Value {
        let deployment = self.fixture.api(&deployments()).get(name).await.unwrap();
        deployment.data["spec"]["replicas"].clone()
    }

    /// The requested workers of old and new, and the ready workers of both.
    async fn sizes(&self) -> (u64, u64, u64) {
        let mut found = [(0, 0); 2];
        for (index, name) in ["v1", "v2"].into_iter().enumerate() {
            let deployment = self
                .fixture
                .api(&deployments())
                .get_opt(name)
                .await
                .unwrap();
            // A deleted Deployment has none.
            let Some(deployment) = deployment else {
                continue;
            };
            let asked = deployment.data["spec"]["replicas"].as_u64().unwrap();
            let ready = deployment.data["status"]["readyReplicas"].as_u64();
            found[index] = (asked, ready.unwrap_or(0));
        }
        (found[0].0, found[1].0, found[0].1 + found[1].1)
    }

    /// Waits until `condition` holds for the rollout, and checks the limits meanwhile.
    async fn until(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            let object = self.rollout().await;
            let (old, new, _) = self.sizes().await;
            assert!(old + new <= 5, "{old} + {new}: {}", object["status"]);
            if condition(&object["status"]) {
                return object;
            }
            let update = self
                .fixture
                .api(&super::fixture::updates())
                .get_opt("chat")
                .await;
            assert!(
                Instant::now() < deadline,
                "never {what}: {old} and {new}; {:#}; {:#?}",
                object["status"],
                update.unwrap().map(|update| update.data)
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits for an Event with this note. The update of the rollout may have another Event with the same reason.
    async fn wait_for_event(&self, reason: &str, note: &str) {
        crate::rig::eventually(&format!("{reason}: {note}"), async || {
            let mut events = self.fixture.events().await;
            let notes = events.remove(reason).unwrap_or_default();
            notes.iter().any(|message| message.contains(note))
        })
        .await;
    }

    async fn phase(&self, phase: &str) -> Value {
        self.until(phase, |status| status["phase"] == phase).await
    }

    async fn waits_for(&self, what: &str) -> Value {
        self.until(what, |status| {
            status["waitingFor"].to_string().contains(what)
        })
        .await
    }

    /// Waits until these sizes are requested and ready.
    async fn rests_at(&self, old: u64, new: u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let sizes = self.sizes().await;
            if sizes == (old, new, old + new) {
                return;
            }
            assert!(Instant::now() < deadline, "{sizes:?}");
            tokio::time::sleep(POLL).await;
        }
    }
}

#[tokio::test]
async fn a_rollout_replaces_worker_by_worker_up_to_the_hand_over() {
    let mut managed = Managed::with_rollout(json!({})).await;
    let controller = managed.controller().await;
    let object = managed.waits_for("clients to be routed").await;
    managed.rests_at(0, 4).await;
    managed.fixture.wait_for_split("chat", 0, 1).await;
    let status = &object["status"];
    assert_eq!(status["accepted"]["units"], 4);
    assert_eq!(status["source"]["workers"], "0/0");
    assert_eq!(status["target"]["workers"], "4/4");
    assert_eq!(status["split"]["percent"], 100);
    assert_eq!(status["target"]["roles"]["worker"]["recorded"], 4);
    // The fields that a user or Git owns are unchanged.
    assert_eq!(object["metadata"]["generation"], 1);
    managed.move_clients().await;
    let object = managed.phase("Complete").await;
    let ready = &object["status"]["conditions"][0];
    assert_eq!(
        (&ready["type"], &ready["status"]),
        (&json!("Ready"), &json!("True"))
    );
    let update = managed.fixture.get("chat").await;
    assert_eq!(
        update["metadata"]["ownerReferences"][0]["kind"],
        "DynamoRollout"
    );
    for (reason, expected) in [
        ("Accepted", "accepted with 4 units"),
        ("Progressing", ""),
        ("ScaledUp", "growing new to"),
        ("ScaledDown", "shrinking old to"),
        ("Complete", "new serves everything"),
    ] {
        managed.wait_for_event(reason, expected).await;
    }
    // A controller that has briefly lost the Lease has no metrics of a rollout.
    let metrics = until("the rollout has metrics", async || {
        let metrics = controller.metrics().await;
        let phases = metrics.sum("crossfade_controller_rollout_phase", &[]);
        (phases > 0.0).then_some(metrics)
    })
    .await;
    let of = |name: &str, labels: &[(&str, &str)]| {
        metrics.sum(&format!("crossfade_controller_rollout_{name}"), labels)
    };
    assert_eq!(
        of("workers", &[("generation", "new"), ("state", "ready")]),
        4.0
    );
    assert_eq!(of("workers", &[("generation", "old")]), 0.0);
    assert_eq!(of("units", &[("generation", "new")]), 4.0);
    assert_eq!(of("phase", &[("phase", "Complete")]), 1.0);
    assert_eq!((of("phase", &[]), of("stalled", &[])), (1.0, 0.0));
    assert_eq!(of("actions_total", &[("action", "grow")]), 4.0);
    assert!(of("actions_total", &[("action", "split")]) >= 4.0);
}

#[tokio::test]
async fn a_rollout_that_is_aborted_half_way_is_rolled_back() {
    let mut managed = Managed::with_rollout(json!({"strategy": {"partition": 2}})).await;
    let _controller = managed.controller().await;
    managed.phase("Partition").await;
    managed.rests_at(2, 2).await;
    managed.fixture.wait_for_split("chat", 1, 1).await;
    managed.edit(json!({"intent": "Abort"})).await;
    managed.phase("RolledBack").await;
    managed.rests_at(4, 0).await;
    managed.fixture.wait_for_split("chat", 1, 0).await;
    // Run it again.
    managed.edit(json!({"intent": "Run"})).await;
    managed.phase("Partition").await;
    managed.rests_at(2, 2).await;
}

#[tokio::test]
async fn nothing_is_written_for_a_rollout_that_is_held_or_scaled_by_others() {
    let mut managed = Managed::with_rollout(json!({"strategy": {"partition": 2}})).await;
    let _controller = managed.controller().await;
    managed.phase("Partition").await;
    managed
        .edit(json!({"intent": "Hold", "strategy": {"partition": 0}}))
        .await;
    managed.phase("Held").await;
    managed
        .edit(json!({"intent": "Run", "strategy": {"partition": 2}}))
        .await;
    managed.phase("Partition").await;
    // Another client scales the Deployment.
    let scaled = json!({"spec": {"replicas": 3}});
    managed.patch(&deployments(), "v1", scaled).await;
    managed.edit(json!({"strategy": {"partition": 2}})).await;
    let object = managed.phase("Contested").await;
    let expected = "another client to stop scaling: it scaled old's workers";
    managed.wait_for_event("Contested", expected).await;
    let conditions = object["status"]["conditions"].to_string();
    assert!(conditions.contains("ScaleContested"), "{conditions}");
    // Each further size is noticed but not changed. (The controller would want 2.)
    for replicas in [1, 3] {
        let scaled = json!({"spec": {"replicas": replicas}});
        managed.patch(&deployments(), "v1", scaled).await;
        managed
            .until("noticed", |status| {
                status["source"]["roles"]["worker"]["spec"] == replicas
                    && status["source"]["roles"]["worker"]["ready"] == replicas
                    && status["phase"] == "Contested"
            })
            .await;
        assert_eq!(managed.sizes().await, (replicas, 2, replicas + 2));
    }
    // An edit of the rollout accepts the size.
    managed.edit(json!({"strategy": {"partition": 1}})).await;
    managed.phase("Partition").await;
    managed.rests_at(1, 3).await;
}

#[tokio::test]
async fn an_autoscaler_of_a_generation_stops_a_rollout_until_it_is_deleted() {
    let mut managed = Managed::with_rollout(json!({"strategy": {"partition": 2}})).await;
    let _controller = managed.controller().await;
    managed.phase("Partition").await;
    let kind = "HorizontalPodAutoscaler";
    let autoscalers = resource("autoscaling", "v2", kind, "horizontalpodautoscalers");
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "v1"});
    let autoscaler =
        json!({"spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 4}});
    managed
        .fixture
        .create(&autoscalers, "by-load", autoscaler)
        .await;
    let object = managed.phase("Contested").await;
    let message = object["status"]["message"].to_string();
    assert!(
        message.contains("HorizontalPodAutoscaler by-load"),
        "{message}"
    );
    let conditions = object["status"]["conditions"].to_string();
    assert!(conditions.contains("ScaleContested"), "{conditions}");
    // An edit accepts a size that somebody has set, but not an autoscaler, which would set the next one.
    managed.edit(json!({"strategy": {"partition": 0}})).await;
    let generation = managed.rollout().await["metadata"]["generation"].clone();
    let is_seen = |status: &Value| status["observedGeneration"] == generation;
    let object = managed.until("the edit seen", is_seen).await;
    assert_eq!(object["status"]["phase"], "Contested");
    assert_eq!(managed.sizes().await, (2, 2, 4));
    managed.fixture.delete(&autoscalers, "by-load").await;
    managed.waits_for("clients to be routed").await;
    managed.rests_at(0, 4).await;
}

#[tokio::test]
async fn a_rollout_completes_although_the_controller_is_killed_repeatedly() {
    let mut managed = Managed::with_rollout(json!({})).await;
    let mut controller = managed.controller().await;
    for i in 0..12 {
        // Kills the controller at different moments of a rollout. No condition describes them.
        tokio::time::sleep(Duration::from_millis(1500 + 137 * i)).await;
        let (old, new, ready) = managed.sizes().await;
        assert!(old + new <= 5 && ready >= 3, "{old} {new} {ready}");
        controller.kill();
        controller = managed.controller().await;
    }
    managed.waits_for("clients to be routed").await;
    managed.rests_at(0, 4).await;
}

#[tokio::test]
async fn while_new_workers_never_become_ready_old_keeps_its_workers() {
    let strategy = json!({"strategy": {"readyTimeoutSeconds": 2}});
    let mut managed = Managed::with_rollout(strategy).await;
    managed.phase_before_pods().await;
    managed.operator.makes_ready.store(false, Ordering::Relaxed);
    let _controller = managed.controller().await;
    managed.phase("Stalled").await;
    assert_eq!(managed.sizes().await, (4, 1, 4));
    managed.fixture.wait_for_split("chat", 1, 0).await;
    managed.operator.makes_ready.store(true, Ordering::Relaxed);
    managed.waits_for("clients to be routed").await;
}

impl Managed {
    async fn is_deleted(&self, name: &str) {
        let deadline = Instant::now() + PATIENCE;
        let api = self.fixture.api(&deployments());
        while api.get_opt(name).await.unwrap().is_some() {
            let status = &self.rollout().await["status"];
            let update = &self.fixture.get("chat").await["status"];
            assert!(
                Instant::now() < deadline,
                "{name} is never deleted: {status:#} {update:#}"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until old has all its workers.
    async fn phase_before_pods(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.sizes().await.2 < 4 {
            assert!(Instant::now() < deadline, "old never has all workers");
            tokio::time::sleep(POLL).await;
        }
    }
}

#[tokio::test]
async fn the_controller_hands_clients_over_and_retires_old() {
    let handover = json!({"handover": {"clients": "Automatic", "retire": "Delete"}});
    let mut managed = Managed::with_rollout(handover).await;
    managed.owned_frontends("chat-frontend").await;
    // Its name happens to equal the label of the old frontends.
    managed.deployment("old", 0).await;
    let controller = managed.controller().await;
    // Nothing is written until the owner of the frontends is known.
    let is_refused = |status: &Value| {
        let stalled = &status["conditions"][2];
        let message = stalled["message"].as_str().unwrap_or_default();
        status["phase"] == "Refused"
            && (&stalled["type"], &stalled["status"]) == (&json!("Stalled"), &json!("True"))
            && message.contains("old-frontend-0 belongs to no Deployment")
    };
    managed.until("refused", is_refused).await;
    assert_eq!(managed.sizes().await.1, 0);
    managed.own_frontends("chat-frontend").await;
    let object = managed
        .until("the selector saved", |status| {
            !status["previousSelector"].is_null()
        })
        .await;
    assert_eq!(object["status"]["previousSelector"], frontends("old"));
    managed.waits_for("old to be safe to delete").await;
    let service = managed
        .fixture
        .api(&services())
        .get("clients")
        .await
        .unwrap();
    assert_eq!(service.data["spec"]["selector"], frontends("new"));
    assert!(managed.fixture.api(&deployments()).get("v1").await.is_ok());
    managed.follow_clients().await;
    managed.is_deleted("v1").await;
    managed.is_deleted("chat-frontend").await;
    managed.phase("Complete").await;
    assert!(managed.fixture.api(&deployments()).get("old").await.is_ok());
    // The pods of the old frontends are deleted with their proxies. A controller that restarts sees only the remaining objects.
    managed.fixture.proxies.clear();
    managed
        .fixture
        .delete(&super::fixture::pods(), "old-frontend-0")
        .await;
    drop(controller);
    let _controller = managed.fixture.controller(&["--rollouts"]).await;
    managed
        .edit(json!({"strategy": {"stepIntervalSeconds": 1}}))
        .await;
    let is_seen = |status: &Value| status["observedGeneration"] == 2;
    let object = managed.until("the edit seen", is_seen).await;
    assert_eq!(
        object["status"]["phase"], "Complete",
        "{:#}",
        object["status"]
    );
    managed.edit(json!({"intent": "Abort"})).await;
    let object = managed.phase("Stalled").await;
    let message = object["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("the old generation has been deleted"),
        "{message}"
    );
    managed.edit(json!({"intent": "Run"})).await;
    managed.phase("Complete").await;
}

#[tokio::test]
async fn the_frontends_of_old_are_scaled_to_zero() {
    let mut managed = Managed::with_rollout(json!({})).await;
    managed.owned_frontends("old").await;
    let _controller = managed.controller().await;
    managed.own_frontends("old").await;
    managed.waits_for("clients to be routed").await;
    managed
        .edit(json!({"handover": {"retire": "ScaleToZero"}}))
        .await;
    managed.move_clients().await;
    managed.phase("Complete").await;
    assert_eq!(managed.replicas("old").await, 0);
    // After a rollback, they are scaled to zero once more.
    managed.edit(json!({"intent": "Abort"})).await;
    managed.move_clients_back().await;
    managed.phase("RolledBack").await;
    let one = json!({"spec": {"replicas": 1}});
    managed.patch(&deployments(), "old", one).await;
    managed.edit(json!({"intent": "Run"})).await;
    managed.waits_for("clients to be routed").await;
    managed.move_clients().await;
    managed.phase("Complete").await;
    assert_eq!(managed.replicas("old").await, 0);
}

#[tokio::test]
async fn old_is_not_retired_because_of_an_outdated_status() {
    let mut managed = Managed::with_rollout(json!({})).await;
    managed.owned_frontends("old").await;
    let gateway = Gateway::before(&managed.fixture.client).await;
    managed.fixture.kubeconfig = gateway.kubeconfig();
    let controller = managed.controller().await;
    managed.own_frontends("old").await;
    managed.waits_for("clients to be routed").await;
    managed.move_clients().await;
    managed.phase("Complete").await;
    let is_safe = |object: &Value| object["status"]["safeToDeleteOld"] == true;
    managed.fixture.until("chat", "safe", is_safe).await;
    // The status is not updated while a new route to old appears.
    gateway.withhold(Withheld {
        statuses: true,
        ..Withheld::default()
    });
    let legacy = json!({"spec": {"selector": frontends("old"), "ports": [{"port": 80}]}});
    managed.fixture.create(&services(), "legacy", legacy).await;
    let reconciles = async || {
        let metrics = controller.metrics().await;
        metrics.sum("crossfade_controller_reconciles_total", &[])
    };
    let before = reconciles().await;
    crate::rig::eventually("it is reconciled", async || {
        reconciles().await >= before + 3.0
    })
    .await;
    managed
        .edit(json!({"handover": {"retire": "ScaleToZero"}}))
        .await;
    managed.waits_for("old to be safe to delete").await;
    assert!(is_safe(&managed.fixture.get("chat").await), "by its status");
    let replicas = async || {
        let old = managed
            .fixture
            .api(&deployments())
            .get("old")
            .await
            .unwrap();
        old.data["spec"]["replicas"].as_u64().unwrap()
    };
    for _ in 0..50 {
        assert_ne!(replicas().await, 0);
        // Must hold for five seconds, in which the controller reconciles at least once.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    gateway.withhold(Withheld::default());
    managed.fixture.delete(&services(), "legacy").await;
    managed.phase("Complete").await;
    assert_eq!(replicas().await, 0);
}

#[tokio::test]
async fn a_rollout_completes_although_the_controller_was_killed_while_it_deleted_old() {
    let handover = json!({"handover": {"clients": "Automatic", "retire": "Delete"}});
    let mut managed = Managed::with_rollout(handover).await;
    managed.owned_frontends("old").await;
    let controller = managed.controller().await;
    managed.own_frontends("old").await;
    managed.waits_for("old to be safe to delete").await;
    managed.follow_clients().await;
    managed.is_deleted("v1").await;
    managed.phase("Complete").await;
    drop(controller);
    // As if the controller had been killed before it recorded the deletion. The old frontends and their proxies are deleted.
    managed.fixture.proxies.clear();
    managed
        .fixture
        .delete(&super::fixture::pods(), "old-frontend-0")
        .await;
    let status = json!({"status": {"phase": "Progressing", "memory": {"retired": null}}});
    let params = PatchParams::default();
    let api = managed.fixture.api(&rollouts());
    let patched = api
        .patch_status("chat", &params, &Patch::Merge(status))
        .await;
    patched.unwrap();
    let _controller = managed.fixture.controller(&["--rollouts"]).await;
    managed.phase("Complete").await;
}

#[tokio::test]
async fn a_user_may_delete_what_a_complete_rollout_retains() {
    let mut managed = Managed::with_rollout(json!({})).await;
    let controller = managed.controller().await;
    managed.waits_for("clients to be routed").await;
    managed.move_clients().await;
    managed.phase("Complete").await;
    managed.fixture.delete(&deployments(), "v1").await;
    drop(controller);
    let _controller = managed.fixture.controller(&["--rollouts"]).await;
    managed
        .edit(json!({"strategy": {"stepIntervalSeconds": 1}}))
        .await;
    let is_seen = |status: &Value| status["observedGeneration"] == 2;
    let object = managed.until("the edit seen", is_seen).await;
    assert_eq!(
        object["status"]["phase"], "Complete",
        "{:#}",
        object["status"]
    );
}

#[tokio::test]
async fn a_third_generation_waits_until_the_second_is_rolled_back() {
    let mut managed = Managed::with_rollout(json!({"strategy": {"partition": 2}})).await;
    managed.deployment("v3", 0).await;
    let _controller = managed.controller().await;
    managed.phase("Partition").await;
    managed.rests_at(2, 2).await;
    let watched = revisions::Watched::begin(&managed);
    managed
        .edit(json!({"target": {"kind": "Deployment", "name": "v3"}, "strategy": {"partition": 0}}))
        .await;
    managed
        .until("another target", |status| {
            status["accepted"]["target"]["roles"]["worker"]["name"] == "v3"
        })
        .await;
    managed.rests_at(4, 0).await;
    managed
        .until("new is v3", |status| status["target"]["workers"] == "4/4")
        .await;
    assert_eq!(managed.sizes().await.1, 0);
    watched.end().await;
}

#[tokio::test]
async fn preconditions_are_reported_before_the_first_write() {
    let mut managed = Managed::start(0).await;
    managed.begin(json!({})).await;
    let _controller = managed.fixture.controller(&["--rollouts"]).await;
    let refused = |status: &Value, why: &str| {
        status["phase"] == "Refused"
            && status["message"]
                .as_str()
                .is_some_and(|message| message.contains(why))
    };
    managed
        .until("no size", |status| {
            refused(status, "source has no replicas of the role worker now")
        })
        .await;
    managed
        .edit(json!({"target": {"kind": "Deployment", "name": "v9"}}))
        .await;
    managed
        .until("no target", |status| {
            refused(status, "there is no Deployment v9")
        })
        .await;
    managed
        .edit(json!({
            "target": {"kind": "Deployment", "name": "v2"}, "source": {"replicas": 4},
        }))
        .await;
    managed.fixture.update("chat", json!({})).await;
    managed
        .until("taken", |status| {
            status["message"].as_str().is_some_and(|message| {
                message.contains("the DynamoUpdateConfig chat already exists")
            })
        })
        .await;
    assert_eq!(managed.sizes().await, (0, 0, 0));
}

/// Grants the controller's service account the permissions in `deploy/`, and access to the Lease in this namespace.
fn with_own_rights(admin: &str, namespace: &str, place: &std::path::Path) {
    // Concurrent first applies of the same object conflict.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap();
    super::fixture::as_service_account(admin, place);
    let deploy = |file: &str| format!("{}/deploy/rollout/{file}", env!("CARGO_MANIFEST_DIR"));
    let server = server();
    server.kubectl(&["apply", "-k", &deploy("")]);
    server.kubectl(&["apply", "-n", namespace, "-f", &deploy("namespace.yaml")]);
    let leases = "--resource=leases.coordination.k8s.io";
    let verbs = "--verb=create,get,update";
    server.kubectl(&["create", "role", "lease", verbs, leases, "-n", namespace]);
    let account = "--serviceaccount=crossfade:crossfade-controller";
    server.kubectl(&[
        "create",
        "rolebinding",
        "lease",
        "--role=lease",
        account,
        "-n",
        namespace,
    ]);
}

impl Managed {
    /// A controller with exactly the permissions in `deploy/`.
    async fn controller_with_own_rights(&mut self, name: &str) -> Controller {
        let file = format!("{name}.kubeconfig");
        let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
        let own = place.to_string_lossy().into_owned();
        let (admin, namespace) = (
            self.fixture.kubeconfig.clone(),
            self.fixture.namespace.clone(),
        );
        tokio::task::spawn_blocking(move || with_own_rights(&admin, &namespace, &place))
            .await
            .unwrap();
        let admin = std::mem::replace(&mut self.fixture.kubeconfig, own);
        let controller = self.fixture.controller(&["--rollouts"]).await;
        self.fixture.kubeconfig = admin;
        controller
    }
}

#[tokio::test]
async fn the_permissions_in_deploy_are_sufficient_and_the_policy_admits_only_what_the_rollout_names()
 {
    let handover = json!({"handover": {"clients": "Automatic", "retire": "Delete"}});
    let mut managed = Managed::with_rollout(handover).await;
    managed.deployment("other", 1).await;
    let namespace = managed.fixture.namespace.clone();
    // The unchanged policy, for the namespace and the rollout of this test.
    let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/rollout/policy.yaml");
    let policy = std::fs::read_to_string(policy).unwrap();
    let policy = policy.replace("inference", &namespace);
    tokio::task::spawn_blocking(move || server().apply(&policy))
        .await
        .unwrap();
    let _controller = managed.controller_with_own_rights("rollouts").await;
    managed.owned_frontends("old").await;
    managed.fixture.proxy("chat").await;
    managed.own_frontends("old").await;
    managed.waits_for("old to be safe to delete").await;
    managed.follow_clients().await;
    managed.is_deleted("v1").await;
    managed.is_deleted("old").await;
    let namespace = managed.fixture.namespace.clone();
    let unnamed = "the rollout chat does not name this object";
    let of_services = "the rollout chat changes only the selector of its clientService";
    let labels = r#"{"spec": {"selector": {"app": "other"}}}"#;
    let ports = r#"{"spec": {"ports": [{"port": 8000, "targetPort": 9000}]}}"#;
    let of_workers = "the rollout chat changes only the partition";
    let of_pods = "the rollout chat changes only the annotations";
    let image =
        r#"{"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "b"}]}}}}"#;
    let partition = r#"{"spec": {"updateStrategy": {"rollingUpdate": {"partition": 2}}}}"#;
    // Like the controller, `kubectl scale` reads the object and then writes its scale.
    let tries = [
        (vec!["scale", "deployment/other", "--replicas=0"], unnamed),
        (vec!["delete", "deployment/other"], unnamed),
        // Only the old generation may be deleted.
        (vec!["delete", "deployment/v2"], unnamed),
        (
            vec!["patch", "service/localhost", "-p", labels],
            of_services,
        ),
        (vec!["patch", "service/clients", "-p", ports], of_services),
        (vec!["patch", "statefulset/other", "-p", partition], unnamed),
        (vec!["patch", "statefulset/v1", "-p", image], of_workers),
        (vec!["patch", "statefulset/v1", "-p", partition], "patched"),
        (vec!["annotate", "pod/other-0", "a=b"], unnamed),
        (vec!["annotate", "pod/v2-0", "a=b"], "annotated"),
        (vec!["label", "pod/v2-0", "a=b"], of_pods),
        (vec!["delete", "pod/other-0"], unnamed),
        (vec!["delete", "pod/v2-0"], "deleted"),
    ];
    let container = json!({"name": "c", "image": "a"});
    let stateful = ["v1", "other"].map(|name| {
        json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": name},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [container]},
                },
            },
        })
    });
    tokio::task::spawn_blocking(move || {
        let account = "--as=system:serviceaccount:crossfade:crossfade-controller";
        for object in stateful {
            let create = ["create", "-n", &namespace, "-f", "-"];
            server().kubectl_with(&create, &object.to_string());
        }
        for (args, expected) in tries {
            let args = [&args[..], &[account, "-n", &namespace]].concat();
            let output = server().try_kubectl(&args, "");
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            assert!(text.contains(expected), "{args:?}: {text}");
        }
    })
    .await
    .unwrap();
}

/// The API server does not show who has set a size to 0.
#[tokio::test]
async fn a_controller_that_was_killed_before_it_recorded_that_old_is_empty_continues() {
    let mut managed = Managed::with_rollout(json!({})).await;
    let controller = managed.controller().await;
    managed.waits_for("clients to be routed").await;
    managed.rests_at(0, 4).await;
    drop(controller);
    let status = json!({"status": {"source": {"roles": {"worker": {"recorded": 1}}}}});
    let (api, patch) = (managed.fixture.api(&rollouts()), Patch::Merge(status));
    let params = PatchParams::default();
    let patched = api.patch_status("chat", &params, &patch).await;
    patched.unwrap();
    let _controller = managed.controller().await;
    managed.move_clients().await;
    managed.phase("Complete").await;
}

/// Once a Deployment was scaled to 0, the API server no longer shows who scales it.
#[tokio::test]
async fn a_controller_that_was_killed_before_it_recorded_that_old_grows_again_continues() {
    let mut managed = Managed::with_rollout(json!({})).await;
    let controller = managed.controller().await;
    managed.waits_for("clients to be routed").await;
    managed.rests_at(0, 4).await;
    managed.edit(json!({"intent": "Abort"})).await;
    managed
        .until("announced", |status| {
            status["memory"]["resizing"] == json!({"generation": "old", "sizes": {"worker": 1}})
        })
        .await;
    drop(controller);
    let params = PatchParams::default();
    let scaled = Patch::Merge(json!({"spec": {"replicas": 1}}));
    let api = managed.fixture.api(&deployments());
    api.patch_scale("v1", &params, &scaled).await.unwrap();
    let status = json!({"status": {"source": {"roles": {"worker": {"recorded": 0}}}}});
    let (api, patch) = (managed.fixture.api(&rollouts()), Patch::Merge(status));
    api.patch_status("chat", &params, &patch).await.unwrap();
    let _controller = managed.controller().await;
    managed.phase("RolledBack").await;
    managed.rests_at(4, 0).await;
}

#[tokio::test]
async fn a_controller_that_was_killed_before_it_recorded_a_size_continues() {
    let mut managed = Managed::with_rollout(json!({"strategy": {"partition": 2}})).await;
    let controller = managed.controller().await;
    managed.phase("Partition").await;
    managed.rests_at(2, 2).await;
    drop(controller);
    // The phase is changed, too, so that the test can see when the next controller has reconciled.
    let status = json!({"status": {
        "phase": "Progressing", "source": {"roles": {"worker": {"recorded": 3}}},
    }});
    let (api, patch) = (managed.fixture.api(&rollouts()), Patch::Merge(status));
    let params = PatchParams::default();
    let patched = api.patch_status("chat", &params, &patch).await;
    patched.unwrap();
    let _controller = managed.controller().await;
    // An edit would accept any size.
    let object = managed
        .until("decided", |status| {
            ["Partition", "Contested"].contains(&status["phase"].as_str().unwrap())
        })
        .await;
    assert_eq!(object["status"]["phase"], "Partition", "{object:#}");
}
