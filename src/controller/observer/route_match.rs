//! Matches objects that may route to the pods of old's frontends: selectors, owners, and references to Services.
//!
//! When in doubt, an object counts as routing to old. Does not depend on where the objects were listed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kube::api::DynamicObject;
use serde_json::Value as Json;

use crate::k8s::Object;
use crate::k8s::workloads::{GRAPH, is_selected, labels};

/// The domain of Services that are shared between clusters (multicluster.x-k8s.io).
const CLUSTER_SET: &str = "clusterset.local";

/// Namespace and name of a Service.
pub(super) type ServiceName = (String, String);

/// Whether a Service selects one of these pods.
pub(super) fn selects_any(service: &DynamicObject, pods: &[Object]) -> bool {
    is_selected_by(&service.data["spec"]["selector"], pods)
}

/// Whether a selector, as a map of labels, selects one of these pods.
pub(super) fn is_selected_by(selector: &Json, pods: &[Object]) -> bool {
    let selector = serde_json::from_value(selector.clone());
    let selector: std::collections::BTreeMap<String, String> = selector.unwrap_or_default();
    !selector.is_empty() && pods.iter().any(|pod| is_selected(pod, &selector))
}

/// Whether the operator created this object for the deployment `source` and will delete it together with the deployment. A label
/// or a name alone is not proof: a user may have copied it.
pub(super) fn belongs_to(object: &DynamicObject, name: &str, source: &str, is_graph: bool) -> bool {
    let of_graph = labels(object).and_then(|labels| labels.get(GRAPH));
    let is_frontends = name.strip_prefix(source) == Some("-frontend");
    let mut owners = object.metadata.owner_references.iter().flatten();
    let is_made = owners.any(|owner| {
        let is_of_operator = owner.api_version.starts_with("nvidia.com/");
        is_of_operator && owner.controller == Some(true)
    });
    is_graph && is_made && (is_frontends || of_graph.map(String::as_str) == Some(source))
}

/// The Services that a cluster DNS name may refer to when it is used in the namespace `own`, the likeliest first.
pub(super) fn services_of_host(host: &str, own: &str, domain: &str) -> Vec<ServiceName> {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let in_domain = [domain, CLUSTER_SET].into_iter();
    let in_domain = in_domain
        .filter_map(|domain| host.strip_suffix(domain))
        .next();
    let is_in_domain = in_domain.is_some();
    let host = in_domain.map_or(&*host, |host| host.trim_end_matches('.'));
    let (host, is_whole) = host
        .strip_suffix(".svc")
        .map_or((host, is_in_domain), |host| (host, true));
    let service = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
    let labels: Vec<&str> = host.split('.').collect();
    match *labels {
        [name] => vec![service(own, name)],
        [name, namespace] if is_whole => vec![service(namespace, name)],
        // The search list of a resolver completes it in either way: as a Service, or as one pod of a headless Service.
        [first, second] => vec![service(second, first), service(own, second)],
        [_, name, namespace] => vec![service(namespace, name)],
        _ => Vec::new(),
    }
}

/// The address of the pod that a cluster DNS name refers to, such as `10-0-0-1.there.pod.cluster.local`.
pub(super) fn address_of_host(host: &str, domain: &str) -> Option<IpAddr> {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let host = host.strip_suffix(domain).unwrap_or(&host);
    let (address, rest) = host.split_once('.')?;
    let is_of_pod = rest.trim_end_matches('.').ends_with(".pod");
    let address = |separator: &str| address.replace('-', separator).parse().ok();
    is_of_pod.then(|| address(".").or_else(|| address(":")))?
}

/// The results of `name_of` for every `field` at any depth of `spec`.
pub(super) fn backends<T: Ord>(
    spec: &Json,
    field: &str,
    name_of: &dyn Fn(&Json) -> Option<T>,
) -> BTreeSet<T> {
    let mut found = BTreeSet::new();
    let mut left = vec![spec];
    while let Some(value) = left.pop() {
        match value {
            Json::Object(fields) => {
                for (name, value) in fields {
                    if name == field {
                        let one = std::slice::from_ref(value);
                        let all = value.as_array().map_or(one, Vec::as_slice);
                        found.extend(all.iter().filter_map(name_of));
                    }
                    left.push(value);
                }
            }
            Json::Array(items) => left.extend(items),
            _ => {}
        }
    }
    found
}

pub(super) fn is_service_of_ingress(backend: &Json, own: &str) -> Option<ServiceName> {
    Some((own.to_owned(), backend["name"].as_str()?.to_owned()))
}

/// The Service that a `backendRef` refers to, in a route of the namespace `own`.
pub(super) fn is_service_of_route(backend: &Json, own: &str) -> Option<ServiceName> {
    let kind = backend["kind"].as_str().unwrap_or("Service");
    // An import has the name of the Service that it imports.
    let is_service = matches!(kind, "Service" | "ServiceImport");
    let namespace = backend["namespace"].as_str().unwrap_or(own);
    let name = backend["name"].as_str()?;
    is_service.then(|| (namespace.to_owned(), name.to_owned()))
}

/// The Service that a `parentRef` refers to: a mesh sends the requests to this Service along the route.
pub(super) fn is_service_of_parent(parent: &Json, own: &str) -> Option<ServiceName> {
    // The default is a Gateway.
    parent["kind"].as_str()?;
    is_service_of_route(parent, own)
}

