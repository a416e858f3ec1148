//! The frames of a received stream. Only END_STREAM ends it: a reset with any code is an error, and so is a length other than
//! the announced one (h2 checks that).

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::HeaderMap;

use super::traffic::Traffic;

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error(transparent)]
    Stream(#[from] h2::Error),
    /// The memory budget has no room for unread data.
    #[error("the memory budget is exhausted")]
    NoMemory,
    #[error("there are too many trailer fields")]
    Trailers,
}

impl From<Broken> for h2::Error {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Stream(error) => error,
            Broken::NoMemory | Broken::Trailers => Reason::ENHANCE_YOUR_CALM.into(),
        }
    }
}

/// Maximum number of trailer fields, as over HTTP/1.1.
const MAX_TRAILERS: usize = 128;

/// The end of a body: with trailers, without, or incomplete.
pub type End = Result<Option<HeaderMap>, Broken>;

/// The next part.
pub enum Next {
    /// Bytes. The window shrinks by as much until [`Frames::release`].
    Data(Bytes),
    End(End),
}

pub struct Frames {
    stream: RecvStream,
    traffic: Arc<Traffic>,
    data_ended: bool,
}

impl Frames {
    /// `traffic` is that of the connection.
    pub fn new(stream: RecvStream, traffic: Arc<Traffic>) -> Self {
        Self {
            stream,
            traffic,
            data_ended: false,
        }
    }

    /// Whether everything has been read, with nothing but END_STREAM after it.
    pub fn is_end(&self) -> bool {
        self.stream.is_end_stream()
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        while !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    self.traffic.read(&data);
                    return Poll::Ready(Next::Data(data));
                }
                Some(Err(error)) => return Poll::Ready(Next::End(Err(error.into()))),
                None => self.data_ended = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(cx));
        Poll::Ready(Next::End(match trailers {
            Ok(Some(trailers)) if trailers.len() > MAX_TRAILERS => Err(Broken::Trailers),
            trailers => trailers.map_err(Broken::Stream),
        }))
    }

    /// Opens the window again after a read.
    pub fn release(&mut self, bytes: usize) {
        // It was received, so it can be released.
        let _ = self.stream.flow_control().release_capacity(bytes);
    }
}
