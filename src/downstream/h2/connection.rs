//! Drives one HTTP/2 client connection: start timeout, idle timeout, keep-alive, drain and close.

use std::num::NonZeroU64;
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
use crate::downstream::limits::{Limits, should_reconnect};
use crate::lifecycle::{Lifecycle, ProcessPhase, Watch};
use crate::memory::Budget;
use crate::snapshot::SnapshotStore;
use crate::transport::h2::{CountedTransport, Http2Error, KeepAlive, Traffic, Window};
use crate::transport::reclaimable::Reclaimable;
use crate::transport::write_timeout::{WriteLimit, WriteTimeout};
use crate::transport::{Prefixed, deadline};

/// Bytes that a client has sent once it has started: its preface and a frame header (RFC 9113 §3.4, §4.1).
const BEGUN: u64 = 24 + 9;
/// How long a closing connection without streams waits for the client to see the GOAWAY (RFC 9113 §6.8 recommends a
/// round trip), and then for it to take the last frame.
const GRACE: Duration = Duration::from_secs(1);

/// How long a closing connection may take to send the rest of complete responses.
const LAST_DATA: Duration = Duration::from_secs(10);

/// Maximum number of accepted streams that a client may cancel within [`RESET_PERIOD`]. A cancelled stream wastes work and
/// makes room for another one (CVE-2023-44487). h2 limits streams that are reset before they are accepted.
const MAX_RESETS: usize = 500;
const RESET_PERIOD: Duration = Duration::from_secs(1);

/// The streams of a connection that are being served.
#[derive(Default)]
pub(super) struct OpenStreams {
    count: AtomicUsize,
    /// The number of streams that the client has cancelled.
    resets: AtomicUsize,
    connection: AtomicWaker,
}

impl OpenStreams {
    /// Counts one more stream until the guard is dropped.
    pub(super) fn guard(self: &Arc<Self>) -> StreamGuard {
        self.count.fetch_add(1, Ordering::Relaxed);
        StreamGuard(Arc::clone(self))
    }
}

/// A stream that is being served.
pub(super) struct StreamGuard(Arc<OpenStreams>);

impl StreamGuard {
    /// Records that the client cancelled the stream.
    pub(super) fn cancelled(&self) {
        self.0.resets.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.connection.wake();
        }
    }
}

/// Detects a client that opens streams only to cancel them.
struct Resets {
    /// The number of cancelled streams at the start of the current period.
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

    /// Whether too many streams were cancelled in the current period. `total` is the number so far. The clock is read
    /// only if it has changed.
    fn are_too_many(&mut self, total: usize, now: impl FnOnce() -> Instant) -> bool {
        if total == self.before {
            return false;
        }
        let now = now();
        if now >= self.since + RESET_PERIOD {
            *self = Self {
                before: total,
                since: now,
            };
            return false;
        }
        total - self.before > MAX_RESETS
    }
}

type ClientTransport = CountedTransport<Reclaimable<Prefixed<WriteTimeout>>>;

/// A connection that is being served.
struct Connection<'a, S> {
    inner: server::Connection<ClientTransport, Bytes>,
    traffic: Arc<Traffic>,
    watch: Watch,
    serve: S,
    keep_alive: KeepAlive,
    open: &'a OpenStreams,
    limits: &'a Limits,
    write_limit: &'a WriteLimit,
    resets: Resets,
    /// An unfinished request head, and the time limit for it.
    head: Option<(NonZeroU64, Pin<Box<Sleep>>)>,
    /// When the client must have started.
    begins_by: Instant,
    /// Since when no stream is being served, and the bytes that had been sent by then.
    idle_since: Option<(Instant, u64)>,
    /// The bytes sent and the time at the last check of a client that reads buffered responses.
    flush_progress: Option<(u64, Instant)>,
    snapshots: &'a SnapshotStore,
    /// When the connection began.
    since: Instant,
    /// When GOAWAY was sent.
    go_away_since: Option<Instant>,
    /// When the connection was shut down; only the last frame is left.
    shut_down_since: Option<Instant>,
    /// Why it was shut down.
    reason: Reason,
    timer: Pin<Box<Sleep>>,
    memory: &'a Budget,
    window: Window,
}

