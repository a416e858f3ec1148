//! Accepts a rollout: finds the objects that its spec names, and records their sizes and UIDs.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::k8s::workloads::{self, GRAPH, Scaled, ScalingError};
use crate::k8s::{Cache, NotSynced, Object};
use crate::managed_update::{self, Accepted, SizeError, full_sizes};
use crate::resource::rollout_status::{
    AcceptedRole, AcceptedSide, AcceptedStatus, ScaledRoleStatus, SideStatus,
};
use crate::resource::{DynamoRolloutSpec, SideSpec};
use crate::rollout::{Role, Sides};
use crate::scaling::Shape;

/// Why a rollout cannot begin, or what it has accepted is not there.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    #[error(transparent)]
    Scaling(#[from] ScalingError),
    #[error(transparent)]
    Size(#[from] SizeError),
    #[error("{0} {1} has no {2} workers")]
    NoSuchRole(String, String, Role),
    #[error(
        "the pods of {0} {1} have no label {GRAPH}, by which the workers of several objects are counted together"
    )]
    NoGraph(String, String),
    #[error(
        "{kind} {name} no longer has the component {component}, which was accepted as its {role} workers: restore it, or \
         abort and create another rollout"
    )]
    NoSuchComponent {
        kind: String,
        name: String,
        component: String,
        role: Role,
    },
    #[error("{0} {1} is not the object that was accepted: its UID has changed")]
    Replaced(String, String),
}

impl Error {
    /// Whether it is expected to pass by itself.
    pub fn is_early(&self) -> bool {
        matches!(
            self,
            Self::NotSynced(NotSynced::NotYet(_))
                | Self::Scaling(ScalingError::NotSynced(NotSynced::NotYet(_)))
        )
    }

    /// Whether there is nothing in the place of what was accepted.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Scaling(ScalingError::Missing(..)))
    }

    /// Whether what was accepted of a role is gone for good. What is missing may be a scaling adapter, which is made again.
    fn is_loss_of(&self, accepted: &AcceptedRole, is_over: bool) -> bool {
        match self {
            Self::Scaling(ScalingError::Missing(kind, _)) => is_over || *kind == accepted.kind,
            Self::NoSuchComponent { .. } | Self::Replaced(..) => true,
            _ => false,
        }
    }
}

/// The objects of one side, by role, each with its kind.
pub(super) type Objects = BTreeMap<Role, (String, Scaled)>;

/// The objects that the spec names.
pub(super) fn named(cache: &Cache, namespace: &str, side: &SideSpec) -> Result<Objects, Error> {
    let mut objects = Objects::new();
    if let (Some(kind), Some(name)) = (&side.kind, &side.name) {
        for (role, scaled) in workloads::roles(cache, namespace, kind, name)? {
            objects.insert(role, (kind.clone(), scaled));
        }
    }
    for (role, workload) in &side.roles {
        let Some(role) = managed_update::role(role) else {
            continue;
        };
        let (kind, name) = (&workload.kind, &workload.name);
        let scaled = of_role(cache, namespace, (kind, name), role, None)?;
        objects.insert(role, (kind.clone(), scaled));
    }
    Ok(objects)
}

/// Both generations of the one object that has them.
fn both(
    cache: &Cache,
    namespace: &str,
    (kind, name): (&str, &str),
    revisions: Option<Sides<String>>,
) -> Result<Sides<Objects>, Error> {
    let halves = workloads::halves(cache, namespace, (kind, name), revisions)?;
    let objects = |half: Scaled| [(half.part.role, (kind.to_owned(), half))].into();
    Ok(Sides {
        old: objects(halves.old),
        new: objects(halves.new),
    })
}

/// Both generations as they were accepted, if one object has them.
///
/// # Errors
/// When it is not listed, not there, or another one of the same name.
pub(super) fn accepted_in_place(
    cache: &Cache,
    namespace: &str,
    accepted: &AcceptedStatus,
) -> Result<Option<Sides<Objects>>, Error> {
    let Some((old, new)) = one_object(accepted) else {
        return Ok(None);
    };
    let (kind, name) = (&*old.kind, &*old.name);
    let revision = |role: &AcceptedRole| role.revision.clone().unwrap_or_default();
    let revisions = Sides {
        old: revision(old),
        new: revision(new),
    };
    let objects = both(cache, namespace, (kind, name), Some(revisions))?;
    let mut found = objects.old.values();
    match found.all(|(_, scaled)| scaled.object.metadata.uid.as_ref() == Some(&old.uid)) {
        true => Ok(Some(objects)),
        false => Err(Error::Replaced(kind.to_owned(), name.to_owned())),
    }
}

