//! Per-thread pool of idle HTTP/1.1 connections to model servers. A thread reuses only connections that it opened itself, so
//! there is no lock and no wake-up across cores. The most recently used connection is reused first.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::endpoint::InFlight;
use super::lifetime::RemainingLifetime;
use crate::transport::{Transport, descriptors};

/// Maximum number of idle connections that a thread keeps per endpoint.
const MAX_IDLE: usize = 512;
/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(60);

struct Idle {
    transport: Transport,
    since: Instant,
    life: RemainingLifetime,
}

thread_local! {
    // A tree, because hashing a key costs more than comparing it with a few others.
    static IDLES: RefCell<BTreeMap<u64, Vec<Idle>>> = const { RefCell::new(BTreeMap::new()) };
    static SHORTAGES: Cell<u64> = const { Cell::new(0) };
}

/// Takes a reusable connection to the endpoint, if this thread has one.
pub(super) fn take(endpoint: u64) -> Option<(Transport, RemainingLifetime)> {
    IDLES.with_borrow_mut(|idles| {
        let stack = idles.get_mut(&endpoint)?;
        while let Some(mut idle) = stack.pop() {
            if idle.transport.is_quiet() {
                return Some((idle.transport, idle.life));
            }
        }
        None
    })
}

/// Returns a connection to the pool after an exchange, unless its lifetime is over.
pub(super) fn put(in_flight: &InFlight, transport: Transport, now: Instant) {
    let mut life = in_flight.life;
    if !life.spend() || life.is_over(now) {
        return;
    }
    IDLES.with_borrow_mut(|idles| {
        let stack = idles.entry(in_flight.id).or_default();
        // The first is the oldest. This keeps old connections from piling up if `sweep` is not called.
        let is_old = |idle: &Idle| now.saturating_duration_since(idle.since) >= IDLE;
        if stack.first().is_some_and(is_old) {
            stack.retain(|idle| !is_old(idle));
        }
        if stack.len() < MAX_IDLE {
            stack.push(Idle {
                transport,
                since: now,
                life,
            });
        }
    });
}

/// Closes the idle connection of this thread that has been idle for longest. False if there is none.
pub(super) fn give_up_one() -> bool {
    IDLES.with_borrow_mut(|idles| {
        let since = |stack: &Vec<Idle>| stack.first().map(|idle| idle.since);
        let stacks = idles.values_mut().filter(|stack| !stack.is_empty());
        let oldest = stacks.min_by_key(|stack| since(stack));
        oldest.map(|stack| stack.remove(0)).is_some()
    })
}

/// Whether a thread has had no descriptor for a connection since this thread's last call.
pub(super) fn are_descriptors_short() -> bool {
    let shortages = descriptors::shortages();
    SHORTAGES.replace(shortages) != shortages
}

/// Drops connections that have been idle too long, have exceeded their lifetime, or were closed by the server, and all if
/// descriptors `are_short`.
pub(super) fn sweep(now: Instant, are_short: bool) {
    IDLES.with_borrow_mut(|idles| {
        idles.retain(|_, stack| {
            stack.retain_mut(|idle| {
                let is_old = now.saturating_duration_since(idle.since) >= IDLE;
                !are_short && !is_old && !idle.life.is_over(now) && idle.transport.is_quiet()
            });
            !stack.is_empty()
        });
    });
}
