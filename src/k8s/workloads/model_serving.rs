//! Kthena's ModelServings (workload.serving.volcano.sh/v1alpha1). A replica is a group with every role, and each role states its
//! number of replicas per group. `availableReplicas` counts whole groups that are ready; `currentReplicas` and `updatedReplicas`
//! count groups whether ready or not, so the groups of one revision are counted by their pods.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::{
    Cache, Counts, InPlace, NotSynced, Part, PodsOf, Scaling, WorkerQuery, Workload, object, pods,
};
use crate::k8s::cache::Object;
use crate::rollout::{PerGeneration, Role, Workers};

pub(super) struct ModelServings;

/// The pod labels with the ModelServing, with the group, which is `NAME-ORDINAL`, and with the revision of the group.
const SERVING: &str = "modelserving.volcano.sh/name";
const GROUP: &str = "modelserving.volcano.sh/group-name";
const REVISION: &str = "modelserving.volcano.sh/revision";

impl Workload for ModelServings {
    fn kind(&self) -> &'static str {
        "ModelServing"
    }

    fn count(&self, cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced> {
        let mut counts = Counts::new();
        for object in object::selected(cache, &object::model_servings(), which)? {
            let groups = match &which.revision {
                Some(revision) if !object::has_hash(&object) => {
                    let pods = cache.of(&pods::resource(), &which.namespace)?;
                    of_revision(&object, revision, &pods)
                }
                _ => object::replicas(&object, "/status/availableReplicas"),
            };
            count(&object, groups, &mut counts);
        }
        Ok(counts)
    }

    fn scaling(&self) -> Option<&dyn Scaling> {
        Some(self)
    }
}

/// Scaled by whole groups, which keep the proportion of their roles.
impl Scaling for ModelServings {
    fn resource(&self) -> ApiResource {
        object::model_servings()
    }

    fn parts(&self, object: &DynamicObject) -> Vec<Part> {
        vec![Part {
            role: Role::Worker,
            name: String::new(),
            desired: object::number(object, "/spec/replicas").unwrap_or(1),
            ready: object::number(object, "/status/availableReplicas").unwrap_or(0),
            present: object::number(object, "/status/replicas").unwrap_or(0),
        }]
    }

    fn replica<'a>(&self, object: &'a DynamicObject, _: &Part) -> Vec<(Cow<'a, Json>, u32)> {
        let pods = roles(object).flat_map(|role| {
            let [entries, workers] = pods_of(role);
            let templates = [("entryTemplate", entries), ("workerTemplate", workers)];
            templates.map(|(template, count)| (Cow::Borrowed(&role[template]["spec"]), count))
        });
        pods.filter(|(spec, count)| spec.is_object() && *count > 0)
            .collect()
    }

    fn pods(&self, object: &DynamicObject, _: &Part) -> Option<PodsOf> {
        Some(PodsOf {
            labels: of_serving(object)?,
            replica: Some(GROUP),
        })
    }

    fn in_place(&self) -> Option<&dyn InPlace> {
        Some(self)
    }
}

/// Groups below the partition stay as they are, and a missing one is created from the current revision.
impl InPlace for ModelServings {
    fn partition(&self) -> &'static [&'static str] {
        const UPDATE: &str = "rollingUpdateConfiguration";
        &["spec", "rolloutStrategy", UPDATE, "partition"]
    }

    fn revision_label(&self) -> &'static str {
        REVISION
    }

    fn revisions(
        &self,
        _: &Cache,
        object: &DynamicObject,
        _: &[Object],
        _: Option<&PerGeneration<String>>,
    ) -> Result<Option<PerGeneration<String>>, NotSynced> {
        let status = &object.data["status"];
        let revision = |name: &str| status[name].as_str().map(str::to_owned);
        let both = revision("currentRevision").zip(revision("updateRevision"));
        Ok(both.map(|(old, new)| PerGeneration { old, new }))
    }

    fn index(&self, object: &DynamicObject, pod: &DynamicObject) -> Option<u32> {
        let name = object.metadata.name.as_deref()?;
        let group = object::label(pod, GROUP)?.strip_prefix(name)?;
        group.strip_prefix('-')?.parse().ok()
    }

    fn size(&self, object: &DynamicObject, pod: &DynamicObject) -> Option<usize> {
        size(object, object::label(pod, REVISION)?)
    }

    fn refuses(&self, object: &DynamicObject) -> Option<String> {
        let spec = &object.data["spec"];
        let strategy = &spec["rolloutStrategy"];
        let (by, partition) = (
            &strategy["type"],
            &strategy["rollingUpdateConfiguration"]["partition"],
        );
        let recovery = spec["recoveryPolicy"].as_str().unwrap_or("RoleRecreate");
        if by == "RoleRollingUpdate" {
            let why = "has rolloutStrategy RoleRollingUpdate, but needs ServingGroupRollingUpdate";
            Some(why.to_owned())
        } else if partition.is_string() {
            Some(format!(
                "has partition {partition}: set it to a number of groups"
            ))
        } else if recovery != "ServingGroupRecreate" {
            // On the way back, a pod of a group is deleted so that the group is recreated with the other revision.
            Some(format!(
                "has recoveryPolicy {recovery}: set it to ServingGroupRecreate, so that the rollout can go back"
            ))
        } else {
            None
        }
    }
}

/// The labels of the pods of a ModelServing.
fn of_serving(object: &DynamicObject) -> Option<BTreeMap<String, String>> {
    Some([(SERVING.to_owned(), object.metadata.name.clone()?)].into())
}

fn roles(object: &DynamicObject) -> impl Iterator<Item = &Json> {
    let roles = object.data.pointer("/spec/template/roles");
    roles.and_then(Json::as_array).into_iter().flatten()
}

