//! The response body, whether from HTTP/1.1, HTTP/2, a service in this process, or memory.

use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, HeaderMap};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tower::BoxError;

use super::ahead::ReadAhead;
use super::{Endpoint, h1, h2};
use crate::http1::{ChunkError, with_trailers};
use crate::memory::Budget;
use crate::transport::h2::Http2Error;

/// Why a response body ended early.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the connection broke")]
    Broken(#[source] std::io::Error),
    #[error("the body's framing is malformed")]
    Malformed(#[source] ChunkError),
    #[error("the memory budget is exhausted")]
    NoMemory,
    #[error("the HTTP/2 stream broke")]
    Http2(#[source] Http2Error),
    #[error("the service in this process ended the body early")]
    Local(#[source] BoxError),
}

impl BodyError {
    /// A description for clients. The operating system's error text is only logged.
    #[must_use]
    pub fn client_message(&self) -> &'static str {
        match self {
            Self::Broken(source) => match source.kind() {
                ErrorKind::ConnectionReset => "connection reset",
                ErrorKind::UnexpectedEof => "connection closed early",
                ErrorKind::TimedOut => "connection timed out",
                _ => "connection broken",
            },
            Self::Malformed(_) => "malformed framing",
            Self::NoMemory => "not enough memory",
            Self::Http2(_) => "HTTP/2 error",
            Self::Local(_) => "the service failed",
        }
    }
}

/// A response body. Reading it reads from the model server's connection directly, without a task in between.
pub enum UpstreamBody {
    /// Complete in memory.
    Whole(Bytes),
    /// Bytes that were already read, then the rest of the body.
    Begun(Bytes, Box<UpstreamBody>),
    /// Read in advance.
    Ahead(Box<ReadAhead>),
    // Both in a box, because a response is moved through many futures.
    Http1(Box<h1::Incoming>),
    Http2(Box<h2::Incoming>),
    /// From a service in this process.
    Local(UnsyncBoxBody<Bytes, BoxError>),
}

/// The server that sent a response whose body holds no connection. Passed in the extensions of the response.
#[derive(Clone)]
pub struct AnsweredBy(pub Arc<Endpoint>);

/// The endpoint that sent a response, if it is known.
#[must_use]
pub fn sender<'a>(extensions: &'a Extensions, body: &'a UpstreamBody) -> Option<&'a Arc<Endpoint>> {
    let named = || {
        extensions
            .get::<AnsweredBy>()
            .map(|AnsweredBy(endpoint)| endpoint)
    };
    body.endpoint().or_else(named)
}

impl UpstreamBody {
    #[must_use]
    pub const fn empty() -> Self {
        Self::Whole(Bytes::new())
    }

    /// A body that was already read to its end.
    #[must_use]
    pub fn read(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        match trailers {
            None => Self::Whole(bytes),
            Some(trailers) => Self::Local(with_trailers(bytes, trailers).boxed_unsync()),
        }
    }

    /// The endpoint that sends the body, while its connection is held.
    #[must_use]
    pub fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        match self {
            Self::Http1(incoming) => incoming.endpoint(),
            Self::Http2(incoming) => incoming.endpoint(),
            Self::Begun(_, rest) => rest.endpoint(),
            Self::Ahead(ahead) => ahead.rest().endpoint(),
            Self::Whole(_) | Self::Local(_) => None,
        }
    }

    /// Whether the body ends when the connection closes. If so, a crash of the server looks like a complete body.
    #[must_use]
    pub fn ends_with_connection(&self) -> bool {
        match self {
            Self::Http1(incoming) => incoming.ends_with_connection(),
            Self::Ahead(ahead) => ahead.rest().ends_with_connection(),
            _ => false,
        }
    }

    /// When `poll_frame` returned `Pending`: has data been read that the next poll will return?
    #[must_use]
    pub fn holds_back(&self) -> bool {
        match self {
            Self::Http1(incoming) => incoming.holds_back(),
            Self::Ahead(ahead) => ahead.rest().holds_back(),
            _ => false,
        }
    }

    /// Call this while the response is not being read: it continues to send the request and buffers arriving HTTP/2 frames.
    pub fn poll_unread(&mut self, cx: &mut Context<'_>) {
        match self {
            Self::Http1(incoming) => incoming.poll_request(cx),
            Self::Http2(incoming) => incoming.poll_hold(cx),
            Self::Begun(_, rest) => rest.poll_unread(cx),
            Self::Ahead(ahead) => ahead.rest_mut().poll_unread(cx),
            _ => {}
        }
    }

    /// Limits reads over HTTP/1.1 to small pieces, for when memory is tight.
    pub fn read_little(&mut self, little: bool) {
        match self {
            Self::Http1(incoming) => incoming.read_little(little),
            Self::Ahead(ahead) => ahead.rest_mut().read_little(little),
            _ => {}
        }
    }

    /// Reads the body in advance, within limits, and keeps the data. Ready once the body has ended.
    pub fn poll_end(&mut self, cx: &mut Context<'_>, memory: &Arc<Budget>) -> Poll<()> {
        if let Self::Ahead(ahead) = self {
            return ahead.poll_end(cx, memory);
        }
        let mut ahead = Box::new(ReadAhead::of(std::mem::replace(self, Self::empty())));
        let ended = ahead.poll_end(cx, memory);
        *self = Self::Ahead(ahead);
        ended
    }

    /// Reports that the last slice of an event stream arrived `gap` after the previous one.
    pub fn paced(&mut self, gap: Duration) {
        match self {
            Self::Http1(incoming) => incoming.paced(gap),
            Self::Ahead(ahead) => ahead.rest_mut().paced(gap),
            _ => {}
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Begun(bytes, rest) => {
                if bytes.is_empty() {
                    return Pin::new(&mut **rest).poll_frame(cx);
                }
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
            Self::Ahead(ahead) => ahead.poll_frame(cx),
            Self::Http1(incoming) => incoming.poll_frame(cx),
            Self::Http2(incoming) => {
                let frame = ready!(incoming.poll_frame(cx));
                Poll::Ready(
                    frame.map(|frame| frame.map_err(|error| BodyError::Http2(error.into()))),
                )
            }
            Self::Local(body) => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Local)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Begun(bytes, rest) => bytes.is_empty() && rest.is_end_stream(),
            Self::Ahead(ahead) => ahead.is_end_stream(),
            Self::Http1(incoming) => incoming.is_end_stream(),
            Self::Http2(incoming) => incoming.is_end_stream(),
            Self::Local(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Begun(..) | Self::Ahead(_) => SizeHint::default(),
            Self::Http1(incoming) => incoming.size_hint(),
            Self::Http2(incoming) => incoming.size_hint(),
            Self::Local(body) => body.size_hint(),
        }
    }
}
