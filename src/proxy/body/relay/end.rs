//! Handles a response that ends early: a retry on another target, an error event, or a cut.

use std::time::Instant;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::takeover::IfNotContinued;
use super::{Relay, State};
use crate::continuation::ContinuationCause;
use crate::failover::{Cause, Target};
use crate::http1::NameFilter;
use crate::proxy::attempt::Retried;
use crate::proxy::body::sse_relay::{SseRelay, Stop};
use crate::proxy::exchange::SHUTTING_DOWN;
use crate::proxy::head::remove_hop_by_hop;
use crate::proxy::media::{is_event_stream, is_readable};
use crate::sse::End;
use crate::upstream::{EndpointFailure, UpstreamBody};

impl Relay {
    /// The body failed. `for_client` is the reason without system error texts; `why` contains all details for the log. Returns
    /// what still has to be forwarded.
    pub(super) fn handle_break(&mut self, for_client: &str, why: &str) -> Bytes {
        self.failed(EndpointFailure::Answer, why);
        if let Some(attempts) = &mut self.attempts
            && let Some(target) = attempts.next_target_after_head(Cause::Broken)
        {
            self.retry(target, Cause::Broken);
            return Bytes::new();
        }
        if self.attempts.is_some() {
            self.exchange().attempt_failed(Cause::Broken);
        }
        if !self.exchange().timeline.terminal() {
            let if_not_continued = IfNotContinued::Break {
                for_client: for_client.into(),
                why: why.into(),
            };
            if self.take_over(ContinuationCause::Connection, if_not_continued) {
                return Bytes::new();
            }
        }
        self.break_off(for_client, why);
        Bytes::new()
    }

    /// Whether it is known that the terminal event is missing. Do not name that event to a client: some look for its name
    /// anywhere in a line, and would take the error for a complete stream.
    fn lacks_its_end(&mut self) -> bool {
        if self.sse.as_ref().is_none_or(SseRelay::quiet) {
            return false;
        }
        let exchange = self.exchange();
        let timeline = &exchange.timeline;
        let is_over = timeline.terminal() || timeline.error().is_some();
        exchange.api().has_terminal_event() && !is_over
    }

    /// The server ended the body. Returns what still has to be forwarded.
    pub(super) fn end(&mut self) -> Bytes {
        let rest = self.sse.as_mut().map(SseRelay::take_remaining);
        let rest = rest.unwrap_or_default();
        self.exchange().timeline.forwarded(&rest);
        // The client gets no error event: it may have all it needs, and its server ended the response cleanly.
        if self.lacks_its_end() {
            let why = format!(
                "{} ended the stream without its terminal event",
                self.answering()
            );
            self.exchange().because(why);
        }
        self.finish(End::Eof);
        rest
    }

    /// Ends an event stream to which nothing may be added: the client has its terminal event, or an error event of its server.
    /// Returns false if there is no such event.
    fn ends_after_last_event(&mut self, why: &str, end: End) -> bool {
        if self.sse.is_none() {
            return false;
        }
        let exchange = self.exchange();
        let has_ended = exchange.timeline.terminal();
        if !has_ended && exchange.timeline.error().is_none() {
            return false;
        }
        exchange.because(why);
        self.source = UpstreamBody::empty();
        if has_ended {
            self.finish(end);
        } else {
            self.exchange().ended(end);
            self.state = State::Cut(why.into());
        }
        true
    }

    /// Ends the response because a time limit has passed.
    pub(super) fn silent(&mut self, limit_passed: &str) {
        let generation = self.answering();
        let why = format!("{generation} {limit_passed} after the last event");
        if self.ends_after_last_event(&why, End::Cut) {
            return;
        }
        let is_committed = self.sse.as_ref().is_some_and(SseRelay::committed);
        let message = match is_committed && self.lacks_its_end() {
            true => format!("{generation} {limit_passed}; the stream lacks its terminal event"),
            false => format!("{generation} {limit_passed}"),
        };
        self.source = UpstreamBody::empty();
        self.close(&message, StatusCode::GATEWAY_TIMEOUT, End::Deadline);
    }

    /// Ends a response that broke.
    pub(super) fn break_off(&mut self, for_client: &str, why: &str) {
        if self.ends_after_last_event(why, End::Cut) {
            return;
        }
        self.exchange().because(why);
        if self.sse.is_none() {
            self.exchange().ended(End::Cut);
            self.state = State::Cut(why.into());
            return;
        }
        let generation = self.answering();
        let early = match self.lacks_its_end() {
            true => "early, without its terminal event",
            false => "early",
        };
        let message = format!("{generation} ended the stream {early}: {for_client}");
        self.close(&message, StatusCode::BAD_GATEWAY, End::Cut);
    }

