//! The workers of both generations in one object: the replicas below its `partition` have the old revision, the others the new
//! one.
//!
//! The file of each kind defines where the partition is, and how to find the revision of a pod. Contains no rollout policy.

use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value as Json, json};

use super::object::{self, label, number, pod_has_ended};
use super::scaling::{self, Part, Resize, Scaled, Scaling, ScalingError};
use super::{Cache, NotSynced, pods};
use crate::k8s::cache::Object;
use crate::rollout::PerGeneration;
use crate::split::Generation;

/// A kind of object that can have the workers of two generations.
pub trait InPlace: Sync {
    /// The fields that lead to the partition.
    fn partition(&self) -> &'static [&'static str];

    /// The pod label that contains the revision.
    fn revision_label(&self) -> &'static str;

    /// The revisions of the replicas below the partition and of the others; equal if there is only one. `None` if they are
    /// unknown. `accepted` are the revisions of the rollout, if it has begun.
    ///
    /// # Errors
    /// When an object that determines them has not been listed yet.
    fn revisions(
        &self,
        cache: &Cache,
        object: &DynamicObject,
        pods: &[Object],
        accepted: Option<&PerGeneration<String>>,
    ) -> Result<Option<PerGeneration<String>>, NotSynced>;

    /// The index of the replica that a pod belongs to, from 0.
    fn index(&self, object: &DynamicObject, pod: &DynamicObject) -> Option<u32>;

    /// The number of pods of the replica that `pod` belongs to, if known.
    fn size(&self, _object: &DynamicObject, _pod: &DynamicObject) -> Option<usize> {
        Some(1)
    }

    /// Whether deleting this pod recreates its whole replica.
    fn leads(&self, _pod: &DynamicObject) -> bool {
        true
    }

    /// Why the object does not respect its partition, as text for users.
    fn refuses(&self, object: &DynamicObject) -> Option<String>;
}

/// One generation of an object that has both.
#[derive(Clone, Debug)]
pub struct GenerationInPlace {
    generation: Generation,
    /// The replicas of both generations.
    whole: u32,
    partition: &'static [&'static str],
    /// Its revision.
    pub revision: String,
    /// The pods that should belong to the other generation. The object does not replace them by itself, because it created
    /// them before the partition was raised.
    pub leaving: Vec<OutdatedPod>,
    /// Why this generation gets no more workers, as text for users.
    pub lost: Option<String>,
}

/// A pod that should belong to the other generation.
#[derive(Clone, Debug)]
pub struct OutdatedPod {
    pub pod: Object,
    /// Whether its replica is ready.
    pub is_ready: bool,
}

/// Both generations of one object, according to the accepted revisions, or else to its current ones.
///
/// # Errors
/// When the object does not exist or has not been listed yet, or when no revisions are accepted and it cannot be updated by
/// partition.
pub fn halves(
    cache: &Cache,
    namespace: &str,
    (kind, name): (&str, &str),
    accepted: Option<PerGeneration<String>>,
) -> Result<PerGeneration<Scaled>, ScalingError> {
    let (scaling, object) = scaling::find(cache, namespace, kind, name)?;
    let in_place = scaling.in_place();
    let in_place = in_place.ok_or_else(|| ScalingError::OneGeneration(kind.to_owned()))?;
    let pods = cache.of(&pods::resource(), namespace)?;
    let made = in_place.revisions(cache, &object, &pods, accepted.as_ref())?;
    let whole = ObjectInPlace::of((scaling, in_place), (&object, kind), made, accepted)?;
    Ok(whole.halves(&pods))
}

/// An object that has both generations.
struct ObjectInPlace<'a> {
    kinds: (&'a dyn Scaling, &'a dyn InPlace),
    object: &'a Object,
    name: String,
    part: Part,
    partition: u32,
    /// The revisions that the object creates now.
    made: Option<PerGeneration<String>>,
    /// The revisions of both generations.
    revisions: PerGeneration<String>,
}

