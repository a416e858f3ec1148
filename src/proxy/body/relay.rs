//! Relays the response body of an exchange: what to forward and when, when to retry on another target, and how to end.

mod deadlines;
mod end;
mod takeover;
mod unread;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::Cut;
use super::sse_relay::SseRelay;
use super::timers::Timers;
use crate::continuation::{ContinuationCause, Sent};
use crate::error_chain::error_chain;
use crate::http1::{NamedFields, passable};
use crate::proxy::attempt::{Retry, Retrying};
use crate::proxy::continuing::Continuing;
use crate::proxy::exchange::Exchange;
use crate::sse::End;
use crate::upstream::{BodyError, Endpoint, EndpointFailure, UpstreamBody};
use takeover::{ContinuationState, IfNotContinued};

enum State {
    Flowing,
    Retrying(Retrying),
    /// Other servers are asked for the rest.
    Continuing(Continuing),
    /// The error event is still to be forwarded, followed by the cut.
    Closing(Box<[u8]>),
    Cut(Box<str>),
    Ended,
}

/// The error of a server that exceeded the gap timeout.
const SILENT: &str = "sent nothing for too long";

/// What still has to be forwarded besides the bytes of the source.
#[derive(Default)]
struct Rest {
    /// Before anything else, because it arrived while the client did not read.
    unsent: Bytes,
    /// After the last bytes.
    trailers: Option<HeaderMap>,
}

/// A response body that is being relayed.
pub struct Relay {
    source: UpstreamBody,
    state: State,
    /// `None` only while a retry owns it.
    exchange: Option<Exchange>,
    /// Set for an event stream that can be parsed.
    sse: Option<SseRelay>,
    /// The endpoint of an event stream, until its first content.
    endpoint: Option<Arc<Endpoint>>,
    /// Set while the request can still be retried.
    attempts: Option<Box<dyn Retry>>,
    /// Set after the first content, while another server may continue the stream.
    kept: Option<Box<ContinuationState>>,
    timers: Timers,
    /// Boxed, because most streams have none, but each open stream reserves room for it.
    rest: Option<Box<Rest>>,
    /// Names of trailers that are not forwarded.
    hidden: NamedFields,
}

impl Relay {
    /// Relays an event stream that can be parsed, whose head is already on its way. `attempts` makes retries until the
    /// first content.
    pub fn of_events(
        source: UpstreamBody,
        exchange: Exchange,
        attempts: Box<dyn Retry>,
        comments: Option<Duration>,
    ) -> Box<Self> {
        let mut relay = Self::flowing(source, exchange);
        let failover = &attempts.snapshot().plan.failover;
        let hold = failover.hold;
        relay.timers.gap = failover.gap_timeout;
        relay.timers.comments = comments;
        relay.timers.first_event = attempts.first_event_deadline();
        relay.timers.forwarded = Some(Instant::now());
        let policy = failover.continuation;
        let api = relay.exchange().api();
        let mut sse = SseRelay::new(api, hold);
        if policy.is_on() && Sent::is_for(api) {
            sse.sent = Some(Box::new(Sent::new(api, policy.max_text_bytes)));
        }
        relay.sse = Some(sse);
        relay.endpoint = relay.source.endpoint().cloned();
        relay.attempts = Some(attempts);
        relay
    }

    /// Relays anything else as it arrives. The response to a HEAD request has no body.
    pub fn of_bytes(source: UpstreamBody, exchange: Exchange, is_head: bool) -> Box<Self> {
        let mut relay = Self::flowing(source, exchange);
        let exchange = relay.exchange();
        exchange.quiet = exchange.is_sse;
        if is_head || relay.source.is_end_stream() {
            relay.finish(End::Eof);
        }
        relay
    }

    fn flowing(source: UpstreamBody, exchange: Exchange) -> Box<Self> {
        // A relay is large. The box is allocated first so that the relay is built in place instead of being copied into it.
        let slot = Box::new_uninit();
        Box::write(
            slot,
            Self {
                source,
                state: State::Flowing,
                exchange: Some(exchange),
                sse: None,
                endpoint: None,
                attempts: None,
                kept: None,
                timers: Timers::default(),
                rest: None,
                hidden: NamedFields::default(),
            },
        )
    }

    /// Does not forward trailers of these names: they are meant for the upstream connection.
    pub fn hide(&mut self, names: NamedFields) {
        self.hidden = names;
    }

    pub fn is_end_stream(&self) -> bool {
        let is_empty = |rest: &Rest| rest.unsent.is_empty() && rest.trailers.is_none();
        matches!(self.state, State::Ended) && self.rest.as_deref().is_none_or(is_empty)
    }

    pub fn size_hint(&self) -> SizeHint {
        // An event stream may move to another target or end with an event of the proxy, so its length is unknown.
        if self.sse.is_some() {
            return SizeHint::default();
        }
        self.source.size_hint()
    }

    fn exchange(&mut self) -> &mut Exchange {
        self.exchange
            .as_mut()
            .expect("only a retry takes the exchange, and it gives it back")
    }

    /// Ends the time in which the request can be retried. With `goes_on`, the stream may still be continued after that.
    fn commit(&mut self, goes_on: bool) {
        if let Some(attempts) = self.attempts.take() {
            self.keep(attempts, goes_on);
        }
        self.endpoint = None;
        self.timers.first_event = None;
        self.timers.held_until = None;
    }

