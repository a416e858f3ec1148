//! The pods of old's frontends, with their addresses and the ports that they may listen on.
//!
//! When in doubt, an address counts as one of old's.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kube::api::DynamicObject;

use super::super::old_frontends::{is_alive, ports as ports_named};
use crate::k8s::{Object, declared_ports, named_ports};

/// The pods of old's frontends.
pub(super) struct OldPods<'a> {
    names: BTreeSet<&'a str>,
    addresses: BTreeSet<IpAddr>,
    /// The addresses of their nodes, with the ports on which the pods listen there.
    on_nodes: BTreeSet<(IpAddr, u16)>,
    /// Other pods that share an address with one of them: that of their node.
    beside: BTreeSet<(&'a str, IpAddr)>,
    pods: &'a [Object],
}

impl<'a> OldPods<'a> {
    /// These `pods`, which are among `all` of their namespace.
    pub fn of(pods: &'a [Object], all: &'a [Object]) -> Self {
        let names = pods.iter().filter_map(|pod| pod.metadata.name.as_deref());
        let names: BTreeSet<&str> = names.collect();
        let of_old: BTreeSet<IpAddr> = pods.iter().flat_map(|pod| addresses(pod)).collect();
        let beside = all.iter().filter(|pod| is_alive(pod)).flat_map(|pod| {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let shared = addresses(pod).filter(|address| of_old.contains(address));
            shared.map(move |address| (name, address))
        });
        Self {
            beside: beside.filter(|(name, _)| !names.contains(name)).collect(),
            names,
            addresses: of_old,
            on_nodes: pods.iter().flat_map(|pod| on_nodes(pod)).collect(),
            pods,
        }
    }

    pub const fn pods(&self) -> &'a [Object] {
        self.pods
    }

    /// The numbers of the port of this name.
    pub fn own_ports(&self, name: &str) -> BTreeSet<u16> {
        let pods = self.pods.iter();
        pods.flat_map(|pod| ports_named(pod, name)).collect()
    }

    /// Whether one of the pods may listen there. At a shared address, a pod counts as listening on the ports that it declares, if
    /// any; at its own address, on every port, because it need not declare them.
    pub fn listen_at(&self, address: IpAddr, port: u16) -> bool {
        self.addresses.contains(&address)
            && self.pods.iter().any(|pod| {
                let may_be_another = self.is_shared(pod, address) && !may_listen(pod, port);
                addresses(pod).any(|own| own == address) && !may_be_another
            })
    }

    /// Whether an address of this pod is that of its node.
    fn is_shared(&self, pod: &DynamicObject, address: IpAddr) -> bool {
        let node = pod.data["status"]["hostIP"].as_str();
        let is_of_node = node.and_then(|node| node.parse().ok()) == Some(address);
        is_of_node || self.beside.iter().any(|(_, shared)| *shared == address)
    }

    /// Whether one of the pods listens there on a port of its node.
    pub fn listen_at_node(&self, address: IpAddr, port: u16) -> bool {
        self.on_nodes.contains(&(address, port))
    }

    /// The pods whose port of this name is a node port, as text for users: requests reach it without the proxy.
    pub fn on_host_ports(&self, name: &str) -> Vec<String> {
        let pods = self.pods.iter().filter_map(|pod| {
            let port = host_port(pod, name)?;
            let pod = pod.metadata.name.as_deref().unwrap_or_default();
            Some(format!("host port {port} of {pod}"))
        });
        pods.collect()
    }

    /// The pods without a port of this name, as text for users: it is unknown what bypasses their proxies.
    pub fn without_port(&self, name: &str) -> Vec<String> {
        let pods = self.pods.iter();
        let pods = pods.filter(|pod| named_ports(&pod.data["spec"], name).next().is_none());
        pods.map(|pod| {
            let pod = pod.metadata.name.as_deref().unwrap_or_default();
            format!("any port of {pod}, which has none named '{name}'")
        })
        .collect()
    }

    /// Whether the endpoint is one of the pods. Requests go to its address, no matter which pod it names: the name only
    /// distinguishes pods that share an address.
    pub fn has(&self, pod: Option<&str>, address: Option<IpAddr>) -> bool {
        if pod.is_some_and(|pod| self.names.contains(pod)) {
            return true;
        }
        address.is_some_and(|address| {
            let is_other = pod.is_some_and(|pod| self.beside.contains(&(pod, address)));
            self.addresses.contains(&address) && !is_other
        })
    }
}

pub(super) fn addresses(pod: &DynamicObject) -> impl Iterator<Item = IpAddr> {
    let status = &pod.data["status"];
    let all = status["podIPs"].as_array().into_iter().flatten();
    let all = all.map(|one| &one["ip"]).chain([&status["podIP"]]);
    all.filter_map(|address| address.as_str()?.parse().ok())
}

fn ports(pod: &DynamicObject) -> BTreeSet<u64> {
    let ports = declared_ports(&pod.data["spec"]);
    ports
        .filter_map(|port| port["containerPort"].as_u64())
        .collect()
}

