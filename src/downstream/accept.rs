//! Accepts client connections on one socket until the process drains.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use super::limits::Limits;
#[cfg(target_os = "linux")]
use super::listener::drop_new_connections;
use super::protocol::ConnectionHandler;
use crate::lifecycle::{Lifecycle, ProcessPhase};
use crate::proxy::{ConnectionPermit, OldBackend, Proxy};
use crate::telemetry::Timeout;
use crate::tls::{Reloading, ServerFiles};
use crate::transport::accept::{AcceptErrors, is_exhaustion};
use crate::transport::batching;
use crate::transport::descriptors::{self, Shares};
use crate::transport::log_throttle::LogThrottle;
use crate::transport::write_timeout::WriteLimit;

/// How long a draining process still accepts new connections: clients may not know yet that it is draining.
const LATE_CONNECT_GRACE: Duration = Duration::from_millis(100);
/// How long TCP handshakes in progress at that point have to complete.
const HANDSHAKE_GRACE: Duration = Duration::from_millis(100);
/// How long a drain keeps retrying to accept the backlog while the process is out of file descriptors.
const BACKLOG_GRACE: Duration = Duration::from_secs(10);

/// Serves clients on one socket until the process drains and the last connection has ended.
pub async fn serve<O: OldBackend>(
    socket: std::net::TcpListener,
    proxy: Proxy<O>,
    limits: Arc<Limits>,
    tls: Option<Arc<Reloading<ServerFiles>>>,
    lifecycle: Lifecycle,
) -> io::Result<()> {
    let listener = TcpListener::from_std(socket)?;
    let write_limit = WriteLimit {
        limit: limits.write_timeout,
        passed: proxy.context().metrics.timed_out(Timeout::Write),
    };
    let handler = ConnectionHandler {
        proxy,
        limits,
        write_limit: Arc::new(write_limit),
        tls,
        lifecycle: lifecycle.clone(),
    };
    let mut draining = std::pin::pin!(lifecycle.reached(ProcessPhase::Draining));
    // Not a JoinSet, which would wake this task whenever a connection ends.
    let connections = TaskTracker::new();
    let mut batch = AcceptBatch::default();
    let (mut errors, mut refused) = (AcceptErrors::default(), LogThrottle::default());
    loop {
        tokio::select! {
            biased;
            () = draining.as_mut() => break,
            accepted = batch.accept(&listener) => match accepted {
                Ok((stream, peer)) => {
                    errors.cleared();
                    handler.admit(&connections, &mut refused, stream, peer);
                    if batch.is_alone() {
                        batching::yield_to_ready().await;
                    }
                }
                Err(error) => {
                    let pause = handler.failed(&mut errors, &error);
                    tokio::select! {
                        () = draining.as_mut() => break,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            },
        }
    }
    handler
        .accept_backlog(listener, &connections, &mut refused, errors)
        .await?;
    connections.close();
    connections.wait().await;
    Ok(())
}

/// Predicts from the last batch how many connections arrive together. A single connection is served before the next
/// `accept`, which would mostly find nothing. A batch is accepted completely before any of it is served.
#[derive(Default)]
struct AcceptBatch {
    last: u32,
    now: u32,
}

impl AcceptBatch {
    /// Like [`TcpListener::accept`].
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

    /// Whether the last accepted connection is probably the only one.
    const fn is_alone(&self) -> bool {
        self.now == 1 && self.last < 2
    }
}

impl<O: OldBackend> ConnectionHandler<O> {
    /// Spawns a task that serves the connection, or closes it if `--max-connections` or as many as the descriptors allow for are
    /// open.
    fn admit(
        &self,
        connections: &TaskTracker,
        refused: &mut LogThrottle,
        stream: TcpStream,
        peer: SocketAddr,
    ) {
        let (context, shares) = (self.proxy.context(), Shares::now());
        let most = match shares.allow(&stream) {
            true => self.limits.max_connections.min(shares.clients),
            false => 0,
        };
        if let Some(permit) = ConnectionPermit::take(context, most) {
            connections.spawn(self.clone().serve(stream, peer, permit));
        } else if let Some(times) = refused.record(Instant::now()) {
            let open = context.metrics.connections.get();
            let reached = match most < self.limits.max_connections {
                true => "the open file limit",
                false => "--max-connections",
            };
            tracing::warn!(
                times,
                open,
                descriptors = descriptors::limit(),
                reached,
                "closed new client connections immediately"
            );
        }
    }

    /// How long to wait after an error of `accept`.
    fn failed(&self, errors: &mut AcceptErrors, error: &io::Error) -> Duration {
        self.proxy.context().metrics.accept_errors.inc();
        errors.pause(error, Instant::now())
    }

    /// Accepts connections that arrive while a drain begins, so that closing the listener does not reset a connection
    /// that its client considers open.
    async fn accept_backlog(
        &self,
        listener: TcpListener,
        connections: &TaskTracker,
        refused: &mut LogThrottle,
        mut errors: AcceptErrors,
    ) -> io::Result<()> {
        let begun = Instant::now();
        let mut ending = std::pin::pin!(self.lifecycle.reached(ProcessPhase::Ending));
        let mut until = begun + LATE_CONNECT_GRACE;
        let mut drops_new = false;
        loop {
            let accepted = tokio::select! {
                biased;
                () = ending.as_mut() => break,
                accepted = listener.accept() => accepted,
                () = tokio::time::sleep_until(until.into()) => {
                    if drops_new {
                        break;
                    }
                    drops_new = true;
                    until = Instant::now() + HANDSHAKE_GRACE;
                    // Best effort: without the filter, closing the listener resets the latest connections.
                    #[cfg(target_os = "linux")]
                    let _ = drop_new_connections(&SockRef::from(&listener));
                    continue;
                }
            };
            match accepted {
                Ok((stream, peer)) => self.admit(connections, refused, stream, peer),
                Err(error) => {
                    let pause = self.failed(&mut errors, &error);
                    let now = Instant::now();
                    // Keep the backlog for as long as accepting may work again.
                    let patience = match is_exhaustion(&error) {
                        true => BACKLOG_GRACE,
                        false => LATE_CONNECT_GRACE + HANDSHAKE_GRACE,
                    };
                    if now >= begun + patience {
                        break;
                    }
                    until = until.max(now + 2 * HANDSHAKE_GRACE);
                    tokio::time::sleep_until((now + pause.min(HANDSHAKE_GRACE)).into()).await;
                }
            }
        }
        // Bypass the runtime: its cooperative budget may return `Pending` although connections are waiting.
        let listener = listener.into_std()?;
        while let Ok((stream, peer)) = listener.accept() {
            stream.set_nonblocking(true)?;
            self.admit(connections, refused, TcpStream::from_std(stream)?, peer);
        }
        Ok(())
    }
}
