//! Builds the response to the client: a model server's head and relayed body, or a response of the proxy itself.

use std::time::Instant;

use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};

use super::attempt::{Attempts, Retry, name};
use super::backend::OldBackend;
use super::body::{Relay, SplitBody};
use super::error::Error;
use super::exchange::Exchange;
use super::media::{is_event_stream, is_readable};
use super::request_id::REQUEST_ID;
use super::{head, tunnel};
use crate::failover::Target;
use crate::guard::GENERATION;
use crate::http1::{NameFilter, NamedFields};
use crate::split::Generation;
use crate::sse::End;
use crate::upstream::{self, UpstreamBody};

impl<O: OldBackend> Attempts<O> {
    /// The response to the client: the head now, the body as it arrives.
    pub fn respond(
        self,
        mut exchange: Exchange,
        target: Target,
        response: Response<UpstreamBody>,
        is_head: bool,
    ) -> Response<SplitBody> {
        let (mut parts, source) = response.into_parts();
        let endpoint = upstream::sender(&parts.extensions, &source).cloned();
        exchange.answered(target.generation(), endpoint, parts.status);
        if parts.status.is_server_error() {
            let what = format!("answered {}", parts.status);
            exchange.because(self.failures.clone().with(name(target), &what));
        }
        exchange.is_warm = self.is_warm(target, &source);
        let switched = parts.status == StatusCode::SWITCHING_PROTOCOLS;
        let mut named = NamedFields::default();
        if !switched {
            let names = NameFilter::of(&parts.headers);
            named = head::remove_hop_by_hop(&mut parts.headers, names);
        }
        // RFC 9110 §8.6: a client might wait for that many bytes.
        if switched || parts.status == StatusCode::NO_CONTENT {
            parts.headers.remove(header::CONTENT_LENGTH);
        }
        mark(&mut parts.headers, target.generation(), &exchange);
        if switched {
            return tunnel::respond(parts, exchange);
        }
        // Relay anything except a success unchanged, no matter what its content type is.
        exchange.is_sse = !is_head && parts.status.is_success() && is_event_stream(&parts.headers);
        let mut relay = if exchange.is_sse && is_readable(&parts.headers) {
            // Another target may continue the stream, and the proxy may add events and comments.
            parts.headers.remove(header::CONTENT_LENGTH);
            let comments = self.proxy.context.settings.comments;
            Relay::of_events(source, exchange, Box::new(self), comments)
        } else {
            self.body.forget();
            if exchange.is_sse {
                exchange.passes_encoded();
            }
            if let (Some(endpoint), Some(_)) = (source.endpoint(), self.first_event_deadline()) {
                endpoint.succeeded(Instant::now());
            }
            Relay::of_bytes(source, exchange, is_head)
        };
        relay.hide(named);
        Response::from_parts(parts, SplitBody::relay(relay))
    }

    /// Whether the server's latencies count for the comparison: those of a recently added server of new do not, because its
    /// caches are cold.
    fn is_warm(&self, target: Target, source: &UpstreamBody) -> bool {
        let warmup = self.snapshot.plan.warmup();
        target != Target::New
            || source
                .endpoint()
                .is_none_or(|endpoint| endpoint.since.elapsed() >= warmup)
    }
}

fn mark(headers: &mut HeaderMap, generation: Generation, exchange: &Exchange) {
    headers.insert(GENERATION, HeaderValue::from_static(generation.as_str()));
    // A model server that supports request IDs returns the one that it was sent.
    if !headers.contains_key(REQUEST_ID) {
        headers.insert(REQUEST_ID, exchange.request_id());
    }
}

/// Ends an exchange with a response of the proxy itself.
pub fn refuse(mut exchange: Exchange, error: &Error) -> Response<SplitBody> {
    if let Some(cause) = error.reject() {
        exchange.rejected(cause);
    }
    // The server's attempt is already counted.
    exchange.excuse();
    exchange.because(error.for_log());
    let response = error.answer(exchange.api());
    if matches!(error, Error::ClientGone) {
        exchange.ended(End::Gone);
    } else {
        exchange.refused(&response);
    }
    exchange.ended(End::Eof);
    let mut response = response.map(SplitBody::own);
    mark(response.headers_mut(), exchange.answering(), &exchange);
    response
}
