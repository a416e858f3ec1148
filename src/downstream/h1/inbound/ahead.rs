//! What was read of a connection and not used yet, charged to the memory budget where it stays.

use std::sync::Arc;

use bytes::BytesMut;

use crate::memory::{Budget, Charge, FREE, Purpose, cost};

/// Bytes that were read ahead of their use.
pub struct Ahead {
    pub bytes: BytesMut,
    /// They lie in the buffer that all connections share, which they must not do for long.
    shared: bool,
    memory: Arc<Budget>,
    /// For what stays.
    charge: Charge,
}

impl Ahead {
    /// What a connection began with, in the shared buffer.
    pub fn new(first: BytesMut, memory: &Arc<Budget>) -> Self {
        Self {
            bytes: first,
            shared: true,
            memory: Arc::clone(memory),
            charge: Charge::default(),
        }
    }

    /// Takes what was just read, where nothing was left.
    pub fn take(&mut self, bytes: BytesMut) {
        self.bytes = bytes;
        self.shared = true;
    }

    /// Moves it out of the shared buffer: it will stay for a while.
    pub fn detach(&mut self) {
        if std::mem::take(&mut self.shared) {
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        self.account();
    }

    /// The same for the beginning of a head. False when the budget has no room for it.
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

    /// Charges what stays.
    pub fn account(&mut self) {
        let held = match self.bytes.len() {
            0..=FREE => 0,
            held => cost(held),
        };
        if held != self.charge.bytes() {
            self.charge.force(&self.memory, held);
        }
    }

    /// Adds to what stays. False when the budget has no room for it.
    #[must_use]
    pub fn add(&mut self, more: &[u8]) -> bool {
        let length = self.bytes.len() + more.len();
        if length > self.bytes.capacity() {
            // As `BytesMut` grows.
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

    /// Even an empty slice keeps the buffer it lies in.
    pub fn let_go_if_empty(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
            self.charge.shrink(0);
        }
    }
}
