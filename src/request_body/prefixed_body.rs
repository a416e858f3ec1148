//! A body whose beginning has already been read.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tower::BoxError;

use super::RequestBody;

/// A body whose beginning has already been read.
pub struct PrefixedBody {
    first: [Bytes; 2],
    rest: RequestBody,
}

impl PrefixedBody {
    /// Sends `first`, then `rest`.
    pub fn new(first: [Bytes; 2], rest: RequestBody) -> Self {
        Self { first, rest }
    }
}

impl Body for PrefixedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.first.iter_mut().find(|first| !first.is_empty()) {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(first))))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.rest.size_hint()
    }
}
