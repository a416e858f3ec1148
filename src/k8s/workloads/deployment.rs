//! Deployments (apps/v1). During a rolling update the status counts both generations together, so `revision` must be given.

use super::{Cache, Counts, NotSynced, Which, Workload, object, pods};

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
                pods::of_revision(cache, &objects, which, revision, REVISION)
            }
            _ => Ok(object::sum(&objects, which, |object| {
                object::replicas(object, "/status/readyReplicas")
            })),
        }
    }
}
