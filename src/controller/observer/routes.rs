//! What routes to the frontends of old beside Services and InferencePools: Ingresses, routes, and the objects of a mesh.
//!
//! The kinds of the Gateway API, OpenShift and Istio are optional: one that the cluster does not serve routes nothing. Contains no
//! policy.

use std::collections::BTreeSet;

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::Observer;
use super::kinds::{exports, ingresses, of_istio, routes};
use super::old_pods::OldPods;
use super::pools::PoolsToOld;
use super::services::ServicesToOld;
use super::ways::{
    ServiceName, backends, is_host_of_route, is_pool_of_route, is_selected_by,
    is_service_of_ingress, is_service_of_route,
};
use crate::k8s::{NotSynced, Object};

/// The fields in which a route names what it routes to. A mirror needs old, too: a gateway may reject a route with a backend that
/// does not exist.
const BACKENDS: [&str; 4] = ["backendRefs", "backendRef", "to", "alternateBackends"];

/// What a route may name that leads to old.
pub(super) struct ToOld<'a> {
    pub namespace: &'a str,
    pub old: &'a OldPods<'a>,
    pub services: &'a ServicesToOld,
    pub pools: &'a PoolsToOld,
    /// The domain of the cluster.
    pub domain: &'a str,
}

/// The objects of all kinds that route, as they are listed.
pub(super) struct Routes {
    ingresses: Result<Vec<Object>, NotSynced>,
    exports: Result<Vec<Object>, NotSynced>,
    others: Vec<(&'static str, Result<Vec<Object>, NotSynced>)>,
}

impl Observer {
    /// All kinds are requested before the first error returns, so that the cache starts to list all of them.
    pub(super) fn routes(&self, namespace: &str) -> Routes {
        let all = |(kind, versions): (&'static str, Vec<ApiResource>)| {
            (kind, self.cache.all_of_any(&versions))
        };
        Routes {
            ingresses: self.cache.of(&ingresses(), namespace),
            exports: self.cache.all_of_any(&exports()),
            others: routes().chain(of_istio()).map(all).collect(),
        }
    }
}

impl Routes {
    /// Those that lead to old, as text for users.
    pub fn leading_to(self, to_old: &ToOld) -> Result<Vec<String>, NotSynced> {
        let mut found = Vec::new();
        for export in &self.exports? {
            let (own, name) = (&export.metadata.namespace, &export.metadata.name);
            let name = own.clone().zip(name.clone()).unwrap_or_default();
            if to_old.services.names.contains(&name) {
                found.push(format!("ServiceExport {}/{}", name.0, name.1));
            }
        }
        for ingress in &self.ingresses? {
            let is_meant = |backend: &Json| is_service_of_ingress(backend, to_old.namespace);
            let backends = backends(&ingress.data["spec"], "service", &is_meant);
            let name = ingress.metadata.name.as_deref().unwrap_or_default();
            if to_old.has_any(&backends) {
                found.push(format!("Ingress {name}"));
            } else if let Some(annotation) = to_old.named_by_annotation(ingress) {
                found.push(format!("Ingress {name} by its annotation {annotation}"));
            }
        }
        for (kind, objects) in self.others {
            for object in &objects? {
                let leads = match kind {
                    "VirtualService" => to_old.is_of_virtual_service(object),
                    "ServiceEntry" => to_old.is_of_service_entry(object),
                    "WorkloadEntry" => to_old.is_of_hosts(object, "address"),
                    _ => to_old.is_of_route(object),
                };
                if leads {
                    let own = object.metadata.namespace.as_deref().unwrap_or_default();
                    let name = object.metadata.name.as_deref().unwrap_or_default();
                    found.push(format!("{kind} {own}/{name}"));
                }
            }
        }
        Ok(found)
    }
}

impl ToOld<'_> {
    fn has_any(&self, backends: &BTreeSet<ServiceName>) -> bool {
        !backends.is_disjoint(&self.services.names)
    }

    fn has_host(&self, host: &str, own: &str) -> bool {
        self.services.has_host(host, own, self.old, self.domain)
    }

