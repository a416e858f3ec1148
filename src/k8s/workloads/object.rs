//! Shared by all kinds: labels, roles, replica counts, and the selection of objects.

use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::{COMPONENT, Counts, GRAPH, SUB_COMPONENT, WORKER_HASH, WorkerQuery};
use crate::k8s::cache::{Cache, NotSynced, Object};
use crate::k8s::kinds::api_resource;
use crate::k8s::ports::named_ports;
use crate::rollout::{Role, Workers};

/// LeaderWorkerSets (leaderworkerset.x-k8s.io/v1).
pub(super) fn leader_worker_sets() -> ApiResource {
    let group = "leaderworkerset.x-k8s.io";
    api_resource(group, "v1", "LeaderWorkerSet", "leaderworkersets")
}

/// ModelServings (workload.serving.volcano.sh/v1alpha1).
pub(super) fn model_servings() -> ApiResource {
    let group = "workload.serving.volcano.sh";
    api_resource(group, "v1alpha1", "ModelServing", "modelservings")
}

/// The value of a label.
#[must_use]
pub fn label<'a>(object: &'a DynamicObject, name: &str) -> Option<&'a str> {
    labels(object)?.get(name).map(String::as_str)
}

/// The labels of an object, if it has any.
#[must_use]
pub fn labels(object: &DynamicObject) -> Option<&BTreeMap<String, String>> {
    object.metadata.labels.as_ref()
}

/// Whether an object has all labels of `selector`.
#[must_use]
pub fn is_selected(object: &DynamicObject, selector: &BTreeMap<String, String>) -> bool {
    match labels(object) {
        Some(labels) => includes(labels, selector),
        None => selector.is_empty(),
    }
}

/// Whether all labels of `selector` are among `labels`.
#[must_use]
pub fn includes(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    let mut wanted = selector.iter();
    wanted.all(|(name, value)| labels.get(name) == Some(value))
}

/// The labels at `pointer`, as in a selector or a pod template. `None` if there are none.
#[must_use]
pub fn labels_at(object: &DynamicObject, pointer: &str) -> Option<BTreeMap<String, String>> {
    let labels = object.data.pointer(pointer)?;
    let labels: BTreeMap<String, String> = serde_json::from_value(labels.clone()).ok()?;
    (!labels.is_empty()).then_some(labels)
}

/// The kind and name of the object that controls this one.
#[must_use]
pub fn controller(object: &DynamicObject) -> Option<(&str, &str)> {
    let mut owners = object.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some((&owner.kind, &owner.name))
}

/// The port name of a crossfade sidecar. A Deployment without labels that has this port runs frontends.
const PROXY_PORT: &str = "crossfade";

/// The role of an object, from its own labels or those of its pod template; `None` if it is not a worker. An unlabelled object
/// is a plain worker unless its pods have a crossfade sidecar.
pub(super) fn role(object: &DynamicObject) -> Option<Role> {
    match role_by_labels(object) {
        None if has_proxy(object) => None,
        None => Some(Role::Worker),
        Some(role) => role,
    }
}

/// The role of an object that `which` selects.
fn role_in(object: &DynamicObject, which: &WorkerQuery) -> Option<Role> {
    match is_named(object, which) {
        true => Some(named_role(object)),
        false => role(object),
    }
}

/// Whether the update itself names an object as the owner of workers.
pub(super) fn is_named(object: &DynamicObject, which: &WorkerQuery) -> bool {
    which.is_explicit && object.metadata.name.as_ref() == Some(&which.name)
}

/// The role of an object that is named as the owner of workers, or of its pod. It counts as a worker even if it has a sidecar or
/// the labels of a frontend: a model server without Dynamo is both.
pub(super) fn named_role(object: &DynamicObject) -> Role {
    role_by_labels(object).flatten().unwrap_or(Role::Worker)
}

/// The role according to the labels of an object or of its pod template; `None` if they do not contain one.
fn role_by_labels(object: &DynamicObject) -> Option<Option<Role>> {
    let of_pods = |name: &str| {
        let labels = object.data.pointer("/spec/template/metadata/labels")?;
        labels.get(name)?.as_str()
    };
    let says = |name: &str| label(object, name).or_else(|| of_pods(name));
    match (says(COMPONENT), says(SUB_COMPONENT)) {
        (None, None) => None,
        (component, sub) => Some(role_of(component, sub)),
    }
}

