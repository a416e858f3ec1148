//! Counts and scales the workers of a generation, with one file per kind of object that can own them.
//!
//! A worker is one replica of a model server, no matter how many pods it has. Contains no rollout policy.

mod deletion_cost;
mod deployment;
mod graph;
mod grove;
mod in_place;
mod leader_worker_set;
mod metadata;
mod model_serving;
mod object;
mod owners;
mod pod_clique;
mod pods;
mod resources;
mod scaling;
mod scaling_group;
mod stateful_set;

use std::collections::BTreeMap;

pub use self::deletion_cost::{is_marked, mark};
pub use self::graph::{frontends_stay, frontends_to_zero, resource as graphs, wants_frontends};
pub use self::in_place::{GenerationInPlace, InPlace, halves, pods_resource};
pub use self::object::{
    controller, includes, is_selected, label, labels, labels_at, pod_has_ended, pod_is_ready,
};
pub use self::scaling::{
    Part, PodsOf, Resize, ScaleDownOrder, Scaled, Scaling, ScalingError, of_kind, roles,
};
use super::{Cache, NotSynced};
use crate::dynamo_graph::COMPONENT_NAME;
pub use crate::dynamo_graph::{COMPONENT, DYNAMO_NAMESPACE, GRAPH, SUB_COMPONENT, WORKER_HASH};
use crate::rollout::{Role, Workers};

/// The ready and desired workers of a generation, by role.
pub type Counts = BTreeMap<Role, Workers>;

/// Selects the workers to count, from `spec.workers.{old,new}` and the names of the deployments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerQuery {
    /// The Kubernetes namespace.
    pub namespace: String,
    /// The name of the object that owns the workers, or of the graph that owns such objects. For `DynamoWorkerMetadata`, the
    /// Dynamo namespace.
    pub name: String,
    /// Whether the update itself names the kind of object (`spec.workers`). If so, the object called `name` owns workers, even if
    /// its pods have a sidecar: a model server without Dynamo is frontend and worker in one.
    pub is_explicit: bool,
    /// The revision or worker hash, if one object holds several generations.
    pub revision: Option<String>,
    /// Labels that select the pods.
    pub selector: BTreeMap<String, String>,
    /// The Dynamo namespace of the workers. Pods that are labelled with a namespace must be labelled with this one, or with
    /// its part before a `-`, because Dynamo appends the hash of the generation to the label's value.
    pub dynamo_namespace: Option<String>,
}

/// A kind of object whose workers can be counted.
pub trait Workload: Sync {
    /// The kind, as in `spec.workers.*.kind`.
    fn kind(&self) -> &'static str;

    /// Counts the workers of `which`.
    ///
    /// # Errors
    /// If an object that must be counted could not be listed.
    fn count(&self, cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced>;

    /// How the workers of one object are scaled, if they can be.
    fn scaling(&self) -> Option<&dyn Scaling> {
        None
    }
}

/// Every supported kind, in the order of `WORKER_KINDS`.
pub const ALL: [&dyn Workload; 9] = [
    &pods::Pods,
    &deployment::Deployments,
    &stateful_set::StatefulSets,
    &leader_worker_set::LeaderWorkerSets,
    &pod_clique::PodCliques,
    &scaling_group::ScalingGroups,
    &model_serving::ModelServings,
    &graph::Graphs,
    &metadata::Metadata,
];

/// Looks up a kind by name.
#[must_use]
pub fn by_kind(kind: &str) -> Option<&'static dyn Workload> {
    ALL.into_iter().find(|workload| workload.kind() == kind)
}

/// Begins to list, concurrently, what a count may need: now, once the last worker is gone, or when its graph is deleted.
pub fn begin(cache: &Cache) {
    cache.begin(&pods::resource());
    cache.begin_served(&graph::resource());
    owners::begin(cache);
}

/// Counts the workers of `which` as a `workload`.
///
/// # Errors
/// If an object that must be counted could not be listed, or the kind cannot be counted as requested.
pub fn count(
    workload: &dyn Workload,
    cache: &Cache,
    which: &WorkerQuery,
) -> Result<Counts, NotSynced> {
    let kind = workload.kind();
    if !which.selector.is_empty() && kind != pods::Pods.kind() {
        return Err(NotSynced::Ambiguous(format!(
            "a selector selects pods: use it without a kind or with kind Pod, not with {kind}"
        )));
    }
    workload.count(cache, which)
}

/// Counts the workers of a deployment by its name alone: by the pod labels of the graph of this name if there is one, otherwise
/// by the Deployment.
///
/// # Errors
/// If an object that must be counted could not be listed.
pub fn by_name(cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced> {
    let graph = match cache.serves(&graph::resource())? {
        true => cache.one(&graph::resource(), &which.namespace, &which.name)?,
        false => None,
    };
    // Pods come and go, so the graph says how many are desired, but only in total and not for one of its generations.
    let is_none = graph.is_none();
    let Some(graph) = graph.filter(|_| which.revision.is_none()) else {
        let counts = pods::Pods.count(cache, which)?;
        if counts.is_empty() && is_none {
            return deployment::Deployments.count(cache, which);
        }
        return Ok(counts);
    };
    let counts = pods::existing(cache, which)?;
    let wanted = graph::wanted(&graph);
    let mut all: Counts = wanted
        .into_iter()
        .map(|(role, desired)| (role, Workers { ready: 0, desired }))
        .collect();
    for (role, counted) in counts {
        let workers = all.entry(role).or_default();
        workers.ready = counted.ready;
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
