//! Whether the rollout that manages an update goes back to old.

use kube::CustomResourceExt;

use super::super::parsed::ParsedUpdate;
use crate::k8s::{Cache, Object};
use crate::resource::DynamoRollout;

/// Whether it does; `None` if the rollout is not known. Old then gets its workers back, although new still serves everything.
pub(super) fn goes_back(cache: &Cache, parsed: &ParsedUpdate) -> Option<bool> {
    let Some(rollout) = &parsed.rollout else {
        return Some(false);
    };
    let kind = DynamoRollout::api_resource();
    let found = cache.one(&kind, &parsed.key.namespace, rollout).ok()?;
    // Nothing scales on behalf of a rollout that is gone.
    Some(found.is_some_and(|rollout| is_requested(&rollout) || has_begun(&rollout)))
}

fn is_requested(rollout: &Object) -> bool {
    rollout
        .data
        .pointer("/spec/intent")
        .and_then(|intent| intent.as_str())
        == Some("Abort")
}

/// The direction may also follow from other fields of the spec, such as `undoTo`. The controller reports the result.
fn has_begun(rollout: &Object) -> bool {
    let phase = rollout.data.pointer("/status/phase");
    matches!(
        phase.and_then(|phase| phase.as_str()),
        Some("RollingBack" | "RolledBack")
    )
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;
    use serde_json::{Value, json};

    use super::*;

    fn rollout(data: Value) -> Object {
        let object = DynamicObject::new("chat", &DynamoRollout::api_resource()).data(data);
        Object::from(object)
    }

    #[test]
    fn a_rollout_goes_back_from_the_request_to_the_end() {
        for (data, expected) in [
            (json!({}), false),
            (
                json!({"spec": {"intent": "Run"}, "status": {"phase": "Complete"}}),
                false,
            ),
            (
                json!({"spec": {"intent": "Abort"}, "status": {"phase": "Complete"}}),
                true,
            ),
            (
                json!({"spec": {"intent": "Abort"}, "status": {"phase": "Contested"}}),
                true,
            ),
            (
                json!({"spec": {"undoTo": 1}, "status": {"phase": "RollingBack"}}),
                true,
            ),
            (
                json!({"spec": {"intent": "Run"}, "status": {"phase": "RolledBack"}}),
                true,
            ),
        ] {
            let rollout = rollout(data.clone());
            assert_eq!(
                is_requested(&rollout) || has_begun(&rollout),
                expected,
                "{data}"
            );
        }
    }
}
