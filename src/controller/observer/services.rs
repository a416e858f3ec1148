//! The Services that lead to frontends of old: by their selector, by slices, by another name, or by an address of one of them.
//!
//! Must not know what leads to these Services in turn.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kube::api::DynamicObject;
use serde_json::Value as Json;

use super::super::old_frontends::port;
use super::ways::{OldPods, ServiceName, add_aliases, belongs_to, leads_to, selects_any};
use crate::k8s::Object;
use crate::k8s::workloads::labels;

/// What an EndpointSlice calls its Service, and who writes it.
const SERVICE: &str = "kubernetes.io/service-name";
const WRITER: &str = "endpointslice.kubernetes.io/managed-by";
/// Kubernetes itself, which knows only the pods that a Service of the same namespace selects.
const BY_SELECTOR: &str = "endpointslice-controller.k8s.io";

/// Whose old generation it is.
pub(super) struct OldPlace<'a> {
    pub namespace: &'a str,
    /// `spec.sourceDeployment`
    pub source: &'a str,
    /// Is there a graph of this name, whose operator makes Services for it?
    pub is_graph: bool,
    /// The domain of the cluster.
    pub domain: &'a str,
    /// What its frontends' own port, behind that of their proxies, is named.
    pub frontend_port: &'a str,
}

/// Services that lead to frontends of old.
#[derive(Debug, Default)]
pub(super) struct ServicesToOld {
    pub names: BTreeSet<ServiceName>,
    /// Those of them that only are another name of one.
    pub aliases: BTreeSet<ServiceName>,
    /// Those of them that are deleted together with old.
    pub go_with_old: BTreeSet<ServiceName>,
    /// Those of them that lead to the frontends' own port.
    pub around_proxies: BTreeSet<ServiceName>,
    /// The addresses of them all.
    pub addresses: BTreeSet<IpAddr>,
    /// The host names of their load balancers.
    pub hosts: BTreeSet<String>,
    /// The ports at which every node leads to one of them.
    pub node_ports: BTreeSet<u16>,
}

impl OldPlace<'_> {
    /// The numbers of the frontends' own port.
    pub fn own_ports(&self, old: &OldPods) -> BTreeSet<u16> {
        let pods = old.pods().iter();
        pods.filter_map(|pod| port(pod, self.frontend_port))
            .collect()
    }
}

impl ServicesToOld {
    /// Those among `services`, whose `slices` are these, both of all namespaces that are looked at.
    pub fn of(services: &[Object], slices: &[Object], old: &OldPods, place: &OldPlace) -> Self {
        let mut found = Self::default();
        let is_own = |object: &&Object| {
            let namespace = object.metadata.namespace.as_deref();
            namespace == Some(place.namespace)
        };
        let own_ports = place.own_ports(old);
        for slice in slices {
            let leads = match is_own(&slice) {
                true => leads_to(slice, old),
                false => is_by_hand(slice) && leads_from_elsewhere(slice, old),
            };
            if leads {
                let name = found.note_slice(slice, place);
                let mut ports = ports(slice).flatten();
                if ports.any(|port| own_ports.contains(&port)) {
                    found.around_proxies.extend(name);
                }
            }
        }
        // Its slices may not be written yet.
        for service in services.iter().filter(is_own) {
            if selects_any(service, old.pods()) {
                let name = service.metadata.name.clone().unwrap_or_default();
                found.note(service, name, place);
            }
        }
        loop {
            let known = found.names.len();
            let aliases = add_aliases(
                &mut found.names,
                &found.hosts,
                &|address| old.has(None, Some(address)),
                services,
                place.domain,
            );
            found.aliases.extend(aliases);
            for service in services {
                if name_of(service).is_some_and(|name| found.names.contains(&name)) {
                    found.addresses.extend(own_addresses(service));
                    found.hosts.extend(own_hosts(service));
                    found.node_ports.extend(node_ports(service));
                }
            }
            for slice in slices.iter().filter(|slice| is_by_hand(slice)) {
                let is_node_port = |port: u16| found.node_ports.contains(&port);
                if ports(slice).flatten().any(is_node_port)
                    || addresses(slice).any(|address| found.addresses.contains(&address))
                {
                    found.note_slice(slice, place);
                }
            }
            if found.names.len() == known {
                return found;
            }
        }
    }

    /// Takes in the Service of a slice. Which is it?
    fn note_slice(&mut self, slice: &DynamicObject, place: &OldPlace) -> Option<ServiceName> {
        let service = labels(slice).and_then(|labels| labels.get(SERVICE))?;
        Some(self.note(slice, service.clone(), place))
    }

