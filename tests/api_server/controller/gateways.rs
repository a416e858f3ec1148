//! `safeToDeleteOld` stays false while an object of a gateway or a mesh leads to old, even if the controller does not parse its kind.

use std::sync::Arc;

use serde_json::{Value, json};

use super::fixture::{Controller, Fixture, pods, resource};
use super::safe_to_delete::{is_safe, lacks, safe, services};
use super::safe_to_delete_hidden_clients::left;
use super::safe_to_delete_routes::assert_stays_unsafe;
use crate::cluster::Cluster;

const GRAPH: &str = "nvidia.com/dynamo-graph-deployment-name";

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

fn legacy() -> Value {
    json!({"spec": {"selector": {GRAPH: "old"}, "ports": [{"port": 80}]}})
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_an_object_of_a_gateway_names_it() {
    let (fixture, _controller) = safe().await;
    let other = Fixture::start().await;
    let (own, place) = (&fixture.namespace, &other.namespace);
    let addresses = json!({"podIPs": [{"ip": "127.0.0.1"}, {"ip": "fd00::b7"}]});
    fixture.status(&pods(), "old-frontend-0", addresses).await;
    let routes = resource("traefik.io", "v1alpha1", "IngressRoute", "ingressroutes");
    let proxies = resource("projectcontour.io", "v1", "HTTPProxy", "httpproxies");
    let backends = resource("gateway.envoyproxy.io", "v1alpha1", "Backend", "backends");
    let bindings = resource(
        "elbv2.k8s.aws",
        "v1beta1",
        "TargetGroupBinding",
        "targetgroupbindings",
    );
    let kuma = resource("kuma.io", "v1alpha1", "MeshHTTPRoute", "meshhttproutes");
    let nodes = resource("appmesh.k8s.aws", "v1beta2", "VirtualNode", "virtualnodes");
    let (kind, plural) = ("HTTPScaledObject", "httpscaledobjects");
    let scaled = resource("http.keda.sh", "v1alpha1", kind, plural);
    let traefik = |name: &str| {
        let service = json!({"name": name, "namespace": own, "port": 80});
        let rule = "Host(`chat.example.com`)";
        json!({"spec": {"routes": [{"kind": "Rule", "match": rule, "services": [service]}]}})
    };
    let contour = |name: &str| {
        let services =
            json!([{"name": "new", "port": 80}, {"name": name, "port": 80, "mirror": true}]);
        json!({"spec": {"virtualhost": {"fqdn": "chat.example.com"}, "routes": [{"services": services}]}})
    };
    let envoy = |host: &str| {
        let host = format!("{host}.{own}.svc.cluster.local");
        json!({"spec": {"endpoints": [{"fqdn": {"hostname": host, "port": 80}}]}})
    };
    let envoy_by_address = |address: &str| json!({"spec": {"endpoints": [{"ip": {"address": address, "port": 8000}}]}});
    let aws = |name: &str| json!({"spec": {"serviceRef": {"name": name, "port": 80}, "targetGroupARN": "arn:aws:any"}});
    // The name that Kuma gives a port of a Service.
    let meshed = |name: &str| {
        let backend = json!({"kind": "MeshService", "name": format!("{name}_{own}_svc_80")});
        let to = json!({"targetRef": {"kind": "MeshService", "name": "chat"}, "rules": [{"default": {"backendRefs": [backend]}}]});
        json!({"spec": {"targetRef": {"kind": "Mesh"}, "to": [to]}})
    };
    let node = |name: &str| {
        let host = format!("{name}.{own}.svc.cluster.local");
        json!({"spec": {"serviceDiscovery": {"dns": {"hostname": host}}}})
    };
    let keda = |name: &str| {
        let target = json!({"name": "any", "kind": "Deployment", "service": name, "port": 80});
        json!({"spec": {"hosts": ["chat.example.com"], "scaleTargetRef": target}})
    };
    // The objects of new exist all the time.
    other.create(&kuma, "of-new", meshed("clients")).await;
    other.create(&nodes, "of-new", node("clients")).await;
    fixture.create(&scaled, "of-new", keda("clients")).await;
    other.create(&routes, "of-new", traefik("new")).await;
    fixture.create(&proxies, "of-new", contour("clients")).await;
    other.create(&backends, "of-new", envoy("clients")).await;
    other
        .create(&backends, "by-address", envoy_by_address("fd00::b8"))
        .await;
    fixture.create(&bindings, "of-new", aws("clients")).await;

    fixture.create(&services(), "legacy", legacy()).await;
    let all = [
        (&other, &routes, "of-old", traefik("legacy")),
        (&fixture, &proxies, "of-old", contour("legacy")),
        (&other, &backends, "of-old", envoy("legacy")),
        (&fixture, &bindings, "of-old", aws("legacy")),
        (&other, &kuma, "of-old", meshed("legacy")),
        (&other, &nodes, "of-old", node("legacy")),
        (&fixture, &scaled, "of-old", keda("legacy")),
        (&other, &backends, "of-pod", envoy_by_address("fd00:0::b7")),
    ];
    for (whose, kind, name, object) in &all {
        whose.create(kind, name, object.clone()).await;
    }
    let named = |whose: &Fixture, kind: &kube::api::ApiResource, name: &str| {
        leak(format!(
            "{}.{} {}/{name}",
            kind.kind, kind.group, whose.namespace
        ))
    };
    for (whose, kind, name, _) in &all {
        let name = named(whose, kind, name);
        fixture.until("up", name, lacks(true, name)).await;
    }
    let object = fixture.get("up").await;
    let missing = object["status"]["missingForDeletion"].to_string();
    assert!(!missing.contains("/of-new"), "{missing} {place}");

    // Without the Service, these objects lead nowhere. The one with the address of the pod remains.
    fixture.delete(&services(), "legacy").await;
    let gone = |object: &Value| {
        let missing = object["status"]["missingForDeletion"].to_string();
        missing.contains("/of-pod") && !missing.contains("/of-old")
    };
    fixture.until("up", "the Service is gone", gone).await;
    assert!(!is_safe(&fixture.get("up").await));
    other.delete(&backends, "of-pod").await;
    fixture.until("up", "safe again", is_safe).await;
    for (whose, kind, name, _) in &all[..7] {
        whose.delete(kind, name).await;
    }
}

#[tokio::test]
async fn old_is_not_safe_to_delete_while_a_kind_of_a_gateway_cannot_be_read_or_appears_late() {
    let server = tokio::task::spawn_blocking(super::fixture::new_server).await;
    let server = Arc::new(server.unwrap());
    let mut fixture = Fixture::start_on(&server).await;
    fixture.begin(json!({"clientService": "clients"})).await;
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("gateways.kubeconfig");
    let on_server = async |run: Box<dyn FnOnce(&Cluster) -> Value + Send>| {
        let server = Arc::clone(&server);
        let done = tokio::task::spawn_blocking(move || run(&server)).await;
        done.unwrap()
    };
    let (admin, path) = (fixture.kubeconfig.clone(), place.clone());
    let role = on_server(Box::new(move |server| {
        super::fixture::as_service_account_of(server, &admin, &path);
        server.get(&["clusterrole", "crossfade-controller"])
    }))
    .await;
    let set = async |role: &Value| {
        let patch = json!({"rules": role["rules"]}).to_string();
        let patched = on_server(Box::new(move |server| {
            let name = ["patch", "clusterrole", "crossfade-controller", "-p", &patch];
            server.kubectl(&[&name[..], &["--type=merge"]].concat());
            Value::Null
        }));
        patched.await;
    };
    // From the start, the controller may not read the routes of Traefik.
    let mut without = role.clone();
    let rules = without["rules"].as_array_mut().unwrap();
    rules.retain(|rule| !rule["apiGroups"].to_string().contains("traefik.io"));
    set(&without).await;
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
    let unknown = lacks(false, "no other Service, Ingress, or route sends");
    let only_that = |object: &Value| {
        let missing = object["status"]["missingForDeletion"].as_array();
        unknown(object) && missing.is_some_and(|all| all.len() == 3)
    };
    fixture.until("up", "unknown", only_that).await;
    assert_stays_unsafe(&fixture).await;
    set(&role).await;
    fixture.until("up", "safe", is_safe).await;

    // A user installs Emissary, whose kind the cluster did not serve before.
    on_server(Box::new(|server| {
        let name = "mappings.getambassador.io";
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
            "spec": {
                "group": "getambassador.io", "scope": "Namespaced",
                "names": {"kind": "Mapping", "listKind": "MappingList", "plural": "mappings", "singular": "mapping"},
                // A future version, which does not exist yet.
                "versions": [{"name": "v4", "served": true, "storage": true, "schema": schema}],
            },
        });
        server.apply(&definition.to_string());
        server.kubectl(&["wait", "--for=condition=Established", "crd", name, "--timeout=60s"]);
        Value::Null
    }))
    .await;
    let mappings = resource("getambassador.io", "v4", "Mapping", "mappings");
    fixture.create(&services(), "legacy", legacy()).await;
    fixture
        .until("up", "a Service", lacks(true, "Service legacy"))
        .await;
    let mapping = json!({"spec": {"prefix": "/", "service": "legacy:80"}});
    fixture.create(&mappings, "chat", mapping).await;
    let mapped = leak(format!(
        "Mapping.getambassador.io {}/chat",
        fixture.namespace
    ));
    fixture.until("up", mapped, lacks(true, mapped)).await;
    fixture.delete(&mappings, "chat").await;
    fixture.delete(&services(), "legacy").await;
    fixture.until("up", "safe at the end", is_safe).await;
}
