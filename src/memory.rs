//! The budget for memory that clients and model servers can make the process hold, and the charges against it.
//!
//! A charge covers the memory that is held, not the bytes that were sent: buffer capacity, allocator overhead and a cost per
//! piece. Small amounts ([`FREE`]) are not charged: they are part of the cost of a connection.

mod buffer;
mod gather;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use http::HeaderMap;

pub use buffer::Buffer;
pub use gather::{Gathered, gather};

/// How much one holder may hold without a charge, in bytes.
pub const FREE: usize = 4 * 1024;
/// How far received data may exceed the limit, in bytes, over all holders: a sender with an open window cannot be stopped.
const OVERDRAFT: usize = 16 * 1024 * 1024;
/// The cost of a piece in addition to its bytes: handle, reference count, allocator overhead.
const PIECE: usize = 128;

/// What memory is used for. A closed set, because it is a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A request body that is collected, kept for a retry, or in transit.
    RequestBody,
    /// A request body that is read for its affinity field.
    Affinity,
    /// A request or response head.
    Head,
    /// Events of a stream that are held back or incomplete.
    Event,
    /// A response that the proxy reads itself, or that its client is not reading.
    Answer,
    /// An HTTP/2 connection to a model server.
    Connection,
}

impl Purpose {
    /// All purposes, in declaration order.
    pub const ALL: [Self; 6] = [
        Self::RequestBody,
        Self::Affinity,
        Self::Head,
        Self::Event,
        Self::Answer,
        Self::Connection,
    ];

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RequestBody => "request_body",
            Self::Affinity => "affinity",
            Self::Head => "head",
            Self::Event => "event",
            Self::Answer => "answer",
            Self::Connection => "connection",
        }
    }
}

/// The cost of a buffer of `capacity` bytes. Allocators round up by at most an eighth.
#[must_use]
pub const fn cost(capacity: usize) -> usize {
    capacity + capacity / 8 + PIECE
}

/// The cost of a holder's memory, in bytes: zero up to [`FREE`].
#[must_use]
pub const fn holding_cost(held: usize) -> usize {
    if held > FREE { cost(held) } else { 0 }
}

/// About how much memory the fields of a message take, in bytes: their text, and a map entry for each.
#[must_use]
pub fn fields_size(fields: &HeaderMap) -> usize {
    const ENTRY: usize = 128;
    let sizes = fields.iter();
    sizes
        .map(|(name, value)| ENTRY + name.as_str().len() + value.len())
        .sum()
}

/// Keeps frequently written fields on a different cache line than frequently read fields.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePadded<T>(T);

/// The bytes that all holders in the process may hold in total.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: CachePadded<AtomicUsize>,
    tight: CachePadded<AtomicBool>,
    refusals: [AtomicU64; Purpose::ALL.len()],
}