/// The entry pods and the worker pods of a role in one group.
fn pods_of(role: &Json) -> [u32; 2] {
    let number = |name: &str, otherwise: u64| {
        let number = role[name].as_u64().unwrap_or(otherwise);
        u32::try_from(number).unwrap_or(u32::MAX)
    };
    let each = number("replicas", 1);
    [each, each.saturating_mul(number("workerReplicas", 0))]
}

/// The number of pods of a group of this revision. Only known for the revision of the template.
fn size(object: &DynamicObject, revision: &str) -> Option<usize> {
    let is_of_template = object.data["status"]["updateRevision"] == revision;
    let pods = roles(object).flat_map(pods_of).map(|count| count as usize);
    is_of_template.then(|| pods.fold(0, usize::saturating_add))
}

/// The groups of one revision.
fn of_revision(object: &DynamicObject, revision: &str, pods: &[Object]) -> Workers {
    let mut groups: BTreeMap<&str, Vec<&Object>> = BTreeMap::new();
    let labels = of_serving(object).unwrap_or_default();
    let is_meant = |pod: &&Object| {
        object::is_selected(pod, &labels)
            && object::label(pod, REVISION) == Some(revision)
            && !object::pod_has_ended(pod)
    };
    for pod in pods.iter().filter(is_meant) {
        let group = object::label(pod, GROUP).unwrap_or_default();
        groups.entry(group).or_default().push(pod);
    }
    // A group ends as a whole.
    let ends = |pod: &&Object| pod.metadata.deletion_timestamp.is_some();
    groups.retain(|_, pods| !pods.iter().any(ends));
    let size = size(object, revision).unwrap_or(0);
    let is_ready = |pods: &&Vec<&Object>| {
        pods.len() >= size && pods.iter().all(|pod| object::pod_is_ready(pod))
    };
    Workers {
        ready: groups.values().filter(is_ready).count() as u32,
        desired: groups.len() as u32,
    }
}

/// Roles may have any name; these are not model servers.
fn is_no_worker(role: &Json) -> bool {
    ["frontend", "planner", "epp", "router"]
        .iter()
        .any(|name| role["name"] == *name)
}

fn count(object: &DynamicObject, groups: Workers, counts: &mut Counts) {
    for role in roles(object) {
        let Some(known) = object::role_of(Some(role["name"].as_str().unwrap_or("worker")), None)
            .or_else(|| (!is_no_worker(role)).then_some(Role::Worker))
        else {
            continue;
        };
        let each = role["replicas"].as_u64().unwrap_or(1);
        let each = u32::try_from(each).unwrap_or(u32::MAX);
        let workers = Workers {
            ready: groups.ready.saturating_mul(each),
            desired: groups.desired.saturating_mul(each),
        };
        object::add(counts, known, workers);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn object(value: Value) -> Object {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn serving() -> Value {
        let roles =
            json!([{"name": "prefill", "replicas": 2}, {"name": "decode", "workerReplicas": 1}]);
        json!({
            "metadata": {"name": "w"},
            "spec": {
                "replicas": 3, "recoveryPolicy": "ServingGroupRecreate", "template": {"roles": roles},
                "rolloutStrategy": {"rollingUpdateConfiguration": {"partition": 3}},
            },
            "status": {"currentRevision": "a", "updateRevision": "b"},
        })
    }

    fn pod(group: &str, revision: &str, is_ready: bool, ends: bool) -> Object {
        let ready = if is_ready { "True" } else { "False" };
        let ends = ends.then_some("2026-01-01T00:00:00Z");
        object(json!({
            "metadata": {
                "name": "any", "deletionTimestamp": ends, "labels": {SERVING: "w", GROUP: group, REVISION: revision},
            },
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
    }

    #[test]
    fn groups_of_a_revision_are_ready_when_all_their_pods_are() {
        let serving = object(serving());
        let group =
            |name: &str, revision: &str, pods: usize| vec![pod(name, revision, true, false); pods];
        let ended = vec![pod("w-3", "b", true, true), pod("w-3", "b", true, false)];
        let unready = vec![pod("w-2", "a", false, false), pod("w-2", "a", true, false)];
        // A group of the template has four pods; the number of an earlier one is not known.
        let pods = [
            group("w-0", "a", 3),
            unready,
            ended,
            group("w-4", "b", 4),
            group("w-5", "b", 3),
        ];
        let pods = pods.concat();
        let of = |revision: &str| {
            let workers = of_revision(&serving, revision, &pods);
            (workers.ready, workers.desired)
        };
        assert_eq!((of("a"), of("b"), of("c")), ((1, 2), (1, 2), (0, 0)));
        assert_eq!(ModelServings.index(&serving, &pods[0]), Some(0));
        let other = pod("ww-1", "a", true, false);
        assert_eq!(ModelServings.index(&serving, &other), None);
    }

    #[test]
    fn an_object_that_ignores_its_partition_or_cannot_roll_back_is_refused() {
        let refused = |change: &dyn Fn(&mut Value)| {
            let mut serving = serving();
            change(&mut serving["spec"]);
            ModelServings.refuses(&object(serving)).unwrap_or_default()
        };
        assert_eq!(refused(&|_| ()), "");
        let by_role = refused(&|spec| spec["rolloutStrategy"]["type"] = json!("RoleRollingUpdate"));
        assert!(by_role.contains("RoleRollingUpdate"), "{by_role}");
        let percent = refused(&|spec| {
            spec["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"] = json!("100%");
        });
        assert!(percent.contains("a number of groups"), "{percent}");
        for recovery in [json!(null), json!("None")] {
            let why = refused(&|spec| spec["recoveryPolicy"] = recovery.clone());
            assert!(why.contains("set it to ServingGroupRecreate"), "{why}");
        }
    }
}
