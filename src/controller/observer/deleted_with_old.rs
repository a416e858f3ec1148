//! Finds what is deleted together with old although clients or pods of new need it.
//!
//! Secrets, ConfigMaps, ServiceAccounts, and Gateways are not checked. Only needed once old drains, so nothing is listed for it
//! earlier.

use std::collections::{BTreeSet, HashSet};

use kube::api::DynamicObject;

use super::super::parsed::ParsedUpdate;
use super::Observer;
use super::kinds::{OWNERS, claims, graphs, pods, replica_sets, services, slices};
use super::old_pods::OldPods;
use super::owners::{Fate, OldOwners, Owners};
use super::pods_of::{pods_of_new_workers, pods_of_old};
use super::pools::PoolsToOld;
use super::route_match::ServiceName;
use super::routes::Routes;
use super::service_fields::name_of;
use super::services::{AllServices, ServicesToOld};
use super::slices::{SERVICE, service_of};
use super::to_old::ToOld;
use crate::k8s::kinds::{deployments, stateful_sets};
use crate::k8s::workloads::{GRAPH, labels, pod_has_ended};
use crate::k8s::{NotSynced, Object};

/// An object that must stay when old is deleted, and its name in messages.
type Needed = (String, Object);

/// The owners of the objects in the namespace of an update.
pub(super) struct Ownership {
    owners: Owners,
    old: OldOwners,
    /// The pods of old.
    of_old: Vec<Object>,
    claims: Vec<Object>,
}

impl Ownership {
    /// Whether a pod is deleted together with old.
    pub fn goes(&self, pod: &DynamicObject) -> bool {
        matches!(self.owners.fate(pod, &self.old), Fate::Goes(_))
    }
}

fn named(kind: &str, object: Object) -> Needed {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    (format!("{kind} {name}"), object)
}

impl Observer {
    /// Determines the owners of the objects in the namespace of the update. `frontends` are those of old among `all` pods.
    pub(super) fn ownership(
        &self,
        parsed: &ParsedUpdate,
        frontends: &[Object],
        all: &[Object],
    ) -> Result<Ownership, NotSynced> {
        let (owners, claims) = (
            self.owners(parsed),
            self.cache.of(&claims(), &parsed.key.namespace),
        );
        let (owners, claims) = (owners?, claims?);
        let source = parsed.spec.source_deployment.as_deref().unwrap_or_default();
        let mut of_old = pods_of_old(parsed, all);
        of_old.extend(frontends.iter().cloned());
        let old = OldOwners::of(&owners, source, &of_old, shared(parsed));
        Ok(Ownership {
            owners,
            claims,
            of_old,
            old,
        })
    }

    /// Objects that clients or new need and that are, or may be, deleted together with old, as text for users.
    pub(super) fn deleted_with_old(
        &self,
        parsed: &ParsedUpdate,
        all: &[Object],
        routes: &Routes,
        services: &AllServices,
        ownership: &Ownership,
    ) -> Result<Vec<String>, NotSynced> {
        let mut needed = self.ways_to_new(parsed, routes, services)?;
        let of_new = self.staying_pods_of_new(parsed, all)?;
        let Ownership { owners, old, .. } = ownership;
        let source = parsed.spec.source_deployment.as_deref().unwrap_or_default();
        let target = parsed.spec.target_deployment.as_deref().unwrap_or_default();
        let makers = owners.of_generation(target, &of_new);
        needed.extend(makers.map(|(kind, object)| named(kind, object.clone())));
        needed.extend(of_new.into_iter().map(|pod| named("pod", pod)));

        // A claim that is deleted stays while a pod uses it, but no further pod can use it then.
        let uids: HashSet<_> = { ownership.of_old.iter() }
            .map(|pod| &pod.metadata.uid)
            .collect();
        let is_of_old = |pod: &Object| {
            let graph = labels(pod).and_then(|labels| labels.get(GRAPH));
            graph.is_some_and(|graph| graph == source)
                || uids.contains(&pod.metadata.uid)
                || ownership.goes(pod)
        };
        let staying = { all.iter() }.filter(|pod| !pod_has_ended(pod) && !is_of_old(pod));
        let used: BTreeSet<&str> = staying.flat_map(|pod| claimed(pod)).collect();
        let is_used = |claim: &Object| {
            let name = claim.metadata.name.as_deref();
            name.is_some_and(|name| used.contains(name))
        };
        let claims = ownership.claims.iter().filter(|claim| is_used(claim));
        needed.extend(claims.map(|claim| named("PersistentVolumeClaim", claim.clone())));

        let named = needed
            .iter()
            .filter_map(|(text, object)| match owners.fate(object, old) {
                Fate::Stays => None,
                Fate::Goes(owner) => Some(format!(
                    "{text}, which is deleted together with old (it belongs to {owner})"
                )),
                Fate::Unknown(why) => Some(format!("{text}, {why}")),
            });
        let named: BTreeSet<String> = named.collect();
        Ok(named.into_iter().collect())
    }

