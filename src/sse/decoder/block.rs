//! Lines, fields and blank lines in a buffer (WHATWG HTML §9.2.5, §9.2.6).

use std::ops::Range;

use memchr::memchr2;

use crate::sse::byte_order_mark::BYTE_ORDER_MARK;

/// The fields of a block, as ranges of its buffer.
#[derive(Default)]
pub(super) struct Block {
    pub(super) name: Range<usize>,
    /// The value of the last data line.
    pub(super) data: Range<usize>,
    pub(super) data_lines: usize,
    pub(super) has_field: bool,
    /// Where the line end of the closing blank line starts.
    pub(super) blank: usize,
}

pub(super) enum Field {
    Name(Range<usize>),
    Data(Range<usize>),
    /// `id`, `retry`, and names that the standard ignores.
    Other,
    Comment,
}

/// Reads the block that starts at `start`, if it is complete.
#[inline]
pub(super) fn read_block(buffer: &[u8], start: usize, first: bool) -> Option<Block> {
    let mut block = Block::default();
    let mut at = content_start(buffer, start, first);
    while !matches!(buffer.get(at)?, b'\n' | b'\r') {
        let line_end = line_end(buffer, at)?;
        match field(buffer, at..line_end) {
            Field::Data(value) => {
                block.data = value;
                block.data_lines += 1;
                block.has_field = true;
            }
            Field::Name(value) => {
                block.name = value;
                block.has_field = true;
            }
            Field::Other => block.has_field = true,
            Field::Comment => {}
        }
        at = past_line_end(buffer, line_end);
    }
    block.blank = at;
    Some(block)
}

/// Where the first line of a block starts, after the byte order mark at the start of a stream.
#[inline]
pub(super) fn content_start(buffer: &[u8], start: usize, first: bool) -> usize {
    if first && buffer[start..].starts_with(BYTE_ORDER_MARK) {
        start + BYTE_ORDER_MARK.len()
    } else {
        start
    }
}

/// Where the line end of the next blank line starts.
pub(super) fn find_blank(buffer: &[u8], mut at: usize, mut at_line_start: bool) -> Option<usize> {
    loop {
        let line_end = line_end(buffer, at)?;
        if at_line_start && line_end == at {
            return Some(line_end);
        }
        at = past_line_end(buffer, line_end);
        at_line_start = true;
    }
}

#[inline]
pub(super) fn line_end(buffer: &[u8], at: usize) -> Option<usize> {
    Some(at + memchr2(b'\n', b'\r', &buffer[at..])?)
}

/// Skips LF, CR or CRLF.
#[inline]
pub(super) fn past_line_end(buffer: &[u8], at: usize) -> usize {
    at + 1 + usize::from(buffer[at] == b'\r' && buffer.get(at + 1) == Some(&b'\n'))
}

/// Splits a line at its first colon; one space after the colon is not part of the value. A line without a colon is a
/// field with an empty value.
#[inline]
pub(super) fn field(buffer: &[u8], line: Range<usize>) -> Field {
    let text = &buffer[line.clone()];
    let value = |name_len: usize| match &text[name_len..] {
        [] => Some(line.end..line.end),
        [b':', b' ', ..] => Some(line.start + name_len + 2..line.end),
        [b':', ..] => Some(line.start + name_len + 1..line.end),
        _ => None,
    };
    if text.starts_with(b"data") {
        value(4).map_or(Field::Other, Field::Data)
    } else if text.starts_with(b"event") {
        value(5).map_or(Field::Other, Field::Name)
    } else if text.starts_with(b":") {
        Field::Comment
    } else {
        Field::Other
    }
}
