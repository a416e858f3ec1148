//! Kthena's ModelServings (workload.serving.volcano.sh/v1alpha1). A replica is a group with every role, and the role says how
//! many of it the group has. `availableReplicas` counts whole groups that are ready; `currentReplicas` and `updatedReplicas`
//! count groups whether ready or not.

use std::borrow::Cow;

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::{Cache, Counts, NotSynced, Part, PodsOf, Scaling, Which, Workload, object};
use crate::rollout::{Role, Workers};

pub(super) struct ModelServings;

impl Workload for ModelServings {
    fn kind(&self) -> &'static str {
        "ModelServing"
    }

    fn count(&self, cache: &Cache, which: &Which) -> Result<Counts, NotSynced> {
        let mut counts = Counts::new();
        for object in object::meant_whole(cache, &resource(), which)? {
            count(&object, &mut counts);
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
        resource()
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
        let roles = object.data.pointer("/spec/template/roles");
        let roles = roles.and_then(Json::as_array).into_iter().flatten();
        let pods = roles.flat_map(|role| {
            let number = |name: &str, otherwise: u64| {
                let number = role[name].as_u64().unwrap_or(otherwise);
                u32::try_from(number).unwrap_or(u32::MAX)
            };
            let each = number("replicas", 1);
            let workers = each.saturating_mul(number("workerReplicas", 0));
            let templates = [("entryTemplate", each), ("workerTemplate", workers)];
            templates.map(|(template, count)| (Cow::Borrowed(&role[template]["spec"]), count))
        });
        pods.filter(|(spec, count)| spec.is_object() && *count > 0)
            .collect()
    }

    fn pods(&self, _: &DynamicObject, _: &Part) -> Option<PodsOf> {
        None
    }
}

pub(super) fn resource() -> ApiResource {
    let group = "workload.serving.volcano.sh";
    super::resource(group, "v1alpha1", "ModelServing", "modelservings")
}

/// Roles may have any name; these are not model servers.
fn is_no_worker(role: &Json) -> bool {
    ["frontend", "planner", "epp", "router"]
        .iter()
        .any(|name| role["name"] == *name)
}

fn count(object: &DynamicObject, counts: &mut Counts) {
    let groups = object::replicas(object, "/status/availableReplicas");
    let roles = object.data.pointer("/spec/template/roles");
    let roles = roles.and_then(Json::as_array).into_iter().flatten();
    for role in roles {
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
