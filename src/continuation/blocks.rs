//! The content blocks of a Messages stream: which block the client has open, and which indexes the blocks of another server get.

use super::chunk::BlockEvent;

/// The blocks that a client has.
#[derive(Debug, Default)]
pub struct Blocks {
    /// The index of the next block.
    next: u32,
    /// Whether the block before it is open.
    is_open: bool,
}

impl Blocks {
    /// Whether any block has begun.
    pub const fn has_begun(&self) -> bool {
        self.next > 0
    }

    /// Records an event of the first server.
    pub fn note(&mut self, step: BlockEvent, index: u32) {
        match step {
            BlockEvent::Start => {
                self.next = index.saturating_add(1);
                self.is_open = true;
            }
            BlockEvent::Delta => {}
            BlockEvent::Stop => self.is_open = false,
        }
    }

    fn open(&self) -> Option<u32> {
        self.is_open.then(|| self.next.saturating_sub(1))
    }

    /// The index that an event of the continued part gets. A delta belongs to the client's open block; the start of a block
    /// begins the client's next one. `shift` is what to add to the server's indexes, once it is known.
    pub fn map_index(&mut self, step: BlockEvent, index: u32, shift: &mut Option<i64>) -> u32 {
        let goes_on = match step {
            BlockEvent::Start => self.next,
            BlockEvent::Delta | BlockEvent::Stop => self.open().unwrap_or(self.next),
        };
        let shift = *shift.get_or_insert(i64::from(goes_on) - i64::from(index));
        let placed = u32::try_from(i64::from(index) + shift).unwrap_or(index);
        self.note(step, placed);
        placed
    }

    /// Closes the open block, which the continuing server never opened and so does not close. Returns its index.
    pub fn close(&mut self) -> Option<u32> {
        let open = self.open();
        self.is_open = false;
        open
    }
}

#[cfg(test)]
mod tests {
    use super::BlockEvent::{Delta, Start, Stop};
    use super::*;

    #[test]
    fn blocks_of_another_server_follow_those_that_the_client_has() {
        let mut blocks = Blocks::default();
        assert!(!blocks.has_begun());
        blocks.note(Start, 0);
        blocks.note(Delta, 0);
        assert!(blocks.has_begun());
        // It continues the open block.
        let mut shift = None;
        let mut map_index = |step, index| blocks.map_index(step, index, &mut shift);
        assert_eq!([map_index(Delta, 0), map_index(Stop, 0)], [0, 0]);
        assert_eq!([map_index(Start, 1), map_index(Delta, 1)], [1, 1]);
        // A third one counts its blocks differently.
        let mut shift = None;
        assert_eq!(blocks.map_index(Delta, 7, &mut shift), 1);
        assert_eq!(blocks.close(), Some(1));
        let mut map_index = |step, index| blocks.map_index(step, index, &mut shift);
        assert_eq!([map_index(Start, 8), map_index(Stop, 8)], [2, 2]);
        assert_eq!(blocks.close(), None);
        // A server that begins with a new block.
        assert_eq!(blocks.map_index(Start, 0, &mut None), 3);
    }
}
