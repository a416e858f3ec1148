//! Quotas that limit what one peer may hold.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// The client of a request, as one of its extensions; absent for clients of the local socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

impl From<IpAddr> for Peer {
    /// A host may own all addresses of a /64 (RFC 4291 §2.5.1), so they count as one.
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Self(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            ip => Self(ip),
        }
    }
}

/// A limit on the number of units in use, and a lower limit per peer. Clones share it.
#[derive(Clone, Debug)]
pub struct Quota(Arc<Limits>);

#[derive(Debug)]
struct Limits {
    all: usize,
    each: usize,
    held: Mutex<HashMap<Option<Peer>, usize>>,
}

/// Units of a quota, returned on drop.
#[derive(Debug)]
pub struct QuotaGuard {
    of: Quota,
    peer: Option<Peer>,
    units: usize,
}

impl Quota {
    /// A quota of `all` in total and `each` per peer.
    #[must_use]
    pub fn new(all: usize, each: usize) -> Self {
        let held = Mutex::default();
        Self(Arc::new(Limits { all, each, held }))
    }

    /// A unit for the peer of a request with these extensions; `None` if a limit is reached.
    #[must_use]
    pub fn take(&self, extensions: &http::Extensions) -> Option<QuotaGuard> {
        self.take_many(extensions, 1)
    }

    /// Like [`Quota::take`], for several units.
    #[must_use]
    pub fn take_many(&self, extensions: &http::Extensions, units: usize) -> Option<QuotaGuard> {
        let peer = extensions.get::<Peer>().copied();
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = held.values().sum();
        let own = held.get(&peer).copied().unwrap_or_default();
        if all + units > self.0.all || own + units > self.0.each {
            return None;
        }
        held.insert(peer, own + units);
        Some(QuotaGuard {
            of: self.clone(),
            peer,
            units,
        })
    }
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        let held = &self.of.0.held;
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get_mut(&self.peer) {
            Some(count) if *count > self.units => *count -= self.units,
            _ => drop(held.remove(&self.peer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_gets_no_more_than_its_limit() {
        let quota = Quota::new(5, 2);
        let take = |ip: &str| {
            let mut extensions = http::Extensions::new();
            extensions.insert(Peer::from(ip.parse::<IpAddr>().unwrap()));
            quota.take(&extensions)
        };
        let first = [take("10.0.0.1"), take("::ffff:10.0.0.1")];
        assert!(first.iter().all(Option::is_some) && take("10.0.0.1").is_none());
        let second = [take("2001:db8::1"), take("2001:db8::2")];
        assert!(second.iter().all(Option::is_some) && take("2001:db8::3").is_none());
        let third = take("10.0.0.2");
        assert!(third.is_some() && take("10.0.0.3").is_none());
        drop(first);
        assert!(take("10.0.0.1").is_some());
    }
}
