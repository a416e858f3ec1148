//! Drives an HTTP/2 connection of a client: when it must have begun, when it has rested long enough, and how it ends.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ::h2::server::{self, Handshake, SendResponse};
use ::h2::{Reason, RecvStream};
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::Request;
use tokio::time::Sleep;

use super::STREAM_WINDOW;
use crate::downstream::limits::Limits;
use crate::lifecycle::{Lifecycle, Phase, Watch};
use crate::memory::Budget;
use crate::transport::h2::{Counted, KeepAlive, Traffic, Window};
use crate::transport::write_timeout::WriteTimeout;
use crate::transport::{Rewound, deadline};

/// What a client has sent, in bytes, when it has begun: its preface and the head of a frame (RFC 9113 §3.4, §4.1).
const BEGUN: u64 = 24 + 9;
/// How long a connection without a stream that is to end waits for the client to say that it has seen so (RFC 9113 §6.8
/// recommends a round trip), and then for it to take the last frame.
const GRACE: Duration = Duration::from_secs(1);

/// How long a connection that is to end may take to send what is left of whole answers.
const LAST_DATA: Duration = Duration::from_secs(10);

/// Streams that a client may give up within [`RESETS_IN`], after they were handed out. What it resets before is bounded by h2.
/// Each is work that was begun for nothing (CVE-2023-44487), and makes room for another one.
const MAX_RESETS: usize = 500;
const RESETS_IN: Duration = Duration::from_secs(1);

/// The streams of a connection that are being answered.
#[derive(Default)]
pub(super) struct Open {
    count: AtomicUsize,
    /// Those that the client has given up so far.
    resets: AtomicUsize,
    connection: AtomicWaker,
}

impl Open {
    /// One more, while the seat is held.
    pub(super) fn seat(self: &Arc<Self>) -> Seat {
        self.count.fetch_add(1, Ordering::Relaxed);
        Seat(Arc::clone(self))
    }
}

/// A stream that is being answered.
pub(super) struct Seat(Arc<Open>);

impl Seat {
    /// The client does not want the answer.
    pub(super) fn given_up(&self) {
        self.0.resets.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.connection.wake();
        }
    }
}

/// Whether a client opens streams only to give them up.
struct Resets {
    /// How many it had given up at the beginning of the time in which they are counted.
    before: usize,
    since: Instant,
}

impl Resets {
    fn since(now: Instant) -> Self {
        Self {
            before: 0,
            since: now,
        }
    }

    /// `total` are given up so far. The clock is read only where there is something to count.
    fn are_too_many(&mut self, total: usize, now: impl FnOnce() -> Instant) -> bool {
        if total == self.before {
            return false;
        }
        let now = now();
        if now >= self.since + RESETS_IN {
            *self = Self {
                before: total,
                since: now,
            };
            return false;
        }
        total - self.before > MAX_RESETS
    }
}

/// A connection that is served.
struct Connection<'a, S> {
    inner: server::Connection<Counted<Rewound<WriteTimeout>>, Bytes>,
    traffic: Arc<Traffic>,
    watch: Watch,
    serve: S,
    keep_alive: KeepAlive,
    open: &'a Open,
    limits: &'a Limits,
    resets: Resets,
    /// Until when the client must have begun.
    begins_by: Instant,
    /// Since when no stream is being answered.
    idle_since: Option<Instant>,
    /// What had been sent, and when, at the last look at a client that takes what is left.
    flushed: Option<(u64, Instant)>,
    /// Since when the client is told to go elsewhere.
    leaving_since: Option<Instant>,
    /// Since when all is over but for the last frame.
    over_since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    memory: &'a Budget,
    window: Window,
}

/// Serves a connection to its end: each request goes to `serve`.
///
/// # Errors
/// Why it ended, if not as it should.
pub(super) async fn serve(
    handshake: Handshake<Counted<Rewound<WriteTimeout>>>,
    traffic: Arc<Traffic>,
    open: &Open,
    limits: &Limits,
    lifecycle: &Lifecycle,
    memory: &Arc<Budget>,
    serve: impl FnMut(Request<RecvStream>, SendResponse<Bytes>),
) -> Result<(), String> {
    let begins_by = Instant::now() + limits.head_timeout;
    let drained = async {
        lifecycle.reached(Phase::Draining).await;
        tokio::time::sleep(GRACE).await;
    };
    let mut inner = tokio::select! {
        begun = deadline::timeout_at(begins_by, handshake) => match begun {
            Some(begun) => begun.map_err(|error| error.to_string())?,
            None => return Err("no preface in time".to_owned()),
        },
        () = drained => return Err("no preface before the drain".to_owned()),
    };
    let mut connection = Connection {
        keep_alive: KeepAlive::new(inner.ping_pong(), Arc::clone(&traffic)),
        inner,
        traffic,
        watch: lifecycle.watch(),
        serve,
        open,
        limits,
        resets: Resets::since(Instant::now()),
        begins_by,
        idle_since: None,
        flushed: None,
        leaving_since: None,
        over_since: None,
        timer: Box::pin(tokio::time::sleep_until(begins_by.into())),
        memory,
        window: Window::new(STREAM_WINDOW),
    };
    std::future::poll_fn(|cx| connection.poll(cx)).await
}

