//! Finds the objects that own the frontends of the old generation, which `handover.retire` scales to zero or deletes. Makes no
//! requests.
//!
//! `frontends.source` names frontends by the graph label of their pods or by a Deployment. A graph label says nothing about the
//! Deployment, which often has another name, so the owner is found from the pods. An object whose name equals the label by
//! coincidence is not an owner.

use kube::api::{ApiResource, DynamicObject};

use super::objects;
use crate::k8s::kinds::{deployments, stateful_sets};
use crate::k8s::workloads::{self, COMPONENT, GRAPH, controller, is_selected, label, labels_at};
use crate::k8s::{Cache, NotSynced, Object};
use crate::resource::Retire;
use crate::resource::rollout_status::AcceptedGeneration;

/// The kind of a graph, whose frontends belong to the same object as its workers.
const GRAPH_KIND: &str = "DynamoGraphDeployment";
/// The label with the hash that ends the name of the ReplicaSet that owns a pod of a Deployment.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// Something that owns frontends of the old generation.
#[derive(Clone, Debug)]
pub(super) enum Owner {
    /// A Deployment or StatefulSet.
    Workload {
        resource: ApiResource,
        object: Object,
    },
    /// A graph, which owns the workers as well: they are deleted together.
    Graph(Object),
}

/// The inputs for finding the owners of old's frontends.
#[derive(Clone, Copy)]
pub(super) struct RetireQuery<'a> {
    pub namespace: &'a str,
    /// The old generation.
    pub old: &'a AcceptedGeneration,
    /// Its running frontend pods.
    pub pods: &'a [Object],
    /// The running frontend pods of the new generation.
    pub new_pods: &'a [Object],
    /// What must happen to them.
    pub retire: Retire,
    /// Whether new serves everything, so that some of the objects may have been retired.
    pub handed_over: bool,
}

/// The owners of all frontends of old, or why they cannot be retired, as text for users. None if they are kept.
///
/// # Errors
/// When Deployments, StatefulSets or graphs are not listed.
pub(super) fn owners(
    cache: &Cache,
    wanted: RetireQuery<'_>,
) -> Result<Result<Vec<Owner>, String>, NotSynced> {
    let RetireQuery {
        namespace,
        old,
        pods,
        new_pods,
        retire,
        handed_over,
    } = wanted;
    if retire == Retire::Keep {
        return Ok(Ok(Vec::new()));
    }
    let source = &*old.frontends;
    let mut found = FrontendOwners::default();
    let of_graph =
        { old.roles.values() }.any(|role| role.kind == GRAPH_KIND && role.name == source);
    if of_graph {
        let graph = cache.one(&workloads::graphs(), namespace, source)?;
        let stay = graph.as_deref().and_then(workloads::frontends_stay);
        if let Some(why) = stay.filter(|_| retire == Retire::ScaleToZero) {
            found.refuse(format!("they belong to {GRAPH_KIND} {source}, and {why}"));
        }
        found.owners.extend(graph.map(Owner::Graph));
    }
    // Once new serves everything, the frontends may be gone, and another object may have their name.
    let is_name = !handed_over && !pods.iter().any(|pod| label(pod, GRAPH) == Some(source));
    for resource in [deployments(), stateful_sets()] {
        let named = cache.one(&resource, namespace, source)?;
        let is_meant =
            |named: &Object| may_be_frontends(named) && (is_name || is_of(named, source));
        if let Some(named) = named.filter(is_meant) {
            found.add(resource, named);
        }
    }
    for pod in pods {
        let is_going = pod.metadata.deletion_timestamp.is_some();
        let is_of_graph = of_graph && label(pod, GRAPH) == Some(source);
        if is_going || is_of_graph {
            continue;
        }
        match owner(cache, namespace, pod)? {
            Ok((resource, object)) => found.add(resource, object),
            Err(why) => found.refuse(why),
        }
    }
    for pod in new_pods {
        if let Ok((resource, object)) = owner(cache, namespace, pod)?
            && found.has(&object)
        {
            found.refuse(format!(
                "the {} {} also has the frontend pod {} of the new generation",
                resource.kind,
                objects::name_of(&object),
                objects::name_of(pod)
            ));
        }
    }
    if found.owners.is_empty() && !of_graph && !handed_over {
        found.refuse(format!(
            "there is no Deployment {source}, and no pod with that graph label"
        ));
    }
    Ok(match found.refused {
        Some(why) => Err(why),
        None => Ok(found.owners),
    })
}

