//! The response body over HTTP/1.1, read from its connection on demand.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::sender::Sender;
use crate::http1::{Chunked, Framing, decoding_work};
use crate::memory::{Budget, FREE};
use crate::transport::allowance::Allowance;
use crate::transport::{MIN_READ, Transport, batching};
use crate::upstream::endpoint::InFlight;
use crate::upstream::kept::Connection;
use crate::upstream::quick_ack::QuickAck;
use crate::upstream::{BodyError, Endpoint, idle};

/// Slices of at least this length, in bytes, are not deferred to be batched with those of other streams: many large deferred
/// slices would be evicted from the processor's cache before they are written. Reads into the shared buffer always have room
/// for at least this much.
const LARGE: usize = MIN_READ;

/// Bytes to read before the thread polls its sockets again, for a server that sends as fast as the proxy reads. A disconnect of
/// the client is noticed in between.
const AT_ONCE: usize = 256 * 1024;
/// Each read counts as at least this many bytes.
const LEAST: usize = 8 * 1024;

struct Link {
    transport: Transport,
    in_flight: InFlight,
}

#[derive(Debug)]
enum Reading {
    Length(u64),
    Chunked(Chunked, Arc<Budget>),
    UntilClose,
    Done,
}

/// The response body over HTTP/1.1. Dropping it before its end closes the connection, which cancels the request.
pub struct Incoming {
    framing: Reading,
    /// Data that was read together with the head, or a deferred slice.
    rest: BytesMut,
    /// Whether any data was passed on. The first slice goes out with the head and is never deferred.
    begun: bool,
    /// Whether the last slice was deferred, or too large to be deferred. A slice that is already available is not deferred, so
    /// that it can be part of the same write.
    has_waited: bool,
    allowance: Allowance,
    trailers: Option<Box<HeaderMap>>,
    keep_alive: bool,
    until_close: bool,
    link: Option<Link>,
    /// The rest of the request, while it is being sent during the response.
    sender: Option<Box<Sender>>,
    /// Whether sending the request failed before its end.
    unsent: bool,
    acks: QuickAck,
    /// Whether to read in small pieces, because memory is tight.
    little: bool,
}

