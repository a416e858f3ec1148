//! References between objects: the names and addresses of a Service, and the Services that route to it.
//!
//! They are followed with a work list, so a long chain of Services visits each Service once. Contains no policy.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::route_match::{ServiceName, address_of_host, services_of_host};

/// A reference to a destination.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reference {
    Service(ServiceName),
    /// A host name, of a load balancer or anything else.
    Host(String),
    Address(IpAddr),
    /// A node port of a Service.
    NodePort(u16),
}

/// The objects that a host name, used in the namespace `own`, may refer to.
pub(super) fn of_host(host: &str, own: &str, domain: &str) -> Vec<Reference> {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let addresses = match address_of_host(&host, domain) {
        Some(address) => vec![address],
        None => addresses(&host),
    };
    let services = services_of_host(&host, own, domain).into_iter();
    let known = addresses.into_iter().map(Reference::Address);
    known
        .chain(services.map(Reference::Service))
        .chain([Reference::Host(host)])
        .collect()
}

/// The addresses that a text may mean, in the form in which they are compared: an IPv4 address may also be written as an IPv6
/// address (RFC 4291 §2.5.5.2). Kubernetes has accepted leading zeros in IPv4 addresses, and programs differ in whether such a
/// number is decimal or octal.
pub(super) fn addresses(text: &str) -> Vec<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return vec![address.to_canonical()];
    }
    let readings = [10, 8].into_iter().filter_map(|base| ipv4(text, base));
    readings.collect()
}

/// An IPv4 address in which numbers with a leading zero are written in this base.
fn ipv4(text: &str, base: u32) -> Option<IpAddr> {
    let parts = text.split('.').map(|part| {
        let base = if part.starts_with('0') { base } else { 10 };
        u8::from_str_radix(part, base).ok()
    });
    let parts: [u8; 4] = parts.collect::<Option<Vec<_>>>()?.try_into().ok()?;
    Some(parts.into())
}

/// A Service that leads to the same destination as a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Follower {
    pub service: ServiceName,
    /// Whether it is only an alias of that destination.
    pub is_alias: bool,
}

/// The Services that lead to each destination.
#[derive(Default)]
pub(super) struct Followers(HashMap<Reference, Vec<Follower>>);

impl Followers {
    pub fn add(&mut self, reference: Reference, follower: Follower) {
        self.0.entry(reference).or_default().push(follower);
    }

    /// The Services that lead directly to a destination.
    pub fn of(&self, reference: &Reference) -> &[Follower] {
        self.0.get(reference).map_or(&[], Vec::as_slice)
    }

    /// Everything that routes to one of `begin`, directly or through others. `reached_by` returns the references that reach a
    /// Service.
    pub fn follow(
        &self,
        begin: Vec<Reference>,
        reached_by: &dyn Fn(&ServiceName) -> Vec<Reference>,
    ) -> (HashSet<Reference>, Vec<Follower>) {
        let (mut reached, mut found) = (HashSet::new(), Vec::new());
        let mut left = begin;
        while let Some(reference) = left.pop() {
            if !reached.insert(reference.clone()) {
                continue;
            }
            if let Reference::Service(name) = &reference {
                left.extend(reached_by(name));
            }
            for follower in self.of(&reference) {
                left.push(Reference::Service(follower.service.clone()));
                found.push(follower.clone());
            }
        }
        (reached, found)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn name(i: usize) -> ServiceName {
        ("n".to_owned(), format!("s{i}"))
    }

    #[test]
    fn a_host_name_is_a_service_an_address_or_only_a_name() {
        use Reference::{Address, Host, Service};
        let service = |own: &str, name: &str| Service((own.to_owned(), name.to_owned()));
        for (host, meant) in [
            ("old", service("here", "old")),
            ("OLD.There.svc.cluster.local.", service("there", "old")),
            ("old.there.svc.clusterset.local", service("there", "old")),
            ("10.0.0.1", Address("10.0.0.1".parse().unwrap())),
            ("::ffff:10.0.0.1", Address("10.0.0.1".parse().unwrap())),
            (
                "10-0-0-1.n.pod.cluster.local",
                Address("10.0.0.1".parse().unwrap()),
            ),
            ("LB.Example.com", Host("lb.example.com".to_owned())),
        ] {
            let found = of_host(host, "here", "cluster.local");
            assert!(found.contains(&meant), "{host}: {found:?}");
        }
    }

    #[test]
    fn a_long_chain_of_names_is_followed_at_once_and_a_circle_ends() {
        const LONG: usize = 100_000;
        let mut followers = Followers::default();
        for i in 0..LONG {
            // In the most expensive order, where each pass finds one more.
            let i = LONG - i;
            let follower = Follower {
                service: name(i % LONG),
                is_alias: true,
            };
            followers.add(Reference::Service(name(i - 1)), follower);
        }
        let begun = Instant::now();
        let (reached, found) = followers.follow(vec![Reference::Service(name(0))], &|_| Vec::new());
        assert_eq!((reached.len(), found.len()), (LONG, LONG));
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    }
}
