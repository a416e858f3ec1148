//! The head of a request as a model server gets it.

use std::sync::Arc;

use http::header::{HOST, HeaderName, HeaderValue, VIA};
use http::{HeaderMap, Method, Uri};

use crate::memory::Budget;

pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The head of a request as a model server gets it. The same head serves every attempt of an exchange.
#[derive(Clone, Debug)]
pub struct Head {
    pub method: Method,
    /// In origin form.
    pub uri: Uri,
    /// Without hop-by-hop fields and framing.
    pub headers: HeaderMap,
    pub added: Added,
    /// The client waits for `100 Continue`, so the model server is asked first (RFC 9110 §10.1.1).
    pub expects_continue: bool,
}

/// What a gateway adds to a head. It stays beside the map, which would hash each name and grow, until it is written.
#[derive(Clone, Debug, Default)]
pub struct Added {
    /// RFC 9110 §7.6.3.
    pub via: Option<&'static str>,
    /// Only where `headers` have no such field, as those that follow.
    pub forwarded_for: Option<HeaderValue>,
    pub forwarded_proto: Option<&'static str>,
    /// Is Host, if there is one, told again as `X-Forwarded-Host`?
    pub forwarded_host: bool,
}

impl Head {
    /// Tells the name and value of each field that is added to `headers`.
    pub fn each_added(&self, mut tell: impl FnMut(HeaderName, &[u8])) {
        let added = &self.added;
        if let Some(list) = &added.forwarded_for {
            tell(X_FORWARDED_FOR, list.as_bytes());
        }
        if let Some(proto) = added.forwarded_proto {
            tell(X_FORWARDED_PROTO, proto.as_bytes());
        }
        if let Some(host) = self.headers.get(HOST)
            && added.forwarded_host
        {
            tell(X_FORWARDED_HOST, host.as_bytes());
        }
        if let Some(via) = added.via {
            tell(VIA, via.as_bytes());
        }
    }

    /// All fields.
    #[must_use]
    pub fn fields(&self) -> HeaderMap {
        let mut fields = self.headers.clone();
        self.each_added(|name, value| {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                fields.append(name, value);
            }
        });
        fields
    }
}

/// A head, with the field that only this attempt carries: it takes the place of one of its name.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    pub head: &'a Head,
    pub extra: Option<&'a (HeaderName, HeaderValue)>,
    /// What is held of the answer, until it is read, is charged to this.
    pub memory: &'a Arc<Budget>,
}
