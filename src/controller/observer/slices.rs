//! Determines what an EndpointSlice routes to, no matter what wrote it. Reads JSON, so that a slice with one invalid field is not
//! ignored.

use std::collections::HashMap;
use std::net::IpAddr;

use kube::api::DynamicObject;

use super::old_pods::OldPods;
use super::references;
use super::route_match::ServiceName;
pub(super) use crate::k8s::SERVICE_LABEL as SERVICE;
use crate::k8s::workloads::labels;
use crate::k8s::{Object, slice_endpoints};

/// The same label in a slice for several clusters (multicluster.x-k8s.io).
pub(super) const IMPORT: &str = "multicluster.kubernetes.io/service-name";
/// The label with the controller that writes a slice.
pub(super) const WRITER: &str = "endpointslice.kubernetes.io/managed-by";
/// The EndpointSlice controller, which only adds pods that a Service of the same namespace selects.
pub(super) const BY_SELECTOR: &str = "endpointslice-controller.k8s.io";

/// Whether an EndpointSlice leads to one of these pods, no matter what created the slice.
pub(super) fn leads_to(slice: &DynamicObject, pods: &OldPods) -> bool {
    slice_endpoints(slice).any(|endpoint| {
        let pod = endpoint.target;
        let mut addresses = endpoint.addresses().flat_map(references::addresses);
        pods.has(pod, None) || addresses.any(|address| pods.has(pod, Some(address)))
    })
}

/// The Service, or the import, that the slice belongs to according to this label.
pub(super) fn service_of(slice: &DynamicObject, label: &str) -> Option<ServiceName> {
    let name = labels(slice).and_then(|labels| labels.get(label))?;
    Some((slice.metadata.namespace.clone()?, name.clone()))
}

/// Whether the EndpointSlice controller did not write the slice. Anyone may set its label; but for a Service with a selector, the
/// controller removes slices that it did not write, and for one without, it writes none.
pub(super) fn is_by_hand(slice: &DynamicObject, services: &HashMap<ServiceName, &Object>) -> bool {
    let writer = labels(slice).and_then(|labels| labels.get(WRITER));
    let service = service_of(slice, SERVICE).and_then(|name| services.get(&name).copied());
    let selector = service.and_then(|service| service.data["spec"]["selector"].as_object());
    let selects = selector.is_some_and(|selector| !selector.is_empty());
    !selects || writer.map(String::as_str) != Some(BY_SELECTOR)
}

/// Whether the slice leads to one of these pods of `namespace`. The EndpointSlice controller writes only slices with pods of the
/// slice's own namespace, so one of another namespace must have been written by hand.
pub(super) fn leads_to_pods_of(
    namespace: &str,
    slice: &DynamicObject,
    pods: &OldPods,
    services: &HashMap<ServiceName, &Object>,
) -> bool {
    match slice.metadata.namespace.as_deref() == Some(namespace) {
        true => leads_to(slice, pods),
        false => is_by_hand(slice, services) && leads_from_elsewhere(slice, pods),
    }
}

fn all_addresses(slice: &DynamicObject) -> impl Iterator<Item = &str> {
    slice_endpoints(slice).flat_map(|endpoint| endpoint.addresses())
}

/// The addresses in a slice.
pub(super) fn addresses(slice: &DynamicObject) -> impl Iterator<Item = IpAddr> {
    all_addresses(slice).flat_map(references::addresses)
}

/// The host names in a slice of the type `FQDN`.
pub(super) fn hosts_of_slice(slice: &DynamicObject) -> impl Iterator<Item = &str> {
    all_addresses(slice).filter(|address| address.parse::<IpAddr>().is_err())
}

/// The ports in a slice; `None` for a port without a number.
pub(super) fn ports(slice: &DynamicObject) -> impl Iterator<Item = Option<u16>> {
    let ports = slice.data["ports"].as_array().into_iter().flatten();
    ports.map(|port| port["port"].as_u64()?.try_into().ok())
}

/// Whether a slice of another namespace leads to one of these pods. At a node's address, other processes may listen, too.
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

/// Whether a slice leads to a port of a node at which a pod of old listens.
pub(super) fn leads_to_host_port(slice: &DynamicObject, old: &OldPods) -> bool {
    let ports: Vec<u16> = ports(slice).flatten().collect();
    addresses(slice).any(|address| ports.iter().any(|port| old.listen_at_node(address, *port)))
}
