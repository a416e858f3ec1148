//! A strict reader of HTTP/1.1 messages (RFC 9112), written for these tests only: no program may send what it rejects.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum length of a head or a chunk line, in bytes.
const MAX_LINE: usize = 64 * 1024;

/// Why a message could not be read to its end.
#[derive(Debug)]
pub enum Broken {
    /// The connection was closed.
    Fin,
    Reset,
    /// The data is not HTTP.
    Malformed(String),
}

impl Broken {
    fn malformed(what: &str, bytes: &[u8]) -> Self {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(160)]);
        Self::Malformed(format!("{what}: {shown:?}"))
    }
}

/// The head of a message.
#[derive(Clone, Debug)]
pub struct Head {
    pub first_line: String,
    /// Names in lower case.
    pub fields: Vec<(String, String)>,
}

impl Head {
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let (_, value) = fields.find(|(known, _)| known == name)?;
        Some(value)
    }

    pub fn count(&self, name: &str) -> usize {
        let fields = self.fields.iter();
        fields.filter(|(known, _)| known == name).count()
    }

    /// The framing of the body, as far as the fields determine it.
    ///
    /// # Errors
    /// If the framing is ambiguous.
    pub fn framing(&self) -> Result<Option<Framing>, Broken> {
        let codings = self.count("transfer-encoding");
        let lengths = self.count("content-length");
        let refuse = |what: &str| Err(Broken::malformed(what, self.first_line.as_bytes()));
        if codings + lengths > 1 {
            return refuse("more than one length");
        }
        if let Some(coding) = self.get("transfer-encoding") {
            if coding != "chunked" {
                return refuse("a transfer coding other than chunked");
            }
            return Ok(Some(Framing::Chunked));
        }
        let Some(length) = self.get("content-length") else {
            return Ok(None);
        };
        match length.parse() {
            Ok(number) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                Ok(Some(Framing::Length(number)))
            }
            _ => refuse("a length that is no number"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// The state of reading a body: what is left of it.
#[derive(Debug)]
enum State {
    Length(usize),
    ChunkSize,
    Chunk(usize),
    UntilClose,
    Done,
}

/// The reading side of a connection.
pub struct Reader<R> {
    half: R,
    pub buffer: Vec<u8>,
    state: State,
    /// Maximum size of one read, in bytes.
    pub width: usize,
    pub trailers: Vec<(String, String)>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub fn new(half: R) -> Self {
        Self {
            half,
            buffer: Vec::new(),
            state: State::Done,
            width: 64 * 1024,
            trailers: Vec::new(),
        }
    }

    /// Reads more from the connection.
    ///
    /// # Errors
    /// If there is no more.
    pub async fn fill(&mut self) -> Result<(), Broken> {
        let mut limited = (&mut self.half).take(self.width as u64);
        match limited.read_buf(&mut self.buffer).await {
            Ok(0) => Err(Broken::Fin),
            Ok(_) => Ok(()),
            // TLS without a close_notify.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Broken::Fin),
            Err(_) => Err(Broken::Reset),
        }
    }

    async fn line(&mut self) -> Result<String, Broken> {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).collect();
                let line = &line[..at];
                let is_control = |byte: &u8| *byte != b'\t' && byte.is_ascii_control();
                if line.iter().any(is_control) {
                    return Err(Broken::malformed("a control character in a line", line));
                }
                return String::from_utf8(line.to_vec())
                    .map_err(|_| Broken::malformed("a line that is no text", line));
            }
            if self.buffer.len() > MAX_LINE {
                return Err(Broken::malformed("a line without an end", &self.buffer));
            }
            self.fill().await?;
        }
    }

    /// Reads the next head.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn head(&mut self) -> Result<Head, Broken> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        let first_line = self.line().await?;
        let fields = self.fields().await?;
        Ok(Head { first_line, fields })
    }

    async fn fields(&mut self) -> Result<Vec<(String, String)>, Broken> {
        let mut fields = Vec::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok(fields);
            }
            let field = line.split_once(':').filter(|(name, _)| is_token(name));
            let Some((name, value)) = field else {
                return Err(Broken::malformed("no field", line.as_bytes()));
            };
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// Prepares to read a body with this framing.
    pub fn expect_body(&mut self, framing: Option<Framing>) {
        self.trailers.clear();
        self.state = match framing {
            None | Some(Framing::Length(0)) => State::Done,
            Some(Framing::Length(length)) => State::Length(length),
            Some(Framing::Chunked) => State::ChunkSize,
            Some(Framing::UntilClose) => State::UntilClose,
        };
    }

    /// Reads the next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// Why it cannot be read to its end.
    pub async fn piece(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        loop {
            match self.state {
                State::Done => return Ok(None),
                State::UntilClose => {
                    if self.buffer.is_empty() {
                        match self.fill().await {
                            Ok(()) => {}
                            Err(Broken::Fin) => {
                                self.state = State::Done;
                                return Ok(None);
                            }
                            Err(broken) => return Err(broken),
                        }
                    }
                    return Ok(Some(std::mem::take(&mut self.buffer)));
                }
                State::Length(left) => {
                    let piece = self.some_of(left).await?;
                    self.state = match left - piece.len() {
                        0 => State::Done,
                        left => State::Length(left),
                    };
                    return Ok(Some(piece));
                }
                State::ChunkSize => {
                    let line = self.line().await?;
                    let size = line.split(';').next().unwrap_or_default();
                    let is_hex = !size.is_empty() && size.bytes().all(|b| b.is_ascii_hexdigit());
                    let size = is_hex
                        .then(|| usize::from_str_radix(size, 16).ok())
                        .flatten();
                    match size {
                        None => return Err(Broken::malformed("no chunk size", line.as_bytes())),
                        Some(0) => {
                            self.trailers = self.fields().await?;
                            self.state = State::Done;
                        }
                        Some(size) => self.state = State::Chunk(size),
                    }
                }
                State::Chunk(left) => {
                    let piece = self.some_of(left).await?;
                    self.state = State::Chunk(left - piece.len());
                    if left == piece.len() {
                        let end = self.line().await?;
                        if !end.is_empty() {
                            return Err(Broken::malformed("a chunk too long", end.as_bytes()));
                        }
                        self.state = State::ChunkSize;
                    }
                    return Ok(Some(piece));
                }
            }
        }
    }

    async fn some_of(&mut self, most: usize) -> Result<Vec<u8>, Broken> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        let here = most.min(self.buffer.len());
        Ok(self.buffer.drain(..here).collect())
    }
}

/// RFC 9110 §5.6.2.
pub fn is_token(text: &str) -> bool {
    let is_char = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_char)
}
