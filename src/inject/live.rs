//! Tells whether `kubectl apply` can apply an edit to the object from which a manifest was read.
//!
//! `kubectl apply` removes only what it applied before, according to its annotation. `kubectl replace` has no such condition.

use serde_json::Value as Json;

use super::record::ANNOTATION;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Notes on a live object to which crossfade is added.
pub(super) fn before_inject(object: &Json) -> Option<String> {
    (is_live(object) && last_applied(object).is_none()).then(not_applied)
}

/// The note of [`before_inject`].
pub(super) fn not_applied() -> String {
    format!(
        "it comes from a cluster, where it was not created by `kubectl apply` (it has no annotation {LAST_APPLIED}), so \
         `kubectl apply` would keep what is replaced here: write it back with `kubectl replace -f -`"
    )
}

/// Notes on a live object from which crossfade is removed.
pub(super) fn before_uninject(object: &Json) -> Option<String> {
    let lists_it = last_applied(object).is_some_and(|applied| applied.contains(ANNOTATION));
    (is_live(object) && !lists_it).then(|| {
        format!(
            "it comes from a cluster, where crossfade was not added by `kubectl apply` (its annotation {LAST_APPLIED} does not \
             list it), so `kubectl apply` would leave crossfade in its pods: write it back with `kubectl replace -f -`"
        )
    })
}

/// A note on a live object that a controller manages, which reverts changes made to it.
pub(super) fn owned(object: &Json) -> Option<String> {
    let mut owners = object["metadata"]["ownerReferences"].as_array()?.iter();
    let owner = owners.find(|owner| owner["controller"] == true)?;
    let text = |key: &str| owner[key].as_str().unwrap_or_default();
    Some(format!(
        "it is controlled by {}/{}, which may revert changes: change the controlling object or its manifest instead",
        text("kind"),
        text("name")
    ))
}

/// Only the cluster sets these fields.
fn is_live(object: &Json) -> bool {
    let metadata = &object["metadata"];
    metadata["uid"].is_string() || metadata["resourceVersion"].is_string()
}

fn last_applied(object: &Json) -> Option<&str> {
    object["metadata"]["annotations"][LAST_APPLIED].as_str()
}
