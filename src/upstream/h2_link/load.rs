//! The load of an HTTP/2 connection: its streams, and the requests that were cancelled on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use super::resets::Resets;

/// Maximum number of cancelled requests on a connection. After that, the connection is retired. Servers close a connection on
/// which too many requests are cancelled (CVE-2023-44487), with the streams of all other clients: Netty at 200 within 30
/// seconds, nghttp2 (Node.js) at 1,000 plus 33 per second. Others count only [`EARLY`] ones. This limit is far lower, because a
/// new connection is cheap, and because the up to 99 requests that are then open may be cancelled, too.
const MAX_CANCELS: u32 = 96;
/// A request that is cancelled this early and without a response head may reach the server together with its cancellation. h2
/// (hyper) closes a connection at the 21st that is cancelled before it is accepted, and Envoy after 250 within their first
/// second.
const EARLY: Duration = Duration::from_secs(1);
/// An early cancellation counts as this many: 16 of them reach [`MAX_CANCELS`].
const EARLY_WEIGHT: u32 = 6;
/// A request without a response head is not reset before it is this old: by then, the server has most likely accepted it.
const MIN_RESET_AGE: Duration = Duration::from_millis(100);

/// The load of a connection.
#[derive(Debug, Default)]
pub struct Load {
    streams: AtomicUsize,
    /// Uploads that wait for their clients, or for the server to accept more data.
    pub waiting_uploads: AtomicUsize,
    /// The weighted number of cancelled requests.
    cancels: AtomicU32,
    pub resets: Resets,
}

impl Load {
    /// Streams that are open.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Whether so many requests have been cancelled that the connection should be retired.
    pub fn should_retire(&self) -> bool {
        self.cancels.load(Ordering::Relaxed) >= MAX_CANCELS
    }
}

/// A stream, counted on its connection until it is dropped.
pub struct Stream(Arc<Load>);

impl Stream {
    pub fn new(load: &Arc<Load>) -> Self {
        load.streams.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(load))
    }

    /// The load of the connection that carries the stream.
    pub const fn load(&self) -> &Arc<Load> {
        &self.0
    }

    /// Counts a request that is cancelled this long after it was sent, without a response head. Returns how long to wait before
    /// the stream is reset.
    pub fn cancelled(&self, waited: Duration) -> Duration {
        let counts = if waited < EARLY { EARLY_WEIGHT } else { 1 };
        self.0.cancels.fetch_add(counts, Ordering::Relaxed);
        MIN_RESET_AGE.saturating_sub(waited)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream with a response head. Counts as cancelled if it is dropped before its end. Each open stream has one, so it is small.
pub struct Answered(Option<Stream>);

impl Answered {
    pub const fn new(stream: Stream) -> Self {
        Self(Some(stream))
    }

    /// The stream has ended, so that dropping it resets nothing.
    pub fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        if let Some(Stream(load)) = &self.0 {
            load.cancels.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn after(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn only_a_request_that_the_server_may_not_have_accepted_is_reset_later() {
        let stream = Stream::new(&Arc::default());
        assert_eq!(stream.cancelled(after(0)), after(100));
        assert_eq!(stream.cancelled(after(70)), after(30));
        assert_eq!(stream.cancelled(after(200)), after(0));
    }

    #[test]
    fn cancelled_requests_retire_a_connection_and_early_ones_count_more() {
        for (late, early, should_retire) in [
            (0, 15, false),
            (5, 15, false),
            (6, 15, true),
            (0, 16, true),
            (95, 0, false),
            (96, 0, true),
        ] {
            let load = Arc::<Load>::default();
            for _ in 0..1000 {
                drop(Stream::new(&load));
                Answered::new(Stream::new(&load)).ended();
            }
            for _ in 0..early {
                Stream::new(&load).cancelled(after(999));
            }
            for number in 0..late {
                let stream = Stream::new(&load);
                match number % 2 {
                    0 => drop(Answered::new(stream)),
                    _ => drop(stream.cancelled(after(1000))),
                }
            }
            assert_eq!(load.should_retire(), should_retire, "{late} {early}");
            assert_eq!(load.streams(), 0);
        }
    }
}
