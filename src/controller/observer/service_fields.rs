//! The fields of a Service: its names, its addresses, and its ports.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kube::api::DynamicObject;
use serde_json::Value as Json;

use super::references;
use super::route_match::ServiceName;

pub(super) fn name_of(object: &DynamicObject) -> Option<ServiceName> {
    Some((
        object.metadata.namespace.clone()?,
        object.metadata.name.clone()?,
    ))
}

/// The host name of which a Service is an alias.
pub(super) fn external_name(service: &DynamicObject) -> Option<&str> {
    let spec = &service.data["spec"];
    (spec["type"] == "ExternalName").then(|| spec["externalName"].as_str())?
}

/// The addresses at which a Service is reached.
pub(super) fn own_addresses(service: &DynamicObject) -> Vec<IpAddr> {
    let (spec, status) = (&service.data["spec"], &service.data["status"]);
    let lists = [&spec["clusterIPs"], &spec["externalIPs"]];
    let lists = lists.into_iter().filter_map(Json::as_array).flatten();
    let balanced = status["loadBalancer"]["ingress"].as_array();
    let balanced = balanced.into_iter().flatten().map(|one| &one["ip"]);
    let all = lists.chain(balanced).chain([&spec["clusterIP"]]);
    all.filter_map(Json::as_str)
        .flat_map(references::addresses)
        .collect()
}

/// The host names of its load balancer.
pub(super) fn own_hosts(service: &DynamicObject) -> impl Iterator<Item = String> {
    let balanced = service.data["status"]["loadBalancer"]["ingress"].as_array();
    let hosts = balanced.into_iter().flatten();
    let names = hosts.filter_map(|one| one["hostname"].as_str());
    names.map(|name| name.trim_end_matches('.').to_ascii_lowercase())
}

/// Whether a Service sends requests to the port of this name, or to one of these numbers, of the pods that it selects.
pub(super) fn targets_any(service: &DynamicObject, name: &str, numbers: &BTreeSet<u16>) -> bool {
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

/// Its node ports.
pub(super) fn node_ports(service: &DynamicObject) -> impl Iterator<Item = u16> {
    let ports = service.data["spec"]["ports"].as_array();
    let ports = ports.into_iter().flatten();
    ports
        .filter_map(|port| u16::try_from(port["nodePort"].as_u64()?).ok())
        .filter(|port| *port > 0)
}
