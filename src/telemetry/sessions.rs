//! Tracks which sessions were compared in the current minute.
//!
//! All requests of a session reach the same generation, and the session causes what is unusual about them. So a session counts
//! once a minute in the comparison of both generations, no matter how many requests it sends.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::split::Key;

/// Number of slots for sessions. Sessions that share a slot may count more than once a minute.
const SLOTS: usize = 1 << 14;

/// The last session of each slot, and its minute. 128 KiB.
#[derive(Debug)]
pub struct Sessions(Box<[AtomicU64]>);

impl Default for Sessions {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Sessions {
    /// Whether this is the first request of the session in the minute of `second`.
    #[must_use]
    pub fn is_first(&self, session: Key, second: u64) -> bool {
        let hash = session.hash();
        let slot = usize::try_from(hash).unwrap_or(usize::MAX) % SLOTS;
        // Never 0, which marks an empty slot.
        let minute = (second / 60 + 1) & 0xffff;
        let entry = (hash & !0xffff) | minute.max(1);
        self.0[slot].swap(entry, Ordering::Relaxed) != entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_counts_once_a_minute() {
        let sessions = Sessions::default();
        let [one, other] = ["one", "other"].map(|name| Key::of(name.as_bytes()));
        for second in [0, 60, 3600, 60 * 0xffff] {
            for session in [one, other] {
                assert!(sessions.is_first(session, second));
                assert!(!sessions.is_first(session, second + 59));
            }
        }
    }
}
