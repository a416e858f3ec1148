//! What routes to the frontends of old beside Services and InferencePools: Ingresses, routes, and the objects of a mesh.
//!
//! The kinds of the Gateway API, OpenShift and Istio are optional: one that the cluster does not serve routes nothing. Contains no
//! policy.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kube::api::{ApiResource, DynamicObject};
use serde_json::Value as Json;

use super::Observer;
use super::kinds::{exports, ingresses, of_istio, routes};
use super::old_pods::OldPods;
use super::pools::PoolsToOld;
use super::services::ServicesToOld;
use super::ways::{
    ServiceName, backends, is_host_of_route, is_pool_of_route, is_selected_by,
    is_service_of_ingress, is_service_of_parent, is_service_of_route,
};
use crate::k8s::{NotSynced, Object};

/// The fields in which a route names what it routes to. A mirror needs old, too: a gateway may reject a route with a backend that
/// does not exist.
const BACKENDS: [&str; 4] = ["backendRefs", "backendRef", "to", "alternateBackends"];

/// How the annotation is named that repeats a whole object.
const REPEATS: &str = "kubectl.kubernetes.io/last-applied-configuration";

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
    pub(super) fn routes(&self) -> Routes {
        let all = |(kind, versions): (&'static str, Vec<ApiResource>)| {
            (kind, self.cache.all_of_any(&versions))
        };
        Routes {
            ingresses: self.cache.all(&ingresses()),
            exports: self.cache.all_of_any(&exports()),
            others: routes().chain(of_istio()).map(all).collect(),
        }
    }
}

impl Routes {
    /// Those that lead to old, as text for users.
    pub fn leading_to(&self, to_old: &ToOld) -> Result<Vec<String>, NotSynced> {
        let mut found = Vec::new();
        for export in listed(&self.exports)? {
            let (own, name) = (&export.metadata.namespace, &export.metadata.name);
            let name = own.clone().zip(name.clone()).unwrap_or_default();
            if to_old.services.names.contains(&name) {
                found.push(format!("ServiceExport {}/{}", name.0, name.1));
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
                found.push(format!("Ingress {name}"));
            } else if let Some(annotation) = to_old.named_by_annotation(ingress) {
                found.push(format!("Ingress {name} by its annotation {annotation}"));
            }
        }
        for (kind, objects) in &self.others {
            let leading = listed(objects)?.iter();
            let leading = leading.filter(|object| match *kind {
                "VirtualService" => to_old.is_of_virtual_service(object),
                "ServiceEntry" | "WorkloadEntry" => to_old.is_of_entry(object),
                _ => to_old.is_of_route(object),
            });
            found.extend(leading.map(|object| told(kind, object)));
        }
        Ok(found)
    }

    /// Those that lead to one of these ports of old's pods, as text for users: the entries of a mesh. The others lead to a Service.
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
            found.extend(leading.map(|object| told(kind, object)));
        }
        Ok(found)
    }
}

fn listed(found: &Result<Vec<Object>, NotSynced>) -> Result<&[Object], NotSynced> {
    found.as_deref().map_err(Clone::clone)
}

fn namespace_of(object: &DynamicObject) -> &str {
    object.metadata.namespace.as_deref().unwrap_or_default()
}

fn told(kind: &str, object: &DynamicObject) -> String {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    format!("{kind} {}/{name}", namespace_of(object))
}

/// Whether an entry of a mesh may lead to one of these ports. One that names no port leads to those of another entry.
fn may_lead_to_any(entry: &DynamicObject, numbers: &BTreeSet<u16>) -> bool {
    let spec = &entry.data["spec"];
    let is_any = |port: &Json| {
        port.as_u64()
            .is_some_and(|port| numbers.iter().any(|own| u64::from(*own) == port))
    };
    let names_ports = |ports: &Json| match ports {
        Json::Array(ports) => !ports.is_empty(),
        Json::Object(ports) => !ports.is_empty(),
        _ => false,
    };
    let mut left = vec![spec];
    while let Some(value) = left.pop() {
        match value {
            Json::Object(fields) => left.extend(fields.values()),
            Json::Array(items) => left.extend(items),
            port if is_any(port) => return true,
            _ => {}
        }
    }
    !names_ports(&spec["ports"])
}

