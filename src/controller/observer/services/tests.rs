//! Services and slices that lead to old, and those that only seem to.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::super::slices::{BY_SELECTOR, WRITER};
use super::*;
use crate::k8s::object;

fn slice(namespace: &str, service: &str, writer: &str, address: &str, port: u16) -> Object {
    object(json!({
        "metadata": {
            "name": format!("{service}-1"), "namespace": namespace, "labels": {SERVICE: service, WRITER: writer},
        },
        "endpoints": [{"addresses": [address]}], "ports": [{"port": port}],
    }))
}

#[test]
fn a_service_leads_to_old_by_any_address_and_from_any_namespace() {
    let pods = [object(json!({
        "metadata": {"name": "old-0", "namespace": "n", "labels": {"app": "old"}},
        "spec": {"containers": [{"ports": [{"containerPort": 8000}, {"name": "frontend", "containerPort": 8080}]}]},
        "status": {"podIP": "10.0.0.1"},
    }))];
    let service = |namespace: &str, name: &str, spec: Json| {
        object(json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec}))
    };
    let selects = json!({
        "selector": {"app": "old"}, "clusterIP": "10.9.0.1", "externalIPs": ["192.0.2.1"],
        "ports": [{"port": 80, "nodePort": 30080}],
    });
    let selects_elsewhere = json!({"selector": {"app": "old"}});
    let name = json!({"type": "ExternalName", "externalName": "by-hand.m.svc.cluster.local"});
    let services = [
        service("n", "selects", selects),
        object(json!({
            "metadata": {"name": "balanced", "namespace": "n"}, "spec": {"selector": {"app": "old"}},
            "status": {"loadBalancer": {"ingress": [{"hostname": "lb.example"}]}},
        })),
        service(
            "m",
            "by-balancer",
            json!({"type": "ExternalName", "externalName": "lb.example."}),
        ),
        service("m", "selects-there", selects_elsewhere.clone()),
        service("m", "by-selector", selects_elsewhere),
        service("m", "alias", name),
        // Its slices are not written yet.
        service(
            "n",
            "by-port",
            json!({"selector": {"app": "old"}, "ports": [{"port": 80, "targetPort": "frontend"}]}),
        ),
    ];
    let mut all_ports = slice("n", "all-ports", "me", "10.0.0.1", 0);
    Arc::make_mut(&mut all_ports).data["ports"] = json!([{"name": ""}]);
    let slices = [
        all_ports,
        // By the address of a pod, of a Service, and of a Service by another address.
        slice("m", "by-hand", "me", "10.0.0.1", 8000),
        // Kubernetes has accepted leading zeros. Some programs read 012 as 10.
        slice("m", "octal", "me", "012.0.0.1", 8000),
        slice("n", "zeros", "me", "010.000.0.01", 8000),
        slice("n", "zeros-of-service", "me", "10.09.0.1", 80),
        slice("n", "other-zeros", "me", "010.0.0.02", 8000),
        slice("n", "chained", "me", "10.9.0.1", 80),
        slice("m", "chained-there", "me", "192.0.2.1", 80),
        // Around the proxy.
        slice("n", "direct", "me", "10.0.0.1", 8080),
        // By a port that the pod does not declare, and by a port of any node.
        slice("m", "other-port", "me", "10.0.0.1", 9100),
        slice("m", "node-port", "me", "203.0.113.1", 30080),
        slice("m", "nobody", "me", "10.0.0.2", 8000),
        // Kubernetes knows no pod of another namespace: it was the address of another one.
        slice("m", "by-selector", BY_SELECTOR, "10.0.0.1", 8000),
    ];
    let scope = OldScope::example();
    let all = AllServices::of(&services, &slices, scope.domain);
    let found = ServicesToOld::of(&all, &OldPods::of(&pods, &pods), &scope);
    let names = |names: &BTreeSet<ServiceName>| {
        let names = names.iter().map(|(own, name)| format!("{own}/{name}"));
        names.collect::<Vec<_>>()
    };
    assert_eq!(
        names(&found.names),
        [
            "m/alias",
            "m/by-balancer",
            "m/by-hand",
            "m/chained-there",
            "m/node-port",
            "m/octal",
            "m/other-port",
            "n/all-ports",
            "n/balanced",
            "n/by-port",
            "n/chained",
            "n/direct",
            "n/selects",
            "n/zeros",
            "n/zeros-of-service"
        ]
    );
    assert_eq!(names(&found.aliases), ["m/alias", "m/by-balancer"]);
    let around = ["n/all-ports", "n/by-port", "n/direct"];
    assert_eq!(names(&found.around_proxies), around);
    assert!(found.has_address("192.0.2.1".parse().unwrap()));
    assert!(found.has_node_port(30080) && !found.has_node_port(30081));
    assert!(found.deleted_with_old.is_empty());
}

fn old_pod() -> Object {
    object(json!({
        "metadata": {"name": "old-0", "namespace": "n", "labels": {"app": "old"}},
        "spec": {"containers": [{"ports": [
            {"containerPort": 8000, "hostPort": 80}, {"name": "frontend", "containerPort": 8080},
        ]}]},
        "status": {"podIP": "10.0.0.1", "hostIP": "192.0.2.7"},
    }))
}

