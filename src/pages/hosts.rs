//! The host names for which an admin port answers: protection against DNS rebinding.

use std::net::IpAddr;

use http::header::HOST;
use http::uri::Authority;
use http::{Request, StatusCode, Version};

use super::{PageResponse, text};

/// The host names for which an admin port answers.
///
/// An attacker's page in a user's browser can read any admin port that the browser can reach, if the attacker's own host name is
/// made to resolve to the port's address (DNS rebinding). Such a request has the attacker's name as its `Host` (RFC 9110 §7.2).
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
    /// Allows addresses, `localhost`, names without a dot, names in `domain` and `svc`, and these names.
    #[must_use]
    pub fn new(domain: &str, names: impl IntoIterator<Item = String>) -> Self {
        let lower = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
        Self {
            domain: format!(".{}", lower(domain)),
            names: names.into_iter().map(|name| lower(&name)).collect(),
        }
    }

    /// The response to a request for another name, or without exactly one name (RFC 9112 §3.2); `None` if the request is allowed.
    #[must_use]
    pub fn refusal<B>(&self, request: &Request<B>) -> Option<PageResponse> {
        let headers = request.headers().get_all(HOST);
        if request.version() == Version::HTTP_11 && headers.iter().count() != 1 {
            return Some(text(StatusCode::BAD_REQUEST, NEEDS_HOST));
        }
        let headers = headers.iter().map(|value| value.to_str().unwrap_or(" "));
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
        // Anything may follow an address in brackets, and a user may precede a name.
        let rest = authority.as_str().strip_prefix(host);
        if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':')) {
            return false;
        }
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

const NEEDS_HOST: &str = "an HTTP/1.1 request needs exactly one Host header field\n";
const REFUSED: &str = "this port does not respond to that host name: use its address, localhost, or the name of its Service, \
                       or allow the name with --admin-host\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_of_the_cluster_are_allowed() {
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
            "[::1].evil.example",
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
        assert!(!refused("/plan", &["localhost"]));
        assert!(refused("/plan", &["evil.example"]));
        assert!(refused("/plan", &["localhost", "evil.example"]));
        assert!(refused("http://evil.example/plan", &["localhost"]));
        assert!(!refused("http://127.0.0.1:1/plan", &["localhost"]));
    }
    #[test]
    fn a_request_over_http_1_1_has_exactly_one_host_field() {
        let status = |version: Version, count: usize| {
            let mut request = Request::get("/livez").version(version);
            for _ in 0..count {
                request = request.header(HOST, "localhost");
            }
            let refusal = Hosts::default().refusal(&request.body(()).unwrap());
            refusal.map(|answer| answer.status().as_u16())
        };
        assert_eq!(status(Version::HTTP_11, 0), Some(400));
        assert_eq!(status(Version::HTTP_11, 1), None);
        assert_eq!(status(Version::HTTP_11, 2), Some(400));
        assert_eq!(status(Version::HTTP_10, 0), None);
        assert_eq!(status(Version::HTTP_2, 0), None);
    }
}