impl Budget {
    /// Creates a budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        let budget = Self {
            limit,
            used: CachePadded::default(),
            tight: CachePadded::default(),
            refusals: Default::default(),
        };
        budget.note(0);
        Arc::new(budget)
    }

    /// The limit, in bytes.
    #[must_use]
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// The bytes currently charged. They can exceed the limit a little, by data that had to be accepted.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.0.load(Ordering::Relaxed)
    }

    /// How many times memory for `purpose` was denied since the last call.
    #[must_use]
    pub fn take_refusals(&self, purpose: Purpose) -> u64 {
        self.refusals[purpose as usize].swap(0, Ordering::Relaxed)
    }

    /// Whether the budget is nearly exhausted. If so, never read more at a time than is free of charge.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.tight.0.load(Ordering::Relaxed)
    }

    fn note(&self, used: usize) {
        let tight = used >= self.limit - self.limit / 8;
        if self.is_tight() != tight {
            self.tight.0.store(tight, Ordering::Relaxed);
        }
    }

    fn take(&self, bytes: usize, purpose: Purpose, limit: usize) -> bool {
        let taken = self
            .used
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= limit)
            });
        match taken {
            Ok(before) => self.note(before + bytes),
            Err(_) => {
                self.refusals[purpose as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
        taken.is_ok()
    }

    fn force(&self, bytes: usize) {
        self.note(self.used.0.fetch_add(bytes, Ordering::Relaxed) + bytes);
    }

    fn give(&self, bytes: usize) {
        self.note(self.used.0.fetch_sub(bytes, Ordering::Relaxed) - bytes);
    }
}

/// A holder's share of a budget. It is returned on drop.
#[derive(Debug, Default)]
pub struct Charge {
    /// Present once something has been charged.
    budget: Option<Arc<Budget>>,
    bytes: usize,
}

impl Charge {
    /// The bytes charged.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the charge to `bytes`. Returns false, without effect, if the budget cannot cover the growth.
    #[must_use]
    pub fn resize(&mut self, budget: &Arc<Budget>, bytes: usize, purpose: Purpose) -> bool {
        self.grow(budget, bytes, purpose, budget.limit)
    }

    /// Like [`Charge::resize`], for data that could not be stopped. All such data together may exceed the limit by 16 MiB.
    #[must_use]
    pub fn overdraw(&mut self, budget: &Arc<Budget>, bytes: usize, purpose: Purpose) -> bool {
        let limit = budget.limit.saturating_add(OVERDRAFT);
        self.grow(budget, bytes, purpose, limit)
    }

    fn grow(&mut self, budget: &Arc<Budget>, bytes: usize, purpose: Purpose, limit: usize) -> bool {
        if bytes <= self.bytes {
            self.shrink(bytes);
            return true;
        }
        let taken = budget.take(bytes - self.bytes, purpose, limit);
        if taken {
            self.budget.get_or_insert_with(|| Arc::clone(budget));
            self.bytes = bytes;
        }
        taken
    }

    /// Changes the charge to `bytes`, even beyond the limit, for data that is already held and cannot be discarded.
    pub fn force(&mut self, budget: &Arc<Budget>, bytes: usize) {
        if bytes > self.bytes {
            budget.force(bytes - self.bytes);
            self.budget.get_or_insert_with(|| Arc::clone(budget));
            self.bytes = bytes;
        } else {
            self.shrink(bytes);
        }
    }

    /// Reduces the charge to at most `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        if let Some(budget) = &self.budget
            && bytes < self.bytes
        {
            budget.give(self.bytes - bytes);
            self.bytes = bytes;
        }
    }

    /// Ties the charge to `bytes`: it is returned when the last handle is dropped.
    #[must_use]
    pub fn tie(self, bytes: Bytes) -> Bytes {
        match self.bytes {
            0 => bytes,
            _ => Bytes::from_owner(Tied {
                bytes,
                _charge: self,
            }),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

struct Tied {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Tied {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_is_returned_when_its_holder_is_dropped() {
        let budget = Budget::new(1000);
        let mut one = Charge::default();
        assert!(one.resize(&budget, 600, Purpose::Event));
        let mut other = Charge::default();
        assert!(!other.resize(&budget, 401, Purpose::Event));
        assert_eq!(budget.take_refusals(Purpose::Event), 1);
        assert!(other.resize(&budget, 400, Purpose::Event));
        assert_eq!(budget.used(), 1000);
        other.shrink(100);
        assert_eq!(budget.used(), 700);
        drop((one, other));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn shared_bytes_are_charged_while_any_handle_exists() {
        let budget = Budget::new(1000);
        let mut charge = Charge::default();
        assert!(charge.resize(&budget, 500, Purpose::Answer));
        let bytes = charge.tie(Bytes::from_static(b"abc"));
        let slice = bytes.slice(1..2);
        drop(bytes);
        assert_eq!((&slice[..], budget.used()), (&b"b"[..], 500));
        drop(slice);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn forced_charges_may_exceed_the_limit_and_block_further_ones() {
        let budget = Budget::new(1000);
        let mut charge = Charge::default();
        charge.force(&budget, 1500);
        assert!(budget.is_tight());
        assert!(!Charge::default().resize(&budget, 1, Purpose::Head));
        charge.force(&budget, 100);
        assert_eq!(budget.used(), 100);
        assert!(!budget.is_tight());
    }

    #[test]
    fn received_data_may_exceed_the_limit_by_a_bounded_amount() {
        let budget = Budget::new(1000);
        let mut charge = Charge::default();
        assert!(charge.overdraw(&budget, 1000 + OVERDRAFT, Purpose::Answer));
        assert!(!charge.overdraw(&budget, 1001 + OVERDRAFT, Purpose::Answer));
        assert_eq!(charge.bytes(), 1000 + OVERDRAFT);
    }

    #[test]
    fn an_empty_budget_grants_nothing() {
        let budget = Budget::new(0);
        assert!(budget.is_tight());
        assert!(!Charge::default().resize(&budget, 1, Purpose::Head));
    }
}
