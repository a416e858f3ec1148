//! The connections of an admin port, limited in total and per peer, so that other clients cannot lock out the operators.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use prometheus::IntCounter;
use tokio::net::TcpStream;

use super::Peer;
use crate::transport::Yielding;
use crate::transport::descriptors::Shares;
use crate::transport::write_timeout::{WriteLimit, WriteTimeout};

/// Maximum size of an HTTP/1.1 request head on an admin port, in bytes. It is not charged to a memory budget, so all connections
/// together must need little. Hyper's limit for HTTP/2 is 16 KiB.
pub const MAX_HEAD: usize = 32 * 1024;
/// Maximum number of open connections, unless descriptors are scarce.
const MAX_CONNECTIONS: usize = 512;
/// A peer may hold one in this many of them.
const PEER_DIVISOR: usize = 4;
/// How long a client may leave data unread.
const UNREAD: Duration = Duration::from_secs(30);

#[derive(Default)]
struct OpenCounts {
    all: usize,
    of: HashMap<Peer, usize>,
}

/// The open connections.
#[derive(Clone, Default)]
pub struct Connections(Arc<Mutex<OpenCounts>>);

/// An open connection.
pub struct AdminConnection {
    connections: Connections,
    peer: Peer,
}

impl Connections {
    /// `None` if a limit is reached.
    #[must_use]
    pub fn take(&self, peer: IpAddr) -> Option<AdminConnection> {
        self.take_of(MAX_CONNECTIONS.min(Shares::now().admin), peer)
    }

    fn take_of(&self, most: usize, peer: IpAddr) -> Option<AdminConnection> {
        let peer = Peer::from(peer);
        let mut open = self.lock();
        let of_peer = open.of.get(&peer).copied().unwrap_or(0);
        if open.all >= most || of_peer >= most / PEER_DIVISOR {
            return None;
        }
        open.all += 1;
        open.of.insert(peer, of_peer + 1);
        let connections = self.clone();
        Some(AdminConnection { connections, peer })
    }

    fn lock(&self) -> MutexGuard<'_, OpenCounts> {
        self.0.lock().expect("no holder of this lock can panic")
    }
}

impl Drop for AdminConnection {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        open.all -= 1;
        let left = open.of.get(&self.peer).map_or(0, |open| open - 1);
        match left {
            0 => open.of.remove(&self.peer),
            left => open.of.insert(self.peer, left),
        };
    }
}

/// A connection that is reset if its client leaves data unread, and whose reads yield to others.
#[must_use]
pub fn limited(stream: TcpStream) -> WriteTimeout<Yielding<TcpStream>> {
    static LIMIT: LazyLock<Arc<WriteLimit>> = LazyLock::new(|| {
        Arc::new(WriteLimit {
            limit: UNREAD,
            passed: IntCounter::new("unread", "not exported").expect("the name is valid"),
        })
    });
    WriteTimeout::new(Yielding::new(stream), Arc::clone(&LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn one_address_cannot_take_the_connections_of_all() {
        let connections = Connections::default();
        let mut taken: Vec<_> = (0..1000)
            .map_while(|_| connections.take(address(1)))
            .collect();
        assert_eq!(taken.len(), MAX_CONNECTIONS / PEER_DIVISOR);
        let other = connections.take(address(2));
        assert!(other.is_some());
        taken.pop();
        assert!(connections.take(address(1)).is_some());
        drop((taken, other));
        assert!(connections.lock().of.is_empty());
        assert_eq!(connections.lock().all, 0);
    }

    #[test]
    fn all_addresses_of_an_ipv6_host_are_one_peer() {
        let connections = Connections::default();
        let taken: Vec<_> = (0..1000)
            .map(|last| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]))
            .map_while(|address| connections.take(address))
            .collect();
        assert_eq!(taken.len(), MAX_CONNECTIONS / PEER_DIVISOR);
        let mapped = IpAddr::from(std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        let of_mapped: Vec<_> = (0..MAX_CONNECTIONS / PEER_DIVISOR)
            .filter_map(|_| connections.take(mapped))
            .collect();
        assert_eq!(of_mapped.len(), MAX_CONNECTIONS / PEER_DIVISOR);
        assert!(connections.take(address(1)).is_none(), "the same address");
    }

    #[test]
    fn all_addresses_together_have_a_bound() {
        let connections = Connections::default();
        let taken: Vec<_> = (0..10)
            .flat_map(|peer| (0..100).map(move |_| peer))
            .filter_map(|peer| connections.take(address(peer)))
            .collect();
        assert_eq!(taken.len(), MAX_CONNECTIONS);
    }
}
