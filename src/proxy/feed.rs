//! Hands a request's body from the connection that reads it to whoever sends it on, one chunk at a time: what is not asked
//! for is not read, so a slow model server slows its client.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tower::BoxError;

use crate::memory::{Budget, Charge, FREE, cost};
use crate::transport::READ_BUFFER;

#[derive(Default)]
struct Slot {
    data: Option<Bytes>,
    trailers: Option<HeaderMap>,
    /// For the data, until it is taken.
    charge: Charge,
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
        if slot.wanted && slot.data.is_none() {
            return Poll::Ready(Wish::More);
        }
        slot.connection = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Is the body gone, so that the rest will not be read?
    pub fn is_abandoned(&self) -> bool {
        lock(&self.0).abandoned
    }

    /// Hands on `data`, which was read. While it waits it is charged to `memory`: it keeps the read buffer it lies in, or where it
    /// is small it is copied out of it.
    pub fn data(&self, data: BytesMut, memory: &Arc<Budget>) {
        self.put(|slot| {
            let data = if data.len() <= FREE {
                Bytes::copy_from_slice(&data)
            } else {
                slot.charge.force(memory, cost(READ_BUFFER));
                data.freeze()
            };
            slot.data = Some(data);
        });
    }

    /// The body has ended, perhaps with trailers.
    pub fn end(&self, trailers: Option<HeaderMap>) {
        self.put(|slot| {
            slot.trailers = trailers;
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
        if let Some(data) = slot.data.take() {
            slot.charge.shrink(0);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(trailers) = slot.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
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
        slot.data = None;
        slot.charge.shrink(0);
        if let Some(waker) = slot.connection.take() {
            waker.wake();
        }
    }
}
