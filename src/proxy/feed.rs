//! Hands a request's body from the connection that reads it to whoever sends it on, one chunk at a time: what is not asked
//! for is not read, so a slow model server slows its client.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tower::BoxError;

#[derive(Default)]
struct Slot {
    frame: Option<Frame<Bytes>>,
    ended: bool,
    broken: bool,
    /// The body was polled and found nothing.
    wanted: bool,
    /// The body is gone: nobody will read on.
    abandoned: bool,
    body: Option<Waker>,
    connection: Option<Waker>,
}

/// The reading end: the body.
pub struct Fed {
    slot: Arc<Mutex<Slot>>,
    length: SizeHint,
}

/// The writing end: the connection.
pub struct Feed(Arc<Mutex<Slot>>);

/// What the connection is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Read on.
    More,
    /// Nobody wants the rest.
    Nothing,
}

/// Two ends; `length` is what the head says of the body.
pub fn feed(length: SizeHint) -> (Feed, Fed) {
    let slot = Arc::new(Mutex::new(Slot::default()));
    (Feed(Arc::clone(&slot)), Fed { slot, length })
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().expect("no holder of this lock can panic")
}

impl Feed {
    /// What the body's reader wishes. Pending while it is busy with what it has.
    pub fn poll_wish(&self, cx: &mut Context<'_>) -> Poll<Wish> {
        let mut slot = lock(&self.0);
        if slot.abandoned {
            return Poll::Ready(Wish::Nothing);
        }
        if slot.wanted && slot.frame.is_none() {
            return Poll::Ready(Wish::More);
        }
        slot.connection = Some(cx.waker().clone());
        Poll::Pending
    }

    pub fn data(&self, data: Bytes) {
        self.put(|slot| slot.frame = Some(Frame::data(data)));
    }

    /// The body has ended, perhaps with trailers.
    pub fn end(&self, trailers: Option<HeaderMap>) {
        self.put(|slot| {
            slot.frame = slot.frame.take().or(trailers.map(Frame::trailers));
            slot.ended = true;
        });
    }

    fn put(&self, change: impl FnOnce(&mut Slot)) {
        let mut slot = lock(&self.0);
        change(&mut slot);
        slot.wanted = false;
        if let Some(waker) = slot.body.take() {
            waker.wake();
        }
    }
}

impl Drop for Feed {
    /// A connection that goes before the end has broken the body off.
    fn drop(&mut self) {
        self.put(|slot| slot.broken = !slot.ended);
    }
}

impl Body for Fed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut slot = lock(&self.slot);
        if let Some(frame) = slot.frame.take() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if slot.ended {
            return Poll::Ready(None);
        }
        if slot.broken {
            return Poll::Ready(Some(Err("the client broke the request body off".into())));
        }
        slot.wanted = true;
        slot.body = Some(cx.waker().clone());
        if let Some(waker) = slot.connection.take() {
            waker.wake();
        }
        Poll::Pending
    }

    fn size_hint(&self) -> SizeHint {
        self.length
    }
}

impl Drop for Fed {
    fn drop(&mut self) {
        let mut slot = lock(&self.slot);
        slot.abandoned = true;
        if let Some(waker) = slot.connection.take() {
            waker.wake();
        }
    }
}