    fn finish(&mut self, end: End) {
        self.exchange().ended(end);
        self.state = State::Ended;
    }

    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(rest) = self.rest.as_mut().filter(|rest| !rest.unsent.is_empty()) {
            let unsent = std::mem::take(&mut rest.unsent);
            return Poll::Ready(Some(Ok(Frame::data(unsent))));
        }
        loop {
            let out = match &mut self.state {
                State::Flowing => ready!(self.poll_flowing(cx)),
                State::Retrying(retrying) => match retrying.as_mut().poll(cx) {
                    Poll::Ready(retried) => {
                        self.resume(retried);
                        Bytes::new()
                    }
                    Poll::Pending => ready!(self.poll_timers(cx)),
                },
                State::Continuing(continuing) => match continuing.as_mut().poll(cx) {
                    Poll::Ready(continued) => self.continue_after_search(continued),
                    Poll::Pending if self.ends_meanwhile(cx) => Bytes::new(),
                    Poll::Pending => ready!(self.poll_timers(cx)),
                },
                State::Closing(event) => {
                    let event = std::mem::take(event);
                    self.state = State::Cut("the stream ended with an error event".into());
                    event.into()
                }
                State::Cut(why) => {
                    let why = std::mem::take(why);
                    self.state = State::Ended;
                    return Poll::Ready(Some(Err(Cut(why))));
                }
                State::Ended => {
                    let rest = self.rest.as_mut();
                    if let Some(trailers) = rest.and_then(|rest| rest.trailers.take()) {
                        return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                    }
                    // Record the outcome now, not when the connection drops the body.
                    self.exchange = None;
                    return Poll::Ready(None);
                }
            };
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(out))));
            }
        }
    }

    /// Reads on. Returns what to forward, which may be nothing.
    #[inline]
    fn poll_flowing(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let out = match self.poll_source(cx) {
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => self.take(data),
                Err(trailers) => self.eof_with(trailers),
            },
            Poll::Ready(Some(Err(error))) => {
                self.handle_break(error.client_message(), &error_chain(&error))
            }
            Poll::Ready(None) => self.eof(),
            // Data has arrived in time and will be read by the next poll, so no deadline applies.
            Poll::Pending if self.source.holds_back() => return Poll::Pending,
            Poll::Pending => {
                self.watch_moves(cx);
                return self.poll_timers(cx);
            }
        };
        Poll::Ready(out)
    }

    fn poll_source(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let tight = self.exchange().memory().is_tight();
        self.source.read_little(tight);
        Pin::new(&mut self.source).poll_frame(cx)
    }

    /// The part to forward of a slice that arrived, or that was held back.
    fn take(&mut self, data: Bytes) -> Bytes {
        let exchange = self
            .exchange
            .as_mut()
            .expect("only a retry takes the exchange, and then nothing flows");
        let Some(sse) = &mut self.sse else {
            exchange.timeline.forwarded(&data);
            exchange.unary(&data);
            if self.source.is_end_stream() {
                self.finish(End::Eof);
            }
            return data;
        };
        let now = Instant::now();
        if let Some(last) = self.timers.last_data {
            self.source.paced(now.saturating_duration_since(last));
        }
        let attempts = self.attempts.as_deref_mut();
        let taken = sse.take(data, now, exchange, attempts, &mut self.timers);
        exchange.timeline.forwarded(&taken.forward);
        if taken.committed {
            // Without a first-event deadline the endpoint was credited when the head arrived.
            if let (Some(endpoint), Some(_)) = (&self.endpoint, self.timers.first_event) {
                endpoint.succeeded(now);
            }
            self.commit(true);
        }
        if let Some((target, cause)) = taken.retry {
            self.failed(
                EndpointFailure::Answer,
                "the stream began with an error event",
            );
            self.retry(target, cause);
            return taken.forward;
        }
        if let Some(stop) = taken.stop {
            self.source = UpstreamBody::empty();
            self.stop(stop);
            return taken.forward;
        }
        let out = taken.forward;
        if !out.is_empty() {
            self.timers.forwarded = Some(now);
        }
        if let Some(held) = taken.error {
            return [out, self.error_event(held)].concat().into();
        }
        self.release_kept();
        if self.source.is_end_stream() {
            let rest = self.eof();
            if !rest.is_empty() {
                return [out, rest].concat().into();
            }
        }
        out
    }

    /// The body ended, according to its framing. Returns the data that must still be forwarded.
    fn eof(&mut self) -> Bytes {
        let doubtful = self.source.ends_with_connection();
        let done = {
            let timeline = &self.exchange().timeline;
            timeline.terminal() || timeline.error().is_some()
        };
        let may_end_anywhere = !self.exchange().api().has_terminal_event();
        let Some(sse) = &mut self.sse else {
            self.finish(End::Eof);
            return Bytes::new();
        };
        let is_whole = done || may_end_anywhere || sse.quiet();
        if is_whole || (sse.committed() && !doubtful) {
            let continues =
                !is_whole && self.take_over(ContinuationCause::Truncated, IfNotContinued::End);
            if continues {
                return Bytes::new();
            }
            return self.end();
        }
        if sse.committed() {
            let why = "the connection closed before the terminal event";
            return self.handle_break("connection closed early", why);
        }
        let why = "the stream ended without content or terminal event";
        self.handle_break(why, why)
    }

    /// As [`Self::eof()`], with trailers. They do not apply to a response that continues on another target or ends with an event
    /// of the proxy.
    fn eof_with(&mut self, trailers: Frame<Bytes>) -> Bytes {
        let rest = self.eof();
        if matches!(self.state, State::Ended) {
            let trailers = trailers.into_trailers().ok();
            let passed = trailers.and_then(|map| passable(map, &self.hidden));
            self.rest.get_or_insert_default().trailers = passed;
        }
        rest
    }

    /// The record of the exchange, which a retry owns while it runs.
    pub fn record(&mut self) -> Option<&mut Exchange> {
        self.exchange.as_mut()
    }
}
