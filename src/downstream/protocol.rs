//! Serves one client connection: the TLS handshake, then HTTP/1.1 or HTTP/2, chosen by ALPN or by the first bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::h1::Connection;
use super::h2;
use super::limits::Limits;
use crate::lifecycle::{Lifecycle, ProcessPhase};
use crate::memory::FREE;
use crate::proxy::{Client, ConnectionPermit, OldBackend, Proxy};
use crate::tls::{Reloading, ServerFiles};
use crate::transport::h2::PREFACE;
use crate::transport::write_timeout::{WriteLimit, WriteTimeout};
use crate::transport::{Prefixed, Transport, Yielding, deadline};

/// How long a drain waits for the first bytes of a connection that has sent nothing yet.
const FIRST_BYTES_GRACE: Duration = Duration::from_secs(1);

/// Everything needed to serve a connection.
#[derive(Clone)]
pub struct ConnectionHandler<O> {
    pub proxy: Proxy<O>,
    pub limits: Arc<Limits>,
    pub write_limit: Arc<WriteLimit>,
    pub tls: Option<Arc<Reloading<ServerFiles>>>,
    pub lifecycle: Lifecycle,
}

impl<O: OldBackend> ConnectionHandler<O> {
    /// Serves a connection until it ends, and holds its permit until then.
    pub async fn serve(self, stream: TcpStream, peer: SocketAddr, _permit: ConnectionPermit) {
        match self.tls.clone() {
            None => {
                let client = Client::new(peer.ip(), false);
                let transport = self.limited(Transport::Tcp(stream));
                self.plaintext(transport, client).await;
            }
            // Boxed: otherwise this rare state would be part of every connection's task.
            Some(tls) => Box::pin(self.tls(stream, peer, tls)).await,
        }
    }

    fn limited(&self, transport: Transport) -> WriteTimeout {
        WriteTimeout::new(transport, Arc::clone(&self.write_limit))
    }

    /// Runs `future` on a connection that has not sent a request yet: for at most `--head-timeout`, and during a drain
    /// for at most [`FIRST_BYTES_GRACE`].
    async fn before_first_bytes<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let given_up = async {
            self.lifecycle.reached(ProcessPhase::Draining).await;
            tokio::select! {
                () = tokio::time::sleep(FIRST_BYTES_GRACE) => {}
                () = self.lifecycle.reached(ProcessPhase::Ending) => {}
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

    async fn tls(self, stream: TcpStream, peer: SocketAddr, tls: Arc<Reloading<ServerFiles>>) {
        let handshake = TlsAcceptor::from(tls.current()).accept(Yielding::new(stream));
        let stream = match self.before_first_bytes(handshake).await {
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
        Box::pin(self.plaintext(transport, client)).await;
    }

    /// Serves HTTP/1.1, or HTTP/2 if the connection starts with its preface.
    async fn plaintext(self, mut transport: WriteTimeout, client: Client) {
        // The first request has usually arrived with the connection.
        let memory = &self.proxy.context().memory;
        let read = std::future::poll_fn(|cx| Poll::Ready(transport.poll_read_within(cx, memory)));
        let read = read.await;
        let mut first = match read {
            Poll::Ready(Ok(bytes)) if !bytes.is_empty() => bytes,
            Poll::Ready(_) => return,
            Poll::Pending => BytesMut::new(),
        };
        if !is_decisive(&first) {
            // Copy it out of the shared read buffer: it may be held for a while.
            first = BytesMut::from(&first[..]);
            let begun = self.before_first_bytes(read_first_bytes(&mut transport, &mut first));
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
        let transport = Prefixed::new(first.freeze(), transport);
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

/// Whether these first bytes decide between HTTP/1.1 and HTTP/2.
fn is_decisive(first: &[u8]) -> bool {
    let shared = first.len().min(PREFACE.len());
    first[..shared] != PREFACE[..shared] || shared == PREFACE.len()
}

/// Reads until the first bytes decide the protocol. Returns false if the connection ended before that.
async fn read_first_bytes(transport: &mut WriteTimeout, first: &mut BytesMut) -> bool {
    while !is_decisive(first) {
        match std::future::poll_fn(|cx| transport.poll_read_apart(cx, FREE)).await {
            Ok(bytes) if !bytes.is_empty() => first.extend_from_slice(&bytes),
            _ => return false,
        }
    }
    true
}
