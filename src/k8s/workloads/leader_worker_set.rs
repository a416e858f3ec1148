//! LeaderWorkerSets (leaderworkerset.x-k8s.io/v1): a replica is a leader with its workers, and `readyReplicas` counts whole
//! groups. There is no `availableReplicas`.

use super::{Counts, Shelves, Unseen, Which, Workload, object};

pub(super) struct LeaderWorkerSets;

impl Workload for LeaderWorkerSets {
    fn kind(&self) -> &'static str {
        "LeaderWorkerSet"
    }

    fn count(&self, shelves: &Shelves, which: &Which) -> Result<Counts, Unseen> {
        let group = "leaderworkerset.x-k8s.io";
        let kind = super::resource(group, "v1", "LeaderWorkerSet", "leaderworkersets");
        let objects = object::meant_whole(shelves, &kind, which)?;
        Ok(object::sum(&objects, |object| {
            object::replicas(object, "/status/readyReplicas")
        }))
    }
}
