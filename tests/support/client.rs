//! A client that sends exact bytes and reports everything that comes back: each piece of a body with its time, and how it
//! ended.
//!
//! Does not depend on the proxy.

pub mod http2;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::upstream::Io;
use super::wait::within;

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As its framing says.
    Clean,
    /// The connection was closed before the end of the framing.
    Eof,
    /// The connection was reset.
    Reset,
}

impl End {
    /// Can the client tell that something is missing?
    pub fn is_unclean(self) -> bool {
        self != Self::Clean
    }
}

/// Headers, with names in lower case.
#[derive(Clone, Debug, Default)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut fields = self.0.iter();
        let (_, value) = fields.find(|(known, _)| known == name)?;
        Some(value)
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

/// The head of a response.
#[derive(Clone, Debug)]
pub struct Head {
    pub version: String,
    pub status: u16,
    pub headers: Headers,
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub version: String,
    pub headers: Headers,
    pub body: Vec<u8>,
    pub trailers: Headers,
    pub end: End,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// # Panics
    /// If the body is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// The generation that sent the head.
    pub fn generation(&self) -> &str {
        self.header("x-crossfade-generation").unwrap_or("none")
    }

    /// Asserts a cleanly ended 200 with exactly this body.
    pub fn assert_is(&self, body: impl AsRef<[u8]>) {
        let wanted = String::from_utf8_lossy(body.as_ref()).into_owned();
        assert_eq!(
            (self.status, self.end),
            (200, End::Clean),
            "{}",
            self.text()
        );
        assert_eq!(self.text(), wanted);
    }

    /// The error in a response that crossfade generated, in OpenAI's format.
    ///
    /// # Panics
    /// If the body has another format.
    pub fn own_error(&self) -> serde_json::Value {
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string(), "{}", self.text());
        assert!(error["type"].is_string(), "{}", self.text());
        assert_eq!(error["code"], self.status, "{}", self.text());
        error
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    Done,
    Length(u64),
    /// Bytes left of the chunk, including its line end; 0 before a size line.
    Chunk(u64),
    UntilClose,
}

/// One HTTP/1.1 connection.
pub struct Client {
    io: Box<dyn Io>,
    buffer: Vec<u8>,
    framing: Framing,
    closed: Option<End>,
    /// How the last body ended, once it has.
    pub end: Option<End>,
    pub trailers: Headers,
}

