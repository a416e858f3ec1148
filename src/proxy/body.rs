//! The body of a response to a client.
//!
//! Bytes pass unchanged, with these exceptions for event streams:
//!
//! - An incomplete event is held until it is complete.
//! - Before the first content, events without content are held for some seconds, so that the request can still be retried.
//! - After a retry, repeated openings are dropped and IDs are rewritten to continue what the client already has.
//! - Keep-alive comments fill silence, if enabled.
//! - A stream that fails ends with an error event and an unclean close.

mod relay;
mod sse_relay;
mod timers;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::prefetch::prefetch;
use crate::proxy::exchange::Exchange;
pub use relay::Relay;

/// The response ended early, after everything that could be forwarded was.
#[derive(Debug, thiserror::Error)]
#[error("the response was truncated: {0}")]
pub struct Cut(pub Box<str>);

/// The body of a response to a client.
pub struct SplitBody(Inner);

enum Inner {
    /// A response of the proxy itself, without upstream body.
    Own(Bytes),
    Relay(Box<Relay>),
}

impl SplitBody {
    /// A response of the proxy itself.
    #[must_use]
    pub fn own(bytes: Bytes) -> Self {
        Self(Inner::Own(bytes))
    }

    pub(super) fn relay(relay: Box<Relay>) -> Self {
        Self(Inner::Relay(relay))
    }

    /// Drops the content of a response of the proxy itself: it responds to a HEAD request (RFC 9110 §9.3.2).
    pub fn omit_content(&mut self) {
        if let Inner::Own(bytes) = &mut self.0 {
            bytes.clear();
        }
    }

    /// Records what went wrong, for the access line.
    pub fn because(&mut self, why: &str) {
        if let Some(exchange) = self.record() {
            exchange.because(why);
        }
    }

    /// Records that the client did not get the last bytes of a response that may have ended.
    pub fn not_delivered(&mut self) {
        if let Some(exchange) = self.record() {
            exchange.not_delivered();
        }
    }

    fn record(&mut self) -> Option<&mut Exchange> {
        match &mut self.0 {
            Inner::Relay(relay) => relay.record(),
            _ => None,
        }
    }

    /// Like [`UpstreamBody::poll_unread`](crate::upstream::UpstreamBody::poll_unread), for a client that does not read.
    pub fn poll_unread(&mut self, cx: &mut Context<'_>) {
        if let Inner::Relay(relay) = &mut self.0 {
            relay.poll_unread(cx);
        }
    }

    /// Ends the response now: an event stream with an error event, anything else with a cut.
    pub fn interrupt(&mut self) {
        if let Inner::Relay(relay) = &mut self.0 {
            relay.interrupt();
        }
    }
}

impl Body for SplitBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut self.get_mut().0 {
            Inner::Own(bytes) if bytes.is_empty() => Poll::Ready(None),
            Inner::Own(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Inner::Relay(relay) => {
                prefetch(&**relay);
                relay.poll_frame(cx)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Own(bytes) => bytes.is_empty(),
            Inner::Relay(relay) => relay.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Own(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Inner::Relay(relay) => relay.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next allocation size is 1,280 bytes, and each open stream has a relay.
    #[test]
    fn a_relay_fits_into_a_block_of_1_kib() {
        let size = size_of::<Relay>();
        assert!(size <= 1024, "{size}");
    }
}
