//! Finds the events of a `text/event-stream` in slices (WHATWG HTML §9.2.5, §9.2.6).
//!
//! Every byte of every stream passes through here. An event that is entirely in one slice is neither copied nor allocated; only
//! an event that is split over slices, or has several `data` lines, is collected.

mod block;

use block::{Block, Field, content_start, field, find_blank, line_end, past_line_end, read_block};

use super::byte_order_mark::BYTE_ORDER_MARK;

/// A carry buffer larger than this (bytes) is freed after its event.
const KEEP: usize = 4096;

/// The incremental decoder of one stream.
///
/// It cannot fail. After an event longer than the limit, it becomes [`quiet`](Self::quiet): it reports nothing more and lets
/// everything pass. The bytes need not be UTF-8. The reported events do not depend on how a stream is split into slices.
///
/// Between two events it holds no heap memory.
#[derive(Debug)]
pub struct Decoder {
    /// The bytes so far of a block that began in an earlier slice.
    carry: Vec<u8>,
    max_event: usize,
    boundary: usize,
    /// No block has ended yet, so the current one may start with a byte order mark.
    first: bool,
    /// The last slice ended in CR, so an LF at the start of the next one belongs to it.
    after_cr: bool,
    quiet: bool,
}

/// One block of the stream: everything up to and including a blank line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Offset in the slice just past the block's blank line.
    pub end: usize,
    /// The value of the last `event` field, or empty.
    pub name: &'a [u8],
    /// The values of the `data` fields, joined by LF.
    pub data: &'a [u8],
    /// Whether there was a `data` field. Only then would a browser dispatch the event.
    pub has_data: bool,
    /// Whether the block has no field: only comments (keep-alives), or only its blank line.
    pub comment_only: bool,
}

impl Decoder {
    /// A decoder at the start of a stream. `max_event` bounds a block in bytes, line ends included.
    #[must_use]
    pub const fn new(max_event: usize) -> Self {
        Self {
            carry: Vec::new(),
            max_event,
            boundary: 0,
            first: true,
            after_cr: false,
            quiet: false,
        }
    }

    /// Feeds the next slice of the stream. The whole slice is consumed even if the result is dropped before its last event.
    /// [`boundary`](Self::boundary) and [`mid_event`](Self::mid_event) are available after the result is dropped.
    ///
    /// ```
    /// # use crossfade::sse::Decoder;
    /// let mut decoder = Decoder::new(1 << 20);
    /// let mut events = decoder.feed(b"data: 1\n\ndata: 2");
    /// while let Some(event) = events.next() {
    ///     assert_eq!((event.data, event.end), (&b"1"[..], 9));
    /// }
    /// drop(events);
    /// assert_eq!(decoder.boundary(), 9);
    /// assert!(decoder.mid_event());
    /// ```
    pub fn feed<'d>(&'d mut self, slice: &'d [u8]) -> Events<'d> {
        self.boundary = if self.quiet { slice.len() } else { 0 };
        let mut events = Events {
            start: 0,
            scan: 0,
            gathered: false,
            open: !self.quiet && !slice.is_empty(),
            decoder: self,
            slice,
        };
        if events.open {
            events.skip_stray_lf();
        }
        events
    }

    /// Offset in the last slice up to which everything belongs to complete blocks; 0 if none ended in it. An LF that completes
    /// the CRLF of a block that ended with the previous slice is included. Once quiet: the length of the slice.
    #[must_use]
    pub const fn boundary(&self) -> usize {
        self.boundary
    }

    /// Whether a block is incomplete after the last slice. Never once quiet.
    #[must_use]
    pub const fn mid_event(&self) -> bool {
        !self.carry.is_empty()
    }

    /// Whether the decoder has given up because a block was longer than the bound.
    #[must_use]
    pub const fn quiet(&self) -> bool {
        self.quiet
    }

    /// The memory that it holds, in bytes.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.carry.capacity()
    }

    /// Gives up: frees what it holds, reports nothing more and lets everything pass.
    pub fn give_up(&mut self) {
        self.quiet = true;
        self.carry = Vec::new();
    }

    /// Clears a collected event before the next one.
    fn clear_carry(&mut self) {
        if self.carry.capacity() > KEEP {
            self.carry = Vec::new();
        } else {
            self.carry.clear();
        }
    }
}

/// The events that end in one slice. Dropping it consumes the rest of the slice.
#[derive(Debug)]
#[must_use = "iterate, or drop it on purpose: dropping consumes the slice without reading its events"]
pub struct Events<'d> {
    decoder: &'d mut Decoder,
    slice: &'d [u8],
    /// Where the current block starts in the slice.
    start: usize,
    /// Where to continue, for a block that began in an earlier slice.
    scan: usize,
    /// The carry holds the event that was returned last, not a pending one.
    gathered: bool,
    /// The slice is not finished.
    open: bool,
}

