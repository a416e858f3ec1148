//! HTTP/2 connections to model servers: keeps a few per thread and endpoint, and selects one for each request.

mod load;
mod resets;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ::h2::client::{Builder, Connection, SendRequest};
use bytes::Bytes;

pub(super) use self::load::{Answered, Load, Stream};
use super::Error;
use super::lifetime::RemainingLifetime;
use crate::memory::{Budget, Charge, Purpose};
use crate::transport::Transport;
use crate::transport::h2::{CountedTransport, KeepAlive, SMALL_FRAMES, Traffic, Window};

/// Streams on a connection before another connection is opened, unless the server sets a lower limit. Dynamo's frontends allow
/// 200.
const MAX_STREAMS: usize = 100;
/// Bytes of a response that a stream buffers while its client does not read (RFC 9113 §6.9). It also limits a stream to this
/// much per round trip: 64 MB/s at 0.5 ms.
const STREAM_WINDOW: u32 = 32 * 1024;
/// The window of a connection, in bytes. Large enough that unread streams cannot use it up. It is also the most that the
/// responses of a connection buffer: 3.1 MiB.
const CONNECTION_WINDOW: u32 = MAX_STREAMS as u32 * STREAM_WINDOW;
/// Maximum size of a response head, in bytes, as over HTTP/1.1.
const MAX_HEAD: u32 = 64 * 1024;
/// Maximum size of a head that is sent before the server has announced its limit, in bytes as RFC 9113 §6.5.2 counts them.
const SMALL_HEAD: u64 = 4 * 1024;
/// How long a larger head waits for the server's settings, which the server must send first (RFC 9113 §3.4).
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a request body that a stream buffers while the server's window or the socket is full.
const SEND_BUFFER: usize = 64 * 1024;
/// Stands for the number of streams that a server allows until it has announced it (RFC 9113 §6.5.2). No server can announce
/// this value.
const UNKNOWN: usize = usize::MAX - 1;
/// What a connection costs besides its streams, in bytes: the buffers of h2, and its task. Measured with requests whose heads
/// are as large as possible.
const COST: usize = 48 * 1024;
/// How long a connection without streams is kept.
const IDLE: Duration = Duration::from_secs(60);

thread_local! {
    static LINKS: RefCell<HashMap<u64, Vec<PooledLink>>> = RefCell::new(HashMap::new());
}

/// A connection that may carry further requests.
struct PooledLink {
    link: Link,
    /// When it was first seen without streams.
    idle_since: Option<Instant>,
}

/// An HTTP/2 connection to a model server.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) sender: SendRequest<Bytes>,
    pub(super) load: Arc<Load>,
    traffic: Arc<Traffic>,
    pub(super) life: RemainingLifetime,
}

impl Link {
    /// Counts a stream until the result is dropped.
    pub(super) fn stream(&self) -> Stream {
        Stream::new(&self.load)
    }

    /// Bytes written to the socket so far.
    pub(super) fn sent(&self) -> u64 {
        self.traffic.sent()
    }

    /// Whether it can carry another request. A request with a body does not share a connection with an upload that waits. The
    /// server may have stopped reading that upload, which fills the window of the connection for all its streams. Or it may not
    /// read this body, so that a slow upload finds the window full. Neither does it use a connection whose window uploads have
    /// used up that the server does not read. `length` is that of the body, in bytes; `None` if it is unknown.
    fn has_room(&self, length: Option<u64>) -> bool {
        let most = match self.sender.current_max_send_streams() {
            // One request only, until the server has announced its limit.
            UNKNOWN => 1,
            most => most.min(MAX_STREAMS),
        };
        if self.load.streams() == 0 {
            self.traffic.settle();
        }
        let fits = length == Some(0)
            || self.load.waiting_uploads.load(Ordering::Relaxed) == 0
                && self.traffic.has_window_for(length);
        self.load.streams() < most && fits
    }

    /// The longest list of fields that the server accepts, in bytes as RFC 9113 §6.5.2 counts them.
    pub(super) fn max_header_list(&self) -> u32 {
        self.traffic.max_header_list()
    }

    /// Whether the server accepts a head of this size. Before the server has announced a limit, a large head waits for that.
    pub(super) async fn accepts(&self, size: impl Fn() -> u64) -> bool {
        if !self.traffic.has_settings() && size() > SMALL_HEAD {
            let settings = self.traffic.settings();
            // A server that announces nothing gets the head anyway.
            let _ = tokio::time::timeout(SETTINGS_TIMEOUT, settings).await;
        }
        // Without a limit, which is common, nothing has to be measured.
        let limit = self.max_header_list();
        limit == u32::MAX || size() <= u64::from(limit)
    }

    /// The traffic of its streams.
    pub(super) fn traffic(&self) -> Arc<Traffic> {
        Arc::clone(&self.traffic)
    }

    /// Whether it may carry further requests: it is not closed, shutting down or retired. A retired connection closes after its
    /// last stream, so there are never more of them than open streams.
    pub(super) fn is_open(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let should_retire = self.traffic.should_retire() || self.load.should_retire();
        !should_retire && matches!(self.sender.poll_ready(&mut cx), Poll::Ready(Ok(())))
    }
}

/// A connection, with room on it for one more request.
pub(super) struct Reserved {
    pub(super) link: Link,
    _room: Stream,
}

impl Reserved {
    pub(super) fn new(link: Link) -> Self {
        let room = link.stream();
        Self { link, _room: room }
    }

    /// Whether it may carry the request.
    pub(super) fn is_open(&mut self) -> bool {
        self.link.is_open()
    }
}

