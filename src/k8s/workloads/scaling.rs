//! Scales the workers of one object. Each kind says in its own file where its sizes are and how they are written.
//!
//! Contains no rollout policy.

mod replicas;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value as Json, json};

use self::replicas::Replicas;
pub(super) use self::replicas::ready_since;
use super::object::{self, number};
use super::{Cache, Half, InPlace, NotSynced, Workload, by_kind, pods};
use crate::k8s::cache::Object;
use crate::rollout::Role;

/// How long a pod may take to end if it does not say.
const GRACE: Duration = Duration::from_secs(30);
/// The kind of what sets the size of a component of a graph in the place of the graph.
const ADAPTER: &str = "DynamoGraphDeploymentScalingAdapter";
/// The extended resource of GPUs.
const GPU: &str = "nvidia.com/gpu";

/// A kind of object whose workers can be scaled.
pub trait Scaling: Sync {
    /// The resource of the kind.
    fn resource(&self) -> ApiResource;

    /// The parts of `object` that have a size of their own. Most kinds have one.
    fn parts(&self, object: &DynamicObject) -> Vec<Part> {
        vec![Part {
            role: object::named_role(object),
            name: String::new(),
            desired: number(object, "/spec/replicas").unwrap_or(1),
            ready: number(object, "/status/readyReplicas").unwrap_or(0),
            present: number(object, "/status/replicas").unwrap_or(0),
        }]
    }

    /// The pods of one replica of `part`: their specs and how many of each. By default, one pod of a template, as in apps/v1.
    fn replica<'a>(&self, object: &'a DynamicObject, _part: &Part) -> Vec<(&'a Json, u32)> {
        once(object, "/spec/template/spec")
    }

    /// How the pods of `part` are found. `None` if only the status counts them. By default, with the selector, as in apps/v1.
    fn pods(&self, object: &DynamicObject, _part: &Part) -> Option<PodsOf> {
        pods_by_selector(object)
    }

    /// Which replicas go first.
    fn removes(&self) -> RemovesFirst {
        RemovesFirst::Last
    }

    /// How one object has the workers of two generations, if it can.
    fn in_place(&self) -> Option<&dyn InPlace> {
        None
    }

    /// The name of the scaling adapter that sets the size of `part` in the place of its owner, if there is to be one.
    fn adapter(&self, _object: &DynamicObject, _part: &Part) -> Option<String> {
        None
    }

    /// How `part` gets another size, unless a scaling adapter sets it.
    ///
    /// # Errors
    /// If the object does not have the part.
    fn resize(
        &self,
        _object: &DynamicObject,
        _part: &Part,
        size: u32,
    ) -> Result<Resize, ScalingError> {
        Ok(Resize::Scale(size))
    }
}

/// A part of an object that has a size of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub role: Role,
    /// Its name in the object, if there are several.
    pub name: String,
    /// Replicas that are asked for.
    pub desired: u32,
    /// Ready replicas, by the status.
    pub ready: u32,
    /// Replicas that exist, by the status.
    pub present: u32,
}

/// How the pods of a part are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodsOf {
    pub labels: BTreeMap<String, String>,
    /// The label whose value the pods of one replica have in common, if a replica has several pods.
    pub replica: Option<&'static str>,
}

/// Which replicas go first when a part shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovesFirst {
    /// Those that are not ready.
    Unready,
    /// Those with the highest ordinals, or nobody knows.
    Last,
}

/// How a part gets another size.
#[derive(Clone, Debug, PartialEq)]
pub enum Resize {
    /// By the subresource `scale`.
    Scale(u32),
    /// By a merge patch.
    Patch(Json),
}

/// One role of an object: what a rollout scales.
#[derive(Clone, Debug)]
pub struct Scaled {
    pub object: Object,
    /// The scaling adapter whose `spec.replicas` is the size, in the place of that in `object`.
    pub adapter: Option<Object>,
    pub part: Part,
    /// Whether the status is of this `spec`.
    pub observed: bool,
    /// Replicas that exist and do not terminate.
    pub present: u32,
    /// Replicas that terminate.
    pub terminating: u32,
    /// Ready replicas.
    pub ready: u32,
    /// Since when each ready replica has been ready, if its pods are known.
    pub ready_since: Option<Vec<Timestamp>>,
    /// The GPUs of one replica.
    pub gpus: u32,
    /// How long a replica may take to end.
    pub grace: Option<Duration>,
    pub removes: RemovesFirst,
    /// Which generation it is of an object that has both.
    pub half: Option<Half>,
}