impl Events<'_> {
    /// The next event that ends in this slice. (Not an `Iterator`: a collected event borrows the decoder's buffer.)
    #[expect(
        clippy::should_implement_trait,
        reason = "lending: the event borrows from self"
    )]
    #[inline]
    pub fn next(&mut self) -> Option<Event<'_>> {
        if self.gathered {
            self.decoder.clear_carry();
            self.gathered = false;
        }
        if !self.open {
            return None;
        }
        let (block, end) = if self.decoder.carry.is_empty() {
            self.whole()
        } else {
            self.gather()
        }?;
        self.decoder.first = false;
        self.decoder.boundary = end;
        self.start = end;
        let buffer = if self.gathered {
            &self.decoder.carry
        } else {
            self.slice
        };
        Some(Event {
            end,
            name: &buffer[block.name],
            data: &buffer[block.data],
            has_data: block.data_lines > 0,
            comment_only: !block.has_field,
        })
    }

    /// A block that starts in this slice.
    #[inline]
    fn whole(&mut self) -> Option<(Block, usize)> {
        let Some(block) = read_block(self.slice, self.start, self.decoder.first) else {
            self.stash();
            return None;
        };
        if block.blank + 1 - self.start > self.decoder.max_event {
            self.give_up();
            return None;
        }
        let end = past_line_end(self.slice, block.blank);
        if block.data_lines > 1 {
            self.decoder
                .carry
                .extend_from_slice(&self.slice[self.start..end]);
            return Some((self.read_carry(), end));
        }
        Some((block, end))
    }

    /// A block that began in an earlier slice: always the first one of this slice.
    #[inline(never)]
    fn gather(&mut self) -> Option<(Block, usize)> {
        let at_line_start = self.resume();
        let Some(blank) = find_blank(self.slice, self.scan, at_line_start) else {
            self.stash();
            return None;
        };
        if self.decoder.carry.len() + blank + 1 > self.decoder.max_event {
            self.give_up();
            return None;
        }
        let end = past_line_end(self.slice, blank);
        self.decoder.carry.extend_from_slice(&self.slice[..end]);
        Some((self.read_carry(), end))
    }

    /// Reads the block in the carry. Several data values are joined after it.
    fn read_carry(&mut self) -> Block {
        self.gathered = true;
        let Decoder { carry, first, .. } = &mut *self.decoder;
        let mut block = read_block(carry, 0, *first).expect("its blank line was found before");
        if block.data_lines > 1 {
            let joined = carry.len();
            let mut values = 0;
            let mut at = content_start(carry, 0, *first);
            while values < block.data_lines {
                let line_end = line_end(carry, at).expect("the block was read before");
                if let Field::Data(value) = field(carry, at..line_end) {
                    if values > 0 {
                        carry.push(b'\n');
                    }
                    carry.extend_from_within(value);
                    values += 1;
                }
                at = past_line_end(carry, line_end);
            }
            block.data = joined..carry.len();
        }
        block
    }

    /// An LF at the start of this slice that belongs to the CR at the end of the previous one.
    fn skip_stray_lf(&mut self) {
        if self.decoder.after_cr && self.slice[0] == b'\n' {
            self.scan = 1;
            if self.decoder.carry.is_empty() {
                self.start = 1;
                self.decoder.boundary = 1;
            }
        }
    }

    /// Whether the byte at `scan` is the first of a line. Skips the rest of a byte order mark.
    fn resume(&mut self) -> bool {
        let Decoder { carry, first, .. } = &*self.decoder;
        if *first && BYTE_ORDER_MARK.starts_with(carry) {
            let rest = &BYTE_ORDER_MARK[carry.len()..];
            let complete = self.slice.starts_with(rest);
            if complete {
                self.scan = rest.len();
            }
            return complete;
        }
        matches!(carry.last(), Some(b'\n' | b'\r'))
    }

    /// There is no further blank line in the slice: keeps the rest, or frees the memory if there is none.
    fn stash(&mut self) {
        self.open = false;
        let rest = &self.slice[self.start..];
        let decoder = &mut *self.decoder;
        decoder.after_cr = self.slice.ends_with(b"\r");
        if rest.is_empty() {
            decoder.carry = Vec::new();
        } else if decoder.carry.len() + rest.len() > decoder.max_event {
            self.give_up();
        } else {
            decoder.carry.extend_from_slice(rest);
        }
    }

    fn give_up(&mut self) {
        self.open = false;
        self.decoder.quiet = true;
        self.decoder.carry = Vec::new();
        self.decoder.boundary = self.slice.len();
    }
}

impl Drop for Events<'_> {
    fn drop(&mut self) {
        while self.next().is_some() {}
    }
}

#[cfg(test)]
mod tests;
