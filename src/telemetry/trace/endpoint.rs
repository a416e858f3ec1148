//! The address of a collector, as given by users.

use std::str::FromStr;

use http::Uri;

use super::protocol::Protocol;

/// Why a text is not an [`Endpoint`]. It does not repeat the text, which may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadEndpoint(&'static str);

/// The path at which OTLP over HTTP accepts spans, below the address of a collector.
const TRACES: &str = "/v1/traces";

/// A collector's address: `http://host[:port][/path]` or `https://…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Scheme, host and port.
    root: String,
    path: Option<String>,
}

impl Endpoint {
    /// The URL to which spans are sent. With HTTP, an address without a path is that of the collector, and one with a path is the
    /// URL itself.
    pub(super) fn url(&self, protocol: Protocol) -> Result<String, BadEndpoint> {
        match (protocol, &self.path) {
            (Protocol::Grpc, None) => Ok(self.root.clone()),
            (Protocol::Grpc, Some(_)) => Err(BadEndpoint(
                "a path requires OTLP over HTTP: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or remove the path and \
                 use the gRPC port, usually 4317",
            )),
            (Protocol::HttpProtobuf, None) => Ok(format!("{}{TRACES}", self.root)),
            (Protocol::HttpProtobuf, Some(path)) => Ok(format!("{}{path}", self.root)),
        }
    }

    /// The URL for spans below this address, as for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub(super) fn below(mut self) -> Self {
        self.path = self
            .path
            .map(|path| format!("{}{TRACES}", path.trim_end_matches('/')));
        self
    }

    /// Exactly this URL, as for `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`.
    pub(super) fn exact(mut self) -> Self {
        self.path.get_or_insert_with(|| "/".to_owned());
        self
    }

    #[cfg(feature = "otlp")]
    pub(super) fn is_tls(&self) -> bool {
        self.root.starts_with("https")
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
        if uri.query().is_some() {
            return Err(BadEndpoint(
                "a query is not supported; set keys in OTEL_EXPORTER_OTLP_HEADERS",
            ));
        }
        let path = Some(uri.path()).filter(|path| !matches!(*path, "" | "/"));
        Ok(Self {
            root: format!("{scheme}://{authority}"),
            path: path.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str, protocol: Protocol) -> Result<String, BadEndpoint> {
        text.parse::<Endpoint>()?.url(protocol)
    }

    #[test]
    fn an_endpoint_of_grpc_is_a_url_without_path_or_password() {
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
            let url = url(text, Protocol::Grpc);
            assert_eq!(url.as_deref().ok(), expected, "{text}");
            if let Err(error) = url {
                assert!(!error.to_string().contains("secret"));
            }
        }
    }

    #[test]
    fn an_endpoint_of_http_is_a_collector_or_with_a_path_the_url_of_its_traces() {
        for (text, expected) in [
            ("http://a:4318", Some("http://a:4318/v1/traces")),
            ("http://a:4318/", Some("http://a:4318/v1/traces")),
            ("https://a/otlp/v1/traces", Some("https://a/otlp/v1/traces")),
            ("http://[::1]:4318/x/", Some("http://[::1]:4318/x/")),
            ("http://a:4318/v1/traces?key=secret", None),
            ("http://me:secret@a:4318/v1/traces", None),
            ("a:4318/v1/traces", None),
        ] {
            let url = url(text, Protocol::HttpProtobuf);
            assert_eq!(url.as_deref().ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_variable_of_all_signals_names_the_collector_and_the_one_of_traces_the_url() {
        for (text, below, exact) in [
            ("http://a:1", "http://a:1/v1/traces", "http://a:1/"),
            ("http://a:1/", "http://a:1/v1/traces", "http://a:1/"),
            ("http://a:1/b", "http://a:1/b/v1/traces", "http://a:1/b"),
            ("http://a:1/b/", "http://a:1/b/v1/traces", "http://a:1/b/"),
        ] {
            let endpoint: Endpoint = text.parse().expect("an endpoint");
            let url = |endpoint: Endpoint| endpoint.url(Protocol::HttpProtobuf);
            assert_eq!(url(endpoint.clone().below()).as_deref(), Ok(below));
            assert_eq!(url(endpoint.exact()).as_deref(), Ok(exact));
        }
    }
}
