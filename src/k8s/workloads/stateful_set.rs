//! StatefulSets (apps/v1). `currentReplicas` and `updatedReplicas` do not mean ready, so a revision is counted by its pods.

use kube::api::{ApiResource, DynamicObject};

use super::{Cache, Counts, InPlace, NotSynced, Scaling, WorkerQuery, Workload, object, pods};
use crate::k8s::cache::Object;
use crate::k8s::kinds::stateful_sets;
use crate::rollout::PerGeneration;

pub(super) struct StatefulSets;

/// The label that the StatefulSet controller sets on pods of one revision.
pub(super) const REVISION: &str = "controller-revision-hash";

impl Workload for StatefulSets {
    fn kind(&self) -> &'static str {
        "StatefulSet"
    }

    fn count(&self, cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced> {
        let objects = object::selected(cache, &stateful_sets(), which)?;
        pods::by_revision(cache, &objects, which, REVISION)
    }

    fn scaling(&self) -> Option<&dyn Scaling> {
        Some(self)
    }
}

impl Scaling for StatefulSets {
    fn resource(&self) -> ApiResource {
        stateful_sets()
    }

    fn in_place(&self) -> Option<&dyn InPlace> {
        Some(self)
    }
}

/// The revisions of the replicas below the partition of a StatefulSet, and of the others.
pub(super) fn made(set: &DynamicObject) -> Option<PerGeneration<String>> {
    let status = |field: &str| Some(set.data["status"][field].as_str()?.to_owned());
    Some(PerGeneration {
        old: status("currentRevision")?,
        new: status("updateRevision")?,
    })
}

/// Pods of the new revision stay when the partition is raised above them. Once they are deleted, pods of the old revision replace
/// them, unless the whole set has been updated: then the old revision is forgotten.
impl InPlace for StatefulSets {
    fn partition(&self) -> &'static [&'static str] {
        &["spec", "updateStrategy", "rollingUpdate", "partition"]
    }

    fn revision_label(&self) -> &'static str {
        REVISION
    }

    fn revisions(
        &self,
        _: &Cache,
        object: &DynamicObject,
        _: &[Object],
        _: Option<&PerGeneration<String>>,
    ) -> Result<Option<PerGeneration<String>>, NotSynced> {
        Ok(made(object))
    }

    fn index(&self, object: &DynamicObject, pod: &DynamicObject) -> Option<u32> {
        let (set, pod) = (&object.metadata.name, pod.metadata.name.as_deref()?);
        let ordinal = pod.strip_prefix(set.as_deref()?)?.strip_prefix('-')?;
        let first = object::number(object, "/spec/ordinals/start").unwrap_or(0);
        ordinal.parse::<u32>().ok()?.checked_sub(first)
    }

    fn refuses(&self, object: &DynamicObject) -> Option<String> {
        let by = object.data["spec"]["updateStrategy"]["type"].as_str();
        let by = by.filter(|by| *by != "RollingUpdate")?;
        Some(format!("has updateStrategy {by}, but needs RollingUpdate"))
    }
}
