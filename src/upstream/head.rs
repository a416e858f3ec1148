//! The head of a request as it is sent to a model server.

use std::sync::Arc;

use http::header::{HOST, HeaderName, HeaderValue, VIA};
use http::{HeaderMap, Method, Uri, Version};

use crate::memory::Budget;

pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The head of a request as it is sent to a model server. All attempts of an exchange share it.
#[derive(Clone, Debug)]
pub struct Head {
    pub method: Method,
    /// In origin form.
    pub uri: Uri,
    /// Without hop-by-hop fields and framing.
    pub headers: HeaderMap,
    pub added: AddedFields,
    /// The client waits for `100 Continue`, so the model server is asked first (RFC 9110 §10.1.1).
    pub expects_continue: bool,
}

/// Fields that the proxy adds to a head. They are kept out of the map until they are written, because inserting them would hash
/// each name and grow the map.
#[derive(Clone, Debug, Default)]
pub struct AddedFields {
    /// The HTTP version in which the proxy received the message, as a gateway must state in `Via` (RFC 9110 §7.6.3).
    pub via: Option<Version>,
    /// This and the following fields are set only if `headers` does not have them.
    pub forwarded_for: Option<HeaderValue>,
    pub forwarded_proto: Option<Proto>,
    /// Whether to repeat Host, if present, as `X-Forwarded-Host`.
    pub forwarded_host: bool,
    /// The text of a random ID.
    pub request_id: Option<[u8; 36]>,
}

/// How the client connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proto {
    Http,
    Https,
}

impl Proto {
    /// The name in header fields.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

impl Head {
    /// Calls `emit` with the name and value of each field that is added to `headers`.
    pub fn each_added(&self, mut emit: impl FnMut(HeaderName, &[u8])) {
        let added = &self.added;
        if let Some(list) = &added.forwarded_for {
            emit(X_FORWARDED_FOR, list.as_bytes());
        }
        if let Some(proto) = added.forwarded_proto {
            emit(X_FORWARDED_PROTO, proto.as_str().as_bytes());
        }
        if let Some(host) = self.headers.get(HOST)
            && added.forwarded_host
        {
            emit(X_FORWARDED_HOST, host.as_bytes());
        }
        if let Some(version) = added.via {
            emit(VIA, via(version).as_bytes());
        }
        if let Some(id) = &added.request_id {
            emit(X_REQUEST_ID, id);
        }
    }

    /// All fields, including the added ones.
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

fn via(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "2.0 crossfade",
        Version::HTTP_10 => "1.0 crossfade",
        _ => "1.1 crossfade",
    }
}

/// A head plus the field that is specific to this attempt, which replaces any field of the same name.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    pub head: &'a Head,
    pub extra: Option<&'a (HeaderName, HeaderValue)>,
    /// The budget that is charged for response data until it is read.
    pub memory: &'a Arc<Budget>,
}
