//! Finds what is deleted together with old although clients or pods of new need it.

use super::super::old_frontends;
use super::super::parsed::ParsedUpdate;
use super::Observer;
use super::kinds::{graphs, pods, services};
use super::ways::{is_owned_by, is_owned_by_exactly};
use crate::k8s::{NotSynced, Object};

impl Observer {
    /// What clients need and is deleted together with old: their own Service, and what makes or leads to the frontends of new.
    pub(super) fn go_with_old(&self, parsed: &ParsedUpdate) -> Result<Vec<String>, NotSynced> {
        let namespace = &*parsed.key.namespace;
        let source = parsed.spec.source_deployment.as_deref().unwrap_or_default();
        let told = |kind: &str, object: &Object| {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            format!("{kind} {name}, which is deleted together with old")
        };
        let mut found = Vec::new();
        if let Some(name) = &parsed.spec.client_service {
            let object = self.cache.one(&services(), namespace, name)?;
            let object = object.filter(|object| is_owned_by(object, source));
            found.extend(object.map(|object| told("Service", &object)));
        }
        let target = parsed.spec.target_deployment.as_deref();
        let is_of_old = |object: &Object| is_owned_by_exactly(object, source);
        for (kind, resource) in [
            ("Deployment", old_frontends::deployments()),
            ("DynamoGraphDeployment", graphs()),
        ] {
            let object = target.map(|target| self.cache.one(&resource, namespace, target));
            let object = object.transpose()?.flatten();
            found.extend(object.filter(is_of_old).map(|object| told(kind, &object)));
        }
        for target in &parsed.plan.new {
            let Some((name, _)) =
                { target.service(&self.settings.domain) }.filter(|(_, place)| *place == namespace)
            else {
                continue;
            };
            let object = self.cache.one(&services(), namespace, name)?;
            found.extend(
                object
                    .filter(is_of_old)
                    .map(|object| told("Service", &object)),
            );
        }
        for name in self.pods_of_new(parsed)?.keys() {
            let object = self.cache.one(&pods(), namespace, name)?;
            found.extend(object.filter(is_of_old).map(|object| told("pod", &object)));
        }
        Ok(found)
    }
}
