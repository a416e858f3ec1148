//! The sources and targets of a rollout, kept as ControllerRevisions. Pure.
//!
//! A generation never changes its number while it is kept, so `spec.undoTo` in Git always means the same generation.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ApiResource;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::xxh3_64;

use super::objects;
use crate::k8s::kinds::api_resource;
use crate::k8s::{Object, ROLLOUT_LABEL};
use crate::resource::rollout_status::{AcceptedGeneration, AcceptedStatus, RevisionStatus};
use crate::resource::{API_VERSION, ROLLOUT_KIND};
use crate::split::Generation;

/// The longest name of a revision.
const MAX_NAME: usize = 253;
/// The longest text for the workers of a revision.
const MAX_WORKERS: usize = 1024;

/// The data of a kept generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RetainedRevision {
    pub generation: AcceptedGeneration,
    /// The Service and port of its frontends, if a rollout went to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The selector with which the clients' Service reaches its frontends.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub client_selector: BTreeMap<String, String>,
    /// Whether its workers were in the same object as those of another generation, so that they can no longer be scaled
    /// separately.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub in_place: bool,
}

/// A kept generation.
#[derive(Clone, Debug)]
pub(super) struct Revision {
    pub number: i64,
    pub at: Option<Time>,
    pub kept: RetainedRevision,
    pub object: Object,
}

/// ControllerRevisions.
pub(super) fn resource() -> ApiResource {
    api_resource("apps", "v1", "ControllerRevision", "controllerrevisions")
}

/// The revisions of a rollout, in increasing order.
pub(super) fn of(rollout: &Object, objects: &[Object]) -> Vec<Revision> {
    let uid = rollout.metadata.uid.as_deref();
    let is_own = |object: &&Object| {
        let owners = object.metadata.owner_references.iter().flatten();
        { owners }.any(|owner| Some(&*owner.uid) == uid && owner.controller == Some(true))
    };
    let read = |object: &Object| {
        let data = object.data.get("data")?;
        Some(Revision {
            number: object.data["revision"].as_i64()?,
            at: object.metadata.creation_timestamp.clone(),
            kept: serde_json::from_value(data.clone()).ok()?,
            object: Object::clone(object),
        })
    };
    let mut found: Vec<_> = objects.iter().filter(is_own).filter_map(read).collect();
    found.sort_by_key(|revision| revision.number);
    found
}

/// Whether both are the same generation: the same objects behind the same frontends.
pub(super) fn is_same(one: &AcceptedGeneration, other: &AcceptedGeneration) -> bool {
    let objects = |generation: &AcceptedGeneration| -> Vec<_> {
        let roles = generation.roles.iter();
        roles
            .map(|(role, accepted)| {
                let (component, uid) = (accepted.component.clone(), accepted.uid.clone());
                (role.clone(), component, uid)
            })
            .collect()
    };
    one.frontends == other.frontends && objects(one) == objects(other)
}

/// The generations of a rollout that are not kept yet, the old one first, without the selectors that lead clients to them.
pub(super) fn missing(
    accepted: &AcceptedStatus,
    revisions: &[Revision],
) -> Option<RetainedRevision> {
    let is_kept = |generation: &AcceptedGeneration, service: Option<&String>| {
        revisions.iter().any(|revision| {
            let has_service = service.is_none() || revision.kept.service.as_ref() == service;
            has_service && is_same(&revision.kept.generation, generation)
        })
    };
    if !is_kept(&accepted.source, None) {
        return Some(RetainedRevision {
            generation: accepted.source.clone(),
            in_place: objects::is_in_place(accepted),
            ..RetainedRevision::default()
        });
    }
    (!is_kept(&accepted.target, Some(&accepted.service))).then(|| RetainedRevision {
        generation: accepted.target.clone(),
        service: Some(accepted.service.clone()),
        in_place: objects::is_in_place(accepted),
        ..RetainedRevision::default()
    })
}

/// The ControllerRevision that keeps a generation.
pub(super) fn object(rollout: &Object, kept: &RetainedRevision, revisions: &[Revision]) -> Json {
    let metadata = &rollout.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let number = revisions.last().map_or(0, |last| last.number) + 1;
    let resource = resource();
    json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name_of(rollout, kept),
            "namespace": metadata.namespace,
            "labels": {ROLLOUT_LABEL: metadata.uid},
            "ownerReferences": [{
                "apiVersion": API_VERSION,
                "kind": ROLLOUT_KIND,
                "name": name,
                "uid": metadata.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "data": kept,
        "revision": number,
    })
}

