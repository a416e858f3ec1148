//! Finds what routes clients to old's frontends: `clientService`, and any other object in the cluster.
//!
//! If something cannot be listed, only what depends on it is unknown. Contains no policy.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::ApiResource;
use serde_json::Value as Json;

use super::super::old_frontends::{self, kind};
use super::super::parsed::ParsedUpdate;
use super::Observer;
use super::services::{OldPlace, ServicesToOld};
use super::ways::{
    OldPods, ServiceName, backends, is_service_of_ingress, is_service_of_route, service_of_host,
};
use crate::k8s::workloads::pod_is_ready;
use crate::k8s::{NotSynced, Object};
use crate::rollout::Clients;

const GATEWAY: &str = "gateway.networking.k8s.io";

/// The kinds of routes that refer to Services in `backendRefs`, each with the versions that a cluster may serve.
const ROUTES: [(&str, &str, &[&str]); 4] = [
    ("HTTPRoute", "httproutes", &["v1", "v1beta1", "v1alpha2"]),
    ("GRPCRoute", "grpcroutes", &["v1", "v1alpha2"]),
    ("TLSRoute", "tlsroutes", &["v1", "v1alpha3", "v1alpha2"]),
    ("TCPRoute", "tcproutes", &["v1", "v1alpha2"]),
];

pub(super) fn pods() -> ApiResource {
    kind("", "v1", "Pod", "pods")
}

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

fn services() -> ApiResource {
    kind("", "v1", "Service", "services")
}

fn virtual_services() -> Vec<ApiResource> {
    let all = &["v1", "v1beta1", "v1alpha3"];
    versions(
        "networking.istio.io",
        ("VirtualService", "virtualservices", all),
    )
}

/// A kind in each of its versions.
fn versions(group: &str, (name, plural, all): (&str, &str, &[&str])) -> Vec<ApiResource> {
    let all = all.iter();
    all.map(|version| kind(group, version, name, plural))
        .collect()
}

/// A Service for people, with its namespace if that is not `own`.
fn told((namespace, name): &ServiceName, own: &str) -> String {
    match namespace == own {
        true => format!("Service {name}"),
        false => format!("Service {namespace}/{name}"),
    }
}

impl Observer {
    /// Where clients are routed. Only needed once old drains, so nothing is listed for it earlier.
    pub(super) fn clients(&self, parsed: &ParsedUpdate, old: &[Object]) -> Clients {
        if !parsed.memory().phase.old_drains() {
            return Clients::default();
        }
        let Ok(all) = self.cache.of(&pods(), &parsed.key.namespace) else {
            return Clients::default();
        };
        let old = OldPods::of(old, &all);
        let to_old = self.services_to_old(parsed, &old);
        let to_old = to_old.as_ref();
        let (reach_new, reach_old) = match &parsed.spec.client_service {
            None => (None, None),
            Some(service) => match self.client_service(parsed, service, &old, to_old) {
                Ok(known) => known,
                Err(not_synced) => {
                    tracing::debug!(update = %parsed.key, %not_synced, "where clients are led is not known");
                    (None, None)
                }
            },
        };
        Clients {
            reach_new,
            reach_old,
            other_ways: self.other_ways(parsed, to_old).ok(),
            around_proxies: to_old.ok().map(|to_old| {
                let around = to_old.around_proxies.iter();
                around
                    .map(|name| told(name, &parsed.key.namespace))
                    .collect()
            }),
        }
    }

    /// Whether the Service leads to a ready frontend of new, and whether it leads to any of old.
    fn client_service(
        &self,
        parsed: &ParsedUpdate,
        service: &str,
        old: &OldPods,
        to_old: Result<&ServicesToOld, &NotSynced>,
    ) -> Result<(Option<bool>, Option<bool>), NotSynced> {
        let namespace = &parsed.key.namespace;
        let found = old_frontends::endpoints(&self.cache, namespace, service, 0)?;
        let Some(endpoints) = found else {
            return Ok((None, None));
        };
        let new = self.pods_of_new(parsed)?;
        let to_old = to_old.map_err(Clone::clone)?;
        let name = (namespace.clone(), service.to_owned());
        // An endpoint that is not known to be new's may be old's, whatever its labels are now.
        let reach_old = endpoints.iter().any(|endpoint| {
            let pod = endpoint.pod.as_ref();
            let is_of_new = pod.is_some_and(|pod| new.contains_key(pod));
            !is_of_new || old.has(endpoint.pod.as_deref(), endpoint.ip)
        });
        let reach_old = reach_old || to_old.names.contains(&name);
        let is_ready = |pod: &String| new.get(pod) == Some(&true);
        let reach_new = endpoints
            .iter()
            .any(|endpoint| endpoint.ready && endpoint.pod.as_ref().is_some_and(is_ready));
        Ok((Some(reach_new), Some(reach_old)))
    }

