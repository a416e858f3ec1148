//! Objects of the kinds that are not parsed: those that lead to old, and those that only name something else.

mod annotations;

use serde_json::json;

use super::super::kinds::BY_TEXT;
use super::super::routes::examples::{by_text, read};
use super::*;
use crate::k8s::object;

fn kind(name: &str) -> GroupKind {
    let (kind, group) = name.split_once('.').unwrap();
    let mut all = BY_TEXT.iter();
    *all.find(|one| (one.kind, one.group) == (kind, group))
        .unwrap()
}

fn object_of(name: &str, data: &Json) -> Object {
    let mut whole = data.clone();
    let (namespace, name) = name.split_once('/').unwrap();
    whole["metadata"]["name"] = name.into();
    if !namespace.is_empty() {
        whole["metadata"]["namespace"] = namespace.into();
    }
    object(whole)
}

/// Which of these objects, each with its kind and name, lead to the Service `legacy` in `n` or to a pod behind it.
fn leading(objects: &[(&str, &str, Json)]) -> Vec<String> {
    let listed = objects
        .iter()
        .map(|(kind_name, name, data)| (kind(kind_name), vec![object_of(name, data)]));
    read(|to_old| by_text(listed.collect()).leading_to(to_old))
}

#[test]
fn an_object_of_any_kind_leads_to_what_it_names() {
    let spec = |spec: Json| json!({"spec": spec});
    let routes_to = |service: Json| {
        spec(json!({"routes": [{
            "match": "Host(`chat.example.com`) && PathPrefix(`/v1`)", "kind": "Rule", "services": [service],
        }]}))
    };
    let envoy = json!({"configPatches": [{"patch": {"value": {
        "cluster": "outbound|80||legacy.n.svc.cluster.local",
    }}}]});
    let objects = [
        (
            "IngressRoute.traefik.io",
            "n/a",
            routes_to(json!({"name": "legacy", "port": 80})),
        ),
        (
            "IngressRouteTCP.traefik.containo.us",
            "m/a",
            routes_to(json!({"name": "legacy", "namespace": "n"})),
        ),
        (
            "TraefikService.traefik.io",
            "n/a",
            spec(
                json!({"weighted": {"services": [{"name": "new"}, {"name": "legacy", "weight": 0}]}}),
            ),
        ),
        (
            "HTTPProxy.projectcontour.io",
            "n/a",
            spec(json!({"routes": [{"services": [{"name": "legacy", "mirror": true}]}]})),
        ),
        (
            "Backend.gateway.envoyproxy.io",
            "m/fqdn",
            spec(
                json!({"endpoints": [{"fqdn": {"hostname": "legacy.n.svc.cluster.local", "port": 80}}]}),
            ),
        ),
        (
            "Backend.gateway.envoyproxy.io",
            "m/ip",
            spec(json!({"endpoints": [{"ip": {"address": "fd00:0::1", "port": 8000}}]})),
        ),
        (
            "Backend.gateway.kgateway.dev",
            "m/a",
            spec(json!({"static": {"hosts": [{"host": "10.9.0.1", "port": 80}]}})),
        ),
        ("EnvoyFilter.networking.istio.io", "m/a", spec(envoy)),
        (
            "DestinationRule.networking.istio.io",
            "m/a",
            spec(json!({"host": "legacy.n"})),
        ),
        (
            "Sidecar.networking.istio.io",
            "m/a",
            spec(json!({"ingress": [{"defaultEndpoint": "10.0.0.1:8000"}]})),
        ),
        (
            "TCPIngress.configuration.konghq.com",
            "n/a",
            spec(json!({"rules": [{"backend": {"serviceName": "legacy", "servicePort": 80}}]})),
        ),
        (
            "VirtualServer.k8s.nginx.org",
            "m/a",
            spec(json!({"upstreams": [{"name": "all", "service": "n/legacy"}]})),
        ),
        (
            "Mapping.getambassador.io",
            "m/a",
            spec(json!({"prefix": "/v1/", "service": "https://legacy.n:80"})),
        ),
        (
            "ApisixRoute.apisix.apache.org",
            "n/a",
            spec(json!({"http": [{"backends": [{"serviceName": "legacy", "servicePort": 80}]}]})),
        ),
        (
            "TCP.ingress.v1.haproxy.org",
            "n/a",
            json!({"spec": [{"service": {"name": "legacy"}}]}),
        ),
        (
            "TargetGroupBinding.elbv2.k8s.aws",
            "n/a",
            spec(
                json!({"serviceRef": {"name": "legacy", "port": 80}, "targetGroupARN": "arn:aws:x"}),
            ),
        ),
        (
            "TrafficSplit.split.smi-spec.io",
            "n/a",
            spec(json!({"service": "chat", "backends": [{"service": "legacy", "weight": "1"}]})),
        ),
        (
            "ServiceProfile.linkerd.io",
            "m/legacy.n.svc.cluster.local",
            spec(json!({})),
        ),
        (
            "ServiceProfile.linkerd.io",
            "m/chat.m.svc.cluster.local",
            spec(json!({"dstOverrides": [{"authority": "legacy.n.svc.cluster.local.:80"}]})),
        ),
        // Its names have no namespace.
        (
            "ServiceResolver.consul.hashicorp.com",
            "m/chat",
            spec(json!({"redirect": {"service": "legacy"}})),
        ),
        (
            "CiliumClusterwideEnvoyConfig.cilium.io",
            "/a",
            spec(json!({"backendServices": [{"name": "legacy", "namespace": "n"}]})),
        ),
        (
            "CiliumEnvoyConfig.cilium.io",
            "m/a",
            spec(json!({"resources": [{"name": "n/legacy:80"}]})),
        ),
        (
            "Ingress.networking.internal.knative.dev",
            "m/a",
            spec(json!({"rules": [{"http": {"paths": [{"splits": [
                {"serviceName": "legacy", "serviceNamespace": "n"},
            ]}]}}]})),
        ),
        (
            "InferenceGraph.serving.kserve.io",
            "m/a",
            spec(json!({"nodes": {"root": {"steps": [{"serviceUrl": "http://legacy.n.svc/v1"}]}}})),
        ),
        (
            "HTTPProxy.projectcontour.io",
            "m/annotated",
            json!({"metadata": {"annotations": {"example.com/mirror": "http://10-0-0-1.n.pod:80 http://10.0.0.1"}}}),
        ),
    ];
    let expected = objects
        .iter()
        .map(|(kind, name, _)| match name.strip_prefix('/') {
            Some(name) => format!("{kind} {name}"),
            None => format!("{kind} {name}"),
        });
    assert_eq!(leading(&objects), expected.collect::<Vec<_>>());
}

