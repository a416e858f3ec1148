//! Scales the workers of one object. The file of each kind defines where its sizes are and how to write them.
//!
//! Contains no rollout policy.

mod replicas;
mod scaled;

use std::borrow::Cow;
use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

pub(super) use self::replicas::ready_since;
pub use self::scaled::Scaled;
pub(super) use self::scaled::is_observed;
use self::scaled::scaled;
use super::object::{self, number};
use super::{Cache, InPlace, NotSynced, Workload, by_kind, pods};
use crate::k8s::cache::Object;
use crate::k8s::kinds::api_resource;
use crate::rollout::Role;

/// The kind of the adapter that sets the size of a graph's component instead of the graph.
const ADAPTER: &str = "DynamoGraphDeploymentScalingAdapter";

/// A kind of object whose workers can be scaled.
pub trait Scaling: Sync {
    /// The resource of the kind.
    fn resource(&self) -> ApiResource;

    /// The parts of `object` that have their own size. Most kinds have one.
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
    fn replica<'a>(&self, object: &'a DynamicObject, _part: &Part) -> Vec<(Cow<'a, Json>, u32)> {
        once(object, "/spec/template/spec")
    }

    /// How the pods of `part` are found. `None` if only the status counts them. By default, with the selector, as in apps/v1.
    fn pods(&self, object: &DynamicObject, _part: &Part) -> Option<PodsOf> {
        pods_by_selector(object)
    }

    /// Which replicas are removed first.
    fn removes(&self) -> ScaleDownOrder {
        ScaleDownOrder::Last
    }

    /// How one object holds the workers of two generations, if the kind supports it.
    fn in_place(&self) -> Option<&dyn InPlace> {
        None
    }

    /// The name of the scaling adapter that should set the size of `part` instead of its owner, if any.
    fn adapter(&self, _object: &DynamicObject, _part: &Part) -> Option<String> {
        None
    }

    /// The change that gives `part` another size, unless a scaling adapter sets it.
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

/// A part of an object that has its own size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub role: Role,
    /// Its name in the object, if there are several.
    pub name: String,
    /// Desired replicas.
    pub desired: u32,
    /// Ready replicas, according to the status.
    pub ready: u32,
    /// Existing replicas, according to the status.
    pub present: u32,
}

/// How the pods of a part are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodsOf {
    pub labels: BTreeMap<String, String>,
    /// The label whose value the pods of one replica have in common, if a replica has several pods.
    pub replica: Option<&'static str>,
}

/// Which replicas are removed first when a part shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleDownOrder {
    /// Those that are not ready.
    Unready,
    /// Those with the highest ordinals, or unknown ones.
    Last,
}

/// The change that gives a part another size.
#[derive(Clone, Debug, PartialEq)]
pub enum Resize {
    /// By the subresource `scale`.
    Scale(u32),
    /// By a merge patch.
    Patch(Json),
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

/// The implementation that scales objects of a kind.
#[must_use]
pub fn of_kind(kind: &str) -> Option<&'static dyn Scaling> {
    by_kind(kind).and_then(Workload::scaling)
}

fn adapters() -> ApiResource {
    let plural = "dynamographdeploymentscalingadapters";
    api_resource("nvidia.com", "v1alpha1", ADAPTER, plural)
}

/// The roles of an object.
///
/// # Errors
/// If it does not exist or is not listed yet, or cannot be scaled.
pub fn roles(
    cache: &Cache,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Result<BTreeMap<Role, Scaled>, ScalingError> {
    let (scaling, object) = find(cache, namespace, kind, name)?;
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

/// The object of this name, and the implementation for its kind.
pub(super) fn find(
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

/// The pods with the selector of a Deployment or StatefulSet.
pub(super) fn pods_by_selector(object: &DynamicObject) -> Option<PodsOf> {
    Some(PodsOf {
        labels: object::labels_at(object, "/spec/selector/matchLabels")?,
        replica: None,
    })
}

/// The pod spec at `pointer`, once.
pub(super) fn once<'a>(object: &'a DynamicObject, pointer: &str) -> Vec<(Cow<'a, Json>, u32)> {
    let spec = object.data.pointer(pointer).into_iter();
    spec.map(|spec| (Cow::Borrowed(spec), 1)).collect()
}

#[cfg(test)]
mod tests;
