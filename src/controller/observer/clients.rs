//! Finds what routes clients to old's frontends: `clientService`, and any other object in the cluster.
//!
//! If something cannot be listed, only what depends on it is unknown. Contains no policy.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use kube::api::DynamicObject;

use super::super::endpoints::{Endpoint, all_endpoints};
use super::super::old_frontends;
use super::super::parsed::ParsedUpdate;
use super::Observer;
use super::kinds::{POOLS, graphs, pods, services, slices};
use super::old_pods::{OldPods, addresses, may_listen};
use super::pods_of::pods_of_old;
use super::pools::PoolsToOld;
use super::route_match::ServiceName;
use super::routes::Routes;
use super::services::{AllServices, OldScope, ServicesToOld};
use super::to_old::ToOld;
use super::unlabelled::unlabelled_frontends;
use crate::k8s::workloads::pod_is_ready;
use crate::k8s::{NotSynced, Object};
use crate::resource::TargetAddress;
use crate::rollout::Clients;

/// The display name of a Service, with its namespace if that is not `own`.
fn display_name((namespace, name): &ServiceName, own: &str) -> String {
    match namespace == own {
        true => format!("Service {name}"),
        false => format!("Service {namespace}/{name}"),
    }
}

/// Whether another Service or a route leads to this Service, or may do so.
fn leads_to_service(
    routes: &Routes,
    service: &ServiceName,
    all: &AllServices,
    scope: &OldScope,
) -> bool {
    let services = ServicesToOld::of_service(service, all);
    let to_service = ToOld {
        namespace: scope.namespace,
        old: &OldPods::of(&[], &[]),
        services: &services,
        pools: &PoolsToOld::default(),
        domain: scope.domain,
    };
    let routes = routes.leading_to(&to_service);
    services.names.len() > 1 || routes.map_or(true, |found| !found.is_empty())
}

impl Observer {
    /// Where clients are routed, and what uses old's frontends as its new generation, if known. Only needed once old drains, so
    /// nothing is listed for it earlier.
    pub(super) fn ways_to_old(
        &self,
        parsed: &ParsedUpdate,
        old: &[Object],
        updates: &[Object],
    ) -> (Clients, Option<Vec<String>>) {
        if !parsed.memory().phase.old_drains() {
            return (Clients::default(), None);
        }
        let Ok(all) = self.cache.of(&pods(), &parsed.key.namespace) else {
            return (Clients::default(), None);
        };
        // All kinds are requested before the first error returns, so that the cache starts to list all of them.
        let (routes, pools) = (self.routes(), self.pools());
        let ownership = self.ownership(parsed, old, &all);
        let (services, slices) = (self.cache.all(&services()), self.cache.all(&slices()));
        let scope = self.old_scope(parsed);
        let (Ok(ownership), Ok(services), Ok(slices), Ok(scope)) =
            (ownership, services, slices, scope)
        else {
            return (Clients::default(), None);
        };
        // This reads every Service and slice of the cluster.
        let services = AllServices::of(&services, &slices, scope.domain);
        let mut frontends = old.to_vec();
        let is_used = |service: &ServiceName| leads_to_service(&routes, service, &services, &scope);
        let mut unlabelled =
            unlabelled_frontends(parsed, &all, &ownership, &services, &scope, is_used);
        unlabelled.retain(|pod| !old.iter().any(|one| one.metadata.uid == pod.metadata.uid));
        frontends.extend(unlabelled.clone());
        let old = OldPods::of(&frontends, &all);
        let to_old = ServicesToOld::of(&services, &old, &scope);
        let pools = pools.map(|pools| pools_to_old(parsed, &pools, &old, &all, &scope));
        let no_pools = PoolsToOld::default();
        let ways = ToOld {
            namespace: scope.namespace,
            old: &old,
            services: &to_old,
            pools: pools.as_ref().unwrap_or(&no_pools),
            domain: scope.domain,
        };
        let (reach_new, reach_old) = self.reach(parsed, &ways, &all);
        let ways = pools.is_ok().then_some(&ways);
        let clients = Clients {
            reach_new,
            reach_old,
            other_ways: ways.and_then(|ways| self.other_ways(parsed, ways, &routes).ok()),
            bypasses: ways.and_then(|ways| self.around_proxies(ways, &routes).ok()),
            deleted_with_old: {
                self.deleted_with_old(parsed, &all, &routes, &services, &ownership)
            }
            .ok(),
        };
        let updates_to_old = self.updates_to_old(parsed, &old, &to_old, updates, unlabelled);
        (clients, updates_to_old)
    }