/// Whether one object has the workers of both generations.
pub(super) fn is_in_place(accepted: &AcceptedStatus) -> bool {
    one_object(accepted).is_some()
}

/// What was accepted of the one object that has both generations.
fn one_object(accepted: &AcceptedStatus) -> Option<(&AcceptedRole, &AcceptedRole)> {
    let only = |side: &AcceptedSide| side.roles.len() == 1;
    let (source, target) = (&accepted.source, &accepted.target);
    let (old, new) = (source.roles.values().next()?, target.roles.values().next()?);
    let is_same = old.kind == new.kind && old.name == new.name && old.uid == new.uid;
    let is_one = only(source) && only(target) && is_same;
    // Two components of a graph are scaled apart.
    (is_one && old.component.is_none() && new.component.is_none()).then_some((old, new))
}

/// The objects that were accepted.
///
/// # Errors
/// When one is not listed, not there, or another one of the same name.
pub(super) fn accepted(
    cache: &Cache,
    namespace: &str,
    side: &AcceptedSide,
) -> Result<Objects, Error> {
    accepted_roles(side)
        .map(|(role, accepted)| one_accepted(cache, namespace, role, accepted))
        .collect()
}

/// The objects that were accepted, without those that are gone, and why the first of those is. Once the rollout `is_over`, what
/// scales them may be gone as well.
///
/// # Errors
/// When one is not listed, or cannot be counted for another reason.
pub(super) fn without_lost(
    cache: &Cache,
    namespace: &str,
    side: &AcceptedSide,
    is_over: bool,
) -> Result<(Objects, Option<Error>), Error> {
    let (mut objects, mut lost) = (Objects::new(), None);
    for (role, accepted) in accepted_roles(side) {
        match one_accepted(cache, namespace, role, accepted) {
            Ok((role, object)) => drop(objects.insert(role, object)),
            Err(error) if error.is_loss_of(accepted, is_over) => drop(lost.get_or_insert(error)),
            Err(error) => return Err(error),
        }
    }
    Ok((objects, lost))
}

/// The roles that were accepted of a side.
pub(super) fn accepted_roles(side: &AcceptedSide) -> impl Iterator<Item = (Role, &AcceptedRole)> {
    let roles = side.roles.iter();
    roles.filter_map(|(name, accepted)| Some((managed_update::role(name)?, accepted)))
}

fn one_accepted(
    cache: &Cache,
    namespace: &str,
    role: Role,
    accepted: &AcceptedRole,
) -> Result<(Role, (String, Scaled)), Error> {
    let (kind, name) = (&accepted.kind, &accepted.name);
    let component = accepted.component.as_deref();
    let scaled = of_role(cache, namespace, (kind, name), role, component)?;
    if scaled.object.metadata.uid.as_ref() != Some(&accepted.uid) {
        return Err(Error::Replaced(kind.clone(), name.clone()));
    }
    Ok((role, (kind.clone(), scaled)))
}

/// The part of an object with this role, or the component that was accepted for it. Without one, an object with one part has
/// whatever role it is given.
fn of_role(
    cache: &Cache,
    namespace: &str,
    (kind, name): (&str, &str),
    role: Role,
    component: Option<&str>,
) -> Result<Scaled, Error> {
    let mut roles = workloads::roles(cache, namespace, kind, name)?;
    if let Some(component) = component {
        let mut parts = roles.into_values();
        let found = parts.find(|scaled| scaled.part.name == component);
        return found.ok_or_else(|| Error::NoSuchComponent {
            kind: kind.to_owned(),
            name: name.to_owned(),
            component: component.to_owned(),
            role,
        });
    }
    let found = match roles.len() {
        1 => roles.pop_first().map(|(_, scaled)| scaled),
        _ => roles.remove(&role),
    };
    found.ok_or_else(|| Error::NoSuchRole(kind.to_owned(), name.to_owned(), role))
}

/// Accepts a rollout.
///
/// # Errors
/// What is not there, or has to be given.
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
        _ => Sides {
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
    let now_sizes = Sides {
        old: sizes(&objects.old),
        new: sizes(&objects.new),
    };
    let full = full_sizes(spec, &now_sizes)?;
    let frontends = &spec.frontends;
    let named = Named {
        frontends: Sides {
            old: &frontends.source,
            new: &frontends.target,
        },
        service: service(spec),
        undo_to: None,
    };
    status(&objects, &full, named, now)
}