fn ways(services: &[Object], slices: &[Object]) -> (Vec<String>, Vec<String>) {
    let scope = OldScope {
        is_graph: true,
        ..OldScope::example()
    };
    let pods = [old_pod()];
    let all = AllServices::of(services, slices, scope.domain);
    let found = ServicesToOld::of(&all, &OldPods::of(&pods, &pods), &scope);
    let listed = |names: &BTreeSet<ServiceName>| {
        let names = names.iter().map(|(own, name)| format!("{own}/{name}"));
        names.collect::<Vec<_>>()
    };
    let others = found.names.difference(&found.deleted_with_old);
    (listed(&others.cloned().collect()), listed(&found.imports))
}

#[test]
fn a_slice_is_kubernetes_own_only_where_kubernetes_writes_it() {
    let service = |name: &str, spec: Json| {
        object(json!({"metadata": {"name": name, "namespace": "m"}, "spec": spec}))
    };
    let services = [
        service("without-selector", json!({})),
        service("with-selector", json!({"selector": {"app": "any"}})),
    ];
    let forged = |name: &str| slice("m", name, BY_SELECTOR, "10.0.0.1", 8000);
    let slices = ["without-selector", "with-selector", "gone"].map(forged);
    let (names, _) = ways(&services, &slices);
    assert_eq!(names, ["m/gone", "m/without-selector"]);
}

#[test]
fn a_slice_leads_to_old_by_a_host_name_a_port_of_its_node_or_as_an_import() {
    let of = |namespace: &str, label: &str, name: &str, address: &str, port: u16| {
        object(json!({
            "metadata": {"name": format!("{name}-1"), "namespace": namespace, "labels": {label: name}},
            "endpoints": [{"addresses": [address]}], "ports": [{"port": port}],
        }))
    };
    let selects = json!({"selector": {"app": "old"}});
    let services = [
        object(json!({"metadata": {"name": "selects", "namespace": "n"}, "spec": selects})),
        object(json!({
            "metadata": {"name": "by-address", "namespace": "m"},
            "spec": {"type": "ExternalName", "externalName": "10.0.0.1"},
        })),
        object(json!({
            "metadata": {"name": "of-several-clusters", "namespace": "m"},
            "spec": {"type": "ExternalName", "externalName": "selects.n.svc.clusterset.local"},
        })),
    ];
    let slices = [
        of("m", SERVICE, "by-host", "selects.n.svc.cluster.local", 80),
        of("m", SERVICE, "by-pod", "10-0-0-1.n.pod.cluster.local", 80),
        of(
            "m",
            SERVICE,
            "of-by-host",
            "by-host.m.svc.cluster.local",
            80,
        ),
        of("m", SERVICE, "elsewhere", "new.n.svc.cluster.local", 80),
        of("m", SERVICE, "node", "192.0.2.7", 80),
        of("m", SERVICE, "other-port", "192.0.2.7", 81),
        of("n", IMPORT, "shared", "10.0.0.1", 8000),
    ];
    let (names, imports) = ways(&services, &slices);
    assert_eq!(
        names,
        [
            "m/by-address",
            "m/by-host",
            "m/by-pod",
            "m/node",
            "m/of-by-host",
            "m/of-several-clusters",
            "n/selects",
        ]
    );
    assert_eq!(imports, ["n/shared"]);
}

#[test]
fn a_service_goes_with_old_only_if_the_operator_owns_it() {
    let service = |name: &str, owner: Json| {
        object(json!({
            "metadata": {
                "name": name, "namespace": "n", "ownerReferences": owner,
                "labels": {"nvidia.com/dynamo-graph-deployment-name": "old"},
            },
            "spec": {"selector": {"app": "old"}},
        }))
    };
    let owner = json!([{
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "name": "old", "uid": "u",
        "controller": true,
    }]);
    let services = [
        service("old-frontend", owner),
        service("copied", Json::Null),
    ];
    let (names, _) = ways(&services, &[]);
    assert_eq!(names, ["n/copied"]);
}

#[test]
fn a_service_leads_to_old_by_either_family_of_addresses_and_through_a_pod_of_any_owner_at_its_node()
{
    let mut pods = [old_pod()];
    Arc::make_mut(&mut pods[0]).data["status"]["podIPs"] =
        json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]);
    let selects = json!({"selector": {"app": "agent"}});
    let services = ["dual", "agent", "agent-elsewhere"]
        .map(|name| object(json!({"metadata": {"name": name, "namespace": "m"}, "spec": selects})));
    let mut of_new = slice("m", "dual", "me", "10.0.0.2", 8000);
    Arc::make_mut(&mut of_new).data["addressType"] = "IPv4".into();
    let mut of_old = slice("m", "dual", "me", "fd00::1", 8000);
    Arc::make_mut(&mut of_old).data["addressType"] = "IPv6".into();
    let slices = [
        of_new,
        of_old,
        // An agent in the host network does not listen on this port, so the node takes it to the pod.
        slice("m", "agent", BY_SELECTOR, "192.0.2.7", 80),
        slice("m", "agent-elsewhere", BY_SELECTOR, "192.0.2.8", 80),
    ];
    let scope = OldScope::example();
    let all = AllServices::of(&services, &slices, scope.domain);
    let found = ServicesToOld::of(&all, &OldPods::of(&pods, &pods), &scope);
    let names: Vec<_> = found.names.iter().map(|(_, name)| &**name).collect();
    assert_eq!(names, ["agent", "dual"]);
}
