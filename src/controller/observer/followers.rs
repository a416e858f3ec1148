//! Finds the Services that lead elsewhere: because they are aliases, or by the addresses and ports in their slices.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::references::{self, Follower, Followers, Reference};
use super::route_match::ServiceName;
use super::service_fields::{external_name, name_of, node_ports, own_addresses};
use super::slices::{SERVICE, addresses, hosts_of_slice, is_by_hand, ports, service_of};
use crate::k8s::Object;

/// The Services that lead elsewhere; those in `named` do so by a host name.
pub(super) struct AllFollowers {
    pub all: Followers,
    pub named: Followers,
}

/// Those among `services`, whose `slices` are these.
pub(super) fn followers(
    services: &[Object],
    slices: &[Object],
    by_name: &HashMap<ServiceName, &Object>,
    domain: &str,
) -> AllFollowers {
    let (mut all, mut named) = (Followers::default(), Followers::default());
    let mut add_host = |all: &mut Followers, host: &str, follower: &Follower| {
        for reference in references::of_host(host, &follower.service.0, domain) {
            all.add(reference.clone(), follower.clone());
            named.add(reference, follower.clone());
        }
    };
    // A large cluster has hundreds of thousands of addresses, of which hardly any belongs to a Service.
    let of_services: HashSet<IpAddr> = services
        .iter()
        .flat_map(|service| own_addresses(service))
        .collect();
    let of_nodes: HashSet<u16> = services
        .iter()
        .flat_map(|service| node_ports(service))
        .collect();
    for service in services {
        if let (Some(host), Some(service)) = (external_name(service), name_of(service)) {
            let is_alias = true;
            add_host(&mut all, host, &Follower { service, is_alias });
        }
    }
    for slice in slices {
        let Some(service) = service_of(slice, SERVICE) else {
            continue;
        };
        let is_alias = false;
        let follower = Follower { service, is_alias };
        for host in hosts_of_slice(slice) {
            add_host(&mut all, host, &follower);
        }
        if is_by_hand(slice, by_name) {
            let addresses = addresses(slice).filter(|address| of_services.contains(address));
            let ports = ports(slice).flatten();
            let ports = ports.filter(|port| of_nodes.contains(port));
            let addresses = addresses.map(Reference::Address);
            for reference in addresses.chain(ports.map(Reference::NodePort)) {
                all.add(reference, follower.clone());
            }
        }
    }
    AllFollowers { all, named }
}
