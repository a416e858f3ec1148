//! The `DynamoUpdateConfig` that the controller creates for a rollout, and what it reports about the traffic. Pure.

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::{Value as Json, json};

use super::super::spec_fields::SpecFields;
use super::objects;
use crate::k8s::Object;
use crate::resource::rollout_status::{AcceptedGeneration, AcceptedStatus};
use crate::resource::{DynamoRolloutSpec, RETRIED_AT};
use crate::split::Weights;

/// The spec of the update. The controller of updates neither moves nor overrides its split: the rollout leads.
pub(super) fn spec(spec: &DynamoRolloutSpec, accepted: &AcceptedStatus, split: Weights) -> Json {
    let traffic = &spec.traffic;
    let in_place = objects::is_in_place(accepted);
    let mut update = json!({
        "newFrontendService": accepted.service,
        "sourceDeployment": accepted.source.frontends,
        "targetDeployment": accepted.target.frontends,
        "clientService": spec.client_service,
        "workers": {
            "old": workers(&accepted.source, in_place),
            "new": workers(&accepted.target, in_place),
        },
        "paused": true,
        "strict": true,
        "trafficSplitPercent": split.rounded_percent(),
        "weights": {"old": split.old(), "new": split.new_weight()},
        "affinity": traffic.affinity,
        "failover": traffic.failover,
        "drain": traffic.drain,
    });
    let fields = update.as_object_mut().expect("it is written as an object");
    let optional = [
        (
            "models",
            traffic.models.as_ref().map(|models| json!(models)),
        ),
        ("probe", traffic.probe.as_ref().map(|probe| json!(probe))),
        (
            "analysis",
            spec.analysis.as_ref().map(|analysis| {
                // The rollout handles failures.
                let mut analysis = json!(analysis);
                analysis["onFailure"] = json!("Hold");
                analysis
            }),
        ),
        (
            "drainDeadlineSeconds",
            { spec.strategy.drain_deadline_seconds }.map(Json::from),
        ),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    }
    update
}

fn workers(generation: &AcceptedGeneration, in_place: bool) -> Json {
    let replicas: serde_json::Map<String, Json> = { generation.roles.iter() }
        .map(|(role, accepted)| (role.clone(), json!(accepted.replicas)))
        .collect();
    match (&generation.graph, generation.roles.values().next()) {
        (Some(graph), _) => json!({"kind": "Pod", "name": graph, "replicas": replicas}),
        // The status of some kinds counts whole groups.
        (None, Some(role)) if role.kind == "ModelServing" => {
            json!({"kind": role.kind, "name": role.name})
        }
        (None, Some(role)) => {
            let mut workers = json!({"kind": role.kind, "name": role.name, "replicas": replicas});
            // The pods of a Deployment are not labelled with its revision number.
            if let Some(revision) = role.revision.as_ref().filter(|_| in_place) {
                workers["revision"] = json!(revision);
            }
            workers
        }
        (None, None) => json!({}),
    }
}

/// The annotations of the update: a user's request to try a failed new generation again.
pub(super) fn annotations(rollout: &DynamicObject) -> Json {
    let annotations = rollout.metadata.annotations.as_ref();
    match annotations.and_then(|annotations| annotations.get(RETRIED_AT)) {
        Some(at) => json!({RETRIED_AT: at}),
        None => json!({}),
    }
}

/// When a user last requested to retry new, if the annotation is a time.
pub(super) fn retried_at(rollout: &DynamicObject) -> Option<Timestamp> {
    let annotations = rollout.metadata.annotations.as_ref()?;
    annotations.get(RETRIED_AT)?.parse().ok()
}

/// Whether the update contains everything in `wanted`; it may contain more.
pub(super) fn is_as(update: &DynamicObject, wanted: &Json, annotations: &Json) -> bool {
    let own = update.metadata.annotations.as_ref();
    let own = own.and_then(|own| own.get(RETRIED_AT)).map(String::as_str);
    includes(&update.data["spec"], wanted) && annotations[RETRIED_AT].as_str() == own
}

fn includes(value: &Json, wanted: &Json) -> bool {
    match (value, wanted) {
        (Json::Object(value), Json::Object(wanted)) => wanted.iter().all(|(name, wanted)| {
            let value = value.get(name).unwrap_or(&Json::Null);
            includes(value, wanted)
        }),
        (Json::Number(one), Json::Number(other)) => one.as_f64() == other.as_f64(),
        _ => value == wanted,
    }
}

