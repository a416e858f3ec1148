//! The shared parts of the admin ports of proxies and controllers: responses, quotas, and the live page with its stream.

mod connections;
mod history;
mod hosts;
mod live;
mod quota;
mod requests;
mod routes;
mod stalls;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use tonic::body::Body;

pub use connections::{Connections, MAX_HEAD, limited};
pub use history::{Counters, History, Sample};
pub use hosts::Hosts;
pub use live::LivePage;
pub use quota::{Peer, Quota, QuotaGuard};
pub use requests::{Requests, TooMany};
pub use routes::Routes;
pub use stalls::{Stall, Stalls};

/// A response of an admin port.
pub type PageResponse = Response<Body>;

/// Why there is nothing to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    /// The message, in one line.
    pub why: String,
}

impl From<Refusal> for PageResponse {
    fn from(Refusal { status, why }: Refusal) -> Self {
        text(status, &format!("{why}\n"))
    }
}

/// A page of this content type that must not be cached.
#[must_use]
pub fn page(kind: &'static str, body: impl Into<Bytes>) -> PageResponse {
    let mut answer = Response::new(Body::new(Full::from(body.into())));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// The metrics in Prometheus' text format.
#[must_use]
pub fn metrics(text: Vec<u8>) -> PageResponse {
    page("text/plain; version=0.0.4; charset=utf-8", text)
}

/// A plain text, including its final line end.
#[must_use]
pub fn text(status: StatusCode, body: &str) -> PageResponse {
    let mut answer = page("text/plain; charset=utf-8", body.to_owned());
    *answer.status_mut() = status;
    answer
}
