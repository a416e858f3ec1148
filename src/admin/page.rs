//! The live page, for people with a browser: one document without any other file, and the stream of states it draws.
//!
//! It shows what the state says and nothing that a request carried. It has no way to change anything, and its policy
//! (W3C Content Security Policy 3) allows its own script and style by their hashes and nothing else. Must not know how
//! anything is counted.

mod history;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use serde_json::json;
use tokio::sync::Semaphore;
use tonic::body::Body;

use super::watching::Watching;
use super::{Admin, Answer, not_allowed, text};
use history::History;

const HTML: &str = include_str!("page/live.html");
const STYLE: &str = include_str!("page/live.css");
const SCRIPT: &str = include_str!("page/live.js");

/// From one state to the next.
const INTERVAL: Duration = Duration::from_secs(1);
/// How soon a page asks again when the stream has ended, in milliseconds.
const RETRY: u32 = 1000;
/// Pages that are open at the same time.
const READERS: usize = 64;

/// The page and its stream. The clones share the history.
#[derive(Clone)]
pub(super) struct Page {
    admin: Admin,
    html: Bytes,
    policy: HeaderValue,
    history: Arc<History>,
    readers: Arc<Semaphore>,
}

impl Page {
    pub(super) fn new(admin: &Admin) -> Self {
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
            admin: admin.clone(),
            html: html.into(),
            policy: HeaderValue::try_from(policy).expect("hashes in base64 are visible ASCII"),
            history: Arc::default(),
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }

    /// Takes a sample for the history: call it once a second.
    pub(super) fn sample(&self) {
        self.history.sample(&self.admin);
    }

    /// The answer to what asks for the page or its stream; `None` to everything else.
    pub(super) fn answer<B>(&self, request: &Request<B>) -> Option<Answer> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            "/" if reads && is_a_browser(request.headers()) => Some(self.page()),
            "/live" if reads => Some(self.stream()),
            "/live" => Some(not_allowed("GET, HEAD")),
            _ => None,
        }
    }

    fn page(&self) -> Answer {
        let mut answer = Response::new(Body::new(Full::from(self.html.clone())));
        let fixed = |text| HeaderValue::from_static(text);
        answer.headers_mut().extend([
            (CONTENT_TYPE, fixed("text/html; charset=utf-8")),
            (CONTENT_SECURITY_POLICY, self.policy.clone()),
            (CACHE_CONTROL, fixed("no-store")),
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

    /// Server-sent events (WHATWG HTML §9.2). Each has the state and the samples that came since the one before; the
    /// first has all that are kept.
    fn stream(&self) -> Answer {
        let Ok(permit) = Arc::clone(&self.readers).try_acquire_owned() else {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many pages are open already\n",
            );
        };
        let watching = Watching::new(self.admin.clone(), INTERVAL, permit);
        let history = Arc::clone(&self.history);
        let events = stream::unfold((watching, 0), move |(mut watching, seen)| {
            let history = Arc::clone(&history);
            async move {
                let state = watching.next().await?;
                let (samples, next) = history.since(seen);
                let event = json!({"state": state.to_json(), "samples": samples});
                let frame = Frame::data(Bytes::from(format!("data: {event}\nretry: {RETRY}\n\n")));
                Some((Ok::<_, Infallible>(frame), (watching, next)))
            }
        });
        let mut answer = Response::new(Body::new(StreamBody::new(events)));
        let fixed = |text| HeaderValue::from_static(text);
        answer.headers_mut().extend([
            (CONTENT_TYPE, fixed("text/event-stream")),
            (CACHE_CONTROL, fixed("no-store")),
            (X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
        ]);
        answer
    }
}

/// Does it ask for a page? Browsers name `text/html`; curl and the like take anything and get text.
fn is_a_browser(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.contains("text/html"))
}

/// What a policy calls this text.
fn hash(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    format!("'sha256-{}'", STANDARD.encode(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_holds_style_and_script_once_and_refers_to_nothing_outside() {
        let page = Page::new(&Admin::idle());
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
    fn a_browser_gets_the_page_and_everyone_else_what_was_there_before() {
        let page = Page::new(&Admin::idle());
        let ask = |method: &str, path: &str, accept: &str| {
            let request = Request::builder().method(method).uri(path);
            let request = request.header("accept", accept).body(()).unwrap();
            page.answer(&request).map(|answer| answer.status().as_u16())
        };
        assert_eq!(
            ask("GET", "/", "text/html,application/xml;q=0.9"),
            Some(200)
        );
        assert_eq!(ask("GET", "/", "*/*"), None);
        assert_eq!(ask("POST", "/", "text/html"), None);
        assert_eq!(ask("GET", "/plan", "text/html"), None);
        assert_eq!(ask("GET", "/live", "text/event-stream"), Some(200));
        assert_eq!(ask("PUT", "/live", "*/*"), Some(405));
    }

    #[test]
    fn there_is_a_limit_to_open_pages_and_a_closed_one_makes_room() {
        let page = Page::new(&Admin::idle());
        let mut open: Vec<Answer> = (0..READERS).map(|_| page.stream()).collect();
        assert!(open.iter().all(|answer| answer.status() == 200));
        assert_eq!(page.stream().status(), 503);
        open.pop();
        assert_eq!(page.stream().status(), 200);
    }
}