    /// The annotation of an Ingress that names something of old. Ingress controllers also take backends from their annotations, such
    /// as `alb.ingress.kubernetes.io/actions.NAME` and `nginx.ingress.kubernetes.io/default-backend`.
    fn named_by_annotation<'b>(&self, ingress: &'b DynamicObject) -> Option<&'b str> {
        let annotations = ingress.metadata.annotations.iter().flatten();
        let mut read = annotations.filter(|(name, _)| name.contains("ingress"));
        let is_of_host = |letter: char| letter.is_ascii_alphanumeric() || "-.:".contains(letter);
        let (name, _) = read.find(|(_, value)| {
            let words = value.split(|letter| !is_of_host(letter));
            let words = words.flat_map(|word| [word, word.split(':').next().unwrap_or(word)]);
            let mut words = words.filter(|word| !word.is_empty());
            words.any(|word| self.has_host(word, self.namespace))
        })?;
        Some(name)
    }

    fn is_of_route(&self, route: &DynamicObject) -> bool {
        let own = route.metadata.namespace.as_deref().unwrap_or_default();
        let spec = &route.data["spec"];
        BACKENDS.into_iter().any(|field| {
            let services = backends(spec, field, &|backend| is_service_of_route(backend, own));
            // A pool that goes with old leaves the route without a backend.
            let pools = backends(spec, field, &|backend| is_pool_of_route(backend, own));
            let hosts = backends(spec, field, &is_host_of_route);
            self.has_any(&services)
                || !pools.is_disjoint(&self.pools.names)
                || hosts.iter().any(|host| self.has_host(host, own))
        })
    }

    fn is_of_virtual_service(&self, service: &DynamicObject) -> bool {
        let own = service.metadata.namespace.as_deref().unwrap_or_default();
        let is_meant = |destination: &Json| {
            let host = destination["host"].as_str()?;
            self.has_host(host, own).then_some(())
        };
        let spec = &service.data["spec"];
        let mut fields = ["destination", "mirror"].into_iter();
        fields.any(|field| !backends(spec, field, &is_meant).is_empty())
    }

    /// An entry leads to its endpoints, or to the pods that it selects, or else to what its own hosts and addresses resolve to.
    fn is_of_service_entry(&self, entry: &DynamicObject) -> bool {
        let own = entry.metadata.namespace.as_deref().unwrap_or_default();
        let labels = &entry.data["spec"]["workloadSelector"]["labels"];
        let selects = own == self.namespace && is_selected_by(labels, self.old.pods());
        let fields = ["address", "hosts", "addresses"];
        selects
            || fields
                .into_iter()
                .any(|field| self.is_of_hosts(entry, field))
    }

    /// Whether a field, at any depth of the spec, has a host or an address of old.
    fn is_of_hosts(&self, object: &DynamicObject, field: &str) -> bool {
        let own = object.metadata.namespace.as_deref().unwrap_or_default();
        let is_meant = |host: &Json| {
            let host = host.as_str()?;
            // A range of one address.
            let whole = ["/32", "/128"].into_iter();
            let address = whole.filter_map(|range| host.strip_suffix(range)).next();
            self.has_host(address.unwrap_or(host), own).then_some(())
        };
        !backends(&object.data["spec"], field, &is_meant).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::services::OldPlace;
    use super::*;
    use crate::k8s::object;

    /// What leads to old, which `legacy` selects.
    fn found(routes: Routes) -> Vec<String> {
        let pods = [object(json!({
            "metadata": {"name": "old-0", "namespace": "n", "labels": {"app": "old"}},
            "spec": {"containers": [{"ports": [{"containerPort": 8000}]}]},
            "status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        }))];
        let services = [object(json!({
            "metadata": {"name": "legacy", "namespace": "n"},
            "spec": {"selector": {"app": "old"}, "clusterIP": "10.9.0.1"},
        }))];
        let place = OldPlace::example();
        let old = OldPods::of(&pods, &pods);
        let to_old = ToOld {
            namespace: "n",
            services: &ServicesToOld::of(&services, &[], &old, &place),
            old: &old,
            pools: &PoolsToOld::default(),
            domain: "cluster.local",
        };
        routes.leading_to(&to_old).unwrap()
    }

    /// The names of the objects of a kind that lead to old.
    fn leading(kind: &'static str, specs: &[(&str, Json)]) -> Vec<String> {
        let objects = specs.iter().map(|(name, spec)| {
            let (namespace, name) = name.split_once('/').unwrap();
            object(json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec}))
        });
        let routes = Routes {
            ingresses: Ok(Vec::new()),
            exports: Ok(Vec::new()),
            others: vec![(kind, Ok(objects.collect()))],
        };
        let found = found(routes);
        let prefix = format!("{kind} ");
        let names = found.iter().map(|one| one.strip_prefix(&prefix).unwrap());
        names.map(str::to_owned).collect()
    }

    #[test]
    fn a_route_of_openshift_leads_to_the_services_of_its_namespace() {
        let to = |name: &str| json!({"to": {"kind": "Service", "name": name, "weight": 100}});
        let mut by_half = to("new");
        by_half["alternateBackends"] = json!([{"kind": "Service", "name": "legacy", "weight": 0}]);
        let routes = [
            ("n/to", to("legacy")),
            ("n/by-half", by_half),
            ("n/new", to("new")),
            ("m/elsewhere", to("legacy")),
        ];
        assert_eq!(leading("Route", &routes), ["n/to", "n/by-half"]);
    }

    #[test]
    fn an_ingress_leads_to_what_an_annotation_of_its_controller_names() {
        let alb = json!({"type": "forward", "forwardConfig": {"targetGroups": [
            {"serviceName": "legacy", "servicePort": "80"},
        ]}});
        let ingresses = [
            ("alb.ingress.kubernetes.io/actions.all", alb.to_string()),
            (
                "nginx.ingress.kubernetes.io/default-backend",
                "n/legacy".to_owned(),
            ),
            (
                "nginx.ingress.kubernetes.io/mirror-target",
                "http://legacy.n.svc.cluster.local:80/$request_uri".to_owned(),
            ),
            (
                "nginx.ingress.kubernetes.io/upstream-vhost",
                "legacy-2".to_owned(),
            ),
            // It has no meaning for a controller.
            ("example.com/replaces", "legacy".to_owned()),
        ];
        let ingresses = ingresses.iter().enumerate().map(|(index, (name, value))| {
            let metadata = json!({"name": index.to_string(), "annotations": {*name: value}});
            object(json!({"metadata": metadata, "spec": {}}))
        });
        let found = found(Routes {
            ingresses: Ok(ingresses.collect()),
            exports: Ok(Vec::new()),
            others: Vec::new(),
        });
        let expected = [
            "Ingress 0 by its annotation alb.ingress.kubernetes.io/actions.all",
            "Ingress 1 by its annotation nginx.ingress.kubernetes.io/default-backend",
            "Ingress 2 by its annotation nginx.ingress.kubernetes.io/mirror-target",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_route_leads_to_a_host_name() {
        let to = |name: &str| {
            json!({"rules": [{"backendRefs": [
                {"group": "networking.istio.io", "kind": "Hostname", "name": name, "port": 80},
            ]}]})
        };
        let routes = [
            ("m/named", to("legacy.n.svc.cluster.local")),
            ("m/other", to("legacy.m.svc.cluster.local")),
        ];
        assert_eq!(leading("HTTPRoute", &routes), ["m/named"]);
    }

    #[test]
    fn an_entry_of_a_mesh_leads_to_its_endpoints_its_pods_or_its_own_hosts() {
        let endpoint =
            |address: &str| json!({"hosts": ["chat.example"], "endpoints": [{"address": address}]});
        let selects =
            json!({"hosts": ["chat.example"], "workloadSelector": {"labels": {"app": "old"}}});
        let entries = [
            ("m/by-address", endpoint("10.0.0.1")),
            ("m/by-address-6", endpoint("fd00:0::1")),
            ("m/by-service-address", endpoint("10.9.0.1")),
            ("m/by-host", endpoint("legacy.n.svc.cluster.local")),
            ("n/by-short-host", endpoint("legacy")),
            ("n/by-labels", selects.clone()),
            (
                "m/by-own-host",
                json!({"hosts": ["legacy.n"], "resolution": "DNS"}),
            ),
            (
                "m/by-own-address",
                json!({"hosts": ["chat.example"], "addresses": ["10.9.0.1/32"]}),
            ),
            // They lead elsewhere.
            ("m/by-labels-there", selects),
            ("m/other", endpoint("10.0.0.2")),
            ("m/other-host", endpoint("legacy")),
            ("m/socket", endpoint("unix:///legacy")),
        ];
        let found = leading("ServiceEntry", &entries);
        let expected: Vec<_> = entries[..8].iter().map(|(name, _)| *name).collect();
        assert_eq!(found, expected);
        let entries = [
            ("m/named", json!({"address": "10.0.0.1"})),
            ("m/other", json!({"address": "10.0.0.2"})),
        ];
        assert_eq!(leading("WorkloadEntry", &entries), ["m/named"]);
    }
}
