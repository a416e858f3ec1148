//! Grove's PodCliques (grove.io/v1alpha1). They have `readyReplicas` but no `availableReplicas`. A clique within a scaling
//! group is a part of each replica of the group and not a worker by itself, so the group counts it.

use kube::api::ApiResource;

use super::{Cache, Counts, NotSynced, Which, Workload, object};

pub(super) struct PodCliques;

/// The label with the scaling group that an object belongs to.
pub(super) const GROUP: &str = "grove.io/podcliquescalinggroup";
/// The label with the replica index within a scaling group.
pub(super) const INDEX: &str = "grove.io/podcliquescalinggroup-replica-index";

impl Workload for PodCliques {
    fn kind(&self) -> &'static str {
        "PodClique"
    }

    fn count(&self, cache: &Cache, which: &Which) -> Result<Counts, NotSynced> {
        let mut objects = object::meant_whole(cache, &resource(), which)?;
        objects.retain(|object| {
            // A clique that is selected by its name counts even if it belongs to a scaling group.
            object.metadata.name.as_ref() == Some(&which.name)
                || object::label(object, GROUP).is_none()
        });
        Ok(object::sum(&objects, which, |object| {
            object::replicas(object, "/status/readyReplicas")
        }))
    }
}

pub(super) fn resource() -> ApiResource {
    super::resource("grove.io", "v1alpha1", "PodClique", "podcliques")
}
