//! `safeToDeleteOld` stays false while other objects may still route to old: misleading objects, other clusters, meshes, leaders
//! that were suspended, and Services of an operator.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, pods, resource, updates};
use super::safe_to_delete::{clients, is_safe, lacks, lead_clients_to, safe, services, slices};
use crate::rig::*;

const GRAPH: &str = "nvidia.com/dynamo-graph-deployment-name";
const COMPONENT: &str = "nvidia.com/dynamo-component-type";

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_forged_object_elsewhere_routes_to_it() {
    let clients = json!({"clientService": "clients"});
    let (server, fixture) = Fixture::alone_with_update(clients).await;
    let other = Fixture::start_on(&server).await;
    fixture.frontend_of_new("new-frontend-0").await;
    lead_clients_to(&fixture, "new-frontend-0").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    // This controller has access to all namespaces.
    let _controller = fixture.wary_controller(&["--quiet-period", "1"]).await;
    fixture.wait_for_split("up", 1, 1).await;
    fixture.delete_old_workers().await;
    fixture.until("up", "safe", is_safe).await;
    let addresses = json!({"podIPs": [{"ip": "127.0.0.1"}, {"ip": "fd00::a1"}]});
    fixture.status(&pods(), "old-frontend-0", addresses).await;

    // Kubernetes writes no slices for a Service without a selector, even if the slices claim to be managed.
    let forged = json!({
        "metadata": {"labels": {
            "kubernetes.io/service-name": "forged",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        }},
        "addressType": "IPv6", "endpoints": [{"addresses": ["fd00::a1"]}], "ports": [{"port": 8000}],
    });
    let without_selector = json!({"spec": {"ports": [{"port": 80}]}});
    other.create(&services(), "forged", without_selector).await;
    other.create(&slices(), "forged-1", forged).await;
    let name = leak(format!("Service {}/forged", other.namespace));
    fixture.until("up", name, lacks(true, name)).await;
    other.delete(&slices(), "forged-1").await;
    fixture.until("up", "safe again", is_safe).await;

    // A slice with a host name, and a name in the multi-cluster domain.
    let selects = json!({"spec": {"selector": {GRAPH: "old"}, "ports": [{"port": 80}]}});
    fixture.create(&services(), "legacy", selects).await;
    let host = format!("legacy.{}.svc.cluster.local", fixture.namespace);
    let by_host = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "by-host"}}, "addressType": "FQDN",
        "endpoints": [{"addresses": [host]}], "ports": [{"port": 80}],
    });
    other.create(&slices(), "by-host-1", by_host).await;
    let host = format!("legacy.{}.svc.clusterset.local", fixture.namespace);
    let shared = json!({"spec": {"type": "ExternalName", "externalName": host}});
    other.create(&services(), "shared", shared).await;
    let place = &other.namespace;
    for name in [
        leak(format!("Service {place}/by-host")),
        leak(format!("Service {place}/shared of type ExternalName")),
    ] {
        fixture.until("up", name, lacks(true, name)).await;
    }
    other.delete(&slices(), "by-host-1").await;
    other.delete(&services(), "shared").await;
    fixture.delete(&services(), "legacy").await;
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_other_clusters_or_routes_of_an_earlier_api_version_lead_to_it()
 {
    let (fixture, _controller) = safe().await;
    let exports = resource(
        "multicluster.x-k8s.io",
        "v1alpha1",
        "ServiceExport",
        "serviceexports",
    );
    let routes = resource(
        "gateway.networking.k8s.io",
        "v1beta1",
        "HTTPRoute",
        "httproutes",
    );
    let namespace = &fixture.namespace;
    // An export to other clusters: in this cluster, only the slice of the import shows it.
    let import = json!({
        "metadata": {"labels": {"multicluster.kubernetes.io/service-name": "offered"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.0.2"], "targetRef": {"kind": "Pod", "name": "old-frontend-0"}}],
    });
    fixture.create(&slices(), "offered-1", import).await;
    let name = leak(format!("ServiceImport {namespace}/offered"));
    fixture.until("up", name, lacks(true, name)).await;
    fixture.delete(&slices(), "offered-1").await;
    fixture.until("up", "safe again", is_safe).await;

    let selects = json!({"spec": {"selector": {GRAPH: "old"}, "ports": [{"port": 80}]}});
    fixture.create(&services(), "legacy", selects).await;
    fixture.create(&exports, "legacy", json!({})).await;
    let (group, kind) = ("networking.karmada.io", "MultiClusterService");
    let of_karmada = resource(group, "v1alpha1", kind, "multiclusterservices");
    let spec = json!({"spec": {"types": ["CrossCluster"]}});
    fixture.create(&of_karmada, "legacy", spec).await;
    let import = json!({"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "legacy", "port": 80});
    let mirror = json!({"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "legacy", "port": 80}}});
    for (name, rule) in [
        ("imports", json!({"backendRefs": [import]})),
        ("mirrors", json!({"filters": [mirror], "backendRefs": []})),
    ] {
        let route = json!({"spec": {"rules": [rule]}});
        fixture.create(&routes, name, route).await;
    }
    for name in [
        leak(format!("ServiceExport {namespace}/legacy")),
        leak(format!("MultiClusterService {namespace}/legacy")),
        leak(format!("HTTPRoute {namespace}/imports")),
        leak(format!("HTTPRoute {namespace}/mirrors")),
    ] {
        fixture.until("up", name, lacks(true, name)).await;
    }
    fixture.delete(&services(), "legacy").await;
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_the_client_service_does_not_fully_route_to_new() {
    let (fixture, _controller) = safe().await;
    let reaches = "to a ready frontend of new on each of its ports";
    let set = async |endpoints: Value, ports: Value| {
        let patch = Patch::Merge(json!({"endpoints": endpoints, "ports": ports}));
        let (params, api) = (PatchParams::default(), fixture.api(&slices()));
        api.patch("clients-1", &params, &patch).await.unwrap();
    };
    let endpoint = |address: &str, conditions: Value| {
        json!([{
            "addresses": [address], "conditions": conditions,
            "targetRef": {"kind": "Pod", "name": "new-frontend-0"},
        }])
    };
    let of_new = endpoint("10.9.0.1", json!({"ready": true}));
    let both = json!([{"name": "http", "port": 8000}, {"name": "metrics", "port": 9090}]);
    set(of_new.clone(), both.clone()).await;
    fixture.until("up", "safe with ports", is_safe).await;

    // The pods of new do not have the port that clients use, but another one.
    let spec = json!({"ports": [{"name": "http", "port": 80}, {"name": "metrics", "port": 81}]});
    fixture
        .replace(&services(), "clients", json!({"spec": spec}))
        .await;
    fixture.until("up", "safe with a Service", is_safe).await;
    set(of_new.clone(), json!([{"name": "metrics", "port": 9090}])).await;
    fixture.until("up", "half", lacks(true, reaches)).await;
    set(of_new.clone(), both.clone()).await;
    fixture.until("up", "safe again", is_safe).await;

    // The pod is terminating, although it still serves.
    let ending = json!({"ready": false, "serving": true, "terminating": true});
    set(endpoint("10.9.0.1", ending), both.clone()).await;
    fixture.until("up", "ending", lacks(true, reaches)).await;
    set(of_new.clone(), both.clone()).await;
    fixture.until("up", "safe once more", is_safe).await;

    // The address is not that of the named pod, so it may be anything.
    set(
        endpoint("203.0.113.9", json!({"ready": true})),
        both.clone(),
    )
    .await;
    let left = lacks(true, "no longer routes to the frontends of old");
    fixture.until("up", "elsewhere", &left).await;
    set(of_new.clone(), both.clone()).await;
    fixture.until("up", "safe with its address", is_safe).await;
    // Kubernetes does not use the second address, but other programs may.
    let mut with_another = of_new.clone();
    with_another[0]["addresses"] = json!(["10.9.0.1", "203.0.113.9"]);
    set(with_another, both.clone()).await;
    fixture.until("up", "elsewhere, too", &left).await;
    set(of_new, both).await;
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_someone_deletes_the_update() {
    let (fixture, _controller) = safe().await;
    let finalizers = async |all: Value| {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": all}}));
        let (params, api) = (PatchParams::default(), fixture.api(&updates()));
        api.patch("up", &params, &patch).await.unwrap();
    };
    finalizers(json!(["example.com/waits"])).await;
    fixture.delete(&updates(), "up").await;
    // Once the update is deleted, the frontends of old may send to old again.
    let going = lacks(false, "the update is being deleted");
    fixture.until("up", "being deleted", going).await;
    finalizers(Value::Null).await;
    // Old had no capacity when the update was deleted.
    fixture.wait_for_event("DeletedNewKept").await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_the_state_of_one_of_its_pods_is_unclear() {
    let (mut fixture, _controller) = safe().await;
    // It is unknown which port of the pod bypasses its proxy.
    fixture
        .proxy_in("old-frontend-bare", "old", json!([]), "up")
        .await;
    let bare = "any port of old-frontend-bare, which has none named 'frontend'";
    fixture.until("up", "bare", lacks(false, bare)).await;
    fixture.delete(&pods(), "old-frontend-bare").await;
    fixture.until("up", "safe again", is_safe).await;

    // Only one of two pods can have an address, so it is unknown whose proxy answers there.
    let labels = json!({GRAPH: "old", COMPONENT: "frontend"});
    let ports = json!([
        {"name": "crossfade", "containerPort": fixture.proxies[0].admin.port()}, {"name": "frontend", "containerPort": 8000},
    ]);
    fixture
        .pod("old-frontend-twin", labels.clone(), ports)
        .await;
    fixture.pod_ready("old-frontend-twin", true).await;
    let waits = |object: &Value| {
        let status = &object["status"];
        !is_safe(object) && status["phase"] == "Draining"
    };
    fixture
        .until("up", "two pods have one address", waits)
        .await;
    fixture.delete(&pods(), "old-frontend-twin").await;
    fixture
        .until("up", "safe with one address each", is_safe)
        .await;

    // The node does not respond. The pod may run, and its proxy may send to old.
    let nobody = Upstream::nobody().port();
    let ports = json!([
        {"name": "crossfade", "containerPort": nobody}, {"name": "frontend", "containerPort": 8000},
    ]);
    fixture
        .pod("old-frontend-lost", labels.clone(), ports)
        .await;
    let lost = json!({
        "phase": "Unknown", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "Unknown"}],
    });
    fixture.status(&pods(), "old-frontend-lost", lost).await;
    fixture.until("up", "a pod is lost", waits).await;
    fixture.delete(&pods(), "old-frontend-lost").await;
    fixture.until("up", "safe once more", is_safe).await;

    // Its address now belongs to a proxy of another update, which has drained its old.
    let mut other = Fixture::with_update(json!({"clientService": "clients"})).await;
    other
        .edit(
            "up",
            json!({"paused": true, "trafficSplitPercent": 100, "weights": null}),
        )
        .await;
    let proxy = other.proxies.remove(0);
    eventually("the other update has drained old", async || {
        let plan: Value = serde_json::from_str(&proxy.plan().await).unwrap();
        plan["trafficSplitPercent"] == 100
    })
    .await;
    let ports = json!([
        {"name": "crossfade", "containerPort": proxy.admin.port()}, {"name": "frontend", "containerPort": 8000},
    ]);
    fixture.pod("old-frontend-ghost", labels, ports).await;
    fixture.pod_ready("old-frontend-ghost", true).await;
    fixture.until("up", "a ghost", waits).await;
    fixture.delete(&pods(), "old-frontend-ghost").await;
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn a_leader_that_was_suspended_does_not_report_old_as_safe_to_delete() {
    let (fixture, first) = safe().await;
    let second = fixture.controller(&[]).await;
    eventually("one of them leads", async || {
        first.leads().await && !second.leads().await
    })
    .await;
    first.signal(libc::SIGSTOP);
    eventually("the other one leads", async || second.leads().await).await;
    let selects = json!({"spec": {"selector": {GRAPH: "old"}, "ports": [{"port": 80}]}});
    fixture.create(&services(), "legacy", selects).await;
    fixture
        .until("up", "led to", lacks(true, "Service legacy"))
        .await;
    first.signal(libc::SIGCONT);
    // It resumes with its earlier state, and briefly still assumes that it leads.
    let mut polls = 0;
    eventually("it notices that it does not lead", async || {
        let object = fixture.get("up").await;
        assert!(!is_safe(&object), "{object}");
        polls += 1;
        polls > 50 && !first.leads().await
    })
    .await;
    fixture.delete(&services(), "legacy").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_during_a_reverse_update_but_after_the_second_completion() {
    let (fixture, _controller) = safe().await;
    for round in ["first", "second"] {
        fixture.worker("old", 0, "worker").await;
        fixture
            .edit(
                "up",
                json!({"trafficSplitPercent": 0, "weights": null, "paused": true}),
            )
            .await;
        fixture
            .until("up", round, |object| {
                let status = &object["status"];
                !is_safe(object)
                    && status["lastOldWorkerDispensable"] == false
                    && status["phase"] != "Complete"
                    && object["spec"]["oldDraining"] != true
            })
            .await;
        let answer = client::post(fixture.proxies[0].address, CHAT, &[], STREAMING).await;
        assert!(answer.status == 200);
        fixture.delete(&pods(), "old-worker-0").await;
        fixture
            .edit(
                "up",
                json!({"trafficSplitPercent": 100, "weights": null, "paused": false}),
            )
            .await;
        fixture.until("up", "safe after going back", is_safe).await;
    }
}

/// Like [`safe`], but old is a graph whose operator has created the Service `old-frontend`, which is deleted with old.
async fn safe_with_the_service_of_an_operator() -> (Fixture, Controller) {
    let by_pods = json!({"kind": "Pod"});
    let spec = json!({
        "clientService": "clients", "workers": {"old": by_pods.clone(), "new": by_pods},
    });
    let mut fixture = Fixture::start().await;
    let graphs = resource(
        "nvidia.com",
        "v1alpha1",
        "DynamoGraphDeployment",
        "dynamographdeployments",
    );
    fixture.create(&graphs, "old", json!({"spec": {}})).await;
    fixture.begin(spec).await;
    fixture.frontend_of_new("new-frontend-0").await;
    lead_clients_to(&fixture, "new-frontend-0").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    let owner = json!([{
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "name": "old", "controller": true,
        "uid": "6f1ac2d0-0000-4000-8000-000000000000",
    }]);
    let made = json!({
        "metadata": {"labels": {GRAPH: "old"}, "ownerReferences": owner},
        "spec": {"selector": {GRAPH: "old"}, "ports": [{"port": 80}]},
    });
    fixture.create(&services(), "old-frontend", made).await;
    let controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 1, 1).await;
    fixture.delete_old_workers().await;
    fixture
        .until("up", "the operator's goes with it", is_safe)
        .await;
    (fixture, controller)
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_an_ingress_leads_to_a_component_that_is_no_frontend() {
    let (fixture, _controller) = safe_with_the_service_of_an_operator().await;
    let labels = json!({GRAPH: "old", COMPONENT: "router", "app": "router"});
    let ports = json!([{"containerPort": 8000}]);
    fixture.pod("old-router-0", labels, ports).await;
    // No other object of the server has this address.
    let status = json!({
        "phase": "Running", "podIP": "10.6.1.1", "podIPs": [{"ip": "10.6.1.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    });
    fixture.status(&pods(), "old-router-0", status).await;
    let owner = json!([{
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "name": "old", "controller": true,
        "uid": "6f1ac2d0-0000-4000-8000-000000000000",
    }]);
    // Dynamo's operator creates a Service for each component. Clients use it only if something leads to it.
    let made = json!({
        "metadata": {"labels": {GRAPH: "old"}, "ownerReferences": owner},
        "spec": {"selector": {"app": "router"}, "ports": [{"port": 80}]},
    });
    fixture.create(&services(), "old-router", made).await;
    let since = fixture.get("up").await["status"]["observedAt"].clone();
    fixture
        .until("up", "safe beside the component", |object| {
            assert!(is_safe(object), "{}", object["status"]);
            object["status"]["observedAt"] != since
        })
        .await;
    let named = lacks(
        false,
        "any port of old-router-0, which has none named 'frontend'",
    );
    let backend = json!({"service": {"name": "old-router", "port": {"number": 80}}});
    let ingress = resource("networking.k8s.io", "v1", "Ingress", "ingresses");
    let to_made = json!({"spec": {"defaultBackend": backend}});
    fixture.create(&ingress, "router", to_made).await;
    fixture.until("up", "an Ingress leads to it", &named).await;
    fixture.delete(&ingress, "router").await;
    fixture.until("up", "safe without it", is_safe).await;
    let host = format!("old-router.{}.svc.cluster.local", fixture.namespace);
    let alias = json!({"spec": {"type": "ExternalName", "externalName": host}});
    fixture.create(&services(), "alias", alias).await;
    fixture.until("up", "an alias leads to it", &named).await;
    fixture.delete(&services(), "alias").await;
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn a_service_that_only_has_the_labels_of_old_still_counts_as_a_route_to_it() {
    let (fixture, _controller) = safe_with_the_service_of_an_operator().await;
    let copied = json!({
        "metadata": {"labels": {GRAPH: "old"}},
        "spec": {"selector": {GRAPH: "old"}, "ports": [{"port": 80}]},
    });
    fixture.create(&services(), "copied", copied).await;
    fixture
        .until("up", "a copy stays", lacks(true, "Service copied"))
        .await;
    fixture.delete(&services(), "copied").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_the_client_service_is_missing_or_external_even_if_its_slices_stay()
 {
    let (fixture, _controller) = safe().await;
    let reaches = "to a ready frontend of new on each of its ports";
    fixture.delete(&services(), "clients").await;
    fixture.until("up", "gone", lacks(true, reaches)).await;
    fixture.create(&services(), "clients", clients()).await;
    fixture.until("up", "safe again", is_safe).await;
    // Kubernetes keeps the slices of a Service that becomes an ExternalName.
    let away = json!({"spec": {
        "type": "ExternalName", "externalName": "gateway.example.com", "clusterIP": null, "clusterIPs": null,
    }});
    let (params, api) = (PatchParams::default(), fixture.api(&services()));
    let patch = Patch::Merge(away);
    api.patch("clients", &params, &patch).await.unwrap();
    fixture.until("up", "away", lacks(true, reaches)).await;
    fixture.replace(&services(), "clients", clients()).await;
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_the_client_service_targets_a_port_on_which_new_does_not_listen()
 {
    let (fixture, _controller) = safe().await;
    let reaches = "to a ready frontend of new on each of its ports";
    // The proxies of old listen on this port.
    let (old, new) = (
        json!([{"name": "http", "port": 8000}]),
        json!([{"name": "http", "port": 8080}]),
    );
    let ports = json!([{"name": "http", "containerPort": 8080}]);
    let labels = json!({GRAPH: "new", COMPONENT: "frontend"});
    fixture.pod("new-frontend-1", labels, ports).await;
    let ready = json!({
        "phase": "Running", "podIP": "10.9.0.2", "podIPs": [{"ip": "10.9.0.2"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    });
    fixture.status(&pods(), "new-frontend-1", ready).await;
    let spec =
        json!({"spec": {"selector": {"app": "new"}, "ports": [{"name": "http", "port": 80}]}});
    fixture.replace(&services(), "clients", spec).await;
    let endpoints = json!([{
        "addresses": ["10.9.0.2"], "conditions": {"ready": true},
        "targetRef": {"kind": "Pod", "name": "new-frontend-1"},
    }]);
    let set = async |ports: &Value| {
        let patch = Patch::Merge(json!({"endpoints": endpoints, "ports": ports}));
        let (params, api) = (PatchParams::default(), fixture.api(&slices()));
        api.patch("clients-1", &params, &patch).await.unwrap();
    };
    set(&old).await;
    fixture
        .until("up", "nobody listens", lacks(true, reaches))
        .await;
    assert_stays_unsafe(&fixture).await;
    set(&new).await;
    fixture.until("up", "safe", is_safe).await;
}

/// Asserts that no flag is set while the controller reconciles the update again, which it does every five seconds.
pub async fn assert_stays_unsafe(fixture: &Fixture) {
    for _ in 0..30 {
        let object = fixture.get("up").await;
        assert!(!is_safe(&object), "{object}");
        // Must hold for six seconds.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_streams_are_open_in_a_pod_of_it_whose_labels_were_edited()
{
    let (mut fixture, _controller) = safe().await;
    let apps = |kind, plural| resource("apps", "v1", kind, plural);
    let own = json!({"app": "web"});
    let template = json!({
        "metadata": {"labels": {"app": "web", GRAPH: "old", COMPONENT: "frontend"}},
        "spec": {"containers": [{"name": "main", "image": "any"}]},
    });
    let spec = json!({"selector": {"matchLabels": own}, "template": template});
    let deployments = apps("Deployment", "deployments");
    fixture
        .create(&deployments, "web", json!({"spec": spec}))
        .await;
    fixture.proxy("up").await;
    let name = "old-frontend-1";
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d9f7c", "uid": "1", "controller": true,
    });
    let label = async |labels: Value| {
        let metadata = json!({"labels": labels, "ownerReferences": [owner]});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let (params, api) = (PatchParams::default(), fixture.api(&pods()));
        api.patch(name, &params, &patch).await.unwrap();
    };
    let mut client = Client::connect(fixture.proxies[1].address).await;
    client.post(CHAT, &[("x-ends", "300000")], STREAMING).await;
    client.head().await;
    client.until("\n\n").await;
    let streams = lacks(true, "streams run through the pods of old's frontends");
    fixture.until("up", "a stream of new", &streams).await;
    // The Deployment still owns the pod, which is deleted with old.
    label(json!({"app": "web", COMPONENT: "edge"})).await;
    assert_stays_unsafe(&fixture).await;
    drop(client);
    fixture.until("up", "safe", is_safe).await;
    label(json!({"app": "web", GRAPH: "elsewhere", COMPONENT: "frontend"})).await;
    let response = client::post(fixture.proxies[1].address, CHAT, &[], STREAMING).await;
    assert_eq!(response.generation(), "new");
    let late = lacks(
        true,
        "the pods of old's frontends have received requests recently",
    );
    fixture.until("up", "a request", late).await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_route_of_openshift_or_an_object_of_a_mesh_leads_to_it() {
    let (fixture, _controller) = safe().await;
    // Pods of other tests share the first address.
    let address = "fd00::a2";
    let addresses = json!({"podIPs": [{"ip": "127.0.0.1"}, {"ip": address}]});
    fixture.status(&pods(), "old-frontend-0", addresses).await;
    let namespace = &fixture.namespace;
    let istio = |kind, plural| resource("networking.istio.io", "v1", kind, plural);
    let host = format!("legacy.{namespace}.svc.cluster.local");
    let selects = json!({"spec": {"selector": {GRAPH: "old"}, "ports": [{"port": 80}]}});
    let route = json!({"to": {"kind": "Service", "name": "new"}, "alternateBackends": [
        {"kind": "Service", "name": "legacy", "weight": 1},
    ]});
    let named =
        json!({"group": "networking.istio.io", "kind": "Hostname", "name": host, "port": 80});
    let by_labels = json!({
        "hosts": ["chat.example"], "ports": [{"number": 80}], "resolution": "STATIC",
        "workloadSelector": {"labels": {GRAPH: "old"}},
    });
    let by_address = json!({
        "hosts": ["chat.example"], "ports": [{"number": 80}], "endpoints": [{"address": address}],
    });
    let http_routes = resource(
        "gateway.networking.k8s.io",
        "v1beta1",
        "HTTPRoute",
        "httproutes",
    );
    let entries = istio("ServiceEntry", "serviceentries");
    let objects = [
        (
            resource("route.openshift.io", "v1", "Route", "routes"),
            "by-half",
            route,
        ),
        (
            http_routes,
            "by-host",
            json!({"rules": [{"backendRefs": [named]}]}),
        ),
        (entries.clone(), "by-labels", by_labels),
        (entries, "by-address", by_address),
        (
            istio("WorkloadEntry", "workloadentries"),
            "workload",
            json!({"address": address, "ports": {"http": 80}}),
        ),
    ];
    fixture.create(&services(), "legacy", selects).await;
    for (kind, name, spec) in &objects {
        fixture.create(kind, name, json!({"spec": spec})).await;
        let name = leak(format!("{} {namespace}/{name}", kind.kind));
        fixture.until("up", name, lacks(true, name)).await;
    }
    // An object that names the Service of old breaks without it.
    fixture.delete(&services(), "legacy").await;
    for (kind, name, _) in &objects[2..] {
        let name = leak(format!("{} {namespace}/{name}", kind.kind));
        fixture.until("up", name, lacks(true, name)).await;
    }
    for (kind, name, _) in &objects[2..] {
        fixture.delete(kind, name).await;
    }
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_an_object_in_any_namespace_needs_the_service_that_is_deleted_with_it()
 {
    let (fixture, _controller) = safe_with_the_service_of_an_operator().await;
    let other = Fixture::start().await;
    let (own, place) = (&fixture.namespace, &other.namespace);
    let host = format!("old-frontend.{own}.svc.cluster.local");
    let ingresses = resource("networking.k8s.io", "v1", "Ingress", "ingresses");
    let routes = resource("gateway.networking.k8s.io", "v1", "GRPCRoute", "grpcroutes");
    let meshed = resource(
        "networking.istio.io",
        "v1",
        "VirtualService",
        "virtualservices",
    );
    let backend = json!({"defaultBackend": {"service": {"name": "any", "port": {"number": 80}}}});
    let annotated = |name: &str, value: String| json!({"metadata": {"annotations": {name: value}}, "spec": backend});
    // Clients use the name of the Service, and a mesh routes them to new.
    let parent = json!({"group": "", "kind": "Service", "name": "old-frontend", "namespace": own});
    let to_new = json!([{"backendRefs": [{"name": "new", "port": 80}]}]);
    let meshed_to_new =
        json!({"hosts": [host], "http": [{"route": [{"destination": {"host": "new"}}]}]});
    let alias = json!({"spec": {"type": "ExternalName", "externalName": format!("old-0.old-frontend.{own}")}});
    for (kind, name, object, expected) in [
        (
            &ingresses,
            "mirrors",
            annotated(
                "nginx.ingress.kubernetes.io/mirror-target",
                format!("http://{host}/"),
            ),
            format!(
                "Ingress {place}/mirrors by its annotation nginx.ingress.kubernetes.io/mirror-target"
            ),
        ),
        (
            &ingresses,
            "snippet",
            annotated(
                "nginx.org/location-snippets",
                format!("proxy_pass http://{host};"),
            ),
            format!("Ingress {place}/snippet by its annotation nginx.org/location-snippets"),
        ),
        (
            &routes,
            "of-old",
            json!({"spec": {"parentRefs": [parent], "rules": to_new}}),
            format!("GRPCRoute {place}/of-old"),
        ),
        (
            &meshed,
            "of-old",
            json!({"spec": meshed_to_new}),
            format!("VirtualService {place}/of-old"),
        ),
        (
            &services(),
            "alias",
            alias,
            format!("Service {place}/alias of type ExternalName"),
        ),
    ] {
        let expected = leak(expected);
        other.create(kind, name, object).await;
        fixture.until("up", expected, lacks(true, expected)).await;
        other.delete(kind, name).await;
        fixture.until("up", "safe again", is_safe).await;
    }
    // Another update uses other names for the address of the Service and of a pod behind it.
    let service = fixture.api(&services()).get("old-frontend").await.unwrap();
    let address = service.data["spec"]["clusterIP"].as_str().unwrap();
    for target in [
        format!("http://[::ffff:{address}]:80"),
        format!("http://old-0.old-frontend.{own}:80"),
    ] {
        let back = json!({
            "newFrontendService": target, "sourceDeployment": "new", "targetDeployment": "other",
            "trafficSplitPercent": 50, "paused": true, "strict": true,
        });
        fixture.update("back", back).await;
        let leads = lacks(
            false,
            "these updates and proxies route to the frontends of old: back",
        );
        fixture.until("up", leak(target), leads).await;
        fixture.delete(&updates(), "back").await;
        fixture.until("up", "safe once more", is_safe).await;
    }
}

#[tokio::test]
async fn the_last_worker_of_old_is_needed_while_a_mesh_entry_bypasses_the_proxy() {
    let (fixture, _controller) = safe().await;
    let own = &fixture.namespace;
    let addresses = json!({"podIPs": [{"ip": "127.0.0.1"}, {"ip": "fd00::b2"}]});
    fixture.status(&pods(), "old-frontend-0", addresses).await;
    let istio = |kind, plural| resource("networking.istio.io", "v1", kind, plural);
    let (entries, workloads) = (
        istio("ServiceEntry", "serviceentries"),
        istio("WorkloadEntry", "workloadentries"),
    );
    let entry = |port: u16| {
        json!({"spec": {
            "hosts": ["chat.example"], "endpoints": [{"address": "fd00::b2"}],
            "ports": [{"number": 80, "name": "http", "targetPort": port}],
        }})
    };
    let around = leak(format!("ServiceEntry {own}/entry"));
    fixture.create(&entries, "entry", entry(8000)).await;
    fixture.until("up", around, lacks(true, around)).await;
    let port = fixture.old.address.port();
    fixture.replace(&entries, "entry", entry(port)).await;
    fixture.until("up", around, lacks(false, around)).await;
    fixture.delete(&entries, "entry").await;
    fixture.until("up", "safe again", is_safe).await;
    // The entry has the ports of the entries that select it.
    let workload = json!({"spec": {"address": "fd00::b2"}});
    fixture.create(&workloads, "workload", workload).await;
    let around = leak(format!("WorkloadEntry {own}/workload"));
    fixture.until("up", around, lacks(false, around)).await;
    fixture.delete(&workloads, "workload").await;
    fixture.until("up", "safe at the end", is_safe).await;
}
