//! Finds the objects that a rollout names or has accepted.

use std::collections::BTreeMap;

use crate::k8s::workloads::{self, GRAPH, Scaled, ScalingError};
use crate::k8s::{Cache, NotSynced, Object};
use crate::managed_update::{self, SizeError};
use crate::resource::GenerationSpec;
use crate::resource::rollout_status::{AcceptedGeneration, AcceptedRole, AcceptedStatus};
use crate::rollout::{PerGeneration, Role};

/// Why a rollout cannot begin, or why an accepted object is missing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    #[error(transparent)]
    Scaling(#[from] ScalingError),
    #[error(transparent)]
    Size(#[from] SizeError),
    #[error("{0} {1} has no {workers}", workers = .2.workers())]
    NoSuchRole(String, String, Role),
    #[error(
        "the pods of {0} {1} have no label {GRAPH}, by which the workers of several objects are counted together"
    )]
    NoGraph(String, String),
    #[error(
        "{kind} {name} no longer has the component {component}, which was accepted as its {workers}: restore it, or \
         abort and create another rollout",
        workers = .role.workers()
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
    /// Whether the error is expected to resolve itself.
    pub fn is_early(&self) -> bool {
        matches!(
            self,
            Self::NotSynced(NotSynced::NotYet(_))
                | Self::Scaling(ScalingError::NotSynced(NotSynced::NotYet(_)))
        )
    }

    /// Whether nothing has replaced the accepted object.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Scaling(ScalingError::Missing(..)))
    }

    /// Whether the accepted object of a role is gone permanently. The missing object may be a scaling adapter, which is
    /// recreated.
    fn is_loss_of(&self, accepted: &AcceptedRole, is_over: bool) -> bool {
        match self {
            Self::Scaling(ScalingError::Missing(kind, _)) => is_over || *kind == accepted.kind,
            Self::NoSuchComponent { .. } | Self::Replaced(..) => true,
            _ => false,
        }
    }
}

/// The objects of one generation, by role, each with its kind.
pub(super) type Objects = BTreeMap<Role, (String, Scaled)>;

/// The objects that the spec names.
pub(super) fn named(
    cache: &Cache,
    namespace: &str,
    generation: &GenerationSpec,
) -> Result<Objects, Error> {
    let mut objects = Objects::new();
    if let (Some(kind), Some(name)) = (&generation.kind, &generation.name) {
        for (role, scaled) in workloads::roles(cache, namespace, kind, name)? {
            objects.insert(role, (kind.clone(), scaled));
        }
    }
    for (role, workload) in &generation.roles {
        let Some(role) = managed_update::role(role) else {
            continue;
        };
        let (kind, name) = (&workload.kind, &workload.name);
        let scaled = of_role(cache, namespace, (kind, name), role, None)?;
        objects.insert(role, (kind.clone(), scaled));
    }
    Ok(objects)
}

/// Both generations, if one object has them.
pub(super) fn both(
    cache: &Cache,
    namespace: &str,
    (kind, name): (&str, &str),
    revisions: Option<PerGeneration<String>>,
) -> Result<PerGeneration<Objects>, Error> {
    let halves = workloads::halves(cache, namespace, (kind, name), revisions)?;
    let objects = |half: Scaled| [(half.part.role, (kind.to_owned(), half))].into();
    Ok(PerGeneration {
        old: objects(halves.old),
        new: objects(halves.new),
    })
}

/// Both generations as they were accepted, if one object has them.
///
/// # Errors
/// When it is not listed, does not exist, or is a different object with the same name.
pub(super) fn accepted_in_place(
    cache: &Cache,
    namespace: &str,
    accepted: &AcceptedStatus,
) -> Result<Option<PerGeneration<Objects>>, Error> {
    let Some((old, new)) = one_object(accepted) else {
        return Ok(None);
    };
    let (kind, name) = (&*old.kind, &*old.name);
    let revision = |role: &AcceptedRole| role.revision.clone().unwrap_or_default();
    let revisions = PerGeneration {
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

/// What was accepted of the object that has both generations.
fn one_object(accepted: &AcceptedStatus) -> Option<(&AcceptedRole, &AcceptedRole)> {
    let only = |generation: &AcceptedGeneration| generation.roles.len() == 1;
    let (source, target) = (&accepted.source, &accepted.target);
    let (old, new) = (source.roles.values().next()?, target.roles.values().next()?);
    let is_same = old.kind == new.kind && old.name == new.name && old.uid == new.uid;
    let is_one = only(source) && only(target) && is_same;
    // Two components of a graph are scaled separately.
    (is_one && old.component.is_none() && new.component.is_none()).then_some((old, new))
}

/// The objects that were accepted.
///
/// # Errors
/// When one is not listed, does not exist, or is a different object with the same name.
pub(super) fn accepted(
    cache: &Cache,
    namespace: &str,
    generation: &AcceptedGeneration,
) -> Result<Objects, Error> {
    accepted_roles(generation)
        .map(|(role, accepted)| one_accepted(cache, namespace, role, accepted))
        .collect()
}

/// The accepted objects that still exist, and why the first of the others is gone. Once the rollout `is_over`, their scaling
/// adapters may be gone as well.
///
/// # Errors
/// When one is not listed, or cannot be counted for another reason.
pub(super) fn without_lost(
    cache: &Cache,
    namespace: &str,
    generation: &AcceptedGeneration,
    is_over: bool,
) -> Result<(Objects, Option<Error>), Error> {
    let (mut objects, mut lost) = (Objects::new(), None);
    for (role, accepted) in accepted_roles(generation) {
        match one_accepted(cache, namespace, role, accepted) {
            Ok((role, object)) => drop(objects.insert(role, object)),
            Err(error) if error.is_loss_of(accepted, is_over) => drop(lost.get_or_insert(error)),
            Err(error) => return Err(error),
        }
    }
    Ok((objects, lost))
}

/// The accepted roles of a generation.
pub(super) fn accepted_roles(
    generation: &AcceptedGeneration,
) -> impl Iterator<Item = (Role, &AcceptedRole)> {
    let roles = generation.roles.iter();
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

/// The part of an object with this role, or the component that was accepted for it. Without a component, an object with a single
/// part has any role that it is given.
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

pub(super) fn name(scaled: &Scaled) -> &str {
    name_of(&scaled.object)
}

/// The name of an object.
pub(super) fn name_of(object: &Object) -> &str {
    object.metadata.name.as_deref().unwrap_or_default()
}