impl<S: FnMut(Request<RecvStream>, SendResponse<Bytes>)> Connection<'_, S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        // It is polled for each event of its streams, so the look must cost little.
        if self.leaving_since.is_none() && self.watch.poll(cx) >= Phase::Draining {
            self.leave();
        }
        let inner = &mut self.inner;
        self.window.fit(self.memory, |size| {
            inner.set_initial_window_size(size).is_ok()
        });
        self.open.connection.register(cx.waker());
        loop {
            if let Poll::Ready(ended) = self.poll_streams(cx) {
                return Poll::Ready(ended);
            }
            let busy = self.inner.has_streams();
            if self.keep_alive.poll(cx, busy).is_ready() {
                return Poll::Ready(Err("the client answers no PING".to_owned()));
            }
            if let Err(why) = ready!(self.poll_timer(cx)) {
                return Poll::Ready(Err(why.to_owned()));
            }
        }
    }

    /// Moves frames and hands out new streams. Ready at the end of the connection.
    fn poll_streams(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        loop {
            let (request, mut respond) = match ready!(self.inner.poll_accept(cx)) {
                Some(Ok(stream)) => stream,
                Some(Err(error)) => return Poll::Ready(Err(error.to_string())),
                None => return Poll::Ready(Ok(())),
            };
            let resets = self.open.resets.load(Ordering::Relaxed);
            if self.over_since.is_none() && self.resets.are_too_many(resets, Instant::now) {
                self.end(Instant::now(), Reason::ENHANCE_YOUR_CALM);
            }
            // A client that does not acknowledge the GOAWAY goes on opening streams.
            let refuses = |since: Instant| since.elapsed() > GRACE;
            if self.over_since.is_some() || self.leaving_since.is_some_and(refuses) {
                respond.send_reset(Reason::REFUSED_STREAM);
            } else {
                (self.serve)(request, respond);
            }
        }
    }

    /// Tells the client to open no more streams. The connection ends with the last that is open.
    fn leave(&mut self) {
        self.inner.graceful_shutdown();
        self.leaving_since = Some(Instant::now());
    }

    /// Waits for what the connection may wait for. Ready when it is to be looked at again, with the reason if it is to end.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        if self.open.count.load(Ordering::Relaxed) > 0 && self.over_since.is_none() {
            self.idle_since = None;
            self.flushed = None;
            return Poll::Pending;
        }
        let idle_since = *self.idle_since.get_or_insert_with(Instant::now);
        let has_begun = self.traffic.received() >= BEGUN;
        // Whole answers may still wait for the client to take them.
        let is_flushing = self.inner.has_streams();
        let due = match (self.over_since, self.leaving_since) {
            (Some(since), _) => since + GRACE,
            (None, Some(since)) => {
                let begun = since.max(idle_since);
                let last = self.flushed.map_or(begun, |(_, at)| at);
                (last + GRACE).min(begun + LAST_DATA)
            }
            (None, None) if is_flushing => idle_since + self.limits.write_timeout,
            (None, None) if has_begun => idle_since + self.limits.idle_timeout,
            (None, None) => self.begins_by,
        };
        if self.timer.deadline() != due.into() {
            self.timer.as_mut().reset(due.into());
        }
        ready!(self.timer.as_mut().poll(cx));
        let now = Instant::now();
        let sent = self.traffic.sent();
        match (self.over_since, self.leaving_since) {
            (Some(_), _) => return Poll::Ready(Err("the client does not take the last frame")),
            (None, Some(since)) => {
                let makes_progress = self.flushed.is_none_or(|(before, _)| before != sent);
                let may_last = now < since.max(idle_since) + LAST_DATA;
                if is_flushing && makes_progress && may_last {
                    self.flushed = Some((sent, now));
                } else {
                    self.end(now, Reason::NO_ERROR);
                }
            }
            (None, None) if is_flushing => self.end(now, Reason::NO_ERROR),
            (None, None) if has_begun => self.leave(),
            (None, None) => return Poll::Ready(Err("no SETTINGS in time")),
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the connection with all that is left of it.
    fn end(&mut self, now: Instant, reason: Reason) {
        self.inner.abrupt_shutdown(reason);
        self.over_since = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_are_given_up_are_too_many_only_within_a_short_time() {
        let start = Instant::now();
        let at = |millis| move || start + Duration::from_millis(millis);
        let mut resets = Resets::since(start);
        assert!(!resets.are_too_many(MAX_RESETS, at(900)));
        assert!(resets.are_too_many(MAX_RESETS + 1, at(999)));
        // As many in a longer time are the usual life of a gateway's connection.
        let mut resets = Resets::since(start);
        for second in 0..100 {
            let total = usize::try_from(second).expect("few") * MAX_RESETS;
            assert!(!resets.are_too_many(total, at(1000 * second)), "{second}");
        }
        assert!(!resets.are_too_many(100 * MAX_RESETS, at(100_000)));
        assert!(resets.are_too_many(101 * MAX_RESETS + 1, at(100_500)));
    }
}