    /// Counts a failure before the first content against the endpoint.
    pub(super) fn failed(&mut self, failure: EndpointFailure, why: &str) {
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.failed(failure, Instant::now(), &why);
        }
    }

    pub(super) fn answering(&mut self) -> &'static str {
        self.exchange().answering().as_str()
    }

    /// Ends an event stream with an error event.
    pub(super) fn close(&mut self, message: &str, status: StatusCode, end: End) {
        let held = self.sse.as_ref().map_or(0, |sse| sse.held().len());
        let exchange = self.exchange();
        exchange.timeline.add_bytes(held as u64);
        exchange.because(message);
        exchange.ended(end);
        self.commit(false);
        let Some(sse) = &mut self.sse else {
            self.state = State::Cut(message.into());
            return;
        };
        self.state = State::Closing(sse.error(message, status));
    }

    /// No target could serve the request, and the client already has a response head.
    pub(super) fn give_up(&mut self, message: &str, status: StatusCode) {
        self.exchange().timeline.set_error(Some(status.as_u16()));
        self.close(message, status, End::Cut);
    }

    /// The stream of another target cannot continue what the client has.
    pub(super) fn stop(&mut self, stop: Stop) {
        let generation = self.answering();
        let (message, status) = match stop {
            Stop::Conflict => (
                format!("{generation} does not continue the stream as it began"),
                StatusCode::BAD_GATEWAY,
            ),
            Stop::TooLong => (
                format!("{generation} continued the stream with an event that is too long"),
                StatusCode::BAD_GATEWAY,
            ),
            Stop::NoMemory => (
                format!(
                    "the proxy does not have enough memory to continue the stream with the one from {generation}"
                ),
                StatusCode::SERVICE_UNAVAILABLE,
            ),
        };
        self.give_up(&message, status);
    }

    pub fn interrupt(&mut self) {
        if matches!(self.state, State::Closing(_) | State::Cut(_) | State::Ended) {
            return;
        }
        let message = SHUTTING_DOWN;
        if self.exchange.is_none() {
            // The retry or the search owns the exchange, and is dropped with it here.
            let status = StatusCode::SERVICE_UNAVAILABLE;
            self.state = match &mut self.sse {
                Some(sse) => State::Closing(sse.error(message, status)),
                None => State::Cut(message.into()),
            };
            return;
        }
        self.exchange().excuse();
        if self.ends_after_last_event(message, End::Deadline) {
            return;
        }
        if self.sse.is_some() {
            self.close(message, StatusCode::SERVICE_UNAVAILABLE, End::Deadline);
        } else {
            self.exchange().because(message);
            self.exchange().ended(End::Deadline);
            self.state = State::Cut(message.into());
        }
    }

    pub(super) fn retry(&mut self, target: Target, cause: Cause) {
        let (Some(attempts), Some(mut exchange)) = (self.attempts.take(), self.exchange.take())
        else {
            return;
        };
        self.source = UpstreamBody::empty();
        if let Some(sse) = &mut self.sse {
            if !sse.has_sent_openings() {
                exchange.forget_answer();
            }
            sse.restart();
        }
        self.timers.first_event = None;
        self.timers.held_until = None;
        self.state = State::Retrying(attempts.retry(exchange, target, cause));
    }

    /// Continues with the result of a retry.
    pub(super) fn resume(&mut self, retried: Retried) {
        let Retried {
            attempts,
            exchange,
            answer,
        } = retried;
        self.exchange = Some(exchange);
        let (target, response): (_, Response<UpstreamBody>) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                self.exchange().because(error.for_log());
                return self.give_up(&error.to_string(), error.status());
            }
        };
        let (mut parts, body) = response.into_parts();
        if parts.status != StatusCode::OK
            || !is_event_stream(&parts.headers)
            || !is_readable(&parts.headers)
        {
            let message = format!("{} answered {}", target.generation(), parts.status);
            let status = match parts.status {
                StatusCode::OK => StatusCode::BAD_GATEWAY,
                status => status,
            };
            return self.give_up(&message, status);
        }
        let names = NameFilter::of(&parts.headers);
        self.hide(remove_hop_by_hop(&mut parts.headers, names));
        self.timers.first_event = attempts.first_event_deadline();
        self.attempts = Some(attempts);
        self.endpoint = body.endpoint().cloned();
        self.source = body;
        self.state = State::Flowing;
    }
}