impl Client {
    /// # Panics
    /// If there is no listener.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream)
    }

    /// A connection with the smallest possible receive buffer.
    pub async fn connect_narrow(address: SocketAddr) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self::over(socket.connect(address).await.unwrap())
    }

    pub fn over(io: impl Io) -> Self {
        Self {
            io: Box::new(io),
            buffer: Vec::new(),
            framing: Framing::Done,
            closed: None,
            end: None,
            trailers: Headers::default(),
        }
    }

    /// Sends bytes as they are. An error shows up when reading.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = within("sending", self.io.write_all(bytes.as_ref())).await;
        let _ = self.io.flush().await;
    }

    /// Tries to send. Returns false if the connection is broken.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.io.write_all(bytes.as_ref()).await.is_ok()
    }

    /// Closes the sending side of the connection.
    pub async fn half_close(&mut self) {
        let _ = self.io.shutdown().await;
    }

    /// Sends a POST with a body of known length.
    pub async fn post(&mut self, path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) {
        let mut bytes = head("POST", path, headers, body.as_ref().len());
        bytes.extend(body.as_ref());
        self.send(bytes).await;
    }

    /// Sends a request without a body.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) {
        self.send(head("GET", path, headers, 0)).await;
    }

    /// Reads the next head, which may be an interim one.
    ///
    /// # Panics
    /// If there is none.
    pub async fn head(&mut self) -> Head {
        match within("a response head", self.try_head()).await {
            Ok(head) => head,
            Err(end) => panic!("no response head, but {end:?}: {:?}", text(&self.buffer)),
        }
    }

    /// Reads the next head.
    ///
    /// # Errors
    /// How the connection ended instead.
    pub async fn try_head(&mut self) -> Result<Head, End> {
        let length = loop {
            match find(&self.buffer, b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => self.fill().await?,
            }
        };
        let bytes: Vec<u8> = self.buffer.drain(..length).collect();
        let head = text(&bytes);
        let mut lines = head.trim_end().split("\r\n");
        let mut words = lines.next().unwrap_or_default().splitn(3, ' ');
        let version = words.next().unwrap_or_default().to_owned();
        let status = words.next().unwrap_or_default().parse();
        let status: u16 = status.unwrap_or_else(|_| panic!("no status: {head:?}"));
        let headers = Headers(
            lines
                .map(|line| line.split_once(':').expect("a header line"))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                .collect(),
        );
        self.end = None;
        self.trailers = Headers::default();
        self.framing = framing(status, &headers);
        if self.framing == Framing::Done {
            self.end = Some(End::Clean);
        }
        Ok(Head {
            version,
            status,
            headers,
        })
    }

    /// The next piece of the body; `None` at its end, after which [`Client::end`] is set.
    pub async fn piece(&mut self) -> Option<Vec<u8>> {
        within("more of a body", self.try_piece()).await
    }

    /// Reads the body until the data so far ends with `end`.
    ///
    /// # Panics
    /// If the body ends before that.
    pub async fn until(&mut self, end: &str) -> String {
        let mut seen = Vec::new();
        while !seen.ends_with(end.as_bytes()) {
            match self.piece().await {
                Some(piece) => seen.extend(piece),
                None => panic!("ended ({:?}) before {end:?}: {:?}", self.end, text(&seen)),
            }
        }
        text(&seen)
    }

    /// Asserts that nothing arrives for `millis` milliseconds.
    pub async fn assert_silent(&mut self, millis: u64) {
        let wait = Duration::from_millis(millis);
        if let Ok(piece) = tokio::time::timeout(wait, self.try_piece()).await {
            panic!(
                "came: {:?}, {:?}",
                piece.map(|piece| text(&piece)),
                self.end
            );
        }
    }

    async fn try_piece(&mut self) -> Option<Vec<u8>> {
        loop {
            let step = match self.framing {
                Framing::Done => return None,
                Framing::Length(left) => self.up_to(left).inspect(|piece| {
                    self.framing = match left - piece.len() as u64 {
                        0 => Framing::Done,
                        left => Framing::Length(left),
                    };
                }),
                Framing::UntilClose => self.up_to(u64::MAX),
                Framing::Chunk(0) => match self.chunk_size() {
                    Some(0) => {
                        self.framing = Framing::Done;
                        self.end = Some(End::Clean);
                        return None;
                    }
                    Some(size) => {
                        self.framing = Framing::Chunk(size + 2);
                        continue;
                    }
                    None => None,
                },
                Framing::Chunk(left) if left > 2 => self.up_to(left - 2).inspect(|piece| {
                    self.framing = Framing::Chunk(left - piece.len() as u64);
                }),
                Framing::Chunk(_) if self.buffer.len() >= 2 => {
                    assert_eq!(self.buffer[..2], *b"\r\n", "the end of a chunk");
                    self.buffer.drain(..2);
                    self.framing = Framing::Chunk(0);
                    continue;
                }
                Framing::Chunk(_) => None,
            };
            if let Some(piece) = step {
                if self.framing == Framing::Done {
                    self.end = Some(End::Clean);
                }
                return Some(piece);
            }
            if let Err(end) = self.fill().await {
                let is_right = self.framing == Framing::UntilClose && end == End::Eof;
                self.end = Some(if is_right { End::Clean } else { end });
                self.framing = Framing::Done;
                return None;
            }
        }
    }

    /// Takes what has arrived of `count` bytes.
    fn up_to(&mut self, count: u64) -> Option<Vec<u8>> {
        let count = usize::try_from(count)
            .unwrap_or(usize::MAX)
            .min(self.buffer.len());
        (count > 0).then(|| self.buffer.drain(..count).collect())
    }

    /// Parses a size line and, after the last chunk, all trailers.
    fn chunk_size(&mut self) -> Option<u64> {
        let line = find(&self.buffer, b"\r\n")?;
        let size = text(&self.buffer[..line]);
        let size = u64::from_str_radix(&size, 16).unwrap_or_else(|_| panic!("size {size:?}"));
        if size > 0 {
            self.buffer.drain(..line + 2);
            return Some(size);
        }
        let end = find(&self.buffer[line..], b"\r\n\r\n")? + line;
        if end > line {
            let trailers = text(&self.buffer[line + 2..end]);
            self.trailers = Headers(
                trailers
                    .split("\r\n")
                    .filter_map(|line| line.split_once(':'))
                    .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                    .collect(),
            );
        }
        self.buffer.drain(..end + 4);
        Some(0)
    }

    /// The rest of the body.
    pub async fn body(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece().await {
            body.extend(piece);
        }
        body
    }

    /// The next final response, complete.
    pub async fn response(&mut self) -> Response {
        let mut head = self.head().await;
        while (100..200).contains(&head.status) && head.status != 101 {
            head = self.head().await;
        }
        self.rest(head).await
    }

    /// The response to a HEAD request.
    pub async fn bodiless(&mut self) -> Response {
        let head = self.head().await;
        self.framing = Framing::Done;
        self.end = Some(End::Clean);
        self.rest(head).await
    }

    /// The rest of the response whose head has been read.
    pub async fn rest(&mut self, head: Head) -> Response {
        let body = self.body().await;
        Response {
            status: head.status,
            version: head.version,
            headers: head.headers,
            body,
            trailers: self.trailers.clone(),
            end: self.end.expect("the body has ended"),
        }
    }

    /// Waits until the connection is closed. Returns the data before that.
    pub async fn until_closed(&mut self) -> (Vec<u8>, End) {
        let end = within("the connection is closed", async {
            loop {
                if let Err(end) = self.fill().await {
                    return end;
                }
            }
        })
        .await;
        (std::mem::take(&mut self.buffer), end)
    }

    /// Reads exactly `count` raw bytes.
    pub async fn exactly(&mut self, count: usize) -> Vec<u8> {
        within("bytes on the wire", async {
            while self.buffer.len() < count {
                if let Err(end) = self.fill().await {
                    panic!("{end:?} after {:?}", text(&self.buffer));
                }
            }
        })
        .await;
        self.buffer.drain(..count).collect()
    }

    async fn fill(&mut self) -> Result<(), End> {
        if let Some(end) = self.closed {
            return Err(end);
        }
        let end = match self.io.read_buf(&mut self.buffer).await {
            Ok(0) => End::Eof,
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => End::Eof,
            Err(_) => End::Reset,
        };
        self.closed = Some(end);
        Err(end)
    }
}

