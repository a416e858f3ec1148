//! The door for clients: accepts connections, and finds out what is spoken on a new one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsStream};
use tokio_util::task::TaskTracker;

use super::backend::{OldSide, Proxy};
use super::context::Seat;
use super::h1::Connection;
use super::h2;
use super::head::Client;
use super::limits::Limits;
#[cfg(target_os = "linux")]
use super::listener::ignore_newcomers;
use crate::lifecycle::{Lifecycle, Phase};
use crate::memory::FREE;
use crate::telemetry::Timeout;
use crate::tls::{Reloading, ServerFiles};
use crate::transport::accept::{AcceptErrors, is_exhaustion};
use crate::transport::write_timeout::{WriteLimit, WriteTimeout};
use crate::transport::{Rewound, Transport, deadline, turn};

/// What an HTTP/2 connection by prior knowledge begins with (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long clients that hear of a drain too late are still let in, and then how long connections that are being made have
/// to be finished.
const LATECOMERS: Duration = Duration::from_millis(100);
const HANDSHAKES: Duration = Duration::from_millis(100);
/// How long a drain waits for connections that came before it and cannot be accepted.
const LAST_CALL: Duration = Duration::from_secs(10);
/// How long a drain waits for the first bytes of a connection that has sent nothing yet.
const GRACE: Duration = Duration::from_secs(1);

