//! Deployments (apps/v1). While one is rolled, its counts are those of both generations: then a revision is needed.

use kube::api::ApiResource;

use super::{Counts, Shelves, Unseen, Which, Workload, object, pods};

pub(super) struct Deployments;

/// The label by which its pods are told apart.
const REVISION: &str = "pod-template-hash";

impl Workload for Deployments {
    fn kind(&self) -> &'static str {
        "Deployment"
    }

    fn count(&self, shelves: &Shelves, which: &Which) -> Result<Counts, Unseen> {
        let objects = object::meant(shelves, &resource(), which)?;
        match &which.revision {
            Some(revision) if !objects.iter().any(|object| object::has_hash(object)) => {
                pods::of_revision(shelves, &objects, which, revision, REVISION)
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
