//! The body of a stream, read directly, without a task in between. A reader that is stuck calls [`Received::poll_hold`], so
//! that arriving data does not wait in frames.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::announced;
use super::frame_buffer::FrameBuffer;
use super::frames::{Broken, End, Frames, Next};
use super::traffic::Traffic;
use crate::memory::{Budget, Purpose};

pub struct Received {
    /// `None` once its end was returned.
    frames: Option<Frames>,
    held: FrameBuffer,
    /// How it ended after what is held.
    end: Option<End>,
    /// Bytes that are still to come, [`UNKNOWN`] if the head did not say. Not an `Option`, which would be larger: each open stream has
    /// one.
    left: u64,
}

const UNKNOWN: u64 = u64::MAX;

impl Received {
    /// The body of a message with these fields, from a connection with this traffic. Its buffered part is charged to `memory`.
    #[must_use]
    pub fn new(
        stream: RecvStream,
        traffic: Arc<Traffic>,
        headers: &HeaderMap,
        memory: &Arc<Budget>,
        purpose: Purpose,
    ) -> Self {
        Self {
            frames: Some(Frames::new(stream, traffic)),
            held: FrameBuffer::new(memory, purpose),
            end: None,
            left: announced(headers).unwrap_or(UNKNOWN),
        }
    }

    /// The body of a message that has none, whatever its sender may send.
    #[must_use]
    pub fn empty(memory: &Arc<Budget>, purpose: Purpose) -> Self {
        Self {
            frames: None,
            held: FrameBuffer::new(memory, purpose),
            end: Some(Ok(None)),
            left: 0,
        }
    }

    /// Takes what has arrived while the reader is stuck. The window shrinks by as much.
    pub fn poll_hold(&mut self, cx: &mut Context<'_>) {
        while self.end.is_none()
            && let Some(frames) = &mut self.frames
        {
            match frames.poll(cx) {
                Poll::Pending => return,
                Poll::Ready(Next::Data(data)) => {
                    if !self.held.push(&data) {
                        self.frames = None;
                        self.end = Some(Err(Broken::NoMemory));
                    }
                }
                Poll::Ready(Next::End(end)) => self.end = Some(self.held.charged(end)),
            }
        }
    }

    fn hand_on(&mut self, data: Bytes) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(frames) = &mut self.frames {
            frames.release(data.len());
        }
        let length = data.len() as u64;
        if self.left != UNKNOWN {
            self.left = self.left.saturating_sub(length);
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        if !this.held.is_empty() {
            let data = this.held.take();
            return this.hand_on(data);
        }
        if this.end.is_none()
            && let Some(frames) = &mut this.frames
        {
            match ready!(frames.poll(cx)) {
                Next::Data(data) => return this.hand_on(data),
                Next::End(end) => this.end = Some(end),
            }
        }
        this.frames = None;
        match this.end.replace(Ok(None)) {
            Some(Ok(Some(trailers))) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            Some(Ok(None)) | None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_end = match &self.end {
            Some(end) => matches!(end, Ok(None)),
            None => self.frames.as_ref().is_some_and(Frames::is_end),
        };
        self.held.is_empty() && is_end
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            _ if self.is_end_stream() => SizeHint::with_exact(0),
            UNKNOWN => SizeHint::default(),
            left => SizeHint::with_exact(left),
        }
    }
}
