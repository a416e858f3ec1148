//! Collects bytes in one contiguous buffer, within a budget.

use std::sync::Arc;

use bytes::Bytes;

use super::{Budget, Charge, FREE, Purpose, cost};

/// Bytes in one contiguous buffer. It costs at most about twice their length, no matter how small the pieces are.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    charge: Charge,
    budget: Arc<Budget>,
    purpose: Purpose,
    /// The expected final length. No more is allocated unless more arrives.
    expected: usize,
}

impl Buffer {
    /// Creates an empty buffer for `purpose`, with its expected final length in bytes, if known.
    #[must_use]
    pub fn new(budget: &Arc<Budget>, purpose: Purpose, expected: Option<usize>) -> Self {
        Self {
            bytes: Vec::new(),
            charge: Charge::default(),
            budget: Arc::clone(budget),
            purpose,
            expected: expected.unwrap_or(usize::MAX),
        }
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Reserves room for `more` bytes. Returns false if the budget is exhausted.
    #[must_use]
    pub fn reserve(&mut self, more: usize) -> bool {
        let needed = self.bytes.len() + more;
        if needed <= self.bytes.capacity() {
            return true;
        }
        let mut capacity = needed.next_power_of_two();
        if (needed..capacity).contains(&self.expected) {
            capacity = self.expected;
        }
        if capacity > FREE
            && !self
                .charge
                .resize(&self.budget, cost(capacity), self.purpose)
        {
            return false;
        }
        self.bytes.reserve_exact(capacity - self.bytes.len());
        true
    }

    /// Appends `bytes`. Returns false, without effect, if the budget is exhausted.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let fits = self.reserve(bytes.len());
        if fits {
            self.bytes.extend_from_slice(bytes);
        }
        fits
    }

    /// The bytes, which stay charged until the last handle is dropped.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        self.charge.tie(self.bytes.into())
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_bytes_cost_about_their_number() {
        let budget = Budget::new(1 << 20);
        let mut buffer = Buffer::new(&budget, Purpose::Affinity, None);
        for _ in 0..100_000 {
            assert!(buffer.push(b"x"));
        }
        assert!((100_000..300_000).contains(&budget.used()));
        let bytes = buffer.freeze();
        assert_eq!(bytes.len(), 100_000);
        assert!(budget.used() > 0);
        drop(bytes);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_refused_addition_leaves_the_buffer_unchanged() {
        let budget = Budget::new(20_000);
        let mut buffer = Buffer::new(&budget, Purpose::Affinity, Some(30_000));
        assert!(buffer.push(&[1; 10_000]));
        assert!(!buffer.push(&[2; 20_000]));
        assert_eq!(buffer.len(), 10_000);
        assert_eq!(budget.take_refusals(Purpose::Affinity), 1);
    }

    #[test]
    fn small_allocations_are_not_charged() {
        let budget = Budget::new(0);
        let mut buffer = Buffer::new(&budget, Purpose::Affinity, None);
        assert!(buffer.push(&[1; FREE]));
        assert!(!buffer.push(&[1; 1]));
    }
}
