//! Ports of this machine that a test has for itself also while nothing listens on them.
//!
//! A port that was free a moment ago may be another test's by now: one that asks for any port gets it, and so does a client's
//! connection. Here a socket stays bound to it. Nothing gets the port unless it asks for it by its number.

use std::net::SocketAddr;
use std::sync::Mutex;

use tokio::net::TcpSocket;

/// A port that belongs to a test while this exists. It refuses connections until something listens on it.
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

    /// The address of a port that is taken until the process ends.
    pub fn for_good() -> SocketAddr {
        static TAKEN: Mutex<Vec<Port>> = Mutex::new(Vec::new());
        let port = Self::take();
        let address = port.address;
        TAKEN.lock().unwrap().push(port);
        address
    }
}
