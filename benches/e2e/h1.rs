//! Reads HTTP/1.1 responses off a connection: head, chunks, end. Knows nothing of sockets and payloads.

use memchr::memmem;

/// What was found.
pub enum Piece<'a> {
    /// The status is 200; which generation served it, if that is known.
    Head {
        new: bool,
    },
    Body(&'a [u8]),
    End,
}

/// Where in a response the reader stands.
#[derive(Default)]
enum State {
    #[default]
    Head,
    /// In a chunk's size line.
    Size,
    /// In a chunk, with so many bytes to come.
    Chunk(usize),
    /// At the line end of a chunk.
    ChunkEnd,
    /// At the blank line behind the last chunk; trailers are not expected.
    LastLine,
    Length(usize),
}

#[derive(Default)]
pub struct Reader {
    state: State,
    /// Bytes of a head or a line that is not yet whole.
    held: Vec<u8>,
}

impl Reader {
    /// # Errors
    /// Says what is not as it should be.
    pub fn feed(
        &mut self,
        mut input: &[u8],
        mut on: impl FnMut(Piece<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        while !input.is_empty() {
            match self.state {
                State::Head => {
                    let Some(head) = self.take(&mut input, b"\r\n\r\n") else {
                        return Ok(());
                    };
                    self.head(&head, &mut on)?;
                }
                State::Size => {
                    let Some(line) = self.take(&mut input, b"\r\n") else {
                        return Ok(());
                    };
                    let text = str::from_utf8(&line).unwrap_or("?").trim_end();
                    let size = usize::from_str_radix(text, 16);
                    self.state = match size.map_err(|_| format!("a chunk size of {text:?}"))? {
                        0 => State::LastLine,
                        size => State::Chunk(size),
                    };
                }
                State::Chunk(left) => {
                    let (body, rest) = input.split_at(left.min(input.len()));
                    on(Piece::Body(body))?;
                    input = rest;
                    self.state = match left - body.len() {
                        0 => State::ChunkEnd,
                        left => State::Chunk(left),
                    };
                }
                State::ChunkEnd | State::LastLine => {
                    let Some(line) = self.take(&mut input, b"\r\n") else {
                        return Ok(());
                    };
                    if line.len() != 2 {
                        return Err(format!("after a chunk: {}", line.escape_ascii()));
                    }
                    if matches!(self.state, State::LastLine) {
                        self.state = State::Head;
                        on(Piece::End)?;
                    } else {
                        self.state = State::Size;
                    }
                }
                State::Length(left) => {
                    let (body, rest) = input.split_at(left.min(input.len()));
                    on(Piece::Body(body))?;
                    input = rest;
                    self.state = State::Length(left - body.len());
                    if left == body.len() {
                        self.state = State::Head;
                        on(Piece::End)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn head(
        &mut self,
        head: &[u8],
        on: &mut impl FnMut(Piece<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        if !head.starts_with(b"HTTP/1.1 200") {
            return Err(format!("a head: {}", head.escape_ascii()));
        }
        let head = head.to_ascii_lowercase();
        self.state = if value(&head, "transfer-encoding") == Some("chunked") {
            State::Size
        } else {
            let length = value(&head, "content-length").and_then(|text| text.parse().ok());
            State::Length(length.ok_or("neither chunked nor of a known length")?)
        };
        on(Piece::Head {
            new: value(&head, "x-generation") == Some("new"),
        })
    }

    /// Everything up to and with `end`, once it is there.
    fn take(&mut self, input: &mut &[u8], end: &[u8]) -> Option<Vec<u8>> {
        let before = self.held.len();
        // The end may have begun in what is held.
        let from = before.saturating_sub(end.len() - 1);
        self.held.extend_from_slice(input);
        let Some(at) = memmem::find(&self.held[from..], end) else {
            *input = &[];
            return None;
        };
        let whole = from + at + end.len();
        *input = &input[whole - before..];
        self.held.truncate(whole);
        Some(std::mem::take(&mut self.held))
    }
}

/// The value of a field in a head in lower case.
pub fn value<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let at = memmem::find(head, format!("\r\n{name}:").as_bytes())?;
    let rest = &head[at + name.len() + 3..];
    let end = memmem::find(rest, b"\r\n")?;
    str::from_utf8(&rest[..end]).ok().map(str::trim)
}
