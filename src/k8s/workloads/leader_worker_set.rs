//! LeaderWorkerSets (leaderworkerset.x-k8s.io/v1). A replica is a leader with its workers, and `readyReplicas` counts whole
//! groups. There is no `availableReplicas`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::{
    Cache, Counts, InPlace, NotSynced, Part, PodsOf, Scaling, WorkerQuery, Workload, object, pods,
    stateful_set,
};
use crate::k8s::cache::Object;
use crate::k8s::kinds::stateful_sets;
use crate::rollout::PerGeneration;

pub(super) struct LeaderWorkerSets;

/// The pod labels with the name of its set and the index of its group.
const SET: &str = "leaderworkerset.sigs.k8s.io/name";
const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
/// The pod label with its index in the group; the leader has 0.
const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
/// The pod annotation with the size of its group.
const SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
/// The pod label with the revision of its group.
const REVISION: &str = "leaderworkerset.sigs.k8s.io/template-revision-hash";

impl Workload for LeaderWorkerSets {
    fn kind(&self) -> &'static str {
        "LeaderWorkerSet"
    }

    fn count(&self, cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced> {
        let objects = object::selected(cache, &object::leader_worker_sets(), which)?;
        match &which.revision {
            Some(revision) if !objects.iter().any(|object| object::has_hash(object)) => {
                pods::of_revision(cache, &objects, which, (revision, REVISION), of_set)
            }
            _ => Ok(object::sum(&objects, which, |object| {
                object::replicas(object, "/status/readyReplicas")
            })),
        }
    }

    fn scaling(&self) -> Option<&dyn Scaling> {
        Some(self)
    }
}

impl Scaling for LeaderWorkerSets {
    fn resource(&self) -> ApiResource {
        object::leader_worker_sets()
    }

    /// The leader, by its own template if there is one, and the workers.
    fn replica<'a>(&self, object: &'a DynamicObject, _: &Part) -> Vec<(Cow<'a, Json>, u32)> {
        let template = &object.data["spec"]["leaderWorkerTemplate"];
        let size = u32::try_from(template["size"].as_u64().unwrap_or(1)).unwrap_or(u32::MAX);
        let worker = &template["workerTemplate"]["spec"];
        match &template["leaderTemplate"]["spec"] {
            Json::Null => vec![(Cow::Borrowed(worker), size)],
            leader => vec![
                (Cow::Borrowed(leader), 1),
                (Cow::Borrowed(worker), size.saturating_sub(1)),
            ],
        }
    }

    fn pods(&self, object: &DynamicObject, _: &Part) -> Option<PodsOf> {
        Some(PodsOf {
            labels: of_set(object)?,
            replica: Some(GROUP_INDEX),
        })
    }

    fn in_place(&self) -> Option<&dyn InPlace> {
        Some(self)
    }
}

/// The labels of the pods of a set.
fn of_set(object: &DynamicObject) -> Option<BTreeMap<String, String>> {
    Some([(SET.to_owned(), object.metadata.name.clone()?)].into())
}

/// The leaders are the pods of a StatefulSet with the name of the set, which has its partition. A group follows its leader: when
/// the leader is deleted, the whole group is recreated with the revision of the new leader.
impl InPlace for LeaderWorkerSets {
    fn partition(&self) -> &'static [&'static str] {
        const UPDATE: &str = "rollingUpdateConfiguration";
        &["spec", "rolloutStrategy", UPDATE, "partition"]
    }

    fn revision_label(&self) -> &'static str {
        REVISION
    }

    /// The status of the set does not contain the revisions. The StatefulSet of the leaders is labelled with the new revision,
    /// and the leaders with both their own and that of the StatefulSet.
    fn revisions(
        &self,
        cache: &Cache,
        object: &DynamicObject,
        pods: &[Object],
        accepted: Option<&PerGeneration<String>>,
    ) -> Result<Option<PerGeneration<String>>, NotSynced> {
        let metadata = &object.metadata;
        let name = metadata.name.as_deref().unwrap_or_default();
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let leaders = cache.one(&stateful_sets(), namespace, name)?;
        Ok(leaders.and_then(|leaders| made(&leaders, name, pods, accepted)))
    }

    fn index(&self, _: &DynamicObject, pod: &DynamicObject) -> Option<u32> {
        object::label(pod, GROUP_INDEX)?.parse().ok()
    }

    fn size(&self, _: &DynamicObject, pod: &DynamicObject) -> Option<usize> {
        let annotations = pod.metadata.annotations.as_ref()?;
        annotations.get(SIZE)?.parse().ok()
    }

    fn leads(&self, pod: &DynamicObject) -> bool {
        object::label(pod, WORKER_INDEX) == Some("0")
    }

    fn refuses(&self, object: &DynamicObject) -> Option<String> {
        let update = &object.data["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"];
        let surge = &update["maxSurge"];
        let is_none = surge.is_null() || *surge == 0 || *surge == "0%";
        (!is_none).then(|| format!("has maxSurge {surge}: set it to 0"))
    }
}

/// The revisions of a set, by the StatefulSet of its leaders.
fn made(
    leaders: &DynamicObject,
    name: &str,
    pods: &[Object],
    accepted: Option<&PerGeneration<String>>,
) -> Option<PerGeneration<String>> {
    let of_leaders = stateful_set::made(leaders)?;
    let new = object::label(leaders, REVISION)?.to_owned();
    if of_leaders.old == of_leaders.new {
        return Some(PerGeneration {
            old: new.clone(),
            new,
        });
    }
    let mut pods = { pods.iter() }.filter(|pod| object::label(pod, SET) == Some(name));
    let is_old =
        |pod: &&Object| object::label(pod, stateful_set::REVISION) == Some(&of_leaders.old);
    let old = pods
        .find(is_old)
        .and_then(|pod| object::label(pod, REVISION));
    // The leaders of old may be temporarily missing.
    let old = old.or_else(|| Some(&*accepted?.old))?.to_owned();
    Some(PerGeneration { old, new })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_revisions_of_a_set_are_those_of_its_leaders() {
        let object = |object| -> Object { Arc::new(serde_json::from_value(object).unwrap()) };
        let leaders = |current: &str| {
            object(json!({
                "metadata": {"name": "w", "labels": {REVISION: "b"}},
                "status": {"currentRevision": current, "updateRevision": "w-2"},
            }))
        };
        let leader = |revision: &str, of_leaders: &str| {
            let labels = json!({SET: "w", REVISION: revision, stateful_set::REVISION: of_leaders});
            object(json!({"metadata": {"name": "w-0", "labels": labels}}))
        };
        let pods = [leader("b", "w-2"), leader("a", "w-1")];
        let revisions = |old: &str| {
            Some(PerGeneration {
                old: old.to_owned(),
                new: "b".to_owned(),
            })
        };
        assert_eq!(made(&leaders("w-1"), "w", &pods, None), revisions("a"));
        assert_eq!(made(&leaders("w-1"), "w", &pods[..1], None), None);
        let accepted = revisions("a").unwrap();
        assert_eq!(
            made(&leaders("w-1"), "w", &[], Some(&accepted)),
            revisions("a")
        );
        assert_eq!(
            made(&leaders("w-2"), "w", &pods, Some(&accepted)),
            revisions("b")
        );
    }
}
