//! Handles requests that the proxy rejects before it assigns them to a generation: they get a request ID and an access line like
//! all others.

use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, Uri};

use super::exchange::trace_id;
use super::head::Client;
use super::request_id::{REQUEST_ID, RequestId};
use crate::http1::NameFilter;
use crate::sse::{Api, Outcome, Usage};
use crate::telemetry::{Metrics, Reject, access};

/// How an access line shows the method and the path of a request whose head could not be read.
const UNKNOWN: &str = "-";

/// A request that is not assigned yet. Dropping it means that its client has disconnected.
pub struct Unassigned<'a>(Option<Rejected<'a>>, &'a Metrics);

impl<'a> Unassigned<'a> {
    pub fn new(rejected: Rejected<'a>, metrics: &'a Metrics) -> Self {
        Self(Some(rejected), metrics)
    }

    /// The client has not disconnected.
    pub fn stays(mut self) {
        self.0 = None;
    }
}

impl Drop for Unassigned<'_> {
    fn drop(&mut self) {
        if let Some(rejected) = &self.0 {
            rejected.left(self.1);
        }
    }
}

/// The method, target, and fields of a request.
type Head<'a> = (&'a Method, &'a Uri, &'a HeaderMap);

/// The known parts of a rejected request.
pub struct Rejected<'a> {
    pub client: Option<&'a Client>,
    /// `None` if it could not be read.
    pub head: Option<Head<'a>>,
    pub api: Api,
    pub since: Instant,
}

impl<'a> Rejected<'a> {
    /// A request from `client` that was rejected before its route was known.
    pub fn unrouted(client: &'a Client, head: Option<Head<'a>>, since: Instant) -> Self {
        let api = match head {
            Some((method, uri, _)) if method == Method::POST => Api::of_path(uri.path()),
            _ => Api::Other,
        };
        Self {
            client: Some(client),
            head,
            api,
            since,
        }
    }

    /// Adds the request ID to the response, and writes the access line. `why` is a text of this program.
    pub fn answered_with(&self, response: &mut Response<Bytes>, why: &str) {
        let id = self.request_id();
        response.headers_mut().insert(REQUEST_ID, id.value());
        let status = response.status();
        let outcome = match status.is_server_error() {
            true => Outcome::Failed,
            false => Outcome::Completed,
        };
        let is_head = self.head.is_some_and(|(method, ..)| method == Method::HEAD);
        let bytes = if is_head {
            0
        } else {
            response.body().len() as u64
        };
        self.log(&id, Some(status.as_u16()), outcome, bytes, why);
    }

    /// Counts a request whose client disconnected before it was assigned, and writes its access line.
    pub fn left(&self, metrics: &Metrics) {
        metrics.rejected(Reject::ClientGone);
        let why = "the client disconnected before the request body had arrived";
        self.log(&self.request_id(), None, Outcome::Cancelled, 0, why);
    }

    fn request_id(&self) -> RequestId {
        let given = self
            .head
            .and_then(|(_, _, headers)| RequestId::given(headers, NameFilter::of(headers)));
        given.unwrap_or_else(RequestId::made)
    }

    fn log(&self, id: &RequestId, status: Option<u16>, outcome: Outcome, bytes: u64, why: &str) {
        let (method, path, headers) = match self.head {
            Some((method, uri, headers)) => (method.as_str(), uri.path(), Some(headers)),
            None => (UNKNOWN, UNKNOWN, None),
        };
        access::log(&access::Line {
            client: self.client.map(Client::address_text),
            request_id: id.text(),
            assignment: None,
            answered: None,
            method,
            path,
            class: self.api,
            model: None,
            endpoint: None,
            status,
            attempts: 0,
            cause: None,
            outcome,
            continued: 0,
            not_continued: None,
            first_event: None,
            duration: self.since.elapsed(),
            events: 0,
            bytes,
            usage: Usage::default(),
            why: Some(why),
            trace: headers.and_then(trace_id),
        });
    }
}
