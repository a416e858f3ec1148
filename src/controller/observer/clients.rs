//! Finds what routes clients to old's frontends: `clientService`, and any other object in the cluster.
//!
//! If something cannot be listed, only what depends on it is unknown. Contains no policy.

use std::collections::{BTreeMap, BTreeSet};

use kube::CustomResourceExt;
use kube::api::ApiResource;
use serde_json::Value as Json;

use super::super::old_frontends::{self, kind};
use super::super::parsed::{self, ParsedUpdate};
use super::super::poller::Pace;
use super::super::proxies;
use super::Observer;
use super::ways::{
    self, OldPods, ServiceName, backends, belongs_to, is_service_of_ingress, is_service_of_route,
    leads_to, selects_any, service_of_host,
};
use crate::k8s::workloads::{labels, pod_is_ready};
use crate::k8s::{NotSynced, Object};
use crate::resource::{DynamoUpdateConfig, Host};
use crate::rollout::Clients;

/// The label of an EndpointSlice that names its Service.
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

fn services() -> ApiResource {
    kind("", "v1", "Service", "services")
}

/// The kinds of routes that refer to Services in `backendRefs`.
fn routes() -> [ApiResource; 4] {
    [
        ("v1", "HTTPRoute", "httproutes"),
        ("v1", "GRPCRoute", "grpcroutes"),
        ("v1alpha2", "TLSRoute", "tlsroutes"),
        ("v1alpha2", "TCPRoute", "tcproutes"),
    ]
    .map(|(version, name, plural)| kind("gateway.networking.k8s.io", version, name, plural))
}

fn virtual_services() -> ApiResource {
    let group = "networking.istio.io";
    kind(group, "v1", "VirtualService", "virtualservices")
}

