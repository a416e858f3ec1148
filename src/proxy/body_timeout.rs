//! A request's body that must keep coming: what a client may take for it while somebody waits for more.

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

/// A body of a known length up to this has one limit for all of it, in bytes; a larger one has it for each pause.
pub const SMALL: u64 = 64 * 1024;

/// How long a client may be waited for, and where it is counted that one took longer.
#[derive(Debug)]
pub struct BodyLimit {
    pub limit: Duration,
    pub passed: IntCounter,
}

/// A body that ends with [`Fault::TooSlow`] once its client was waited for too long. Time in which nobody wants more of it is
/// not the client's.
pub struct Paced<B> {
    body: B,
    limit: Arc<BodyLimit>,
    is_small: bool,
    deadline: Option<Deadline>,
    /// Kept once there was something to wait for.
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
            // It may be armed for a pause that is over.
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
