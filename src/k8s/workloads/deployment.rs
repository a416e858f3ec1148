//! Deployments (apps/v1). While one is rolled, its counts are those of both generations: then a revision is needed.

use kube::api::ApiResource;

use super::{Cache, Counts, NotSynced, Which, Workload, object, pods};

pub(super) struct Deployments;

/// The label by which its pods are told apart.
const REVISION: &str = "pod-template-hash";

impl Workload for Deployments {
    fn kind(&self) -> &'static str {
        "Deployment"
    }

    fn count(&self, cache: &Cache, which: &Which) -> Result<Counts, NotSynced> {
        let objects = object::meant(cache, &resource(), which)?;
        match &which.revision {
            Some(revision) if !objects.iter().any(|object| object::has_hash(object)) => {
                pods::of_revision(cache, &objects, which, revision, REVISION)
            }
            _ => Ok(object::sum(&objects, |object| {
                object::replicas(object, "/status/readyReplicas")
            })),
        }
    }
}

pub(super) fn resource() -> ApiResource {
    super::resource("apps", "v1", "Deployment", "deployments")
}
