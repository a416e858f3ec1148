//! Classifies requests by method, path and, for upgrades, headers.

use http::header::UPGRADE;
use http::{HeaderMap, Method};

use crate::sse::Api;

/// The path prefixes of inference requests. Configurable because frontends differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    prefixes: Vec<String>,
}

/// The paths of OpenAI-style frontends and of Dynamo's engine-native ones.
pub const DEFAULT_PREFIXES: [&str; 3] = ["/v1/", "/generate", "/inference/"];

impl Default for Routes {
    fn default() -> Self {
        Self::new(DEFAULT_PREFIXES.map(String::from).into())
    }
}

/// The kind of a request, which decides where it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Split between the generations.
    Inference(Api),
    /// Split, then tunneled.
    Upgrade,
    /// The list of models: the union of both generations.
    Models,
    /// One model, looked up in both generations.
    Model,
    /// Not split: served by old, and by new once old drains.
    Unsplit,
    /// About the frontend itself, such as its health and its metrics: always served by old.
    Local,
}

impl Route {
    /// The API family that responses are parsed as.
    #[must_use]
    pub fn api(self) -> Api {
        match self {
            Self::Inference(api) => api,
            _ => Api::Other,
        }
    }

    /// Whether a client may depend on the response. This excludes health checks, scrapes, and lists of models.
    #[must_use]
    pub const fn is_client_use(self) -> bool {
        matches!(self, Self::Inference(_) | Self::Upgrade | Self::Unsplit)
    }
}

impl Routes {
    /// Treats `POST` requests below one of `prefixes` as inference.
    #[must_use]
    pub fn new(prefixes: Vec<String>) -> Self {
        Self { prefixes }
    }

    /// Classifies a request.
    #[must_use]
    pub fn of(&self, method: &Method, path: &str, headers: &HeaderMap) -> Route {
        if method == Method::POST && self.covers(path, "") {
            return Route::Inference(Api::of_path(path));
        }
        if method == Method::GET {
            if path == "/v1/models" {
                return Route::Models;
            }
            if path.starts_with("/v1/models/") {
                return Route::Model;
            }
            if path == "/v1/realtime" && headers.contains_key(UPGRADE) {
                return Route::Upgrade;
            }
        }
        let is_look = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        match is_look && !headers.contains_key(UPGRADE) && !self.covers(path, "/") {
            true => Route::Local,
            false => Route::Unsplit,
        }
    }

    /// Whether the path is below one of the prefixes other than `not`.
    fn covers(&self, path: &str, not: &str) -> bool {
        self.prefixes.iter().any(|prefix| {
            prefix != not
                && path.strip_prefix(prefix.as_str()).is_some_and(|rest| {
                    rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/')
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn posts_below_a_prefix_are_inference_and_the_rest_goes_to_old() {
        let routes = Routes::default();
        let upgrade = HeaderMap::from_iter([(UPGRADE, HeaderValue::from_static("websocket"))]);
        let plain = HeaderMap::new();
        for (method, path, headers, expected) in [
            (
                "POST",
                "/v1/chat/completions",
                &plain,
                Route::Inference(Api::Chat),
            ),
            (
                "POST",
                "/v1/completions",
                &plain,
                Route::Inference(Api::Completions),
            ),
            (
                "POST",
                "/v1/embeddings",
                &plain,
                Route::Inference(Api::Other),
            ),
            ("POST", "/generate", &plain, Route::Inference(Api::Other)),
            ("POST", "/generate/x", &plain, Route::Inference(Api::Other)),
            ("POST", "/generated", &plain, Route::Unsplit),
            (
                "POST",
                "/inference/v1/generate",
                &plain,
                Route::Inference(Api::Other),
            ),
            ("POST", "/busy_threshold", &plain, Route::Unsplit),
            ("DELETE", "/v1/responses/1", &plain, Route::Unsplit),
            ("GET", "/v1/models", &plain, Route::Models),
            ("GET", "/v1/models/a/b", &plain, Route::Model),
            ("HEAD", "/v1/models", &plain, Route::Unsplit),
            ("GET", "/v1/modelsx", &plain, Route::Unsplit),
            ("GET", "/v1/realtime", &plain, Route::Unsplit),
            ("GET", "/ws", &upgrade, Route::Unsplit),
            ("GET", "/v1/realtime", &upgrade, Route::Upgrade),
            ("GET", "/v1/chat/completions", &plain, Route::Unsplit),
            ("GET", "/health", &plain, Route::Local),
            ("HEAD", "/metrics", &plain, Route::Local),
            ("OPTIONS", "/any", &plain, Route::Local),
        ] {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            assert_eq!(
                routes.of(&method, path, headers),
                expected,
                "{method} {path}"
            );
        }
        let everything = Routes::new(vec!["/".into()]);
        let of = |method| everything.of(&method, "/health", &plain);
        assert_eq!(of(Method::POST), Route::Inference(Api::Other));
        assert_eq!(of(Method::GET), Route::Local, "about the frontend");
    }
}
