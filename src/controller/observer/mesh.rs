//! Finds the Istio objects that lead to old: VirtualServices, ServiceEntries, and WorkloadEntries.
//!
//! When in doubt, an object counts as leading to old.

use std::collections::BTreeSet;

use kube::api::DynamicObject;
use serde_json::Value as Json;

use super::route_match::{backends, is_selected_by};
use super::to_old::{ToOld, namespace_of};

/// Whether an entry of a mesh may lead to one of these ports. An entry that names no port leads to those of another entry.
pub(super) fn may_lead_to_any(entry: &DynamicObject, numbers: &BTreeSet<u16>) -> bool {
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
    pub(super) fn is_of_virtual_service(&self, service: &DynamicObject) -> bool {
        let own = namespace_of(service);
        let is_meant = |destination: &Json| {
            let host = destination["host"].as_str()?;
            self.has_host(host, own).then_some(())
        };
        let spec = &service.data["spec"];
        let mut fields = ["destination", "mirror"].into_iter();
        // Clients use its hosts. Without the Service, they cannot, no matter where it leads.
        self.is_of_hosts(service, "hosts")
            || self.is_of_wildcard(spec)
            || fields.any(|field| !backends(spec, field, &is_meant).is_empty())
    }

    /// Whether a wildcard among the `hosts` of a VirtualService covers a Service that leads to old. In gateways, `*` also stands
    /// for other hosts: it covers the names of Services only in the mesh.
    fn is_of_wildcard(&self, spec: &Json) -> bool {
        let is_of_mesh = spec["gateways"]
            .as_array()
            .is_none_or(|all| all.is_empty() || all.iter().any(|gateway| gateway == "mesh"));
        let hosts = spec["hosts"].as_array().into_iter().flatten();
        let hosts = hosts.filter_map(|host| host.as_str()?.strip_prefix('*'));
        let hosts: Vec<_> = hosts.map(str::to_ascii_lowercase).collect();
        let covers = |name: &str| {
            let mut hosts = hosts.iter();
            hosts.any(|host| (is_of_mesh || !host.is_empty()) && name.ends_with(&**host))
        };
        let mut names = self.services.names.iter();
        names.any(|(own, name)| {
            let short = format!("{name}.{own}");
            let service = format!("{short}.svc");
            covers(&format!("{service}.{}", self.domain)) || covers(&service) || covers(&short)
        })
    }

    /// Whether a ServiceEntry or WorkloadEntry leads to old: by its endpoints, or the pods that it selects, or what its own hosts
    /// and addresses resolve to.
    pub(super) fn is_of_entry(&self, entry: &DynamicObject) -> bool {
        let own = namespace_of(entry);
        let labels = &entry.data["spec"]["workloadSelector"]["labels"];
        let selects = own == self.namespace && is_selected_by(labels, self.old.pods());
        let fields = ["address", "hosts", "addresses"];
        selects
            || self.is_of_node(entry)
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

    use super::super::routes::examples::{leading, read, routes_of};
    use super::*;

    #[test]
    fn a_virtual_service_needs_the_service_by_whose_name_clients_find_it() {
        let of = |host: &str| json!({"hosts": [host], "http": [{"route": [{"destination": {"host": "new"}}]}]});
        let services = [
            ("n/own", of("legacy")),
            ("m/there", of("legacy.n.svc.cluster.local")),
            ("m/other", of("legacy")),
        ];
        assert_eq!(leading("VirtualService", &services), ["n/own", "m/there"]);
    }

    #[test]
    fn a_virtual_service_with_a_wildcard_needs_the_services_whose_names_it_covers() {
        let of = |host: &str, gateways: &[&str]| {
            json!({
                "hosts": [host], "gateways": gateways, "http": [{"route": [{"destination": {"host": "new"}}]}],
            })
        };
        let mut in_mesh = of("*", &[]);
        in_mesh.as_object_mut().unwrap().remove("gateways");
        let services = [
            ("m/namespace", of("*.n.svc.cluster.local", &[])),
            ("m/domain", of("*.cluster.local", &["mesh"])),
            ("m/short", of("*.n", &[])),
            ("m/through-gateway", of("*.n.svc.cluster.local", &["edge"])),
            ("m/all", in_mesh),
            ("m/both", of("*", &["edge", "mesh"])),
            // They do not cover the name of any Service of old.
            ("m/gateway", of("*", &["edge"])),
            ("m/other", of("*.m.svc.cluster.local", &[])),
            ("m/example", of("*.example.com", &["edge"])),
        ];
        let found = leading("VirtualService", &services);
        let expected: Vec<_> = services[..6].iter().map(|(name, _)| *name).collect();
        assert_eq!(found, expected);
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
