//! Reads a body in advance, to detect its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::{BodyError, UpstreamBody};
use crate::memory::{Budget, Charge, FREE, holding_cost};

/// Maximum number of bytes that are read in advance. Beyond that, the server has to wait.
const MAX: usize = 256 * 1024;

/// The part of a body that was read in advance, and the rest.
pub struct ReadAhead {
    data: Vec<u8>,
    charge: Charge,
    /// The trailers, or the error, after the data.
    last: Option<Result<Frame<Bytes>, BodyError>>,
    ended: bool,
    rest: UpstreamBody,
}

impl ReadAhead {
    pub(super) fn of(rest: UpstreamBody) -> Self {
        Self {
            data: Vec::new(),
            charge: Charge::default(),
            last: None,
            ended: false,
            rest,
        }
    }

    /// The body without the part that was read.
    pub(super) const fn rest(&self) -> &UpstreamBody {
        &self.rest
    }

    pub(super) const fn rest_mut(&mut self) -> &mut UpstreamBody {
        &mut self.rest
    }

    /// Reads the available data. Ready once the body has ended.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>, memory: &Arc<Budget>) -> Poll<()> {
        while !self.ended {
            let most = if memory.is_tight() { FREE } else { MAX };
            if self.data.len() >= most {
                return Poll::Pending;
            }
            self.rest.read_little(memory.is_tight());
            match ready!(Pin::new(&mut self.rest).poll_frame(cx)) {
                Some(Ok(frame)) if frame.is_data() => {
                    let data = frame.into_data().unwrap_or_default();
                    self.data.extend_from_slice(&data);
                    let held = holding_cost(self.data.capacity());
                    self.charge.force(memory, held);
                }
                last => {
                    self.ended = true;
                    self.last = last;
                }
            }
        }
        Poll::Ready(())
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.data.is_empty() {
            let data = std::mem::take(&mut self.data);
            let charge = std::mem::take(&mut self.charge);
            return Poll::Ready(Some(Ok(Frame::data(charge.tie(data.into())))));
        }
        if self.ended {
            return Poll::Ready(self.last.take());
        }
        Pin::new(&mut self.rest).poll_frame(cx)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let is_over = self.ended || self.rest.is_end_stream();
        self.data.is_empty() && self.last.is_none() && is_over
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::task::Waker;

    use futures_util::{StreamExt, stream};
    use http::HeaderMap;
    use http_body_util::{BodyExt, StreamBody};
    use tower::BoxError;

    use super::*;

    type Piece = Option<Result<Frame<Bytes>, BoxError>>;

    fn data(text: &'static str) -> Piece {
        Some(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))
    }

    /// Yields these pieces, of which `None` is the end, then waits.
    fn body(pieces: Vec<Piece>) -> UpstreamBody {
        let pieces = stream::iter(pieces).chain(stream::pending());
        let frames = pieces
            .take_while(|piece| ready(piece.is_some()))
            .filter_map(ready);
        UpstreamBody::Local(StreamBody::new(frames).boxed_unsync())
    }

    /// Everything that a body yields until it has to wait.
    fn yields(body: &mut UpstreamBody) -> Vec<String> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut all = Vec::new();
        while let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(&mut cx) {
            let text = match frame {
                None => "end".into(),
                Some(Err(error)) => error.client_message().into(),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => String::from_utf8(data.to_vec()).unwrap(),
                    Err(_) => "trailers".into(),
                },
            };
            let is_over = text == "end";
            all.push(text);
            if is_over {
                break;
            }
        }
        all
    }

    #[test]
    fn data_read_ahead_comes_first_and_then_the_end() {
        let memory = Budget::new(1 << 20);
        let mut cx = Context::from_waker(Waker::noop());
        let trailers = || Some(Ok(Frame::trailers(HeaderMap::new())));
        for (pieces, ended, expected) in [
            (vec![data("a"), data("b")], false, &["ab"][..]),
            (vec![data("a"), None], true, &["a", "end"]),
            (vec![data("a"), trailers()], true, &["a", "trailers", "end"]),
            (
                vec![data("a"), Some(Err("gone".into()))],
                true,
                &["a", "the service failed", "end"],
            ),
            (vec![], false, &[]),
        ] {
            let mut body = body(pieces);
            let polled = body.poll_end(&mut cx, &memory);
            assert_eq!(polled.is_ready(), ended, "{expected:?}");
            assert!(!body.is_end_stream(), "{expected:?}");
            assert_eq!(yields(&mut body), expected);
        }
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn only_a_limited_part_is_read_ahead_and_it_is_charged() {
        let memory = Budget::new(1 << 20);
        let mut cx = Context::from_waker(Waker::noop());
        let piece = || data(&"x".repeat(100 * 1024).leak()[..]);
        let mut body = body((0..5).map(|_| piece()).chain([None]).collect());
        assert!(body.poll_end(&mut cx, &memory).is_pending());
        assert!(memory.used() >= 300 * 1024, "{}", memory.used());
        let lengths: Vec<_> = yields(&mut body).iter().map(String::len).collect();
        assert_eq!(lengths, [300 * 1024, 100 * 1024, 100 * 1024, 3]);
        assert_eq!(memory.used(), 0);
    }
}
