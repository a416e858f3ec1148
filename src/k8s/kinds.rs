//! The kinds of objects that several modules read.

use kube::api::{ApiResource, GroupVersionKind};

/// A kind, with the plural that stands in its URLs.
#[must_use]
pub fn api_resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Services (v1).
#[must_use]
pub fn services() -> ApiResource {
    api_resource("", "v1", "Service", "services")
}

/// Deployments (apps/v1).
#[must_use]
pub fn deployments() -> ApiResource {
    api_resource("apps", "v1", "Deployment", "deployments")
}

/// StatefulSets (apps/v1).
#[must_use]
pub fn stateful_sets() -> ApiResource {
    api_resource("apps", "v1", "StatefulSet", "statefulsets")
}
