//! The Services that route to frontends of old: by a selector, by slices, as an alias, or by the address of such a Service.
//!
//! Does not check what routes to these Services in turn.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use super::followers::{AllFollowers, followers};
use super::old_pods::OldPods;
use super::references::{self, Follower, Reference};
use super::route_match::{ServiceName, belongs_to, selects_any};
use super::service_fields::{
    external_name, name_of, node_ports, own_addresses, own_hosts, targets_any,
};
use super::slices::{
    IMPORT, SERVICE, hosts_of_slice, leads_to_host_port, leads_to_pods_of, ports, service_of,
};
use crate::k8s::Object;

/// The update whose old generation is meant.
pub(super) struct OldScope<'a> {
    pub namespace: &'a str,
    /// `spec.sourceDeployment`
    pub source: &'a str,
    /// Whether there is a graph of this name, for which the operator creates Services.
    pub is_graph: bool,
    /// The domain of the cluster.
    pub domain: &'a str,
    /// The name of the frontends' own port, behind the port of their proxies.
    pub frontend_port: &'a str,
}

#[cfg(test)]
impl OldScope<'_> {
    /// Of `old` in the namespace `n`.
    pub(super) const fn example() -> Self {
        Self {
            namespace: "n",
            source: "old",
            is_graph: false,
            domain: "cluster.local",
            frontend_port: "frontend",
        }
    }
}

/// All Services, with what leads to each. A large cluster has many, so this is built once for all queries.
pub(super) struct AllServices<'a> {
    services: &'a [Object],
    slices: &'a [Object],
    by_name: HashMap<ServiceName, &'a Object>,
    followers: AllFollowers,
}

impl<'a> AllServices<'a> {
    /// These `services`, whose `slices` are these, in a cluster with this domain.
    pub fn of(services: &'a [Object], slices: &'a [Object], domain: &str) -> Self {
        let by_name = services.iter();
        let by_name = by_name.filter_map(|service| Some((name_of(service)?, service)));
        let by_name: HashMap<ServiceName, &Object> = by_name.collect();
        let followers = followers(services, slices, &by_name, domain);
        Self {
            services,
            slices,
            by_name,
            followers,
        }
    }

    pub const fn services(&self) -> &'a [Object] {
        self.services
    }

    pub const fn slices(&self) -> &'a [Object] {
        self.slices
    }

    /// Whether one of the slices leads to one of these pods of `namespace`.
    pub fn leads_to(&self, slice: &Object, namespace: &str, pods: &OldPods) -> bool {
        leads_to_pods_of(namespace, slice, pods, &self.by_name)
    }

    /// Everything that routes to one of these Services, directly or through others.
    fn follow(
        &self,
        begin: impl Iterator<Item = ServiceName>,
    ) -> (HashSet<Reference>, Vec<Follower>) {
        let reached_by = |name: &ServiceName| -> Vec<Reference> {
            self.by_name.get(name).map_or_else(Vec::new, |service| {
                let addresses = own_addresses(service).into_iter().map(Reference::Address);
                let hosts = own_hosts(service).map(Reference::Host);
                let ports = node_ports(service).map(Reference::NodePort);
                addresses.chain(hosts).chain(ports).collect()
            })
        };
        let begin = begin.map(Reference::Service).collect();
        self.followers.all.follow(begin, &reached_by)
    }
}

/// Services that lead to frontends of old.
#[derive(Debug, Default)]
pub(super) struct ServicesToOld {
    pub names: BTreeSet<ServiceName>,
    /// Those of them that are only aliases of one.
    pub aliases: BTreeSet<ServiceName>,
    /// Those of them that are deleted together with old.
    pub deleted_with_old: BTreeSet<ServiceName>,
    /// Those of them that lead to the frontends' own port.
    pub around_proxies: BTreeSet<ServiceName>,
    /// The imports of Services of other clusters that lead to them.
    pub imports: BTreeSet<ServiceName>,
    /// The names and addresses by which they are reached.
    reached: HashSet<Reference>,
}

