//! The pods of a generation, among all pods of a namespace.

use kube::api::DynamicObject;

use super::super::parsed::ParsedUpdate;
use crate::k8s::Object;
use crate::k8s::workloads::{GRAPH, controller, is_selected, labels, pod_has_ended};
use crate::resource::WorkerSourceSpec;

/// The pods of old that have not ended: those of its graph, or those by which its workers are counted.
pub(super) fn pods_of_old(parsed: &ParsedUpdate, all: &[Object]) -> Vec<Object> {
    let source = parsed.spec.source_deployment.as_deref();
    pods_of(stated_old(parsed), source, all)
}

/// The same for new. Does not find workers that are only known by the metadata for a Dynamo namespace.
pub(super) fn pods_of_new_workers(parsed: &ParsedUpdate, all: &[Object]) -> Vec<Object> {
    let workers = parsed.spec.workers.as_ref();
    let stated = workers.and_then(|workers| workers.new.as_ref());
    pods_of(stated, parsed.spec.target_deployment.as_deref(), all)
}

/// Whether the update says that a pod is a worker of old, by a selector or by the name of its owner.
pub(super) fn is_stated_worker(parsed: &ParsedUpdate, pod: &DynamicObject) -> bool {
    stated_old(parsed).is_some_and(|stated| match stated.selector.is_empty() {
        false => is_selected(pod, &stated.selector),
        true => { stated.name.as_deref() }.is_some_and(|name| is_made_by(pod, name)),
    })
}

/// How the update says that the workers of old are counted.
fn stated_old(parsed: &ParsedUpdate) -> Option<&WorkerSourceSpec> {
    parsed.spec.workers.as_ref()?.old.as_ref()
}

/// Whether an object of this name controls a pod, directly or by a ReplicaSet, whose name ends with a hash.
fn is_made_by(pod: &DynamicObject, name: &str) -> bool {
    controller(pod).is_some_and(|(_, owner)| {
        let deployment = owner.rsplit_once('-').map(|(deployment, _)| deployment);
        owner == name || deployment == Some(name)
    })
}

fn pods_of(stated: Option<&WorkerSourceSpec>, name: Option<&str>, all: &[Object]) -> Vec<Object> {
    let stated = stated.cloned().unwrap_or_default();
    let name = stated.name.as_deref().or(name).unwrap_or_default();
    let is_meant = |pod: &DynamicObject| {
        let labels = labels(pod);
        if !stated.selector.is_empty() {
            return is_selected(pod, &stated.selector);
        }
        if name.is_empty() {
            return false;
        }
        let graph = labels.and_then(|labels| labels.get(GRAPH));
        graph.is_some_and(|graph| graph == name) || is_made_by(pod, name)
    };
    // Both generations may belong to the same object.
    let is_of_revision = |pod: &DynamicObject| match (&stated.revision, labels(pod)) {
        (None, _) => true,
        (Some(revision), Some(labels)) => labels.values().any(|value| value == revision),
        (Some(_), None) => false,
    };
    let mut pods = all.to_vec();
    pods.retain(|pod| !pod_has_ended(pod) && is_meant(pod) && is_of_revision(pod));
    pods
}
