//! Who may ask an admin port: the names by which it may be asked for, and how much of what is scarce one peer may hold.
//!
//! Must not know what is asked.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use http::header::HOST;
use http::uri::Authority;
use http::{Request, StatusCode};

use super::{Answer, text};

/// The names by which an admin port may be asked for.
///
/// A page of a stranger in somebody's browser can ask an admin port that the browser reaches, and read the answer, if the stranger's
/// own name is made to resolve to its address (DNS rebinding). Such a request carries the stranger's name as its `Host` (RFC 9110
/// §7.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The domain of the cluster.
    domain: String,
    names: Vec<String>,
}

impl Default for Hosts {
    fn default() -> Self {
        Self::new("cluster.local", [])
    }
}

impl Hosts {
    /// Addresses, `localhost`, names without a dot, names in `domain` and `svc`, and these names.
    #[must_use]
    pub fn new(domain: &str, names: impl IntoIterator<Item = String>) -> Self {
        let lower = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
        Self {
            domain: format!(".{}", lower(domain)),
            names: names.into_iter().map(|name| lower(&name)).collect(),
        }
    }

    /// The answer to a request for another name; none if it may be answered. One without any is from no browser.
    #[must_use]
    pub fn refusal<B>(&self, request: &Request<B>) -> Option<Answer> {
        let headers = request.headers().get_all(HOST).iter();
        let headers = headers.map(|value| value.to_str().unwrap_or(" "));
        let authority = request.uri().authority().map(Authority::as_str);
        let mut hosts = headers.chain(authority);
        hosts
            .any(|host| !self.allow(host))
            .then(|| text(StatusCode::MISDIRECTED_REQUEST, REFUSED))
    }

    fn allow(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let host = authority.host();
        if host.starts_with('[') || host.parse::<IpAddr>().is_ok() {
            return true;
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let is_local = !host.contains('.')
            || [".localhost", ".svc", &self.domain]
                .iter()
                .any(|end| host.ends_with(end));
        is_local || self.names.contains(&host)
    }
}

const REFUSED: &str = "this port is not known by that name: ask for it by its address, localhost or the name of its Service, \
                       or name the host with --admin-host\n";

/// Where a request came from, as one of its extensions; absent where it came from this machine by other ways than TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

impl From<IpAddr> for Peer {
    /// One host may have all addresses of a /64 (RFC 4291 §2.5.1): they count as one.
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

/// Something of which there is a limited number, and a lower limit to what one peer may hold of it. Clones count together.
#[derive(Clone, Debug)]
pub struct Shares(Arc<Limits>);

#[derive(Debug)]
struct Limits {
    all: usize,
    each: usize,
    held: Mutex<HashMap<Option<Peer>, usize>>,
}

/// One of them, for as long as it is kept.
#[derive(Debug)]
pub struct Share {
    of: Shares,
    peer: Option<Peer>,
}

impl Shares {
    /// `all` of them, and `each` for one peer.
    #[must_use]
    pub fn new(all: usize, each: usize) -> Self {
        let held = Mutex::default();
        Self(Arc::new(Limits { all, each, held }))
    }

    /// One more for the peer of a request with these extensions; none where a limit is reached.
    #[must_use]
    pub fn take(&self, extensions: &http::Extensions) -> Option<Share> {
        let peer = extensions.get::<Peer>().copied();
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = held.values().sum();
        let own = held.get(&peer).copied().unwrap_or_default();
        if all >= self.0.all || own >= self.0.each {
            return None;
        }
        held.insert(peer, own + 1);
        Some(Share {
            of: self.clone(),
            peer,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let held = &self.of.0.held;
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get_mut(&self.peer) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(held.remove(&self.peer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_asked_for_by_an_address_or_by_a_name_of_the_cluster() {
        let hosts = Hosts::new("k8s.example", ["Proxy.Example.".to_owned()]);
        for good in [
            "10.0.0.1:9464",
            "127.0.0.1",
            "[::1]:9464",
            "localhost:9464",
            "LOCALHOST",
            "a.localhost",
            "a-pod:9464",
            "crossfade.dev.svc",
            "crossfade.dev.svc.k8s.example:9464",
            "10-0-0-1.dev.pod.K8S.example.",
            "proxy.example:9464",
        ] {
            assert!(hosts.allow(good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:9464",
            "10.0.0.1.evil.example",
            "localhost.evil.example",
            "svc.evil.example",
            "evil-k8s.example",
            "a.proxy.example",
            "crossfade.dev.svc.cluster.local",
            "a b",
            "",
        ] {
            assert!(!hosts.allow(bad), "{bad}");
        }
    }

    #[test]
    fn one_wrong_name_of_several_is_enough() {
        let hosts = Hosts::default();
        let refused = |uri: &str, names: &[&str]| {
            let mut request = Request::get(uri);
            for name in names {
                request = request.header(HOST, *name);
            }
            hosts.refusal(&request.body(()).unwrap()).is_some()
        };
        assert!(!refused("/plan", &[]));
        assert!(!refused("/plan", &["localhost"]));
        assert!(refused("/plan", &["evil.example"]));
        assert!(refused("/plan", &["localhost", "evil.example"]));
        assert!(refused("http://evil.example/plan", &["localhost"]));
        assert!(!refused("http://127.0.0.1:1/plan", &["localhost"]));
    }

    #[test]
    fn one_peer_has_its_share_and_no_more() {
        let shares = Shares::new(5, 2);
        let take = |ip: &str| {
            let mut extensions = http::Extensions::new();
            extensions.insert(Peer::from(ip.parse::<IpAddr>().unwrap()));
            shares.take(&extensions)
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