    /// All objects of the namespace that may own others.
    fn owners(&self, parsed: &ParsedUpdate) -> Result<Owners, NotSynced> {
        let namespace = &*parsed.key.namespace;
        // All kinds are requested before the first error returns, so that the cache starts to list all of them.
        let always = [
            ("", "Pod", pods()),
            ("", "Service", services()),
            ("apps", "Deployment", deployments()),
            ("apps", "ReplicaSet", replica_sets()),
            ("apps", "StatefulSet", stateful_sets()),
        ];
        let always = always
            .map(|(group, kind, resource)| (group, kind, self.cache.of(&resource, namespace)));
        let graphs = self.cache.of_served(&graphs(), namespace);
        let graphs = ("nvidia.com", "DynamoGraphDeployment", graphs);
        let served = OWNERS.iter().map(|kind| {
            let listed = self.cache.of_group(kind, namespace);
            (kind.group, kind.kind, listed)
        });
        let listed: Vec<_> = always.into_iter().chain([graphs]).chain(served).collect();
        let mut owners = Owners::default();
        for (group, kind, objects) in listed {
            owners.add(group, kind, objects?);
        }
        Ok(owners)
    }

    /// What leads the clients, and the proxies, to new.
    fn ways_to_new(
        &self,
        parsed: &ParsedUpdate,
        routes: &Routes,
        known: &AllServices,
    ) -> Result<Vec<Needed>, NotSynced> {
        let namespace = &*parsed.key.namespace;
        let mut needed = Vec::new();
        let client_service = parsed.spec.client_service.as_deref();
        let of_new = parsed.plan.new.iter();
        let of_new = of_new.filter_map(|target| target.service(&self.settings.options.domain));
        let of_new = of_new.filter(|(_, place)| *place == namespace);
        for name in of_new.map(|(name, _)| name).chain(client_service) {
            let service = self.cache.one(&services(), namespace, name)?;
            needed.extend(service.map(|service| named("Service", service)));
        }
        if let Some(name) = client_service {
            let name = (namespace.to_owned(), name.to_owned());
            let slices = self.cache.of(&slices(), namespace)?.into_iter();
            let own = slices.filter(|slice| service_of(slice, SERVICE).as_ref() == Some(&name));
            needed.extend(own.map(|slice| named("EndpointSlice", slice)));
            needed.extend(self.routes_to(&name, routes, known)?);
        }
        Ok(needed)
    }

    /// The pods of new among `all`. A pod that is being deleted does not stay anyway, and its owner may already be gone.
    fn staying_pods_of_new(
        &self,
        parsed: &ParsedUpdate,
        all: &[Object],
    ) -> Result<Vec<Object>, NotSynced> {
        let frontends_of_new = self.pods_of_new(parsed)?;
        let is_of_new = |pod: &&Object| {
            let name = pod.metadata.name.as_ref();
            name.is_some_and(|name| frontends_of_new.contains_key(name))
        };
        let pods = all.iter().filter(is_of_new).cloned();
        let pods = pods.chain(pods_of_new_workers(parsed, all));
        let staying = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(staying.collect())
    }

    /// What leads clients to a Service. An object in another namespace cannot have an owner in this one.
    fn routes_to(
        &self,
        service: &ServiceName,
        routes: &Routes,
        known: &AllServices,
    ) -> Result<Vec<Needed>, NotSynced> {
        let domain = &self.settings.options.domain;
        let reached = ServicesToOld::of_service(service, known);
        let to_service = ToOld {
            namespace: &service.0,
            old: &OldPods::of(&[], &[]),
            services: &reached,
            pools: &PoolsToOld::default(),
            domain,
        };
        let is_own = |object: &Object| object.metadata.namespace.as_deref() == Some(&service.0);
        let routes = routes.objects_leading_to(&to_service)?.into_iter();
        let routes = routes.filter(|(_, object)| is_own(object));
        let routes = routes.map(|(text, object)| (text, Object::clone(object)));
        let others = known.services().iter().filter(|object| {
            is_own(object) && name_of(object).is_some_and(|name| reached.names.contains(&name))
        });
        let others = others.map(|object| named("Service", object.clone()));
        Ok(routes.chain(others).collect())
    }
}

/// The name of the object that owns the workers of both generations, if the update says that there is one.
fn shared(parsed: &ParsedUpdate) -> Option<&str> {
    let workers = parsed.spec.workers.as_ref()?;
    let (old, new) = (workers.old.as_ref()?, workers.new.as_ref()?);
    old.revision.as_ref()?;
    let is_same = old.kind == new.kind && old.name == new.name;
    old.name.as_deref().filter(|_| is_same)
}

/// The names of the PersistentVolumeClaims that a pod uses.
fn claimed(pod: &DynamicObject) -> impl Iterator<Item = &str> {
    let volumes = pod.data["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}
