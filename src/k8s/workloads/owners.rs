//! The number of workers that the owners of the selected pods request. Pods may be missing because of a quota or a webhook
//! although workers are requested.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::grove::{GROUP, INDEX};
use super::object::{label, leader_worker_sets, replicas, role};
use super::{Cache, NotSynced};
use crate::k8s::kinds::{deployments, stateful_sets};
use crate::rollout::Role;

/// The labels of the pods that an owner creates for one role, and the number of workers that they form.
struct CreatedPods {
    pod: DynamicObject,
    workers: u32,
}

/// What the owners of a kind create.
type CreatedBy = fn(&[&DynamicObject]) -> Vec<CreatedPods>;

/// The optional kinds, which may not be installed.
fn optional() -> [(ApiResource, CreatedBy); 3] {
    [
        (leader_worker_sets(), by_leader_worker_sets),
        (super::grove::cliques(), by_cliques),
        (super::object::model_servings(), by_model_servings),
    ]
}

/// Begins to list what [`wanted`] needs: the loss of the last pod must not wait for a list.
pub(super) fn begin(cache: &Cache) {
    cache.begin(&deployments());
    cache.begin(&stateful_sets());
    for (kind, _) in optional() {
        cache.begin_served(&kind);
    }
}

/// The number of workers per role that the owners of the selected pods request. Optional kinds count only if there are no such
/// pods at all.
///
/// # Errors
/// If Deployments or StatefulSets could not be listed, or another kind is not listed yet.
pub(super) fn wanted(
    cache: &Cache,
    namespace: &str,
    is_meant: &dyn Fn(&DynamicObject) -> bool,
    without_pods: bool,
) -> Result<BTreeMap<Role, u32>, NotSynced> {
    let mut made = Vec::new();
    for kind in [deployments(), stateful_sets()] {
        let owners = cache.of(&kind, namespace)?;
        made.extend(owners.iter().flat_map(|owner| by_template(owner)));
    }
    for (kind, by) in optional().into_iter().filter(|_| without_pods) {
        let owners = match cache.of_served(&kind, namespace) {
            Ok(owners) => owners,
            // The controller may not be allowed to list kinds that its updates do not name.
            Err(NotSynced::Refused { .. }) => continue,
            Err(not_synced) => return Err(not_synced),
        };
        let owners: Vec<&DynamicObject> = owners.iter().map(|owner| &**owner).collect();
        made.extend(by(&owners));
    }
    let mut wanted = BTreeMap::new();
    for CreatedPods { pod, workers } in made {
        if workers == 0 || !is_meant(&pod) {
            continue;
        }
        if let Some(role) = role(&pod) {
            let sum: &mut u32 = wanted.entry(role).or_default();
            *sum = sum.saturating_add(workers);
        }
    }
    Ok(wanted)
}

/// A stand-in for a pod of `owner`: a copy of the owner, so that a sidecar is recognized, with the labels at `labels`.
fn pod(owner: &DynamicObject, labels: &Json) -> Option<DynamicObject> {
    let mut pod = owner.clone();
    pod.metadata.labels = Some(serde_json::from_value(labels.clone()).ok()?);
    Some(pod)
}

fn desired(owner: &DynamicObject) -> u32 {
    replicas(owner, "").desired
}

fn by_template(owner: &DynamicObject) -> Option<CreatedPods> {
    let labels = owner.data.pointer("/spec/template/metadata/labels")?;
    Some(CreatedPods {
        pod: pod(owner, labels)?,
        workers: desired(owner),
    })
}

/// A replica is one worker, no matter how many pods it has.
fn by_leader_worker_sets(owners: &[&DynamicObject]) -> Vec<CreatedPods> {
    let of = |owner: &&DynamicObject| {
        let template = &owner.data["spec"]["leaderWorkerTemplate"]["workerTemplate"];
        Some(CreatedPods {
            pod: pod(owner, &template["metadata"]["labels"])?,
            workers: desired(owner),
        })
    };
    owners.iter().filter_map(of).collect()
}

/// The pods of a clique have its labels. All cliques of one replica of a scaling group form one worker.
fn by_cliques(owners: &[&DynamicObject]) -> Vec<CreatedPods> {
    let mut groups = BTreeSet::new();
    let of = |owner: &&DynamicObject| {
        let workers = match (label(owner, GROUP), label(owner, INDEX)) {
            (Some(group), index) => {
                let is_wanted = owner.metadata.deletion_timestamp.is_none();
                let is_first =
                    groups.insert((group.to_owned(), index.map(str::to_owned), role(owner)));
                u32::from(is_wanted && is_first)
            }
            (None, _) => desired(owner),
        };
        let pod = (**owner).clone();
        CreatedPods { pod, workers }
    };
    owners.iter().map(of).collect()
}

/// Each replica has the given number of every role, with the labels of the role's entry pod.
fn by_model_servings(owners: &[&DynamicObject]) -> Vec<CreatedPods> {
    let of = |owner: &&DynamicObject| -> Vec<CreatedPods> {
        let roles = owner.data.pointer("/spec/template/roles");
        let roles = roles.and_then(Json::as_array).into_iter().flatten();
        let made = roles.filter_map(|role| {
            let each = u32::try_from(role["replicas"].as_u64().unwrap_or(1)).unwrap_or(u32::MAX);
            Some(CreatedPods {
                pod: pod(owner, &role["entryTemplate"]["metadata"]["labels"])?,
                workers: desired(owner).saturating_mul(each),
            })
        });
        made.collect()
    };
    owners.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::COMPONENT;
    use super::*;

    fn object(labels: Json, spec: Json) -> DynamicObject {
        let metadata = json!({"name": "a", "labels": labels});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn reported(made: Vec<CreatedPods>) -> Vec<(Option<String>, Option<Role>, u32)> {
        let reported = made.into_iter().map(|made| {
            let app = label(&made.pod, "app").map(str::to_owned);
            (app, role(&made.pod), made.workers)
        });
        reported.collect()
    }

    #[test]
    fn each_kind_says_how_many_workers_it_wants_and_what_their_pods_are_labelled_with() {
        let labels = |role: &str| json!({"app": "mine", COMPONENT: role});
        let is = |role, workers| (Some("mine".to_owned()), Some(role), workers);
        let template = json!({"metadata": {"labels": labels("decode")}});
        let set = object(
            json!({}),
            json!({"replicas": 3, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}}),
        );
        assert_eq!(
            reported(by_leader_worker_sets(&[&set])),
            [is(Role::Decode, 3)]
        );
        let alone = object(labels("prefill"), json!({"replicas": 4}));
        let in_group = |index: &str| {
            let mut labels = labels("decode");
            (labels[GROUP], labels[INDEX]) = (json!("g"), json!(index));
            object(labels, json!({"replicas": 2}))
        };
        let (leader, worker, other) = (in_group("0"), in_group("0"), in_group("1"));
        assert_eq!(
            reported(by_cliques(&[&alone, &leader, &worker, &other])),
            [
                is(Role::Prefill, 4),
                is(Role::Decode, 1),
                is(Role::Decode, 0),
                is(Role::Decode, 1)
            ]
        );
        let role = |name: &str, replicas: u32| json!({"name": name, "replicas": replicas, "entryTemplate": {"metadata": {"labels": labels(name)}}});
        let roles = json!([role("prefill", 2), role("decode", 1)]);
        let serving = object(
            json!({}),
            json!({"replicas": 3, "template": {"roles": roles}}),
        );
        assert_eq!(
            reported(by_model_servings(&[&serving])),
            [is(Role::Prefill, 6), is(Role::Decode, 3)]
        );
    }
}
