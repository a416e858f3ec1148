//! The parts of HTTP/2 that both sides of the proxy need: the two directions of a stream as bodies, and detection of dead peers.
//!
//! Hyper's bodies treat a reset without an error as the end of the body. RFC 9113 §8.1 allows such a reset only after a
//! complete response, but it is also sent when a server behind a gateway has died.

mod counted;
mod error;
mod frame_buffer;
mod frame_tracker;
mod frames;
mod overhead;
mod queue;
mod received;
mod sent_data;
mod spooled;
mod traffic;
mod window;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::{Ping, PingPong, Reason, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue};
use http_body::Body;
use tokio::time::{Instant, Sleep};

use self::queue::Queue;
use crate::memory::{Budget, Charge, FREE, Purpose, fields_size, holding_cost};

pub use self::counted::CountedTransport;
pub use self::error::Http2Error;
pub use self::frame_tracker::PREFACE;
pub use self::frames::Broken;
pub use self::overhead::SMALL_FRAMES;
pub use self::received::Received;
pub use self::spooled::Spooled;
pub use self::traffic::Traffic;
pub use self::window::Window;

/// Fields that belong to a connection of HTTP/1.1 and make an HTTP/2 message malformed (RFC 9113 §8.2.2).
const CONNECTION_FIELDS: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Removes what an HTTP/2 message must not have, and adds the length of `body` if known.
pub fn prepare(headers: &mut HeaderMap, body: &impl Body) {
    for name in &CONNECTION_FIELDS {
        headers.remove(name);
    }
    if let Some(length) = body.size_hint().exact()
        && !body.is_end_stream()
        && !headers.contains_key(CONTENT_LENGTH)
    {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// What a field costs besides its name and value, in bytes as RFC 9113 §6.5.2 counts them.
pub const FIELD_COST: usize = 32;

/// The size of fields, in bytes as RFC 9113 §6.5.2 counts them.
#[must_use]
pub fn field_list_size(fields: &HeaderMap) -> u64 {
    let fields = fields.iter();
    let sizes = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD_COST);
    sizes.map(|size| size as u64).sum()
}

/// What [`Traffic::takes_head`] counts for these fields.
#[must_use]
pub fn head_size(fields: &HeaderMap) -> usize {
    usize::try_from(field_list_size(fields)).unwrap_or(usize::MAX)
}

/// The charge for a header block that waits until the connection takes it; `None` if the budget has no room for it.
#[must_use]
pub fn waiting_charge(fields: &HeaderMap, memory: &Arc<Budget>) -> Option<Charge> {
    // The text that its values share, and their map.
    let held = holding_cost(2 * fields_size(fields));
    let mut charge = Charge::default();
    charge.resize(memory, held, Purpose::Head).then_some(charge)
}

/// The length of a body in bytes, if its head announces it.
fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// How sending a body ended.
#[derive(Debug)]
pub enum Sent<E> {
    /// The complete body was passed to the connection.
    Complete,
    /// The peer reset the stream, or the connection ended. The receiving side returns the reason.
    Cancelled,
    /// The body broke off, so the stream was reset.
    Broken(E),
}

/// A body being sent into a stream.
pub struct Sending<B> {
    stream: SendStream<Bytes>,
    body: B,
    /// Data for which the windows of the stream and the connection have no room yet. Never empty.
    chunk: Option<Bytes>,
    /// Bytes that were passed to the connection.
    sent: u64,
    /// The reset code if the body breaks off.
    broken: Reason,
    queue: Option<Queue>,
    /// Whether the chunk is charged to the memory budget. Small ones are not.
    is_charged: bool,
    /// The connection, if it limits the header blocks that it is given, and the budget for those that wait.
    limited: Option<(Arc<Traffic>, Arc<Budget>)>,
    /// Trailers that wait until the connection has written earlier header blocks.
    trailers: Option<WaitingTrailers>,
}

struct WaitingTrailers {
    fields: HeaderMap,
    room: Pin<Box<dyn Future<Output = ()> + Send>>,
    _charge: Charge,
}

/// Whether a connection takes trailers.
enum TrailerRoom {
    Given(HeaderMap),
    Waiting(WaitingTrailers),
    /// They would have to wait, and the memory budget has no room for them.
    NoMemory,
}

impl<B: Body<Data = Bytes> + Unpin> Sending<B> {
    pub fn new(stream: SendStream<Bytes>, body: B, broken: Reason) -> Self {
        Self {
            stream,
            body,
            chunk: None,
            sent: 0,
            broken,
            queue: None,
            is_charged: false,
            limited: None,
            trailers: None,
        }
    }

    /// Sends trailers once the connection with this traffic has written earlier header blocks, and charges them meanwhile.
    #[must_use]
    pub fn limited_by(mut self, traffic: &Arc<Traffic>, memory: &Arc<Budget>) -> Self {
        self.limited = Some((Arc::clone(traffic), Arc::clone(memory)));
        self
    }

    /// Charges what the connection queues to `memory`, and queues less while it is tight.
    #[must_use]
    pub fn charged_to(mut self, memory: &Arc<Budget>) -> Self {
        self.queue = Some(Queue::new(memory));
        self
    }

    /// Whether it is waiting for the peer to open a window.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.chunk.is_some()
            || self.trailers.is_some()
            || self.queue.as_ref().is_some_and(Queue::is_full)
    }

    /// The unsent part of the body.
    pub fn body_mut(&mut self) -> &mut B {
        &mut self.body
    }

    /// Bytes that were passed to the connection. The windows have room for them.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Abandons the stream.
    pub fn reset(&mut self, reason: Reason) {
        self.stream.send_reset(reason);
    }

    fn send_trailers(&mut self, fields: HeaderMap) -> Sent<B::Error> {
        let sent = self.stream.send_trailers(fields);
        sent.map_or(Sent::Cancelled, |()| Sent::Complete)
    }

    /// Whether the connection takes these trailers now.
    fn room_for(&self, fields: HeaderMap) -> TrailerRoom {
        let Some((traffic, memory)) = &self.limited else {
            return TrailerRoom::Given(fields);
        };
        let size = head_size(&fields);
        if traffic.takes_head(size) {
            return TrailerRoom::Given(fields);
        }
        let Some(charge) = waiting_charge(&fields, memory) else {
            return TrailerRoom::NoMemory;
        };
        let traffic = Arc::clone(traffic);
        TrailerRoom::Waiting(WaitingTrailers {
            fields,
            room: Box::pin(async move { traffic.head_room(size).await }),
            _charge: charge,
        })
    }

    /// Sends what can be sent.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Sent<B::Error>> {
        loop {
            if self.stream.poll_reset(cx).is_ready() {
                return Poll::Ready(Sent::Cancelled);
            }
            if let Some(waiting) = &mut self.trailers {
                ready!(waiting.room.as_mut().poll(cx));
                let fields = std::mem::take(&mut waiting.fields);
                self.trailers = None;
                return Poll::Ready(self.send_trailers(fields));
            }
            while let Some(chunk) = &mut self.chunk {
                let capacity = self.stream.capacity();
                if capacity == 0 {
                    match ready!(self.stream.poll_capacity(cx)) {
                        Some(Ok(_)) => continue,
                        Some(Err(_)) | None => return Poll::Ready(Sent::Cancelled),
                    }
                }
                let is_end = self.body.is_end_stream();
                // h2 would accept all of it at once, but would not report how much of it the peer has made room for.
                let mut piece = chunk.split_to(capacity.min(chunk.len()));
                let is_last = chunk.is_empty();
                let ends = is_last && is_end;
                self.sent += piece.len() as u64;
                if let Some(queue) = &self.queue {
                    piece = queue.push(piece, self.is_charged);
                }
                if self.stream.send_data(piece, ends).is_err() {
                    return Poll::Ready(Sent::Cancelled);
                }
                if ends {
                    return Poll::Ready(Sent::Complete);
                }
                if is_last {
                    self.chunk = None;
                }
            }
            if let Some(queue) = &mut self.queue {
                ready!(queue.poll_room(cx));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => {
                        // Window is requested only when there is something to send, so that no stream keeps window that
                        // others of the connection need.
                        self.stream.reserve_capacity(data.len());
                        self.is_charged = data.len() > FREE;
                        self.chunk = Some(data);
                    }
                    Err(frame) => {
                        if let Ok(fields) = frame.into_trailers() {
                            match self.room_for(fields) {
                                TrailerRoom::Given(fields) => {
                                    return Poll::Ready(self.send_trailers(fields));
                                }
                                TrailerRoom::Waiting(waiting) => self.trailers = Some(waiting),
                                TrailerRoom::NoMemory => {
                                    self.stream.send_reset(Reason::ENHANCE_YOUR_CALM);
                                    return Poll::Ready(Sent::Cancelled);
                                }
                            }
                        }
                    }
                },
                Some(Err(error)) => {
                    self.stream.send_reset(self.broken);
                    return Poll::Ready(Sent::Broken(error));
                }
                None => {
                    let sent = self.stream.send_data(Bytes::new(), true);
                    return Poll::Ready(sent.map_or(Sent::Cancelled, |()| Sent::Complete));
                }
            }
        }
    }
}