/// Whether a container of the pod template has the port of a crossfade sidecar.
fn has_proxy(object: &DynamicObject) -> bool {
    let spec = object.data.pointer("/spec/template/spec");
    spec.is_some_and(|spec| named_ports(spec, PROXY_PORT).next().is_some())
}

/// The role for a type and subtype of a Dynamo component.
pub(super) fn role_of(component: Option<&str>, sub: Option<&str>) -> Option<Role> {
    match (component, sub) {
        (Some("prefill"), _) | (None | Some("worker"), Some("prefill")) => Some(Role::Prefill),
        (Some("decode"), _) | (None | Some("worker"), Some("decode")) => Some(Role::Decode),
        (None | Some("worker"), _) => Some(Role::Worker),
        // Frontends, planners, endpoint pickers.
        _ => None,
    }
}

/// The non-negative integer at `pointer`.
pub(super) fn number(object: &DynamicObject, pointer: &str) -> Option<u32> {
    let number = object.data.pointer(pointer)?.as_u64()?;
    Some(u32::try_from(number).unwrap_or(u32::MAX))
}

/// Reads the ready count from `ready` and the desired count from `spec.replicas`, which defaults to 1.
pub(super) fn replicas(object: &DynamicObject, ready: &str) -> Workers {
    let is_going = object.metadata.deletion_timestamp.is_some();
    Workers {
        ready: number(object, ready).unwrap_or(0),
        desired: match is_going {
            true => 0,
            false => number(object, "/spec/replicas").unwrap_or(1),
        },
    }
}

/// The objects of a kind that `which` selects: the one with its name, and those whose graph label is that name.
pub(super) fn selected(
    cache: &Cache,
    kind: &ApiResource,
    which: &WorkerQuery,
) -> Result<Vec<Object>, NotSynced> {
    let mut objects = cache.of(kind, &which.namespace)?;
    objects.retain(|object| {
        object.metadata.name.as_ref() == Some(&which.name)
            || label(object, GRAPH) == Some(&which.name)
    });
    // One object may hold all generations. If each object holds one generation, only those of the requested one count, even if
    // there are none left.
    let hash = which.revision.as_deref();
    if hash.is_some() && objects.iter().any(|object| has_hash(object)) {
        objects.retain(|object| label(object, WORKER_HASH) == hash);
    }
    Ok(objects)
}

/// Whether an object is labelled with its generation.
pub(super) fn has_hash(object: &DynamicObject) -> bool {
    label(object, WORKER_HASH).is_some()
}

/// Like [`meant`], for a kind whose status does not separate the generations within one object.
pub(super) fn selected_without_generations(
    cache: &Cache,
    kind: &ApiResource,
    which: &WorkerQuery,
) -> Result<Vec<Object>, NotSynced> {
    let objects = selected(cache, kind, which)?;
    match (
        &which.revision,
        objects.iter().find(|object| !has_hash(object)),
    ) {
        (Some(revision), Some(object)) => {
            let (kind, name) = (
                &kind.kind,
                object.metadata.name.as_deref().unwrap_or_default(),
            );
            Err(NotSynced::Ambiguous(format!(
                "the workers of revision {revision} of the {kind} {name} cannot be identified: it has no label \
                 {WORKER_HASH}; count pods by a selector"
            )))
        }
        _ => Ok(objects),
    }
}

/// Sums the counts of the objects by role.
pub(super) fn sum(
    objects: &[Object],
    which: &WorkerQuery,
    count: impl Fn(&DynamicObject) -> Workers,
) -> Counts {
    let mut counts = Counts::new();
    for object in objects {
        if let Some(role) = role_in(object, which) {
            add(&mut counts, role, count(object));
        }
    }
    counts
}

pub(super) fn add(counts: &mut Counts, role: Role, workers: Workers) {
    let sum = counts.entry(role).or_default();
    sum.ready = sum.ready.saturating_add(workers.ready);
    sum.desired = sum.desired.saturating_add(workers.desired);
}

/// Whether a pod is ready and not being deleted.
#[must_use]
pub fn pod_is_ready(pod: &DynamicObject) -> bool {
    let conditions = pod.data.pointer("/status/conditions");
    let conditions = conditions.and_then(Json::as_array).into_iter().flatten();
    let mut conditions = conditions.filter(|condition| condition["type"] == "Ready");
    pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|condition| condition["status"] == "True")
}

/// Whether a pod has terminated, successfully or not.
#[must_use]
pub fn pod_has_ended(pod: &DynamicObject) -> bool {
    let phase = pod.data.pointer("/status/phase").and_then(Json::as_str);
    matches!(phase, Some("Succeeded" | "Failed"))
}
