//! Keeps the connection of an exchange for another request to the same server process.
//!
//! An address does not identify the server: the process that listens on it may have been replaced, and a Service picks one of
//! several servers for each connection.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::h2_link::Reserved;
use super::lifetime::RemainingLifetime;
use crate::transport::Transport;

/// A connection that can be reused for another request.
pub(super) enum Connection {
    Http1(Transport),
    Http2(Reserved),
}

/// Where an exchange leaves its connection instead of in the thread's pool. It stays empty if the server closes the connection
/// after its response.
#[derive(Clone, Default)]
pub(super) struct Slot(Arc<Mutex<Option<(Connection, RemainingLifetime)>>>);

impl Slot {
    /// Leaves a connection here, with its remaining lifetime.
    pub(super) fn put(&self, connection: Connection, mut life: RemainingLifetime) {
        // The request that follows is allowed in any case. After it, the pool refuses a connection whose lifetime is over.
        life.spend();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((connection, life));
    }

    /// Takes the connection, if the server has not closed it.
    pub(super) fn take(&self) -> Option<(Connection, RemainingLifetime)> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut connection, life) = slot.take()?;
        let is_open = match &mut connection {
            Connection::Http1(transport) => transport.is_quiet(),
            Connection::Http2(reserved) => reserved.is_open(),
        };
        is_open.then_some((connection, life))
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}