/// Serves clients on one socket until the process drains and the last connection has ended.
pub async fn serve<O: OldSide>(
    socket: std::net::TcpListener,
    proxy: Proxy<O>,
    limits: Arc<Limits>,
    tls: Option<Arc<Reloading<ServerFiles>>>,
    lifecycle: Lifecycle,
) -> io::Result<()> {
    let listener = TcpListener::from_std(socket)?;
    let write_limit = WriteLimit {
        limit: limits.write_timeout,
        passed: proxy.shared().metrics.timed_out(Timeout::Write),
    };
    let door = Door {
        proxy,
        limits,
        write_limit: Arc::new(write_limit),
        tls,
        lifecycle: lifecycle.clone(),
    };
    let mut draining = std::pin::pin!(lifecycle.reached(Phase::Draining));
    // Not a set that joins them: it would wake this task at the end of each.
    let connections = TaskTracker::new();
    let mut rush = Rush::default();
    let mut errors = AcceptErrors::default();
    loop {
        tokio::select! {
            biased;
            () = draining.as_mut() => break,
            accepted = rush.accept(&listener) => match accepted {
                Ok((stream, peer)) => {
                    errors.cleared();
                    door.admit(&connections, stream, peer);
                    if rush.is_alone() {
                        turn::behind_others().await;
                    }
                }
                Err(error) => {
                    let pause = door.failed(&mut errors, &error);
                    tokio::select! {
                        () = draining.as_mut() => break,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            },
        }
    }
    door.last_call(listener, &connections, errors).await?;
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

/// What a connection comes in by.
#[derive(Clone)]
struct Door<O> {
    proxy: Proxy<O>,
    limits: Arc<Limits>,
    write_limit: Arc<WriteLimit>,
    tls: Option<Arc<Reloading<ServerFiles>>>,
    lifecycle: Lifecycle,
}

impl<O: OldSide> Door<O> {
    /// Serves a connection, unless there are as many as there may be.
    fn admit(&self, connections: &TaskTracker, stream: TcpStream, peer: SocketAddr) {
        match Seat::take(self.proxy.shared(), self.limits.max_connections) {
            Some(seat) => {
                connections.spawn(self.clone().open(stream, peer, seat));
            }
            None => drop(stream),
        }
    }

    /// How long to wait after an error of `accept`.
    fn failed(&self, errors: &mut AcceptErrors, error: &io::Error) -> Duration {
        self.proxy.shared().metrics.accept_errors.inc();
        errors.pause(error, Instant::now())
    }

    /// Lets in who comes while a drain begins, so that no client finds a connection reset that it takes for open.
    async fn last_call(
        &self,
        listener: TcpListener,
        connections: &TaskTracker,
        mut errors: AcceptErrors,
    ) -> io::Result<()> {
        let begun = Instant::now();
        let mut ending = std::pin::pin!(self.lifecycle.reached(Phase::Ending));
        let mut until = begun + LATECOMERS;
        let mut ignores_newcomers = false;
        loop {
            let accepted = tokio::select! {
                biased;
                () = ending.as_mut() => break,
                accepted = listener.accept() => accepted,
                () = tokio::time::sleep_until(until.into()) => {
                    if ignores_newcomers {
                        break;
                    }
                    ignores_newcomers = true;
                    until = Instant::now() + HANDSHAKES;
                    // Where it cannot be done some are reset.
                    #[cfg(target_os = "linux")]
                    let _ = ignore_newcomers(&SockRef::from(&listener));
                    continue;
                }
            };
            match accepted {
                Ok((stream, peer)) => self.admit(connections, stream, peer),
                Err(error) => {
                    let pause = self.failed(&mut errors, &error);
                    let now = Instant::now();
                    // Who waits already is not ours to drop, unless it cannot be had for a while.
                    let patience = match is_exhaustion(&error) {
                        true => LAST_CALL,
                        false => LATECOMERS + HANDSHAKES,
                    };
                    if now >= begun + patience {
                        break;
                    }
                    until = until.max(now + 2 * HANDSHAKES);
                    tokio::time::sleep_until((now + pause.min(HANDSHAKES)).into()).await;
                }
            }
        }
        // Not by way of the runtime, which lets other tasks go first now and then.
        let listener = listener.into_std()?;
        while let Ok((stream, peer)) = listener.accept() {
            stream.set_nonblocking(true)?;
            self.admit(connections, TcpStream::from_std(stream)?, peer);
        }
        Ok(())
    }

    /// Serves a connection, which holds its seat to the end.
    async fn open(self, stream: TcpStream, peer: SocketAddr, _seat: Seat) {
        match self.tls.clone() {
            None => {
                let client = Client::new(peer.ip(), false);
                let transport = self.limited(Transport::Tcp(stream));
                self.clear(transport, client).await;
            }
            // Boxed, as all that is not part of serving a plain stream: it would lie idle in every one.
            Some(tls) => Box::pin(self.encrypted(stream, peer, tls)).await,
        }
    }

    fn limited(&self, transport: Transport) -> WriteTimeout {
        WriteTimeout::new(transport, Arc::clone(&self.write_limit))
    }

    /// What comes of a connection that has not asked for anything yet: it has the time of a head, during a drain a moment.
    async fn soon<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let given_up = async {
            self.lifecycle.reached(Phase::Draining).await;
            tokio::select! {
                () = tokio::time::sleep(GRACE) => {}
                () = self.lifecycle.reached(Phase::Ending) => {}
            }
        };
        let either = async {
            tokio::select! {
                biased;
                output = future => Some(output),
                () = given_up => None,
            }
        };
        deadline::timeout(self.limits.head_timeout, either)
            .await
            .flatten()
    }

    async fn encrypted(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        tls: Arc<Reloading<ServerFiles>>,
    ) {
        let handshake = TlsAcceptor::from(tls.current()).accept(stream);
        let stream = match self.soon(handshake).await {
            Some(Ok(stream)) => Box::new(TlsStream::Server(stream)),
            Some(Err(error)) => return tracing::debug!(%peer, %error, "TLS handshake failed"),
            None => return tracing::debug!(%peer, "TLS handshake took too long"),
        };
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let client = Client::new(peer.ip(), true);
        let transport = self.limited(Transport::Tls(stream));
        if http2 {
            return self.http2(BytesMut::new(), transport, client).await;
        }
        Box::pin(self.clear(transport, client)).await;
    }

    /// HTTP/1.1, unless the first bytes say HTTP/2.
    async fn clear(self, mut transport: WriteTimeout, client: Client) {
        // The first request is mostly there when the connection is.
        let memory = &self.proxy.shared().memory;
        let read = std::future::poll_fn(|cx| Poll::Ready(transport.poll_read_within(cx, memory)));
        let read = read.await;
        let mut first = match read {
            Poll::Ready(Ok(bytes)) if !bytes.is_empty() => bytes,
            Poll::Ready(_) => return,
            Poll::Pending => BytesMut::new(),
        };
        if !is_telling(&first) {
            // It may stay for a while.
            first = BytesMut::from(&first[..]);
            let begun = self.soon(begin(&mut transport, &mut first));
            if Box::pin(begun).await != Some(true) {
                return;
            }
        }
        if first.starts_with(PREFACE) {
            return Box::pin(self.http2(first, transport, client)).await;
        }
        let watch = self.lifecycle.watch();
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

    async fn http2(self, first: BytesMut, transport: WriteTimeout, client: Client) {
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

/// Reads until the first bytes tell which HTTP it is. False if the connection ended before.
async fn begin(transport: &mut WriteTimeout, first: &mut BytesMut) -> bool {
    while !is_telling(first) {
        match std::future::poll_fn(|cx| transport.poll_read_apart(cx, FREE)).await {
            Ok(bytes) if !bytes.is_empty() => first.extend_from_slice(&bytes),
            _ => return false,
        }
    }
    true
}
