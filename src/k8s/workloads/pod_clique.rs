//! Grove's PodCliques (grove.io/v1alpha1): `readyReplicas`, no `availableReplicas`. A clique within a scaling group is a part
//! of each of the group's replicas and no worker by itself: the group counts them.

use kube::api::ApiResource;

use super::{Cache, Counts, NotSynced, Which, Workload, object};

pub(super) struct PodCliques;

/// The label of what belongs to a scaling group.
pub(super) const GROUP: &str = "grove.io/podcliquescalinggroup";
/// The label with the number of a scaling group's replica.
pub(super) const INDEX: &str = "grove.io/podcliquescalinggroup-replica-index";

impl Workload for PodCliques {
    fn kind(&self) -> &'static str {
        "PodClique"
    }

    fn count(&self, cache: &Cache, which: &Which) -> Result<Counts, NotSynced> {
        let mut objects = object::meant_whole(cache, &resource(), which)?;
        objects.retain(|object| {
            // Whoever names one means it.
            object.metadata.name.as_ref() == Some(&which.name)
                || object::label(object, GROUP).is_none()
        });
        Ok(object::sum(&objects, |object| {
            object::replicas(object, "/status/readyReplicas")
        }))
    }
}

pub(super) fn resource() -> ApiResource {
    super::resource("grove.io", "v1alpha1", "PodClique", "podcliques")
}
