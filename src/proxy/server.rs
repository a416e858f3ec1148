//! The door for clients: listeners, one per thread, and what speaks on a new connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsStream};
use tokio_util::task::TaskTracker;

use super::h1::Connection;
use super::h2;
use super::head::Client;
use super::service::{OldSide, Proxy};
use crate::lifecycle::{Lifecycle, Phase, Watch};
use crate::tls::{Reloading, ServerFiles};
use crate::transport::{Rewound, Transport, turn};

/// What an HTTP/2 connection by prior knowledge begins with (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 4096;
/// Pause after an error that would come again at once.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a drain waits for connections that came before it and cannot be accepted.
const LAST_CALL: Duration = Duration::from_secs(10);

/// Bounds on clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest request head, in bytes.
    pub max_head: usize,
    /// Time that a head, or a TLS handshake, may take.
    pub head_timeout: Duration,
    /// Time that a connection may rest between two requests.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_head: 64 * 1024,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(90),
        }
    }
}

/// Sockets that listen on one address, one for each thread.
pub struct Listener {
    address: SocketAddr,
    sockets: Vec<std::net::TcpListener>,
}

impl Listener {
    /// Listens on `address` with `threads` sockets, between which the kernel shares the connections (`SO_REUSEPORT`).
    ///
    /// # Errors
    /// As binding and listening; also when another process listens there, which the shared port would hide.
    pub fn bind(address: SocketAddr, threads: usize) -> io::Result<Self> {
        let first = bind(address, false)?;
        let address = first.local_addr()?;
        if threads == 1 {
            let sockets = vec![first];
            return Ok(Self { address, sockets });
        }
        drop(first);
        let sockets = (0..threads)
            .map(|_| bind(address, true))
            .collect::<io::Result<_>>()?;
        Ok(Self { address, sockets })
    }

