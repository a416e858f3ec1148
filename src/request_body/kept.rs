//! The kept part of a body. It is copied into blocks, so that small received pieces add no overhead.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::memory::{Budget, Charge, Purpose, cost};

/// Block sizes, in bytes. Blocks grow with the kept bytes, so that a small body uses a small block. The last block has the size
/// of the rest, if known.
const FIRST: usize = 1024;
const LARGEST: usize = 64 * 1024;

/// The kept part of a body.
#[derive(Debug, Default)]
pub struct RetainedBody {
    /// The pieces, each with the offset of its end in the body.
    pieces: Vec<(usize, Bytes)>,
    /// The block that is being filled.
    block: BytesMut,
    /// Number of bytes at the beginning of the body that have been released.
    gone: usize,
    /// Offset of the end of the last kept byte in the body.
    end: usize,
    charge: Charge,
}

impl RetainedBody {
    /// Keeps a copy of `bytes`. `more` is the number of bytes that will follow, if known. Returns false if the budget has no
    /// room; then part of `bytes` may have been kept.
    pub fn push(&mut self, mut bytes: &[u8], more: Option<usize>, budget: &Arc<Budget>) -> bool {
        while !bytes.is_empty() {
            let room = self.block.capacity() - self.block.len();
            if room == 0 {
                self.seal();
                let grown = self.end.max(bytes.len()).next_power_of_two();
                let rest = more.map_or(usize::MAX, |more| bytes.len().saturating_add(more));
                let size = grown.clamp(FIRST, LARGEST).min(rest);
                let charged = self.charge.bytes() + cost(size);
                if !self.charge.resize(budget, charged, Purpose::RequestBody) {
                    return false;
                }
                self.block = BytesMut::with_capacity(size);
                continue;
            }
            let (here, rest) = bytes.split_at(room.min(bytes.len()));
            self.block.extend_from_slice(here);
            self.end += here.len();
            bytes = rest;
        }
        true
    }

    /// Turns the filled part of the block into a piece. The rest of the block remains in use.
    fn seal(&mut self) {
        if !self.block.is_empty() {
            let piece = self.block.split().freeze();
            self.pieces.push((self.end, piece));
        }
    }

    /// The contiguous bytes after the first `from` bytes of the body. `None` if they were released or not kept.
    pub fn after(&mut self, from: usize) -> Option<Bytes> {
        if from < self.gone {
            return None;
        }
        if self.pieces.last().is_none_or(|(end, _)| *end <= from) {
            self.seal();
        }
        let at = self.pieces.partition_point(|(end, _)| *end <= from);
        let (end, piece) = self.pieces.get(at)?;
        Some(piece.slice(piece.len() - (end - from)..))
    }

    /// The number of bytes that have been received.
    pub fn length(&self) -> usize {
        self.end
    }

    /// All of the body. `None` if part of it was released.
    pub fn all(&mut self) -> Option<Bytes> {
        let first = match self.end {
            0 => return Some(Bytes::new()),
            _ => self.after(0)?,
        };
        if first.len() == self.end {
            return Some(first);
        }
        let mut all = Vec::with_capacity(self.end);
        all.extend_from_slice(&first);
        while all.len() < self.end {
            all.extend_from_slice(&self.after(all.len())?);
        }
        Some(all.into())
    }

    /// Takes everything in one piece, with its charge. `None` if that would require copying much, or if part of it was released.
    pub fn take_small(&mut self) -> Option<(Bytes, Charge)> {
        if self.end > LARGEST {
            return None;
        }
        let all = self.all()?;
        let mut charge = std::mem::take(&mut self.charge);
        if self.pieces.len() > 1 {
            charge.shrink(cost(all.len()));
        }
        self.let_go();
        Some((all, charge))
    }

    /// Releases everything.
    pub fn let_go(&mut self) {
        *self = Self {
            gone: self.end,
            end: self.end,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(kept: &mut RetainedBody) -> Vec<u8> {
        let mut found = Vec::new();
        while found.len() < kept.end {
            found.extend_from_slice(&kept.after(found.len()).expect("it was kept"));
        }
        found
    }

    #[test]
    fn a_body_costs_about_its_length_in_any_chunking() {
        for (piece, known) in [(1, false), (1, true), (7, false), (100_000, false)] {
            let budget = Budget::new(usize::MAX);
            let mut kept = RetainedBody::default();
            let body: Vec<u8> = (0..300_000u32).map(|n| n.to_le_bytes()[0]).collect();
            let mut left = body.len();
            for bytes in body.chunks(piece) {
                left -= bytes.len();
                assert!(kept.push(bytes, known.then_some(left), &budget));
            }
            let used = budget.used();
            assert!((300_000..500_000).contains(&used), "{piece}: {used}");
            assert_eq!(all(&mut kept), body);
            kept.let_go();
            assert_eq!(budget.used(), 0);
            assert_eq!(kept.after(0), None);
        }
    }

    #[test]
    fn a_small_body_takes_a_small_block() {
        let budget = Budget::new(usize::MAX);
        let mut kept = RetainedBody::default();
        assert!(kept.push(b"x", None, &budget));
        assert_eq!(budget.used(), cost(FIRST));
    }

    #[test]
    fn it_continues_after_the_part_that_was_read() {
        let budget = Budget::new(usize::MAX);
        let mut kept = RetainedBody::default();
        assert!(kept.push(b"abc", None, &budget));
        assert_eq!(kept.after(1).as_deref(), Some(&b"bc"[..]));
        assert!(kept.push(b"def", None, &budget));
        assert_eq!(kept.after(3).as_deref(), Some(&b"def"[..]));
        assert_eq!(kept.after(2).as_deref(), Some(&b"c"[..]));
        assert_eq!(all(&mut kept), b"abcdef");
        assert_eq!(kept.after(6), None);
    }
}
