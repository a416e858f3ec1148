//! A request's body that can be sent again: what was read of it is kept, up to a limit, until the exchange is committed.
//!
//! Knows nothing of generations or of why a request is sent again.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tower::BoxError;

/// The bytes that all kept bodies of a process may take together.
#[derive(Debug)]
pub struct ReplayBudget {
    left: AtomicUsize,
}

impl ReplayBudget {
    /// `bytes` for the whole process.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self {
            left: AtomicUsize::new(bytes),
        }
    }

    fn take(&self, bytes: usize) -> bool {
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(bytes)
            })
            .is_ok()
    }

    fn give(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

type Source = Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>;

/// A body to send, and by [`RequestBody::again`] to send once more.
pub struct RequestBody {
    kind: Kind,
}

enum Kind {
    Empty,
    /// The whole body was there with the head.
    Whole {
        bytes: Bytes,
        sent: bool,
    },
    Stream {
        shared: Arc<Mutex<Stream>>,
        next: usize,
        length: SizeHint,
    },
}

/// Why a body cannot be read on: the client's fault, so nothing is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the request body is longer than the limit")]
    TooLarge,
    /// The client's connection or framing broke.
    #[error("the client broke the request body off")]
    Broken,
}

/// A body still being read, with what is kept of it.
struct Stream {
    source: Source,
    kept: VecDeque<Bytes>,
    kept_bytes: usize,
    keep: usize,
    budget: Option<Arc<ReplayBudget>>,
    /// Bytes that may still come.
    allowed: u64,
    fault: Option<Fault>,
    /// False once something was read that is not kept.
    replayable: bool,
    ended: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl RequestBody {
    /// No body.
    #[must_use]
    pub const fn empty() -> Self {
        Self { kind: Kind::Empty }
    }

    /// A body that is there as a whole.
    #[must_use]
    pub fn whole(bytes: Bytes) -> Self {
        match bytes.len() {
            0 => Self::empty(),
            _ => Self {
                kind: Kind::Whole { bytes, sent: false },
            },
        }
    }

    /// A body that is still to come.
    pub fn stream<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if body.is_end_stream() {
            return Self::empty();
        }
        let length = body.size_hint();
        let stream = Stream {
            source: Box::pin(http_body_util::BodyExt::map_err(body, Into::into)),
            kept: VecDeque::new(),
            kept_bytes: 0,
            keep: usize::MAX,
            budget: None,
            allowed: u64::MAX,
            fault: None,
            replayable: true,
            ended: false,
        };
        Self {
            kind: Kind::Stream {
                shared: Arc::new(Mutex::new(stream)),
                next: 0,
                length,
            },
        }
    }

    /// Bounds it: at most `most` bytes may come, and at most `keep` of them are kept, out of `budget`.
    pub fn bound(&mut self, most: u64, keep: usize, budget: &Arc<ReplayBudget>) {
        if let Kind::Stream { shared, .. } = &self.kind {
            let stream = &mut *lock(shared);
            stream.allowed = most;
            stream.keep = keep;
            stream.budget = Some(Arc::clone(budget));
        }
    }

    /// A view of it that stays when the body itself is given away, to ask [`RequestBody::fault`] of later.
    #[must_use]
    pub fn view(&self) -> Self {
        let kind = match &self.kind {
            Kind::Stream { shared, length, .. } => Kind::Stream {
                shared: Arc::clone(shared),
                next: usize::MAX,
                length: *length,
            },
            _ => Kind::Empty,
        };
        Self { kind }
    }

    /// What is wrong with it, if the client broke it.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        match &self.kind {
            Kind::Stream { shared, .. } => lock(shared).fault,
            _ => None,
        }
    }

    /// The same body from its beginning; `None` when part of it was not kept.
    #[must_use]
    pub fn again(&self) -> Option<Self> {
        let kind = match &self.kind {
            Kind::Empty => Kind::Empty,
            Kind::Whole { bytes, .. } => Kind::Whole {
                bytes: bytes.clone(),
                sent: false,
            },
            Kind::Stream { shared, length, .. } => {
                if !lock(shared).replayable {
                    return None;
                }
                Kind::Stream {
                    shared: Arc::clone(shared),
                    next: 0,
                    length: *length,
                }
            }
        };
        Some(Self { kind })
    }

    /// Is it still to come from the client, all of it? Then an `Expect: 100-continue` still stands.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        match &self.kind {
            Kind::Stream { shared, .. } => {
                let stream = lock(shared);
                stream.kept.is_empty() && stream.replayable && !stream.ended
            }
            _ => false,
        }
    }

    /// Reads the whole body if it is not longer than `most` bytes. Gives the body back, to be sent.
    pub async fn peek(mut self, most: usize) -> (Self, Option<Bytes>) {
        if !matches!(self.kind, Kind::Stream { .. }) {
            let whole = self.as_whole().cloned();
            return (self, whole);
        }
        let mut read = BytesMut::new();
        while read.len() <= most {
            match self.frame().await {
                None => {
                    let whole = read.freeze();
                    return (Self::whole(whole.clone()), Some(whole));
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        read.extend_from_slice(&data);
                    }
                }
                // The fault is the stream's: the body that is sent will meet it, too.
                Some(Err(_)) => break,
            }
        }
        self.forget();
        let begun = Begun {
            first: Some(read.freeze()),
            rest: self,
        };
        (Self::stream(begun), None)
    }

    /// Lets go of what is kept: the request will not be sent again.
    pub fn forget(&self) {
        if let Kind::Stream { shared, next, .. } = &self.kind {
            let stream = &mut *lock(shared);
            stream.replayable = false;
            // What this sender has still to send must stay.
            if *next >= stream.kept.len() {
                stream.let_go();
            }
        }
    }

    /// The whole body, if it was there as a whole.
    #[must_use]
    pub fn as_whole(&self) -> Option<&Bytes> {
        match &self.kind {
            Kind::Whole { bytes, .. } => Some(bytes),
            _ => None,
        }
    }
}

