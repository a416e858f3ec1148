//! A naive implementation of the decoder: the whole stream, line by line. Tests and the fuzzer include this file, so it uses
//! nothing from the crate.

/// An event of the stream, independent of how the stream is split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    pub name: Vec<u8>,
    pub data: Vec<u8>,
    pub has_data: bool,
    pub comment_only: bool,
}

/// What the decoder should report about a stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Reading {
    pub events: Vec<Expected>,
    /// Offset past the last completed block.
    pub boundary: usize,
    pub quiet: bool,
}

/// Reads a complete stream (WHATWG HTML §9.2.5).
pub fn read(stream: &[u8], max_event: usize) -> Reading {
    let mut reading = Reading {
        events: Vec::new(),
        boundary: 0,
        quiet: false,
    };
    let mut lines: Vec<&[u8]> = Vec::new();
    let (mut block_start, mut line_start, mut at) = (0, 0, 0);
    if stream.starts_with(b"\xEF\xBB\xBF") {
        (line_start, at) = (3, 3);
    }
    while at < stream.len() {
        let crlf = stream[at..].starts_with(b"\r\n");
        if stream[at] != b'\n' && stream[at] != b'\r' {
            at += 1;
            continue;
        }
        let line = &stream[line_start..at];
        let blank_at = at;
        at += if crlf { 2 } else { 1 };
        line_start = at;
        if !line.is_empty() {
            lines.push(line);
            continue;
        }
        if blank_at + 1 - block_start > max_event {
            break;
        }
        reading.events.push(event(&lines));
        lines.clear();
        block_start = at;
        reading.boundary = at;
    }
    reading.quiet = at.min(stream.len()) - block_start > max_event;
    if reading.quiet {
        reading.boundary = stream.len();
    }
    reading
}

fn event(lines: &[&[u8]]) -> Expected {
    let mut event = Expected {
        comment_only: true,
        ..Expected::default()
    };
    for line in lines {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().unwrap_or_default();
        let value = parts.next().unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if name.is_empty() {
            continue;
        }
        event.comment_only = false;
        match name {
            b"event" => event.name = value.to_vec(),
            b"data" => {
                if event.has_data {
                    event.data.push(b'\n');
                }
                event.data.extend_from_slice(value);
                event.has_data = true;
            }
            _ => {}
        }
    }
    event
}
