//! StatefulSets (apps/v1). `currentReplicas` and `updatedReplicas` say nothing of readiness: a revision is counted by pods.

use kube::api::ApiResource;

use super::{Counts, Shelves, Unseen, Which, Workload, object, pods};

pub(super) struct StatefulSets;

/// The label by which its pods are told apart.
const REVISION: &str = "controller-revision-hash";

impl Workload for StatefulSets {
    fn kind(&self) -> &'static str {
        "StatefulSet"
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
    super::resource("apps", "v1", "StatefulSet", "statefulsets")
}