/// The name of the rollout, and a hash of its UID and the generation: keeping it twice gives the same name, and the revisions
/// of an earlier rollout of that name have different names.
fn name_of(rollout: &Object, kept: &RetainedRevision) -> String {
    let metadata = &rollout.metadata;
    let roles = kept.generation.roles.iter();
    let roles: Vec<_> = roles
        .map(|(role, accepted)| (role, &accepted.component, &accepted.uid))
        .collect();
    let text = json!([metadata.uid, roles, kept.generation.frontends, kept.service]).to_string();
    let hash = format!("{:016x}", xxh3_64(text.as_bytes()));
    let name = metadata.name.as_deref().unwrap_or_default();
    let stem: String = name.chars().take(MAX_NAME - hash.len() - 1).collect();
    format!("{}-{hash}", stem.trim_end_matches(['-', '.']))
}

/// The oldest revision beyond `limit`. The generations of the current rollout and `wanted` do not count, and are kept.
pub(super) fn surplus<'a>(
    accepted: &AcceptedStatus,
    wanted: Option<i64>,
    limit: u32,
    revisions: &'a [Revision],
) -> Option<&'a Revision> {
    let is_free = |revision: &&Revision| {
        Some(revision.number) != wanted
            && generation_of(accepted, &revision.kept.generation).is_none()
    };
    let mut free = revisions.iter().filter(is_free);
    let count = free.clone().count();
    free.next().filter(|_| count > limit as usize)
}

/// Which generation of a rollout this is, if any.
fn generation_of(accepted: &AcceptedStatus, generation: &AcceptedGeneration) -> Option<Generation> {
    let generations = [
        (Generation::Old, &accepted.source),
        (Generation::New, &accepted.target),
    ];
    let mut found = generations
        .into_iter()
        .filter(|(_, own)| is_same(own, generation));
    found.next().map(|(generation, _)| generation)
}

/// The Service of the frontends of a generation, if a rollout ever went to it.
pub(super) fn service(generation: &AcceptedGeneration, revisions: &[Revision]) -> Option<String> {
    let mut newest = revisions.iter().rev();
    newest.find_map(|revision| {
        let service = revision.kept.service.clone()?;
        is_same(&revision.kept.generation, generation).then_some(service)
    })
}

/// The revisions as the status lists them. `exists` returns whether the objects of a generation exist.
pub(super) fn status_entries(
    accepted: &AcceptedStatus,
    revisions: &[Revision],
    exists: impl Fn(&AcceptedGeneration) -> bool,
) -> Vec<RevisionStatus> {
    let reported = revisions.iter().map(|revision| {
        let generation = &revision.kept.generation;
        RevisionStatus {
            revision: revision.number,
            generation: generation_of(accepted, generation)
                .map(|generation| generation.as_str().to_owned()),
            workers: workers(generation),
            frontends: generation.frontends.clone(),
            at: revision.at.clone(),
            exists: exists(generation),
        }
    });
    reported.collect()
}