/// A body of which the beginning was read already.
struct Begun {
    first: Option<Bytes>,
    rest: RequestBody,
}

impl Body for Begun {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.rest.size_hint()
    }
}

fn lock(shared: &Mutex<Stream>) -> MutexGuard<'_, Stream> {
    shared.lock().expect("no holder of this lock can panic")
}

impl Stream {
    fn keep(&mut self, bytes: &Bytes) {
        if !self.replayable {
            return;
        }
        let fits = self.kept_bytes + bytes.len() <= self.keep;
        let budget = self.budget.as_ref();
        if fits && budget.is_none_or(|budget| budget.take(bytes.len())) {
            self.kept_bytes += bytes.len();
            self.kept.push_back(bytes.clone());
        } else {
            self.replayable = false;
            self.let_go();
        }
    }

    fn let_go(&mut self) {
        self.kept = VecDeque::new();
        let kept = std::mem::take(&mut self.kept_bytes);
        if let Some(budget) = &self.budget {
            budget.give(kept);
        }
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        next: &mut usize,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // Nothing is sent on behind a hole.
        if let Some(fault) = self.fault {
            return Poll::Ready(Some(Err(fault.into())));
        }
        if let Some(bytes) = self.kept.get(*next) {
            *next += 1;
            return Poll::Ready(Some(Ok(Frame::data(bytes.clone()))));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = ready!(self.source.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(bytes) if bytes.len() as u64 > self.allowed => {
                    self.replayable = false;
                    self.fault = Some(Fault::TooLarge);
                    return Poll::Ready(Some(Err(Fault::TooLarge.into())));
                }
                Some(bytes) => {
                    self.allowed -= bytes.len() as u64;
                    self.keep(bytes);
                    *next = self.kept.len();
                }
                // Trailers are not kept, so what had some is not replayed.
                None => self.replayable = false,
            },
            Some(Err(error)) => {
                self.replayable = false;
                let known = error.downcast_ref().copied();
                self.fault = Some(known.unwrap_or(Fault::Broken));
            }
            None => self.ended = true,
        }
        Poll::Ready(frame)
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
            Kind::Stream { shared, next, .. } => lock(shared).poll_next(cx, next),
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

    fn bounded(parts: &[&'static str], keep: usize, budget: &Arc<ReplayBudget>) -> RequestBody {
        let mut body = RequestBody::stream(chunks(parts));
        body.bound(1000, keep, budget);
        body
    }

    async fn text(body: RequestBody) -> Bytes {
        body.collect().await.expect("readable").to_bytes()
    }

    #[tokio::test]
    async fn a_stream_is_sent_again_from_its_beginning_even_when_the_first_was_half_sent() {
        let budget = Arc::new(ReplayBudget::new(100));
        let mut first = bounded(&["ab", "cd", "ef"], 100, &budget);
        first.frame().await.expect("a frame").expect("readable");
        let second = first.again().expect("all was kept");
        drop(first);
        assert_eq!(text(second).await, "abcdef");
        assert_eq!(budget.left.load(Ordering::Relaxed), 100);
    }

    #[tokio::test]
    async fn beyond_the_limit_or_the_budget_it_streams_and_is_not_replayable() {
        for (limit, whole) in [(3, 100), (100, 3)] {
            let budget = Arc::new(ReplayBudget::new(whole));
            let mut first = bounded(&["ab", "cd"], limit, &budget);
            first.frame().await.expect("a frame").expect("readable");
            assert!(first.again().is_some());
            first.frame().await.expect("a frame").expect("readable");
            assert!(first.again().is_none());
            assert_eq!(budget.left.load(Ordering::Relaxed), whole);
        }
    }

    #[tokio::test]
    async fn a_body_that_was_peeked_at_is_sent_whole() {
        let (body, whole) = RequestBody::stream(chunks(&["ab", "cd"])).peek(4).await;
        assert_eq!(whole.as_deref(), Some(&b"abcd"[..]));
        assert_eq!(text(body).await, "abcd");
        let (body, whole) = RequestBody::stream(chunks(&["ab", "cd", "ef"]))
            .peek(3)
            .await;
        assert_eq!(whole, None);
        assert_eq!(text(body).await, "abcdef");
    }

    #[tokio::test]
    async fn a_body_beyond_its_bound_is_a_fault_of_the_client() {
        let mut body = RequestBody::stream(chunks(&["ab", "cd"]));
        body.bound(3, 100, &Arc::new(ReplayBudget::new(100)));
        body.frame().await.expect("a frame").expect("readable");
        assert!(body.frame().await.expect("a frame").is_err());
        assert_eq!(body.fault(), Some(Fault::TooLarge));
        assert!(body.again().is_none());
    }

    #[tokio::test]
    async fn what_is_forgotten_is_given_back() {
        let budget = Arc::new(ReplayBudget::new(100));
        let mut first = bounded(&["ab", "cd"], 100, &budget);
        first.frame().await.expect("a frame").expect("readable");
        first.forget();
        assert!(first.again().is_none());
        assert_eq!(budget.left.load(Ordering::Relaxed), 100);
        assert_eq!(text(first).await, "cd");
    }
}
