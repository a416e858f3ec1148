//! Accepts a rollout: records the sizes and UIDs of the objects that its spec names.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::objects::{Error, Objects, accepted, accepted_roles, both, name, named};
use crate::k8s::Cache;
use crate::k8s::workloads::{GRAPH, Scaled};
use crate::managed_update::{self, Accepted, full_sizes};
use crate::resource::rollout_status::{
    AcceptedGeneration, AcceptedRole, AcceptedStatus, ScaledGenerationStatus, ScaledRoleStatus,
};
use crate::resource::{DynamoRolloutSpec, GenerationSpec};
use crate::rollout::{PerGeneration, Role};
use crate::scaling::Shape;

/// Accepts a rollout.
///
/// # Errors
/// What does not exist, or has to be specified.
pub(super) fn accept(
    cache: &Cache,
    namespace: &str,
    spec: &DynamoRolloutSpec,
    now: Timestamp,
) -> Result<AcceptedStatus, Error> {
    let objects = match (&spec.source.kind, &spec.source.name) {
        (Some(kind), Some(name)) if spec.is_in_place() => {
            both(cache, namespace, (kind, name), None)?
        }
        _ => PerGeneration {
            old: named(cache, namespace, &spec.source)?,
            new: named(cache, namespace, &spec.target)?,
        },
    };
    let sizes = |objects: &Objects| {
        let sizes = objects.iter();
        sizes
            .map(|(role, (_, scaled))| (*role, scaled.part.desired))
            .collect()
    };
    let now_sizes = PerGeneration {
        old: sizes(&objects.old),
        new: sizes(&objects.new),
    };
    let full = full_sizes(spec, &now_sizes)?;
    let frontends = &spec.frontends;
    let named = Named {
        frontends: PerGeneration {
            old: &frontends.source,
            new: &frontends.target,
        },
        service: service(spec),
        undo_to: None,
    };
    status(&objects, &full, named, now)
}

/// What a rollout names besides its workers.
struct Named<'a> {
    frontends: PerGeneration<&'a str>,
    service: String,
    undo_to: Option<i64>,
}

/// The return from a generation that serves everything, with the Service of its frontends, to the revision `number`, and the
/// sizes of both. It is represented as a rollout that has ended and goes back: its old generation is the revision, and its new
/// generation is what serves now.
///
/// # Errors
/// What does not exist.
pub(super) fn undo(
    cache: &Cache,
    namespace: &str,
    (to, number): (&AcceptedGeneration, i64),
    (from, service): (&AcceptedGeneration, String),
    now: Timestamp,
) -> Result<(AcceptedStatus, PerGeneration<ScaledGenerationStatus>), Error> {
    let objects = PerGeneration {
        old: accepted(cache, namespace, to)?,
        new: accepted(cache, namespace, from)?,
    };
    // It gets the size of what it replaces, if both have the same roles.
    let new = accepted_roles(from).map(|(role, was)| {
        let desired = objects
            .new
            .get(&role)
            .map_or(0, |(_, scaled)| scaled.part.desired);
        (role, if desired > 0 { desired } else { was.replicas })
    });
    let new: BTreeMap<Role, u32> = new.collect();
    let old = accepted_roles(to).map(|(role, was)| {
        let size = new.get(&role).copied().unwrap_or(was.replicas);
        (role, size)
    });
    let full = PerGeneration {
        old: old.collect(),
        new,
    };
    let named = Named {
        frontends: PerGeneration {
            old: &to.frontends,
            new: &from.frontends,
        },
        service,
        undo_to: Some(number),
    };
    let status = status(&objects, &full, named, now)?;
    let sizes = PerGeneration {
        old: recorded(&objects.old),
        new: recorded(&objects.new),
    };
    Ok((status, sizes))
}

/// The current sizes of the objects, as the sizes of the rollout.
fn recorded(objects: &Objects) -> ScaledGenerationStatus {
    let roles = objects.iter().map(|(role, (_, scaled))| {
        let reported = ScaledRoleStatus {
            spec: scaled.part.desired,
            ready: scaled.ready,
            terminating: scaled.terminating,
            recorded: Some(scaled.part.desired),
        };
        (role.as_str().to_owned(), reported)
    });
    ScaledGenerationStatus {
        roles: roles.collect(),
        ..ScaledGenerationStatus::default()
    }
}

