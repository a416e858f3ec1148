//! Drops the byte order mark with which a stream may begin (WHATWG HTML §9.2.5). It has no meaning, and would be taken for a part of
//! the first line if something was sent before it: a comment, or the stream of another target.

use bytes::{Buf, Bytes};

const MARK: &[u8] = b"\xEF\xBB\xBF";

/// The beginning of a stream.
#[derive(Debug, Default)]
pub struct ByteOrderMark {
    /// How many bytes of the mark have arrived.
    seen: u8,
    is_over: bool,
}

impl ByteOrderMark {
    /// The next slice of the stream, without the mark.
    #[inline]
    pub fn strip(&mut self, data: Bytes) -> Bytes {
        match self.is_over {
            true => data,
            false => self.strip_first(data),
        }
    }

    fn strip_first(&mut self, mut data: Bytes) -> Bytes {
        let due = &MARK[usize::from(self.seen)..];
        let found = due.iter().zip(&data).take_while(|(due, is)| due == is);
        let found = found.count();
        data.advance(found);
        if found < due.len() && data.is_empty() {
            self.seen += found as u8;
            return data;
        }
        self.is_over = true;
        let partial = usize::from(self.seen) + found;
        match partial {
            0 => data,
            _ if partial == MARK.len() => data,
            _ => [&MARK[..partial], &data].concat().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_dropped_however_it_arrives_and_nothing_else() {
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
                let mut mark = ByteOrderMark::default();
                let parts = stream.chunks(size).map(Bytes::copy_from_slice);
                let stripped: Vec<_> = parts.map(|part| mark.strip(part)).collect();
                assert_eq!(stripped.concat(), expected, "{stream:?} {size}");
            }
        }
    }
}
