//! The Services that route to frontends of old: by a selector, by slices, by another name, or by the address of such a Service.
//!
//! Does not check what routes to these Services in turn.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use kube::api::DynamicObject;
use serde_json::Value as Json;

use super::old_pods::OldPods;
use super::references::{self, Follower, Followers, Reference};
use super::slices::{
    IMPORT, SERVICE, addresses, hosts_of_slice, is_by_hand, leads_from_elsewhere, leads_to,
    leads_to_host_port, ports, service_of,
};
use super::ways::{ServiceName, belongs_to, selects_any};
use crate::k8s::Object;

/// The update whose old generation is meant.
pub(super) struct OldPlace<'a> {
    pub namespace: &'a str,
    /// `spec.sourceDeployment`
    pub source: &'a str,
    /// Whether there is a graph of this name, for which the operator creates Services.
    pub is_graph: bool,
    /// The domain of the cluster.
    pub domain: &'a str,
    /// The name of the frontends' own port, behind that of their proxies.
    pub frontend_port: &'a str,
}

#[cfg(test)]
impl OldPlace<'_> {
    /// Of `old` in the namespace `n`.
    pub(super) const fn example() -> Self {
        Self {
            namespace: "n",
            source: "old",
            is_graph: false,
            domain: "cluster.local",
            frontend_port: "frontend",
        }
    }
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
    /// The imports of Services of other clusters that lead to them.
    pub imports: BTreeSet<ServiceName>,
    /// The names and addresses by which they are reached.
    reached: HashSet<Reference>,
}

impl ServicesToOld {
    /// Those among `services`, whose `slices` are these, both of all namespaces that are looked at.
    pub fn of(services: &[Object], slices: &[Object], old: &OldPods, place: &OldPlace) -> Self {
        let by_name: HashMap<ServiceName, &Object> = services
            .iter()
            .filter_map(|service| Some((name_of(service)?, service)))
            .collect();
        let mut found = Self::default();
        let direct = found.direct(slices, &by_name, old, place);
        let followers = followers(services, slices, &by_name, place.domain);
        let hosts = services.iter().filter_map(|service| {
            Some((external_name(service)?, service.metadata.namespace.clone()?))
        });
        let of_pods = hosts
            .flat_map(|(host, own)| references::of_host(host, &own, place.domain))
            .chain(slices.iter().flat_map(|slice| {
                let own = slice.metadata.namespace.as_deref().unwrap_or_default();
                hosts_of_slice(slice).flat_map(|host| references::of_host(host, own, place.domain))
            }))
            .filter(|reference| match reference {
                Reference::Address(address) => old.has(None, Some(*address)),
                _ => false,
            });
        // An address in a name is reached only by names: which slices lead to a pod depends on more than its address.
        let by_address: Vec<Follower> = of_pods
            .flat_map(|reference| followers.named.of(&reference).to_vec())
            .collect();
        let begin = direct
            .into_iter()
            .chain(by_address.iter().map(|one| one.service.clone()))
            .map(Reference::Service);
        let reached_by = |name: &ServiceName| -> Vec<Reference> {
            by_name.get(name).map_or_else(Vec::new, |service| {
                let addresses = own_addresses(service).into_iter().map(Reference::Address);
                let hosts = own_hosts(service).map(Reference::Host);
                let ports = node_ports(service).map(Reference::NodePort);
                addresses.chain(hosts).chain(ports).collect()
            })
        };
        let (reached, through) = followers.all.follow(begin.collect(), &reached_by);
        let aliases = through.into_iter().chain(by_address);
        let aliases = aliases.filter(|follower| follower.is_alias);
        found.aliases = aliases.map(|follower| follower.service).collect();
        for reference in &reached {
            if let Reference::Service(name) = reference {
                found.names.insert(name.clone());
            }
        }
        let goes = |(own, name): &&ServiceName| {
            let object = by_name.get(&(own.clone(), name.clone()));
            own == place.namespace
                && object
                    .is_some_and(|object| belongs_to(object, name, place.source, place.is_graph))
        };
        found.go_with_old = found.names.iter().filter(goes).cloned().collect();
        found.reached = reached;
        found
    }

    /// The Services with an endpoint in old, or that select a pod of it.
    fn direct(
        &mut self,
        slices: &[Object],
        services: &HashMap<ServiceName, &Object>,
        old: &OldPods,
        place: &OldPlace,
    ) -> Vec<ServiceName> {
        let is_own = |object: &Object| {
            let namespace = object.metadata.namespace.as_deref();
            namespace == Some(place.namespace)
        };
        let own_ports = old.own_ports(place.frontend_port);
        let mut direct = Vec::new();
        for slice in slices {
            let is_by_hand = is_by_hand(slice, services);
            let leads = match is_own(slice) {
                true => leads_to(slice, old),
                false => is_by_hand && leads_from_elsewhere(slice, old),
            };
            let leads = leads || (is_by_hand && leads_to_host_port(slice, old));
            if !leads {
                continue;
            }
            let name = service_of(slice, SERVICE);
            // A port without a number means all of them.
            let mut ports = ports(slice);
            if ports.any(|port| port.is_none_or(|port| own_ports.contains(&port))) {
                self.around_proxies.extend(name.clone());
            }
            match (name, service_of(slice, IMPORT)) {
                (Some(name), _) => direct.push(name),
                (None, import) => self.imports.extend(import),
            }
        }
        // Its slices may not be written yet.
        let selecting = services.iter().filter(|(_, service)| is_own(service));
        let selecting = selecting.filter(|(_, service)| selects_any(service, old.pods()));
        for (name, service) in selecting {
            if targets_any(service, place.frontend_port, &own_ports) {
                self.around_proxies.insert(name.clone());
            }
            direct.push(name.clone());
        }
        direct
    }

