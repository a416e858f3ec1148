//! The way to the admin pages for who is in the same container or on the same machine: a Unix socket in Linux's abstract namespace
//! (unix(7)), called by the address of the admin port, and open to processes of the same user, and of root, alone.
//!
//! TCP cannot tell such a process from who forwards a port or relays a connection: both come from loopback. The abstract namespace
//! needs no file system that can be written. It belongs to the network namespace: in a pod, containers of the same user share it.
//! Must not know what is asked.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::net;

/// The socket of a process, listening. What is accepted is from a user who may.
pub struct Local(tokio::net::UnixListener);

impl Local {
    /// Listens for who may change the process whose admin port is at `admin`. Needs a runtime.
    ///
    /// # Errors
    /// As binding; also where there is no abstract namespace.
    pub fn bind(admin: SocketAddr) -> io::Result<Self> {
        let listener = net::UnixListener::bind_addr(&name(admin)?)?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener).map(Self)
    }

    /// The next connection of a user who may.
    pub(super) async fn accept(&self) -> io::Result<tokio::net::UnixStream> {
        loop {
            let (stream, _) = self.0.accept().await?;
            match user(&stream) {
                Ok(user) if may(user) => return Ok(stream),
                Ok(user) => tracing::warn!(user, "another user may not use the local admin socket"),
                Err(error) => tracing::debug!(%error, "the peer of the local admin socket is gone"),
            }
        }
    }
}

/// Connects to the process whose admin port is at `admin`. An unspecified address and that of loopback are each other's.
///
/// # Errors
/// When there is none, or it is not of this user, nor of root: who listens there is not the proxy that is meant.
pub(super) fn connect(admin: SocketAddr) -> io::Result<net::UnixStream> {
    let mut refused = io::Error::from(io::ErrorKind::ConnectionRefused);
    for address in alike(admin) {
        match net::UnixStream::connect_addr(&name(address)?) {
            Ok(stream) if may(user(&stream)?) => return Ok(stream),
            Ok(_) => return Err(io::Error::other("it is of another user")),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// The addresses under which a process may be that is called by `admin`.
fn alike(admin: SocketAddr) -> Vec<SocketAddr> {
    let mut ips = vec![admin.ip()];
    let this_machine: [IpAddr; 4] = [
        Ipv4Addr::LOCALHOST.into(),
        Ipv4Addr::UNSPECIFIED.into(),
        Ipv6Addr::LOCALHOST.into(),
        Ipv6Addr::UNSPECIFIED.into(),
    ];
    if this_machine.contains(&admin.ip()) {
        ips.extend(this_machine);
    }
    ips.into_iter()
        .map(|ip| SocketAddr::new(ip, admin.port()))
        .collect()
}

#[cfg(target_os = "linux")]
fn name(admin: SocketAddr) -> io::Result<net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    net::SocketAddr::from_abstract_name(format!("crossfade/admin/{admin}"))
}

#[cfg(not(target_os = "linux"))]
fn name(_: SocketAddr) -> io::Result<net::SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

fn may(user: u32) -> bool {
    // SAFETY: it only answers a number, and cannot fail (geteuid(2)).
    let own = unsafe { libc::geteuid() };
    // Root can do to the process whatever it likes anyway.
    user == own || user == 0
}

/// The user of the process at the other end, as the kernel noted it when that one connected or listened (`SO_PEERCRED`, unix(7)).
#[cfg(target_os = "linux")]
fn user(stream: &impl AsFd) -> io::Result<u32> {
    use std::os::fd::AsRawFd;
    let mut who = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as it is borrowed, and the kernel writes no more than `length` bytes to `who`.
    let done = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut length,
        )
    };
    match done {
        0 => Ok(who.uid),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn user(_: &impl AsFd) -> io::Result<u32> {
    Err(io::ErrorKind::Unsupported.into())
}
