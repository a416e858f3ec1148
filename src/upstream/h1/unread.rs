//! Determines from the state of TCP whether a server can have read any of a request, and whether data can be its response.
//!
//! A server may close an idle connection just as a request is sent over it. Such a request may be retried with any method (RFC
//! 9112 §9.3.1), but only if it is certain that the server has not read it. That is certain if the server's FIN has arrived while
//! all bytes of the request are still unacknowledged, because a FIN acknowledges everything that arrived before it was sent. A
//! reset proves nothing: it acknowledges nothing, so a server that read the request and then died looks like one that never
//! received it.
//!
//! Data that arrives on a reused connection while all bytes of the request are still unacknowledged was sent before the server
//! received any of them, so it is not the response (RFC 9112 §9.2).

use crate::transport::{Transport, tcp};

/// The state of the connection before the request is written.
pub(super) struct Unread {
    /// Bytes that the server had acknowledged. Used for TLS only, where the encrypted length of the request is unknown.
    acknowledged: Option<u64>,
}

impl Unread {
    /// Call this before the first byte is written.
    pub(super) fn before(transport: &Transport) -> Self {
        let acknowledged = match transport {
            Transport::Tcp(_) => None,
            Transport::Tls(_) => tcp::info(transport.socket())
                .map(|info| info.bytes_acknowledged)
                .ok(),
        };
        Self { acknowledged }
    }

    /// Whether it is certain that none of the `written` bytes had reached the server's machine when it sent the most recent
    /// data. Call this before that data is used: an acknowledgement that arrives later proves nothing about it.
    pub(super) fn is_certain(&self, transport: &Transport, written: u64) -> bool {
        match transport {
            Transport::Tcp(socket) => tcp::unacknowledged(socket).is_ok_and(|left| left >= written),
            Transport::Tls(_) => tcp::info(transport.socket())
                .is_ok_and(|info| Some(info.bytes_acknowledged) == self.acknowledged),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderMap, Method, Uri};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::exchange;
    use crate::memory::Budget;
    use crate::request_body::RequestBody;
    use crate::transport::Transport;
    use crate::upstream::endpoint::{Endpoint, InFlight};
    use crate::upstream::{AddedFields, Error, Head, Outgoing};

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).await.expect("a connection");
        let (server, _) = listener.accept().await.expect("a connection");
        (client, server)
    }

    /// The error of a request over `transport`.
    async fn failure(transport: TcpStream, used: bool, body: &'static str) -> Error {
        let address = transport.peer_addr().expect("an address");
        let head = Head {
            method: Method::POST,
            uri: Uri::from_static("/"),
            headers: HeaderMap::new(),
            added: AddedFields::default(),
            expects_continue: false,
        };
        let outgoing = Outgoing {
            head: &head,
            extra: None,
            memory: &Budget::new(1 << 20),
        };
        let in_flight = InFlight::new(Arc::new(Endpoint::new(address, None, false)));
        let body = RequestBody::whole(body.into());
        match exchange(in_flight, Transport::Tcp(transport), used, outgoing, body).await {
            Ok(response) => panic!("answered {}", response.status()),
            Err((error, ..)) => error,
        }
    }

    #[tokio::test]
    async fn a_request_over_a_connection_that_was_closed_before_is_certainly_unread() {
        for body in ["", "x", &"x".repeat(100_000)] {
            let (client, server) = pair().await;
            drop(server);
            let error = failure(client, true, String::from(body).leak()).await;
            assert!(matches!(error, Error::Unread(_)), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_request_that_the_server_took_is_not() {
        for reset in [false, true] {
            let (client, mut server) = pair().await;
            let serving = async {
                let mut read = [0; 1000];
                assert!(server.read(&mut read).await.expect("a request") > 0);
                if reset {
                    let socket = socket2::SockRef::from(&server);
                    socket
                        .set_linger(Some(std::time::Duration::ZERO))
                        .expect("set");
                }
                drop(server);
            };
            let (error, ()) = tokio::join!(failure(client, true, "x"), serving);
            assert!(matches!(error, Error::BrokenBeforeResponse(_)), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_request_with_a_partial_response_is_not_certainly_unread() {
        for begun in ["H", "HTTP/1.1 103 Early Hints\r\n\r\n"] {
            let (client, mut server) = pair().await;
            server.write_all(begun.as_bytes()).await.expect("written");
            drop(server);
            let error = failure(client, false, "x").await;
            assert!(matches!(error, Error::BrokenInHead(_)), "{error:?}");
        }
    }

    /// A connection whose buffers are full: the server reads nothing and accepts no more for now.
    async fn full() -> (TcpStream, TcpStream) {
        let (client, server) = pair().await;
        let small = socket2::SockRef::from(&server);
        small.set_recv_buffer_size(4096).expect("set");
        let large = socket2::SockRef::from(&client);
        large.set_send_buffer_size(1 << 20).expect("set");
        let before = vec![b'x'; 256 << 10];
        assert_eq!(client.try_write(&before).expect("written"), before.len());
        (client, server)
    }

    #[tokio::test]
    async fn data_sent_before_the_request_is_not_the_response() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let (client, mut server) = full().await;
        server.write_all(answer).await.expect("written");
        let error = failure(client, true, "x").await;
        assert!(matches!(error, Error::BrokenBeforeResponse(_)), "{error:?}");
    }
}
