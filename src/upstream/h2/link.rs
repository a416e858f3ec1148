//! Connections to model servers over HTTP/2, a few per thread and endpoint, and which of them a request goes over.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ::h2::client::{Builder, Connection, SendRequest};
use bytes::Bytes;

use crate::memory::Budget;
use crate::transport::Transport;
use crate::transport::h2::{Counted, KeepAlive, SMALL_FRAMES, Traffic, Window};
use crate::upstream::Error;
use crate::upstream::lifetime::Life;

/// Streams that a connection carries before another one is opened, where the server does not set a lower limit.
/// Dynamo's frontends allow 200.
const MAX_STREAMS: usize = 100;
/// What a stream holds, in bytes, of an answer that its client does not read (RFC 9113 §6.9). A stream carries as much
/// per round trip: 64 MB/s at half a millisecond.
const STREAM_WINDOW: u32 = 32 * 1024;
/// The window of a connection, in bytes, cannot be used up by streams that nobody reads. It is the most that the answers
/// of a connection hold: 3.1 MiB.
const CONNECTION_WINDOW: u32 = MAX_STREAMS as u32 * STREAM_WINDOW;
/// Largest head of an answer, in bytes, as over HTTP/1.1.
const MAX_HEAD: u32 = 64 * 1024;
/// Bytes of a request's body that a stream holds while the server's window, or the socket, is full.
const SEND_BUFFER: usize = 64 * 1024;
/// How many streams a server allows before it has said so (RFC 9113 §6.5.2): no number that it could say.
const UNKNOWN: usize = usize::MAX - 1;
/// How long a connection without a stream is kept.
const IDLE: Duration = Duration::from_secs(60);

thread_local! {
    static LINKS: RefCell<HashMap<u64, Vec<Kept>>> = RefCell::new(HashMap::new());
}

/// A connection that more requests may go over.
struct Kept {
    link: Link,
    /// Since when it was seen without a stream.
    idle_since: Option<Instant>,
}

/// A connection.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) sender: SendRequest<Bytes>,
    pub(super) load: Arc<Load>,
    traffic: Arc<Traffic>,
    pub(super) life: Life,
}

/// What a connection carries.
#[derive(Debug, Default)]
pub(super) struct Load {
    streams: AtomicUsize,
    /// Uploads that wait for the server to take more.
    pub(super) blocked: AtomicUsize,
}

impl Link {
    /// A stream more, counted while it lives.
    pub(super) fn stream(&self) -> Stream {
        self.load.streams.fetch_add(1, Ordering::Relaxed);
        Stream(Arc::clone(&self.load))
    }

    /// Bytes that were handed to the socket so far.
    pub(super) fn sent(&self) -> u64 {
        self.traffic.sent()
    }

    /// Can it take another request? One with a body does not go beside an upload that waits: the server may have stopped
    /// to read that one, and its connection's window is then full for all.
    fn has_room(&self, with_body: bool) -> bool {
        let most = match self.sender.current_max_send_streams() {
            // It is asked for one only until it has said how many it allows.
            UNKNOWN => 1,
            most => most.min(MAX_STREAMS),
        };
        let blocked = self.load.blocked.load(Ordering::Relaxed) > 0;
        self.load.streams.load(Ordering::Relaxed) < most && !(blocked && with_body)
    }

    /// Neither ended nor about to.
    fn is_open(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(self.sender.poll_ready(&mut cx), Poll::Ready(Ok(())))
    }
}

/// A stream, counted at its connection while it lives.
pub(super) struct Stream(pub(super) Arc<Load>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that this thread has to the endpoint and that takes another request.
pub(super) fn existing(endpoint: u64, with_body: bool) -> Option<Link> {
    LINKS.with_borrow_mut(|links| {
        let links = links.get_mut(&endpoint)?;
        links.retain_mut(|kept| kept.link.is_open());
        let at = links
            .iter()
            .position(|kept| kept.link.has_room(with_body))?;
        links[at].idle_since = None;
        // One that has carried enough is let go: it ends with the last of its streams.
        match links[at].link.life.spend() {
            true => Some(links[at].link.clone()),
            false => Some(links.swap_remove(at).link),
        }
    })
}

/// Begins HTTP/2 on a new connection and keeps it for others.
pub(super) async fn begin(
    endpoint: u64,
    transport: Transport,
    mut life: Life,
    memory: &Arc<Budget>,
) -> Result<Link, Error> {
    let (transport, traffic) = Counted::new(transport, memory);
    let (sender, connection) = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(SMALL_FRAMES)
        .max_header_list_size(MAX_HEAD)
        .max_send_buffer_size(SEND_BUFFER)
        .initial_max_send_streams(UNKNOWN)
        .enable_push(false)
        // What still comes for streams that were given up is no offence of the server's.
        .max_concurrent_reset_streams(MAX_STREAMS)
        .max_local_error_reset_streams(None)
        .handshake(transport)
        .await
        .map_err(Error::Http2)?;
    let last = !life.spend();
    let link = Link {
        sender,
        load: Arc::default(),
        traffic: Arc::clone(&traffic),
        life,
    };
    // Supervised by its streams: they see the error that ends it.
    tokio::spawn(drive(
        connection,
        traffic,
        Arc::clone(&link.load),
        Arc::clone(memory),
    ));
    if !last {
        let kept = Kept {
            link: link.clone(),
            idle_since: None,
        };
        LINKS.with_borrow_mut(|links| links.entry(endpoint).or_default().push(kept));
    }
    Ok(link)
}

async fn drive(
    mut connection: Connection<Counted<Transport>>,
    traffic: Arc<Traffic>,
    load: Arc<Load>,
    memory: Arc<Budget>,
) {
    let mut keep_alive = KeepAlive::new(connection.ping_pong(), traffic);
    let mut window = Window::new(STREAM_WINDOW);
    let ended = std::future::poll_fn(|cx| {
        window.fit(&memory, |size| {
            connection.set_initial_window_size(size).is_ok()
        });
        if let Poll::Ready(ended) = std::pin::Pin::new(&mut connection).poll(cx) {
            return Poll::Ready(ended.err().map(|error| error.to_string()));
        }
        let busy = load.streams.load(Ordering::Relaxed) > 0;
        keep_alive
            .poll(cx, busy)
            .map(|()| Some("the server answers no PING".to_owned()))
    });
    if let Some(why) = ended.await {
        tracing::debug!(why, "an HTTP/2 connection to a model server ended");
    }
}

/// Forgets connections that have ended, are too old, or carried nothing for long. Call it now and then on each thread.
pub(in crate::upstream) fn sweep(now: Instant) {
    LINKS.with_borrow_mut(|links| {
        links.retain(|_, links| {
            links.retain_mut(|kept| {
                let link = &mut kept.link;
                if link.load.streams.load(Ordering::Relaxed) > 0 {
                    kept.idle_since = None;
                } else {
                    kept.idle_since.get_or_insert(now);
                }
                let is_idle = |since| now.saturating_duration_since(since) >= IDLE;
                link.is_open() && !link.life.is_over(now) && !kept.idle_since.is_some_and(is_idle)
            });
            !links.is_empty()
        });
    });
}
