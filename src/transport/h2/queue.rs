//! The part of an upload that the connection to the server queues: it is charged to the memory budget, and short while memory is
//! tight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;

use crate::memory::{Budget, Charge, FREE, cost};

/// The queued pieces of one stream.
pub struct Queue {
    queued: Arc<Queued>,
    memory: Arc<Budget>,
    /// Whether the next piece has to wait.
    is_full: bool,
}

#[derive(Default)]
struct Queued {
    /// The cost of the pieces, in bytes.
    cost: AtomicUsize,
    sender: AtomicWaker,
}

impl Queue {
    pub fn new(memory: &Arc<Budget>) -> Self {
        Self {
            queued: Arc::default(),
            memory: Arc::clone(memory),
            is_full: false,
        }
    }

    /// Waits until another piece may be queued. While memory is tight, only one is.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.is_full = false;
        if !self.memory.is_tight() || self.is_empty() {
            return Poll::Ready(());
        }
        self.queued.sender.register(cx.waker());
        // The last piece may have been sent in the meantime.
        self.is_full = !self.is_empty();
        match self.is_full {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }

    /// Whether the sender is waiting for room.
    pub const fn is_full(&self) -> bool {
        self.is_full
    }

    fn is_empty(&self) -> bool {
        self.queued.cost.load(Ordering::Acquire) == 0
    }

    /// Counts a piece until it has been sent. Unless it is part of data that `is_charged`, it is charged if the stream queues more
    /// than is free.
    pub fn push(&self, piece: Bytes, is_charged: bool) -> Bytes {
        let cost = cost(piece.len());
        let before = self.queued.cost.fetch_add(cost, Ordering::Relaxed);
        let mut charge = Charge::default();
        if !is_charged && before > 0 && before + cost > FREE {
            charge.force(&self.memory, cost);
        }
        Bytes::from_owner(Piece {
            bytes: piece,
            cost,
            queued: Arc::clone(&self.queued),
            _charge: charge,
        })
    }
}

struct Piece {
    bytes: Bytes,
    cost: usize,
    queued: Arc<Queued>,
    _charge: Charge,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.queued.cost.fetch_sub(self.cost, Ordering::Release) == self.cost {
            self.queued.sender.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::memory::Purpose;

    fn piece(length: usize) -> Bytes {
        vec![0; length].into()
    }

    #[test]
    fn pieces_beyond_what_is_free_are_charged_until_they_are_sent() {
        let memory = Budget::new(1 << 20);
        let queue = Queue::new(&memory);
        let first = queue.push(piece(FREE), false);
        assert_eq!(memory.used(), 0);
        let charged = queue.push(piece(FREE), true);
        assert_eq!(memory.used(), 0);
        let second = queue.push(piece(1), false);
        assert_eq!(memory.used(), cost(1));
        drop((first, charged, second));
        assert_eq!(memory.used(), 0);
        // Small pieces cost more than their bytes.
        let _small: Vec<_> = (0..100).map(|_| queue.push(piece(1), false)).collect();
        assert!(memory.used() >= 60 * cost(1), "{}", memory.used());
    }

    #[test]
    fn while_memory_is_tight_one_piece_is_queued() {
        let memory = Budget::new(1 << 20);
        let mut queue = Queue::new(&memory);
        let mut cx = Context::from_waker(Waker::noop());
        let first = queue.push(piece(1), false);
        assert!(queue.poll_room(&mut cx).is_ready());
        let mut other = Charge::default();
        assert!(other.resize(&memory, 1 << 20, Purpose::Event));
        assert!(queue.poll_room(&mut cx).is_pending() && queue.is_full());
        drop(first);
        assert!(queue.poll_room(&mut cx).is_ready() && !queue.is_full());
    }
}
