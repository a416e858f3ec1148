//! HTTP/2 written by hand, frame by frame (RFC 9113 §4.1), for what no well-behaved library sends. It plays both sides: a
//! client of the proxy, and a model server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::upstream::Io;
use super::wait::within;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub const MAX_CONCURRENT_STREAMS: u16 = 3;
pub const INITIAL_WINDOW_SIZE: u16 = 4;

pub const NO_ERROR: u32 = 0;
pub const PROTOCOL_ERROR: u32 = 1;
pub const INTERNAL_ERROR: u32 = 2;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn ends_stream(&self) -> bool {
        [DATA, HEADERS].contains(&self.kind) && self.flags & END_STREAM != 0
    }

    /// The error code of RST_STREAM, or the last stream and the error code of GOAWAY.
    pub fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// One connection.
pub struct Frames {
    io: Box<dyn Io>,
    /// Whether to acknowledge SETTINGS and PINGs while frames are read.
    pub answers: bool,
}

impl Frames {
    /// A client connection that has sent nothing yet.
    pub async fn silent(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream)
    }

    pub fn over(io: impl Io) -> Self {
        Self {
            io: Box::new(io),
            answers: true,
        }
    }

    /// A client connection that has sent its preface and these settings.
    pub async fn connect(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut frames = Self::silent(address).await;
        frames.raw(PREFACE).await;
        frames.settings(settings).await;
        frames
    }

    /// The server's side of a connection: reads the client's preface and sends these settings.
    pub async fn accept(io: impl Io, settings: &[(u16, u32)]) -> Self {
        let mut frames = Self::over(io);
        let mut preface = [0; PREFACE.len()];
        frames.io.read_exact(&mut preface).await.unwrap();
        frames.settings(settings).await;
        frames
    }

    pub async fn raw(&mut self, bytes: &[u8]) -> bool {
        self.io.write_all(bytes).await.is_ok() && self.io.flush().await.is_ok()
    }

    /// Sends a frame. Returns false if the connection is broken.
    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.raw(&frame(kind, flags, stream, payload)).await
    }

    pub async fn settings(&mut self, settings: &[(u16, u32)]) {
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        self.send(SETTINGS, 0, 0, &payload).await;
    }

    pub async fn headers(&mut self, stream: u32, flags: u8, fields: &[(&str, &str)]) -> bool {
        self.send(HEADERS, flags | END_HEADERS, stream, &block(fields))
            .await
    }

    /// Sends the head of a request with this method and path.
    pub async fn request(&mut self, stream: u32, flags: u8, method: &str, path: &str) -> bool {
        let fields = [
            (":method", method),
            (":scheme", "http"),
            (":path", path),
            (":authority", "models.example"),
        ];
        self.headers(stream, flags, &fields).await
    }

    pub async fn reset(&mut self, stream: u32, code: u32) -> bool {
        self.send(RST_STREAM, 0, stream, &code.to_be_bytes()).await
    }

    pub async fn go_away(&mut self, last: u32, code: u32) -> bool {
        let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
        self.send(GOAWAY, 0, 0, &payload).await
    }

    /// The next frame; `None` if the connection has ended.
    pub async fn try_next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.io.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.io.read_exact(&mut payload).await.ok()?;
        let frame = Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes(head[5..].try_into().unwrap()) & (u32::MAX >> 1),
            payload,
        };
        let is_asked = [SETTINGS, PING].contains(&frame.kind) && frame.flags & ACK == 0;
        if is_asked && self.answers {
            let payload = match frame.kind {
                PING => &frame.payload[..],
                _ => &[],
            };
            self.send(frame.kind, ACK, 0, payload).await;
        }
        Some(frame)
    }

    /// The next frame of one of these kinds; `None` if the connection has ended.
    pub async fn next_of(&mut self, kinds: &[u8]) -> Option<Frame> {
        let next = async {
            loop {
                let frame = self.try_next().await?;
                if kinds.contains(&frame.kind) {
                    return Some(frame);
                }
            }
        };
        within("a frame", next).await
    }

    /// Reads until a stream has ended: its body, and the frame that ended it. `None` if the connection ended first.
    pub async fn end_of(&mut self, stream: u32) -> (Vec<u8>, Option<Frame>) {
        let mut body = Vec::new();
        loop {
            let Some(frame) = self.next_of(&[DATA, HEADERS, RST_STREAM]).await else {
                return (body, None);
            };
            if frame.stream != stream {
                continue;
            }
            if frame.kind == DATA {
                body.extend_from_slice(&frame.payload);
            }
            if frame.kind == RST_STREAM || frame.ends_stream() {
                return (body, Some(frame));
            }
        }
    }

    /// Reads until the connection ends, and returns the frames.
    pub async fn until_closed(&mut self) -> Vec<Frame> {
        let reading = async {
            let mut frames = Vec::new();
            while let Some(frame) = self.try_next().await {
                frames.push(frame);
            }
            frames
        };
        within("the end of the connection", reading).await
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A field block of literals without indexing (RFC 7541 §6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            // The length has a prefix of seven bits, and continues as in RFC 7541 §5.1.
            match text.len().checked_sub(127) {
                None => block.push(u8::try_from(text.len()).unwrap()),
                Some(mut rest) => {
                    block.push(127);
                    while rest >= 128 {
                        block.push(u8::try_from(rest % 128).unwrap() | 128);
                        rest /= 128;
                    }
                    block.push(u8::try_from(rest).unwrap());
                }
            }
            block.extend(text.as_bytes());
        }
    }
    block
}

/// A model server that handles its connections frame by frame.
pub struct FrameServer {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl FrameServer {
    /// Starts a server that sends these settings on each connection and then calls `serve` with the number of the connection,
    /// counted from 1.
    pub async fn start<F>(
        settings: &'static [(u16, u32)],
        serve: impl Fn(usize, Frames) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        let accepting = tokio::spawn(async move {
            let mut tasks = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let number = count.fetch_add(1, Ordering::Relaxed) + 1;
                let frames = Frames::accept(stream, settings).await;
                tasks.spawn(serve(number, frames));
            }
        });
        Self {
            address,
            connections,
            accepting,
        }
    }

    /// A server that calls `play` for each request once it is complete.
    pub async fn answering<F>(
        settings: &'static [(u16, u32)],
        play: impl Fn(Frames, u32) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Frames> + Send + 'static,
    {
        Self::start(settings, move |_, mut frames| {
            let play = play.clone();
            async move {
                while let Some(frame) = frames.try_next().await {
                    if frame.ends_stream() {
                        frames = play(frames, frame.stream).await;
                    }
                }
            }
        })
        .await
    }

    pub fn url(&self) -> String {
        self.address.to_string()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for FrameServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
