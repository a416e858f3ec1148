//! Restricts the targets of an update in a cluster, so that a user who may edit it cannot send prompts anywhere.
//!
//! Allows only Services of the update's own namespace, by name.

use super::target::{Host, TargetAddress};

/// The targets that an update may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetScope {
    /// The namespace of the update.
    pub namespace: String,
    /// The domain of the cluster, such as `cluster.local`.
    pub domain: String,
    /// Whether any target is allowed.
    pub anywhere: bool,
}

/// Why a target is not allowed; the message is for its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfScope {
    /// It is an address, not a name.
    #[error(
        "{target} is an address; only Services of namespace '{namespace}' are allowed, by name{HINT}"
    )]
    Address { target: String, namespace: String },
    /// It is a Service of another namespace.
    #[error(
        "{target} is in namespace '{other}'; only Services of namespace '{namespace}' are allowed{HINT}"
    )]
    Namespace {
        target: String,
        other: String,
        namespace: String,
    },
    /// It is not the name of a Service.
    #[error(
        "{target} is not in the cluster; only Services of namespace '{namespace}' are allowed: NAME, NAME.{namespace}, \
         NAME.{namespace}.svc or NAME.{namespace}.svc.{domain}{HINT}"
    )]
    Outside {
        target: String,
        namespace: String,
        domain: String,
    },
}

/// How to lift the restriction.
const HINT: &str = " (--kube-allow-any-target of the proxy and --allow-any-target of the controller lift this restriction)";

impl TargetScope {
    /// Expands the target to the full name of the Service, so that the search list of a resolver cannot lead elsewhere: in the
    /// namespace `dev`, `x.dev` is a Service and not the host of that name on the Internet.
    ///
    /// # Errors
    ///
    /// Why the target is not allowed.
    pub fn of(&self, target: &TargetAddress) -> Result<TargetAddress, OutOfScope> {
        if self.anywhere {
            return Ok(target.clone());
        }
        let (shown, namespace) = (target.to_string(), self.namespace.clone());
        let Host::Name(name) = &target.host else {
            return Err(OutOfScope::Address {
                target: shown,
                namespace,
            });
        };
        let outside = OutOfScope::Outside {
            target: shown.clone(),
            namespace: namespace.clone(),
            domain: self.domain.clone(),
        };
        let (service, rest) = match name.split_once('.') {
            None => (name.as_str(), None),
            Some((service, rest)) => (service, Some(rest)),
        };
        let is_whole = |rest: &str| rest.strip_suffix('.').unwrap_or(rest) == self.domain;
        let other = match rest.map(|rest| rest.split_once('.').unwrap_or((rest, ""))) {
            None => None,
            // A trailing dot makes a name absolute, so it is only valid on the full name.
            Some((_, after)) if name.ends_with('.') && !after.starts_with("svc.") => {
                return Err(outside);
            }
            Some((other, "" | "svc")) => Some(other),
            Some((other, after)) if after.strip_prefix("svc.").is_some_and(is_whole) => Some(other),
            Some(_) => return Err(outside),
        };
        match other {
            Some(other) if other != self.namespace => Err(OutOfScope::Namespace {
                target: shown,
                other: other.to_owned(),
                namespace,
            }),
            _ => Ok(TargetAddress {
                host: Host::Name(format!("{service}.{namespace}.svc.{}", self.domain)),
                written: Some(target.host.clone()),
                ..*target
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scope() -> TargetScope {
        TargetScope {
            namespace: "dev".into(),
            domain: "cluster.local".into(),
            anywhere: false,
        }
    }

    fn of(text: &str) -> Result<String, String> {
        let target: TargetAddress = text.parse().expect(text);
        let found = scope().of(&target).map(|target| target.to_string());
        found.map_err(|error| error.to_string())
    }

    #[test]
    fn a_service_of_the_namespace_is_reached_by_its_whole_name() {
        let whole = "http://new.dev.svc.cluster.local:8000";
        for text in [
            "new:8000",
            "NEW.dev:8000",
            "new.dev.svc:8000",
            "new.dev.svc.cluster.local:8000",
            "new.dev.svc.cluster.local.:8000",
        ] {
            assert_eq!(of(text).as_deref(), Ok(whole), "{text}");
        }
        let tls = of("https://new.dev").unwrap();
        assert_eq!(tls, "https://new.dev.svc.cluster.local:443");
    }

    #[test]
    fn the_resolver_is_queried_for_the_full_name_only() {
        for text in ["new:80", "https://new.dev", "new.dev.svc.cluster.local.:80"] {
            let written: TargetAddress = text.parse().unwrap();
            let reached = scope().of(&written).unwrap();
            assert_eq!(reached.name(), "new.dev.svc.cluster.local.", "{text}");
            // The certificate must contain the name as it was written.
            assert_eq!(*reached.called(), written.host, "{text}");
        }
        // The search list applies to names that were not expanded.
        assert_eq!("new:80".parse::<TargetAddress>().unwrap().name(), "new");
        assert_eq!("[::1]:80".parse::<TargetAddress>().unwrap().name(), "::1");
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        for (text, reason) in [
            ("10.0.0.1:80", "http://10.0.0.1:80 is an address"),
            ("[::1]:80", "is an address"),
            ("new.prod:80", "is in namespace 'prod'"),
            ("new.prod.svc:80", "is in namespace 'prod'"),
            ("new.prod.svc.cluster.local:80", "is in namespace 'prod'"),
            ("new.com:80", "is in namespace 'com'"),
            ("api.openai.com:80", "is not in the cluster"),
            ("new.dev.svc.evil.example:80", "is not in the cluster"),
            (
                "new.dev.svc.cluster.local.evil.example:80",
                "is not in the cluster",
            ),
            ("pod.new.dev.svc.cluster.local:80", "is not in the cluster"),
            ("new.dev.pod:80", "is not in the cluster"),
            ("new.:80", "is not in the cluster"),
            ("new.dev.:80", "is not in the cluster"),
            ("new.dev.svc.:80", "is not in the cluster"),
        ] {
            let error = of(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.contains("namespace 'dev'"), "{text}: {error}");
            for flag in ["--kube-allow-any-target", " --allow-any-target"] {
                assert!(error.contains(flag), "{text}: {error}");
            }
        }
    }

    #[test]
    fn the_operator_of_the_proxy_may_allow_any_target() {
        let scope = TargetScope {
            anywhere: true,
            ..scope()
        };
        let target: TargetAddress = "10.0.0.1:80".parse().unwrap();
        assert_eq!(scope.of(&target), Ok(target));
    }

    proptest! {
        /// No matter what name is written, the result is a single label in the update's own namespace.
        #[test]
        fn nothing_leaves_the_namespace(name in "[a-z]{1,3}(\\.(dev|svc|cluster|local|com|prod)){0,5}\\.?") {
            let target: TargetAddress = format!("{name}:80").parse().unwrap();
            if let Ok(reached) = scope().of(&target) {
                let host = reached.host.to_string();
                let service = host.strip_suffix(".dev.svc.cluster.local").unwrap();
                prop_assert!(!service.contains('.'), "{}", host);
            }
        }
    }
}
