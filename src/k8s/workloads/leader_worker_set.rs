//! LeaderWorkerSets (leaderworkerset.x-k8s.io/v1). A replica is a leader with its workers, and `readyReplicas` counts whole
//! groups. There is no `availableReplicas`.

use kube::api::ApiResource;

use super::{Cache, Counts, NotSynced, Which, Workload, object};

pub(super) struct LeaderWorkerSets;

impl Workload for LeaderWorkerSets {
    fn kind(&self) -> &'static str {
        "LeaderWorkerSet"
    }

    fn count(&self, cache: &Cache, which: &Which) -> Result<Counts, NotSynced> {
        let objects = object::meant_whole(cache, &resource(), which)?;
        Ok(object::sum(&objects, which, |object| {
            object::replicas(object, "/status/readyReplicas")
        }))
    }
}

pub(super) fn resource() -> ApiResource {
    let group = "leaderworkerset.x-k8s.io";
    super::resource(group, "v1", "LeaderWorkerSet", "leaderworkersets")
}