fn status(
    objects: &PerGeneration<Objects>,
    full: &PerGeneration<BTreeMap<Role, u32>>,
    named: Named,
    now: Timestamp,
) -> Result<AcceptedStatus, Error> {
    let generation = |objects: &Objects, full: &BTreeMap<Role, u32>, frontends: &str| {
        let roles = objects.iter().map(|(role, (kind, scaled))| {
            let full = full.get(role).copied().unwrap_or_default();
            (role.as_str().to_owned(), accepted_role(kind, scaled, full))
        });
        Ok::<_, Error>(AcceptedGeneration {
            roles: roles.collect(),
            frontends: frontends.to_owned(),
            graph: graph(objects)?,
        })
    };
    let units = Shape::of(full.clone()).map_or(0, |shape| shape.units());
    Ok(AcceptedStatus {
        at: Time(now),
        units,
        source: generation(&objects.old, &full.old, named.frontends.old)?,
        target: generation(&objects.new, &full.new, named.frontends.new)?,
        service: named.service,
        undo_to: named.undo_to,
    })
}

/// The address at which the old frontends reach the new ones.
pub(super) fn service(spec: &DynamoRolloutSpec) -> String {
    format!("{}:{}", spec.frontends.service, spec.frontends.port)
}

fn accepted_role(kind: &str, scaled: &Scaled, full: u32) -> AcceptedRole {
    let metadata = &scaled.object.metadata;
    let annotations = metadata.annotations.as_ref();
    let revision = match &scaled.half {
        Some(half) => Some(&half.revision),
        None => {
            annotations.and_then(|annotations| annotations.get("deployment.kubernetes.io/revision"))
        }
    };
    AcceptedRole {
        kind: kind.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        component: Some(scaled.part.name.clone()).filter(|name| !name.is_empty()),
        uid: metadata.uid.clone().unwrap_or_default(),
        revision: revision.cloned(),
        replicas: full,
        gpus: scaled.gpus,
    }
}

/// The graph to which the workers of several objects belong.
fn graph(objects: &Objects) -> Result<Option<String>, Error> {
    let names: Vec<_> = objects.values().map(|(_, scaled)| name(scaled)).collect();
    if names.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(None);
    }
    let Some((kind, scaled)) = objects.values().next() else {
        return Ok(None);
    };
    let labels = scaled.object.data.pointer("/spec/template/metadata/labels");
    let graph = labels.and_then(|labels| labels.get(GRAPH)?.as_str());
    match graph {
        Some(graph) => Ok(Some(graph.to_owned())),
        None => Err(Error::NoGraph(kind.clone(), name(scaled).to_owned())),
    }
}

/// What was accepted, in the terms of the decision.
pub(super) fn terms(accepted: &AcceptedStatus) -> Accepted {
    let of = |generation: &AcceptedGeneration,
              number: fn(&AcceptedRole) -> u32|
     -> BTreeMap<Role, u32> {
        let roles = generation.roles.iter();
        roles
            .filter_map(|(name, role)| Some((managed_update::role(name)?, number(role))))
            .collect()
    };
    let (source, target) = (&accepted.source, &accepted.target);
    Accepted {
        full: PerGeneration {
            old: of(source, |role| role.replicas),
            new: of(target, |role| role.replicas),
        },
        gpus: PerGeneration {
            old: of(source, |role| role.gpus),
            new: of(target, |role| role.gpus),
        },
    }
}

/// Whether the spec names a different old generation than the accepted one.
pub(super) fn is_other_source(accepted: &AcceptedStatus, spec: &DynamoRolloutSpec) -> bool {
    is_other(&accepted.source, &spec.source, &spec.frontends.source)
}

/// Whether the spec names a different new generation than the accepted one.
pub(super) fn is_other_target(accepted: &AcceptedStatus, spec: &DynamoRolloutSpec) -> bool {
    is_other(&accepted.target, &spec.target, &spec.frontends.target)
        || accepted.service != service(spec)
}

fn is_other(accepted: &AcceptedGeneration, spec: &GenerationSpec, frontends: &str) -> bool {
    let is_same = match (&spec.kind, &spec.name) {
        (Some(kind), Some(name)) => {
            let mut roles = accepted.roles.values();
            roles.all(|role| role.kind == *kind && role.name == *name)
        }
        _ => {
            accepted.roles.len() == spec.roles.len()
                && spec.roles.iter().all(|(role, workload)| {
                    let accepted = accepted.roles.get(role);
                    accepted.is_some_and(|accepted| {
                        accepted.kind == workload.kind && accepted.name == workload.name
                    })
                })
        }
    };
    !is_same || accepted.frontends != frontends
}