/// How long a peer may be silent before it gets a PING (RFC 9113 §6.7).
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long it may stay silent after that.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Detects that the peer of a connection is gone.
pub struct KeepAlive {
    pings: Option<PingPong>,
    /// How many PINGs were sent and acknowledged.
    sent: u64,
    acknowledged: u64,
    traffic: Arc<Traffic>,
    /// Bytes received when the timer was set.
    seen: u64,
    pinged: bool,
    sleep: Pin<Box<Sleep>>,
}

impl KeepAlive {
    #[must_use]
    pub fn new(pings: Option<PingPong>, traffic: Arc<Traffic>) -> Self {
        Self {
            pings,
            sent: 0,
            acknowledged: 0,
            traffic,
            seen: 0,
            pinged: false,
            sleep: Box::pin(tokio::time::sleep(PING_INTERVAL)),
        }
    }

    /// Sends a PING, unless one is not acknowledged yet. Returns its number, counted from 1.
    pub fn ping(&mut self) -> Option<u64> {
        self.pings.as_mut()?.send_ping(Ping::opaque()).ok()?;
        self.sent += 1;
        Some(self.sent)
    }

    /// How many PINGs the peer has acknowledged. The task is woken by the next acknowledgement.
    pub fn poll_acknowledged(&mut self, cx: &mut Context<'_>) -> u64 {
        if let Some(pings) = &mut self.pings
            && let Poll::Ready(Ok(_)) = pings.poll_pong(cx)
        {
            self.acknowledged += 1;
        }
        self.acknowledged
    }

    /// Ready when the peer is gone. A connection that is not `busy` may be silent.
    pub fn poll(&mut self, cx: &mut Context<'_>, busy: bool) -> Poll<()> {
        loop {
            ready!(self.sleep.as_mut().poll(cx));
            let received = self.traffic.received();
            let heard = std::mem::replace(&mut self.seen, received) != received;
            if !heard && self.pinged {
                return Poll::Ready(());
            }
            self.pinged = !heard && busy;
            if self.pinged {
                // The response must be taken before the next ping can be sent.
                self.poll_acknowledged(cx);
                self.ping();
            }
            let wait = if self.pinged {
                PING_TIMEOUT
            } else {
                PING_INTERVAL
            };
            self.sleep.as_mut().reset(Instant::now() + wait);
        }
    }
}