impl<'a> ObjectInPlace<'a> {
    fn of(
        kinds: (&'a dyn Scaling, &'a dyn InPlace),
        (object, kind): (&'a Object, &str),
        made: Option<PerGeneration<String>>,
        accepted: Option<PerGeneration<String>>,
    ) -> Result<Self, ScalingError> {
        let (scaling, in_place) = kinds;
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let name = format!("{kind} {name}");
        let part = scaling.parts(object).pop();
        let part = part.ok_or_else(|| ScalingError::OneGeneration(kind.to_owned()))?;
        let partition = number(object, &pointer(in_place.partition())).unwrap_or(0);
        let revisions = match accepted {
            Some(accepted) => accepted,
            None => {
                let refuse = |why: String| ScalingError::InPlace(format!("{name} {why}"));
                if let Some(why) = in_place.refuses(object) {
                    return Err(refuse(why));
                }
                let made = made.clone().filter(|_| scaling::is_observed(object));
                let made = made.ok_or_else(|| {
                    refuse("has a change that its status does not reflect yet".to_owned())
                })?;
                let field = in_place.partition().join(".");
                if partition < part.desired {
                    return Err(refuse(format!(
                        "replaces its workers by itself, because {field} is {partition}: edit the pod template and set \
                         {field} to {} (the number of replicas) in the same change",
                        part.desired
                    )));
                }
                if made.old == made.new {
                    return Err(refuse(format!(
                        "has only one revision, {}: edit the pod template and set {field} to {}",
                        made.new, part.desired
                    )));
                }
                made
            }
        };
        Ok(Self {
            kinds,
            object,
            name,
            partition: partition.min(part.desired),
            part,
            made,
            revisions,
        })
    }

    /// The wanted revision of the replica with this index.
    fn desired_revision(&self, index: u32) -> Option<&str> {
        let made = self.made.as_ref()?;
        Some(match index < self.partition {
            true => &made.old,
            false => &made.new,
        })
    }

    fn halves(&self, pods: &[Object]) -> PerGeneration<Scaled> {
        let replicas = self.replicas(pods);
        PerGeneration {
            old: self.half(Generation::Old, &replicas),
            new: self.half(Generation::New, &replicas),
        }
    }

    /// The pods of each replica.
    fn replicas<'b>(&self, pods: &'b [Object]) -> BTreeMap<u32, Vec<&'b Object>> {
        let (scaling, in_place) = self.kinds;
        let mut replicas: BTreeMap<u32, Vec<&Object>> = BTreeMap::new();
        let Some(of) = scaling.pods(self.object, &self.part) else {
            return replicas;
        };
        let is_meant = |pod: &&Object| object::is_selected(pod, &of.labels) && !pod_has_ended(pod);
        for pod in pods.iter().filter(is_meant) {
            if let Some(index) = in_place.index(self.object, pod) {
                replicas.entry(index).or_default().push(pod);
            }
        }
        replicas
    }

    fn half(&self, generation: Generation, replicas: &BTreeMap<u32, Vec<&Object>>) -> Scaled {
        let (scaling, in_place) = self.kinds;
        let revision = self.revisions.of(generation);
        let (mut present, mut terminating) = (0, 0);
        let (mut ready_since, mut leaving) = (Vec::new(), Vec::new());
        for (index, pods) in replicas {
            let first = pods.first();
            let is_of = first.and_then(|pod| label(pod, in_place.revision_label()));
            if is_of != Some(&**revision) {
                continue;
            }
            let ends = { pods.iter() }.any(|pod| pod.metadata.deletion_timestamp.is_some());
            let since = pods.iter().map(|pod| scaling::ready_since(pod));
            let since = since.collect::<Option<Vec<_>>>();
            let size = first.and_then(|pod| in_place.size(self.object, pod));
            let since = since.filter(|all| size.is_none_or(|size| all.len() >= size));
            let stays =
                *index < self.part.desired && self.desired_revision(*index) == Some(revision);
            if ends || !stays {
                terminating += 1;
                if !ends && *index < self.partition {
                    let mut pods = pods.iter();
                    let leader = pods.find(|pod| in_place.leads(pod));
                    leaving.extend(leader.map(|pod| OutdatedPod {
                        pod: Object::clone(pod),
                        is_ready: since.is_some(),
                    }));
                }
                continue;
            }
            present += 1;
            ready_since.extend(since.and_then(|since| since.into_iter().max()));
        }
        let part = Part {
            desired: (0..self.part.desired)
                .filter(|index| self.desired_revision(*index) == Some(revision))
                .count() as u32,
            ready: ready_since.len() as u32,
            present,
            ..self.part.clone()
        };
        let half = GenerationInPlace {
            generation,
            whole: self.part.desired,
            partition: in_place.partition(),
            revision: revision.clone(),
            leaving,
            lost: self.lost(generation),
        };
        Scaled::half(scaling, self.object, (part, half), terminating, ready_since)
    }

    /// Why a generation gets no more workers.
    fn lost(&self, generation: Generation) -> Option<String> {
        let (name, revision) = (&self.name, self.revisions.of(generation));
        let made = self.made.as_ref()?;
        let (made, then) = match generation {
            Generation::Old => (
                &made.old,
                "to go back, restore the old pod template and create another rollout",
            ),
            Generation::New => (&made.new, "restore the pod template of that revision"),
        };
        (made != revision).then(|| {
            format!("{name} now creates workers of revision {made} instead of {revision}: {then}")
        })
    }
}

fn pointer(path: &[&str]) -> String {
    path.iter().map(|field| format!("/{field}")).collect()
}

impl GenerationInPlace {
    /// The change that gives this generation another size.
    pub(super) fn resize(&self, size: u32) -> Resize {
        let partition = match self.generation {
            Generation::Old => size,
            Generation::New => self.other_size(size),
        };
        let fields = self.partition.iter().rev();
        Resize::Patch(fields.fold(json!(partition), |value, field| json!({*field: value})))
    }

    /// The size of the other generation if this one has `size` replicas.
    #[must_use]
    pub const fn other_size(&self, size: u32) -> u32 {
        self.whole.saturating_sub(size)
    }

    /// Whether these fields include the partition.
    pub(super) fn is_in(&self, fields: &Json) -> bool {
        let path = self.partition.iter();
        !path
            .fold(fields, |fields, field| &fields[format!("f:{field}")])
            .is_null()
    }
}

/// The pods that a rollout may delete in place.
#[must_use]
pub fn pods_resource() -> ApiResource {
    pods::resource()
}

#[cfg(test)]
mod tests;
