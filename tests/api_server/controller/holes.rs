//! Attempts to be told that old may go while somebody could still need it.

use serde_json::{Value, json};

use super::fixture::{Fixture, pods, resource, updates};

pub fn slices() -> kube::api::ApiResource {
    resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
}

pub fn services() -> kube::api::ApiResource {
    resource("", "v1", "Service", "services")
}

/// The clients' Service, as it is unless a test has another one.
pub fn clients() -> Value {
    json!({"spec": {"clusterIP": "None", "selector": {"app": "new"}}})
}

/// The clients' Service leads to this pod of new.
pub async fn lead_clients_to(fixture: &Fixture, pod: &str) {
    fixture.create(&services(), "clients", clients()).await;
    fixture.create(&slices(), "clients-1", slice(pod)).await;
}

/// Of the clients' Service, with this pod behind it.
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

/// Is this promised, and that not, for this reason?
pub fn lacks(last_worker: bool, reason: &'static str) -> impl Fn(&Value) -> bool {
    move |object| {
        let status = &object["status"];
        status["safeToDeleteOld"] == false
            && status["lastOldWorkerDispensable"] == last_worker
            && status["missingForDeletion"].to_string().contains(reason)
    }
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_pod_of_unknown_kin_or_another_update_leads_to_it() {
    let fixture = Fixture::begun(json!({"clientService": "clients"})).await;
    fixture.frontend_of_new("new-frontend-0").await;
    lead_clients_to(&fixture, "new-frontend-0").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    let _controller = fixture.controller(&[]).await;
    fixture.splits("up", 1, 1).await;
    fixture.delete_old_workers().await;
    fixture.until("up", "safe", is_safe).await;

    // A frontend of old that somebody has relabelled to look at it serves its clients as ever.
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

    // Somebody goes back: the frontends of new send half of all to old.
    let back = json!({
        "sourceDeployment": "new", "targetDeployment": "old", "trafficSplitPercent": 50, "paused": true, "strict": true,
    });
    fixture.update("back", back).await;
    let leads_back = lacks(
        false,
        "these updates and proxies lead to the frontends of old: back",
    );
    fixture
        .until("up", "another update needs old", leads_back)
        .await;
    fixture.delete(&updates(), "back").await;
    fixture.until("up", "safe once more", is_safe).await;

    // One of the same name is another one: nothing was proven of it.
    fixture.delete(&updates(), "up").await;
    fixture
        .update("up", json!({"clientService": "clients"}))
        .await;
    fixture
        .until("up", "looked at", |object| {
            let status = &object["status"];
            object["spec"]["trafficSplitPercent"] == 100
                && status["wanted"]["percent"] == 100
                && status["safeToDeleteOld"] == false
                && status["lastOldWorkerDispensable"] == false
        })
        .await;
}

/// An update that is complete, with old's workers gone and all clients led to new.
pub async fn safe() -> (Fixture, super::fixture::Controller) {
    let fixture = Fixture::begun(json!({"clientService": "clients"})).await;
    fixture.frontend_of_new("new-frontend-0").await;
    lead_clients_to(&fixture, "new-frontend-0").await;
    for i in 0..4 {
        fixture.worker("new", i, "worker").await;
    }
    let controller = fixture.controller(&[]).await;
    fixture.splits("up", 1, 1).await;
    fixture.delete_old_workers().await;
    fixture.until("up", "safe", is_safe).await;
    (fixture, controller)
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_anything_leads_to_it_by_whatever_name() {
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
    for (kind, name, object, told) in [
        (slices(), "by-hand-1", by_hand, "Service by-hand"),
        // There is nobody who would write slices for it yet.
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
        fixture.until("up", told, lacks(true, told)).await;
    }
    fixture.delete(&slices(), "by-hand-1").await;
    fixture.delete(&services, "alias").await;
    fixture.delete(&services, "legacy").await;
    // What is left names nothing that leads to old.
    fixture.until("up", "safe again", is_safe).await;
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_an_update_that_cannot_be_used_any_more_may_lead_to_it() {
    let (fixture, _controller) = safe().await;
    // The frontends of new send half of all back to old, by the last plan that they could use.
    let back = json!({
        "sourceDeployment": "new", "targetDeployment": "old", "trafficSplitPercent": 50, "paused": true, "strict": true,
    });
    fixture.update("back", back).await;
    let leads_back = lacks(
        false,
        "these updates and proxies lead to the frontends of old: back",
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
    // Somebody goes back half-way, new loses a worker, and then the way back is deleted.
    let back = json!({
        "newFrontendService": fixture.old.url(), "sourceDeployment": "new", "targetDeployment": "old",
        "trafficSplitPercent": 50, "paused": true, "strict": true,
    });
    fixture.update("back", back).await;
    fixture.proxy_of("new", "back").await;
    let leads_back = lacks(
        false,
        "these updates and proxies lead to the frontends of old: back",
    );
    fixture
        .until("up", "another update needs old", leads_back)
        .await;
    fixture.pod_ready("new-worker-0", false).await;
    fixture
        .until("back", "capacity is told", |object| {
            object["status"]["old"]["capacityPercent"] == 75
        })
        .await;
    fixture.delete(&updates(), "back").await;
    fixture.happens("DeletedNewKept").await;
    let leads = "lead to the frontends of old: the proxy of new-frontend-1";
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
    // Requests go to the address, whatever pod is named beside it.
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

    // There is nobody who would write slices for it yet.
    let graph = "nvidia.com/dynamo-graph-deployment-name";
    let selects = json!({"spec": {"selector": {graph: "old"}, "ports": [{"port": 80}]}});
    fixture.replace(&services, "clients", selects.clone()).await;
    fixture
        .until("up", "a selector", lacks(true, has_not_left))
        .await;
    fixture.replace(&services, "clients", clients()).await;
    fixture.until("up", "safe once more", is_safe).await;

    // Its proxies see nothing of what comes to a frontend's own port.
    let direct = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "direct"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.0.2"], "targetRef": {"kind": "Pod", "name": "old-frontend-0"}}],
        "ports": [{"name": "http", "port": fixture.old.address.port()}],
    });
    fixture.create(&slices(), "direct-1", direct).await;
    let around = "lead to the frontends of old around their proxies: Service direct";
    fixture
        .until("up", "around the proxy", lacks(false, around))
        .await;
    fixture.delete(&slices(), "direct-1").await;
    fixture.until("up", "safe a third time", is_safe).await;

    // An update that leads to old by a name that is another name of old's Service.
    let host = format!("legacy.{}.svc.cluster.local", fixture.namespace);
    let alias = json!({"spec": {"type": "ExternalName", "externalName": host}});
    fixture.create(&services, "legacy", selects).await;
    fixture.create(&services, "alias", alias).await;
    let by_alias = json!({
        "sourceDeployment": "new", "targetDeployment": "other", "newFrontendService": "alias:8000",
        "trafficSplitPercent": 50, "paused": true, "strict": true,
    });
    fixture.update("by-alias", by_alias).await;
    let leads = "these updates and proxies lead to the frontends of old: by-alias";
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
        "these updates and proxies lead to the frontends of old: back",
    );
    fixture
        .until("up", "another update needs old", leads_back)
        .await;
    fixture.pod_ready("new-worker-0", false).await;
    fixture
        .until("back", "capacity is told", |object| {
            object["status"]["old"]["capacityPercent"] == 75
        })
        .await;
    fixture
        .edit("back", json!({"sourceDeployment": "elsewhere"}))
        .await;
    fixture.happens("DeletedNewKept").await;
    let leads = "lead to the frontends of old: back, the proxy of new-frontend-1";
    fixture.until("up", "led to", lacks(false, leads)).await;
    fixture.delete(&pods(), "new-frontend-1").await;
    fixture.until("up", "safe again", is_safe).await;
}