fn framing(status: u16, headers: &Headers) -> Framing {
    if status < 200 || status == 204 || status == 304 {
        Framing::Done
    } else if headers.get("transfer-encoding").is_some() {
        assert!(headers.get("content-length").is_none(), "two lengths");
        Framing::Chunk(0)
    } else if let Some(length) = headers.get("content-length") {
        match length.parse().expect("a length") {
            0 => Framing::Done,
            length => Framing::Length(length),
        }
    } else {
        Framing::UntilClose
    }
}

fn head(method: &str, path: &str, headers: &[(&str, &str)], length: usize) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head += "host: localhost\r\n";
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if method == "POST" {
        head += &format!("content-type: application/json\r\ncontent-length: {length}\r\n");
    }
    head += "\r\n";
    head.into_bytes()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One GET on its own connection.
pub async fn get(address: SocketAddr, path: &str) -> Response {
    let mut client = Client::connect(address).await;
    client.get(path, &[("connection", "close")]).await;
    client.response().await
}

/// One POST on its own connection.
pub async fn post(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> Response {
    let mut client = Client::connect(address).await;
    client.post(path, headers, body).await;
    client.response().await
}

/// One streaming chat on its own connection.
pub async fn chat(address: SocketAddr) -> Response {
    post(address, super::CHAT, &[], super::STREAMING).await
}

/// Sends a streaming chat without reading its response.
pub async fn open_chat(address: SocketAddr) -> Client {
    let mut client = Client::connect(address).await;
    client.post(super::CHAT, &[], super::STREAMING).await;
    client
}
