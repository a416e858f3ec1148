//! Drops the fields of cached objects that are not used.

use std::sync::Arc;

use kube::api::DynamicObject;
use serde_json::{Value as Json, json};

use super::objects::Object;
use super::slice;

/// The label with the UID of the rollout that created an object.
pub const ROLLOUT_LABEL: &str = "crossfade/rollout-uid";

/// The kinds of which only the names, labels, and owners are used. Some hold whole pod templates.
const ONLY_OWNERS: [&str; 7] = [
    "dynamocomponentdeployments",
    "dynamographdeploymentrequests",
    "inferenceservices",
    "llminferenceservices",
    "podcliquesets",
    "replicasets",
    "rollouts",
];

/// The prefix of the field managers of rollouts.
pub const ROLLOUT_MANAGER: &str = "crossfade-rollout-";

/// Drops the fields that are not used: there may be thousands of objects.
pub fn trimmed(plural: &str, mut object: DynamicObject) -> Object {
    if plural == "dynamoupdateconfigs" {
        return Arc::new(trimmed_update(object));
    }
    if let Some(fields) = &mut object.metadata.managed_fields {
        // Rollouts need to know who has scaled an object.
        fields.retain(|entry| {
            let manager = entry.manager.as_deref().unwrap_or_default();
            manager.starts_with(ROLLOUT_MANAGER)
        });
    }
    // The revisions of StatefulSets and DaemonSets contain whole pod templates.
    if plural == "controllerrevisions" && !is_of_rollout(&object) {
        object.data = Json::Null;
    }
    if ONLY_OWNERS.contains(&plural) {
        object.data = Json::Null;
        object.metadata.annotations = None;
    }
    if plural == "endpointslices" {
        slice::trim(&mut object);
    }
    if plural == "pods" {
        let ports = |list: &str| -> Json {
            let containers = object.data["spec"][list].as_array().into_iter().flatten();
            containers
                .map(|container| json!({"name": container["name"], "ports": container["ports"]}))
                .collect()
        };
        let volumes = object.data["spec"]["volumes"]
            .as_array()
            .into_iter()
            .flatten();
        let volumes: Json = volumes
            .filter(|volume| volume["persistentVolumeClaim"].is_object())
            .map(|volume| json!({"persistentVolumeClaim": volume["persistentVolumeClaim"]}))
            .collect();
        let spec = json!({
            "containers": ports("containers"), "initContainers": ports("initContainers"),
            "hostNetwork": object.data["spec"]["hostNetwork"], "volumes": volumes,
        });
        object.data["spec"] = spec;
    }
    Arc::new(object)
}

/// An update without the fields that are not used: a namespace's users can create many updates, and make each large.
#[must_use]
pub fn trimmed_update(mut object: DynamicObject) -> DynamicObject {
    let metadata = &mut object.metadata;
    if let Some(entries) = &mut metadata.managed_fields {
        entries.retain(|entry| {
            let is_status = entry.subresource.as_deref() == Some("status");
            !is_status && entry.manager.as_deref() == Some(crate::resource::UPDATE_MANAGER)
        });
    }
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| name == crate::resource::RETRIED_AT);
    }
    metadata.labels = None;
    object
}

/// Whether a rollout created the object.
fn is_of_rollout(object: &DynamicObject) -> bool {
    let labels = object.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(ROLLOUT_LABEL))
}
