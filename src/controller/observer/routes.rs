//! What routes to old's frontends besides Services and InferencePools: Ingresses, routes, and the objects of gateways and meshes.
//!
//! All kinds except Ingress are optional: a kind that the cluster does not serve routes nothing. Contains no policy.

use std::collections::BTreeSet;

use kube::api::DynamicObject;
use serde_json::Value as Json;

use super::Observer;
use super::kinds::{
    BY_TEXT, EXPORTS, MESH_CONFIG, ROUTES, ingresses, routes_of_openshift, services,
};
use super::mesh::may_lead_to_any;
use super::route_match::{
    ServiceName, backends, is_host_of_route, is_pool_of_route, is_service_of_ingress,
    is_service_of_parent, is_service_of_route,
};
use super::to_old::{ToOld, display_name, namespace_of};
use crate::k8s::{GroupKind, NotSynced, Object};

/// The fields in which a route names what it routes to. A mirror needs old, too: a gateway may reject a route with a backend that
/// does not exist.
const BACKENDS: [&str; 4] = ["backendRefs", "backendRef", "to", "alternateBackends"];

type Listed = Result<Vec<Object>, NotSynced>;

/// The objects of all kinds that route, as they are listed.
pub(super) struct Routes {
    ingresses: Listed,
    /// Services, which may have routes in an annotation.
    services: Listed,
    exports: Vec<(&'static str, Listed)>,
    /// Of kinds that are parsed.
    others: Vec<(&'static str, Listed)>,
    /// Of kinds that are not.
    by_text: Vec<(GroupKind, Listed)>,
}

impl Observer {
    /// All kinds are requested before the first error returns, so that the cache starts to list all of them.
    pub(super) fn routes(&self) -> Routes {
        let served = |kind: &GroupKind| self.cache.all_served(kind);
        let others = ROUTES.iter().chain(MESH_CONFIG);
        let others = others.map(|kind| (kind.kind, served(kind)));
        let of_openshift = self.cache.all_of_any(&[routes_of_openshift()]);
        Routes {
            ingresses: self.cache.all(&ingresses()),
            services: self.cache.all(&services()),
            exports: { EXPORTS.iter() }
                .map(|kind| (kind.kind, served(kind)))
                .collect(),
            others: others.chain([("Route", of_openshift)]).collect(),
            by_text: { BY_TEXT.iter() }
                .map(|kind| (*kind, served(kind)))
                .collect(),
        }
    }
}

impl Routes {
    /// Those that lead to old, as text for users.
    pub fn leading_to(&self, to_old: &ToOld) -> Result<Vec<String>, NotSynced> {
        let leading = self.objects_leading_to(to_old)?.into_iter();
        Ok(leading.map(|(text, _)| text).collect())
    }

    /// The same, with the objects themselves.
    pub fn objects_leading_to(&self, to_old: &ToOld) -> Result<Vec<(String, &Object)>, NotSynced> {
        let mut found = Vec::new();
        for (kind, exports) in &self.exports {
            for export in listed(exports)? {
                let (own, name) = (&export.metadata.namespace, &export.metadata.name);
                let name = own.clone().zip(name.clone()).unwrap_or_default();
                if to_old.services.names.contains(&name) {
                    found.push((format!("{kind} {}/{}", name.0, name.1), export));
                }
            }
        }
        for ingress in listed(&self.ingresses)? {
            let own = namespace_of(ingress);
            let name = ingress.metadata.name.as_deref().unwrap_or_default();
            let name = match own == to_old.namespace {
                true => name.to_owned(),
                false => format!("{own}/{name}"),
            };
            if to_old.is_of_ingress(ingress) {
                found.push((format!("Ingress {name}"), ingress));
            } else if let Some(annotation) = to_old.named_by_annotation(ingress) {
                let text = format!("Ingress {name} by its annotation {annotation}");
                found.push((text, ingress));
            }
        }
        let annotated = listed(&self.services)?.iter();
        let annotated = annotated.filter(|service| to_old.is_named_by_service(service));
        found.extend(annotated.map(|service| {
            let name = display_name("Service", service);
            (format!("{name} by an annotation"), service)
        }));
        for (kind, objects) in &self.others {
            let leading = listed(objects)?.iter();
            let leading = leading.filter(|object| match *kind {
                "VirtualService" => to_old.is_of_virtual_service(object),
                "ServiceEntry" | "WorkloadEntry" => to_old.is_of_entry(object),
                _ => to_old.is_of_route(object),
            });
            found.extend(leading.map(|object| (display_name(kind, object), object)));
        }
        let named = to_old.named_by(self.by_text()?).into_iter();
        found.extend(named.map(|(kind, object)| (display_name(&kind.name(), object), object)));
        Ok(found)
    }

    /// Whether one of them leads to this InferencePool.
    pub fn lead_to_pool(&self, pool: &ServiceName) -> Result<bool, NotSynced> {
        for (_, objects) in &self.others {
            let names = |route: &Object| {
                let own = namespace_of(route);
                let mut fields = BACKENDS.into_iter();
                fields.any(|field| {
                    let of_route = |backend: &Json| is_pool_of_route(backend, own);
                    backends(&route.data["spec"], field, &of_route).contains(pool)
                })
            };
            if listed(objects)?.iter().any(names) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The objects that lead to one of these ports of old's pods by address, as text for users. The others lead to a Service.
    pub fn leading_to_ports(
        &self,
        to_old: &ToOld,
        numbers: &BTreeSet<u16>,
    ) -> Result<Vec<String>, NotSynced> {
        let mut found = Vec::new();
        let entries = self.others.iter();
        for (kind, objects) in entries.filter(|(kind, _)| kind.ends_with("Entry")) {
            let leading = listed(objects)?.iter();
            let leading = leading
                .filter(|entry| to_old.is_of_entry(entry) && may_lead_to_any(entry, numbers));
            found.extend(leading.map(|object| display_name(kind, object)));
        }
        for (kind, object) in self.by_text()? {
            if to_old.is_named_at_port(object, numbers) {
                found.push(display_name(&kind.name(), object));
            }
        }
        Ok(found)
    }

    fn by_text(&self) -> Result<Vec<(&GroupKind, &Object)>, NotSynced> {
        let mut found = Vec::new();
        for (kind, objects) in &self.by_text {
            found.extend(listed(objects)?.iter().map(|object| (kind, object)));
        }
        Ok(found)
    }
}

fn listed(found: &Listed) -> Result<&[Object], NotSynced> {
    found.as_deref().map_err(Clone::clone)
}

impl ToOld<'_> {
    fn has_any(&self, backends: &BTreeSet<ServiceName>) -> bool {
        !backends.is_disjoint(&self.services.names)
    }

    fn is_of_ingress(&self, ingress: &DynamicObject) -> bool {
        let (own, spec) = (namespace_of(ingress), &ingress.data["spec"]);
        let services = backends(spec, "service", &|backend| {
            is_service_of_ingress(backend, own)
        });
        let resources = backends(spec, "resource", &|backend| {
            is_service_of_route(backend, own)
        });
        self.has_any(&services) || self.has_any(&resources)
    }

    fn is_of_route(&self, route: &DynamicObject) -> bool {
        let (own, spec) = (namespace_of(route), &route.data["spec"]);
        // Without the Service, clients cannot use the route.
        let parents = backends(spec, "parentRefs", &|parent| {
            is_service_of_parent(parent, own)
        });
        if self.has_any(&parents) {
            return true;
        }
        BACKENDS.into_iter().any(|field| {
            let services = backends(spec, field, &|backend| is_service_of_route(backend, own));
            // If a pool is deleted with old, the route has no backend.
            let pools = backends(spec, field, &|backend| is_pool_of_route(backend, own));
            let hosts = backends(spec, field, &is_host_of_route);
            self.has_any(&services)
                || !pools.is_disjoint(&self.pools.names)
                || hosts.iter().any(|host| self.has_host(host, own))
        })
    }
}

/// The initial state of the tests of routes.
#[cfg(test)]
pub(super) mod examples {
    use serde_json::{Value as Json, json};

    use super::super::old_pods::OldPods;
    use super::super::pools::PoolsToOld;
    use super::super::services::{AllServices, OldScope, ServicesToOld};
    use super::*;
    use crate::k8s::object;

    /// No routes at all.
    pub const fn none() -> Routes {
        Routes {
            ingresses: Ok(Vec::new()),
            services: Ok(Vec::new()),
            exports: Vec::new(),
            others: Vec::new(),
            by_text: Vec::new(),
        }
    }

    /// These Ingresses.
    pub fn ingresses(all: impl Iterator<Item = Object>) -> Routes {
        Routes {
            ingresses: Ok(all.collect()),
            ..none()
        }
    }

    /// These Services.
    pub fn services(all: Vec<Object>) -> Routes {
        Routes {
            services: Ok(all),
            ..none()
        }
    }

    /// These objects of kinds that are not parsed.
    pub fn by_text(all: Vec<(GroupKind, Vec<Object>)>) -> Routes {
        let all = all.into_iter();
        Routes {
            by_text: all.map(|(kind, objects)| (kind, Ok(objects))).collect(),
            ..none()
        }
    }

    /// The result of `read` for what leads to old, which `legacy` selects.
    pub fn read<T>(read: impl FnOnce(&ToOld) -> Result<T, NotSynced>) -> T {
        let pods = [object(json!({
            "metadata": {"name": "old-0", "namespace": "n", "labels": {"app": "old"}},
            "spec": {"containers": [{"ports": [{"containerPort": 8000, "hostPort": 80}]}]},
            "status": {
                "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "hostIP": "192.0.2.7",
            },
        }))];
        let services = [object(json!({
            "metadata": {"name": "legacy", "namespace": "n"},
            "spec": {
                "selector": {"app": "old"}, "clusterIP": "10.9.0.1", "ports": [{"port": 80, "nodePort": 30080}],
            },
        }))];
        let scope = OldScope::example();
        let old = OldPods::of(&pods, &pods);
        let to_old = ToOld {
            namespace: "n",
            services: &ServicesToOld::of(
                &AllServices::of(&services, &[], scope.domain),
                &old,
                &scope,
            ),
            old: &old,
            pools: &PoolsToOld::default(),
            domain: "cluster.local",
        };
        read(&to_old).unwrap()
    }

    pub fn routes_of(kind: &'static str, specs: &[(&str, Json)]) -> Routes {
        let objects = specs.iter().map(|(name, spec)| {
            let (namespace, name) = name.split_once('/').unwrap();
            object(json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec}))
        });
        Routes {
            others: vec![(kind, Ok(objects.collect()))],
            ..none()
        }
    }

    /// The names of the objects of a kind that lead to old.
    pub fn leading(kind: &'static str, specs: &[(&str, Json)]) -> Vec<String> {
        let found = read(|to_old| routes_of(kind, specs).leading_to(to_old));
        let prefix = format!("{kind} ");
        let names = found.iter().map(|one| one.strip_prefix(&prefix).unwrap());
        names.map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::examples::{ingresses as ingresses_of, leading, read};
    use crate::k8s::object;

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
    fn an_ingress_leads_to_the_services_of_its_namespace() {
        let service = json!({"service": {"name": "legacy", "port": {"number": 80}}});
        let import = json!({"resource": {
            "apiGroup": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "legacy",
        }});
        let bucket = json!({"resource": {"kind": "Bucket", "name": "legacy"}});
        let ingresses = [
            ("n", &service),
            ("n", &import),
            ("n", &bucket),
            ("m", &service),
        ];
        let objects = ingresses
            .iter()
            .enumerate()
            .map(|(index, (namespace, backend))| {
                let metadata = json!({"name": index.to_string(), "namespace": namespace});
                object(json!({"metadata": metadata, "spec": {"defaultBackend": backend}}))
            });
        let found = read(|to_old| ingresses_of(objects).leading_to(to_old));
        assert_eq!(found, ["Ingress 0", "Ingress 1"]);
    }

    #[test]
    fn a_route_needs_the_service_by_whose_name_clients_find_it() {
        let to_new = json!([{"backendRefs": [{"name": "new", "port": 80}]}]);
        let of = |parent: Json| json!({"parentRefs": [parent], "rules": to_new});
        let routes = [
            (
                "n/own",
                of(json!({"group": "", "kind": "Service", "name": "legacy"})),
            ),
            (
                "m/there",
                of(json!({"kind": "Service", "name": "legacy", "namespace": "n"})),
            ),
            ("n/gateway", of(json!({"name": "legacy"}))),
            ("n/other", of(json!({"kind": "Service", "name": "new"}))),
        ];
        assert_eq!(leading("HTTPRoute", &routes), ["n/own", "m/there"]);
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
}
