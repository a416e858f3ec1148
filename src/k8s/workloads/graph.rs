//! DynamoGraphDeployments (nvidia.com/v1alpha1), counted by their status. The field with the ready count depends on the kind of
//! object behind a component: `readyReplicas`, or `availableReplicas` if that is absent. During a rolling update both are sums
//! over the two generations, and `updatedReplicas`, which counts only new, does not mean ready. A revision is therefore counted
//! by the hash on its pods.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value as Json, json};

use super::{
    COMPONENT_NAME, Cache, Counts, GRAPH, NotSynced, Part, PodsOf, Resize, ScaleDownOrder, Scaling,
    ScalingError, WorkerQuery, Workload, object, pods,
};
use crate::dynamo_graph;
use crate::k8s::kinds::api_resource;
use crate::rollout::{Role, Workers};

pub(super) struct Graphs;

/// The type of a frontend component.
const FRONTEND: &str = "frontend";

impl Workload for Graphs {
    fn kind(&self) -> &'static str {
        "DynamoGraphDeployment"
    }

    fn count(&self, cache: &Cache, which: &WorkerQuery) -> Result<Counts, NotSynced> {
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

    fn scaling(&self) -> Option<&dyn Scaling> {
        Some(self)
    }
}

impl Scaling for Graphs {
    fn resource(&self) -> ApiResource {
        resource()
    }

    fn parts(&self, object: &DynamicObject) -> Vec<Part> {
        let status = &object.data["status"];
        let components = components(object).into_iter();
        let parts = components.map(|(name, role, desired)| {
            let component = [&status["components"][&name], &status["services"][&name]];
            let number = |field: &str| {
                let number = component.iter().find_map(|all| all[field].as_u64());
                number.map(|number| u32::try_from(number).unwrap_or(u32::MAX))
            };
            Part {
                role,
                desired,
                ready: number("readyReplicas")
                    .or_else(|| number("availableReplicas"))
                    .unwrap_or(0),
                present: number("replicas").unwrap_or(0),
                name,
            }
        });
        parts.collect()
    }

    fn replica<'a>(&self, object: &'a DynamicObject, part: &Part) -> Vec<(Cow<'a, Json>, u32)> {
        let Some(component) = component(object, &part.name) else {
            return Vec::new();
        };
        let nodes = component["multinode"]["nodeCount"].as_u64().unwrap_or(1);
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        let spec = match &component["podTemplate"]["spec"] {
            Json::Null => Cow::Owned(pod_of_service(component)),
            spec => Cow::Borrowed(spec),
        };
        vec![(spec, nodes)]
    }

    /// A replica on several nodes has several pods, which only the status counts as one.
    fn pods(&self, object: &DynamicObject, part: &Part) -> Option<PodsOf> {
        let component = component(object, &part.name)?;
        if component["multinode"]["nodeCount"].as_u64().unwrap_or(1) > 1 {
            return None;
        }
        let labels = [
            (GRAPH, object.metadata.name.clone()?),
            (COMPONENT_NAME, part.name.clone()),
        ];
        Some(PodsOf {
            labels: labels.map(|(name, value)| (name.to_owned(), value)).into(),
            replica: None,
        })
    }

    fn removes(&self) -> ScaleDownOrder {
        ScaleDownOrder::Last
    }

    /// The operator names an adapter after the graph and the component, and creates it if the graph requests one.
    fn adapter(&self, object: &DynamicObject, part: &Part) -> Option<String> {
        let graph = object.metadata.name.as_deref().unwrap_or_default();
        let component = component(object, &part.name)?;
        has_adapter(component).then(|| format!("{graph}-{}", part.name.to_lowercase()))
    }

    fn resize(
        &self,
        object: &DynamicObject,
        part: &Part,
        size: u32,
    ) -> Result<Resize, ScalingError> {
        let spec = &object.data["spec"];
        if spec["services"].get(&part.name).is_some() {
            let patch = json!({"spec": {"services": {&*part.name: {"replicas": size}}}});
            return Ok(Resize::Patch(patch));
        }
        // A merge patch replaces a list as a whole.
        let mut components = spec["components"].clone();
        let mut list = components.as_array_mut().into_iter().flatten();
        let component = list.find(|component| component["name"] == *part.name);
        let component = component.ok_or_else(|| {
            let graph = object.metadata.name.clone().unwrap_or_default();
            ScalingError::NoComponent(self.kind().to_owned(), graph, part.name.clone())
        })?;
        component["replicas"] = json!(size);
        Ok(Resize::Patch(json!({"spec": {"components": components}})))
    }
}

