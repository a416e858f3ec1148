//! Deployments (apps/v1). During a rolling update the status counts both generations together, so `revision` must be given.

use kube::api::ApiResource;

use super::{
    Cache, Counts, NotSynced, ScaleDownOrder, Scaling, WorkerQuery, Workload, object, pods,
};
use crate::k8s::kinds::deployments;

pub(super) struct Deployments;

/// The label that the Deployment controller sets on pods of one revision.
const REVISION: &str = "pod-template-hash";

impl Workload for Deployments {
    fn kind(&self) -> &'static str {
        "Deployment"
    }

    fn count(&self, cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced> {
        let objects = object::selected(cache, &deployments(), which)?;
        pods::by_revision(cache, &objects, which, REVISION)
    }

    fn scaling(&self) -> Option<&dyn Scaling> {
        Some(self)
    }
}

impl Scaling for Deployments {
    fn resource(&self) -> ApiResource {
        deployments()
    }

    fn removes(&self) -> ScaleDownOrder {
        ScaleDownOrder::Unready
    }
}
