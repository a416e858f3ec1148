//! Where clients are led: by `clientService`, and by whatever else in the cluster leads to old's frontends.
//!
//! What cannot be listed is not known, which keeps nothing else from being seen. Must not know what follows from it.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::super::held::Held;
use super::super::old::{self, kind};
use super::Eyes;
use crate::k8s::workloads::{GRAPH, labels, pod_is_ready};
use crate::k8s::{Object, Unseen};
use crate::rollout::Clients;

/// What an EndpointSlice calls its Service.
const SERVICE: &str = "kubernetes.io/service-name";

fn slices() -> ApiResource {
    kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
}

fn graphs() -> ApiResource {
    kind(
        "nvidia.com",
        "v1alpha1",
        "DynamoGraphDeployment",
        "dynamographdeployments",
    )
}

fn ingresses() -> ApiResource {
    kind("networking.k8s.io", "v1", "Ingress", "ingresses")
}

fn routes() -> ApiResource {
    kind("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes")
}

impl Eyes {
    /// Where clients are led. Before the end of an update nobody needs to know, so nothing is listed for it.
    pub(super) fn clients(&self, held: &Held, old: &[Object]) -> Clients {
        if !held.memory().phase.old_drains() {
            return Clients::default();
        }
        let (reach_new, reach_old) = match &held.spec.client_service {
            None => (None, None),
            Some(service) => match self.client_service(held, service, old) {
                Ok(known) => known,
                Err(unseen) => {
                    tracing::debug!(update = %held.key, %unseen, "where clients are led is not known");
                    (None, None)
                }
            },
        };
        Clients {
            reach_new,
            reach_old,
            other_ways: self.other_ways(held, old).ok(),
        }
    }

    /// The updates that send requests to the frontends of old as to their new ones, if that is known; as for [`Self::clients`].
    pub(super) fn updates_to_old(
        &self,
        held: &Held,
        old: &[Object],
        updates: &[Object],
    ) -> Option<Vec<String>> {
        if !held.memory().phase.old_drains() {
            return None;
        }
        let own = |update: &&Object| update.metadata.uid == held.identity.uid;
        let mut found = Vec::new();
        if self.leads_to_any(held, old).ok()? {
            found.push("this one, by spec.newFrontendService".to_owned());
        }
        for update in updates.iter().filter(|update| !own(update)) {
            let Ok(other) = Held::read(update, &self.settings) else {
                // What cannot be used moves nothing.
                continue;
            };
            let source = other.spec.source_deployment.as_deref().unwrap_or_default();
            let is_meant = other.spec.target_deployment == held.spec.source_deployment;
            let leads = is_meant || self.leads_to_any(&other, old).ok()?;
            // Without frontends there is nobody who would send anything.
            if leads
                && other.plan.weights.new_weight() > 0
                && !self.frontend_pods(&other.key, source).ok()?.is_empty()
            {
                found.push(other.key.name);
            }
        }
        Some(found)
    }

