//! Limits on what a client may use, in bytes and time.

use std::time::{Duration, Instant};

use crate::snapshot::SnapshotStore;

/// How old a connection must be to be closed after a response while old drains. Clients then reconnect, and reach new once their
/// Service leads there; otherwise they would use old's pods for as long as they have requests.
const MAX_AGE_IN_DRAIN: Duration = Duration::from_secs(10);

/// Whether a connection that began at `since` should end with its current exchange, so that its client reconnects.
pub fn should_reconnect(snapshots: &SnapshotStore, since: Instant) -> bool {
    snapshots.has_left_old() && since.elapsed() >= MAX_AGE_IN_DRAIN
}

/// Limits on clients and their connections.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest request head, in bytes.
    pub max_head: usize,
    /// How long a request head or a TLS handshake may take.
    pub head_timeout: Duration,
    /// How long a connection may be idle between two requests.
    pub idle_timeout: Duration,
    /// How long a client may leave sent data unread.
    pub write_timeout: Duration,
    /// How long a tunnel (`Upgrade`) may be idle.
    pub tunnel_idle_timeout: Duration,
    /// Maximum number of open connections.
    pub max_connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_head: 64 * 1024,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(90),
            write_timeout: Duration::from_secs(300),
            tunnel_idle_timeout: Duration::from_secs(3600),
            max_connections: 100_000,
        }
    }
}
