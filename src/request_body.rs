//! A request body that can be sent again: it is kept while it is read, up to a limit, until the exchange is committed.
//!
//! Contains no retry policy.

mod kept;
mod prefixed_body;
mod stream;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tower::BoxError;

use crate::http1::{NamedFields, with_trailers};
use crate::memory::{Budget, Buffer, Charge, Gathered, Purpose, gather};
use crate::transport::deadline::Excluded;
use prefixed_body::PrefixedBody;
use stream::Stream;

/// If a client has sent nothing for this long, a server may have given up because of the client.
const STALLED: Duration = Duration::from_secs(1);

/// A body to send. [`RequestBody::again`] returns it for another attempt.
pub struct RequestBody {
    kind: Kind,
}

enum Kind {
    Empty,
    /// Complete in memory.
    Whole {
        bytes: Bytes,
        sent: bool,
    },
    Stream {
        shared: Arc<Mutex<Stream>>,
        /// Bytes sent so far.
        sent: u64,
        length: SizeHint,
        /// Whether this reader waits for the client.
        waits: bool,
    },
}

/// Why a body cannot be read further. The model server is not at fault, so the request is not retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the request body is longer than the limit")]
    TooLarge,
    #[error("the request body did not arrive in time")]
    TooSlow,
    /// Data arrived before it was read, and the memory budget has no room for it.
    #[error("the memory budget is exhausted")]
    NoMemory,
    /// The client's connection or framing broke.
    #[error("the client aborted the request body")]
    Broken,
    /// The client reset the stream, or its connection is gone. It gets no response.
    #[error("the client disconnected")]
    Gone,
}

impl RequestBody {
    #[must_use]
    pub const fn empty() -> Self {
        Self { kind: Kind::Empty }
    }

    /// A body that is complete in memory.
    #[must_use]
    pub fn whole(bytes: Bytes) -> Self {
        match bytes.len() {
            0 => Self::empty(),
            _ => Self {
                kind: Kind::Whole { bytes, sent: false },
            },
        }
    }

