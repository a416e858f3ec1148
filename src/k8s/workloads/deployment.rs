//! Deployments (apps/v1). During a rolling update the status counts both generations together, so `revision` must be given.

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::{
    Cache, Counts, NotSynced, Part, PodsOf, RemovesFirst, Scaling, Which, Workload, object, pods,
    scaling,
};

pub(super) struct Deployments;

/// The label that the Deployment controller sets on pods of one revision.
const REVISION: &str = "pod-template-hash";

impl Workload for Deployments {
    fn kind(&self) -> &'static str {
        "Deployment"
    }

    fn count(&self, cache: &Cache, which: &Which) -> Result<Counts, NotSynced> {
        let objects = object::meant(cache, &object::deployments(), which)?;
        match &which.revision {
            Some(revision) if !objects.iter().any(|object| object::has_hash(object)) => {
                let selector = |object: &_| object::labels_at(object, "/spec/selector/matchLabels");
                pods::of_revision(cache, &objects, which, (revision, REVISION), selector)
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

impl Scaling for Deployments {
    fn resource(&self) -> ApiResource {
        object::deployments()
    }

    fn replica<'a>(&self, object: &'a DynamicObject, _: &Part) -> Vec<(&'a Json, u32)> {
        scaling::once(object, "/spec/template/spec")
    }

    fn pods(&self, object: &DynamicObject, _: &Part) -> Option<PodsOf> {
        scaling::pods_by_selector(object)
    }

    fn removes(&self) -> RemovesFirst {
        RemovesFirst::Unready
    }
}
