//! Tells how an edit gets to the object from which a manifest was read, and whether it stays there.
//!
//! `kubectl apply` removes only what it applied before, according to its annotation. `kubectl replace` has no such condition.

use serde_json::Value as Json;

use super::record::ANNOTATION;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// How a note on an object begins that another tool manages.
const MANAGED: &str = "it is managed by ";

/// Notes on an object to which crossfade is added.
pub(super) fn before_inject(object: &Json) -> Option<String> {
    managed(object)
        .or_else(|| (is_live(object) && last_applied(object).is_none()).then(not_applied))
}

/// Whether a note only matters if the object is written back.
pub(super) fn is_about_writing(note: &str) -> bool {
    note == not_applied() || note.starts_with(MANAGED)
}

fn not_applied() -> String {
    format!(
        "it comes from a cluster, where it was not created by `kubectl apply` (it has no annotation {LAST_APPLIED}), so \
         `kubectl apply` would keep what is replaced here: write it back with `kubectl replace -f -`"
    )
}

/// Notes on a live object from which crossfade is removed.
pub(super) fn before_uninject(object: &Json) -> Option<String> {
    let managed = managed(object);
    if managed.is_some() || !is_live(object) {
        return managed;
    }
    let why = match last_applied(object) {
        None => format!("it has no annotation {LAST_APPLIED}"),
        Some(applied) if applied.contains(ANNOTATION) => return None,
        Some(_) => format!("its annotation {LAST_APPLIED} does not list it"),
    };
    Some(format!(
        "it comes from a cluster, where crossfade was not added by `kubectl apply` ({why}), so `kubectl apply` would leave \
         crossfade in its pods: write it back with `kubectl replace -f -`"
    ))
}

/// A note on an object that another tool writes, by the marks that the tool leaves in the cluster.
fn managed(object: &Json) -> Option<String> {
    let metadata = &object["metadata"];
    let label = |key: &str| metadata["labels"][key].as_str();
    let annotation = |key: &str| metadata["annotations"][key].as_str();
    let commit = "commit the manifest that inject prints to the source that it reads";
    let (by, instead) = if let Some(name) = label("helm.toolkit.fluxcd.io/name") {
        (
            format!("Flux (HelmRelease {name})"),
            "render the chart, and let Flux apply what inject prints",
        )
    } else if let Some(name) = label("kustomize.toolkit.fluxcd.io/name") {
        (format!("Flux (Kustomization {name})"), commit)
    } else if let Some(id) = annotation("argocd.argoproj.io/tracking-id") {
        let name = id.split(':').next().unwrap_or_default();
        (format!("Argo CD (Application {name})"), commit)
    } else if let Some(name) = label("argocd.argoproj.io/instance") {
        (format!("Argo CD (Application {name})"), commit)
    } else {
        let release = annotation("meta.helm.sh/release-name")?;
        (label("app.kubernetes.io/managed-by") == Some("Helm")).then_some(())?;
        let instead = "let inject edit what Helm renders (--post-renderer)";
        (format!("Helm (release {release})"), instead)
    };
    Some(format!(
        "{MANAGED}{by}, which merges its own version over what is written here, so that only a part of it remains: {instead}, as in \
         docs/install.md"
    ))
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