#[test]
fn an_object_that_names_only_something_else_does_not_lead_to_old() {
    let spec = |spec: Json| json!({"spec": spec});
    let objects = [
        (
            "IngressRoute.traefik.io",
            "n/legacy",
            spec(json!({"routes": [{"services": [{"name": "new"}]}]})),
        ),
        // Another Service of this name.
        (
            "IngressRoute.traefik.io",
            "m/a",
            spec(json!({"routes": [{"services": [{"name": "legacy"}]}]})),
        ),
        (
            "Mapping.getambassador.io",
            "n/a",
            spec(json!({"service": "legacy.m:80"})),
        ),
        (
            "HTTPProxy.projectcontour.io",
            "n/a",
            spec(json!({"routes": [{"services": [{"name": "legacy-2"}]}]})),
        ),
        (
            "Backend.gateway.envoyproxy.io",
            "m/a",
            spec(json!({"endpoints": [{"ip": {"address": "10.0.0.2"}}]})),
        ),
        // They limit what its pods know, or say how the others are reached.
        (
            "Sidecar.networking.istio.io",
            "n/a",
            spec(json!({"egress": [{"hosts": ["./*", "n/*", "*/*"]}]})),
        ),
        (
            "DestinationRule.networking.istio.io",
            "n/a",
            spec(json!({"host": "*.local"})),
        ),
        // What it says of itself, and what it was.
        (
            "IngressRoute.traefik.io",
            "n/status",
            json!({
                "metadata": {"annotations": {REPEATS: "http://legacy.n.svc:80", "example.com/replaces": "legacy"}},
                "spec": {}, "status": {"was": "legacy"},
            }),
        ),
    ];
    assert_eq!(leading(&objects), [""; 0]);
}

#[test]
fn an_upstream_that_gloo_made_for_a_service_matters_only_if_it_is_used() {
    let upstream = json!({
        "metadata": {"labels": {DISCOVERED: "kubernetesplugin"}},
        "spec": {"kube": {"serviceName": "legacy", "serviceNamespace": "n", "servicePort": 80}},
    });
    let mut by_hand = upstream.clone();
    by_hand["metadata"] = json!({});
    let to = |name: &str| {
        let upstream = json!({"name": name, "namespace": "gloo-system"});
        json!({"spec": {"virtualHost": {"routes": [{"routeAction": {"single": {"upstream": upstream}}}]}}})
    };
    let kinds = ("Upstream.gloo.solo.io", "VirtualService.gateway.solo.io");
    let mut objects = vec![
        (kinds.0, "gloo-system/n-legacy-80", upstream),
        (kinds.1, "m/other", to("n-new-80")),
    ];
    assert_eq!(leading(&objects), [""; 0]);
    objects.push((kinds.1, "m/used", to("n-legacy-80")));
    objects.push((kinds.0, "m/by-hand", by_hand));
    let expected = [
        "VirtualService.gateway.solo.io m/used",
        "Upstream.gloo.solo.io m/by-hand",
    ];
    assert_eq!(leading(&objects), expected);
}