    /// Whether a host name that is used in the namespace `own` leads to one of them, or to a pod of old.
    pub fn has_host(&self, host: &str, own: &str, old: &OldPods, domain: &str) -> bool {
        let references = references::of_host(host, own, domain);
        references.iter().any(|reference| match reference {
            Reference::Address(address) if old.has(None, Some(*address)) => true,
            reference => self.reached.contains(reference),
        })
    }

    /// Whether one of them has this address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.reached.contains(&Reference::Address(address))
    }

    /// Whether this port of every node leads to one of them.
    pub fn has_node_port(&self, port: u16) -> bool {
        self.reached.contains(&Reference::NodePort(port))
    }
}

/// The Services that lead to other places: those of `named` by a host name.
struct AllFollowers {
    all: Followers,
    named: Followers,
}

fn followers(
    services: &[Object],
    slices: &[Object],
    by_name: &HashMap<ServiceName, &Object>,
    domain: &str,
) -> AllFollowers {
    let (mut all, mut named) = (Followers::default(), Followers::default());
    let mut add_host = |all: &mut Followers, host: &str, follower: &Follower| {
        for reference in references::of_host(host, &follower.service.0, domain) {
            all.add(reference.clone(), follower.clone());
            named.add(reference, follower.clone());
        }
    };
    // A large cluster has hundreds of thousands of addresses, and hardly one is that of a Service.
    let of_services: HashSet<IpAddr> = services
        .iter()
        .flat_map(|service| own_addresses(service))
        .collect();
    let of_nodes: HashSet<u16> = services
        .iter()
        .flat_map(|service| node_ports(service))
        .collect();
    for service in services {
        if let (Some(host), Some(service)) = (external_name(service), name_of(service)) {
            let is_alias = true;
            add_host(&mut all, host, &Follower { service, is_alias });
        }
    }
    for slice in slices {
        let Some(service) = service_of(slice, SERVICE) else {
            continue;
        };
        let is_alias = false;
        let follower = Follower { service, is_alias };
        for host in hosts_of_slice(slice) {
            add_host(&mut all, host, &follower);
        }
        if is_by_hand(slice, by_name) {
            let addresses = addresses(slice).filter(|address| of_services.contains(address));
            let ports = ports(slice).flatten();
            let ports = ports.filter(|port| of_nodes.contains(port));
            let addresses = addresses.map(Reference::Address);
            for reference in addresses.chain(ports.map(Reference::NodePort)) {
                all.add(reference, follower.clone());
            }
        }
    }
    AllFollowers { all, named }
}

fn name_of(object: &DynamicObject) -> Option<ServiceName> {
    Some((
        object.metadata.namespace.clone()?,
        object.metadata.name.clone()?,
    ))
}

/// The host name for which a Service is another name.
fn external_name(service: &DynamicObject) -> Option<&str> {
    let spec = &service.data["spec"];
    (spec["type"] == "ExternalName").then(|| spec["externalName"].as_str())?
}

/// The addresses at which a Service is reached.
fn own_addresses(service: &DynamicObject) -> Vec<IpAddr> {
    let (spec, status) = (&service.data["spec"], &service.data["status"]);
    let lists = [&spec["clusterIPs"], &spec["externalIPs"]];
    let lists = lists.into_iter().filter_map(Json::as_array).flatten();
    let balanced = status["loadBalancer"]["ingress"].as_array();
    let balanced = balanced.into_iter().flatten().map(|one| &one["ip"]);
    let all = lists.chain(balanced).chain([&spec["clusterIP"]]);
    all.filter_map(|address| references::address(address.as_str()?))
        .collect()
}

/// The host names of its load balancer.
fn own_hosts(service: &DynamicObject) -> impl Iterator<Item = String> {
    let balanced = service.data["status"]["loadBalancer"]["ingress"].as_array();
    let hosts = balanced.into_iter().flatten();
    let names = hosts.filter_map(|one| one["hostname"].as_str());
    names.map(|name| name.trim_end_matches('.').to_ascii_lowercase())
}

/// Whether a Service sends requests to the port of this name, or to one of these numbers, of the pods that it selects.
fn targets_any(service: &DynamicObject, name: &str, numbers: &BTreeSet<u16>) -> bool {
    let ports = service.data["spec"]["ports"].as_array();
    ports.into_iter().flatten().any(|port| {
        let target = match &port["targetPort"] {
            Json::Null => &port["port"],
            target => target,
        };
        let number = target
            .as_u64()
            .and_then(|number| u16::try_from(number).ok());
        target == name || number.is_some_and(|number| numbers.contains(&number))
    })
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
        let place = OldPlace::example();
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
                "n/all-ports",
                "n/balanced",
                "n/by-port",
                "n/chained",
                "n/direct",
                "n/selects"
            ]
        );
        assert_eq!(names(&found.aliases), ["m/alias", "m/by-balancer"]);
        let around = ["n/all-ports", "n/by-port", "n/direct"];
        assert_eq!(names(&found.around_proxies), around);
        assert!(found.has_address("192.0.2.1".parse().unwrap()));
        assert!(found.has_node_port(30080) && !found.has_node_port(30081));
        assert!(found.go_with_old.is_empty());
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
        let place = OldPlace {
            is_graph: true,
            ..OldPlace::example()
        };
        let pods = [old_pod()];
        let found = ServicesToOld::of(services, slices, &OldPods::of(&pods, &pods), &place);
        let told = |names: &BTreeSet<ServiceName>| {
            let names = names.iter().map(|(own, name)| format!("{own}/{name}"));
            names.collect::<Vec<_>>()
        };
        let others = found.names.difference(&found.go_with_old);
        (told(&others.cloned().collect()), told(&found.imports))
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
}
