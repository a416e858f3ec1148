//! StatefulSets (apps/v1). `currentReplicas` and `updatedReplicas` do not mean ready, so a revision is counted by its pods.

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::{
    Cache, Counts, NotSynced, Part, PodsOf, Scaling, Which, Workload, object, pods, scaling,
};

pub(super) struct StatefulSets;

/// The label that the StatefulSet controller sets on pods of one revision.
const REVISION: &str = "controller-revision-hash";

impl Workload for StatefulSets {
    fn kind(&self) -> &'static str {
        "StatefulSet"
    }

    fn count(&self, cache: &Cache, which: &Which) -> Result<Counts, NotSynced> {
        let objects = object::meant(cache, &object::stateful_sets(), which)?;
        match &which.revision {
            Some(revision) if !objects.iter().any(|object| object::has_hash(object)) => {
                pods::of_revision(cache, &objects, which, revision, REVISION)
            }
            _ => Ok(object::sum(&objects, which, |object| {
                object::replicas(object, "/status/readyReplicas")
            })),
        }
    }

    fn scaling(&self) -> Option<&dyn Scaling> {
        Some(self)
    }
}

impl Scaling for StatefulSets {
    fn resource(&self) -> ApiResource {
        object::stateful_sets()
    }

    fn replica<'a>(&self, object: &'a DynamicObject, _: &Part) -> Vec<(&'a Json, u32)> {
        scaling::once(object, "/spec/template/spec")
    }

    fn pods(&self, object: &DynamicObject, _: &Part) -> Option<PodsOf> {
        scaling::pods_by_selector(object)
    }
}