#[test]
fn a_policy_of_cilium_redirects_to_the_pods_that_it_selects() {
    let policy = |selector: Json| {
        json!({"spec": {
            "redirectFrontend": {"addressMatcher": {"ip": "169.254.1.1", "toPorts": [{"port": "80"}]}},
            "redirectBackend": {"localEndpointSelector": selector, "toPorts": [{"port": "8080"}]},
        }})
    };
    let labels = |labels: Json| policy(json!({"matchLabels": labels}));
    let name = "CiliumLocalRedirectPolicy.cilium.io";
    let objects = [
        (name, "n/own", labels(json!({"app": "old"}))),
        (
            name,
            "n/prefixed",
            labels(json!({"k8s:app": "old", "k8s:io.kubernetes.pod.namespace": "n"})),
        ),
        (
            name,
            "n/by-expression",
            policy(json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]})),
        ),
        (name, "n/other", labels(json!({"app": "new"}))),
        (name, "m/elsewhere", labels(json!({"app": "old"}))),
    ];
    let leading_to = |index: usize| format!("{name} {}", objects[index].1);
    assert_eq!(leading(&objects), [0, 1, 2].map(leading_to));
    let listed = objects
        .iter()
        .map(|(kind_name, name, data)| (kind(kind_name), vec![object_of(name, data)]));
    let routes = by_text(listed.collect());
    for (port, expected) in [(8080, vec![0, 1, 2]), (8000, vec![])] {
        let found = read(|to_old| routes.leading_to_ports(to_old, &BTreeSet::from([port])));
        let expected: Vec<_> = expected.into_iter().map(leading_to).collect();
        assert_eq!(found, expected, "{port}");
    }
}

#[test]
fn an_address_of_a_pod_may_lead_to_the_port_behind_its_proxy() {
    let endpoint = |address: &str, port: u16| json!({"spec": {"endpoints": [{"ip": {"address": address, "port": port}}]}});
    let host = json!({"spec": {"endpoints": [{"fqdn": {"hostname": "legacy.n.svc.cluster.local", "port": 8080}}]}});
    let backend = kind("Backend.gateway.envoyproxy.io");
    let objects = [
        ("m/around", endpoint("10.0.0.1", 8080)),
        ("m/proxy", endpoint("10.0.0.1", 8000)),
        ("m/other", endpoint("10.0.0.2", 8080)),
        // That is for the Service to say.
        ("m/service", host),
        (
            "m/text",
            json!({"spec": {"service": "http://10.0.0.1:8080"}}),
        ),
        ("m/any", json!({"spec": {"service": "10.0.0.1"}})),
    ];
    let objects = objects.iter().map(|(name, data)| object_of(name, data));
    let routes = by_text(vec![(backend, objects.collect())]);
    let found = read(|to_old| routes.leading_to_ports(to_old, &BTreeSet::from([8080])));
    let expected = ["m/around", "m/text", "m/any"];
    assert_eq!(
        found,
        expected.map(|name| format!("{} {name}", backend.name()))
    );
}

#[test]
fn a_port_of_a_node_leads_to_a_service_or_a_pod() {
    let endpoint = |address: &str, port: Json| json!({"spec": {"endpoints": [{"ip": {"address": address, "port": port}}]}});
    let backend = "Backend.gateway.envoyproxy.io";
    let objects = [
        (backend, "m/node-port", endpoint("192.0.2.9", json!(30080))),
        (backend, "m/host-port", endpoint("192.0.2.7", json!(80))),
        (
            backend,
            "m/in-text",
            json!({"spec": {"url": "http://192.0.2.7:80/v1"}}),
        ),
        (backend, "m/other-node", endpoint("192.0.2.9", json!(80))),
        (backend, "m/other-port", endpoint("192.0.2.7", json!(81))),
    ];
    let expected = [0, 1, 2].map(|index| format!("{backend} {}", objects[index].1));
    assert_eq!(leading(&objects), expected);
}
