//! The body of an answer over HTTP/1.1, read from its connection as it is asked for.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::sender::Sender;
use crate::http1::{Chunked, Framing};
use crate::transport::{MIN_READ, Transport, turn};
use crate::upstream::acks::Acks;
use crate::upstream::endpoint::Lease;
use crate::upstream::{BodyError, idle};

/// From this length on, in bytes, a slice does not wait for those of other streams: what many such hold would fall out of the
/// processor's cache before it is written. No read has room for less.
const LARGE: usize = MIN_READ;

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
    /// Something was handed on: what is first goes out with the head, and never waits.
    begun: bool,
    /// A slice has just waited for others, or was too large to: one that is there already is not to, lest it miss the same
    /// write.
    has_waited: bool,
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
            has_waited: false,
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
                let polled = link.transport.poll_read_shared(cx);
                let may_wait = self.begun && !std::mem::take(&mut self.has_waited);
                match ready!(polled) {
                    Ok(bytes) if may_wait && !bytes.is_empty() => {
                        let large = bytes.len() >= LARGE;
                        if turn::slice_waits(cx, large) {
                            self.rest = bytes;
                            return Poll::Pending;
                        }
                        self.has_waited = large;
                        Ok(bytes)
                    }
                    read => read.map_err(BodyError::Broken),
                }
            } else {
                if self.begun {
                    self.has_waited = true;
                    turn::slice_waited();
                }
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

    /// The next slice, and how often it was held back before. What is held back is followed by `more` of the server.
    async fn next(
        incoming: &mut Incoming,
        server: &TcpStream,
        more: &'static str,
    ) -> (Option<Bytes>, u32) {
        turn::tests::many_slices();
        let mut held = 0;
        let frame = std::future::poll_fn(|cx| {
            let polled = incoming.poll_frame(cx);
            if incoming.holds_back() {
                held += 1;
                server.try_write(more.as_bytes()).expect("written");
            }
            polled
        });
        let frame = frame.await.transpose().expect("the body is whole");
        (frame.and_then(|frame| frame.into_data().ok()), held)
    }

    #[tokio::test]
    async fn what_came_while_a_slice_waited_for_others_does_not_wait() {
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
        let large = "x".repeat(LARGE);
        // What is no task of its own is polled after each look at the sockets anyway.
        let done = tokio::spawn(async move {
            for (written, more, comes, held) in [
                ("first", "", "first", 0),
                ("second", "third", "second", 1),
                ("", "", "third", 0),
                ("fourth", "", "fourth", 1),
                ("fifth", "", "fifth", 1),
                (&large[1..], "", &large[1..], 1),
                (&large, "", &large, 0),
                ("sixth", "", "sixth", 1),
            ] {
                server.write_all(written.as_bytes()).await.expect("written");
                let next = next(&mut incoming, &server, more).await;
                assert_eq!(next, (Some(comes.to_owned().into()), held));
            }
            server.shutdown().await.expect("ended");
            assert_eq!(next(&mut incoming, &server, "").await, (None, 0));
        });
        done.await.expect("all as expected");
    }
}