impl ServicesToOld {
    /// Those among `all`.
    pub fn of(all: &AllServices, old: &OldPods, scope: &OldScope) -> Self {
        let AllServices {
            services,
            slices,
            by_name,
            followers,
        } = all;
        let mut found = Self::default();
        let direct = found.direct(slices, by_name, old, scope);
        let hosts = services.iter().filter_map(|service| {
            Some((external_name(service)?, service.metadata.namespace.clone()?))
        });
        let of_pods = hosts
            .flat_map(|(host, own)| references::of_host(host, &own, scope.domain))
            .chain(slices.iter().flat_map(|slice| {
                let own = slice.metadata.namespace.as_deref().unwrap_or_default();
                hosts_of_slice(slice).flat_map(|host| references::of_host(host, own, scope.domain))
            }))
            .filter(|reference| match reference {
                Reference::Address(address) => old.has(None, Some(*address)),
                _ => false,
            });
        // An address in a name can only be reached by name: which slices lead to a pod depends on more than its address.
        let by_address: Vec<Follower> = of_pods
            .flat_map(|reference| followers.named.of(&reference).to_vec())
            .collect();
        let of_pods = by_address.iter().map(|one| one.service.clone());
        let begin = direct.into_iter().chain(of_pods);
        let (reached, through) = all.follow(begin);
        let aliases = through.into_iter().chain(by_address);
        let aliases = aliases.filter(|follower| follower.is_alias);
        found.aliases = aliases.map(|follower| follower.service).collect();
        for reference in &reached {
            if let Reference::Service(name) = reference {
                found.names.insert(name.clone());
            }
        }
        let goes = |(own, name): &&ServiceName| {
            let object = by_name.get(&(own.clone(), name.clone()));
            own == scope.namespace
                && object
                    .is_some_and(|object| belongs_to(object, name, scope.source, scope.is_graph))
        };
        found.deleted_with_old = found.names.iter().filter(goes).cloned().collect();
        found.reached = reached;
        found
    }

    /// This Service and those that lead to it, with the names and addresses by which they are reached.
    pub fn of_service(service: &ServiceName, all: &AllServices) -> Self {
        let (reached, _) = all.follow([service.clone()].into_iter());
        let names = reached.iter().filter_map(|reference| match reference {
            Reference::Service(name) => Some(name.clone()),
            _ => None,
        });
        Self {
            names: names.collect(),
            reached,
            ..Self::default()
        }
    }

    /// The Services with an endpoint in old, or that select a pod of it.
    fn direct(
        &mut self,
        slices: &[Object],
        services: &HashMap<ServiceName, &Object>,
        old: &OldPods,
        scope: &OldScope,
    ) -> Vec<ServiceName> {
        let is_own = |object: &Object| {
            let namespace = object.metadata.namespace.as_deref();
            namespace == Some(scope.namespace)
        };
        let own_ports = old.own_ports(scope.frontend_port);
        let mut direct = Vec::new();
        for slice in slices {
            // A Service may select a pod in the host network, and so route to another pod's host port on that node.
            let leads = leads_to_pods_of(scope.namespace, slice, old, services)
                || leads_to_host_port(slice, old);
            if !leads {
                continue;
            }
            let name = service_of(slice, SERVICE);
            // A port without a number means all of them.
            let mut ports = ports(slice);
            if ports.any(|port| port.is_none_or(|port| own_ports.contains(&port))) {
                self.around_proxies.extend(name.clone());
            }
            match (name, service_of(slice, IMPORT)) {
                (Some(name), _) => direct.push(name),
                (None, import) => self.imports.extend(import),
            }
        }
        // Its slices may not have been written yet.
        let selecting = services.iter().filter(|(_, service)| is_own(service));
        let selecting = selecting.filter(|(_, service)| selects_any(service, old.pods()));
        for (name, service) in selecting {
            if targets_any(service, scope.frontend_port, &own_ports) {
                self.around_proxies.insert(name.clone());
            }
            direct.push(name.clone());
        }
        direct
    }

    /// Whether a host name that is used in the namespace `own` leads to one of them, or to a pod of old.
    pub fn has_host(&self, host: &str, own: &str, old: &OldPods, domain: &str) -> bool {
        let references = references::of_host(host, own, domain);
        references.iter().any(|reference| match reference {
            Reference::Address(address) if old.has(None, Some(*address)) => true,
            reference => self.reached.contains(reference),
        })
    }

    /// Whether one of them has this address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.reached.contains(&Reference::Address(address))
    }

    /// Whether this port of every node leads to one of them.
    pub fn has_node_port(&self, port: u16) -> bool {
        self.reached.contains(&Reference::NodePort(port))
    }
}

#[cfg(test)]
mod tests;
