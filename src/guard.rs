//! The header that prevents a request from being forwarded twice for the same update, and the name of the response header.
//!
//! Form: `<update>;hop=<n>`, one member per update that has forwarded the request, comma-separated. `<update>` is a keyed hash of
//! the update's identity. All proxies of an update compute the same hash, and other updates have different ones, so a chain of
//! two updates works, and a value forged by a client has no effect.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http1::{NameFilter, list_members};
use crate::resource::{Identity, TargetAddress};

/// The header.
pub const GUARD: HeaderName = HeaderName::from_static("x-crossfade-guard");

/// The header of responses that names the generation that sent them. It also shows that a response came through a crossfade
/// proxy.
pub const GENERATION: HeaderName = HeaderName::from_static("x-crossfade-generation");

/// Maximum number of updates in a chain. A request with more is in a loop.
pub const MAX_HOPS: usize = 8;

/// The guard of one update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    update: String,
    /// The value for a request that no proxy has forwarded yet, which nearly all are.
    first: HeaderValue,
}

/// The result of checking the guard header of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardCheck {
    /// This update has not forwarded the request. The value to forward it with.
    Forward(HeaderValue),
    /// This update has forwarded the request, so it must be served here.
    AlreadyForwarded,
    /// More updates have forwarded the request than allowed.
    Loop,
}

impl Guard {
    /// The guard of an update, keyed by a secret that its proxies share. In a cluster it includes the resource's `uid`, which
    /// no client knows. If clients may know the name of the plan, use a key.
    #[must_use]
    pub fn new(key: &[u8], identity: &Identity, new: &[TargetAddress]) -> Self {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
        let mut context = ring::hmac::Context::with_key(&key);
        let texts = [&identity.uid, &identity.namespace, &identity.name];
        for text in texts.into_iter().map(|text| text.as_deref().unwrap_or("")) {
            context.update(&(text.len() as u64).to_be_bytes());
            context.update(text.as_bytes());
        }
        // A plan from flags has no name, so its targets identify it.
        if identity.uid.is_none() && identity.name.is_none() {
            for target in new {
                context.update(target.to_string().as_bytes());
                context.update(b",");
            }
        }
        let tag = context.sign();
        let hex = tag.as_ref()[..16].iter().map(|byte| format!("{byte:02x}"));
        let update: String = hex.collect();
        let first = HeaderValue::try_from(format!("{update};hop=1"))
            .expect("hexadecimal digits are a valid header value");
        Self { update, first }
    }

    /// Checks the guard header in `headers`, whose names are `names`.
    #[must_use]
    pub fn check(&self, headers: &HeaderMap, names: NameFilter) -> GuardCheck {
        if !names.contains(headers, &GUARD) {
            return GuardCheck::Forward(self.first.clone());
        }
        let mut hops = 0;
        let mut value = String::new();
        for member in list_members(headers, &GUARD) {
            if member.split(';').next() == Some(self.update.as_str()) {
                return GuardCheck::AlreadyForwarded;
            }
            hops += 1;
            value.push_str(member);
            value.push_str(", ");
        }
        if hops >= MAX_HOPS {
            return GuardCheck::Loop;
        }
        value.push_str(&format!("{};hop={}", self.update, hops + 1));
        match HeaderValue::try_from(value) {
            Ok(value) => GuardCheck::Forward(value),
            Err(_) => GuardCheck::Loop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(key: &str, name: &str) -> Guard {
        let identity = Identity {
            name: Some(name.into()),
            ..Identity::default()
        };
        Guard::new(key.as_bytes(), &identity, &[])
    }

    fn check(guard: &Guard, headers: &HeaderMap) -> GuardCheck {
        guard.check(headers, NameFilter::of(headers))
    }

    fn headers(value: HeaderValue) -> HeaderMap {
        HeaderMap::from_iter([(GUARD, value)])
    }

    fn fresh(guard: &Guard, headers: &HeaderMap) -> HeaderValue {
        match check(guard, headers) {
            GuardCheck::Forward(value) => value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_update_never_forwards_a_request_twice() {
        let first = fresh(&guard("", "a"), &HeaderMap::new());
        assert!(first.to_str().expect("text").ends_with(";hop=1"));
        assert_eq!(
            check(&guard("", "a"), &headers(first)),
            GuardCheck::AlreadyForwarded
        );
    }

    #[test]
    fn a_chain_of_two_updates_works_and_a_loop_of_two_ends() {
        let first = fresh(&guard("", "a"), &HeaderMap::new());
        let second = fresh(&guard("", "b"), &headers(first));
        assert!(second.to_str().expect("text").ends_with(";hop=2"));
        assert_eq!(
            check(&guard("", "a"), &headers(second.clone())),
            GuardCheck::AlreadyForwarded
        );
        assert_eq!(
            check(&guard("", "b"), &headers(second)),
            GuardCheck::AlreadyForwarded
        );
    }

    #[test]
    fn a_forged_guard_header_has_no_effect() {
        for text in [
            "",
            "1",
            "true",
            "00000000000000000000000000000000;hop=99",
            ";,;",
            "\u{e9}",
        ] {
            let forged = headers(HeaderValue::from_bytes(text.as_bytes()).expect("a value"));
            assert!(
                matches!(check(&guard("", "a"), &forged), GuardCheck::Forward(_)),
                "{text:?}"
            );
        }
        let other = fresh(&guard("other key", "a"), &HeaderMap::new());
        assert!(matches!(
            check(&guard("key", "a"), &headers(other)),
            GuardCheck::Forward(_)
        ));
    }

    #[test]
    fn a_request_loop_is_detected() {
        let mut seen = HeaderMap::new();
        for hop in 0..MAX_HOPS {
            seen = headers(fresh(&guard("", &hop.to_string()), &seen));
        }
        assert_eq!(check(&guard("", "x"), &seen), GuardCheck::Loop);
    }
}
