//! Pods, selected by Dynamo's labels or by an explicit selector. A replica that spans several nodes has several pods but is one
//! worker, which is ready when all of its pods are.

use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject};

use super::grove::{GROUP, INDEX};
use super::object::{self, add, is_selected, label, number, pod_has_ended, pod_is_ready, role};
use super::{
    COMPONENT, Cache, Counts, DYNAMO_NAMESPACE, GRAPH, NotSynced, SUB_COMPONENT, WORKER_HASH,
    WorkerQuery, Workload, owners,
};
use crate::k8s::cache::Object;
use crate::k8s::kinds::api_resource;
use crate::rollout::Role;

pub(super) struct Pods;

impl Workload for Pods {
    fn kind(&self) -> &'static str {
        "Pod"
    }

    fn count(&self, cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced> {
        let mut counts = existing(cache, which)?;
        for (role, wanted) in owners::wanted(
            cache,
            &which.namespace,
            &|pod| matches_query(pod, which),
            counts.is_empty(),
        )? {
            let workers = counts.entry(role).or_default();
            // Pods may be missing because of a quota or a webhook although workers are requested.
            if workers.desired == 0 {
                workers.desired = wanted;
            }
        }
        Ok(counts)
    }
}

/// Counts the workers of the pods that exist.
pub(super) fn existing(cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced> {
    let mut pods = cache.of(&resource(), &which.namespace)?;
    pods.retain(|pod| matches_query(pod, which));
    count(cache, &which.namespace, &pods)
}

pub(super) fn resource() -> ApiResource {
    api_resource("", "v1", "Pod", "pods")
}

/// Whether `which` selects a pod.
fn matches_query(pod: &DynamicObject, which: &WorkerQuery) -> bool {
    let is_meant = match which.selector.is_empty() {
        // Every worker pod of a graph is labelled with its type; an unlabelled pod may be a frontend.
        true => {
            label(pod, GRAPH) == Some(&which.name)
                && says_its_type(pod)
                && is_of_namespace(pod, which)
        }
        false => is_selected(pod, &which.selector),
    };
    let revision = which.revision.as_deref();
    is_meant && revision.is_none_or(|hash| label(pod, WORKER_HASH) == Some(hash))
}

fn says_its_type(pod: &DynamicObject) -> bool {
    [COMPONENT, SUB_COMPONENT]
        .iter()
        .any(|name| label(pod, name).is_some())
}

/// Whether a pod belongs to the requested Dynamo namespace. An unlabelled pod counts as such.
fn is_of_namespace(pod: &DynamicObject, which: &WorkerQuery) -> bool {
    let (Some(meant), Some(own)) = (&which.dynamo_namespace, label(pod, DYNAMO_NAMESPACE)) else {
        return true;
    };
    let more = meant.strip_prefix(own);
    more.is_some_and(|more| more.is_empty() || more.starts_with('-'))
}

/// Counts the workers of `objects`, which select pods like apps/v1. If `which` names a revision, counts the pods whose label
/// `marked_by` has it; otherwise, uses the status.
pub(super) fn by_revision(
    cache: &Cache,
    objects: &[Object],
    which: &WorkerQuery,
    marked_by: &str,
) -> Result<Counts, NotSynced> {
    match &which.revision {
        Some(revision) if !objects.iter().any(|object| object::has_hash(object)) => {
            let selector = |object: &_| object::labels_at(object, "/spec/selector/matchLabels");
            of_revision(cache, objects, which, (revision, marked_by), selector)
        }
        _ => Ok(object::sum(objects, which, |object| {
            object::replicas(object, "/status/readyReplicas")
        })),
    }
}

/// Counts the pods of one revision, for kinds whose status mixes generations. The controller of the kind writes the revision
/// to the label `marked_by`. The pods of an object have the labels that `selector` gives.
pub(super) fn of_revision(
    cache: &Cache,
    objects: &[Object],
    which: &WorkerQuery,
    (revision, marked_by): (&str, &str),
    selector: impl Fn(&DynamicObject) -> Option<BTreeMap<String, String>>,
) -> Result<Counts, NotSynced> {
    let mut counts = Counts::new();
    for object in objects {
        let Some(selector) = selector(object) else {
            continue;
        };
        let mut pods = cache.of(&resource(), &which.namespace)?;
        pods.retain(|pod| {
            is_selected(pod, &selector)
                && [marked_by, WORKER_HASH]
                    .iter()
                    .any(|name| label(pod, name) == Some(revision))
        });
        let role: fn(&DynamicObject) -> Option<Role> = match object::is_named(object, which) {
            true => |pod| Some(object::named_role(pod)),
            false => role,
        };
        for (role, workers) in count_by(cache, &which.namespace, &pods, role)? {
            add(&mut counts, role, workers);
        }
    }
    Ok(counts)
}

/// The pods of one replica.
#[derive(Default)]
struct Replica {
    pods: usize,
    ready: usize,
    /// Whether one of them is being deleted.
    is_broken: bool,
    /// The number of pods that the replica should have, if known.
    size: Option<usize>,
}

/// Counts the workers that consist of these pods.
pub(super) fn count(cache: &Cache, namespace: &str, pods: &[Object]) -> Result<Counts, NotSynced> {
    count_by(cache, namespace, pods, role)
}

fn count_by(
    cache: &Cache,
    namespace: &str,
    pods: &[Object],
    role: fn(&DynamicObject) -> Option<Role>,
) -> Result<Counts, NotSynced> {
    let mut cliques = Vec::new();
    if pods.iter().any(|pod| label(pod, GROUP).is_some()) {
        cliques = cache.of_served(&super::grove::cliques(), namespace)?;
    }
    Ok(counted(pods, &cliques, role))
}

fn counted(
    pods: &[Object],
    cliques: &[Object],
    role: fn(&DynamicObject) -> Option<Role>,
) -> Counts {
    let mut replicas: BTreeMap<(Role, String), Replica> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod_has_ended(pod)) {
        let Some(role) = role(pod) else { continue };
        let (name, size) = replica(pod, cliques);
        let replica = replicas.entry((role, name)).or_default();
        replica.size = size;
        if pod.metadata.deletion_timestamp.is_some() {
            replica.is_broken = true;
            continue;
        }
        replica.pods += 1;
        replica.ready += usize::from(pod_is_ready(pod));
    }
    let mut counts = Counts::new();
    for ((role, _), replica) in replicas {
        // The whole replica is being deleted.
        if replica.pods == 0 {
            continue;
        }
        let is_ready = match replica.size {
            Some(size) => replica.ready >= size,
            None => replica.ready == replica.pods && !replica.is_broken,
        };
        let workers = counts.entry(role).or_default();
        workers.desired += 1;
        workers.ready += u32::from(is_ready);
    }
    counts
}

