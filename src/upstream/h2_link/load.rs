//! The load of an HTTP/2 connection: its streams, and how much the requests that were cancelled have worn it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Requests that may be cancelled on a connection before it gets no more requests. Servers close a connection on which too many
/// are cancelled (CVE-2023-44487), with the streams of all other clients. Netty does so at 200 within 30 seconds, nghttp2 (Node.js)
/// at 1,000 and 33 more per second; others count only [`EARLY`] ones. A new connection costs little, so there is no need to come
/// close, and up to 99 more requests may be cancelled after the last one that counts.
const MAX_CANCELS: u32 = 96;
/// A request that is cancelled this soon, without a response head, may be read by the server together with its cancellation. h2
/// (hyper) closes a connection at the 21st that is cancelled before it is accepted, and Envoy after 250 within their first second.
const EARLY: Duration = Duration::from_secs(1);
/// An early one counts as this many others: 16 of them are as many as [`MAX_CANCELS`].
const EARLY_COUNTS: u32 = 6;
/// A request without a response head is not reset before it is this old, so that the server has most likely accepted it.
const ACCEPTED: Duration = Duration::from_millis(100);

/// The load of a connection.
#[derive(Debug, Default)]
pub struct Load {
    streams: AtomicUsize,
    /// Uploads that wait for the server to accept more data.
    pub blocked: AtomicUsize,
    /// The requests that were cancelled, each as many times as it counts.
    cancels: AtomicU32,
}

impl Load {
    /// Streams that are open.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Have so many requests been cancelled that the connection should get no more?
    pub fn is_worn(&self) -> bool {
        self.cancels.load(Ordering::Relaxed) >= MAX_CANCELS
    }
}

/// A stream, counted on its connection until it is dropped.
pub struct Stream {
    load: Arc<Load>,
    progress: Progress,
}

/// What becomes of a stream that is dropped now.
#[derive(Clone, Copy, Debug)]
enum Progress {
    /// Nothing was sent, or the stream has ended.
    Idle,
    /// It is reset before the response head. The request was sent at this time.
    Sent(Instant),
    /// It is reset while the response arrives.
    Answered,
}

impl Progress {
    /// How much it counts towards [`MAX_CANCELS`] if the stream is dropped at `now`.
    fn counts(self, now: Instant) -> u32 {
        match self {
            Self::Idle => 0,
            Self::Sent(at) if now.saturating_duration_since(at) < EARLY => EARLY_COUNTS,
            Self::Sent(_) | Self::Answered => 1,
        }
    }

    /// How long the server may still need, at `now`, to accept the request.
    fn settles(self, now: Instant) -> Duration {
        match self {
            Self::Sent(at) => (at + ACCEPTED).saturating_duration_since(now),
            Self::Idle | Self::Answered => Duration::ZERO,
        }
    }
}

impl Stream {
    pub fn new(load: &Arc<Load>) -> Self {
        load.streams.fetch_add(1, Ordering::Relaxed);
        Self {
            load: Arc::clone(load),
            progress: Progress::Idle,
        }
    }

    /// The request was sent at `now`.
    pub fn sent(&mut self, now: Instant) {
        self.progress = Progress::Sent(now);
    }

    /// The response head has arrived.
    pub fn answered(&mut self) {
        self.progress = Progress::Answered;
    }

    /// The request is cancelled at `now`. Counts that, and returns how long to wait before the stream is reset.
    pub fn cancelled(&mut self, now: Instant) -> Duration {
        let progress = std::mem::replace(&mut self.progress, Progress::Idle);
        let counts = progress.counts(now);
        self.load.cancels.fetch_add(counts, Ordering::Relaxed);
        progress.settles(now)
    }

    /// The stream has ended, so that dropping it resets nothing.
    pub fn ended(&mut self) {
        self.progress = Progress::Idle;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.load.streams.fetch_sub(1, Ordering::Relaxed);
        if !matches!(self.progress, Progress::Idle) {
            self.cancelled(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_are_cancelled_early_wear_a_connection_soonest() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(Progress::Idle.counts(at(0)), 0);
        assert_eq!(Progress::Sent(start).counts(at(999)), EARLY_COUNTS);
        assert_eq!(Progress::Sent(start).counts(at(1000)), 1);
        assert_eq!(Progress::Answered.counts(at(0)), 1);
    }

    #[test]
    fn only_a_request_that_the_server_may_not_have_accepted_is_reset_later() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let left = |progress: Progress, millis| progress.settles(at(millis)).as_millis();
        assert_eq!(left(Progress::Sent(start), 0), 100);
        assert_eq!(left(Progress::Sent(start), 70), 30);
        assert_eq!(left(Progress::Sent(start), 200), 0);
        assert_eq!(left(Progress::Answered, 0), 0);
        assert_eq!(left(Progress::Idle, 0), 0);
    }

    #[test]
    fn a_connection_is_worn_by_streams_that_are_dropped_before_their_end() {
        let load = Arc::<Load>::default();
        let drop_each = |times, change: fn(&mut Stream)| {
            for _ in 0..times {
                let mut stream = Stream::new(&load);
                change(&mut stream);
            }
        };
        drop_each(1000, |_| {});
        drop_each(1000, |stream| {
            stream.sent(Instant::now());
            stream.answered();
            stream.ended();
        });
        drop_each(15, |stream| stream.sent(Instant::now()));
        drop_each(5, Stream::answered);
        assert!(!load.is_worn());
        drop_each(1, Stream::answered);
        assert!(load.is_worn());
        assert_eq!(load.streams.load(Ordering::Relaxed), 0);
    }
}