    /// Whether `clientService` leads to new, and whether it leads to old, as far as that is known.
    fn reach(
        &self,
        parsed: &ParsedUpdate,
        ways: &ToOld,
        all: &[Object],
    ) -> (Option<bool>, Option<bool>) {
        let Some(service) = &parsed.spec.client_service else {
            return (None, None);
        };
        let reached = self.client_service(parsed, service, ways, all);
        reached.unwrap_or_else(|not_synced| {
            tracing::debug!(update = %parsed.key, %not_synced, "cannot determine where clients are routed");
            (None, None)
        })
    }

    /// What leads to the frontends' own port of old's pods.
    fn around_proxies(&self, ways: &ToOld, routes: &Routes) -> Result<Vec<String>, NotSynced> {
        let port = &self.settings.options.frontend_port;
        let around = ways.services.around_proxies.iter();
        let around = around.map(|name| display_name(name, ways.namespace));
        let around = around.chain(ways.pools.around_proxies.iter().cloned());
        let mut routed = Vec::new();
        for pool in &ways.pools.of_workers {
            if routes.lead_to_pool(pool)? {
                routed.push(format!("InferencePool {}", pool.1));
            }
        }
        let entries = routes.leading_to_ports(ways, &ways.old.own_ports(port))?;
        let host_ports = ways.old.on_host_ports(port);
        let unknown = ways.old.without_port(port);
        Ok(around
            .chain(routed)
            .chain(entries)
            .chain(host_ports)
            .chain(unknown)
            .collect())
    }

    /// Whether the Service leads to a ready frontend of new, and whether it leads to any of old.
    fn client_service(
        &self,
        parsed: &ParsedUpdate,
        service: &str,
        ways: &ToOld,
        all: &[Object],
    ) -> Result<(Option<bool>, Option<bool>), NotSynced> {
        let namespace = &parsed.key.namespace;
        let object = self.cache.one(&services(), namespace, service)?;
        let found = all_endpoints(&self.cache, namespace, service, 0)?;
        // Slices may outlive their Service. Kubernetes also keeps the slices of a Service that has become an alias
        // (`ExternalName`), although clients are then sent elsewhere.
        let object = object.filter(|object| object.data["spec"]["type"] != "ExternalName");
        let (Some(object), Some(endpoints)) = (object, found) else {
            return Ok((None, None));
        };
        let new = self.pods_of_new(parsed)?;
        let name = (namespace.clone(), service.to_owned());
        let by_name: HashMap<&str, &Object> = all
            .iter()
            .filter_map(|pod| Some((pod.metadata.name.as_deref()?, pod)))
            .collect();
        // Requests go to the address of an endpoint, no matter which pod it names.
        let is_at = |pod: &str, address: Option<IpAddr>| {
            let pod = by_name.get(pod).zip(address);
            pod.is_some_and(|(pod, address)| addresses(pod).any(|own| own == address))
        };
        // An endpoint that is not known to be new's may be old's, no matter what its labels are now.
        let reach_old = endpoints.iter().any(|endpoint| {
            let pod = endpoint.pod.as_ref();
            let is_of_new = pod.is_some_and(|pod| new.contains_key(pod) && is_at(pod, endpoint.ip));
            !is_of_new || ways.old.has(endpoint.pod.as_deref(), endpoint.ip)
        });
        let reach_old = reach_old || ways.services.names.contains(&name);
        // An endpoint may count as ready though its pod is not (`publishNotReadyAddresses`).
        let ready = all.iter().filter(|pod| pod_is_ready(pod));
        let ready: BTreeSet<&String> = ready.filter_map(|pod| pod.metadata.name.as_ref()).collect();
        let is_ready = |pod: &String| new.get(pod) == Some(&true) && ready.contains(pod);
        // If a pod lacks the port that the Service names, only its other ports are reachable, and only if it listens on them.
        let needed = needed_ports(&object);
        let ports_of_new = self.ports_of_new(parsed)?;
        let leads_to_port = |endpoint: &Endpoint| {
            let pod = endpoint.pod.as_deref().and_then(|pod| by_name.get(pod));
            needed.iter().all(|name| {
                let port = endpoint.ports.get(name).copied().flatten();
                port.zip(pod).is_some_and(|(port, pod)| {
                    ports_of_new.contains(&(endpoint.ip, port)) || may_listen(pod, port)
                })
            })
        };
        let reaches = |endpoint: &Endpoint| {
            let is_ready = endpoint.pod.as_ref().is_some_and(is_ready);
            endpoint.ready && is_ready && leads_to_port(endpoint)
        };
        let reaching = endpoints.iter().filter(|endpoint| reaches(endpoint));
        let reaching: Vec<Option<IpAddr>> = reaching.map(|endpoint| endpoint.ip).collect();
        let reach_new = !reaching.is_empty() && have_each_family(&object, &reaching);
        Ok((Some(reach_new), Some(reach_old)))
    }

