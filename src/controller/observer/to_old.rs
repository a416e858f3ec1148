//! The known destinations that lead to old, which are looked for in routing objects of all kinds.

use kube::api::DynamicObject;

use super::old_pods::OldPods;
use super::pools::PoolsToOld;
use super::services::ServicesToOld;

/// What a route may name that leads to old.
pub(super) struct ToOld<'a> {
    pub namespace: &'a str,
    pub old: &'a OldPods<'a>,
    pub services: &'a ServicesToOld,
    pub pools: &'a PoolsToOld,
    /// The domain of the cluster.
    pub domain: &'a str,
}

impl ToOld<'_> {
    pub(super) fn has_host(&self, host: &str, own: &str) -> bool {
        self.services.has_host(host, own, self.old, self.domain)
    }
}

pub(super) fn namespace_of(object: &DynamicObject) -> &str {
    object.metadata.namespace.as_deref().unwrap_or_default()
}

/// The display name of an object: with its namespace, if it is in one.
pub(super) fn display_name(kind: &str, object: &DynamicObject) -> String {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    match namespace_of(object) {
        "" => format!("{kind} {name}"),
        own => format!("{kind} {own}/{name}"),
    }
}