    /// The address, with the real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A socket for each thread.
    #[must_use]
    pub fn into_sockets(self) -> Vec<std::net::TcpListener> {
        self.sockets
    }
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // Inherited by what is accepted.
    socket.set_tcp_nodelay(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Serves clients on one socket until the process drains and the last connection has ended.
pub async fn serve<O: OldSide>(
    socket: std::net::TcpListener,
    proxy: Proxy<O>,
    limits: Arc<Limits>,
    tls: Option<Arc<Reloading<ServerFiles>>>,
    lifecycle: Lifecycle,
) -> io::Result<()> {
    let listener = TcpListener::from_std(socket)?;
    let door = Door {
        proxy,
        limits,
        tls,
        lifecycle: lifecycle.clone(),
    };
    let mut draining = std::pin::pin!(lifecycle.reached(Phase::Draining));
    // Not a set that joins them: it would wake this task at the end of each.
    let connections = TaskTracker::new();
    let mut rush = Rush::default();
    loop {
        tokio::select! {
            biased;
            () = draining.as_mut() => break,
            accepted = rush.accept(&listener) => match accepted {
                Ok((stream, peer)) => {
                    connections.spawn(door.clone().open(stream, peer));
                    if rush.is_alone() {
                        turn::behind_others().await;
                    }
                }
                Err(error) => pause_after(&error).await,
            },
        }
    }
    // What the kernel has accepted is not ours to drop, unless it cannot be had for a while.
    let until = Instant::now() + LAST_CALL;
    while let Ok(accepted) = tokio::time::timeout(Duration::ZERO, listener.accept()).await {
        match accepted {
            Ok((stream, peer)) => {
                connections.spawn(door.clone().open(stream, peer));
            }
            Err(_) if Instant::now() < until && lifecycle.phase() < Phase::Ending => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                break;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
    Ok(())
}

/// How many connections come at once. One that comes alone is attended to before it is asked for the next, which is
/// mostly not there; of several, all are accepted first. Which it will be is guessed from the time before.
#[derive(Default)]
struct Rush {
    last: u32,
    now: u32,
}

impl Rush {
    /// As [`TcpListener::accept`].
    async fn accept(&mut self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        std::future::poll_fn(|cx| {
            let polled = listener.poll_accept(cx);
            match polled {
                Poll::Ready(Ok(_)) => self.now += 1,
                Poll::Ready(Err(_)) => {}
                Poll::Pending => self.last = std::mem::take(&mut self.now),
            }
            polled
        })
        .await
    }

    /// Is the connection that was accepted last the only one, as far as is known?
    const fn is_alone(&self) -> bool {
        self.now == 1 && self.last < 2
    }
}

/// Out of file descriptors: accepting at once again would only spin.
async fn pause_after(error: &io::Error) {
    if matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    ) {
        tracing::warn!(%error, "cannot accept connections");
        tokio::time::sleep(PAUSE).await;
    }
}

/// What a connection comes in by.
#[derive(Clone)]
struct Door<O> {
    proxy: Proxy<O>,
    limits: Arc<Limits>,
    tls: Option<Arc<Reloading<ServerFiles>>>,
    lifecycle: Lifecycle,
}

impl<O: OldSide> Door<O> {
    async fn open(self, stream: TcpStream, peer: SocketAddr) {
        match self.tls.clone() {
            None => {
                let client = Client::new(peer.ip(), false);
                self.clear(Transport::Tcp(stream), client).await;
            }
            // Boxed, as all that is not part of serving a plain stream: it would lie idle in every one.
            Some(tls) => Box::pin(self.encrypted(stream, peer, tls)).await,
        }
    }

    async fn encrypted(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        tls: Arc<Reloading<ServerFiles>>,
    ) {
        let handshake = TlsAcceptor::from(tls.current()).accept(stream);
        let stream = match tokio::time::timeout(self.limits.head_timeout, handshake).await {
            Ok(Ok(stream)) => Box::new(TlsStream::Server(stream)),
            Ok(Err(error)) => return tracing::debug!(%peer, %error, "TLS handshake failed"),
            Err(_) => return tracing::debug!(%peer, "TLS handshake took too long"),
        };
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let client = Client::new(peer.ip(), true);
        let transport = Transport::Tls(stream);
        if http2 {
            return self.http2(BytesMut::new(), transport, client).await;
        }
        Box::pin(self.clear(transport, client)).await;
    }

    /// HTTP/1.1, unless the first bytes say HTTP/2.
    async fn clear(self, mut transport: Transport, client: Client) {
        let mut watch = self.lifecycle.watch();
        // The first request is mostly there when the connection is.
        let read = std::future::poll_fn(|cx| Poll::Ready(transport.poll_read_shared(cx))).await;
        let mut first = match read {
            Poll::Ready(Ok(bytes)) if !bytes.is_empty() => bytes,
            Poll::Ready(_) => return,
            Poll::Pending => BytesMut::new(),
        };
        if !is_telling(&first) {
            let begun = begin(&mut transport, &mut watch, &mut first);
            let begun = tokio::time::timeout(self.limits.head_timeout, Box::pin(begun));
            if !begun.await.unwrap_or(false) {
                return;
            }
        }
        if first.starts_with(PREFACE) {
            return Box::pin(self.http2(first, transport, client)).await;
        }
        let connection = Connection::new(
            self.proxy,
            Arc::new(client),
            &self.limits,
            transport,
            first,
            watch,
        );
        connection.run().await;
    }

    async fn http2(self, first: BytesMut, transport: Transport, client: Client) {
        let transport = Rewound::new(first.freeze(), transport);
        h2::run(
            self.proxy,
            Arc::new(client),
            self.limits,
            transport,
            self.lifecycle,
        )
        .await;
    }
}

/// Do these first bytes tell HTTP/1.1 from HTTP/2?
fn is_telling(first: &[u8]) -> bool {
    let shared = first.len().min(PREFACE.len());
    first[..shared] != PREFACE[..shared] || shared == PREFACE.len()
}

/// Reads until the first bytes tell which HTTP it is. False if the connection ended before, or is to.
async fn begin(transport: &mut Transport, watch: &mut Watch, first: &mut BytesMut) -> bool {
    while !is_telling(first) {
        let read = std::future::poll_fn(|cx| {
            if watch.poll(cx) >= Phase::Draining && first.is_empty() {
                return Poll::Ready(Ok(BytesMut::new()));
            }
            transport.poll_read_shared(cx)
        });
        match read.await {
            Ok(bytes) if !bytes.is_empty() => first.unsplit(bytes),
            _ => return false,
        }
    }
    true
}