/// Whether this rollout owns the update.
pub(super) fn is_owned(update: &Object, rollout: &Object) -> bool {
    let owners = update.metadata.owner_references.iter().flatten();
    let uid = rollout.metadata.uid.as_deref();
    { owners }.any(|owner| Some(&*owner.uid) == uid && owner.controller == Some(true))
}

/// Whether the split of this update is between the same two generations.
pub(super) fn is_of(update: &DynamicObject, accepted: &AcceptedStatus) -> bool {
    let in_place = objects::is_in_place(accepted);
    let spec = SpecFields::of(update);
    spec.source() == Some(&*accepted.source.frontends)
        && spec.target() == Some(&*accepted.target.frontends)
        && spec.new_frontend_service() == Some(&*accepted.service)
        && ["old", "new"].into_iter().all(|generation| {
            let accepted = match generation {
                "old" => &accepted.source,
                _ => &accepted.target,
            };
            let wanted = workers(accepted, in_place);
            let workers = spec.workers(generation);
            workers.name() == wanted["name"].as_str()
                && workers.revision() == wanted["revision"].as_str()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::rollout_status::AcceptedRole;

    fn accepted() -> AcceptedStatus {
        let generation = |name: &str| AcceptedGeneration {
            roles: [(
                "worker".to_owned(),
                AcceptedRole {
                    kind: "Deployment".into(),
                    name: name.into(),
                    replicas: 4,
                    ..AcceptedRole::default()
                },
            )]
            .into(),
            frontends: format!("{name}-frontend"),
            graph: None,
        };
        AcceptedStatus {
            at: serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap(),
            units: 4,
            source: generation("v1"),
            target: generation("v2"),
            service: "v2-frontend:8000".into(),
            undo_to: None,
        }
    }

    fn rollout() -> DynamoRolloutSpec {
        DynamoRolloutSpec::read(&json!({
            "source": {"kind": "Deployment", "name": "v1"},
            "target": {"kind": "Deployment", "name": "v2"},
            "frontends": {"source": "v1-frontend", "target": "v2-frontend", "service": "v2-frontend"},
            "clientService": "chat",
            "analysis": {"onFailure": "RollBack"},
            "strategy": {"drainDeadlineSeconds": 60},
        }))
        .unwrap()
    }

    #[test]
    fn the_update_can_be_used_and_its_split_is_the_rollouts() {
        let split = Weights::new(3, 1).unwrap();
        let spec = spec(&rollout(), &accepted(), split);
        let text = json!({"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoUpdateConfig", "spec": spec});
        let (manifest, plan) = crate::resource::load(&text.to_string()).unwrap();
        assert_eq!(plan.weights, split);
        let update = manifest.spec;
        assert_eq!((update.paused, update.strict), (Some(true), Some(true)));
        assert_eq!(update.drain_deadline_seconds, Some(60));
        let on_failure = update.analysis.unwrap().on_failure;
        assert_eq!(on_failure, crate::resource::OnFailure::Hold);
    }

    #[test]
    fn an_update_that_someone_has_edited_is_not_as_it_should_be() {
        let wanted = spec(&rollout(), &accepted(), Weights::ALL_OLD);
        let object = |spec: Json| -> DynamicObject {
            serde_json::from_value(json!({"metadata": {"name": "chat"}, "spec": spec})).unwrap()
        };
        let mut more = wanted.clone();
        more["oldDraining"] = json!(true);
        more["failover"]["holdSeconds"] = json!(5.0);
        assert!(is_as(&object(more), &wanted, &json!({})));
        assert!(!is_as(
            &object(wanted.clone()),
            &wanted,
            &json!({RETRIED_AT: "now"})
        ));
        let mut edited = wanted.clone();
        edited["paused"] = json!(false);
        assert!(!is_as(&object(edited), &wanted, &json!({})));
        let of = |spec: &Json| is_of(&object(spec.clone()), &accepted());
        assert!(of(&wanted));
        let mut other = wanted.clone();
        other["workers"]["new"]["name"] = json!("v3");
        assert!(!of(&other));
        let split = SpecFields::of(&object(wanted)).weights();
        assert_eq!(split, Some(Weights::ALL_OLD));
    }
}
