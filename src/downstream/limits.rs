//! What a client may take of a connection, in bytes and time.

use std::time::Duration;

/// Bounds on clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest request head, in bytes.
    pub max_head: usize,
    /// Time that a head, or a TLS handshake, may take.
    pub head_timeout: Duration,
    /// Time that a connection may rest between two requests.
    pub idle_timeout: Duration,
    /// Time that a client may leave what it is sent unread.
    pub write_timeout: Duration,
    /// Time that nothing may pass through a tunnel (`Upgrade`).
    pub tunnel_idle_timeout: Duration,
    /// Most connections that are open at once.
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