/// Why an object cannot be scaled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScalingError {
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    #[error("there is no {0} {1}")]
    Missing(String, String),
    #[error("a {0} cannot be scaled")]
    Kind(String),
    #[error("one {0} cannot have the workers of two generations")]
    OneGeneration(String),
    #[error("{0}")]
    InPlace(String),
    #[error("{0} {1} has no component {2}")]
    NoComponent(String, String, String),
    #[error("{0} {1} has several components of {2} workers: name one object for each role")]
    Ambiguous(String, String, Role),
}

/// What scales objects of a kind.
#[must_use]
pub fn of_kind(kind: &str) -> Option<&'static dyn Scaling> {
    by_kind(kind).and_then(Workload::scaling)
}

fn adapters() -> ApiResource {
    let plural = "dynamographdeploymentscalingadapters";
    super::resource("nvidia.com", "v1alpha1", ADAPTER, plural)
}

/// The roles of an object.
///
/// # Errors
/// If it is not there or not listed yet, or cannot be scaled.
pub fn roles(
    cache: &Cache,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Result<BTreeMap<Role, Scaled>, ScalingError> {
    let (scaling, object) = found(cache, namespace, kind, name)?;
    let pods = cache.of(&pods::resource(), namespace)?;
    let mut roles = BTreeMap::new();
    for part in scaling.parts(&object) {
        let role = part.role;
        let adapter = adapter(cache, namespace, scaling.adapter(&object, &part))?;
        let scaled = scaled(scaling, (&object, adapter), part, &pods);
        if roles.insert(role, scaled).is_some() {
            let (kind, name) = (kind.to_owned(), name.to_owned());
            return Err(ScalingError::Ambiguous(kind, name, role));
        }
    }
    Ok(roles)
}

/// The object of this name, and what scales its kind.
pub(super) fn found(
    cache: &Cache,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Result<(&'static dyn Scaling, Object), ScalingError> {
    let scaling = of_kind(kind).ok_or_else(|| ScalingError::Kind(kind.to_owned()))?;
    let found = cache.one(&scaling.resource(), namespace, name)?;
    let is_there = |object: &Object| object.metadata.deletion_timestamp.is_none();
    let object = found
        .filter(is_there)
        .ok_or_else(|| ScalingError::Missing(kind.to_owned(), name.to_owned()))?;
    Ok((scaling, object))
}

fn adapter(
    cache: &Cache,
    namespace: &str,
    name: Option<String>,
) -> Result<Option<Object>, ScalingError> {
    let Some(name) = name else {
        return Ok(None);
    };
    let found = cache.one(&adapters(), namespace, &name)?;
    let missing = || ScalingError::Missing(ADAPTER.to_owned(), name);
    found.map(Some).ok_or_else(missing)
}

fn scaled(
    scaling: &dyn Scaling,
    (object, adapter): (&Object, Option<Object>),
    mut part: Part,
    pods: &[Object],
) -> Scaled {
    let adapted = adapter.as_ref();
    let adapted = adapted.and_then(|adapter| number(adapter, "/spec/replicas"));
    let in_object = part.desired;
    part.desired = adapted.unwrap_or(in_object);
    let of_part = scaling
        .pods(object, &part)
        .map(|of| Replicas::of(&of, pods));
    let (present, terminating, ready) = match &of_part {
        // Either may be the one that has come later.
        Some(found) => (
            found
                .present
                .max(part.present.saturating_sub(found.terminating)),
            found.terminating,
            (found.ready_since.len() as u32).min(part.ready),
        ),
        None => (part.present, 0, part.ready),
    };
    Scaled {
        observed: part.desired == in_object && is_observed(object),
        adapter,
        present,
        terminating,
        ready,
        ready_since: of_part.map(|found| found.ready_since),
        ..Scaled::of(scaling, object, part)
    }
}

/// Whether the status is of this `spec`.
pub(super) fn is_observed(object: &DynamicObject) -> bool {
    let seen = object.data.pointer("/status/observedGeneration");
    match seen.and_then(Json::as_i64) {
        Some(seen) => Some(seen) >= object.metadata.generation,
        // Some kinds do not say it, but every kind has a status once its controller has seen the object.
        None => !object.data["status"].is_null(),
    }
}

/// The GPUs of a pod.
fn gpus(spec: &Json) -> u32 {
    let of = |container: &Json| {
        let resources = &container["resources"];
        let given = [&resources["limits"][GPU], &resources["requests"][GPU]];
        let number = given.into_iter().find_map(|given| {
            let text = given.as_str().and_then(|text| text.parse().ok());
            given.as_u64().or(text)
        });
        u32::try_from(number.unwrap_or(0)).unwrap_or(u32::MAX)
    };
    let containers = spec["containers"].as_array().into_iter().flatten();
    containers.map(of).fold(0, u32::saturating_add)
}

fn grace(spec: &Json) -> Duration {
    let seconds = spec["terminationGracePeriodSeconds"].as_u64();
    seconds.map_or(GRACE, Duration::from_secs)
}

/// The pods with the selector of a Deployment or StatefulSet.
pub(super) fn pods_by_selector(object: &DynamicObject) -> Option<PodsOf> {
    Some(PodsOf {
        labels: object::labels_at(object, "/spec/selector/matchLabels")?,
        replica: None,
    })
}

/// The pod spec at `pointer`, once.
pub(super) fn once<'a>(object: &'a DynamicObject, pointer: &str) -> Vec<(&'a Json, u32)> {
    let spec = object.data.pointer(pointer).into_iter();
    spec.map(|spec| (spec, 1)).collect()
}

impl Scaled {
    /// A part of an object, by its status and template alone.
    fn of(scaling: &dyn Scaling, object: &Object, part: Part) -> Self {
        let replica = scaling.replica(object, &part);
        Self {
            object: Object::clone(object),
            observed: is_observed(object),
            adapter: None,
            present: part.present,
            terminating: 0,
            ready: part.ready,
            ready_since: None,
            gpus: replica.iter().fold(0, |sum, (spec, count)| {
                gpus(spec).saturating_mul(*count).saturating_add(sum)
            }),
            grace: replica.iter().map(|(spec, _)| grace(spec)).min(),
            removes: scaling.removes(),
            half: None,
            part,
        }
    }

    /// The pods that do not terminate, one for each replica, if a replica has one pod and its kind says how it is found.
    #[must_use]
    pub fn pods(&self, kind: &str, all: &[Object]) -> Vec<Object> {
        let found = of_kind(kind).and_then(|scaling| scaling.pods(&self.object, &self.part));
        let Some(of) = found.filter(|of| of.replica.is_none()) else {
            return Vec::new();
        };
        let stays = |pod: &&Object| pod.metadata.deletion_timestamp.is_none();
        of.among(all).filter(stays).cloned().collect()
    }

    /// One generation of an object that has both.
    pub(super) fn half(
        scaling: &dyn Scaling,
        object: &Object,
        (part, half): (Part, Half),
        terminating: u32,
        ready_since: Vec<Timestamp>,
    ) -> Self {
        Self {
            terminating,
            ready_since: Some(ready_since),
            half: Some(half),
            ..Self::of(scaling, object, part)
        }
    }

    /// How this role gets another size: which object is written, and how.
    ///
    /// # Errors
    /// If the object cannot be scaled, or does not have the component any more.
    pub fn resize(&self, kind: &str, size: u32) -> Result<(ApiResource, Resize), ScalingError> {
        if self.adapter.is_some() {
            return Ok((adapters(), Resize::Scale(size)));
        }
        let scaling = of_kind(kind).ok_or_else(|| ScalingError::Kind(kind.to_owned()))?;
        if let Some(half) = &self.half {
            return Ok((scaling.resource(), half.resize(size)));
        }
        let resize = scaling.resize(&self.object, &self.part, size)?;
        Ok((scaling.resource(), resize))
    }

    /// The object whose spec has the size.
    #[must_use]
    pub fn sized(&self) -> &Object {
        self.adapter.as_ref().unwrap_or(&self.object)
    }

    /// The kind of the object whose spec has the size, where the kind of the owner is `kind`.
    #[must_use]
    pub const fn sized_kind<'a>(&self, kind: &'a str) -> &'a str {
        match self.adapter {
            Some(_) => ADAPTER,
            None => kind,
        }
    }

    /// The `resourceVersion` of the object whose spec has the size.
    #[must_use]
    pub fn version(&self) -> &str {
        self.sized()
            .metadata
            .resource_version
            .as_deref()
            .unwrap_or_default()
    }

    /// Whether `manager` was the last to set the size. The API server keeps no time for what was set by the scale subresource.
    #[must_use]
    pub fn is_set_by(&self, manager: &str) -> bool {
        let entries = self.sized().metadata.managed_fields.iter().flatten();
        let mut ours = entries.filter(|entry| entry.manager.as_deref() == Some(manager));
        ours.any(|entry| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            let part = match self.adapter {
                Some(_) => "",
                None => &*self.part.name,
            };
            fields.is_some_and(|fields| match &self.half {
                Some(half) => half.is_in(fields),
                None => owns(fields, part),
            })
        })
    }
}

/// Whether these fields have the size of the part of this name among them.
fn owns(fields: &Json, part: &str) -> bool {
    let spec = &fields["f:spec"];
    if part.is_empty() {
        return !spec["f:replicas"].is_null();
    }
    let service = &spec["f:services"][format!("f:{part}")];
    let component = &spec["f:components"][format!("k:{}", json!({"name": part}))];
    !service["f:replicas"].is_null() || !component["f:replicas"].is_null()
}

#[cfg(test)]
mod tests;
