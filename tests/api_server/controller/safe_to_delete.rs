//! `safeToDeleteOld` stays false while anything may still route requests to old.

use serde_json::{Value, json};

use super::fixture::{Fixture, pods, resource, updates};

pub fn slices() -> kube::api::ApiResource {
    resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
}

pub fn services() -> kube::api::ApiResource {
    resource("", "v1", "Service", "services")
}

/// The default client Service.
pub fn clients() -> Value {
    json!({"spec": {"clusterIP": "None", "selector": {"app": "new"}}})
}

/// Makes the client Service route to this pod of new.
pub async fn lead_clients_to(fixture: &Fixture, pod: &str) {
    fixture.create(&services(), "clients", clients()).await;
    fixture.create(&slices(), "clients-1", slice(pod)).await;
}

/// An EndpointSlice of the client Service with this pod.
pub fn slice(pod: &str) -> Value {
    json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "clients"}}, "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["10.9.0.1"], "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "name": pod},
        }],
    })
}

pub fn is_safe(object: &Value) -> bool {
    let status = &object["status"];
    status["safeToDeleteOld"] == true && status["lastOldWorkerDispensable"] == true
}

/// Whether `safeToDeleteOld` is false for this reason, and `lastOldWorkerDispensable` has this value.
pub fn lacks(last_worker: bool, reason: &'static str) -> impl Fn(&Value) -> bool {
    move |object| {
        let status = &object["status"];
        status["safeToDeleteOld"] == false
            && status["lastOldWorkerDispensable"] == last_worker
            && status["missingForDeletion"].to_string().contains(reason)
    }
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_an_unknown_pod_gets_clients_or_another_update_leads_to_it()
{
    let fixture = Fixture::with_update(json!({"clientService": "clients"})).await;
    fixture.frontend_of_new("new-frontend-0").await;
    lead_clients_to(&fixture, "new-frontend-0").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    let _controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 1, 1).await;
    fixture.delete_old_workers().await;
    fixture.until("up", "safe", is_safe).await;

    // A frontend of old that was relabelled for debugging still serves its clients.
    fixture
        .pod("relabelled", json!({"app": "any"}), json!([]))
        .await;
    fixture.pod_ready("relabelled", true).await;
    fixture
        .create(&slices(), "clients-2", slice("relabelled"))
        .await;
    let has_not_left = lacks(true, "no longer routes to the frontends of old");
    fixture.until("up", "a pod of nobody", has_not_left).await;
    fixture.delete(&slices(), "clients-2").await;
    fixture.delete(&pods(), "relabelled").await;
    fixture.until("up", "safe again", is_safe).await;

    // A reverse update: the frontends of new send half of their requests to old.
    let back = json!({
        "sourceDeployment": "new", "targetDeployment": "old", "trafficSplitPercent": 50, "paused": true, "strict": true,
    });
    fixture.update("back", back).await;
    let leads_back = lacks(
        false,
        "these updates and proxies route to the frontends of old: back",
    );
    fixture
        .until("up", "another update needs old", leads_back)
        .await;
    fixture.delete(&updates(), "back").await;
    fixture.until("up", "safe once more", is_safe).await;

    // An update with the same name is another one, for which nothing is proven.
    fixture.delete(&updates(), "up").await;
    fixture
        .update("up", json!({"clientService": "clients"}))
        .await;
    fixture
        .until("up", "reconciled", |object| {
            let status = &object["status"];
            object["spec"]["trafficSplitPercent"] == 100
                && status["wanted"]["percent"] == 100
                && status["safeToDeleteOld"] == false
                && status["lastOldWorkerDispensable"] == false
        })
        .await;
}

