//! Responses over HTTP/2 that wait for their client, and connections without responses. A client that grants no flow-control window
//! holds up a response although it reads the connection, so that no write blocks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a response may wait for its client.
const LONGEST: Duration = Duration::from_secs(30);
/// How long a connection may have no request.
const MAX_IDLE: Duration = Duration::from_secs(120);
/// How often the responses of a connection are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The responses of one connection that wait for their client. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Stalls(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    since: HashMap<u64, Instant>,
    /// Responses that have not ended.
    open: usize,
    /// When the last one ended.
    ended: Option<Instant>,
}

/// A response of the connection.
#[derive(Debug)]
pub struct Stall {
    of: Stalls,
    id: u64,
}

impl Stalls {
    /// A response that has not been sent yet.
    #[must_use]
    pub fn begin(&self, now: Instant) -> Stall {
        let mut waiting = self.lock();
        let id = waiting.next;
        waiting.next += 1;
        waiting.since.insert(id, now);
        waiting.open += 1;
        let of = self.clone();
        Stall { of, id }
    }

    /// Whether a response has waited for too long.
    #[must_use]
    pub fn is_overdue(&self, now: Instant) -> bool {
        let waiting = self.lock();
        let mut since = waiting.since.values();
        since.any(|since| now.saturating_duration_since(*since) >= LONGEST)
    }

    /// Returns once a response has waited for too long.
    pub async fn overdue(&self) {
        while !self.is_overdue(Instant::now()) {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Whether all responses have ended long ago.
    #[must_use]
    pub fn is_idle(&self, now: Instant) -> bool {
        let waiting = self.lock();
        let is_old = |ended: Instant| now.saturating_duration_since(ended) >= MAX_IDLE;
        waiting.open == 0 && waiting.ended.is_some_and(is_old)
    }

    /// Returns once the connection has been idle for too long.
    pub async fn idle(&self) {
        while !self.is_idle(Instant::now()) {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stall {
    /// The client can receive more: the response does not wait for it.
    pub fn taken(&self) {
        self.of.lock().since.remove(&self.id);
    }

    /// A piece has been passed on: the next one waits for the client.
    pub fn waits(&self, now: Instant) {
        self.of.lock().since.insert(self.id, now);
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.taken();
        let mut waiting = self.of.lock();
        waiting.open -= 1;
        waiting.ended = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_overdue_only_while_it_waits_for_its_client() {
        let (stalls, now) = (Stalls::default(), Instant::now());
        let late = now + LONGEST;
        let stall = stalls.begin(now);
        assert!(!stalls.is_overdue(now) && stalls.is_overdue(late));
        // If there is nothing to send, it is not the client's fault.
        stall.taken();
        assert!(!stalls.is_overdue(late));
        stall.waits(late);
        assert!(!stalls.is_overdue(late) && stalls.is_overdue(late + LONGEST));
        let other = stalls.begin(late + LONGEST);
        drop(stall);
        assert!(!stalls.is_overdue(late + LONGEST));
        drop(other);
        assert!(stalls.lock().since.is_empty());
    }

    #[test]
    fn a_connection_is_idle_some_time_after_its_last_response() {
        let (stalls, now) = (Stalls::default(), Instant::now());
        // A connection without a request has another limit.
        assert!(!stalls.is_idle(now + MAX_IDLE));
        let [first, second] = [stalls.begin(now), stalls.begin(now)];
        first.taken();
        drop(second);
        assert!(!stalls.is_idle(now + 10 * MAX_IDLE));
        drop(first);
        let ended = Instant::now();
        assert!(!stalls.is_idle(ended + MAX_IDLE / 2));
        assert!(stalls.is_idle(ended + MAX_IDLE));
    }
}