/// The replica that a pod belongs to, and the number of pods of that replica, if known.
fn replica(pod: &DynamicObject, cliques: &[Object]) -> (String, Option<usize>) {
    const LWS: &str = "leaderworkerset.sigs.k8s.io";
    if let Some(group) = label(pod, &format!("{LWS}/group-key")) {
        let annotations = pod.metadata.annotations.as_ref();
        let size = annotations.and_then(|notes| notes.get(&format!("{LWS}/size"))?.parse().ok());
        return (group.to_owned(), size);
    }
    let (group, index) = (label(pod, GROUP), label(pod, INDEX));
    if let (Some(group), Some(index)) = (group, index) {
        // A replica of a scaling group consists of one of each of the group's cliques.
        let own = cliques.iter().filter(|clique| {
            let component = label(clique, COMPONENT);
            label(clique, GROUP) == Some(group)
                && label(clique, INDEX) == Some(index)
                && (component.is_none() || component == label(pod, COMPONENT))
        });
        let sizes = own.map(|clique| number(clique, "/spec/replicas").unwrap_or(1) as usize);
        let size = Some(sizes.fold(0, usize::saturating_add)).filter(|size| *size > 0);
        return (format!("{group}/{index}"), size);
    }
    (pod.metadata.name.clone().unwrap_or_default(), Some(1))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn object(name: &str, labels: Value, more: Value) -> Object {
        let mut object = more;
        object["metadata"]["name"] = name.into();
        object["metadata"]["labels"] = labels;
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn of_group(index: &str) -> Value {
        json!({GROUP: "g", INDEX: index, COMPONENT: "decode"})
    }

    /// A pod of the replica `index` of a scaling group.
    fn pod(name: &str, index: &str, ready: bool) -> Object {
        let ready = if ready { "True" } else { "False" };
        let conditions = json!([{"type": "Ready", "status": ready}]);
        object(
            name,
            of_group(index),
            json!({"metadata": {}, "status": {"conditions": conditions}}),
        )
    }

    fn decode(pods: &[Object], cliques: &[Object]) -> (u32, u32) {
        let workers = counted(pods, cliques, role)[&Role::Decode];
        (workers.ready, workers.desired)
    }

    #[test]
    fn an_unlabelled_pod_of_a_graph_is_not_a_worker() {
        for (labels, says) in [
            (json!({GRAPH: "g"}), false),
            (json!({GRAPH: "g", COMPONENT: "worker"}), true),
            (json!({GRAPH: "g", SUB_COMPONENT: "decode"}), true),
        ] {
            let pod = object("a", labels.clone(), json!({"metadata": {}}));
            assert_eq!(says_its_type(&pod), says, "{labels}");
        }
    }

    #[test]
    fn a_replica_of_a_scaling_group_is_as_large_as_its_cliques_say() {
        let clique = |name: &str, replicas: u32| {
            let spec = json!({"metadata": {}, "spec": {"replicas": replicas}});
            object(name, of_group("0"), spec)
        };
        let cliques = [clique("g-0-leader", 1), clique("g-0-worker", 2)];
        let mut pods = vec![pod("a", "0", true), pod("b", "0", true)];
        assert_eq!(decode(&pods, &cliques), (0, 1), "one is not there");
        pods.push(pod("c", "0", true));
        assert_eq!(decode(&pods, &cliques), (1, 1));
        pods[2] = pod("c", "0", false);
        assert_eq!(decode(&pods, &cliques), (0, 1));
    }

    #[test]
    fn a_replica_of_unknown_size_with_a_pod_on_its_way_out_is_not_ready() {
        let going = object(
            "b",
            of_group("0"),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        );
        let mut pods = vec![pod("a", "0", true), going.clone()];
        assert_eq!(decode(&pods, &[]), (0, 1));
        pods.push(pod("c", "1", true));
        assert_eq!(decode(&pods, &[]), (1, 2));
        // A replica whose pods are all being deleted does not count.
        assert!(counted(&[going], &[], role).is_empty());
    }
}
