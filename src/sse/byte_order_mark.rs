//! Finds the byte order mark with which a stream may begin (WHATWG HTML §9.2.5). It must not be held with the first event: if a
//! comment, or the stream of another target, precedes it, clients take it for a part of a line.

use bytes::{Buf, Bytes};

pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The beginning of a stream.
#[derive(Debug, Default)]
pub struct ByteOrderMark {
    /// How many bytes of the mark have arrived.
    seen: u8,
    is_over: bool,
    /// Something was sent before it.
    is_dropped: bool,
}

impl ByteOrderMark {
    /// The mark of a stream that follows something else.
    #[must_use]
    pub fn dropped() -> Self {
        Self {
            is_dropped: true,
            ..Self::default()
        }
    }

    /// Something is sent before the next slice.
    pub fn precede(&mut self) {
        self.is_dropped = true;
    }

    /// Splits the next slice of the stream into the mark, if it is to be forwarded, and the rest.
    #[inline]
    pub fn split(&mut self, data: Bytes) -> (&'static [u8], Bytes) {
        match self.is_over {
            true => (&[], data),
            false => self.split_first(data),
        }
    }

    fn split_first(&mut self, mut data: Bytes) -> (&'static [u8], Bytes) {
        let due = &BYTE_ORDER_MARK[usize::from(self.seen)..];
        let found = due.iter().zip(&data).take_while(|(due, is)| due == is);
        let found = found.count();
        data.advance(found);
        if found < due.len() && data.is_empty() {
            self.seen += found as u8;
            return (&[], data);
        }
        self.is_over = true;
        let partial = usize::from(self.seen) + found;
        match partial {
            0 => (&[], data),
            _ if partial == BYTE_ORDER_MARK.len() => {
                let mark = if self.is_dropped {
                    &[]
                } else {
                    BYTE_ORDER_MARK
                };
                (mark, data)
            }
            _ => (&[], [&BYTE_ORDER_MARK[..partial], &data].concat().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_however_it_arrives_and_nothing_else() {
        for (stream, expected) in [
            (&b"\xEF\xBB\xBFdata: a"[..], &b"data: a"[..]),
            (b"\xEF\xBB\xBF\xEF\xBB\xBFa", b"\xEF\xBB\xBFa"),
            (b"\xEF\xBBdata", b"\xEF\xBBdata"),
            (b"\xEFdata", b"\xEFdata"),
            (b"data: \xEF\xBB\xBF", b"data: \xEF\xBB\xBF"),
            (b"\xEF\xEF\xBB\xBF", b"\xEF\xEF\xBB\xBF"),
            (b"\xEF\xBB\xBF", b""),
        ] {
            for size in 1..=stream.len() {
                let split = |mut mark: ByteOrderMark| {
                    let parts = stream.chunks(size).map(Bytes::copy_from_slice);
                    let (marks, rest): (Vec<_>, Vec<_>) =
                        parts.map(|part| mark.split(part)).unzip();
                    (marks.concat(), rest.concat())
                };
                let (mark, rest) = split(ByteOrderMark::default());
                assert_eq!([&mark[..], &rest].concat(), stream, "{size}");
                assert_eq!(rest, expected, "{stream:?} {size}");
                let (mark, rest) = split(ByteOrderMark::dropped());
                assert_eq!((&mark[..], &rest[..]), (&b""[..], expected));
            }
        }
    }
}
