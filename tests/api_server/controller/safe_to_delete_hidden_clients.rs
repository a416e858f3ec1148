//! `safeToDeleteOld` stays false while the controller lacks the information, or while clients use old on a route that no object
//! shows.

use std::sync::Arc;

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, pods, resource, updates};
use super::safe_to_delete::{clients, is_safe, lacks, lead_clients_to, safe, services, slices};
use crate::rig::*;

/// An update without workers and clients of old, for a controller that starts afterwards.
pub async fn left(fixture: &Fixture) {
    fixture.frontend_of_new("new-frontend-0").await;
    lead_clients_to(fixture, "new-frontend-0").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    // The controller must have seen the workers of old to know that they were scaled down on purpose.
    fixture.wait_for_split("up", 1, 1).await;
    fixture.delete_old_workers().await;
}

const NO_CLIENT: &str = "the pods of old's frontends have received requests recently";

#[tokio::test]
async fn a_controller_of_one_namespace_reports_old_as_safe_to_delete_only_if_configured_that_nothing_else_leads_there()
 {
    let clients = json!({"clientService": "clients"});
    let (server, fixture) = Fixture::alone_with_update(clients).await;
    // With the permissions in `deploy/`, which do not allow it to read all objects in all namespaces.
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("one-namespace.kubeconfig");
    let server = Arc::new(server);
    tokio::task::spawn_blocking({
        let (server, admin, place) = (
            Arc::clone(&server),
            fixture.kubeconfig.clone(),
            place.clone(),
        );
        move || super::fixture::as_service_account_of(&server, &admin, &place)
    })
    .await
    .unwrap();
    let quick = [
        "--lease-namespace",
        "crossfade",
        "--allow-any-target",
        "--quiet-period",
        "1",
    ];
    let args = [&["--namespace", &fixture.namespace], &quick[..]].concat();
    let wary = Controller::start(&place.to_string_lossy(), &args).await;
    left(&fixture).await;
    let unknown = lacks(false, "this controller can read only one namespace");
    let object = fixture.until("up", "unknown", unknown).await;
    assert_eq!(object["status"]["phase"], "Complete");
    let missing = &object["status"]["missingForDeletion"];
    fixture
        .until("up", "nothing else is missing", |object| {
            let missing = object["status"]["missingForDeletion"].as_array();
            missing.is_some_and(|all| all.len() == 1)
        })
        .await;
    assert!(!is_safe(&object), "{missing}");
    drop(wary);
    let configured = fixture.controller(&[]).await;
    fixture.until("up", "safe", is_safe).await;
    drop(configured);
    // An administrator may read everything, so the controller watches all namespaces.
    let _sees = fixture.wary_controller(&["--quiet-period", "1"]).await;
    let is_safe_anew = {
        let before = fixture.get("up").await["status"]["observedAt"].clone();
        move |object: &Value| is_safe(object) && object["status"]["observedAt"] != before
    };
    fixture.until("up", "safe anew", is_safe_anew).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_client_uses_its_pods_on_an_unknown_route() {
    let fixture = Fixture::with_update(json!({"clientService": "clients"})).await;
    let isolated = ["--assume-isolated-namespace", "--quiet-period", "8"];
    let _controller = fixture.wary_controller(&isolated).await;
    left(&fixture).await;
    fixture.until("up", "safe", is_safe).await;
    // For example the address of a pod, a host port, or a cached name. No object shows such routes.
    for path in [CHAT, "/tokenize"] {
        let response = client::post(fixture.proxies[0].address, path, &[], STREAMING).await;
        assert_eq!(response.generation(), "new", "{path}");
        fixture.until("up", path, lacks(true, NO_CLIENT)).await;
        fixture.until("up", "safe again", is_safe).await;
    }
    // Health checks do not count as clients.
    client::get(fixture.proxies[0].address, "/health").await;
    let is_kept = |object: &Value| {
        let since = object["status"]["observedAt"].as_str();
        is_safe(object) && since.is_some()
    };
    fixture.until("up", "still safe", is_kept).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_proxy_has_run_for_less_than_the_quiet_period() {
    let fixture = Fixture::with_update(json!({"clientService": "clients"})).await;
    let isolated = ["--assume-isolated-namespace", "--quiet-period", "3600"];
    let _controller = fixture.wary_controller(&isolated).await;
    left(&fixture).await;
    fixture
        .until("up", "nobody came, as far as it knows", |object| {
            let missing = object["status"]["missingForDeletion"].as_array();
            let only = missing.is_some_and(|missing| missing.len() == 1);
            only && lacks(true, NO_CLIENT)(object)
        })
        .await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_an_inference_pool_leads_to_it() {
    let (fixture, _controller) = safe().await;
    let graph = "nvidia.com/dynamo-graph-deployment-name";
    let own_port = fixture.old.address.port();
    for (group, version, spec, around) in [
        (
            "inference.networking.k8s.io",
            "v1",
            json!({"selector": {"matchLabels": {graph: "old"}}, "targetPorts": [{"number": 8000}]}),
            false,
        ),
        (
            "inference.networking.x-k8s.io",
            "v1alpha2",
            json!({"selector": {graph: "old"}, "targetPortNumber": own_port}),
            true,
        ),
    ] {
        let kind = resource(group, version, "InferencePool", "inferencepools");
        fixture.create(&kind, "pool", json!({"spec": spec})).await;
        let leads = lacks(!around, "InferencePool pool");
        fixture.until("up", group, leads).await;
        fixture.delete(&kind, "pool").await;
        fixture.until("up", "safe again", is_safe).await;
    }
}

#[tokio::test]
async fn the_last_worker_of_old_is_needed_while_an_inference_pool_selects_it() {
    let (fixture, _controller) = safe().await;
    let kind = resource(
        "inference.networking.k8s.io",
        "v1",
        "InferencePool",
        "inferencepools",
    );
    fixture.edit("up", json!({"drainOld": true})).await;
    fixture.worker("old", 9, "worker").await;
    fixture
        .until("up", "safe with a worker", |object| {
            let workers = object["status"]["old"]["workers"].as_str();
            workers.is_some_and(|workers| workers.starts_with("1/")) && is_safe(object)
        })
        .await;
    // It selects the workers of new, too.
    let selector = json!({"matchLabels": {"nvidia.com/dynamo-component-type": "worker"}});
    let spec = json!({"selector": selector, "targetPorts": [{"number": 8000}]});
    fixture.create(&kind, "pool", json!({"spec": spec})).await;
    let around = lacks(false, "InferencePool pool");
    fixture.until("up", "a pool of workers", around).await;
    fixture.delete(&kind, "pool").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_host_port_bypasses_its_proxy() {
    let (mut fixture, _controller) = safe().await;
    let port = fixture.old.address.port();
    let ports = json!([{"name": "frontend", "containerPort": port, "hostPort": 8081}]);
    fixture.proxy_in("old-frontend-9", "old", ports, "up").await;
    let around = lacks(false, "host port 8081 of old-frontend-9");
    fixture.until("up", "a host port", around).await;
    fixture.delete(&pods(), "old-frontend-9").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_third_deployment_keeps_the_plan_of_a_deleted_update_that_led_to_it()
 {
    let (mut fixture, _controller) = safe().await;
    for i in 0..4 {
        fixture.worker("third", i, "worker").await;
    }
    let gone = json!({
        "newFrontendService": fixture.old.url(), "sourceDeployment": "third", "targetDeployment": "old",
        "trafficSplitPercent": 50, "paused": true, "strict": true,
    });
    fixture.update("gone", gone).await;
    fixture.proxy_of("third", "gone").await;
    let leads = lacks(
        false,
        "route to the frontends of old: gone, the proxy of third-frontend-1",
    );
    fixture.until("up", "another update needs old", leads).await;
    fixture.pod_ready("third-worker-0", false).await;
    fixture
        .until("gone", "the status shows the capacity", |object| {
            object["status"]["old"]["capacityPercent"] == 75
        })
        .await;
    fixture.delete(&updates(), "gone").await;
    fixture.wait_for_event("DeletedNewKept").await;
    // No update shows it any more.
    let leads = |object: &Value| {
        let missing = object["status"]["missingForDeletion"].to_string();
        missing.contains("of old: the proxy of third-frontend-1")
            && lacks(false, "the proxy of third-frontend-1")(object)
    };
    fixture.until("up", "its plan leads to old", leads).await;
    // A proxy that does not report its targets may send requests anywhere.
    drop(fixture.proxies.pop());
    let silent = "third-frontend-1, whose proxy does not report where it routes";
    fixture.until("up", "unknown", lacks(false, silent)).await;
    fixture.delete(&pods(), "third-frontend-1").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_new_is_behind_a_proxy_whose_targets_cannot_be_queried() {
    let (fixture, _controller) = safe().await;
    let before_new = Proxy::before(&fixture.new, &[]).await;
    let url = format!("http://{}", before_new.address);
    fixture
        .edit("up", json!({"newFrontendService": url.clone()}))
        .await;
    let unknown = format!("a proxy in front of {url}, whose pod has no port crossfade");
    let unknown: &'static str = Box::leak(unknown.into_boxed_str());
    fixture.until("up", "unknown", lacks(false, unknown)).await;
    let ports = json!([{"name": "crossfade", "containerPort": before_new.admin.port()}]);
    fixture
        .pod("new-frontend-1", json!({"app": "new"}), ports)
        .await;
    fixture.pod_ready("new-frontend-1", true).await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn a_flag_that_another_client_wrote_into_the_status_is_reverted() {
    let fixture = Fixture::with_update(json!({"clientService": "clients"})).await;
    let _controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    let object = fixture.wait_for_split("up", 4, 1).await;
    let mut forged = object["status"].clone();
    for (field, value) in [
        ("phase", json!("Complete")),
        ("safeToDeleteOld", json!(true)),
        ("lastOldWorkerDispensable", json!(true)),
        ("validUntil", json!("2099-01-01T00:00:00Z")),
        (
            "observedGeneration",
            object["metadata"]["generation"].clone(),
        ),
    ] {
        forged[field] = value;
    }
    forged["memory"]["phase"] = json!("Complete");
    forged["memory"]["overdue"] = json!(true);
    fixture.status(&updates(), "up", forged).await;
    let object = fixture
        .until("up", "taken back", |object| {
            let status = &object["status"];
            status["safeToDeleteOld"] == false && status["lastOldWorkerDispensable"] == false
        })
        .await;
    assert_eq!(object["status"]["phase"], "Progressing", "{object}");
    fixture.wait_for_split("up", 4, 1).await;
}

#[tokio::test]
async fn an_unreadable_memory_in_the_status_is_reported_by_an_event_and_reset() {
    let server = tokio::task::spawn_blocking(super::fixture::new_server).await;
    let server = Arc::new(server.unwrap());
    let mut fixture = Fixture::start_on(&server).await;
    fixture.begin(json!({})).await;
    let mut controller = fixture.controller(&[]).await;
    fixture.worker("new", 0, "worker").await;
    fixture.wait_for_split("up", 4, 1).await;
    controller.kill();
    // As a later version could write it, with an unknown phase.
    let memory = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/memory";
    let path = format!("{memory}/properties/phase/enum");
    let patch = json!([{"op": "remove", "path": path}]).to_string();
    let kubectl = Arc::clone(&server);
    tokio::task::spawn_blocking(move || {
        let kind = "dynamoupdateconfigs.nvidia.com";
        kubectl.kubectl(&["patch", "crd", kind, "--type=json", "-p", &patch]);
    })
    .await
    .unwrap();
    eventually("the API server takes it", async || {
        let status = json!({"memory": {"phase": "Verifying"}});
        fixture
            .status_unless_refused(&updates(), "up", status)
            .await
    })
    .await;
    let _controller = fixture.controller(&[]).await;
    let note = fixture.wait_for_event("MemoryLost").await;
    assert!(note.contains("status.memory"), "{note}");
    fixture.worker("new", 1, "worker").await;
    fixture.wait_for_split("up", 2, 1).await;
}

#[tokio::test]
async fn lost_read_permissions_clear_the_flags() {
    let server = tokio::task::spawn_blocking(super::fixture::new_server).await;
    let server = Arc::new(server.unwrap());
    let mut fixture = Fixture::start_on(&server).await;
    fixture.begin(json!({"clientService": "clients"})).await;
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("refused.kubeconfig");
    let role = tokio::task::spawn_blocking({
        let (server, admin) = (Arc::clone(&server), fixture.kubeconfig.clone());
        let place = place.clone();
        move || {
            super::fixture::as_service_account_of(&server, &admin, &place);
            server.get(&["clusterrole", "crossfade-controller"])
        }
    });
    let role = role.await.unwrap();
    let args = [
        "--namespace",
        &fixture.namespace,
        "--lease-namespace",
        "crossfade",
        "--allow-any-target",
        "--assume-isolated-namespace",
        "--quiet-period",
        "1",
    ];
    let _controller = Controller::start(&place.to_string_lossy(), &args).await;
    left(&fixture).await;
    fixture.until("up", "safe", is_safe).await;
    // The controller may no longer read Ingresses: 403 when it next lists or watches them.
    let mut without = role.clone();
    let rules = without["rules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["resources"] != json!(["ingresses"]));
    let set = async |role: &Value| {
        let (server, role) = (Arc::clone(&server), role.clone());
        let patch = json!({"rules": role["rules"]}).to_string();
        tokio::task::spawn_blocking(move || {
            let name = ["patch", "clusterrole", "crossfade-controller", "-p", &patch];
            server.kubectl(&[&name[..], &["--type=merge"]].concat());
        })
        .await
        .unwrap();
    };
    set(&without).await;
    let stale = lacks(false, "no recent contact with the API server");
    fixture.until("up", "refused", stale).await;
    set(&role).await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_the_client_service_is_deleted_with_it_or_has_no_port_of_new()
 {
    let (fixture, _controller) = safe().await;
    let services = services();
    let owner = json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "name": "old",
        "uid": "6f1ac2d0-0000-4000-8000-000000000000",
    });
    let spec = json!({"clusterIP": "None", "selector": {"app": "new"}});
    let owned = json!({"metadata": {"ownerReferences": [owner]}, "spec": spec});
    fixture.replace(&services, "clients", owned).await;
    let goes = lacks(true, "Service clients, which is deleted together with old");
    fixture.until("up", "it goes with old", goes).await;
    fixture.replace(&services, "clients", clients()).await;
    fixture.until("up", "safe again", is_safe).await;
    // The pods do not have the named port, so the slice has no port.
    let ports = json!([{"port": 80, "targetPort": "no-such-port"}]);
    let portless = json!({"spec": {"selector": {"app": "new"}, "ports": ports}});
    fixture.replace(&services, "clients", portless).await;
    let unreachable = lacks(true, "to a ready frontend of new on each of its ports");
    fixture.until("up", "no port", unreachable).await;
    fixture.replace(&services, "clients", clients()).await;
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_pod_that_stays_uses_a_volume_that_is_deleted_with_it() {
    let (fixture, _controller) = safe().await;
    let claims = resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims");
    // As the operator creates it for a graph that requests it. The next graph only mounts it.
    let owner = json!({
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "name": "old", "controller": true,
        "uid": "6f1ac2d0-0000-4000-8000-000000000000",
    });
    let spec =
        json!({"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}});
    let owned = json!({"metadata": {"ownerReferences": [owner]}, "spec": spec});
    fixture.create(&claims, "models", owned).await;
    let pod = |graph: &str| {
        json!({
            "metadata": {"labels": {"nvidia.com/dynamo-graph-deployment-name": graph}},
            "spec": {
                "automountServiceAccountToken": false, "containers": [{"name": "main", "image": "any"}],
                "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
            },
        })
    };
    fixture.create(&pods(), "loads-for-old", pod("old")).await;
    fixture.create(&pods(), "loads-for-new", pod("new")).await;
    let is_deleted = lacks(
        true,
        "PersistentVolumeClaim models, which is deleted together with old",
    );
    fixture
        .until("up", "a volume is deleted with old", &is_deleted)
        .await;
    fixture.delete(&pods(), "loads-for-new").await;
    fixture.until("up", "only old uses it", is_safe).await;
    fixture.create(&pods(), "loads-again", pod("new")).await;
    fixture
        .until("up", "a volume is deleted again", &is_deleted)
        .await;
    let kept = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
    let (params, api) = (PatchParams::default(), fixture.api(&claims));
    api.patch("models", &params, &kept).await.unwrap();
    fixture.until("up", "the volume stays", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_the_proxy_of_a_started_frontend_has_not_been_queried() {
    let (mut fixture, _controller) = safe().await;
    // An autoscaler adds an old frontend. Its pod has an address before its proxy has been discovered.
    let labels = json!({
        "nvidia.com/dynamo-graph-deployment-name": "old", "nvidia.com/dynamo-component-type": "frontend",
    });
    let nobody = Upstream::nobody();
    let ports = json!([{"name": "crossfade", "containerPort": nobody.port()}]);
    fixture.pod("old-frontend-late", labels, ports).await;
    fixture.pod_ready("old-frontend-late", false).await;
    let waits = |object: &Value| {
        let status = &object["status"];
        status["safeToDeleteOld"] == false
            && status["lastOldWorkerDispensable"] == false
            && status["phase"] == "Draining"
    };
    fixture.until("up", "draining again", waits).await;
    fixture.delete(&pods(), "old-frontend-late").await;
    fixture.until("up", "safe again", is_safe).await;
    // A proxy that restarts without state sends to old until it has read the update.
    drop(fixture.proxies.remove(0));
    fixture.until("up", "its proxy is gone", waits).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_proxy_outside_of_its_frontends_follows_the_update_and_uses_old()
 {
    let fixture = Fixture::with_update(json!({"clientService": "clients"})).await;
    // A standalone proxy in front of old, or one in pods without the labels of old's frontends.
    let args = [
        "--old",
        &fixture.old.url(),
        "--kube",
        "--kube-deployment",
        "old",
        "--kube-namespace",
        &fixture.namespace,
        "--kube-allow-any-target",
    ];
    let env = [("KUBECONFIG", fixture.kubeconfig.as_str())];
    let stray = Proxy::start_with_env(&args, &env).await;
    let ports = json!([{"name": "crossfade", "containerPort": stray.admin.port()}]);
    fixture.pod("stray", json!({"app": "stray"}), ports).await;
    fixture.pod_ready("stray", true).await;
    let mut client = Client::connect(stray.address).await;
    client.post(CHAT, &[("x-ends", "300000")], STREAMING).await;
    client.head().await;
    client.until("\n\n").await;
    let _controller = fixture.controller(&[]).await;
    left(&fixture).await;
    let uses = lacks(
        false,
        "the proxy of stray, which follows this update and still uses old",
    );
    let object = fixture.until("up", "a stream on old", uses).await;
    assert_eq!(object["status"]["phase"], "Complete", "{object}");
    drop(client);
    fixture.until("up", "safe", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_another_proxy_has_two_admin_ports_or_the_address_of_another_pod()
 {
    let (fixture, _controller) = safe().await;
    let third = Proxy::before(&fixture.new, &[]).await;
    let port = |port| json!([{"name": "crossfade", "containerPort": port}]);
    let labels = json!({"app": "third"});
    // Only one of them can be the proxy's.
    let containers = json!([
        {"name": "one", "image": "any", "ports": port(third.admin.port())},
        {"name": "two", "image": "any", "ports": port(9)},
    ]);
    let spec = json!({"automountServiceAccountToken": false, "containers": containers});
    let pod = json!({"metadata": {"labels": labels}, "spec": spec});
    fixture.create(&pods(), "third-0", pod).await;
    fixture.pod_ready("third-0", true).await;
    let unknown = "third-0, whose proxy does not report where it routes";
    fixture
        .until("up", "two ports", lacks(false, unknown))
        .await;
    fixture.delete(&pods(), "third-0").await;
    fixture.until("up", "safe again", is_safe).await;

    for name in ["third-0", "third-1"] {
        let port = port(third.admin.port());
        fixture.pod(name, labels.clone(), port).await;
        fixture.pod_ready(name, true).await;
    }
    fixture
        .until("up", "one address", lacks(false, unknown))
        .await;
    fixture.delete(&pods(), "third-1").await;
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_proxy_that_follows_another_plan_has_it_as_its_own_old() {
    let (fixture, _controller) = safe().await;
    // A standalone proxy whose flags and plan no update shows.
    let third = Proxy::before(&fixture.old, &[]).await;
    let ports = json!([{"name": "crossfade", "containerPort": third.admin.port()}]);
    fixture.pod("third", json!({"app": "third"}), ports).await;
    fixture.pod_ready("third", true).await;
    let leads = "route to the frontends of old: the proxy of third";
    fixture
        .until("up", "it uses old", lacks(false, leads))
        .await;
    fixture.delete(&pods(), "third").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_needed_while_a_service_leads_to_the_proxy_of_a_pod_of_it_that_does_not_say_what_it_is()
 {
    let (fixture, _controller) = safe().await;
    let odd = Proxy::before(&fixture.old, &[]).await;
    let ports = json!([
        {"name": "http", "containerPort": odd.address.port()},
        {"name": "frontend", "containerPort": fixture.old.address.port()},
        {"name": "crossfade", "containerPort": odd.admin.port()},
    ]);
    let labels = json!({"nvidia.com/dynamo-graph-deployment-name": "old", "app": "odd"});
    fixture.pod("odd", labels, ports).await;
    fixture.pod_ready("odd", true).await;
    let to_proxy = json!({"spec": {"selector": {"app": "odd"}, "ports": [{"port": 8000, "targetPort": "http"}]}});
    fixture.create(&services(), "legacy", to_proxy).await;
    // Its proxy uses old's frontend, and with it old's workers.
    let leads = lacks(false, "the proxy of odd");
    fixture.until("up", "its proxy leads to old", leads).await;
    drop(odd);
    let silent = lacks(false, "odd, whose proxy does not report where it routes");
    fixture.until("up", "unknown", silent).await;
    fixture.delete(&pods(), "odd").await;
    fixture.delete(&services(), "legacy").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_service_leads_to_a_pod_of_it_that_does_not_say_what_it_is()
 {
    let (fixture, _controller) = safe().await;
    let graph = "nvidia.com/dynamo-graph-deployment-name";
    let at = |address: &str| {
        json!({
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        })
    };
    // Neither a worker nor a frontend, as far as its labels say, and no Service leads to it.
    let labels = json!({graph: "old", "app": "odd"});
    fixture
        .pod("odd", labels, json!([{"containerPort": 8000}]))
        .await;
    fixture.status(&pods(), "odd", at("10.6.0.1")).await;
    // Like a worker, whose metrics a Service shows.
    fixture.worker("old", 9, "planner").await;
    fixture
        .status(&pods(), "old-planner-9", at("10.6.0.2"))
        .await;
    let selects = |labels: Value| json!({"spec": {"selector": labels, "ports": [{"port": 8000}]}});
    let planner = json!({graph: "old", "nvidia.com/dynamo-component-type": "planner"});
    fixture
        .create(&services(), "metrics", selects(planner))
        .await;
    let since = fixture.get("up").await["status"]["observedAt"].clone();
    fixture
        .until("up", "still safe", |object| {
            assert!(is_safe(object), "{object}");
            object["status"]["observedAt"] != since
        })
        .await;

    let unknown = lacks(false, "any port of odd, which has none named 'frontend'");
    let odd = json!({"app": "odd"});
    fixture.create(&services(), "legacy", selects(odd)).await;
    fixture.until("up", "a Service selects it", &unknown).await;
    fixture
        .until("up", "it is named", lacks(false, "Service legacy"))
        .await;
    fixture.delete(&services(), "legacy").await;
    fixture.until("up", "safe again", is_safe).await;
    // A Service without a selector.
    let by_hand = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "by-hand"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.6.0.1"]}],
    });
    fixture.create(&slices(), "by-hand-1", by_hand).await;
    fixture.until("up", "a slice leads to it", &unknown).await;
    fixture.delete(&slices(), "by-hand-1").await;
    fixture.until("up", "safe once more", is_safe).await;
    // A type that is not known serves clients, for all that is known.
    let typed = json!({graph: "old", "app": "odd", "nvidia.com/dynamo-component-type": "gateway"});
    let patch = Patch::Merge(json!({"metadata": {"labels": typed}}));
    let (params, api) = (PatchParams::default(), fixture.api(&pods()));
    api.patch("odd", &params, &patch).await.unwrap();
    let odd = json!({"app": "odd"});
    fixture.create(&services(), "legacy", selects(odd)).await;
    fixture.until("up", "its type is not known", &unknown).await;
    fixture.delete(&services(), "legacy").await;
    fixture.until("up", "safe a third time", is_safe).await;
    // Its labels are gone, but its owner is a part of old.
    let owner = json!([{
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "name": "old", "uid": "9", "controller": true,
    }]);
    let labels = json!({graph: null, "nvidia.com/dynamo-component-type": null});
    let metadata = json!({"labels": labels, "ownerReferences": owner});
    let patch = Patch::Merge(json!({"metadata": metadata}));
    api.patch("odd", &params, &patch).await.unwrap();
    let odd = json!({"app": "odd"});
    fixture.create(&services(), "legacy", selects(odd)).await;
    fixture.until("up", "old owns it", &unknown).await;
    fixture.delete(&pods(), "odd").await;
    fixture.until("up", "safe at the end", is_safe).await;
}