/// A connection of this thread to the endpoint that can carry another request, with a body of this length, in bytes; `None` if
/// it is unknown.
pub(super) fn existing(endpoint: u64, length: Option<u64>) -> Option<Link> {
    LINKS.with_borrow_mut(|links| {
        let links = links.get_mut(&endpoint)?;
        links.retain_mut(|kept| kept.link.is_open());
        let at = links.iter().position(|kept| kept.link.has_room(length))?;
        links[at].idle_since = None;
        // A connection at the end of its lifetime is no longer kept. It closes after its last stream.
        match links[at].link.life.spend() {
            true => Some(links[at].link.clone()),
            false => Some(links.swap_remove(at).link),
        }
    })
}

/// Starts HTTP/2 on a new connection and keeps the connection for others.
pub(super) async fn begin(
    endpoint: u64,
    transport: Transport,
    mut life: RemainingLifetime,
    memory: &Arc<Budget>,
) -> Result<Link, Error> {
    // Until a server has announced its settings, each request has a connection of its own.
    let mut charge = Charge::default();
    if !charge.overdraw(memory, COST, Purpose::Connection) {
        return Err(Error::NoMemory);
    }
    let (transport, traffic) = CountedTransport::new(transport, memory);
    let (sender, connection) = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(SMALL_FRAMES)
        .max_header_list_size(MAX_HEAD)
        .max_send_buffer_size(SEND_BUFFER)
        .initial_max_send_streams(UNKNOWN)
        .enable_push(false)
        // Frames that still arrive for streams that the proxy has reset are not the server's fault.
        .max_concurrent_reset_streams(MAX_STREAMS)
        .max_local_error_reset_streams(None)
        .handshake(transport)
        .await
        .map_err(|error| Error::Http2(error.into()))?;
    let last = !life.spend();
    let link = Link {
        sender,
        load: Arc::default(),
        traffic: Arc::clone(&traffic),
        life,
    };
    let (load, memory) = (Arc::clone(&link.load), Arc::clone(memory));
    // Needs no supervision: its streams receive the error that ends the connection.
    tokio::spawn(async move {
        drive(connection, traffic, load, memory).await;
        drop(charge);
    });
    if !last {
        let kept = PooledLink {
            link: link.clone(),
            idle_since: None,
        };
        LINKS.with_borrow_mut(|links| links.entry(endpoint).or_default().push(kept));
    }
    Ok(link)
}

async fn drive(
    mut connection: Connection<CountedTransport<Transport>>,
    traffic: Arc<Traffic>,
    load: Arc<Load>,
    memory: Arc<Budget>,
) {
    let mut keep_alive = KeepAlive::new(connection.ping_pong(), Arc::clone(&traffic));
    let mut unsolicited = Unsolicited::default();
    let mut window = Window::new(STREAM_WINDOW);
    let ended = std::future::poll_fn(|cx| {
        window.fit(&memory, |size| {
            connection.set_initial_window_size(size).is_ok()
        });
        if let Poll::Ready(ended) = std::pin::Pin::new(&mut connection).poll(cx) {
            return Poll::Ready(ended.err().map(|error| error.to_string()));
        }
        let busy = load.streams() > 0;
        if traffic.is_flood() || unsolicited.are_too_many(busy, traffic.received()) {
            return Poll::Ready(Some("the server sends too much".to_owned()));
        }
        load.resets.poll(cx, &mut keep_alive);
        keep_alive
            .poll(cx, busy)
            .map(|()| Some("the server does not answer PINGs".to_owned()))
    });
    let ended = ended.await;
    load.resets.close();
    if let Some(why) = ended {
        tracing::debug!(why, "an HTTP/2 connection to a model server ended");
    }
}

/// Bytes that a server may send on a connection without streams. As many may still be on their way for streams that were reset.
const MAX_UNSOLICITED: u64 = 2 * CONNECTION_WINDOW as u64;

/// Detects a server that keeps sending after its last stream was reset.
#[derive(Default)]
struct Unsolicited {
    /// Bytes received when the connection was first seen without streams.
    before: Option<u64>,
}

impl Unsolicited {
    /// `received` is the number of bytes so far.
    fn are_too_many(&mut self, busy: bool, received: u64) -> bool {
        if busy {
            self.before = None;
            return false;
        }
        received - *self.before.get_or_insert(received) > MAX_UNSOLICITED
    }
}

/// Closes a connection of this thread that has no streams. False if there is none.
pub(super) fn give_up_one() -> bool {
    LINKS.with_borrow_mut(|links| {
        links.values_mut().any(|links| {
            let idle = links.iter().position(|kept| kept.link.load.streams() == 0);
            idle.map(|at| links.swap_remove(at)).is_some()
        })
    })
}

/// Drops connections that have closed, have exceeded their lifetime, or have been idle too long, and all idle ones if descriptors
/// `are_short`. Call it periodically on each thread.
pub(super) fn sweep(now: Instant, are_short: bool) {
    LINKS.with_borrow_mut(|links| {
        links.retain(|_, links| {
            links.retain_mut(|kept| {
                let link = &mut kept.link;
                if link.load.streams() > 0 {
                    kept.idle_since = None;
                } else {
                    kept.idle_since.get_or_insert(now);
                }
                let is_idle = |since| are_short || now.saturating_duration_since(since) >= IDLE;
                link.is_open() && !link.life.is_over(now) && !kept.idle_since.is_some_and(is_idle)
            });
            !links.is_empty()
        });
    });
}