/// The InferencePool that a `backendRef` refers to, in a route of the namespace `own`.
pub(super) fn is_pool_of_route(backend: &Json, own: &str) -> Option<ServiceName> {
    let namespace = backend["namespace"].as_str().unwrap_or(own);
    let name = backend["name"].as_str()?;
    let kind = backend["kind"].as_str().unwrap_or_default();
    // An import has the name of the pool that it imports.
    let is_pool = matches!(kind, "InferencePool" | "InferencePoolImport");
    is_pool.then(|| (namespace.to_owned(), name.to_owned()))
}

/// The host that a `backendRef` of Istio refers to.
pub(super) fn is_host_of_route(backend: &Json) -> Option<String> {
    let name = backend["name"].as_str()?;
    (backend["kind"] == "Hostname").then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::object;

    fn in_namespace(found: BTreeSet<ServiceName>, namespace: &str) -> Vec<String> {
        let found = found.into_iter().filter(|(own, _)| own == namespace);
        found.map(|(_, name)| name).collect()
    }

    #[test]
    fn services_are_found_wherever_an_ingress_or_a_route_names_them() {
        let ingress = json!({
            "defaultBackend": {"service": {"name": "a", "port": {"number": 80}}},
            "rules": [{"http": {"paths": [
                {"path": "/", "backend": {"service": {"name": "b"}}},
                {"path": "/x", "backend": {"resource": {"kind": "Bucket", "name": "c"}}},
            ]}}],
        });
        let found = backends(&ingress, "service", &|backend| {
            is_service_of_ingress(backend, "here")
        });
        assert_eq!(in_namespace(found, "here"), ["a", "b"]);
        let route = json!({"rules": [{
            "filters": [{"requestMirror": {"backendRef": {"name": "mirror", "namespace": "there"}}}],
            "backendRefs": [
                {"name": "a", "port": 80}, {"name": "b", "namespace": "here"}, {"name": "c", "namespace": "there"},
                {"kind": "InferencePool", "name": "d"},
            ],
        }]});
        let from = |own: &str| {
            let found = backends(&route, "backendRefs", &|backend| {
                is_service_of_route(backend, own)
            });
            in_namespace(found, "here")
        };
        assert_eq!(from("here"), ["a", "b"]);
        assert_eq!(from("elsewhere"), ["b"]);
    }

    #[test]
    fn a_name_in_the_cluster_is_that_of_a_service() {
        for (host, meant) in [
            ("old", vec!["here/old"]),
            ("old.there", vec!["there/old", "here/there"]),
            ("old.there.svc", vec!["there/old"]),
            ("old.there.svc.cluster.local", vec!["there/old"]),
            ("old.there.svc.cluster.local.", vec!["there/old"]),
            ("old-0.old.there.svc.cluster.local", vec!["there/old"]),
            // As far as a resolver needs it.
            ("old-0.old.there.svc", vec!["there/old"]),
            ("old-0.old.there", vec!["there/old"]),
            ("old-0.old", vec!["old/old-0", "here/old"]),
            ("10-0-0-1.there.pod.cluster.local", vec!["pod/there"]),
            ("many.models.example.com", vec![]),
        ] {
            let found = services_of_host(host, "here", "cluster.local").into_iter();
            let found: Vec<_> = found.map(|(own, name)| format!("{own}/{name}")).collect();
            assert_eq!(found, meant, "{host}");
        }
    }

    #[test]
    fn a_name_of_a_pod_is_its_address() {
        for (host, address) in [
            ("10-0-0-1.there.pod.cluster.local", Some("10.0.0.1")),
            ("10-0-0-1.there.pod.cluster.local.", Some("10.0.0.1")),
            ("fd00--1.there.pod.cluster.local", Some("fd00::1")),
            ("10-0-0-1.there.pod", Some("10.0.0.1")),
            ("old.there.svc.cluster.local", None),
            ("10-0-0-1.there.pod.example.com", None),
        ] {
            let found = address_of_host(host, "cluster.local");
            assert_eq!(found, address.map(|ip| ip.parse().unwrap()), "{host}");
        }
    }

    #[test]
    fn only_objects_that_the_operator_created_for_old_are_deleted_with_it() {
        let graph = Some(("nvidia.com/v1alpha1", true));
        for (service, label, owner, is_graph, expected) in [
            ("old-frontend", None, graph, true, true),
            ("old-frontend", None, graph, false, false),
            ("old-public", None, graph, true, false),
            ("any", Some("old"), graph, true, true),
            ("any", Some("old"), graph, false, false),
            ("any", Some("older"), graph, true, false),
            // Nothing deletes a user's object, no matter how it is labelled or named.
            ("any", Some("old"), None, true, false),
            ("old-frontend", Some("old"), None, true, false),
            (
                "any",
                Some("old"),
                Some(("nvidia.com/v1beta1", false)),
                true,
                false,
            ),
            ("any", Some("old"), Some(("apps/v1", true)), true, false),
        ] {
            let labels = label.map(|graph| json!({GRAPH: graph}));
            let owner = owner.map(|(version, controller)| {
                json!([{
                    "apiVersion": version, "kind": "Any", "name": "old", "uid": "u", "controller": controller,
                }])
            });
            let object = object(json!({
                "metadata": {"name": service, "labels": labels, "ownerReferences": owner},
            }));
            let belongs = belongs_to(&object, service, "old", is_graph);
            assert_eq!(
                belongs, expected,
                "{service} {label:?} {owner:?} {is_graph}"
            );
        }
    }
}
