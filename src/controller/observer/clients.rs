//! Where clients are led: by `clientService`, and by whatever else in the cluster leads to old's frontends.
//!
//! What cannot be listed is not known, which keeps nothing else from being seen. Must not know what follows from it.

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

fn services() -> ApiResource {
    kind("", "v1", "Service", "services")
}

/// The kinds of routes that name Services as `backendRefs`.
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
    /// Where clients are led. Before the end of an update nobody needs to know, so nothing is listed for it.
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

    /// The updates that send requests to the frontends of old as to their new ones, if that is known; as for [`Self::clients`].
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
        // From another namespace only who may lead anywhere can lead here.
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

    /// Does each proxy of new's frontends go by an update that there is, or give its own new side nothing? The plan of one
    /// that was deleted may stay in force, and lead anywhere. None if that is not known.
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

    /// Does another update send requests to the frontends of old? None if that is not known.
    fn sends_to(&self, update: &Object, parsed: &ParsedUpdate, old: &OldPods) -> Option<bool> {
        let key = parsed::key(update);
        let by_name = |source: Option<&str>| {
            // Without frontends there is nobody who would send anything.
            let pods = self.frontend_pods(&key, source.unwrap_or_default());
            pods.ok().map(|pods| !pods.is_empty())
        };
        let Ok(other) = ParsedUpdate::read(update, &self.settings) else {
            // The last plan that could be used stays in force, whatever it was.
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

    /// Is a pod of `old` behind a target of this update?
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

    /// Does the Service lead to a ready frontend of new, and to any of old?
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
        // What is not known to be new's could be old's, whatever its labels say by now.
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

    /// The pods of new's frontends by name, and whether each is ready: those behind its Services, and those labelled as such.
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

    /// What else leads to frontends of old: Services that old does not bring with it, and whatever routes to any.
    fn other_ways(&self, parsed: &ParsedUpdate, old: &[Object]) -> Result<Vec<String>, NotSynced> {
        let namespace = &parsed.key.namespace;
        // All are asked for at once, so that all come to be listed.
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
        // Its slices may not be written yet.
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
