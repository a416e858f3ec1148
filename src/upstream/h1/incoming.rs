//! The body of an answer over HTTP/1.1, read from its connection as it is asked for.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::sender::Sender;
use crate::http1::{Chunked, Framing};
use crate::transport::{Transport, turn};
use crate::upstream::acks::Acks;
use crate::upstream::endpoint::Lease;
use crate::upstream::{BodyError, idle};

struct Link {
    transport: Transport,
    lease: Lease,
}

#[derive(Debug)]
enum Reading {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    Done,
}

/// The body of an answer over HTTP/1.1. Dropped before its end it closes the connection, which cancels the request.
pub struct Incoming {
    framing: Reading,
    /// What was read together with the head, or waits until others were read.
    rest: BytesMut,
    begun: bool,
    trailers: Option<Box<HeaderMap>>,
    keep_alive: bool,
    until_close: bool,
    link: Option<Link>,
    /// What is still to be sent of the request while the answer is coming.
    sender: Option<Box<Sender>>,
    acks: Acks,
}

impl Incoming {
    /// The body of the answer to what `sender` sends, framed as its head says, of which `rest` was read already.
    pub(super) fn new(
        framing: Framing,
        keep_alive: bool,
        rest: BytesMut,
        transport: Transport,
        lease: Lease,
        sender: Sender,
    ) -> Self {
        let mut incoming = Self {
            keep_alive,
            until_close: framing == Framing::UntilClose,
            framing: match framing {
                Framing::None => Reading::Done,
                Framing::Length(left) => Reading::Length(left),
                Framing::Chunked => Reading::Chunked(Chunked::default()),
                Framing::UntilClose => Reading::UntilClose,
            },
            rest,
            begun: false,
            trailers: None,
            link: Some(Link { transport, lease }),
            sender: (!sender.is_done()).then(|| Box::new(sender)),
            acks: Acks::default(),
        };
        if matches!(incoming.framing, Reading::Done) {
            incoming.release();
        }
        incoming
    }

    pub(in crate::upstream) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if let Some(trailers) = self.trailers.take() {
                return Poll::Ready(Some(Ok(Frame::trailers(*trailers))));
            }
            let Some(link) = &mut self.link else {
                return Poll::Ready(None);
            };
            if let Some(sender) = &mut self.sender
                && sender.poll(&mut link.transport, cx).is_ready()
            {
                self.keep_alive &= sender.is_done();
                self.sender = None;
            }
            let bytes = if self.rest.is_empty() {
                match ready!(link.transport.poll_read_shared(cx)) {
                    // The first goes out with the head.
                    Ok(bytes) if self.begun && !bytes.is_empty() && turn::slice_waits() => {
                        self.rest = bytes;
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    read => read.map_err(BodyError::Broken),
                }
            } else {
                Ok(std::mem::take(&mut self.rest))
            };
            self.begun = true;
            match bytes.and_then(|bytes| self.take_in(bytes)) {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(error) => {
                    self.link = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    /// The last slice came `gap` after the one before.
    pub(in crate::upstream) fn paced(&mut self, gap: Duration) {
        if let Some(Link { transport, lease }) = &self.link {
            self.acks.read(gap, transport.socket(), &lease.trials);
        }
    }

    /// What of `bytes` is payload. Ends the body, and gives the connection back, when it is complete.
    fn take_in(&mut self, mut bytes: BytesMut) -> Result<Bytes, BodyError> {
        let eof = bytes.is_empty();
        let surplus = match &mut self.framing {
            Reading::UntilClose if eof => {
                self.framing = Reading::Done;
                false
            }
            _ if eof => return Err(BodyError::Broken(io::ErrorKind::UnexpectedEof.into())),
            Reading::Length(left) => {
                let here = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                let surplus = here < bytes.len();
                bytes.truncate(here);
                *left -= here as u64;
                if *left == 0 {
                    self.framing = Reading::Done;
                }
                surplus
            }
            Reading::Chunked(chunked) => {
                let decoded = chunked.decode(&mut bytes).map_err(BodyError::Malformed)?;
                let surplus = decoded.consumed < bytes.len();
                bytes.truncate(decoded.payload.end);
                bytes.advance(decoded.payload.start);
                if chunked.is_done() {
                    self.trailers = chunked.take_trailers().map(Box::new);
                    self.framing = Reading::Done;
                }
                surplus
            }
            Reading::UntilClose | Reading::Done => false,
        };
        // Bytes behind the end are nobody's answer: such a connection is not used again.
        self.keep_alive &= !surplus;
        if matches!(self.framing, Reading::Done) {
            self.release();
        }
        Ok(bytes.freeze())
    }

    /// Gives the connection back if it may carry another request, and ends the lease.
    fn release(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.keep_alive &= sender.is_done();
        }
        let Some(link) = self.link.take() else {
            return;
        };
        self.acks.ended(link.transport.socket(), &link.lease.trials);
        if self.keep_alive && self.rest.is_empty() {
            idle::put(&link.lease, link.transport, Instant::now());
        }
    }

    /// Is there something that was read and waits until others were read?
    pub(in crate::upstream) fn holds_back(&self) -> bool {
        self.begun && !self.rest.is_empty()
    }

    pub(in crate::upstream) fn ends_with_connection(&self) -> bool {
        self.until_close
    }

    pub(in crate::upstream) fn is_end_stream(&self) -> bool {
        self.link.is_none() && self.trailers.is_none()
    }

    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        match &self.framing {
            Reading::Length(left) => SizeHint::with_exact(*left),
            Reading::Done => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::upstream::endpoint::Endpoint;

    /// The next slice, and how often it was held back before.
    async fn next(incoming: &mut Incoming) -> (Option<Bytes>, u32) {
        let mut held = 0;
        let frame = std::future::poll_fn(|cx| {
            let polled = incoming.poll_frame(cx);
            held += u32::from(incoming.holds_back());
            polled
        });
        let frame = frame.await.transpose().expect("the body is whole");
        (frame.and_then(|frame| frame.into_data().ok()), held)
    }

    #[tokio::test]
    async fn a_slice_that_waits_for_others_comes_with_the_next_poll() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let transport = TcpStream::connect(address).await.expect("a connection");
        let (mut server, _) = listener.accept().await.expect("a connection");
        let sender = Sender {
            pending: std::collections::VecDeque::new(),
            body: None,
            chunked: false,
            broken: None,
            abandoned: false,
        };
        let mut incoming = Incoming::new(
            Framing::UntilClose,
            false,
            BytesMut::new(),
            Transport::Tcp(transport),
            Lease::new(Arc::new(Endpoint::new(address, None, false))),
            sender,
        );
        for _ in 0..9 {
            turn::slice_waits();
        }
        turn::end();
        for (slice, held) in [("first", 0), ("second", 1), ("third", 1)] {
            server.write_all(slice.as_bytes()).await.expect("written");
            assert_eq!(next(&mut incoming).await, (Some(slice.into()), held));
        }
        drop(server);
        assert_eq!(next(&mut incoming).await, (None, 0));
    }
}
