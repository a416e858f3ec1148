//! The body of a stream whose reader may be busy for long and is not notified: that of a request, which a model server reads
//! at its own pace.
//!
//! A separate task takes it out of the connection as it arrives. The stream's window opens only as the body is read.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::task::AbortHandle;

use super::announced;
use super::frame_buffer::FrameBuffer;
use super::frames::{Broken, End, Frames, Next};
use super::traffic::Traffic;
use crate::memory::{Budget, Purpose};

pub struct Spooled {
    inbox: Arc<Mutex<Inbox>>,
    /// Fills the inbox. `None` if nothing will arrive.
    filling: Option<AbortHandle>,
    left: Option<u64>,
}

/// The unread part of a body.
struct Inbox {
    /// `None` once it has ended or has no reader.
    frames: Option<Frames>,
    /// Handed directly to a waiting reader, and not fetched yet.
    handed: Option<Bytes>,
    held: FrameBuffer,
    /// How the body ended after what is held.
    end: Option<End>,
    reader: Option<Waker>,
}

impl Spooled {
    /// The body of a message with these fields, from a connection with this traffic. Its buffered part is charged to `memory`.
    #[must_use]
    pub fn new(
        stream: RecvStream,
        traffic: Arc<Traffic>,
        headers: &HeaderMap,
        memory: &Arc<Budget>,
        purpose: Purpose,
    ) -> Self {
        let has_ended = stream.is_end_stream();
        let inbox = Arc::new(Mutex::new(Inbox {
            frames: (!has_ended).then(|| Frames::new(stream, traffic)),
            handed: None,
            held: FrameBuffer::new(memory, purpose),
            end: has_ended.then_some(Ok(None)),
            reader: None,
        }));
        let filling = (!has_ended).then(|| {
            let inbox = Arc::clone(&inbox);
            let filling = std::future::poll_fn(move |cx| lock(&inbox).poll_fill(cx));
            tokio::spawn(filling).abort_handle()
        });
        Self {
            inbox,
            filling,
            left: announced(headers),
        }
    }
}

fn lock(inbox: &Mutex<Inbox>) -> MutexGuard<'_, Inbox> {
    inbox.lock().expect("no holder of this lock can panic")
}

impl Inbox {
    /// Takes what has arrived. Ready when nothing more will.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The reader was woken by the last piece and has had its turn.
        self.hold_handed();
        while self.end.is_none() {
            let Some(frames) = &mut self.frames else {
                return Poll::Ready(());
            };
            match frames.poll(cx) {
                Poll::Ready(Next::Data(data)) => self.take_in(data),
                Poll::Ready(Next::End(end)) => self.end(end),
                Poll::Pending => break,
            }
        }
        if self.handed.is_some() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.end {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        }
    }

    fn take_in(&mut self, data: Bytes) {
        if let Some(reader) = self.reader.take() {
            // The reader runs before this task does again, which is woken after it.
            self.handed = Some(data);
            return reader.wake();
        }
        self.hold_handed();
        self.hold(&data);
    }

    fn hold_handed(&mut self) {
        if let Some(handed) = self.handed.take() {
            self.hold(&handed);
        }
    }

    /// Keeps a copy if the budget has room.
    fn hold(&mut self, data: &[u8]) {
        let is_lost = matches!(self.end, Some(Err(Broken::NoMemory)));
        if !is_lost && !self.held.push(data) {
            self.frames = None;
            self.end(Err(Broken::NoMemory));
        }
    }

    fn end(&mut self, end: End) {
        self.end = Some(self.held.charged(end));
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// The data that has arrived, and as much additional window.
    fn take(&mut self) -> Option<Bytes> {
        let data = match self.handed.take() {
            Some(data) => data,
            None if self.held.is_empty() => return None,
            None => self.held.take(),
        };
        self.release(data.len());
        Some(data)
    }

    fn release(&mut self, bytes: usize) {
        if let Some(frames) = &mut self.frames {
            frames.release(bytes);
        }
    }
}

impl Body for Spooled {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        let mut inbox = lock(&this.inbox);
        if let Some(data) = inbox.take() {
            let length = data.len() as u64;
            this.left = this.left.map(|left| left.saturating_sub(length));
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match &mut inbox.end {
            None => {
                inbox.reader = Some(cx.waker().clone());
                Poll::Pending
            }
            Some(Ok(trailers)) => Poll::Ready(trailers.take().map(|map| Ok(Frame::trailers(map)))),
            Some(end) => {
                let error = std::mem::replace(end, Ok(None)).err();
                inbox.frames = None;
                Poll::Ready(error.map(Err))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let inbox = lock(&self.inbox);
        inbox.handed.is_none() && inbox.held.is_empty() && matches!(inbox.end, Some(Ok(None)))
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            _ if self.is_end_stream() => SizeHint::with_exact(0),
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}

impl Drop for Spooled {
    fn drop(&mut self) {
        if let Some(filling) = &self.filling {
            filling.abort();
        }
        // Its task may be dropped later.
        let mut inbox = lock(&self.inbox);
        let unread = inbox.held.len() + inbox.handed.take().map_or(0, |handed| handed.len());
        inbox.release(unread);
        inbox.frames = None;
        inbox.held.take();
        inbox.reader = None;
    }
}
