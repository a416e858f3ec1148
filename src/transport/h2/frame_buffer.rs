//! The unread part of a body, in one piece that is charged to the memory budget: frames would keep their read buffers.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::memory::{Budget, Charge, Purpose, cost};

/// Smallest piece, in bytes.
const SMALLEST: usize = 512;

pub struct FrameBuffer {
    bytes: BytesMut,
    charge: Charge,
    memory: Arc<Budget>,
    purpose: Purpose,
}

impl FrameBuffer {
    pub fn new(memory: &Arc<Budget>, purpose: Purpose) -> Self {
        Self {
            bytes: BytesMut::new(),
            charge: Charge::default(),
            memory: Arc::clone(memory),
            purpose,
        }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Keeps a copy. False, and everything is dropped, if the budget has no room.
    #[must_use]
    pub fn push(&mut self, data: &[u8]) -> bool {
        let needed = self.bytes.len() + data.len();
        if needed > self.bytes.capacity() {
            let capacity = needed.next_power_of_two().max(SMALLEST);
            let wanted = cost(capacity);
            if !self.charge.overdraw(&self.memory, wanted, self.purpose) {
                self.take();
                return false;
            }
            let mut larger = BytesMut::with_capacity(capacity);
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
        self.bytes.extend_from_slice(data);
        true
    }

    /// All of it, no longer charged.
    pub fn take(&mut self) -> Bytes {
        self.charge.shrink(0);
        std::mem::take(&mut self.bytes).freeze()
    }
}
