//! The mark of a request that crossfade has forwarded, so that it is never forwarded twice for one update.
//!
//! Form: `<update>;hop=<n>`, one member per update that forwarded it, comma-separated. `<update>` is a keyed hash of what the
//! update is called: all its proxies agree on it, another update's is another one, so a chain of two updates works, and a
//! mark that a client makes up means nothing.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http1::{NameFilter, list_members};
use crate::resource::{Identity, Target};

/// The header that carries the mark.
pub const GUARD: HeaderName = HeaderName::from_static("x-crossfade-guard");

/// Most updates in a row. Beyond it the request is going in circles.
pub const MAX_HOPS: usize = 8;

/// The mark of one update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    update: String,
    /// The value for a request that nobody has forwarded yet: nearly all of them.
    first: HeaderValue,
}

/// What a request's marks say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// This update has not forwarded it. The value to forward it with.
    Fresh(HeaderValue),
    /// This update has forwarded it: it must be served here.
    Forwarded,
    /// More updates than there can be have forwarded it.
    Circling,
}

impl Guard {
    /// The mark of an update, keyed by a secret that its proxies share. In a cluster the resource's `uid` is in it, which
    /// no client knows; where clients may know what a plan file is called, give a key.
    #[must_use]
    pub fn new(key: &[u8], identity: &Identity, new: &[Target]) -> Self {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
        let mut context = ring::hmac::Context::with_key(&key);
        let texts = [&identity.uid, &identity.namespace, &identity.name];
        for text in texts.into_iter().map(|text| text.as_deref().unwrap_or("")) {
            context.update(&(text.len() as u64).to_be_bytes());
            context.update(text.as_bytes());
        }
        // A plan from flags has no name: it is known by where it goes.
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

    /// What the marks in `headers`, which have these `names`, say.
    #[must_use]
    pub fn look(&self, headers: &HeaderMap, names: NameFilter) -> Seen {
        if !names.hold(headers, &GUARD) {
            return Seen::Fresh(self.first.clone());
        }
        let mut hops = 0;
        let mut value = String::new();
        for member in list_members(headers, &GUARD) {
            if member.split(';').next() == Some(self.update.as_str()) {
                return Seen::Forwarded;
            }
            hops += 1;
            value.push_str(member);
            value.push_str(", ");
        }
        if hops >= MAX_HOPS {
            return Seen::Circling;
        }
        value.push_str(&format!("{};hop={}", self.update, hops + 1));
        match HeaderValue::try_from(value) {
            Ok(value) => Seen::Fresh(value),
            Err(_) => Seen::Circling,
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

    fn look(guard: &Guard, headers: &HeaderMap) -> Seen {
        guard.look(headers, NameFilter::of(headers))
    }

    fn headers(value: HeaderValue) -> HeaderMap {
        HeaderMap::from_iter([(GUARD, value)])
    }

    fn fresh(guard: &Guard, headers: &HeaderMap) -> HeaderValue {
        match look(guard, headers) {
            Seen::Fresh(value) => value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_an_update_forwarded_it_never_forwards_again() {
        let first = fresh(&guard("", "a"), &HeaderMap::new());
        assert!(first.to_str().expect("text").ends_with(";hop=1"));
        assert_eq!(look(&guard("", "a"), &headers(first)), Seen::Forwarded);
    }

    #[test]
    fn a_chain_of_two_updates_works_and_a_circle_of_two_ends() {
        let first = fresh(&guard("", "a"), &HeaderMap::new());
        let second = fresh(&guard("", "b"), &headers(first));
        assert!(second.to_str().expect("text").ends_with(";hop=2"));
        assert_eq!(
            look(&guard("", "a"), &headers(second.clone())),
            Seen::Forwarded
        );
        assert_eq!(look(&guard("", "b"), &headers(second)), Seen::Forwarded);
    }

    #[test]
    fn a_mark_that_is_made_up_means_nothing() {
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
                matches!(look(&guard("", "a"), &forged), Seen::Fresh(_)),
                "{text:?}"
            );
        }
        let other = fresh(&guard("other key", "a"), &HeaderMap::new());
        assert!(matches!(
            look(&guard("key", "a"), &headers(other)),
            Seen::Fresh(_)
        ));
    }

    #[test]
    fn a_request_that_goes_in_circles_is_found() {
        let mut seen = HeaderMap::new();
        for hop in 0..MAX_HOPS {
            seen = headers(fresh(&guard("", &hop.to_string()), &seen));
        }
        assert_eq!(look(&guard("", "x"), &seen), Seen::Circling);
    }
}