    /// Takes in the Service of this `name`; `object` is that Service or a slice of it.
    fn note(&mut self, object: &DynamicObject, name: String, place: &OldPlace) -> ServiceName {
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let is_own = namespace == place.namespace;
        let goes_with_old = is_own && belongs_to(object, &name, place.source, place.is_graph);
        let name = (namespace, name);
        if goes_with_old {
            self.go_with_old.insert(name.clone());
        }
        self.names.insert(name.clone());
        name
    }
}

fn name_of(object: &DynamicObject) -> Option<ServiceName> {
    Some((
        object.metadata.namespace.clone()?,
        object.metadata.name.clone()?,
    ))
}

fn is_by_hand(slice: &DynamicObject) -> bool {
    let writer = labels(slice).and_then(|labels| labels.get(WRITER));
    writer.map(String::as_str) != Some(BY_SELECTOR)
}

/// The addresses in a slice.
fn addresses(slice: &DynamicObject) -> impl Iterator<Item = IpAddr> {
    let endpoints = slice.data["endpoints"].as_array().into_iter().flatten();
    let addresses = endpoints.flat_map(|one| one["addresses"].as_array().into_iter().flatten());
    addresses.filter_map(|address| address.as_str()?.parse().ok())
}

/// The ports in a slice; none for a port that is not said.
fn ports(slice: &DynamicObject) -> impl Iterator<Item = Option<u16>> {
    let ports = slice.data["ports"].as_array().into_iter().flatten();
    ports.map(|port| port["port"].as_u64()?.try_into().ok())
}

/// Does a slice of another namespace lead to one of these pods? A node's address may be that of much else.
fn leads_from_elsewhere(slice: &DynamicObject, old: &OldPods) -> bool {
    let ports: Vec<Option<u16>> = ports(slice).collect();
    addresses(slice).any(|address| {
        let is_meant = |port: &Option<u16>| match port {
            Some(port) => old.listen_at(address, *port),
            None => old.has(None, Some(address)),
        };
        match ports.is_empty() {
            true => is_meant(&None),
            false => ports.iter().any(is_meant),
        }
    })
}

/// The addresses at which a Service is reached.
fn own_addresses(service: &DynamicObject) -> Vec<IpAddr> {
    let (spec, status) = (&service.data["spec"], &service.data["status"]);
    let lists = [&spec["clusterIPs"], &spec["externalIPs"]];
    let lists = lists.into_iter().filter_map(Json::as_array).flatten();
    let balanced = status["loadBalancer"]["ingress"].as_array();
    let balanced = balanced.into_iter().flatten().map(|one| &one["ip"]);
    let all = lists.chain(balanced).chain([&spec["clusterIP"]]);
    all.filter_map(|address| address.as_str()?.parse().ok())
        .collect()
}

/// The host names of its load balancer.
fn own_hosts(service: &DynamicObject) -> impl Iterator<Item = String> {
    let balanced = service.data["status"]["loadBalancer"]["ingress"].as_array();
    let hosts = balanced.into_iter().flatten();
    hosts.filter_map(|one| Some(one["hostname"].as_str()?.trim_end_matches('.').to_owned()))
}

/// The ports of nodes that lead to it.
fn node_ports(service: &DynamicObject) -> impl Iterator<Item = u16> {
    let ports = service.data["spec"]["ports"].as_array();
    let ports = ports.into_iter().flatten();
    ports
        .filter_map(|port| u16::try_from(port["nodePort"].as_u64()?).ok())
        .filter(|port| *port > 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn object(object: Json) -> Object {
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn slice(namespace: &str, service: &str, writer: &str, address: &str, port: u16) -> Object {
        object(json!({
            "metadata": {
                "name": format!("{service}-1"), "namespace": namespace, "labels": {SERVICE: service, WRITER: writer},
            },
            "endpoints": [{"addresses": [address]}], "ports": [{"port": port}],
        }))
    }

    #[test]
    fn a_service_leads_to_old_by_whatever_address_and_from_whatever_namespace() {
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
            service("m", "selects-there", selects_elsewhere),
            service("m", "alias", name),
        ];
        let slices = [
            // By the address of a pod, of a Service, and of a Service by another address.
            slice("m", "by-hand", "me", "10.0.0.1", 8000),
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
        let place = OldPlace {
            namespace: "n",
            source: "old",
            is_graph: false,
            domain: "cluster.local",
            frontend_port: "frontend",
        };
        let found = ServicesToOld::of(&services, &slices, &OldPods::of(&pods, &pods), &place);
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
                "m/other-port",
                "n/balanced",
                "n/chained",
                "n/direct",
                "n/selects"
            ]
        );
        assert_eq!(names(&found.aliases), ["m/alias", "m/by-balancer"]);
        assert_eq!(names(&found.around_proxies), ["n/direct"]);
        assert!(found.addresses.contains(&"192.0.2.1".parse().unwrap()));
        assert!(found.go_with_old.is_empty());
    }
}