/// The objects that own the workers of a generation, as text for users.
pub(super) fn workers(generation: &AcceptedGeneration) -> String {
    let mut objects: Vec<_> = { generation.roles.values() }
        .map(|role| format!("{} {}", role.kind, role.name))
        .collect();
    objects.dedup();
    let mut text = objects.join(", ");
    if let Some((end, _)) = text.char_indices().nth(MAX_WORKERS) {
        text.truncate(end);
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::resource::rollout_status::AcceptedRole;
    use std::sync::Arc;

    /// A generation of one Deployment and its frontends.
    pub(in super::super) fn generation(name: &str) -> AcceptedGeneration {
        let role = AcceptedRole {
            kind: "Deployment".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            replicas: 4,
            ..AcceptedRole::default()
        };
        AcceptedGeneration {
            roles: [("worker".to_owned(), role)].into(),
            frontends: format!("{name}-frontend"),
            graph: None,
        }
    }

    fn accepted(old: &str, new: &str) -> AcceptedStatus {
        AcceptedStatus {
            at: serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap(),
            units: 4,
            source: generation(old),
            target: generation(new),
            service: format!("{new}-frontend:8000"),
            undo_to: None,
        }
    }

    fn rollout() -> Object {
        let metadata = json!({"name": "chat", "namespace": "inference", "uid": "1"});
        Arc::new(serde_json::from_value(json!({ "metadata": metadata })).unwrap())
    }

    /// The revisions after rollouts between these generations.
    fn after(rollouts: &[(&str, &str)]) -> Vec<Revision> {
        let mut objects = Vec::new();
        for (old, new) in rollouts {
            for _ in 0..3 {
                let revisions = of(&rollout(), &objects);
                if let Some(kept) = missing(&accepted(old, new), &revisions) {
                    let object = object(&rollout(), &kept, &revisions);
                    objects.push(Arc::new(serde_json::from_value(object).unwrap()));
                }
            }
        }
        of(&rollout(), &objects)
    }

    fn numbers(revisions: &[Revision]) -> Vec<(i64, String)> {
        let reported = |revision: &Revision| (revision.number, workers(&revision.kept.generation));
        revisions.iter().map(reported).collect()
    }

    #[test]
    fn each_generation_is_kept_once_under_its_number() {
        let revisions = after(&[("v1", "v2"), ("v2", "v3"), ("v1", "v3")]);
        let expected = [(1, "v1"), (2, "v2"), (3, "v3")];
        let expected = expected.map(|(number, name)| (number, format!("Deployment {name}")));
        assert_eq!(numbers(&revisions), expected);
        assert_eq!(
            service(&generation("v3"), &revisions).as_deref(),
            Some("v3-frontend:8000")
        );
        assert_eq!(service(&generation("v1"), &revisions), None);
        let names: std::collections::BTreeSet<_> = revisions
            .iter()
            .map(|revision| revision.object.metadata.name.clone())
            .collect();
        assert_eq!(names.len(), 3);
        // If a later rollout goes to the first generation, it has a Service from then on.
        let again = after(&[("v1", "v2"), ("v2", "v1")]);
        assert_eq!(
            service(&generation("v1"), &again).as_deref(),
            Some("v1-frontend:8000")
        );
    }

    #[test]
    fn foreign_objects_are_not_revisions() {
        let mut other: kube::api::DynamicObject =
            serde_json::from_value(object(&rollout(), &RetainedRevision::default(), &[])).unwrap();
        let mine = Arc::new(other.clone());
        assert_eq!(of(&rollout(), &[mine]).len(), 1);
        for owner in other.metadata.owner_references.iter_mut().flatten() {
            owner.uid = "2".to_owned();
        }
        assert_eq!(of(&rollout(), &[Arc::new(other)]).len(), 0);
    }

    #[test]
    fn a_deleted_object_of_the_same_name_is_another_generation() {
        let mut again = generation("v1");
        assert!(is_same(&generation("v1"), &again));
        again.roles.get_mut("worker").unwrap().replicas = 8;
        assert!(is_same(&generation("v1"), &again));
        again.roles.get_mut("worker").unwrap().uid = "another".to_owned();
        assert!(!is_same(&generation("v1"), &again));
    }

    #[test]
    fn the_oldest_beyond_the_limit_goes_but_never_one_in_use() {
        let revisions = after(&[("v1", "v2"), ("v2", "v3"), ("v3", "v4"), ("v4", "v5")]);
        let current = accepted("v1", "v5");
        for (limit, wanted, expected) in [
            (3, None, None),
            (2, None, Some(2)),
            (0, None, Some(2)),
            (0, Some(2), Some(3)),
            (2, Some(2), None),
        ] {
            let surplus = surplus(&current, wanted, limit, &revisions);
            let surplus = surplus.map(|revision| revision.number);
            assert_eq!(surplus, expected, "{limit} {wanted:?}");
        }
        let reported = status_entries(&current, &revisions, |each| *each != generation("v2"));
        let reported: Vec<_> = reported
            .iter()
            .map(|reported| {
                (
                    reported.revision,
                    reported.generation.as_deref(),
                    reported.exists,
                )
            })
            .collect();
        let expected = [
            (1, Some("old"), true),
            (2, None, false),
            (3, None, true),
            (4, None, true),
            (5, Some("new"), true),
        ];
        assert_eq!(reported, expected);
    }

    #[test]
    fn names_are_short_enough_for_the_longest_rollout() {
        let name = |uid: &str| {
            let metadata = json!({"name": "a".repeat(MAX_NAME), "uid": uid});
            let rollout = serde_json::from_value(json!({"metadata": metadata})).unwrap();
            name_of(&Arc::new(rollout), &RetainedRevision::default())
        };
        assert_eq!(name("1").len(), MAX_NAME);
        assert_eq!(name("1"), name("1"));
        assert_ne!(name("1"), name("2"), "an earlier one has left its own");
    }
}
