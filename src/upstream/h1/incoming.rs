//! The body of an answer over HTTP/1.1, read from its connection as it is asked for.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::sender::Sender;
use crate::http1::{Chunked, Framing};
use crate::memory::FREE;
use crate::transport::{MIN_READ, Transport, batching};
use crate::upstream::endpoint::Lease;
use crate::upstream::quick_ack::QuickAck;
use crate::upstream::{BodyError, Endpoint, idle};

/// From this length on, in bytes, a slice does not wait for those of other streams: what many such hold would fall out of the
/// processor's cache before it is written. No read has room for less.
const LARGE: usize = MIN_READ;

/// What is read before others have their turn, in bytes, where a server sends as fast as it is read. A client that leaves is
/// noticed in between.
const AT_ONCE: usize = 256 * 1024;
/// What a read counts at least, in bytes.
const LEAST: usize = 8 * 1024;

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
    /// Bytes that were read since this last waited.
    at_once: usize,
    trailers: Option<Box<HeaderMap>>,
    keep_alive: bool,
    until_close: bool,
    link: Option<Link>,
    /// What is still to be sent of the request while the answer is coming.
    sender: Option<Box<Sender>>,
    /// The request could not be sent to its end.
    unsent: bool,
    acks: QuickAck,
    /// Memory is tight: it is read in small pieces.
    little: bool,
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
            at_once: 0,
            trailers: None,
            link: Some(Link { transport, lease }),
            sender: (!sender.is_done()).then(|| Box::new(sender)),
            unsent: false,
            acks: QuickAck::default(),
            little: false,
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
            send_on(&mut self.sender, &mut self.unsent, &mut link.transport, cx);
            let bytes = if self.rest.is_empty() {
                if self.at_once >= AT_ONCE {
                    self.at_once = 0;
                    batching::wake_after_poll(cx);
                    return Poll::Pending;
                }
                let polled = match self.little {
                    true => link.transport.poll_read_apart(cx, FREE),
                    false => link.transport.poll_read_shared(cx),
                };
                let may_wait = self.begun && !std::mem::take(&mut self.has_waited);
                let Poll::Ready(read) = polled else {
                    self.at_once = 0;
                    return Poll::Pending;
                };
                self.at_once += read.as_ref().map_or(0, |bytes| bytes.len().max(LEAST));
                match read {
                    Ok(bytes) if may_wait && !bytes.is_empty() => {
                        let large = bytes.len() >= LARGE;
                        if batching::should_defer_slice(cx, large) {
                            self.rest = bytes;
                            self.at_once = 0;
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
                    batching::slice_resumed();
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

    /// Goes on sending the request, while nobody reads the answer: a client may read only when it has sent all.
    pub(in crate::upstream) fn poll_request(&mut self, cx: &mut Context<'_>) {
        if let Some(link) = &mut self.link {
            send_on(&mut self.sender, &mut self.unsent, &mut link.transport, cx);
        }
    }

    pub(in crate::upstream) fn read_little(&mut self, little: bool) {
        self.little = little;
    }

    /// The endpoint, while its connection is held.
    pub(in crate::upstream) fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        self.link.as_ref().map(|link| &*link.lease)
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
            // The failed write took the reset from the socket, of which this end is what is left.
            Reading::UntilClose if eof && self.unsent => {
                return Err(BodyError::Broken(io::ErrorKind::ConnectionReset.into()));
            }
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
                let more = decoded.consumed < bytes.len();
                let surplus = more && chunked.is_done();
                if more && !surplus {
                    // An error, which is told once what came before it is forwarded.
                    self.rest = bytes.split_off(decoded.consumed);
                }
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
            self.unsent |= !sender.is_done();
        }
        let Some(link) = self.link.take() else {
            return;
        };
        self.acks.ended(link.transport.socket(), &link.lease.trials);
        if self.keep_alive && !self.unsent && self.rest.is_empty() {
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

/// Writes what can be written of the request, and notes if its end cannot be.
fn send_on(
    sender: &mut Option<Box<Sender>>,
    unsent: &mut bool,
    transport: &mut Transport,
    cx: &mut Context<'_>,
) {
    if let Some(sending) = sender
        && sending.poll(transport, cx).is_ready()
    {
        *unsent |= !sending.is_done();
        *sender = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::request_body::RequestBody;

    /// An answer that lasts until its connection ends, and the server's side of that.
    async fn until_close(sender: Sender) -> (Incoming, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let transport = TcpStream::connect(address).await.expect("a connection");
        let (server, _) = listener.accept().await.expect("a connection");
        let incoming = Incoming::new(
            Framing::UntilClose,
            false,
            BytesMut::new(),
            Transport::Tcp(transport),
            Lease::new(Arc::new(Endpoint::new(address, None, false))),
            sender,
        );
        (incoming, server)
    }

    /// The next slice, and how often it was held back before. What is held back is followed by `more` of the server.
    async fn next(
        incoming: &mut Incoming,
        server: &TcpStream,
        more: &'static str,
    ) -> (Option<Bytes>, u32) {
        batching::tests::many_slices();
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
    async fn an_answer_that_ends_by_a_reset_which_a_write_met_first_is_not_whole() {
        let body = RequestBody::whole(Bytes::from_static(b"what is left of the request"));
        let sender = Sender::new(0, Bytes::new(), Some(body), Framing::Chunked, false);
        let (mut incoming, server) = until_close(sender).await;
        server.set_zero_linger().expect("set");
        drop(server);
        let end = std::future::poll_fn(|cx| incoming.poll_frame(cx)).await;
        assert!(matches!(end, Some(Err(_))), "{end:?}");
    }

    #[tokio::test]
    async fn what_came_while_a_slice_waited_for_others_does_not_wait() {
        let sender = Sender::new(0, Bytes::new(), None, Framing::None, false);
        let (mut incoming, mut server) = until_close(sender).await;
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
