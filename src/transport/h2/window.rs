//! The window of each stream: small while the memory budget is tight.

use crate::memory::Budget;

/// What a stream may hold that nobody reads while memory is tight, in bytes. It still carries as much per round trip.
const NARROW: u32 = 8 * 1024;

/// What the peer is told of its streams' windows (RFC 9113 §6.9.2).
#[derive(Debug)]
pub struct Window {
    usual: u32,
    is_narrow: bool,
}

impl Window {
    /// `usual` is what the connection began with, in bytes.
    #[must_use]
    pub const fn new(usual: u32) -> Self {
        Self {
            usual,
            is_narrow: false,
        }
    }

    /// Has `tell` announce another size where `memory` asks for it. One that it cannot announce yet is tried again.
    pub fn fit(&mut self, memory: &Budget, tell: impl FnOnce(u32) -> bool) {
        let narrow = memory.is_tight();
        if narrow != self.is_narrow && tell(if narrow { NARROW } else { self.usual }) {
            self.is_narrow = narrow;
        }
    }
}
