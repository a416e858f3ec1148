//! Grove's PodCliqueScalingGroups (grove.io/v1alpha1). A replica consists of one of each of its cliques. There is no
//! `readyReplicas`; `availableReplicas` counts replicas in which every clique has enough ready pods.

use super::{Cache, Counts, NotSynced, Which, Workload, object};

pub(super) struct ScalingGroups;

impl Workload for ScalingGroups {
    fn kind(&self) -> &'static str {
        "PodCliqueScalingGroup"
    }

    fn count(&self, cache: &Cache, which: &Which) -> Result<Counts, NotSynced> {
        let (kind, plural) = (self.kind(), "podcliquescalinggroups");
        let kind = super::resource("grove.io", "v1alpha1", kind, plural);
        let objects = object::meant_whole(cache, &kind, which)?;
        Ok(object::sum(&objects, which, |object| {
            object::replicas(object, "/status/availableReplicas")
        }))
    }
}
