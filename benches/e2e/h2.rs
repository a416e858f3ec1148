//! As much of an HTTP/2 client (RFC 9113) as a bench needs: requests out, data in, a window that never closes.

use super::h1::Piece;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const LARGEST_WINDOW: u32 = (1 << 31) - 1;
const HEAD: usize = 9;

pub struct Reader {
    held: Vec<u8>,
    next: u32,
    /// Bytes received since the connection's window was last opened.
    received: u32,
}

impl Reader {
    /// What a client says first goes to `out`.
    pub fn new(out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        // No push; each stream's window as large as can be.
        frame(
            out,
            SETTINGS,
            0,
            0,
            &[0, 2, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff],
        );
        frame(
            out,
            WINDOW_UPDATE,
            0,
            0,
            &(LARGEST_WINDOW - 65_535).to_be_bytes(),
        );
        Self {
            held: Vec::new(),
            next: 1,
            received: 0,
        }
    }

    /// Writes a request and returns its stream. The body must fit the peer's first window.
    pub fn request(
        &mut self,
        out: &mut Vec<u8>,
        scheme: &str,
        path: &str,
        bench: &str,
        body: &[u8],
    ) -> u32 {
        let id = self.next;
        self.next += 2;
        // RFC 7541: indexed method and scheme, then literals that are not remembered.
        let mut head = vec![0x83, if scheme == "https" { 0x87 } else { 0x86 }];
        literal(&mut head, &[0x04], path);
        literal(&mut head, &[0x01], "bench");
        literal(&mut head, &[0x0f, 0x10], "application/json");
        literal(&mut head, &[0x0f, 0x0d], &body.len().to_string());
        head.push(0);
        literal(&mut head, &[], "x-bench");
        literal(&mut head, &[], bench);
        frame(out, HEADERS, END_HEADERS, id, &head);
        frame(out, DATA, END_STREAM, id, body);
        id
    }

    /// # Errors
    /// Says what is not as it should be.
    pub fn feed(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        mut on: impl FnMut(u32, Piece<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut held = std::mem::take(&mut self.held);
        let mut rest = if held.is_empty() {
            input
        } else {
            held.extend_from_slice(input);
            &held
        };
        while let Some((head, more)) = rest.split_first_chunk::<HEAD>() {
            let length =
                usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let Some((body, after)) = more.split_at_checked(length) else {
                break;
            };
            self.frame(head, body, out, &mut on)?;
            rest = after;
        }
        self.held = rest.to_vec();
        Ok(())
    }

    fn frame(
        &mut self,
        head: &[u8; HEAD],
        body: &[u8],
        out: &mut Vec<u8>,
        on: &mut impl FnMut(u32, Piece<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let (kind, flags) = (head[3], head[4]);
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        match kind {
            DATA => {
                if flags & PADDED != 0 {
                    return Err("padded data".into());
                }
                if !body.is_empty() {
                    on(id, Piece::Body(body))?;
                }
                self.received += u32::try_from(body.len()).expect("a frame is below 16 MiB");
                if self.received > LARGEST_WINDOW / 4 {
                    frame(out, WINDOW_UPDATE, 0, 0, &self.received.to_be_bytes());
                    self.received = 0;
                }
            }
            HEADERS => {
                // Trailers end a stream; anything else begins one, after updates of the table's size.
                let first = body.iter().find(|byte| **byte >> 5 != 1);
                if flags & END_STREAM == 0 {
                    // The status is the first field, and 200 has an index of its own.
                    if first != Some(&0x88) {
                        return Err(format!("a head: {}", body.escape_ascii()));
                    }
                    on(id, Piece::Head { new: false })?;
                }
            }
            SETTINGS if flags & ACK == 0 => frame(out, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => frame(out, PING, ACK, 0, body),
            RST_STREAM | GOAWAY => return Err(format!("frame {kind}: {}", body.escape_ascii())),
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            on(id, Piece::End)?;
        }
        Ok(())
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[u8]) {
    let length = u32::try_from(body.len()).expect("a frame is below 16 MiB");
    out.extend_from_slice(&length.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(body);
}

fn literal(out: &mut Vec<u8>, prefix: &[u8], text: &str) {
    out.extend_from_slice(prefix);
    out.push(
        u8::try_from(text.len())
            .ok()
            .filter(|length| *length < 127)
            .expect("a short text"),
    );
    out.extend_from_slice(text.as_bytes());
}
