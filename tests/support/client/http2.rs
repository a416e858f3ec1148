//! An HTTP/2 client (hyper's), over clear text with prior knowledge or over TLS.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::super::upstream::Io;
use super::super::wait::{eventually, within};
use super::{End, Headers, Response};

/// One connection. Dropping it closes it.
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    connection: JoinHandle<hyper::Result<()>>,
    /// A handle of the same socket, if there is one.
    socket: Option<std::net::TcpStream>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// A response whose body is being read.
pub struct Stream {
    pub status: u16,
    pub headers: Headers,
    pub trailers: Headers,
    body: Incoming,
    pub end: Option<End>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let stream = stream.into_std().unwrap();
        stream.set_nodelay(true).unwrap();
        let socket = stream.try_clone().unwrap();
        let mut client = Self::over(TcpStream::from_std(stream).unwrap()).await;
        client.socket = Some(socket);
        client
    }

    /// Breaks the connection, with all its open streams.
    pub fn break_off(&self) {
        let socket = self.socket.as_ref().expect("made by `connect`");
        socket.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// Waits until the connection has ended.
    pub async fn ended(&self) {
        eventually("the connection ends", async || {
            self.connection.is_finished()
        })
        .await;
    }

    pub async fn over(io: impl Io) -> Self {
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(io))
            .await
            .unwrap();
        Self {
            sender,
            connection: tokio::spawn(connection),
            socket: None,
        }
    }

    /// Sends a request. Returns the response once its head has arrived.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> hyper::Result<Stream> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://models.example{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body.as_ref()));
        let mut sender = self.sender.clone();
        let response = sender.send_request(request.body(body).unwrap()).await?;
        Ok(Stream {
            status: response.status().as_u16(),
            headers: headers_of(response.headers()),
            trailers: Headers::default(),
            body: response.into_body(),
            end: None,
        })
    }

    pub async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Stream {
        let mut all = vec![("content-type", "application/json")];
        all.extend(headers);
        let sent = self.send("POST", path, &all, body);
        within("an HTTP/2 response head", sent).await.unwrap()
    }

    pub async fn chat(&self) -> Stream {
        self.post(super::super::CHAT, &[], super::super::STREAMING)
            .await
    }

    pub async fn get(&self, path: &str) -> Response {
        let sent = self.send("GET", path, &[], "");
        let stream = within("an HTTP/2 response head", sent).await.unwrap();
        stream.response().await
    }
}

impl Stream {
    /// The next piece of the body; `None` at its end.
    pub async fn piece(&mut self) -> Option<Vec<u8>> {
        loop {
            match within("more of an HTTP/2 body", self.body.frame()).await {
                None => {
                    self.end = Some(End::Clean);
                    return None;
                }
                Some(Err(_)) => {
                    self.end = Some(End::Reset);
                    return None;
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Some(data.to_vec()),
                    Err(frame) => {
                        self.trailers = headers_of(&frame.into_trailers().unwrap());
                    }
                },
            }
        }
    }

    /// Reads the body until the data so far ends with `end`.
    ///
    /// # Panics
    /// If the body ends before that.
    pub async fn until(&mut self, end: &str) -> String {
        let mut seen = Vec::new();
        while !seen.ends_with(end.as_bytes()) {
            let piece = self.piece().await;
            let seen_so_far = String::from_utf8_lossy(&seen).into_owned();
            seen.extend(piece.unwrap_or_else(|| panic!("before {end:?} only {seen_so_far:?}")));
        }
        String::from_utf8(seen).unwrap()
    }

    pub async fn response(mut self) -> Response {
        let mut body = Vec::new();
        while let Some(piece) = self.piece().await {
            body.extend(piece);
        }
        Response {
            status: self.status,
            version: "HTTP/2".into(),
            headers: self.headers,
            body,
            trailers: self.trailers,
            end: self.end.expect("the body has ended"),
        }
    }
}

fn headers_of(map: &HeaderMap) -> Headers {
    Headers(
        map.iter()
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                (name.to_string(), value)
            })
            .collect(),
    )
}