    /// The pods of new's frontends by name, and whether each is ready: those behind its Services and those that carry its
    /// labels.
    pub(super) fn pods_of_new(
        &self,
        parsed: &ParsedUpdate,
    ) -> Result<BTreeMap<String, bool>, NotSynced> {
        let mut pods = BTreeMap::new();
        let mut note = |pod: String, ready: bool| *pods.entry(pod).or_insert(false) |= ready;
        for target in &parsed.plan.new {
            for endpoint in self.behind(target)?.into_iter().flatten() {
                if let Some(pod) = endpoint.pod {
                    note(pod, endpoint.ready);
                }
            }
        }
        if let Some(target) = &parsed.spec.target_deployment {
            for pod in old_frontends::frontends_by_name(&self.cache, &parsed.key.namespace, target)?
            {
                let ready = pod_is_ready(&pod);
                note(pod.metadata.name.clone().unwrap_or_default(), ready);
            }
        }
        Ok(pods)
    }

    /// The Services that lead to frontends of old.
    pub(super) fn services_to_old(
        &self,
        parsed: &ParsedUpdate,
        old: &OldPods,
    ) -> Result<ServicesToOld, NotSynced> {
        let namespace = &parsed.key.namespace;
        // Request all kinds before the first error returns, so that the cache starts to list all of them.
        let (services, slices, graphs) = (
            self.cache.all(&services()),
            self.cache.all(&slices()),
            self.cache.of(&graphs(), namespace),
        );
        let (services, slices) = (services?, slices?);
        let source = parsed.spec.source_deployment.as_deref().unwrap_or_default();
        let is_source = |graph: &Object| graph.metadata.name.as_deref() == Some(source);
        let place = OldPlace {
            namespace,
            source,
            is_graph: graphs?.iter().any(is_source),
            domain: &self.settings.domain,
            frontend_port: &self.settings.frontend_port,
        };
        Ok(ServicesToOld::of(&services, &slices, old, &place))
    }

    /// What else leads to old's frontends: Services that were not created with old, and everything that routes to any Service
    /// of old.
    fn other_ways(
        &self,
        parsed: &ParsedUpdate,
        to_old: Result<&ServicesToOld, &NotSynced>,
    ) -> Result<Vec<String>, NotSynced> {
        let namespace = &parsed.key.namespace;
        let (ingresses, meshed) = (
            self.cache.of(&ingresses(), namespace),
            self.cache.all_of_any(&virtual_services()),
        );
        let routes =
            ROUTES.map(|route| (self.cache.all_of_any(&versions(GATEWAY, route)), route.0));
        let to_old = to_old.map_err(Clone::clone)?;
        let client_service = parsed.spec.client_service.as_ref();
        let mut found = Vec::new();
        for name in &to_old.names {
            let (own, service) = name;
            let is_clients = own == namespace && client_service == Some(service);
            if to_old.aliases.contains(name) {
                found.push(format!("Service {own}/{service} of type ExternalName"));
            } else if !to_old.go_with_old.contains(name) && !is_clients {
                found.push(told(name, namespace));
            }
        }
        let (to_old, domain) = (&to_old.names, &self.settings.domain);
        let leads_to_old = |backends: BTreeSet<ServiceName>| !backends.is_disjoint(to_old);
        for ingress in &ingresses? {
            let is_meant = |backend: &Json| is_service_of_ingress(backend, namespace);
            if leads_to_old(backends(&ingress.data["spec"], "service", &is_meant)) {
                let name = ingress.metadata.name.as_deref().unwrap_or_default();
                found.push(format!("Ingress {name}"));
            }
        }
        for (routes, kind) in routes {
            for route in &routes? {
                let own = route.metadata.namespace.as_deref().unwrap_or_default();
                let is_meant = |backend: &Json| is_service_of_route(backend, own);
                if leads_to_old(backends(&route.data["spec"], "backendRefs", &is_meant)) {
                    let name = route.metadata.name.as_deref().unwrap_or_default();
                    found.push(format!("{kind} {own}/{name}"));
                }
            }
        }
        for service in &meshed? {
            let own = service.metadata.namespace.as_deref().unwrap_or_default();
            let is_meant =
                |destination: &Json| service_of_host(destination["host"].as_str()?, own, domain);
            if leads_to_old(backends(&service.data["spec"], "destination", &is_meant)) {
                let name = service.metadata.name.as_deref().unwrap_or_default();
                found.push(format!("VirtualService {own}/{name}"));
            }
        }
        Ok(found)
    }
}