fn on_nodes(pod: &DynamicObject) -> impl Iterator<Item = (IpAddr, u16)> {
    let status = &pod.data["status"];
    let nodes = status["hostIPs"].as_array().into_iter().flatten();
    let nodes = nodes.map(|one| &one["ip"]).chain([&status["hostIP"]]);
    let nodes = nodes.filter_map(|node| node.as_str()?.parse::<IpAddr>().ok());
    nodes.flat_map(|node| {
        let ports = declared_ports(&pod.data["spec"]);
        let ports = ports.filter_map(|port| port["hostPort"].as_u64());
        let ports = ports.filter_map(|port| u16::try_from(port).ok().filter(|port| *port > 0));
        ports.map(move |port| (node, port))
    })
}

/// Whether a pod may listen on this port. A pod need not declare its ports, but a pod that declares other ports and not this one
/// listens elsewhere.
pub(super) fn may_listen(pod: &DynamicObject, port: u16) -> bool {
    let ports = ports(pod);
    ports.is_empty() || ports.contains(&u64::from(port))
}

/// The node port that leads to the port of this name, if there is one. With `hostNetwork`, it is the port itself.
fn host_port(pod: &DynamicObject, name: &str) -> Option<u64> {
    let port = named_ports(&pod.data["spec"], name).next()?;
    let is_host = pod.data["spec"]["hostNetwork"] == true;
    let own = is_host.then(|| port["containerPort"].as_u64()).flatten();
    port["hostPort"].as_u64().filter(|port| *port > 0).or(own)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::controller::observer::route_match::selects_any;
    use crate::controller::observer::slices::leads_to;
    use crate::k8s::object;

    #[test]
    fn a_pod_of_old_is_known_by_name_and_by_an_address_that_is_not_shared() {
        let pod = object(json!({
            "metadata": {"name": "old-0", "labels": {"app": "old"}},
            "spec": {"containers": [{"ports": [{"containerPort": 8000}]}]},
            "status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        }));
        let other = |name: &str, address: &str| {
            object(json!({"metadata": {"name": name}, "status": {"podIP": address}}))
        };
        let pods = [pod];
        // The address of a pod that has ended may be another pod's by now.
        let ended = json!({"metadata": {"name": "ended"}, "status": {"podIP": "fd00::1", "phase": "Succeeded"}});
        let all = [
            object(ended),
            pods[0].clone(),
            other("new-0", "10.0.0.3"),
            other("new-1", "10.0.0.1"),
        ];
        let old = OldPods::of(&pods, &all);
        for (endpoint, leads) in [
            (json!({"targetRef": {"name": "old-0"}}), true),
            (json!({"addresses": ["10.0.0.1"]}), true),
            (json!({"addresses": ["10.0.0.9", "fd00:0::1"]}), true),
            // The pod that it names does not have this address.
            (
                json!({"addresses": ["10.0.0.1"], "targetRef": {"name": "new-0"}}),
                true,
            ),
            // Both pods have the address of their node.
            (
                json!({"addresses": ["10.0.0.1"], "targetRef": {"name": "new-1"}}),
                false,
            ),
            (json!({"addresses": ["10.0.0.2"]}), false),
            (
                json!({"addresses": ["fd00::1"], "targetRef": {"name": "ended"}}),
                true,
            ),
        ] {
            let slice = object(json!({"metadata": {"name": "s"}, "endpoints": [endpoint]}));
            assert_eq!(leads_to(&slice, &old), leads, "{endpoint}");
        }
        let at = |address: &str, port| old.listen_at(address.parse().unwrap(), port);
        assert!(at("10.0.0.1", 8000) && at("fd00::1", 8000));
        // The pod may listen on a port that it does not declare, but at a shared address that may be another process.
        assert!(at("fd00::1", 8001));
        assert!(!at("10.0.0.1", 8001) && !at("10.0.0.2", 8000));
        for (selector, selects) in [
            (json!({"app": "old"}), true),
            (json!({"app": "new"}), false),
            (json!({}), false),
            (Json::Null, false),
        ] {
            let service =
                object(json!({"metadata": {"name": "s"}, "spec": {"selector": selector}}));
            assert_eq!(selects_any(&service, &pods), selects, "{selector}");
        }
    }

    #[test]
    fn a_host_port_leads_around_the_proxy() {
        let on = |spec: Json| {
            let pods = [object(json!({"metadata": {"name": "old-0"}, "spec": spec}))];
            OldPods::of(&pods, &pods)
                .on_host_ports("frontend")
                .join(", ")
        };
        let port = |host: Json| {
            json!([{"ports": [
                {"name": "http", "containerPort": 8000, "hostPort": 80},
                {"name": "frontend", "containerPort": 8080, "hostPort": host},
            ]}])
        };
        assert_eq!(on(json!({"containers": port(Json::Null)})), "");
        assert_eq!(on(json!({"containers": port(json!(0))})), "");
        assert_eq!(
            on(json!({"containers": port(json!(81))})),
            "host port 81 of old-0"
        );
        let host = json!({"containers": port(Json::Null), "hostNetwork": true});
        assert_eq!(on(host), "host port 8080 of old-0");
    }
}
