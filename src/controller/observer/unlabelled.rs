//! Finds the pods of old that may serve clients although no label marks them as frontends.
//!
//! The controller counts such a pod neither as a worker nor as a frontend. Whether clients may use it only matters before old is
//! deleted.

use std::collections::BTreeSet;

use kube::api::DynamicObject;

use super::super::old_frontends::is_alive;
use super::super::parsed::ParsedUpdate;
use super::deleted_with_old::Ownership;
use super::old_pods::OldPods;
use super::pods_of::is_stated_worker;
use super::route_match::{ServiceName, belongs_to, selects_any};
use super::service_fields::name_of;
use super::services::{AllServices, OldScope};
use super::slices::{SERVICE, service_of};
use crate::k8s::Object;
use crate::k8s::workloads::{COMPONENT, GRAPH, SUB_COMPONENT, labels};

/// The types of Dynamo components that do not serve clients. Services lead to them for metrics, discovery, and gateways.
const INTERNAL: [&str; 5] = ["worker", "prefill", "decode", "planner", "epp"];

/// The live pods of old to which a Service leads, except those whose type does not serve clients. `is_used` tells whether something
/// leads to a Service.
pub(super) fn unlabelled_frontends(
    parsed: &ParsedUpdate,
    all: &[Object],
    ownership: &Ownership,
    services: &AllServices,
    scope: &OldScope,
    is_used: impl Fn(&ServiceName) -> bool,
) -> Vec<Object> {
    // A pod of another graph that old owns does not belong to old: its deletion with old is reported separately.
    let is_of_old = |pod: &DynamicObject| {
        let graph = labels(pod).and_then(|labels| labels.get(GRAPH));
        graph.map_or_else(|| ownership.goes(pod), |graph| graph == scope.source)
    };
    let mut candidates = all.to_vec();
    candidates.retain(|pod| {
        is_alive(pod) && !is_internal(pod) && !is_stated_worker(parsed, pod) && is_of_old(pod)
    });
    if candidates.is_empty() {
        return candidates;
    }
    let is_own = |object: &Object| object.metadata.namespace.as_deref() == Some(scope.namespace);
    let is_made = |service: &&Object| {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        is_own(service) && belongs_to(service, name, scope.source, scope.is_graph)
    };
    // The operator creates Services of components for discovery. Unless something leads to them, no client uses them.
    let is_unused = |service: &&Object| {
        is_made(service) && name_of(service).is_some_and(|name| !is_used(&name))
    };
    let (made, others): (Vec<_>, Vec<_>) = services.services().iter().partition(is_unused);
    let made: BTreeSet<_> = made.iter().filter_map(|service| name_of(service)).collect();
    let is_of_made = |slice: &Object| {
        let service = service_of(slice, SERVICE);
        service.is_some_and(|service| made.contains(&service))
    };
    let selecting = others
        .iter()
        .filter(|service| is_own(service) && selects_any(service, &candidates));
    let selecting: Vec<&Object> = selecting.copied().collect();
    let old = OldPods::of(&candidates, all);
    let leads_to = |slice: &Object, pods: &OldPods| services.leads_to(slice, scope.namespace, pods);
    let slices = services
        .slices()
        .iter()
        .filter(|slice| leads_to(slice, &old) && !is_of_made(slice));
    let slices: Vec<&Object> = slices.collect();
    let is_led_to = |pod: &Object| {
        let pod = std::slice::from_ref(pod);
        let old = OldPods::of(pod, all);
        selecting.iter().any(|service| selects_any(service, pod))
            || slices.iter().any(|slice| leads_to(slice, &old))
    };
    candidates
        .iter()
        .filter(|pod| is_led_to(pod))
        .cloned()
        .collect()
}

fn is_internal(pod: &DynamicObject) -> bool {
    let labels = labels(pod);
    let component = labels.and_then(|labels| labels.get(COMPONENT));
    match component {
        Some(component) => INTERNAL.contains(&&**component),
        None => labels.is_some_and(|labels| labels.contains_key(SUB_COMPONENT)),
    }
}
