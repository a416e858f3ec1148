//! LeaderWorkerSets (leaderworkerset.x-k8s.io/v1). A replica is a leader with its workers, and `readyReplicas` counts whole
//! groups. There is no `availableReplicas`.

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::{Cache, Counts, NotSynced, Part, PodsOf, Scaling, Which, Workload, object};

pub(super) struct LeaderWorkerSets;

/// The labels of a pod with its set, and with the group that it is in.
const SET: &str = "leaderworkerset.sigs.k8s.io/name";
const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";

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

    fn scaling(&self) -> Option<&dyn Scaling> {
        Some(self)
    }
}

impl Scaling for LeaderWorkerSets {
    fn resource(&self) -> ApiResource {
        resource()
    }

    /// The leader, by its own template if there is one, and the workers.
    fn replica<'a>(&self, object: &'a DynamicObject, _: &Part) -> Vec<(&'a Json, u32)> {
        let template = &object.data["spec"]["leaderWorkerTemplate"];
        let size = u32::try_from(template["size"].as_u64().unwrap_or(1)).unwrap_or(u32::MAX);
        let worker = &template["workerTemplate"]["spec"];
        match &template["leaderTemplate"]["spec"] {
            Json::Null => vec![(worker, size)],
            leader => vec![(leader, 1), (worker, size.saturating_sub(1))],
        }
    }

    fn pods(&self, object: &DynamicObject, _: &Part) -> Option<PodsOf> {
        Some(PodsOf {
            labels: [(SET.to_owned(), object.metadata.name.clone()?)].into(),
            replica: Some(GROUP_INDEX),
        })
    }
}

pub(super) fn resource() -> ApiResource {
    let group = "leaderworkerset.x-k8s.io";
    super::resource(group, "v1", "LeaderWorkerSet", "leaderworkersets")
}
