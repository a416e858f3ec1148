//! The frames of a stream that is received. It ends only by END_STREAM: a reset of any code is an error, as is a length other
//! than the one announced (h2 checks that).

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::HeaderMap;

/// Why a body breaks off.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error(transparent)]
    Stream(#[from] h2::Error),
    /// The memory budget has no room for what has come and was not read.
    #[error("too much memory is in use here")]
    NoMemory,
}

impl From<Broken> for h2::Error {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Stream(error) => error,
            Broken::NoMemory => Reason::ENHANCE_YOUR_CALM.into(),
        }
    }
}

/// How a body ended: with trailers, without, or not as a whole.
pub type End = Result<Option<HeaderMap>, Broken>;

/// What comes next.
pub enum Next {
    /// Some bytes; the window stays shut by as much until [`Frames::release`].
    Data(Bytes),
    End(End),
}

pub struct Frames {
    stream: RecvStream,
    data_ended: bool,
}

impl Frames {
    pub fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            data_ended: false,
        }
    }

    /// Has all of it been read, with nothing but END_STREAM behind it?
    pub fn is_end(&self) -> bool {
        self.stream.is_end_stream()
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        while !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => return Poll::Ready(Next::Data(data)),
                Some(Err(error)) => return Poll::Ready(Next::End(Err(error.into()))),
                None => self.data_ended = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(cx));
        Poll::Ready(Next::End(trailers.map_err(Broken::Stream)))
    }

    /// Opens the window for as much as was read.
    pub fn release(&mut self, bytes: usize) {
        // It was received, so it can be released.
        let _ = self.stream.flow_control().release_capacity(bytes);
    }
}