    /// Is a pod of `old` behind a target of this update?
    fn leads_to_any(&self, update: &Held, old: &[Object]) -> Result<bool, Unseen> {
        let names = pod_names(old);
        for target in &update.plan.new {
            let mut behind = self.behind(target)?.into_iter().flatten();
            if behind.any(|endpoint| endpoint.pod.is_some_and(|pod| names.contains(pod.as_str()))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Does the Service lead to a ready frontend of new, and to any of old?
    fn client_service(
        &self,
        held: &Held,
        service: &str,
        old: &[Object],
    ) -> Result<(Option<bool>, Option<bool>), Unseen> {
        let namespace = &held.key.namespace;
        let found = old::endpoints(&self.shelves, namespace, service, 0)?;
        let Some(endpoints) = found else {
            return Ok((None, None));
        };
        let new = self.pods_of_new(held)?;
        let names = pod_names(old);
        // What is not known to be new's could be old's, whatever its labels say by now.
        let reach_old = endpoints.iter().any(|endpoint| {
            let pod = endpoint.pod.as_ref();
            pod.is_none_or(|pod| names.contains(pod.as_str()) || !new.contains_key(pod))
        });
        let is_ready = |pod: &String| new.get(pod) == Some(&true);
        let reach_new = endpoints
            .iter()
            .any(|endpoint| endpoint.ready && endpoint.pod.as_ref().is_some_and(is_ready));
        Ok((Some(reach_new), Some(reach_old)))
    }

    /// The pods of new's frontends by name, and whether each is ready: those behind its Services, and those labelled as such.
    fn pods_of_new(&self, held: &Held) -> Result<BTreeMap<String, bool>, Unseen> {
        let mut pods = BTreeMap::new();
        let mut note = |pod: String, ready: bool| *pods.entry(pod).or_insert(false) |= ready;
        for target in &held.plan.new {
            for endpoint in self.behind(target)?.into_iter().flatten() {
                if let Some(pod) = endpoint.pod {
                    note(pod, endpoint.ready);
                }
            }
        }
        if let Some(target) = &held.spec.target_deployment {
            for pod in old::frontends_by_name(&self.shelves, &held.key.namespace, target)? {
                let ready = pod_is_ready(&pod);
                note(pod.metadata.name.clone().unwrap_or_default(), ready);
            }
        }
        Ok(pods)
    }

    /// What else leads to frontends of old: Services that old does not bring with it, and Ingresses and HTTPRoutes to any.
    fn other_ways(&self, held: &Held, old: &[Object]) -> Result<Vec<String>, Unseen> {
        let namespace = &held.key.namespace;
        // All are asked for at once, so that all come to be listed.
        let (slices, ingresses, routes, graphs) = (
            self.shelves.of(&slices(), namespace),
            self.shelves.of(&ingresses(), namespace),
            self.shelves.all(&routes()),
            self.shelves.of(&graphs(), namespace),
        );
        let (slices, ingresses, routes) = (slices?, ingresses?, routes?);
        let source = held.spec.source_deployment.as_deref().unwrap_or_default();
        let is_source = |graph: &Object| graph.metadata.name.as_deref() == Some(source);
        let is_graph = graphs?.iter().any(is_source);
        let names = pod_names(old);
        let mut to_old = BTreeMap::new();
        for slice in slices.iter().filter(|slice| leads_to(slice, &names)) {
            if let Some(service) = labels(slice).and_then(|labels| labels.get(SERVICE)) {
                let goes_with_old = belongs_to(slice, service, source, is_graph);
                to_old.insert(service.clone(), goes_with_old);
            }
        }
        let mut ways = Vec::new();
        for (service, goes_with_old) in &to_old {
            if !goes_with_old && held.spec.client_service.as_ref() != Some(service) {
                ways.push(format!("Service {service}"));
            }
        }
        let leads_to_old = |backends: BTreeSet<String>| {
            let mut backends = backends.into_iter();
            backends.any(|name| to_old.contains_key(&name))
        };
        for ingress in &ingresses {
            if leads_to_old(backends(
                &ingress.data["spec"],
                "service",
                &is_service_of_ingress,
            )) {
                let name = ingress.metadata.name.as_deref().unwrap_or_default();
                ways.push(format!("Ingress {name}"));
            }
        }
        for route in &routes {
            let own = route.metadata.namespace.as_deref().unwrap_or_default();
            let is_meant = |backend: &Json| is_service_of_route(backend, own, namespace);
            if leads_to_old(backends(&route.data["spec"], "backendRefs", &is_meant)) {
                let name = route.metadata.name.as_deref().unwrap_or_default();
                ways.push(format!("HTTPRoute {own}/{name}"));
            }
        }
        Ok(ways)
    }
}

/// Does an EndpointSlice, by whoever it was written, name one of these pods?
fn leads_to(slice: &DynamicObject, pods: &BTreeSet<&str>) -> bool {
    let endpoints = slice.data["endpoints"].as_array();
    endpoints.into_iter().flatten().any(|endpoint| {
        let pod = endpoint["targetRef"]["name"].as_str();
        pod.is_some_and(|pod| pods.contains(pod))
    })
}

fn pod_names(pods: &[Object]) -> BTreeSet<&str> {
    pods.iter()
        .filter_map(|pod| pod.metadata.name.as_deref())
        .collect()
}

/// Has the operator made the Service of this slice for the deployment `source`, and will take it away with it? A slice has
/// the labels of its Service.
fn belongs_to(slice: &DynamicObject, service: &str, source: &str, is_graph: bool) -> bool {
    let of_graph = labels(slice).and_then(|labels| labels.get(GRAPH));
    let is_frontends = service.strip_prefix(source) == Some("-frontend");
    is_graph && (is_frontends || of_graph.map(String::as_str) == Some(source))
}

/// The Services that are named anywhere below `spec` under `field`.
fn backends(
    spec: &Json,
    field: &str,
    name_of: &dyn Fn(&Json) -> Option<String>,
) -> BTreeSet<String> {
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

fn is_service_of_ingress(backend: &Json) -> Option<String> {
    backend["name"].as_str().map(str::to_owned)
}

/// The name of the Service in `namespace` that a `backendRef` of a route of the namespace `own` means.
fn is_service_of_route(backend: &Json, own: &str, namespace: &str) -> Option<String> {
    let kind = backend["kind"].as_str().unwrap_or("Service");
    let place = backend["namespace"].as_str().unwrap_or(own);
    let name = backend["name"].as_str()?;
    (kind == "Service" && place == namespace).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn services_are_found_wherever_an_ingress_or_a_route_names_them() {
        let ingress = json!({
            "defaultBackend": {"service": {"name": "a", "port": {"number": 80}}},
            "rules": [{"http": {"paths": [
                {"path": "/", "backend": {"service": {"name": "b"}}},
                {"path": "/x", "backend": {"resource": {"kind": "Bucket", "name": "c"}}},
            ]}}],
        });
        let found = backends(&ingress, "service", &is_service_of_ingress);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["a", "b"]);
        let route = json!({"rules": [{
            "filters": [{"requestMirror": {"backendRef": {"name": "mirror"}}}],
            "backendRefs": [
                {"name": "a", "port": 80}, {"name": "b", "namespace": "here"}, {"name": "c", "namespace": "there"},
                {"kind": "InferencePool", "name": "d"},
            ],
        }]});
        let from = |own: &str| {
            let is_meant = |backend: &Json| is_service_of_route(backend, own, "here");
            let found = backends(&route, "backendRefs", &is_meant);
            found.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(from("here"), ["a", "b"]);
        assert_eq!(from("elsewhere"), ["b"]);
    }

    #[test]
    fn what_the_operator_made_for_old_goes_with_old_and_nothing_else_does() {
        for (service, graph, is_graph, expected) in [
            ("old-frontend", None, true, true),
            ("old-frontend", None, false, false),
            ("old-public", None, true, false),
            ("any", Some("old"), true, true),
            ("any", Some("old"), false, false),
            ("any", Some("older"), true, false),
        ] {
            let labels = graph.map(|graph| json!({GRAPH: graph}));
            let slice = json!({"metadata": {"name": "any-x1", "labels": labels}});
            let slice: DynamicObject = serde_json::from_value(slice).unwrap();
            let told = belongs_to(&slice, service, "old", is_graph);
            assert_eq!(told, expected, "{service} {graph:?} {is_graph}");
        }
    }
}