impl Observer {
    /// Where clients are routed. Only needed once old drains, so nothing is listed for it earlier.
    pub(super) fn clients(&self, parsed: &ParsedUpdate, old: &[Object]) -> Clients {
        if !parsed.memory().phase.old_drains() {
            return Clients::default();
        }
        let (reach_new, reach_old) = match &parsed.spec.client_service {
            None => (None, None),
            Some(service) => match self.client_service(parsed, service, old) {
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
            other_ways: self.other_ways(parsed, old).ok(),
        }
    }

    /// The updates that send requests to old's frontends as their new side; `None` if unknown. Like [`Self::clients`], only
    /// known once old drains.
    pub(super) fn updates_to_old(
        &self,
        parsed: &ParsedUpdate,
        old: &[Object],
        updates: &[Object],
    ) -> Option<Vec<String>> {
        if !parsed.memory().phase.old_drains() {
            return None;
        }
        let own = |update: &&Object| update.metadata.uid == parsed.identity.uid;
        if !self.go_by_what_there_is(parsed, updates)? {
            return None;
        }
        let old = OldPods::of(old);
        let mut found = Vec::new();
        if self.leads_to_any(parsed, &old).ok()? {
            found.push("this one, by spec.newFrontendService".to_owned());
        }
        // Without `any_target`, an update can only lead to Services of its own namespace.
        let elsewhere = match self.settings.any_target {
            true => self.cache.all(&DynamoUpdateConfig::api_resource()).ok()?,
            false => Vec::new(),
        };
        let namespace = Some(&parsed.key.namespace);
        let elsewhere = elsewhere
            .iter()
            .filter(|update| update.metadata.namespace.as_ref() != namespace);
        for update in updates
            .iter()
            .chain(elsewhere)
            .filter(|update| !own(update))
        {
            if self.sends_to(update, parsed, &old)? {
                found.push(parsed::key(update).told_from(&parsed.key));
            }
        }
        Some(found)
    }

    /// Whether each proxy of new's frontends follows an existing update, or gives its own new side no weight; `None` if
    /// unknown. The plan of a deleted update may stay in force and lead anywhere.
    fn go_by_what_there_is(&self, parsed: &ParsedUpdate, updates: &[Object]) -> Option<bool> {
        let Some(target) = &parsed.spec.target_deployment else {
            return Some(true);
        };
        let namespace = &parsed.key.namespace;
        let pods = old_frontends::frontends_by_name(&self.cache, namespace, target).ok()?;
        let port = &self.settings.proxies.port;
        let places = pods
            .iter()
            .filter_map(|pod| old_frontends::address_of(pod, port));
        let places: BTreeSet<String> = places.collect();
        let is_there = |uid: &String| {
            let mut updates = updates.iter();
            updates.any(|update| update.metadata.uid.as_ref() == Some(uid))
        };
        let mut all = Some(true);
        for place in &places {
            let address = place.clone();
            let follow = |sink| proxies::follow(address, sink);
            let heard = self
                .beyond
                .hear(&parsed.key, place, Pace::Usual, follow)
                .ok();
            let report = heard.and_then(|heard| heard.report());
            let is_known =
                report.map(|report| !report.gives_new || report.uid.as_ref().is_some_and(is_there));
            all = all.zip(is_known).map(|(all, one)| all && one);
        }
        self.beyond.keep(&parsed.key, &places);
        all
    }

    /// Whether another update sends requests to old's frontends; `None` if unknown.
    fn sends_to(&self, update: &Object, parsed: &ParsedUpdate, old: &OldPods) -> Option<bool> {
        let key = parsed::key(update);
        let by_name = |source: Option<&str>| {
            // An update without frontends sends no requests.
            let pods = self.frontend_pods(&key, source.unwrap_or_default());
            pods.ok().map(|pods| !pods.is_empty())
        };
        let Ok(other) = ParsedUpdate::read(update, &self.settings) else {
            // The spec is invalid, so its last valid plan stays in force, which is not known here.
            let source = update.data["spec"]["sourceDeployment"].as_str();
            return match by_name(source)? {
                true => None,
                false => Some(false),
            };
        };
        let is_meant = key.namespace == parsed.key.namespace
            && other.spec.target_deployment == parsed.spec.source_deployment;
        let leads = is_meant || self.leads_to_any(&other, old).ok()?;
        let gives = other.plan.weights.new_weight() > 0;
        Some(leads && gives && by_name(other.spec.source_deployment.as_deref())?)
    }

    /// Whether a pod of `old` is behind a target of this update.
    fn leads_to_any(&self, update: &ParsedUpdate, old: &OldPods) -> Result<bool, NotSynced> {
        for target in &update.plan.new {
            if let Host::Ip(address) = target.host
                && old.listen_at(address, target.port)
            {
                return Ok(true);
            }
            let mut behind = self.behind(target)?.into_iter().flatten();
            if behind.any(|endpoint| old.has(endpoint.pod.as_deref(), endpoint.ip)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the Service leads to a ready frontend of new, and whether it leads to any of old.
    fn client_service(
        &self,
        parsed: &ParsedUpdate,
        service: &str,
        old: &[Object],
    ) -> Result<(Option<bool>, Option<bool>), NotSynced> {
        let namespace = &parsed.key.namespace;
        let found = old_frontends::endpoints(&self.cache, namespace, service, 0)?;
        let Some(endpoints) = found else {
            return Ok((None, None));
        };
        let new = self.pods_of_new(parsed)?;
        let old = OldPods::of(old);
        // An endpoint that is not known to be new's may be old's, whatever its labels are now.
        let reach_old = endpoints.iter().any(|endpoint| {
            let pod = endpoint.pod.as_ref();
            let is_of_new = pod.is_some_and(|pod| new.contains_key(pod));
            !is_of_new || old.has(endpoint.pod.as_deref(), endpoint.ip)
        });
        let is_ready = |pod: &String| new.get(pod) == Some(&true);
        let reach_new = endpoints
            .iter()
            .any(|endpoint| endpoint.ready && endpoint.pod.as_ref().is_some_and(is_ready));
        Ok((Some(reach_new), Some(reach_old)))
    }

    /// The pods of new's frontends by name, and whether each is ready: those behind its Services and those that carry its
    /// labels.
    fn pods_of_new(&self, parsed: &ParsedUpdate) -> Result<BTreeMap<String, bool>, NotSynced> {
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

    /// What else leads to old's frontends: Services that were not created with old, and everything that routes to any Service
    /// of old.
    fn other_ways(&self, parsed: &ParsedUpdate, old: &[Object]) -> Result<Vec<String>, NotSynced> {
        let namespace = &parsed.key.namespace;
        // Request all kinds before the first error returns, so that the cache starts to list all of them.
        let (services, slices, ingresses, meshed, graphs) = (
            self.cache.all(&services()),
            self.cache.of(&slices(), namespace),
            self.cache.of(&ingresses(), namespace),
            self.cache.all(&virtual_services()),
            self.cache.of(&graphs(), namespace),
        );
        let routes = routes().map(|kind| (self.cache.all(&kind), kind.kind));
        let (services, slices) = (services?, slices?);
        let source = parsed.spec.source_deployment.as_deref().unwrap_or_default();
        let is_source = |graph: &Object| graph.metadata.name.as_deref() == Some(source);
        let is_graph = graphs?.iter().any(is_source);
        let pods = OldPods::of(old);
        let mut to_old = BTreeMap::new();
        for slice in slices.iter().filter(|slice| leads_to(slice, &pods)) {
            if let Some(service) = labels(slice).and_then(|labels| labels.get(SERVICE)) {
                let goes_with_old = belongs_to(slice, service, source, is_graph);
                to_old.insert(service.clone(), goes_with_old);
            }
        }
        let in_namespace = |object: &&Object| object.metadata.namespace.as_ref() == Some(namespace);
        // A Service may not have its EndpointSlices yet.
        for service in services.iter().filter(in_namespace) {
            if selects_any(service, old) {
                let name = service.metadata.name.clone().unwrap_or_default();
                let goes_with_old = belongs_to(service, &name, source, is_graph);
                to_old.entry(name).or_insert(goes_with_old);
            }
        }
        let mut found = Vec::new();
        for (service, goes_with_old) in &to_old {
            if !goes_with_old && parsed.spec.client_service.as_ref() != Some(service) {
                found.push(format!("Service {service}"));
            }
        }
        let domain = &self.settings.domain;
        let names = to_old.into_keys().map(|name| (namespace.clone(), name));
        let mut to_old: BTreeSet<ServiceName> = names.collect();
        for (own, name) in ways::add_aliases(&mut to_old, &services, domain) {
            found.push(format!("Service {own}/{name} of type ExternalName"));
        }
        let leads_to_old = |backends: BTreeSet<ServiceName>| !backends.is_disjoint(&to_old);
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