impl Incoming {
    /// The body of the response to the request that `sender` sends, framed according to the response head. `rest` was read with
    /// the head. Trailers are charged to `memory`.
    pub(super) fn new(
        framing: Framing,
        keep_alive: bool,
        mut rest: BytesMut,
        transport: Transport,
        in_flight: InFlight,
        sender: Sender,
        memory: &Arc<Budget>,
    ) -> Self {
        if rest.is_empty() {
            // Even an empty slice keeps its buffer alive.
            rest = BytesMut::new();
        }
        let mut incoming = Self {
            keep_alive,
            until_close: framing == Framing::UntilClose,
            framing: match framing {
                Framing::None => Reading::Done,
                Framing::Length(left) => Reading::Length(left),
                Framing::Chunked => Reading::Chunked(Chunked::default(), Arc::clone(memory)),
                Framing::UntilClose => Reading::UntilClose,
            },
            rest,
            begun: false,
            has_waited: false,
            allowance: Allowance::default(),
            trailers: None,
            link: Some(Link {
                transport,
                in_flight,
            }),
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
                ready!(self.allowance.poll(cx, AT_ONCE));
                let polled = match self.little {
                    true => link.transport.poll_read_apart(cx, FREE),
                    false => link.transport.poll_read_shared(cx),
                };
                let may_wait = self.begun && !std::mem::take(&mut self.has_waited);
                let Poll::Ready(read) = polled else {
                    self.allowance.renew();
                    return Poll::Pending;
                };
                self.allowance
                    .spend(read.as_ref().map_or(0, |bytes| bytes.len().max(LEAST)));
                match read {
                    Ok(bytes) if may_wait && !bytes.is_empty() => {
                        let large = bytes.len() >= LARGE;
                        if batching::should_defer_slice(cx, large) {
                            self.rest = bytes;
                            self.allowance.renew();
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

    /// Continues to send the request while the response is not being read: a client may not read before it has sent everything.
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
        self.link.as_ref().map(|link| &*link.in_flight)
    }

    /// Reports that the last slice arrived `gap` after the previous one.
    pub(in crate::upstream) fn paced(&mut self, gap: Duration) {
        if let Some(Link {
            transport,
            in_flight,
        }) = &self.link
        {
            self.acks
                .read(gap, transport.socket(), &in_flight.delay_tests);
        }
    }

    /// Extracts the payload from `bytes`. At the end of the body this returns the connection to the idle pool.
    fn take_in(&mut self, mut bytes: BytesMut) -> Result<Bytes, BodyError> {
        let eof = bytes.is_empty();
        let surplus = match &mut self.framing {
            // The failed write consumed the reset from the socket, so the read sees a plain end.
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
            Reading::Chunked(chunked, memory) => {
                let decoded = chunked.decode(&mut bytes).map_err(BodyError::Malformed)?;
                let framing = decoded.consumed - decoded.payload.len();
                self.allowance.spend(decoding_work(framing, 0));
                let more = decoded.consumed < bytes.len();
                let surplus = more && chunked.is_done();
                if more && !surplus {
                    // A framing error follows. It is reported after the payload before it has been forwarded.
                    self.rest = bytes.split_off(decoded.consumed);
                }
                bytes.truncate(decoded.payload.end);
                bytes.advance(decoded.payload.start);
                if !chunked.charge_trailers(memory) {
                    return Err(BodyError::NoMemory);
                }
                if chunked.is_done() {
                    self.trailers = chunked.take_trailers().map(Box::new);
                    self.framing = Reading::Done;
                }
                surplus
            }
            Reading::UntilClose | Reading::Done => false,
        };
        // Bytes after the end belong to no response. Do not reuse such a connection.
        self.keep_alive &= !surplus;
        if matches!(self.framing, Reading::Done) {
            self.release();
        }
        Ok(bytes.freeze())
    }

    /// Returns the connection to the idle pool, or to the slot of its exchange, if it can be reused, and ends the exchange.
    fn release(&mut self) {
        if let Some(sender) = self.sender.take() {
            self.unsent |= !sender.is_done();
        }
        let Some(mut link) = self.link.take() else {
            return;
        };
        self.acks
            .ended(link.transport.socket(), &link.in_flight.delay_tests);
        if self.keep_alive && !self.unsent && self.rest.is_empty() {
            match link.in_flight.slot.take() {
                None => idle::put(&link.in_flight, link.transport, Instant::now()),
                Some(slot) => slot.put(Connection::Http1(link.transport), link.in_flight.life),
            }
        }
    }

    /// Whether there is a slice that was read and deferred.
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

/// Writes what can be written of the request, and sets `unsent` if the rest cannot be sent.
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
    use crate::transport::allowance::tests::{polls_of_the_sockets, sends_at_once};

    /// A response that ends when its connection closes, and the server's end of the connection.
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
            InFlight::new(Arc::new(Endpoint::new(address, None, false))),
            sender,
            &Budget::new(usize::MAX),
        );
        (incoming, server)
    }

    /// The next slice, and how many times it was deferred. Whenever a slice is deferred the server sends `more`.
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
    async fn a_response_ended_by_a_reset_that_a_write_saw_first_is_incomplete() {
        let body = RequestBody::whole(Bytes::from_static(b"what is left of the request"));
        let sender = Sender::new(0, Bytes::new(), Some(body), Framing::Chunked, false);
        let (mut incoming, server) = until_close(sender).await;
        server.set_zero_linger().expect("set");
        drop(server);
        let end = std::future::poll_fn(|cx| incoming.poll_frame(cx)).await;
        assert!(matches!(end, Some(Err(_))), "{end:?}");
    }

    #[test]
    fn a_server_that_sends_tiny_chunks_lets_the_thread_poll_its_sockets() {
        let mut incoming = None;
        let mut left = 256 * 1024;
        let mut connection = Some(sends_at_once(b"1\r\nx\r\n".repeat(left)));
        let polls = polls_of_the_sockets(move |cx| {
            let incoming = incoming.get_or_insert_with(|| {
                Incoming::new(
                    Framing::Chunked,
                    false,
                    BytesMut::new(),
                    connection.take().expect("taken once").transport(),
                    InFlight::new(Arc::new(Endpoint::new(
                        ([127, 0, 0, 1], 1).into(),
                        None,
                        false,
                    ))),
                    Sender::new(0, Bytes::new(), None, Framing::None, false),
                    &Budget::new(usize::MAX),
                )
            });
            while left > 0 {
                let frame = ready!(incoming.poll_frame(cx)).expect("more follows");
                let data = frame.expect("it is whole").into_data();
                left -= data.expect("no trailers").len();
            }
            Poll::Ready(())
        });
        // One for each read buffer.
        assert!(polls >= 20, "{polls}");
    }

    #[tokio::test]
    async fn a_slice_that_arrives_during_a_wait_does_not_wait_again() {
        let sender = Sender::new(0, Bytes::new(), None, Framing::None, false);
        let (mut incoming, mut server) = until_close(sender).await;
        let large = "x".repeat(LARGE);
        // Spawned as a task: the future that the runtime blocks on is polled after each poll of the sockets anyway.
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
