//! Idle connections to model servers, per thread: what a thread opened it keeps, so that nothing is locked and no wake-up
//! crosses cores. The most recently used one is taken first.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::endpoint::Lease;
use super::lifetime::Life;
use crate::transport::Transport;

/// Most idle connections that a thread keeps to one endpoint.
const MAX_IDLE: usize = 512;
/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(60);

struct Idle {
    transport: Transport,
    since: Instant,
    life: Life,
}

thread_local! {
    static IDLES: RefCell<HashMap<u64, Vec<Idle>>> = RefCell::new(HashMap::new());
}

/// A connection to the endpoint that is still good, if this thread has one.
pub(super) fn take(endpoint: u64) -> Option<(Transport, Life)> {
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

/// Keeps a connection on which an exchange has just ended.
pub(super) fn put(lease: &Lease, transport: Transport, now: Instant) {
    let mut life = lease.life;
    if !life.spend() || life.is_over(now) {
        return;
    }
    IDLES.with_borrow_mut(|idles| {
        let stack = idles.entry(lease.id).or_default();
        // The first is the oldest. Where nobody sweeps, this keeps the old ones from piling up.
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

/// Drops what is too old, closed by the other side, or of an endpoint that is gone.
pub(super) fn sweep(now: Instant) {
    IDLES.with_borrow_mut(|idles| {
        idles.retain(|_, stack| {
            stack.retain_mut(|idle| {
                let is_old = now.saturating_duration_since(idle.since) >= IDLE;
                !is_old && !idle.life.is_over(now) && idle.transport.is_quiet()
            });
            !stack.is_empty()
        });
    });
}