impl ToOld<'_> {
    fn has_any(&self, backends: &BTreeSet<ServiceName>) -> bool {
        !backends.is_disjoint(&self.services.names)
    }

    fn has_host(&self, host: &str, own: &str) -> bool {
        self.services.has_host(host, own, self.old, self.domain)
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

    /// The annotation of an Ingress that names something of old. Ingress controllers also take backends from their annotations, such
    /// as `alb.ingress.kubernetes.io/actions.NAME` and `nginx.ingress.kubernetes.io/default-backend`. An annotation whose name does
    /// not say that it is one of these, such as `nginx.org/location-snippets`, must name the host in full.
    fn named_by_annotation<'b>(&self, ingress: &'b DynamicObject) -> Option<&'b str> {
        let own = namespace_of(ingress);
        let annotations = ingress.metadata.annotations.iter().flatten();
        let mut read = annotations.filter(|(name, _)| *name != REPEATS);
        let is_of_host = |letter: char| letter.is_ascii_alphanumeric() || "-.:".contains(letter);
        let is_full = |word: &str| word.contains(".svc") || word.parse::<IpAddr>().is_ok();
        let (name, _) = read.find(|(name, value)| {
            let words = value.split(|letter| !is_of_host(letter));
            let words = words.flat_map(|word| [word, word.split(':').next().unwrap_or(word)]);
            let is_of_controller = name.contains("ingress");
            let mut words = words.filter(|word| !word.is_empty());
            words.any(|word| (is_of_controller || is_full(word)) && self.has_host(word, own))
        })?;
        Some(name)
    }

    fn is_of_route(&self, route: &DynamicObject) -> bool {
        let (own, spec) = (namespace_of(route), &route.data["spec"]);
        // Without the Service, clients cannot name what the route leads to.
        let parents = backends(spec, "parentRefs", &|parent| {
            is_service_of_parent(parent, own)
        });
        if self.has_any(&parents) {
            return true;
        }
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
        let own = namespace_of(service);
        let is_meant = |destination: &Json| {
            let host = destination["host"].as_str()?;
            self.has_host(host, own).then_some(())
        };
        let spec = &service.data["spec"];
        let mut fields = ["destination", "mirror"].into_iter();
        // Clients name its hosts. Without the Service, they cannot, wherever it leads.
        self.is_of_hosts(service, "hosts")
            || fields.any(|field| !backends(spec, field, &is_meant).is_empty())
    }

    /// Whether a ServiceEntry or WorkloadEntry leads to old: by its endpoints, or the pods that it selects, or what its own hosts
    /// and addresses resolve to.
    fn is_of_entry(&self, entry: &DynamicObject) -> bool {
        let own = namespace_of(entry);
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
        let own = namespace_of(object);
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

    /// What `read` reads of what leads to old, which `legacy` selects.
    fn read<T>(read: impl FnOnce(&ToOld) -> Result<T, NotSynced>) -> T {
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
        read(&to_old).unwrap()
    }

    fn routes_of(kind: &'static str, specs: &[(&str, Json)]) -> Routes {
        let objects = specs.iter().map(|(name, spec)| {
            let (namespace, name) = name.split_once('/').unwrap();
            object(json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec}))
        });
        Routes {
            ingresses: Ok(Vec::new()),
            exports: Ok(Vec::new()),
            others: vec![(kind, Ok(objects.collect()))],
        }
    }

    /// The names of the objects of a kind that lead to old.
    fn leading(kind: &'static str, specs: &[(&str, Json)]) -> Vec<String> {
        let found = read(|to_old| routes_of(kind, specs).leading_to(to_old));
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
        let alb = alb.to_string();
        let mirror = "http://legacy.n.svc.cluster.local:80/$request_uri";
        let snippet = "proxy_pass http://10.0.0.1:8000;";
        let ingresses = [
            ("n", "alb.ingress.kubernetes.io/actions.all", &*alb),
            (
                "n",
                "nginx.ingress.kubernetes.io/default-backend",
                "n/legacy",
            ),
            ("n", "nginx.ingress.kubernetes.io/mirror-target", mirror),
            ("m", "nginx.ingress.kubernetes.io/auth-url", mirror),
            ("m", "nginx.org/location-snippets", snippet),
            (
                "n",
                "nginx.ingress.kubernetes.io/upstream-vhost",
                "legacy-2",
            ),
            ("m", "alb.ingress.kubernetes.io/actions.all", &*alb),
            // They have no meaning for a controller.
            ("n", "example.com/replaces", "legacy"),
            ("n", REPEATS, mirror),
        ];
        let objects = ingresses.iter().enumerate().map(|(index, ingress)| {
            let (namespace, name, value) = ingress;
            let metadata = json!({
                "name": index.to_string(), "namespace": namespace, "annotations": {*name: value},
            });
            object(json!({"metadata": metadata, "spec": {}}))
        });
        let routes = Routes {
            ingresses: Ok(objects.collect()),
            exports: Ok(Vec::new()),
            others: Vec::new(),
        };
        let expected = [
            "Ingress 0 by its annotation alb.ingress.kubernetes.io/actions.all",
            "Ingress 1 by its annotation nginx.ingress.kubernetes.io/default-backend",
            "Ingress 2 by its annotation nginx.ingress.kubernetes.io/mirror-target",
            "Ingress m/3 by its annotation nginx.ingress.kubernetes.io/auth-url",
            "Ingress m/4 by its annotation nginx.org/location-snippets",
        ];
        assert_eq!(read(|to_old| routes.leading_to(to_old)), expected);
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
        let routes = Routes {
            ingresses: Ok(objects.collect()),
            exports: Ok(Vec::new()),
            others: Vec::new(),
        };
        let found = read(|to_old| routes.leading_to(to_old));
        assert_eq!(found, ["Ingress 0", "Ingress 1"]);
    }

    #[test]
    fn a_route_or_virtual_service_needs_the_service_by_whose_name_clients_find_it() {
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
        let of = |host: &str| json!({"hosts": [host], "http": [{"route": [{"destination": {"host": "new"}}]}]});
        let services = [
            ("n/own", of("legacy")),
            ("m/there", of("legacy.n.svc.cluster.local")),
            ("m/other", of("legacy")),
        ];
        assert_eq!(leading("VirtualService", &services), ["n/own", "m/there"]);
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

    #[test]
    fn an_entry_of_a_mesh_may_lead_to_the_port_behind_a_proxy() {
        let own_ports = BTreeSet::from([8080]);
        let around = |kind, specs: &[(&str, Json)]| {
            read(|to_old| routes_of(kind, specs).leading_to_ports(to_old, &own_ports))
        };
        let entry = |port: Json, endpoint: Json| json!({"hosts": ["chat.example"], "ports": [port], "endpoints": [endpoint]});
        let old = json!({"address": "10.0.0.1"});
        let entries = [
            ("m/number", entry(json!({"number": 8080}), old.clone())),
            (
                "m/target",
                entry(json!({"number": 80, "targetPort": 8080}), old.clone()),
            ),
            (
                "m/endpoint",
                entry(
                    json!({"number": 80}),
                    json!({"address": "10.0.0.1", "ports": {"http": 8080}}),
                ),
            ),
            (
                "m/proxy",
                entry(json!({"number": 80, "targetPort": 8000}), old),
            ),
            (
                "m/other",
                entry(json!({"number": 8080}), json!({"address": "10.0.0.2"})),
            ),
        ];
        let found = around("ServiceEntry", &entries);
        assert_eq!(
            found,
            ["m/number", "m/target", "m/endpoint"].map(|name| format!("ServiceEntry {name}"))
        );
        let entries = [
            // Its ports are those of the entries that select it.
            ("m/any", json!({"address": "10.0.0.1"})),
            (
                "m/own",
                json!({"address": "10.0.0.1", "ports": {"http": 8080}}),
            ),
            (
                "m/proxy",
                json!({"address": "10.0.0.1", "ports": {"http": 8000}}),
            ),
        ];
        let found = around("WorkloadEntry", &entries);
        assert_eq!(found, ["WorkloadEntry m/any", "WorkloadEntry m/own"]);
    }
}
