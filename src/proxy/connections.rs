//! The connections of clients that are open at once, over all threads: counted and bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::service::Shared;

/// How many connections are open.
#[derive(Debug, Default)]
pub struct Connections(AtomicUsize);

/// One of the connections that may be open at once, while it lives.
pub struct Seat(Arc<Shared>);

impl Seat {
    /// `None` when `most` are open already.
    pub fn take(shared: &Arc<Shared>, most: usize) -> Option<Self> {
        let open = &shared.connections.0;
        if open.fetch_add(1, Ordering::Relaxed) >= most {
            open.fetch_sub(1, Ordering::Relaxed);
            shared.metrics.connections_refused.inc();
            return None;
        }
        shared.metrics.connections.inc();
        Some(Self(Arc::clone(shared)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.connections.0.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.connections.dec();
    }
}