/// Serves a connection until it ends and passes each request to `serve`.
///
/// # Errors
/// Why the connection ended, unless it ended cleanly.
pub(super) async fn serve(
    handshake: Handshake<ClientTransport>,
    traffic: Arc<Traffic>,
    open: &OpenStreams,
    (limits, write_limit): (&Limits, &WriteLimit),
    lifecycle: &Lifecycle,
    (memory, snapshots): (&Arc<Budget>, &SnapshotStore),
    serve: impl FnMut(Request<RecvStream>, SendResponse<Bytes>),
) -> Result<(), String> {
    let begins_by = Instant::now() + limits.head_timeout;
    let drained = async {
        lifecycle.reached(ProcessPhase::Draining).await;
        tokio::time::sleep(GRACE).await;
    };
    let mut inner = tokio::select! {
        begun = deadline::timeout_at(begins_by, handshake) => match begun {
            Some(begun) => begun.map_err(|error| Http2Error::from(error).to_string())?,
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
        write_limit,
        resets: Resets::since(Instant::now()),
        head: None,
        begins_by,
        idle_since: None,
        flush_progress: None,
        snapshots,
        since: Instant::now(),
        go_away_since: None,
        shut_down_since: None,
        reason: Reason::NO_ERROR,
        timer: Box::pin(tokio::time::sleep_until(begins_by.into())),
        memory,
        window: Window::new(STREAM_WINDOW),
    };
    std::future::poll_fn(|cx| connection.poll(cx)).await
}

impl<S: FnMut(Request<RecvStream>, SendResponse<Bytes>)> Connection<'_, S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        // This runs for each event of each stream, so the check must be cheap.
        if self.go_away_since.is_none() && self.watch.poll(cx) >= ProcessPhase::Draining {
            self.go_away();
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
            if self.shut_down_since.is_none() && self.traffic.is_flood() {
                tracing::debug!("an HTTP/2 client sends too many control frames");
                self.end(Instant::now(), Reason::ENHANCE_YOUR_CALM);
                continue;
            }
            if self.shut_down_since.is_none() && self.poll_head(cx).is_ready() {
                tracing::debug!("an HTTP/2 client sends a request head too slowly");
                self.end(Instant::now(), Reason::ENHANCE_YOUR_CALM);
                continue;
            }
            let busy = self.inner.has_streams();
            if self.keep_alive.poll(cx, busy).is_ready() {
                return Poll::Ready(Err("the client does not answer PINGs".to_owned()));
            }
            if let Err(why) = ready!(self.poll_timer(cx)) {
                return Poll::Ready(Err(why.to_owned()));
            }
        }
    }

    /// Reads and writes frames and hands out new streams. Ready when the connection has ended.
    fn poll_streams(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        loop {
            let (request, mut respond) = match ready!(self.inner.poll_accept(cx)) {
                Some(Ok(stream)) => stream,
                Some(Err(error)) => {
                    return Poll::Ready(Err(Http2Error::from(error).to_string()));
                }
                None if self.reason == Reason::NO_ERROR => return Poll::Ready(Ok(())),
                None => return Poll::Ready(Err(self.reason.to_string())),
            };
            let resets = self.open.resets.load(Ordering::Relaxed);
            if self.shut_down_since.is_none() && self.resets.are_too_many(resets, Instant::now) {
                self.end(Instant::now(), Reason::ENHANCE_YOUR_CALM);
            }
            // A client that does not acknowledge the GOAWAY keeps opening streams.
            let refuses = |since: Instant| since.elapsed() > GRACE;
            if self.shut_down_since.is_some() || self.go_away_since.is_some_and(refuses) {
                respond.send_reset(Reason::REFUSED_STREAM);
            } else {
                (self.serve)(request, respond);
                let ends_soon =
                    should_reconnect(self.snapshots, self.since) || self.traffic.should_retire();
                if ends_soon && self.go_away_since.is_none() {
                    self.go_away();
                }
            }
        }
    }

    /// Ready when a request head takes too long. Until it is complete, the client cannot send anything else (RFC 9113 §4.3).
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(unfinished) = self.traffic.unfinished_head() else {
            self.head = None;
            return Poll::Pending;
        };
        let limit = self.limits.head_timeout;
        let timer = match &mut self.head {
            Some((head, timer)) if *head == unfinished => timer,
            head => {
                let timer = Box::pin(tokio::time::sleep(limit));
                &mut head.insert((unfinished, timer)).1
            }
        };
        timer.as_mut().poll(cx)
    }

    /// Sends GOAWAY. The connection ends with its last open stream.
    fn go_away(&mut self) {
        self.inner.graceful_shutdown();
        self.go_away_since = Some(Instant::now());
    }

    /// Waits for the current timeout of the connection. Ready if the connection must be polled again; an error is the
    /// reason to end it.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        if self.open.count.load(Ordering::Relaxed) > 0 && self.shut_down_since.is_none() {
            self.idle_since = None;
            self.flush_progress = None;
            return Poll::Pending;
        }
        let idle = || (Instant::now(), self.traffic.sent());
        let (idle_since, sent_by_then) = *self.idle_since.get_or_insert_with(idle);
        let has_begun = self.traffic.received() >= BEGUN;
        // Complete responses may still be buffered until the client reads them.
        let is_flushing = self.inner.has_streams();
        let due = match (self.shut_down_since, self.go_away_since) {
            (Some(since), _) => since + GRACE,
            (None, Some(since)) => {
                let begun = since.max(idle_since);
                let last = self.flush_progress.map_or(begun, |(_, at)| at);
                (last + GRACE).min(begun + LAST_DATA)
            }
            (None, None) if is_flushing => {
                let last = self.flush_progress.map_or(idle_since, |(_, at)| at);
                last + self.write_limit.limit
            }
            (None, None) if has_begun => idle_since + self.limits.idle_timeout,
            (None, None) => self.begins_by,
        };
        if self.timer.deadline() != due.into() {
            self.timer.as_mut().reset(due.into());
        }
        ready!(self.timer.as_mut().poll(cx));
        let now = Instant::now();
        let sent = self.traffic.sent();
        match (self.shut_down_since, self.go_away_since) {
            (Some(_), _) => return Poll::Ready(Err("the client did not read the last frame")),
            (None, Some(since)) => {
                let makes_progress = self.flush_progress.is_none_or(|(before, _)| before != sent);
                let may_last = now < since.max(idle_since) + LAST_DATA;
                if is_flushing && makes_progress && may_last {
                    self.flush_progress = Some((sent, now));
                } else {
                    self.end(now, Reason::NO_ERROR);
                }
            }
            (None, None) if is_flushing => {
                if self
                    .flush_progress
                    .map_or(sent_by_then, |(before, _)| before)
                    == sent
                {
                    self.write_limit.passed.inc();
                    self.end(now, Reason::NO_ERROR);
                } else {
                    self.flush_progress = Some((sent, now));
                }
            }
            (None, None) if has_begun => self.go_away(),
            (None, None) => return Poll::Ready(Err("no SETTINGS in time")),
        }
        Poll::Ready(Ok(()))
    }

    /// Shuts down the connection and all its streams.
    fn end(&mut self, now: Instant, reason: Reason) {
        self.inner.abrupt_shutdown(reason);
        self.shut_down_since = Some(now);
        self.reason = reason;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancelled_streams_are_too_many_only_within_a_short_time() {
        let start = Instant::now();
        let at = |millis| move || start + Duration::from_millis(millis);
        let mut resets = Resets::since(start);
        assert!(!resets.are_too_many(MAX_RESETS, at(900)));
        assert!(resets.are_too_many(MAX_RESETS + 1, at(999)));
        // As many over a longer time are normal for a gateway's connection.
        let mut resets = Resets::since(start);
        for second in 0..100 {
            let total = usize::try_from(second).expect("few") * MAX_RESETS;
            assert!(!resets.are_too_many(total, at(1000 * second)), "{second}");
        }
        assert!(!resets.are_too_many(100 * MAX_RESETS, at(100_000)));
        assert!(resets.are_too_many(101 * MAX_RESETS + 1, at(100_500)));
    }
}
