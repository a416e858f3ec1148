//! The timeout for request bodies: how long to wait for the client while the body is being read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use prometheus::IntCounter;
use tokio::time::Sleep;
use tower::BoxError;

use crate::request_body::Fault;
use crate::transport::deadline::Deadline;

/// Up to this known length, in bytes, a body has one time limit as a whole; otherwise the limit applies to each pause.
pub const SMALL: u64 = 64 * 1024;

/// How long to wait for a client, and the counter of timeouts.
#[derive(Debug)]
pub struct BodyLimit {
    pub limit: Duration,
    pub passed: IntCounter,
}

/// A body that fails with [`Fault::TooSlow`] once the client has kept the reader waiting too long. The timer starts
/// only when the reader polls for more and nothing is there.
pub struct Paced<B> {
    body: B,
    limit: Arc<BodyLimit>,
    is_small: bool,
    deadline: Option<Deadline>,
    /// Created at the first wait, then reused.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B: Body> Paced<B> {
    pub fn new(body: B, limit: Arc<BodyLimit>) -> Self {
        let length = body.size_hint().exact();
        Self {
            body,
            limit,
            is_small: length.is_some_and(|length| length <= SMALL),
            deadline: None,
            timer: None,
        }
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit.limit;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Deadline::new(Instant::now() + limit));
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.until().into())));
        loop {
            // The timer may still be set for an earlier pause.
            if timer.deadline() != deadline.until().into() {
                timer.as_mut().reset(deadline.until().into());
            }
            ready!(timer.as_mut().poll(cx));
            if !deadline.extend(Instant::now()) {
                return Poll::Ready(());
            }
        }
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if !this.is_small {
                this.deadline = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(this.poll_deadline(cx));
        this.limit.passed.inc();
        Poll::Ready(Some(Err(Fault::TooSlow.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