    /// The pods of new's frontends in the update's namespace, by name, and whether each is ready: those behind its Services and
    /// those with its labels.
    pub(super) fn pods_of_new(
        &self,
        parsed: &ParsedUpdate,
    ) -> Result<BTreeMap<String, bool>, NotSynced> {
        let mut pods = BTreeMap::new();
        let mut note = |pod: String, ready: bool| *pods.entry(pod).or_insert(false) |= ready;
        let own = &parsed.key.namespace;
        // A pod of another namespace may have the name of any pod here.
        let is_own = |target: &&TargetAddress| {
            let found = target.service(&self.settings.options.domain);
            found.is_some_and(|(_, namespace)| namespace == own)
        };
        for target in parsed.plan.new.iter().filter(is_own) {
            for endpoint in self.endpoints_of(target)?.into_iter().flatten() {
                if let Some(pod) = endpoint.pod {
                    note(pod, endpoint.ready);
                }
            }
        }
        if let Some(target) = &parsed.spec.target_deployment {
            for pod in old_frontends::frontends_by_name(&self.cache, own, target)? {
                let ready = pod_is_ready(&pod);
                note(pod.metadata.name.clone().unwrap_or_default(), ready);
            }
        }
        Ok(pods)
    }

    /// The targets to which the plan sends requests for the new frontends.
    fn ports_of_new(
        &self,
        parsed: &ParsedUpdate,
    ) -> Result<BTreeSet<(Option<IpAddr>, u16)>, NotSynced> {
        let mut ports = BTreeSet::new();
        for target in &parsed.plan.new {
            let endpoints = self.endpoints_of(target)?.into_iter().flatten();
            let addresses = endpoints.filter_map(|endpoint| endpoint.address);
            ports.extend(addresses.map(|address| (Some(address.ip()), address.port())));
        }
        Ok(ports)
    }

    fn old_scope<'a>(&'a self, parsed: &'a ParsedUpdate) -> Result<OldScope<'a>, NotSynced> {
        let namespace = &parsed.key.namespace;
        let source = parsed.spec.source_deployment.as_deref().unwrap_or_default();
        let is_source = |graph: &Object| graph.metadata.name.as_deref() == Some(source);
        Ok(OldScope {
            namespace,
            source,
            is_graph: self.cache.of(&graphs(), namespace)?.iter().any(is_source),
            domain: &self.settings.options.domain,
            frontend_port: &self.settings.options.frontend_port,
        })
    }

