//! Model servers whose behaviour follows from their numbers. They check and record everything that reaches them.

pub mod behavior;
pub mod check;
pub mod http1;
pub mod http2;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::client::request::ClientRequest;
use crate::ledger::{Ledger, Visit, VisitEnd};
use crate::wire::Tag;
use behavior::Behavior;

/// State shared by all servers of a round.
pub struct ServerContext {
    pub seed: u64,
    /// Whether the servers use HTTP/2, by prior knowledge.
    pub http2: bool,
    pub ledger: Ledger,
}

impl ServerContext {
    /// Records that a server got this request over this connection. Returns what the server does, and its response.
    pub fn visited(
        &self,
        [server, connection]: [usize; 2],
        planned: &ClientRequest,
        visit: usize,
    ) -> (Behavior, Tag, Vec<u8>) {
        let behavior = self.behavior(server, planned, visit);
        let tag = Tag {
            id: planned.id,
            visit,
        };
        let answer = behavior.body(tag);
        let visit = Visit {
            server,
            connection,
            began: Instant::now(),
            behavior: behavior.clone(),
            whole: false,
            body_bytes: 0,
            answer: answer.clone(),
            end: VisitEnd::Open,
        };
        self.ledger.visit(planned.id, visit);
        (behavior, tag, answer)
    }

    /// What server `number` does with this visit.
    fn behavior(&self, number: usize, planned: &ClientRequest, visit: usize) -> Behavior {
        // The first wave is a warm-up.
        let behavior = Behavior::of(self.seed, number, planned, visit, planned.id.wave() == 0);
        if self.http2 {
            behavior.in_http2()
        } else {
            behavior
        }
    }
}

/// A running server. It keeps its address while it is down.
pub struct Server {
    pub address: SocketAddr,
    /// Whether it is up, and a count, so that a quick stop and resume is noticed.
    up: watch::Sender<(bool, usize)>,
    task: JoinHandle<()>,
}

impl Server {
    pub async fn start(number: usize, context: Arc<ServerContext>) -> Self {
        // An address that the system does not assign to clients at random, so that it is free again when the server comes back.
        let process = std::process::id();
        let host = [127, 64 + number as u8, (process >> 8) as u8, process as u8];
        let listener = TcpListener::bind(SocketAddr::from((host, 0)))
            .await
            .unwrap();
        let address = listener.local_addr().unwrap();
        let (up, commands) = watch::channel((true, 0));
        let task = tokio::spawn(run(number, context, listener, commands));
        Self { address, up, task }
    }

    /// Closes its listener and all connections.
    pub fn stop(&self) {
        self.up.send_modify(|(up, count)| {
            *up = false;
            *count += 1;
        });
    }

    pub fn resume(&self) {
        self.up.send_modify(|(up, _)| *up = true);
    }

    /// `host:port`, as the program expects it.
    pub fn url(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(
    number: usize,
    context: Arc<ServerContext>,
    listener: TcpListener,
    mut commands: watch::Receiver<(bool, usize)>,
) {
    let address = listener.local_addr().unwrap();
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    let mut count = 0;
    loop {
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = accept => {
                let Ok((stream, _)) = accepted else { continue };
                count += 1;
                connections.spawn(serve(number, count, context.clone(), stream));
            }
            Some(_) = connections.join_next() => {}
            changed = commands.changed() => {
                if changed.is_err() {
                    return;
                }
                let (up, _) = *commands.borrow_and_update();
                listener = None;
                connections.shutdown().await;
                if up {
                    listener = Some(bind_again(address).await);
                }
            }
        }
    }
}

/// Listens again at an address that was released a moment ago.
async fn bind_again(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

async fn serve(number: usize, connection: usize, context: Arc<ServerContext>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    if context.http2 {
        http2::serve(number, connection, context, stream).await;
    } else {
        http1::serve(number, connection, &context, stream).await;
    }
}

/// How long a server waits for the body of a request.
pub const BODY_PATIENCE: Duration = Duration::from_secs(3);
