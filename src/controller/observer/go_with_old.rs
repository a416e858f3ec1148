//! Finds what is deleted together with old although clients or pods of new need it.
//!
//! Secrets and ConfigMaps are not checked: the controller has no right to read them.

use std::collections::BTreeSet;

use kube::api::DynamicObject;

use super::super::old_frontends;
use super::super::parsed::ParsedUpdate;
use super::Observer;
use super::kinds::{claims, graphs, pods, services};
use super::ways::{is_owned_by, is_owned_by_exactly};
use crate::k8s::workloads::{GRAPH, labels, pod_has_ended};
use crate::k8s::{NotSynced, Object};

impl Observer {
    /// What clients need and is deleted together with old: their own Service, what makes or leads to the frontends of new, and the
    /// volumes of pods that stay.
    pub(super) fn go_with_old(&self, parsed: &ParsedUpdate) -> Result<Vec<String>, NotSynced> {
        let namespace = &*parsed.key.namespace;
        let source = parsed.spec.source_deployment.as_deref().unwrap_or_default();
        let described = |kind: &str, object: &Object| {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            format!("{kind} {name}, which is deleted together with old")
        };
        let mut found = Vec::new();
        if let Some(name) = &parsed.spec.client_service {
            let object = self.cache.one(&services(), namespace, name)?;
            let object = object.filter(|object| is_owned_by(object, source));
            found.extend(object.map(|object| described("Service", &object)));
        }
        let target = parsed.spec.target_deployment.as_deref();
        let is_of_old = |object: &Object| is_owned_by_exactly(object, source);
        for (kind, resource) in [
            ("Deployment", old_frontends::deployments()),
            ("DynamoGraphDeployment", graphs()),
        ] {
            let object = target.map(|target| self.cache.one(&resource, namespace, target));
            let object = object.transpose()?.flatten();
            found.extend(
                object
                    .filter(is_of_old)
                    .map(|object| described(kind, &object)),
            );
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
                    .map(|object| described("Service", &object)),
            );
        }
        for name in self.pods_of_new(parsed)?.keys() {
            let object = self.cache.one(&pods(), namespace, name)?;
            found.extend(
                object
                    .filter(is_of_old)
                    .map(|object| described("pod", &object)),
            );
        }
        // A claim that is deleted stays while a pod uses it, but no further pod can use it then.
        let is_of_graph = |pod: &&Object| {
            let graph = labels(pod).and_then(|labels| labels.get(GRAPH));
            graph.is_some_and(|graph| graph == source)
        };
        let all = self.cache.of(&pods(), namespace)?;
        let staying = all
            .iter()
            .filter(|pod| !pod_has_ended(pod) && !is_of_graph(pod));
        let used: BTreeSet<&str> = staying.flat_map(|pod| claimed(pod)).collect();
        for name in used {
            let object = self.cache.one(&claims(), namespace, name)?;
            let object = object.filter(is_of_old);
            found.extend(object.map(|object| described("PersistentVolumeClaim", &object)));
        }
        Ok(found)
    }
}

/// The names of the PersistentVolumeClaims that a pod uses.
fn claimed(pod: &DynamicObject) -> impl Iterator<Item = &str> {
    let volumes = pod.data["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}
