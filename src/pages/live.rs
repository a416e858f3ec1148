//! The live page for browsers: a single self-contained document, and the stream of states that it renders.
//!
//! It shows only the states, never anything from a request, and cannot change anything. Its policy (W3C Content Security Policy
//! 3) allows its own script and style by their hashes and nothing else.

use std::convert::Infallible;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::header::{
    ACCEPT, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{Extensions, HeaderMap, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::Value;
use tonic::body::Body;

use super::{PageResponse, Quota, Refusal, page};

const HTML: &str = include_str!("live/live.html");
const STYLE: &str = include_str!("live/live.css");
/// The parts of the script share one scope, which nothing else can access.
const SCRIPT: &str = concat!(
    "\"use strict\";\n(() => {\n",
    include_str!("live/dom.js"),
    include_str!("live/current.js"),
    include_str!("live/history.js"),
    include_str!("live/fleet.js"),
    include_str!("live/main.js"),
    "})();\n",
);

/// How soon a page reconnects after the stream has ended, in milliseconds.
const RETRY: u32 = 1000;
/// Maximum number of open pages.
const MAX_READERS: usize = 64;
/// Maximum number of open pages per peer, so that no client can use up all of them.
const MAX_READERS_PER_PEER: usize = 16;

/// The page and its quota of readers. Clones share the quota.
#[derive(Clone)]
pub struct LivePage {
    html: Bytes,
    policy: HeaderValue,
    readers: Quota,
}

impl Default for LivePage {
    fn default() -> Self {
        let html = HTML
            .replace("{{style}}", STYLE)
            .replace("{{script}}", SCRIPT);
        let policy = format!(
            "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
            hash(SCRIPT),
            hash(STYLE),
        );
        Self {
            html: html.into(),
            policy: HeaderValue::try_from(policy).expect("hashes in base64 are visible ASCII"),
            readers: Quota::new(MAX_READERS, MAX_READERS_PER_PEER),
        }
    }
}

impl LivePage {
    /// The interval at which a page gets a state.
    pub const INTERVAL: Duration = Duration::from_secs(1);

    /// The document, if the client is a browser: curl and similar clients accept anything, and get text.
    #[must_use]
    pub fn document_for(&self, headers: &HeaderMap) -> Option<PageResponse> {
        let mut accepted = headers.get_all(ACCEPT).iter();
        let is_a_browser = accepted.any(|value| {
            let value = value.to_str();
            value.is_ok_and(|value| value.contains("text/html"))
        });
        is_a_browser.then(|| self.document())
    }

    /// The response to a request with these extensions for a stream of `states`, as server-sent events (WHATWG HTML §9.2).
    pub fn stream(
        &self,
        extensions: &Extensions,
        states: impl Stream<Item = Value> + Send + 'static,
    ) -> PageResponse {
        let Some(reader) = self.readers.take(extensions) else {
            let why = "too many pages are open".to_owned();
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Refusal { status, why }.into();
        };
        let events = states.map(move |state| {
            // Held while the stream is open.
            let _ = &reader;
            let event = format!("data: {state}\nretry: {RETRY}\n\n");
            Ok::<_, Infallible>(Frame::data(Bytes::from(event)))
        });
        let mut answer = page("text/event-stream", Bytes::new());
        *answer.body_mut() = Body::new(StreamBody::new(events));
        let nosniff = HeaderValue::from_static("nosniff");
        answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, nosniff);
        answer
    }

    fn document(&self) -> PageResponse {
        let mut answer = page("text/html; charset=utf-8", self.html.clone());
        let fixed = |text| HeaderValue::from_static(text);
        answer.headers_mut().extend([
            (CONTENT_SECURITY_POLICY, self.policy.clone()),
            (VARY, fixed("accept")),
            (X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
            (REFERRER_POLICY, fixed("no-referrer")),
            (
                HeaderName::from_static("cross-origin-resource-policy"),
                fixed("same-origin"),
            ),
        ]);
        answer
    }
}

/// The hash of this text in a policy.
fn hash(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    format!("'sha256-{}'", STANDARD.encode(digest))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[test]
    fn the_document_holds_style_and_script_once_and_refers_to_nothing_outside() {
        let page = LivePage::default();
        let html = std::str::from_utf8(&page.html).unwrap();
        let inside = |tag: &str| {
            let (begin, end) = (format!("<{tag}>"), format!("</{tag}>"));
            assert_eq!(html.matches(&begin).count(), 1, "{tag}");
            let (_, rest) = html.split_once(&begin).unwrap();
            rest.split_once(&end).unwrap().0
        };
        assert_eq!(inside("style"), STYLE);
        assert_eq!(inside("script"), SCRIPT);
        for outside in [
            "src=",
            "@import",
            "url(http",
            "https://",
            "style=",
            "innerHTML",
        ] {
            assert!(!html.contains(outside), "{outside}");
        }
    }

    #[test]
    fn only_a_browser_gets_the_page() {
        let page = LivePage::default();
        let gets = |accept: &'static str| {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            page.document_for(&headers).is_some()
        };
        assert!(gets("text/html,application/xml;q=0.9"));
        assert!(!gets("*/*"));
        assert!(page.document_for(&HeaderMap::new()).is_none());
    }

    #[test]
    fn there_is_a_limit_to_open_pages_and_a_closed_one_makes_room() {
        let page = LivePage::default();
        let open = || page.stream(&Extensions::new(), stream::pending());
        let mut opened: Vec<PageResponse> = (0..MAX_READERS_PER_PEER).map(|_| open()).collect();
        assert!(opened.iter().all(|answer| answer.status() == 200));
        assert_eq!(open().status(), 503);
        opened.pop();
        assert_eq!(open().status(), 200);
    }
}
