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

/// A body of at most this known length, in bytes, has a single time limit. Otherwise the limit applies to each pause, and `TIMES`
/// the limit to each part of this length.
pub const SMALL: u64 = 64 * 1024;

/// How many times the limit may pass during a part of a body. This ends bodies that arrive so slowly that they would hold their
/// connection and their request slot forever.
const TIMES: u32 = 10;

/// How long to wait for a client, and the counter of timeouts.
#[derive(Debug)]
pub struct BodyLimit {
    pub limit: Duration,
    pub passed: IntCounter,
}

/// A body that fails with [`Fault::TooSlow`] once the client has kept the reader waiting too long. Only time in which the reader
/// polls for more data and there is none counts.
pub struct TimedBody<B> {
    body: B,
    limit: Arc<BodyLimit>,
    is_small: bool,
    /// Bytes of the current part.
    arrived: u64,
    /// How long the reader has waited for the current part, without the current pause.
    waited: Duration,
    pause: Option<Pause>,
    /// Created at the first wait, then reused.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The reader waits.
struct Pause {
    since: Instant,
    deadline: Deadline,
}

impl<B: Body> TimedBody<B> {
    pub fn new(body: B, limit: Arc<BodyLimit>) -> Self {
        let length = body.size_hint().exact();
        Self {
            body,
            limit,
            is_small: length.is_some_and(|length| length <= SMALL),
            arrived: 0,
            waited: Duration::ZERO,
            pause: None,
            timer: None,
        }
    }

    /// Ends the pause: data has arrived.
    fn data_arrived(&mut self, length: u64) {
        self.arrived += length;
        if self.arrived > SMALL {
            (self.arrived, self.waited) = (0, Duration::ZERO);
            self.pause = None;
        } else if let Some(pause) = self.pause.take() {
            // No longer, even if the process was suspended in the meantime.
            self.waited += pause.since.elapsed().min(self.limit.limit);
        }
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let pause = self.pause.get_or_insert_with(|| {
            let since = Instant::now();
            let limit = self.limit.limit;
            let in_all = if self.is_small {
                limit
            } else {
                limit.saturating_mul(TIMES)
            };
            let left = limit.min(in_all.saturating_sub(self.waited));
            let deadline = Deadline::new(since + left);
            Pause { since, deadline }
        });
        let deadline = &mut pause.deadline;
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

impl<B> Body for TimedBody<B>
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
            let length = match &frame {
                Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
                _ => 0,
            };
            this.data_arrived(length as u64);
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
