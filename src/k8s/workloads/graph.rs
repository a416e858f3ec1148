//! DynamoGraphDeployments (nvidia.com/v1alpha1), counted by their status. The field with the ready count depends on the kind
//! of object behind a component: `readyReplicas`, or `availableReplicas` if that is absent. During a rolling update both are
//! sums over the two generations, and `updatedReplicas`, which is of new alone, does not mean ready. A revision is therefore
//! counted by the hash on its pods.

use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::{Cache, Counts, NotSynced, Which, Workload, object, pods};
use crate::rollout::{Role, Workers};

pub(super) struct Graphs;

impl Workload for Graphs {
    fn kind(&self) -> &'static str {
        "DynamoGraphDeployment"
    }

    fn count(&self, cache: &Cache, which: &Which) -> Result<Counts, NotSynced> {
        if which.revision.is_some() {
            return pods::Pods.count(cache, which);
        }
        let graph = cache.one(&resource(), &which.namespace, &which.name)?;
        let Some(graph) = graph else {
            return Ok(Counts::new());
        };
        let status = &graph.data["status"];
        let mut counts = Counts::new();
        for (name, role, desired) in components(&graph) {
            let component = [&status["components"][&name], &status["services"][&name]];
            let ready = component.iter().find_map(|component| {
                let ready = component["readyReplicas"].as_u64();
                ready.or_else(|| component["availableReplicas"].as_u64())
            });
            let ready = u32::try_from(ready.unwrap_or(0)).unwrap_or(u32::MAX);
            object::add(&mut counts, role, Workers { ready, desired });
        }
        Ok(counts)
    }
}

pub(super) fn resource() -> ApiResource {
    let plural = "dynamographdeployments";
    super::resource("nvidia.com", "v1alpha1", "DynamoGraphDeployment", plural)
}

/// The desired number of workers of each role.
pub(super) fn wanted(graph: &DynamicObject) -> BTreeMap<Role, u32> {
    let mut wanted: BTreeMap<Role, u32> = BTreeMap::new();
    for (_, role, desired) in components(graph) {
        let sum = wanted.entry(role).or_default();
        *sum = sum.saturating_add(desired);
    }
    wanted
}

/// Name, role and desired replicas of each worker component, from `services` (v1alpha1) or `components` (v1beta1).
fn components(graph: &DynamicObject) -> Vec<(String, Role, u32)> {
    let is_going = graph.metadata.deletion_timestamp.is_some();
    let spec = &graph.data["spec"];
    let services = spec["services"].as_object().into_iter().flatten();
    let services = services.map(|(name, service)| {
        let sub = service["subComponentType"].as_str();
        (
            name.clone(),
            service["componentType"].as_str(),
            sub,
            service,
        )
    });
    let components = spec["components"].as_array().into_iter().flatten();
    let components = components.map(|component| {
        let name = component["name"].as_str().unwrap_or_default().to_owned();
        (name, component["type"].as_str(), None, component)
    });
    let of = |(name, kind, sub, component): (String, Option<&str>, Option<&str>, &Json)| {
        // A component without a type is not known to be a worker.
        let role = object::role_of(Some(kind?), sub)?;
        let replicas = component["replicas"].as_u64().unwrap_or(1);
        let replicas = u32::try_from(replicas).unwrap_or(u32::MAX);
        Some((name, role, if is_going { 0 } else { replicas }))
    };
    services.chain(components).filter_map(of).collect()
}
