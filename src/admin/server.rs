//! The door of the admin port: HTTP/1.1, and HTTP/2 by prior knowledge, for pages and gRPC alike.
//!
//! Must not know what is answered.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::Admin;
use super::grpc::Grpc;
use super::live::Live;
use crate::lifecycle::Phase;
use crate::pages::Answer;

/// What a request's head may take, and a connection to begin with one.
const HEAD: Duration = Duration::from_secs(10);
/// Requests of one HTTP/2 connection at a time: more than all watches together, so that one can still ask.
const STREAMS: u32 = 128;
/// How often an HTTP/2 client is asked whether it is still there, and how long it may take to say so.
const ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// Serves the admin port until the process ends, and then until the last answer is out: the caller sets a limit to that.
pub async fn serve(listener: TcpListener, admin: Admin) {
    let door = Door::new(admin);
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut ending = std::pin::pin!(door.admin.lifecycle.reached(Phase::Ending));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = ending.as_mut() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => drop(connections.spawn(door.clone().open(stream, peer, HEAD))),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            _ = seconds.tick() => door.live.sample(),
            // Joined as they end, so that the set does not grow.
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

#[derive(Clone)]
struct Door {
    admin: Admin,
    grpc: Grpc,
    live: Live,
}

impl Door {
    fn new(admin: Admin) -> Self {
        Self {
            grpc: Grpc::new(&admin),
            live: Live::new(&admin),
            admin,
        }
    }

    async fn open(self, stream: TcpStream, peer: SocketAddr, patience: Duration) {
        let begun = Arc::new(AtomicBool::new(false));
        let service = service_fn(|request| {
            begun.store(true, Ordering::Relaxed);
            let door = self.clone();
            async move { Ok::<_, Infallible>(door.answer(request, peer).await) }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(patience);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .keep_alive_interval(ALIVE.0)
            .keep_alive_timeout(ALIVE.1);
        let mut connection =
            std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        // Hyper's limit for a head begins only once it knows which HTTP is spoken.
        let mut late = std::pin::pin!(tokio::time::sleep(patience));
        let mut ending = std::pin::pin!(self.admin.lifecycle.reached(Phase::Ending));
        let (mut watches, mut lives) = (true, true);
        let ended = loop {
            tokio::select! {
                ended = connection.as_mut() => break ended,
                () = late.as_mut(), if watches => {
                    watches = false;
                    if !begun.load(Ordering::Relaxed) {
                        return tracing::debug!(%peer, "an admin connection never asked for anything");
                    }
                }
                () = ending.as_mut(), if lives => {
                    lives = false;
                    connection.as_mut().graceful_shutdown();
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "an admin connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Answer {
        if Grpc::is_meant_by(&request) {
            self.grpc.answer(request).await
        } else if let Some(answer) = self.live.answer(&request) {
            answer
        } else {
            self.admin.answer(request, peer).await
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_connection_that_asks_for_nothing_is_closed() {
        for first in ["", "GET /livez HT", "PRI * HTTP/2.0\r\n\r\nSM"] {
            let door = Door::new(Admin::idle());
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap();
            client.write_all(first.as_bytes()).await.unwrap();
            let (stream, peer) = listener.accept().await.unwrap();
            let open = door.open(stream, peer, Duration::from_millis(50));
            tokio::time::timeout(Duration::from_secs(5), open)
                .await
                .unwrap_or_else(|_| panic!("still open after {first:?}"));
            let mut rest = Vec::new();
            // Closed, be it with an answer, or with a reset because of what was not read.
            let _ = client.read_to_end(&mut rest).await;
            assert!(!rest.starts_with(b"HTTP/1.1 200"), "{first:?}");
        }
    }
}
