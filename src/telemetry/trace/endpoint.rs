//! The address of a collector, as given by users.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// Why a text is no [`Endpoint`]. It does not repeat the text, which may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadEndpoint(&'static str);

/// A collector's address for OTLP over gRPC: `http://host:port` or `https://…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

impl Endpoint {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    #[cfg(feature = "otlp")]
    pub(super) fn is_tls(&self) -> bool {
        self.0.starts_with("https")
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let form = BadEndpoint("use http://HOST:PORT or https://HOST:PORT");
        let uri: Uri = text.parse().map_err(|_| form)?;
        let authority = uri.authority().ok_or(form)?.as_str();
        let scheme = match uri.scheme_str() {
            Some(scheme @ ("http" | "https")) => scheme,
            _ => return Err(form),
        };
        if authority.contains('@') {
            return Err(BadEndpoint("set credentials in OTEL_EXPORTER_OTLP_HEADERS"));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(form)?;
        if authority != host && uri.port_u16().is_none_or(|port| port == 0) {
            return Err(form);
        }
        if uri
            .path_and_query()
            .is_some_and(|path| path.as_str() != "/")
        {
            return Err(BadEndpoint(
                "a path belongs to OTLP over HTTP; use the gRPC port, usually 4317",
            ));
        }
        Ok(Self(format!("{scheme}://{authority}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_without_path_or_password() {
        for (text, expected) in [
            ("http://a:4317", Some("http://a:4317")),
            ("https://a.example", Some("https://a.example")),
            ("http://[::1]:4317/", Some("http://[::1]:4317")),
            ("HTTP://a:1", Some("http://a:1")),
            ("", None),
            ("a:4317", None),
            ("/a", None),
            ("grpc://a:4317", None),
            ("unix:///a", None),
            ("http://", None),
            ("http://:4317", None),
            ("http://a:", None),
            ("http://a:x", None),
            ("http://a:70000", None),
            ("http://a:0", None),
            ("http://a:4318/v1/traces", None),
            ("http://a:4317?x=y", None),
            ("http://me:secret@a:4317", None),
        ] {
            let endpoint: Result<Endpoint, _> = text.parse();
            assert_eq!(
                endpoint.as_ref().ok().map(Endpoint::as_str),
                expected,
                "{text}"
            );
            if let Err(error) = endpoint {
                assert!(!error.to_string().contains("secret"));
            }
        }
    }
}