    /// A body that is still arriving. It is not kept unless [`RequestBody::keep`] is called.
    pub fn stream<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if body.is_end_stream() {
            return Self::empty();
        }
        let length = body.size_hint();
        let source = Box::pin(http_body_util::BodyExt::map_err(body, Into::into));
        Self {
            kind: Kind::Stream {
                shared: Arc::new(Mutex::new(Stream::new(source, length.exact()))),
                sent: 0,
                length,
                waits: false,
            },
        }
    }

    /// Limits the body to `most` bytes, and charges what is held of it to `budget`.
    pub fn bound(&self, most: u64, budget: &Arc<Budget>) {
        self.with_stream(|stream| stream.bound(most, budget));
    }

    /// Keeps the body for another attempt, if it is at most `most` bytes long and the budget of [`RequestBody::bound`] has
    /// room. Call this before anything has been read.
    pub fn keep(&self, most: usize) {
        self.with_stream(|stream| stream.keep(most));
    }

    /// Does not forward trailers of these names: they apply to the client's connection only.
    pub fn hide(&self, names: NamedFields) {
        self.with_stream(|stream| stream.hide(names));
    }

    fn with_stream<T>(&self, use_it: impl FnOnce(&mut Stream) -> T) -> Option<T> {
        match &self.kind {
            Kind::Stream { shared, .. } => Some(use_it(&mut lock(shared))),
            _ => None,
        }
    }

    /// A view for calling [`RequestBody::fault`], [`RequestBody::awaited`] and
    /// [`RequestBody::is_stalled`] after the body itself has been moved.
    #[must_use]
    pub fn view(&self) -> Self {
        let kind = match &self.kind {
            Kind::Stream { shared, length, .. } => Kind::Stream {
                shared: Arc::clone(shared),
                sent: u64::MAX,
                length: *length,
                waits: false,
            },
            _ => Kind::Empty,
        };
        Self { kind }
    }

    /// Why the body cannot be read further, if so.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        self.with_stream(|stream| stream.fault())?
    }

    /// How long readers have waited for the client. The model server is not at fault for that time.
    #[must_use]
    pub fn awaited(&self) -> Excluded {
        let awaited = self.with_stream(|stream| stream.awaited());
        awaited.unwrap_or_default()
    }

    /// Whether the last attempt ended while the client had sent nothing for so long that a server may have given up for that
    /// reason.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.with_stream(|stream| stream.abandoned_wait() >= STALLED) == Some(true)
    }

    /// The same body from its beginning; `None` if part of it was not kept.
    #[must_use]
    pub fn for_retry(&self) -> Option<Self> {
        let kind = match &self.kind {
            Kind::Empty => Kind::Empty,
            Kind::Whole { bytes, .. } => Kind::Whole {
                bytes: bytes.clone(),
                sent: false,
            },
            Kind::Stream { shared, length, .. } => {
                if !lock(shared).rewind() {
                    return None;
                }
                Kind::Stream {
                    shared: Arc::clone(shared),
                    sent: 0,
                    length: *length,
                    waits: false,
                }
            }
        };
        Some(Self { kind })
    }

    /// Whether nothing has been read yet. If so, `Expect: 100-continue` still applies.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.with_stream(|stream| stream.is_untouched()) == Some(true)
    }

    /// Reads the complete body, if it is at most `most` bytes long and `budget` has room. Returns a body to send, and the bytes
    /// if it was complete. Call [`RequestBody::bound`] and [`RequestBody::keep`] on the returned body again.
    pub async fn peek(mut self, most: usize, budget: &Arc<Budget>) -> (Self, Option<Bytes>) {
        let Kind::Stream { length, .. } = &self.kind else {
            let whole = self.as_whole().cloned();
            return (self, whole);
        };
        let expected = length.exact();
        if length.lower() > most as u64 {
            return (self, None);
        }
        let expected = expected.and_then(|length| usize::try_from(length).ok());
        let buffer = Buffer::new(budget, Purpose::Affinity, expected);
        let [first, next] = match gather(&mut self, buffer, most).await {
            Gathered::Whole(whole, trailers) => {
                let body = match trailers {
                    None => Self::whole(whole.clone()),
                    Some(trailers) => {
                        Self::stream(with_trailers::<BoxError>(whole.clone(), trailers))
                    }
                };
                return (body, Some(whole));
            }
            Gathered::Part(first, next) => [first, next],
            // The fault is recorded in the stream, so sending the rest of the body returns it too.
            Gathered::Broken(first, _) => [first, Bytes::new()],
        };
        let prefixed = PrefixedBody::new([first, next], self);
        (Self::stream(prefixed), None)
    }

    /// The whole body, if it has arrived and all of it is kept.
    #[must_use]
    pub fn kept(&self) -> Option<Bytes> {
        match &self.kind {
            Kind::Empty => Some(Bytes::new()),
            Kind::Whole { bytes, .. } => Some(bytes.clone()),
            Kind::Stream { shared, .. } => lock(shared).kept(),
        }
    }

    /// The length of the whole body, if it has arrived and all of it is kept.
    #[must_use]
    pub fn kept_length(&self) -> Option<usize> {
        match &self.kind {
            Kind::Empty => Some(0),
            Kind::Whole { bytes, .. } => Some(bytes.len()),
            Kind::Stream { shared, .. } => lock(shared).kept_length(),
        }
    }

    /// Releases the state for receiving the body, if the body has arrived and is kept completely, because thousands of streams
    /// keep their bodies. Returns the charge for the bytes, which belongs to the body from now on.
    #[must_use]
    pub fn settle(&mut self) -> Charge {
        let settled = self.with_stream(Stream::settle).flatten();
        let Some((bytes, charge)) = settled else {
            return Charge::default();
        };
        *self = Self::whole(bytes);
        charge
    }

    /// Releases what is kept: the request will not be sent again.
    pub fn forget(&self) {
        self.with_stream(Stream::forget);
    }

    /// The bytes, if the body is complete in memory.
    #[must_use]
    pub fn as_whole(&self) -> Option<&Bytes> {
        match &self.kind {
            Kind::Whole { bytes, .. } => Some(bytes),
            _ => None,
        }
    }
}

