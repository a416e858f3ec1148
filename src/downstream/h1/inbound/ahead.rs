//! Bytes that were read from a connection but not used yet. Charged to the memory budget if they stay.

use std::sync::Arc;

use bytes::BytesMut;

use crate::memory::{Budget, Charge, FREE, Purpose, cost, holding_cost};

/// Bytes that were read ahead of their use.
pub struct Ahead {
    pub bytes: BytesMut,
    /// The bytes are in the buffer that all connections share, where they must not stay for long.
    shared: bool,
    memory: Arc<Budget>,
    /// Charge for bytes that stay.
    charge: Charge,
}

impl Ahead {
    /// Starts with the first bytes of a connection, in the shared buffer.
    pub fn new(first: BytesMut, memory: &Arc<Budget>) -> Self {
        Self {
            bytes: first,
            shared: true,
            memory: Arc::clone(memory),
            charge: Charge::default(),
        }
    }

    /// Stores bytes that were just read. Nothing may be left from before.
    pub fn take(&mut self, bytes: BytesMut) {
        self.bytes = bytes;
        self.shared = true;
    }

    /// Copies the bytes out of the shared buffer, because they will stay for a while.
    pub fn detach(&mut self) {
        if std::mem::take(&mut self.shared) {
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        self.account();
    }

    /// Like [`Ahead::detach`], for the beginning of a head. Returns false if the budget has no room for it.
    #[must_use]
    pub fn detach_head(&mut self) -> bool {
        if !self.shared {
            return true;
        }
        if self.bytes.len() > FREE {
            let wanted = cost(self.bytes.len());
            if !self.charge.resize(&self.memory, wanted, Purpose::Head) {
                return false;
            }
        }
        self.detach();
        true
    }

    /// Charges the bytes that stay.
    pub fn account(&mut self) {
        let held = holding_cost(self.bytes.len());
        if held != self.charge.bytes() {
            self.charge.force(&self.memory, held);
        }
    }

    /// Appends to the bytes that stay. Returns false if the budget has no room for them.
    #[must_use]
    pub fn add(&mut self, more: &[u8]) -> bool {
        let length = self.bytes.len() + more.len();
        if length > self.bytes.capacity() {
            // Grows like `BytesMut`.
            let capacity = length.max(self.bytes.capacity() * 2);
            if length > FREE
                && !self
                    .charge
                    .resize(&self.memory, cost(capacity), Purpose::Head)
            {
                return false;
            }
        }
        self.bytes.extend_from_slice(more);
        true
    }

    /// Releases the buffer if it is empty: even an empty slice keeps its buffer alive.
    pub fn let_go_if_empty(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
            self.charge.shrink(0);
        }
    }
}