/// A complete update: the workers of old are deleted, and all clients connect to new.
pub async fn safe() -> (Fixture, super::fixture::Controller) {
    let fixture = Fixture::with_update(json!({"clientService": "clients"})).await;
    fixture.frontend_of_new("new-frontend-0").await;
    lead_clients_to(&fixture, "new-frontend-0").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    let controller = fixture.controller(&[]).await;
    fixture.wait_for_split("up", 1, 1).await;
    fixture.delete_old_workers().await;
    fixture.until("up", "safe", is_safe).await;
    (fixture, controller)
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_any_kind_of_object_leads_to_it() {
    let (fixture, _controller) = safe().await;
    let services = resource("", "v1", "Service", "services");
    let gateway = "gateway.networking.k8s.io";
    let routes = resource(gateway, "v1", "GRPCRoute", "grpcroutes");
    let meshed = resource(
        "networking.istio.io",
        "v1",
        "VirtualService",
        "virtualservices",
    );
    let by_hand = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "by-hand"}}, "addressType": "IPv6",
        "endpoints": [{"addresses": ["fd00::7"]}],
    });
    let addresses = json!({"podIPs": [{"ip": "127.0.0.1"}, {"ip": "fd00::7"}]});
    fixture.status(&pods(), "old-frontend-0", addresses).await;
    let graph = "nvidia.com/dynamo-graph-deployment-name";
    let selects = json!({"spec": {"selector": {graph: "old"}, "ports": [{"port": 80}]}});
    let host = format!("legacy.{}.svc.cluster.local", fixture.namespace);
    let alias = json!({"spec": {"type": "ExternalName", "externalName": host}});
    let route = json!({"spec": {"rules": [{"backendRefs": [{"name": "legacy", "port": 80}]}]}});
    let mesh = json!({"spec": {"http": [{"route": [{"destination": {"host": "legacy"}}]}]}});
    for (kind, name, object, reason) in [
        (slices(), "by-hand-1", by_hand, "Service by-hand"),
        // No controller writes slices for it.
        (services.clone(), "legacy", selects, "Service legacy"),
        (
            services.clone(),
            "alias",
            alias,
            "alias of type ExternalName",
        ),
        (routes.clone(), "route", route, "/route"),
        (meshed.clone(), "mesh", mesh, "/mesh"),
    ] {
        fixture.create(&kind, name, object).await;
        fixture.until("up", reason, lacks(true, reason)).await;
    }
    fixture.delete(&slices(), "by-hand-1").await;
    fixture.delete(&services, "alias").await;
    fixture.delete(&services, "legacy").await;
    // The remaining objects do not lead to old.
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_an_update_that_became_invalid_may_lead_to_it() {
    let (fixture, _controller) = safe().await;
    // The frontends of new send half of their requests back to old, according to their last valid plan.
    let back = json!({
        "sourceDeployment": "new", "targetDeployment": "old", "trafficSplitPercent": 50, "paused": true, "strict": true,
    });
    fixture.update("back", back).await;
    let leads_back = lacks(
        false,
        "these updates and proxies route to the frontends of old: back",
    );
    fixture
        .until("up", "another update needs old", leads_back)
        .await;
    let same = json!({"selector": {"app": "any"}});
    let bad = json!({"targetDeployment": "new", "workers": {"old": same.clone(), "new": same}});
    fixture.edit("back", bad).await;
    fixture
        .until("back", "refused", |object| {
            object["status"]["phase"] == "Degraded"
        })
        .await;
    let unknown = "not confirmed that no update sends requests to the frontends of old";
    fixture.until("up", "unknown", lacks(false, unknown)).await;
    fixture.delete(&updates(), "back").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_proxy_keeps_the_plan_of_a_deleted_update_that_led_to_it()
{
    let (mut fixture, _controller) = safe().await;
    // A reverse update reaches the half, new loses a worker, and then the reverse update is deleted.
    let back = json!({
        "newFrontendService": fixture.old.url(), "sourceDeployment": "new", "targetDeployment": "old",
        "trafficSplitPercent": 50, "paused": true, "strict": true,
    });
    fixture.update("back", back).await;
    fixture.proxy_of("new", "back").await;
    let leads_back = lacks(
        false,
        "these updates and proxies route to the frontends of old: back",
    );
    fixture
        .until("up", "another update needs old", leads_back)
        .await;
    fixture.pod_ready("new-worker-0", false).await;
    fixture
        .until("back", "the status shows the capacity", |object| {
            object["status"]["old"]["capacityPercent"] == 75
        })
        .await;
    fixture.delete(&updates(), "back").await;
    fixture.wait_for_event("DeletedNewKept").await;
    let leads = "route to the frontends of old: the proxy of new-frontend-1";
    fixture.until("up", "led to", lacks(false, leads)).await;
    fixture.delete(&pods(), "new-frontend-1").await;
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_slice_a_selector_or_another_name_leads_to_it() {
    let (fixture, _controller) = safe().await;
    let services = services();
    let addresses = json!({"podIPs": [{"ip": "127.0.0.1"}, {"ip": "fd00::7"}]});
    fixture.status(&pods(), "old-frontend-0", addresses).await;
    // Requests go to the address, regardless of the named pod.
    let wrong = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "clients"}}, "addressType": "IPv6",
        "endpoints": [{"addresses": ["fd00::7"], "targetRef": {"kind": "Pod", "name": "new-frontend-0"}}],
    });
    fixture.create(&slices(), "clients-2", wrong).await;
    let has_not_left = "no longer routes to the frontends of old";
    fixture
        .until("up", "a wrong name", lacks(true, has_not_left))
        .await;
    fixture.delete(&slices(), "clients-2").await;
    fixture.until("up", "safe again", is_safe).await;

    // No controller writes slices for it.
    let graph = "nvidia.com/dynamo-graph-deployment-name";
    let selects = json!({"spec": {"selector": {graph: "old"}, "ports": [{"port": 80}]}});
    fixture.replace(&services, "clients", selects.clone()).await;
    fixture
        .until("up", "a selector", lacks(true, has_not_left))
        .await;
    fixture.replace(&services, "clients", clients()).await;
    fixture.until("up", "safe once more", is_safe).await;

    // Proxies do not see requests to a frontend's own port.
    let direct = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "direct"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.0.2"], "targetRef": {"kind": "Pod", "name": "old-frontend-0"}}],
        "ports": [{"name": "http", "port": fixture.old.address.port()}],
    });
    fixture.create(&slices(), "direct-1", direct).await;
    let around = "route to the frontends of old and bypass their proxies: Service direct";
    fixture
        .until("up", "around the proxy", lacks(false, around))
        .await;
    fixture.delete(&slices(), "direct-1").await;
    fixture.until("up", "safe a third time", is_safe).await;

    // An update that leads to old through another name of its Service.
    let host = format!("legacy.{}.svc.cluster.local", fixture.namespace);
    let alias = json!({"spec": {"type": "ExternalName", "externalName": host}});
    fixture.create(&services, "legacy", selects).await;
    fixture.create(&services, "alias", alias).await;
    let by_alias = json!({
        "sourceDeployment": "new", "targetDeployment": "other", "newFrontendService": "alias:8000",
        "trafficSplitPercent": 50, "paused": true, "strict": true,
    });
    fixture.update("by-alias", by_alias).await;
    let leads = "these updates and proxies route to the frontends of old: by-alias";
    fixture
        .until("up", "by another name", lacks(false, leads))
        .await;
    for name in ["alias", "legacy"] {
        fixture.delete(&services, name).await;
    }
    fixture.until("up", "safe at the end", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_proxy_keeps_the_plan_of_an_update_that_left_its_deployment()
 {
    let (mut fixture, _controller) = safe().await;
    let back = json!({
        "newFrontendService": fixture.old.url(), "sourceDeployment": "new", "targetDeployment": "old",
        "trafficSplitPercent": 50, "paused": true, "strict": true,
    });
    fixture.update("back", back).await;
    fixture.proxy_of("new", "back").await;
    let leads_back = lacks(
        false,
        "these updates and proxies route to the frontends of old: back",
    );
    fixture
        .until("up", "another update needs old", leads_back)
        .await;
    fixture.pod_ready("new-worker-0", false).await;
    fixture
        .until("back", "the status shows the capacity", |object| {
            object["status"]["old"]["capacityPercent"] == 75
        })
        .await;
    fixture
        .edit("back", json!({"sourceDeployment": "elsewhere"}))
        .await;
    fixture.wait_for_event("DeletedNewKept").await;
    let leads = "route to the frontends of old: back, the proxy of new-frontend-1";
    fixture.until("up", "led to", lacks(false, leads)).await;
    fixture.delete(&pods(), "new-frontend-1").await;
    // Other proxies may follow that update where no controller finds them.
    fixture
        .until("up", "perhaps led to", |object| {
            let missing = object["status"]["missingForDeletion"].to_string();
            missing.contains("route to the frontends of old: back")
                && !missing.contains("new-frontend-1")
        })
        .await;
    fixture.delete(&updates(), "back").await;
    fixture.until("up", "safe again", is_safe).await;
}

/// An update that leads to old no longer counts once it is complete and its own old frontends are gone, so it must stay complete.
#[tokio::test]
async fn an_update_stays_complete_after_its_old_frontends_are_deleted() {
    let (fixture, _controller) = safe().await;
    fixture.delete(&pods(), "old-frontend-0").await;
    fixture
        .until("up", "without proxies", |object| !is_safe(object))
        .await;
    // Until the controller has decided again.
    fixture
        .edit("up", json!({"maxTrafficSplitPercent": 100}))
        .await;
    fixture
        .until("up", "decided again", |object| {
            let status = &object["status"];
            assert_eq!(status["phase"], "Complete", "{status}");
            status["observedGeneration"] == object["metadata"]["generation"]
        })
        .await;
}