/// What a rollout names beside its workers.
struct Named<'a> {
    frontends: Sides<&'a str>,
    service: String,
    undo_to: Option<i64>,
}

/// The way back from a generation that has everything, with the Service of its frontends, to the revision `number`, and the sizes
/// of both. It is a rollout that has ended, and goes back: what it says of old and new are the revision and what serves now.
///
/// # Errors
/// What is not there.
pub(super) fn undo(
    cache: &Cache,
    namespace: &str,
    (to, number): (&AcceptedSide, i64),
    (from, service): (&AcceptedSide, String),
    now: Timestamp,
) -> Result<(AcceptedStatus, Sides<SideStatus>), Error> {
    let objects = Sides {
        old: accepted(cache, namespace, to)?,
        new: accepted(cache, namespace, from)?,
    };
    // It is to be as large as what it replaces, if both have the same roles.
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
    let full = Sides {
        old: old.collect(),
        new,
    };
    let named = Named {
        frontends: Sides {
            old: &to.frontends,
            new: &from.frontends,
        },
        service,
        undo_to: Some(number),
    };
    let status = status(&objects, &full, named, now)?;
    let sizes = Sides {
        old: recorded(&objects.old),
        new: recorded(&objects.new),
    };
    Ok((status, sizes))
}

/// The sizes that the objects have, as the rollout's own.
fn recorded(objects: &Objects) -> SideStatus {
    let roles = objects.iter().map(|(role, (_, scaled))| {
        let reported = ScaledRoleStatus {
            spec: scaled.part.desired,
            ready: scaled.ready,
            terminating: scaled.terminating,
            recorded: Some(scaled.part.desired),
        };
        (role.as_str().to_owned(), reported)
    });
    SideStatus {
        roles: roles.collect(),
        ..SideStatus::default()
    }
}

fn status(
    objects: &Sides<Objects>,
    full: &Sides<BTreeMap<Role, u32>>,
    named: Named,
    now: Timestamp,
) -> Result<AcceptedStatus, Error> {
    let side = |objects: &Objects, full: &BTreeMap<Role, u32>, frontends: &str| {
        let roles = objects.iter().map(|(role, (kind, scaled))| {
            let full = full.get(role).copied().unwrap_or_default();
            (role.as_str().to_owned(), accepted_role(kind, scaled, full))
        });
        Ok::<_, Error>(AcceptedSide {
            roles: roles.collect(),
            frontends: frontends.to_owned(),
            graph: graph(objects)?,
        })
    };
    let units = Shape::of(full.clone()).map_or(0, |shape| shape.units());
    Ok(AcceptedStatus {
        at: Time(now),
        units,
        source: side(&objects.old, &full.old, named.frontends.old)?,
        target: side(&objects.new, &full.new, named.frontends.new)?,
        service: named.service,
        undo_to: named.undo_to,
    })
}

/// Where the old frontends reach the new ones.
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

/// The graph whose pods the workers of several objects are.
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

pub(super) fn name(scaled: &Scaled) -> &str {
    name_of(&scaled.object)
}

/// The name of an object.
pub(super) fn name_of(object: &Object) -> &str {
    object.metadata.name.as_deref().unwrap_or_default()
}

/// What was accepted, in the terms of the decision.
pub(super) fn terms(accepted: &AcceptedStatus) -> Accepted {
    let of = |side: &AcceptedSide, number: fn(&AcceptedRole) -> u32| -> BTreeMap<Role, u32> {
        let roles = side.roles.iter();
        roles
            .filter_map(|(name, role)| Some((managed_update::role(name)?, number(role))))
            .collect()
    };
    let (source, target) = (&accepted.source, &accepted.target);
    Accepted {
        full: Sides {
            old: of(source, |role| role.replicas),
            new: of(target, |role| role.replicas),
        },
        gpus: Sides {
            old: of(source, |role| role.gpus),
            new: of(target, |role| role.gpus),
        },
    }
}

/// Whether the spec names another old generation than the one that was accepted.
pub(super) fn is_other_source(accepted: &AcceptedStatus, spec: &DynamoRolloutSpec) -> bool {
    is_other(&accepted.source, &spec.source, &spec.frontends.source)
}

/// Whether the spec names another new generation than the one that was accepted.
pub(super) fn is_other_target(accepted: &AcceptedStatus, spec: &DynamoRolloutSpec) -> bool {
    is_other(&accepted.target, &spec.target, &spec.frontends.target)
        || accepted.service != service(spec)
}

fn is_other(accepted: &AcceptedSide, spec: &SideSpec, frontends: &str) -> bool {
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
