//! Marks the pods to be removed first when their ReplicaSet shrinks, with the annotation
//! `controller.kubernetes.io/pod-deletion-cost`: among ready pods, those with the lowest cost are removed first. Without it, a
//! pod costs 0.

use kube::api::DynamicObject;
use serde_json::{Value as Json, json};

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The annotations that mark a pod.
#[must_use]
pub fn mark() -> Json {
    json!({COST: "-1"})
}

/// Whether a pod is removed before those that are not marked.
#[must_use]
pub fn is_marked(pod: &DynamicObject) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let cost = annotations.and_then(|annotations| annotations.get(COST)?.parse::<i32>().ok());
    cost.is_some_and(|cost| cost < 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_marked_if_it_costs_less_than_others() {
        for (annotations, expected) in [
            (mark(), true),
            (json!({COST: "-7"}), true),
            (json!({COST: "0"}), false),
            (json!({COST: "cheap"}), false),
            (Json::Null, false),
        ] {
            let pod = json!({"metadata": {"name": "p", "annotations": annotations}});
            let pod: DynamicObject = serde_json::from_value(pod).unwrap();
            assert_eq!(is_marked(&pod), expected, "{pod:?}");
        }
    }
}
