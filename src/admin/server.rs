//! The server of the admin port: HTTP/1.1, and HTTP/2 with prior knowledge, for pages and gRPC.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::{Request, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::Admin;
use super::grpc::Grpc;
use super::live::Live;
use super::local::Local;
use super::routes::routes;
use crate::lifecycle::ProcessPhase;
use crate::pages::{
    Connections, MAX_HEAD, PageResponse, Peer, Requests, Routes, Stalls, TooMany, limited,
};
use crate::transport::accept::AcceptErrors;

/// Timeout for a request's head, and for the first bytes of a connection.
const HEAD: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of concurrent requests per HTTP/2 connection: far more than the watches of a peer, so that it can still send
/// others.
const STREAMS: u32 = 32;
/// Interval and timeout of pings to an HTTP/2 client.
const ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// Serves the admin port until the process ends, and then until the last response has been sent; the caller limits that time.
///
/// Only clients on `local` may change anything.
pub async fn serve(listener: TcpListener, mut local: Option<Local>, admin: Admin) {
    let service = AdminService::new(admin);
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut ending = std::pin::pin!(service.admin.lifecycle.reached(ProcessPhase::Ending));
    let mut connections = JoinSet::new();
    let (seats, mut errors) = (Connections::default(), AcceptErrors::default());
    loop {
        tokio::select! {
            () = ending.as_mut() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    errors.cleared();
                    if let Some(seat) = seats.take(peer.ip()) {
                        let peer = Some(peer.ip());
                        let open = service.clone().open(limited(stream), peer, HEAD);
                        connections.spawn(async move {
                            open.await;
                            drop(seat);
                        });
                    }
                }
                Err(error) => tokio::time::sleep(errors.pause(&error, Instant::now())).await,
            },
            accepted = next(local.as_mut()) => match accepted {
                Ok(stream) => drop(connections.spawn(service.clone().open(stream, None, HEAD))),
                Err(_) => tokio::time::sleep(PAUSE).await,
            },
            _ = seconds.tick() => service.live.sample(),
            // Joined as they end, so that the set does not grow.
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    drop((listener, local));
    while connections.join_next().await.is_some() {}
}

/// The next connection on the local socket, if there is one.
async fn next(local: Option<&mut Local>) -> std::io::Result<tokio::net::UnixStream> {
    match local {
        Some(local) => local.accept().await,
        None => std::future::pending().await,
    }
}

#[derive(Clone)]
struct AdminService {
    admin: Admin,
    grpc: Grpc,
    live: Live,
    routes: Routes,
    requests: Requests,
}

/// The peer of an admin connection.
#[derive(Clone)]
struct Caller {
    /// `None` on the local socket.
    peer: Option<IpAddr>,
    stalls: Stalls,
}

impl AdminService {
    fn new(admin: Admin) -> Self {
        let live = Live::new(&admin);
        Self {
            grpc: Grpc::new(&admin),
            routes: routes(admin.clone(), live.clone()),
            live,
            requests: Requests::default(),
            admin,
        }
    }

    /// Serves a connection from `peer`; `None` on the local socket.
    async fn open<S>(self, stream: S, peer: Option<IpAddr>, patience: Duration)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let begun = Arc::new(AtomicBool::new(false));
        let stalls = Stalls::default();
        let service = service_fn(|request| {
            begun.store(true, Ordering::Relaxed);
            let (service, stalls) = (self.clone(), stalls.clone());
            let caller = Caller { peer, stalls };
            async move { service.answer(request, caller).await }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .max_buf_size(MAX_HEAD)
            .header_read_timeout(patience);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .keep_alive_interval(ALIVE.0)
            .keep_alive_timeout(ALIVE.1);
        let mut connection =
            std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        // Hyper's timeout for a head begins only once it knows the HTTP version.
        let mut late = std::pin::pin!(tokio::time::sleep(patience));
        let mut closes = std::pin::pin!(async {
            tokio::select! {
                () = self.admin.lifecycle.reached(ProcessPhase::Ending) => {}
                () = stalls.idle() => {}
            }
        });
        let mut stalled = std::pin::pin!(stalls.overdue());
        let (mut watches, mut lives) = (true, true);
        let ended = loop {
            tokio::select! {
                ended = connection.as_mut() => break ended,
                () = late.as_mut(), if watches => {
                    watches = false;
                    if !begun.load(Ordering::Relaxed) {
                        return tracing::debug!(?peer, "closed an admin connection without a request");
                    }
                }
                () = stalled.as_mut() => {
                    return tracing::debug!(?peer, "closed an admin connection whose client did not read the response");
                }
                () = closes.as_mut(), if lives => {
                    lives = false;
                    connection.as_mut().graceful_shutdown();
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(?peer, %error, "an admin connection ended");
        }
    }

    /// Requests beyond the limits get no response: their stream is reset or, with HTTP/1.1, their connection is closed.
    async fn answer(
        &self,
        mut request: Request<Incoming>,
        Caller { peer, stalls }: Caller,
    ) -> Result<PageResponse, TooMany> {
        if let Some(peer) = peer {
            request.extensions_mut().insert(Peer::from(peer));
        }
        let is_http2 = request.version() == Version::HTTP_2;
        let shares = self.requests.take(&request)?;
        let refusal = peer.and_then(|_| self.admin.hosts.refusal(&request));
        let answer = match refusal {
            Some(refusal) => refusal,
            None => self.answer_admitted(request).await,
        };
        // With HTTP/1.1, a write waits, and has its own limit.
        let stall = is_http2.then(|| stalls.begin(Instant::now()));
        Ok(shares.until_sent(answer, stall))
    }

    async fn answer_admitted(&self, request: Request<Incoming>) -> PageResponse {
        if Grpc::is_meant_by(&request) {
            self.grpc.answer(request).await
        } else {
            self.routes.answer(request).await
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_client_with_many_requests_does_not_keep_others_waiting() {
        let service = AdminService::new(Admin::idle());
        let mut clients = Vec::new();
        for requests in [16, 1] {
            let (mut client, stream) = tokio::io::duplex(64 * 1024);
            let request = "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n";
            let requests = request.repeat(requests);
            client.write_all(requests.as_bytes()).await.unwrap();
            let minute = Duration::from_secs(60);
            tokio::spawn(service.clone().open(stream, None, minute));
            clients.push(client);
        }
        let mut buffer = vec![0; 64 * 1024];
        let read = clients[1].read(&mut buffer).await.unwrap();
        assert!(read > 0);
        let read = clients[0].read(&mut buffer).await.unwrap();
        let answers = String::from_utf8_lossy(&buffer[..read]);
        let answers = answers.matches("HTTP/1.1 200").count();
        assert!(
            answers <= 4,
            "{answers} before the other client got its own"
        );
    }

    #[tokio::test]
    async fn a_connection_without_requests_is_closed() {
        for first in ["", "GET /livez HT", "PRI * HTTP/2.0\r\n\r\nSM"] {
            let service = AdminService::new(Admin::idle());
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap();
            client.write_all(first.as_bytes()).await.unwrap();
            let (stream, peer) = listener.accept().await.unwrap();
            let open = service.open(stream, Some(peer.ip()), Duration::from_millis(50));
            tokio::time::timeout(Duration::from_secs(5), open)
                .await
                .unwrap_or_else(|_| panic!("still open after {first:?}"));
            let mut rest = Vec::new();
            // Closed, with a response, or with a reset because of unread bytes.
            let _ = client.read_to_end(&mut rest).await;
            assert!(!rest.starts_with(b"HTTP/1.1 200"), "{first:?}");
        }
    }
}