/// A merge patch that sets the frontends of a graph to zero.
#[must_use]
pub fn frontends_to_zero(graph: &DynamicObject) -> Json {
    let spec = &graph.data["spec"];
    // A merge patch replaces a list as a whole.
    if let Some(mut components) = spec["components"].as_array().cloned() {
        for component in &mut components {
            if component["type"] == FRONTEND {
                component["replicas"] = json!(0);
            }
        }
        return json!({"spec": {"components": components}});
    }
    let services = frontends(graph).map(|(name, _)| (name.to_owned(), json!({"replicas": 0})));
    json!({"spec": {"services": services.collect::<serde_json::Map<_, _>>()}})
}

/// Whether a graph requests frontends.
#[must_use]
pub fn wants_frontends(graph: &DynamicObject) -> bool {
    let mut frontends = frontends(graph);
    frontends.any(|(_, component)| component["replicas"] != 0)
}

/// Why [`frontends_to_zero`] would not be sufficient, as text for users.
#[must_use]
pub fn frontends_stay(graph: &DynamicObject) -> Option<String> {
    let mut frontends = frontends(graph).peekable();
    if frontends.peek().is_none() {
        return Some(format!("it has no component of type {FRONTEND}"));
    }
    let (name, _) = frontends.find(|(_, component)| has_adapter(component))?;
    Some(format!(
        "its component {name} has a scalingAdapter, which sets the replicas"
    ))
}

/// The components of frontends, with their names.
fn frontends(graph: &DynamicObject) -> impl Iterator<Item = (&str, &Json)> {
    let components = dynamo_graph::components(&graph.data["spec"]);
    let frontends = components.filter(|one| one.kind == Some(FRONTEND) && !one.name.is_empty());
    frontends.map(|component| (component.name, component.spec))
}

/// Whether a scaling adapter sets the replicas of a component: by its presence (v1beta1), or by `enabled` (v1alpha1).
fn has_adapter(component: &Json) -> bool {
    let adapter = &component["scalingAdapter"];
    match component["componentType"].is_null() {
        true => adapter.is_object(),
        false => adapter["enabled"] == true,
    }
}

/// The component of this name.
fn component<'a>(object: &'a DynamicObject, name: &str) -> Option<&'a Json> {
    let mut components = dynamo_graph::components(&object.data["spec"]);
    let found = components.find(|component| component.name == name);
    found.map(|component| component.spec)
}

/// The resource of graphs.
#[must_use]
pub fn resource() -> ApiResource {
    let plural = "dynamographdeployments";
    api_resource("nvidia.com", "v1alpha1", "DynamoGraphDeployment", plural)
}

/// The pod of a service (v1alpha1): the component's own fields for its main container, and the rest of the pod.
fn pod_of_service(service: &Json) -> Json {
    let mut pod = service["extraPodSpec"].clone();
    let resources = |kind: &str| {
        let given = &service["resources"][kind];
        let gpu = given["gpuType"].as_str().unwrap_or("nvidia.com/gpu");
        let named = [("cpu", "cpu"), ("memory", "memory"), ("gpu", gpu)];
        let named = named.map(|(field, name)| (name.to_owned(), given[field].clone()));
        let custom = given["custom"].as_object().into_iter().flatten();
        let custom = custom.map(|(name, amount)| (name.clone(), amount.clone()));
        // The main container of the rest takes precedence.
        let main = pod["mainContainer"]["resources"][kind].as_object();
        let main = main.into_iter().flatten();
        let main = main.map(|(name, amount)| (name.clone(), amount.clone()));
        let all = named.into_iter().chain(custom).chain(main);
        all.filter(|(_, amount)| !amount.is_null())
            .collect::<serde_json::Map<_, _>>()
    };
    let main =
        json!({"resources": {"requests": resources("requests"), "limits": resources("limits")}});
    let mut containers = pod["containers"].as_array().cloned().unwrap_or_default();
    containers.push(main);
    pod["containers"] = containers.into();
    pod
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

/// Name, role and desired replicas of each worker component.
fn components(graph: &DynamicObject) -> Vec<(String, Role, u32)> {
    let is_going = graph.metadata.deletion_timestamp.is_some();
    let components = dynamo_graph::components(&graph.data["spec"]);
    let named = components.filter(|component| !component.name.is_empty());
    let workers = named.filter_map(|component| {
        // A component without a type is not known to be a worker.
        let role = object::role_of(Some(component.kind?), component.sub_kind)?;
        let replicas = component.spec["replicas"].as_u64().unwrap_or(1);
        let replicas = u32::try_from(replicas).unwrap_or(u32::MAX);
        let desired = if is_going { 0 } else { replicas };
        Some((component.name.to_owned(), role, desired))
    });
    workers.collect()
}