fn lock(shared: &Mutex<Stream>) -> MutexGuard<'_, Stream> {
    shared.lock().expect("no holder of this lock can panic")
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Kind::Stream {
            shared,
            waits: true,
            ..
        } = &self.kind
        {
            lock(shared).abandon_wait();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().kind {
            Kind::Empty | Kind::Whole { sent: true, .. } => Poll::Ready(None),
            Kind::Whole { bytes, sent } => {
                *sent = true;
                Poll::Ready(Some(Ok(Frame::data(bytes.clone()))))
            }
            Kind::Stream {
                shared,
                sent,
                waits,
                ..
            } => {
                let polled = lock(shared).poll_after(cx, sent);
                *waits = polled.is_pending();
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.kind, Kind::Empty | Kind::Whole { sent: true, .. })
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Whole { bytes, sent } => {
                SizeHint::with_exact(if *sent { 0 } else { bytes.len() as u64 })
            }
            Kind::Stream { length, .. } => *length,
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    struct Chunks(std::vec::IntoIter<&'static str>);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Ready(self.0.next().map(|chunk| Ok(Frame::data(chunk.into()))))
        }
    }

    fn chunks(parts: &[&'static str]) -> Chunks {
        Chunks(Vec::from(parts).into_iter())
    }

    fn bounded(parts: &[&'static str], keep: usize, budget: &Arc<Budget>) -> RequestBody {
        let body = RequestBody::stream(chunks(parts));
        body.bound(10_000, budget);
        body.keep(keep);
        body
    }

    async fn text(body: RequestBody) -> Bytes {
        body.collect().await.expect("readable").to_bytes()
    }

    #[tokio::test]
    async fn a_stream_is_sent_again_from_its_beginning_even_when_the_first_was_half_sent() {
        let budget = Budget::new(10_000);
        let mut first = bounded(&["ab", "cd", "ef"], 100, &budget);
        first.frame().await.expect("a frame").expect("readable");
        let second = first.for_retry().expect("all was kept");
        drop(first);
        assert_eq!(text(second).await, "abcdef");
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn beyond_the_limit_or_the_budget_it_streams_and_is_not_replayable() {
        let long: &str = Box::leak("x".repeat(1024).into_boxed_str());
        for (limit, whole) in [(1025, 10_000), (10_000, 2_000)] {
            let budget = Budget::new(whole);
            let mut first = bounded(&[long, "cd"], limit, &budget);
            first.frame().await.expect("a frame").expect("readable");
            assert!(first.for_retry().is_some());
            first.frame().await.expect("a frame").expect("readable");
            assert!(first.for_retry().is_none());
            assert_eq!(budget.used(), 0);
        }
    }

    #[tokio::test]
    async fn a_body_that_was_peeked_at_is_sent_whole() {
        let budget = Budget::new(10_000);
        let body = RequestBody::stream(chunks(&["ab", "cd"]));
        let (body, whole) = body.peek(4, &budget).await;
        assert_eq!(whole.as_deref(), Some(&b"abcd"[..]));
        assert_eq!(text(body).await, "abcd");
        let body = RequestBody::stream(chunks(&["ab", "cd", "ef"]));
        let (body, whole) = body.peek(3, &budget).await;
        assert_eq!(whole, None);
        assert_eq!(text(body).await, "abcdef");
    }

    #[tokio::test]
    async fn a_body_beyond_its_bound_is_a_fault_of_the_client() {
        let mut body = RequestBody::stream(chunks(&["ab", "cd"]));
        body.bound(3, &Budget::new(10_000));
        body.frame().await.expect("a frame").expect("readable");
        assert!(body.frame().await.expect("a frame").is_err());
        assert_eq!(body.fault(), Some(Fault::TooLarge));
        assert!(body.for_retry().is_none());
    }

    #[tokio::test]
    async fn forgetting_returns_the_charge() {
        let budget = Budget::new(10_000);
        let mut first = bounded(&["ab", "cd"], 100, &budget);
        first.frame().await.expect("a frame").expect("readable");
        first.forget();
        assert!(first.for_retry().is_none());
        assert_eq!(budget.used(), 0);
        assert_eq!(text(first).await, "cd");
    }

    #[tokio::test]
    async fn a_body_that_does_not_fit_the_budget_is_not_read_ahead_and_still_sent_whole() {
        let long: &str = Box::leak("x".repeat(6000).into_boxed_str());
        let budget = Budget::new(5000);
        let body = RequestBody::stream(chunks(&["ab", long, "cd"]));
        let (body, whole) = body.peek(100_000, &budget).await;
        assert_eq!(whole, None);
        assert_eq!(budget.take_refusals(Purpose::Affinity), 1);
        assert_eq!(text(body).await, ["ab", long, "cd"].concat());
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_body_is_kept_whole_once_it_has_arrived() {
        let budget = Budget::new(10_000);
        let mut first = bounded(&["ab", "cd"], 100, &budget);
        assert_eq!(first.kept(), None);
        while let Some(frame) = first.frame().await {
            frame.expect("readable");
        }
        assert_eq!(first.kept().as_deref(), Some(&b"abcd"[..]));
        first.forget();
        assert_eq!(first.kept(), None);
        let whole = RequestBody::whole(Bytes::from_static(b"ab"));
        assert_eq!(whole.kept().as_deref(), Some(&b"ab"[..]));
    }

    #[tokio::test]
    async fn a_settled_body_is_the_same_and_charged_with_its_own_charge() {
        let budget = Budget::new(10_000);
        let mut first = bounded(&["ab", "cd"], 100, &budget);
        assert_eq!(first.settle().bytes(), 0, "it has not arrived");
        let mut second = first.for_retry().expect("nothing was read");
        while let Some(frame) = second.frame().await {
            frame.expect("readable");
        }
        let used = budget.used();
        let charge = first.settle();
        assert_eq!((charge.bytes(), budget.used()), (used, used));
        assert!(matches!(first.kind, Kind::Whole { .. }));
        assert_eq!(first.kept().as_deref(), Some(&b"abcd"[..]));
        drop((first, second, charge));
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn an_unread_body_can_be_resent_although_nothing_is_kept() {
        let mut first = RequestBody::stream(chunks(&["ab", "cd"]));
        assert!(first.for_retry().is_some());
        first.frame().await.expect("a frame").expect("readable");
        assert!(first.for_retry().is_none());
    }

    #[tokio::test]
    async fn the_sent_part_of_a_forgotten_body_is_released() {
        let budget = Budget::new(10_000);
        let mut first = bounded(&["ab", "cd", "ef"], 100, &budget);
        first.frame().await.expect("a frame").expect("readable");
        let mut second = first.for_retry().expect("all was kept");
        drop(first);
        second.forget();
        assert!(budget.used() > 0, "the second has still to send it");
        for part in ["ab", "cd"] {
            let frame = second.frame().await.expect("a frame");
            let data = frame.expect("readable").into_data();
            assert_eq!(data.expect("data"), part);
        }
        assert_eq!(budget.used(), 0);
        assert_eq!(text(second).await, "ef");
    }
}
