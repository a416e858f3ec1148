//! What Grove's objects have in common (grove.io/v1alpha1): the labels of a scaling group, and the resource of its cliques.

use crate::k8s::kinds::api_resource;
use kube::api::ApiResource;

/// The label with the scaling group that an object belongs to.
pub(super) const GROUP: &str = "grove.io/podcliquescalinggroup";
/// The label with the replica index within a scaling group.
pub(super) const INDEX: &str = "grove.io/podcliquescalinggroup-replica-index";

pub(super) fn cliques() -> ApiResource {
    api_resource("grove.io", "v1alpha1", "PodClique", "podcliques")
}
