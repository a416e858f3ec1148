//! The unread part of a body, in one piece that is charged to the memory budget: frames would keep their read buffers. Unread
//! trailers are charged with it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::frames::{Broken, End};
use crate::memory::{Budget, Charge, Purpose, cost, fields_size, holding_cost};

/// Smallest piece, in bytes.
const SMALLEST: usize = 512;

pub struct FrameBuffer {
    bytes: BytesMut,
    charge: Charge,
    memory: Arc<Budget>,
    purpose: Purpose,
    /// What the trailers of the body are charged, in bytes.
    trailers: u32,
}

impl FrameBuffer {
    pub fn new(memory: &Arc<Budget>, purpose: Purpose) -> Self {
        Self {
            bytes: BytesMut::new(),
            charge: Charge::default(),
            memory: Arc::clone(memory),
            purpose,
            trailers: 0,
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
            let wanted = cost(capacity) + self.trailers_cost();
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

    /// Charges the trailers of an unread end until the buffer is dropped. The body breaks off if the budget has no room.
    pub fn charged(&mut self, end: End) -> End {
        let Ok(Some(trailers)) = &end else {
            return end;
        };
        let wanted = holding_cost(fields_size(trailers));
        self.trailers = u32::try_from(wanted).unwrap_or(u32::MAX);
        let wanted = self.charge.bytes() + wanted;
        match self.charge.overdraw(&self.memory, wanted, self.purpose) {
            true => end,
            false => Err(Broken::NoMemory),
        }
    }

    const fn trailers_cost(&self) -> usize {
        self.trailers as usize
    }

    /// All of it, no longer charged.
    pub fn take(&mut self) -> Bytes {
        self.charge.shrink(self.trailers_cost());
        std::mem::take(&mut self.bytes).freeze()
    }
}