/// Whether an owner is in the state that `retire` requests.
pub(super) fn is_retired(owner: &Owner, retire: Retire) -> bool {
    match (retire, owner) {
        (Retire::ScaleToZero, Owner::Workload { object, .. }) => {
            object.data["spec"]["replicas"] == 0
        }
        (Retire::ScaleToZero, Owner::Graph(graph)) => !workloads::wants_frontends(graph),
        _ => false,
    }
}

#[derive(Default)]
struct FrontendOwners {
    owners: Vec<Owner>,
    /// The first reason why not all can be retired.
    refused: Option<String>,
}

impl FrontendOwners {
    fn refuse(&mut self, why: String) {
        self.refused.get_or_insert(why);
    }

    fn has(&self, object: &Object) -> bool {
        let is_it = |owner: &Owner| matches!(owner, Owner::Workload { object: known, .. } if known.metadata.uid == object.metadata.uid);
        self.owners.iter().any(is_it)
    }

    fn add(&mut self, resource: ApiResource, object: Object) {
        if self.has(&object) {
            return;
        }
        // The controller of the object would recreate it or scale it up again.
        if let Some((kind, name)) = controller(&object) {
            self.refuse(format!(
                "the {} {} of the frontends belongs to the {kind} {name}",
                resource.kind,
                objects::name_of(&object)
            ));
        }
        self.owners.push(Owner::Workload { resource, object });
    }
}

/// The owner of a frontend pod, or why it cannot be retired.
fn owner(
    cache: &Cache,
    namespace: &str,
    pod: &Object,
) -> Result<Result<(ApiResource, Object), String>, NotSynced> {
    let pod_name = objects::name_of(pod);
    let Some((kind, name)) = controller(pod) else {
        let why = format!("the frontend pod {pod_name} belongs to no Deployment");
        return Ok(Err(why));
    };
    let (resource, name) = match kind {
        // A ReplicaSet is named after its Deployment and the hash of the pods.
        "ReplicaSet" => {
            let hash = label(pod, TEMPLATE_HASH).unwrap_or_default();
            let deployment = name
                .strip_suffix(hash)
                .and_then(|name| name.strip_suffix('-'));
            (deployments(), deployment.unwrap_or(name))
        }
        "StatefulSet" => (stateful_sets(), name),
        _ => {
            let why = format!("the frontend pod {pod_name} belongs to the {kind} {name}");
            return Ok(Err(why));
        }
    };
    let object = cache.one(&resource, namespace, name)?;
    let object = object.filter(|object| selects(object, pod));
    Ok(match object {
        Some(object) => Ok((resource, object)),
        None => Err(format!(
            "there is no {} {name} that the frontend pod {pod_name} belongs to",
            resource.kind
        )),
    })
}

/// Whether the selector of a Deployment or StatefulSet selects a pod.
fn selects(object: &DynamicObject, pod: &DynamicObject) -> bool {
    let selector = labels_at(object, "/spec/selector/matchLabels");
    selector.is_some_and(|selector| is_selected(pod, &selector))
}

/// Whether the pods of an object are not labelled as something other than frontends.
fn may_be_frontends(object: &DynamicObject) -> bool {
    let labels = object.data.pointer("/spec/template/metadata/labels");
    let component = labels.and_then(|labels| labels[COMPONENT].as_str());
    component.is_none_or(|component| component == "frontend")
}

/// Whether the pods of an object are labelled as those of a graph.
fn is_of(object: &DynamicObject, graph: &str) -> bool {
    let labels = labels_at(object, "/spec/template/metadata/labels");
    labels.is_some_and(|labels| labels.get(GRAPH).is_some_and(|label| label == graph))
}
