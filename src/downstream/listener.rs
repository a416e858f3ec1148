//! The listening sockets for clients: one per thread, all on one address.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::transport::accept;

/// Maximum number of connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 4096;

/// Sockets that listen on one address, one per thread.
pub struct Listener {
    address: SocketAddr,
    sockets: Vec<std::net::TcpListener>,
}

impl Listener {
    /// Listens on `address` with `threads` sockets, among which the kernel distributes connections (`SO_REUSEPORT`).
    /// `unread` is how long a client may leave sent data unacknowledged before the kernel closes the connection.
    ///
    /// # Errors
    /// The error of binding or listening, including an address that another process uses, which `SO_REUSEPORT` would hide.
    pub fn bind(address: SocketAddr, threads: usize, unread: Duration) -> io::Result<Self> {
        let first = bind(address, false, unread)?;
        let address = first.local_addr()?;
        if threads == 1 {
            let sockets = vec![first];
            return Ok(Self { address, sockets });
        }
        drop(first);
        let sockets = (0..threads)
            .map(|_| bind(address, true, unread))
            .collect::<io::Result<_>>()?;
        Ok(Self { address, sockets })
    }

    /// The address, with the actual port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The sockets, one per thread.
    #[must_use]
    pub fn into_sockets(self) -> Vec<std::net::TcpListener> {
        self.sockets
    }
}

fn bind(address: SocketAddr, shared: bool, unread: Duration) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // Accepted connections inherit this, and keep-alive.
    socket.set_tcp_nodelay(true)?;
    accept::keep_alive(&SockRef::from(&socket), unread)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Makes the kernel ignore new connection attempts; handshakes in progress still complete. An ignored client retries
/// after a second and is then refused, or reaches another process; it has not sent anything yet. Without this, closing
/// `listener` would reset connections that clients consider open.
#[cfg(target_os = "linux")]
pub fn drop_new_connections(listener: &SockRef<'_>) -> io::Result<()> {
    // Classic BPF over the TCP header (packet(7)): drop segments with SYN but not ACK in the flags byte, at offset 13.
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const SYN: u32 = 0x02;
    const SYN_AND_ACK: u32 = 0x12;
    let filter = [
        socket2::SockFilter::new(LOAD_BYTE, 0, 0, 13),
        socket2::SockFilter::new(AND, 0, 0, SYN_AND_ACK),
        socket2::SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        socket2::SockFilter::new(RETURN, 0, 0, 0),
        socket2::SockFilter::new(RETURN, 0, 0, u32::MAX),
    ];
    listener.attach_filter(&filter)
}