    /// The InferencePools of all namespaces.
    fn pools(&self) -> Result<Vec<Object>, NotSynced> {
        let [stable, early] = POOLS.map(|kind| self.cache.all_served(&kind));
        Ok([stable?, early?].concat())
    }

    /// What else leads to old's frontends: Services that were not created with old, and everything that routes to any Service
    /// of old.
    fn other_ways(
        &self,
        parsed: &ParsedUpdate,
        ways: &ToOld,
        routes: &Routes,
    ) -> Result<Vec<String>, NotSynced> {
        let (namespace, to_old) = (ways.namespace, ways.services);
        let client_service = parsed.spec.client_service.as_ref();
        let mut found = ways.pools.ways.clone();
        for name in &to_old.names {
            let (own, service) = name;
            let is_clients = own == namespace && client_service == Some(service);
            if to_old.aliases.contains(name) {
                found.push(format!("Service {own}/{service} of type ExternalName"));
            } else if !to_old.deleted_with_old.contains(name) && !is_clients {
                found.push(display_name(name, namespace));
            }
        }
        let imports = to_old.imports.iter();
        found.extend(imports.map(|(own, name)| format!("ServiceImport {own}/{name}")));
        found.extend(routes.leading_to(ways)?);
        Ok(found)
    }
}

fn pools_to_old(
    parsed: &ParsedUpdate,
    pools: &[Object],
    old: &OldPods,
    all: &[Object],
    scope: &OldScope,
) -> PoolsToOld {
    let mut workers = pods_of_old(parsed, all);
    workers.retain(|pod| !old.has(pod.metadata.name.as_deref(), None));
    PoolsToOld::of(pools, old, &workers, scope)
}

/// Whether there is an endpoint for each address of a Service: requests to an address only go to endpoints of the same family.
fn have_each_family(service: &DynamicObject, endpoints: &[Option<IpAddr>]) -> bool {
    let addresses = service.data["spec"]["clusterIPs"].as_array();
    let addresses = addresses.into_iter().flatten();
    let mut addresses = addresses.filter_map(|address| address.as_str()?.parse::<IpAddr>().ok());
    addresses.all(|address| {
        let mut endpoints = endpoints.iter().flatten();
        endpoints.any(|endpoint| endpoint.is_ipv6() == address.is_ipv6())
    })
}

/// The names of the ports by which clients reach a Service. A headless Service leads to any port.
fn needed_ports(service: &Object) -> BTreeSet<String> {
    let spec = &service.data["spec"];
    let ports = spec["ports"].as_array().into_iter().flatten();
    let ports = ports.filter(|_| spec["clusterIP"] != "None");
    ports
        .map(|port| port["name"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::object;

    #[test]
    fn a_service_of_two_families_needs_an_endpoint_of_each() {
        let reach = |addresses: &[&str], endpoints: &[&str]| {
            let spec = json!({"clusterIPs": addresses});
            let service = object(json!({"metadata": {"name": "a"}, "spec": spec}));
            let endpoints = endpoints.iter().map(|one| one.parse().ok());
            have_each_family(&service, &endpoints.collect::<Vec<_>>())
        };
        assert!(reach(&["10.9.0.1"], &["10.0.0.1"]));
        assert!(!reach(&["10.9.0.1", "fd00::1"], &["10.0.0.1"]));
        assert!(!reach(&["fd00::1"], &["10.0.0.1", "no address"]));
        assert!(reach(&["10.9.0.1", "fd00::1"], &["10.0.0.1", "fd00::7"]));
        // One that is headless has only the addresses of its endpoints.
        assert!(reach(&["None"], &["10.0.0.1"]) && reach(&[], &["fd00::7"]));
    }
}
