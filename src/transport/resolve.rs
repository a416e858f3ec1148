//! Resolves names, and checks where an alias leads.

use std::io;
use std::net::SocketAddr;

use dns_lookup::{AddrInfoHints, SockType, getaddrinfo};

/// A name is an alias of a name outside its parent domain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is an alias of {alias}, which is outside its namespace")]
struct AliasOutsideNamespace {
    name: String,
    alias: String,
}

/// The addresses of `name`. If it is `confined`, an alias (a CNAME, such as that of an ExternalName Service) must have the same
/// parent domain: for the full name of a Service, it must be a Service of the same namespace.
///
/// # Errors
/// When the name does not resolve or leads outside.
pub async fn resolve(name: &str, port: u16, confined: bool) -> io::Result<Vec<SocketAddr>> {
    if !confined {
        return Ok(tokio::net::lookup_host((name, port)).await?.collect());
    }
    let name = name.to_owned();
    let lookup = tokio::task::spawn_blocking(move || {
        let hints = AddrInfoHints {
            flags: libc::AI_CANONNAME,
            socktype: SockType::Stream.into(),
            ..AddrInfoHints::default()
        };
        let found = getaddrinfo(Some(&name), None, Some(hints))?;
        let found: Vec<_> = found.collect::<io::Result<_>>()?;
        let found = found.into_iter().map(|one| (one.sockaddr, one.canonname));
        confine(name, port, found)
    });
    lookup.await?
}

/// The addresses that were found for `name`, each with the name that it belongs to if that is known.
fn confine(
    name: String,
    port: u16,
    found: impl IntoIterator<Item = (SocketAddr, Option<String>)>,
) -> io::Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for (mut address, alias) in found {
        if let Some(alias) = alias.filter(|alias| !stays(&name, alias)) {
            return Err(io::Error::other(AliasOutsideNamespace { name, alias }));
        }
        address.set_port(port);
        addresses.push(address);
    }
    Ok(addresses)
}

/// Whether `alias` is the same name, or one with the same parent.
fn stays(name: &str, alias: &str) -> bool {
    let plain = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
    let (name, alias) = (plain(name), plain(alias));
    let parent = name.find('.').map(|dot| &name[dot..]);
    alias == name
        || parent.is_some_and(|parent| {
            alias
                .strip_suffix(parent)
                .is_some_and(|label| !label.is_empty())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_stays_where_it_has_the_same_parent() {
        let name = "new.dev.svc.cluster.local.";
        for good in [
            "new.dev.svc.cluster.local",
            "NEW.dev.svc.cluster.local.",
            "other.dev.svc.cluster.local",
            "pod-0.other.dev.svc.cluster.local",
        ] {
            assert!(stays(name, good), "{good}");
        }
        for bad in [
            "evil.example",
            "new.other.svc.cluster.local",
            "new.dev.svc.cluster.local.evil.example",
            ".dev.svc.cluster.local",
            "xdev.svc.cluster.local",
            "localhost",
            "",
        ] {
            assert!(!stays(name, bad), "{bad}");
        }
        assert!(stays("localhost", "localhost") && !stays("localhost", "evil"));
    }

    #[test]
    fn a_service_whose_alias_leads_outside_has_no_address() {
        let service = || "new.dev.svc.cluster.local.".to_owned();
        let address = |last| SocketAddr::from(([10, 0, 0, last], 0));
        // As getaddrinfo(3) returns it: with the first address only.
        let found = |alias: &str| [(address(1), Some(alias.to_owned())), (address(2), None)];
        let inside = confine(service(), 80, found("other.dev.svc.cluster.local")).unwrap();
        let with_port = [1, 2].map(|last| SocketAddr::from(([10, 0, 0, last], 80)));
        assert_eq!(inside, with_port);
        let error = confine(service(), 80, found("evil.example")).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("alias of evil.example, which is outside its namespace"),
            "{said}"
        );
    }

    #[tokio::test]
    async fn a_name_that_leads_to_itself_resolves_confined_or_not() {
        for confined in [false, true] {
            let found = resolve("localhost", 7, confined).await.unwrap();
            assert!(!found.is_empty());
            assert!(
                found
                    .iter()
                    .all(|one| one.ip().is_loopback() && one.port() == 7)
            );
        }
    }
}
