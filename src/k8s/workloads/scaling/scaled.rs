//! The state of one role of an object: its size, its replicas, and what sets its size.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value as Json, json};

use super::super::GenerationInPlace;
use super::super::object::number;
use super::super::resources;
use super::replicas::Replicas;
use super::{ADAPTER, Part, Resize, ScaleDownOrder, Scaling, ScalingError, adapters, of_kind};
use crate::k8s::cache::Object;

/// The grace period of a pod that does not specify one.
const GRACE: Duration = Duration::from_secs(30);

/// The extended resource for GPUs.
const GPU: &str = "nvidia.com/gpu";

/// One role of an object: what a rollout scales.
#[derive(Clone, Debug)]
pub struct Scaled {
    pub object: Object,
    /// The scaling adapter whose `spec.replicas` is the size, instead of the one in `object`.
    pub adapter: Option<Object>,
    pub part: Part,
    /// Whether the status reflects this `spec`.
    pub observed: bool,
    /// Existing replicas that are not terminating.
    pub present: u32,
    /// Terminating replicas.
    pub terminating: u32,
    /// Ready replicas.
    pub ready: u32,
    /// Since when each ready replica has been ready, if its pods are known.
    pub ready_since: Option<Vec<Timestamp>>,
    /// The GPUs of one replica.
    pub gpus: u32,
    /// What one replica consumes from each entry of a quota, in thousandths.
    pub resources: BTreeMap<String, u64>,
    /// How long a replica may take to end.
    pub grace: Option<Duration>,
    pub removes: ScaleDownOrder,
    /// The generation, if the object has both.
    pub half: Option<GenerationInPlace>,
}

impl Scaled {
    /// A part of an object, based only on its status and template.
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
            resources: of_replica(&replica),
            grace: replica.iter().map(|(spec, _)| grace(spec)).min(),
            removes: scaling.removes(),
            half: None,
            part,
        }
    }

    /// The pods that are not terminating, one per replica, if a replica has one pod and its kind defines how to find it.
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
    pub(in crate::k8s::workloads) fn half(
        scaling: &dyn Scaling,
        object: &Object,
        (part, half): (Part, GenerationInPlace),
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

    /// The write that gives this role another size: the object and the change.
    ///
    /// # Errors
    /// If the object cannot be scaled, or no longer has the component.
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

    /// The object whose spec contains the size.
    #[must_use]
    pub fn sized(&self) -> &Object {
        self.adapter.as_ref().unwrap_or(&self.object)
    }

    /// The kind of the object whose spec contains the size; `kind` is the owner's kind.
    #[must_use]
    pub const fn sized_kind<'a>(&self, kind: &'a str) -> &'a str {
        match self.adapter {
            Some(_) => ADAPTER,
            None => kind,
        }
    }

    /// The `resourceVersion` of the object whose spec contains the size.
    #[must_use]
    pub fn version(&self) -> &str {
        self.sized()
            .metadata
            .resource_version
            .as_deref()
            .unwrap_or_default()
    }

    /// Whether `manager` was the last to set the size. The API server does not record a time for changes by the scale
    /// subresource. After that has set a size to 0, the API server attributes neither this size nor later ones set by it.
    #[must_use]
    pub fn is_set_by(&self, manager: &str) -> bool {
        self.has_set(|known| known == Some(manager))
    }

    fn has_set(&self, is_meant: impl Fn(Option<&str>) -> bool) -> bool {
        let entries = self.sized().metadata.managed_fields.iter().flatten();
        let mut meant = entries.filter(|entry| is_meant(entry.manager.as_deref()));
        meant.any(|entry| {
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

pub(super) fn scaled(
    scaling: &dyn Scaling,
    (object, adapter): (&Object, Option<Object>),
    mut part: Part,
    pods: &[Object],
) -> Scaled {
    let adapted = adapter.as_ref();
    let adapted = adapted.and_then(|adapter| number(adapter, "/spec/replicas"));
    let in_object = part.desired;
    part.desired = adapted.unwrap_or(in_object);
    let pods_of = scaling.pods(object, &part);
    let of_part = pods_of.as_ref().map(|of| Replicas::of(of, pods));
    let graces = pods_of.iter().flat_map(|of| of.among(pods));
    let shortest = graces.map(|pod| grace(&pod.data["spec"])).min();
    let (present, terminating, ready) = match &of_part {
        // Either of them may be the later one.
        Some(found) => (
            found
                .present
                .max(part.present.saturating_sub(found.terminating)),
            found.terminating,
            (found.ready_since.len() as u32).min(part.ready),
        ),
        None => (part.present, 0, part.ready),
    };
    let observed = part.desired == in_object && is_observed(object);
    let specified = Scaled::of(scaling, object, part);
    Scaled {
        observed,
        adapter,
        present,
        terminating,
        ready,
        ready_since: of_part.map(|found| found.ready_since),
        // Not every kind specifies its pods.
        grace: specified.grace.or(shortest),
        ..specified
    }
}

/// Whether the status reflects this `spec`.
pub(in crate::k8s::workloads) fn is_observed(object: &DynamicObject) -> bool {
    let seen = object.data.pointer("/status/observedGeneration");
    match seen.and_then(Json::as_i64) {
        Some(seen) => Some(seen) >= object.metadata.generation,
        // Some kinds do not report it, but every kind has a status once its controller has seen the object.
        None => !object.data["status"].is_null(),
    }
}

/// What the pods of a replica consume from each entry of a quota.
fn of_replica(replica: &[(Cow<'_, Json>, u32)]) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (spec, count) in replica {
        for (entry, amount) in resources::of_pod(spec) {
            let sum: &mut u64 = all.entry(entry).or_default();
            *sum = sum.saturating_add(amount.saturating_mul(u64::from(*count)));
        }
    }
    all
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

/// Whether these fields include the size of the part with this name.
fn owns(fields: &Json, part: &str) -> bool {
    let spec = &fields["f:spec"];
    if part.is_empty() {
        return !spec["f:replicas"].is_null();
    }
    let service = &spec["f:services"][format!("f:{part}")];
    let component = &spec["f:components"][format!("k:{}", json!({"name": part}))];
    !service["f:replicas"].is_null() || !component["f:replicas"].is_null()
}
