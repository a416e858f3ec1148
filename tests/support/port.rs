//! Ports that are reserved for a test even while nothing listens on them.
//!
//! The kernel could assign a free port to another test or to a client connection. Here, a socket stays bound to the port, so that only
//! a bind to this number gets it.

use std::net::SocketAddr;
use std::sync::Mutex;

use tokio::net::TcpSocket;

/// A port that is reserved until this is dropped. It refuses connections until something listens on it.
pub struct Port {
    pub address: SocketAddr,
    _bound: TcpSocket,
}

impl Port {
    pub fn take() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        // Listeners set it too, and may then bind the same port, since this socket never listens.
        socket.set_reuseaddr(true).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self {
            address: socket.local_addr().unwrap(),
            _bound: socket,
        }
    }

    /// The address of a port that is reserved until the process exits.
    pub fn for_good() -> SocketAddr {
        static TAKEN: Mutex<Vec<Port>> = Mutex::new(Vec::new());
        let port = Self::take();
        let address = port.address;
        TAKEN.lock().unwrap().push(port);
        address
    }
}
