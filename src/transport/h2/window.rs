//! The window of each stream, which is small while the memory budget is tight.

use crate::memory::Budget;

/// Unread bytes that a stream may hold while memory is tight. It can still carry as much per round trip.
const NARROW: u32 = 8 * 1024;

/// The stream window announced to the peer (RFC 9113 §6.9.2).
#[derive(Debug)]
pub struct Window {
    usual: u32,
    is_narrow: bool,
}

impl Window {
    /// `usual` is the initial window of the connection, in bytes.
    #[must_use]
    pub const fn new(usual: u32) -> Self {
        Self {
            usual,
            is_narrow: false,
        }
    }

    /// Announces another size through `notify` if `memory` requires one. If that fails now, it is tried again.
    pub fn fit(&mut self, memory: &Budget, notify: impl FnOnce(u32) -> bool) {
        let narrow = memory.is_tight();
        if narrow != self.is_narrow && notify(if narrow { NARROW } else { self.usual }) {
            self.is_narrow = narrow;
        }
    }
}
