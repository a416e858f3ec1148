//! The local admin socket, for clients in the same container or on the same machine: a Unix socket in Linux's abstract
//! namespace (unix(7)), named after the address of the admin port and open only to processes of the same user and of root.
//!
//! Over TCP, such a process cannot be distinguished from a forwarded port or a relayed connection: all of them come from
//! loopback. The abstract namespace needs no writable file system. It belongs to the network namespace, so containers of the same
//! user in a pod share it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::net;
use std::time::Instant;

use crate::transport::log_throttle::LogThrottle;

/// The listening socket of a process. It accepts only authorized users.
pub struct Local {
    listener: tokio::net::UnixListener,
    rejections: LogThrottle,
}

impl Local {
    /// Listens for clients that may change the process whose admin port is at `admin`. Needs a runtime.
    ///
    /// # Errors
    /// When binding fails, or the system has no abstract namespace.
    pub fn bind(admin: SocketAddr) -> io::Result<Self> {
        let listener = net::UnixListener::bind_addr(&name(admin)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: tokio::net::UnixListener::from_std(listener)?,
            rejections: LogThrottle::default(),
        })
    }

    /// The next connection of an authorized user.
    pub(super) async fn accept(&mut self) -> io::Result<tokio::net::UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            match user(&stream) {
                Ok(user) if may(user) => return Ok(stream),
                Ok(user) => {
                    if let Some(times) = self.rejections.record(Instant::now()) {
                        tracing::warn!(
                            user,
                            times,
                            "rejected another user on the local admin socket"
                        );
                    }
                }
                Err(error) => tracing::debug!(%error, "a client left the local admin socket"),
            }
        }
    }
}

/// Connects to the process whose admin port is at `admin`. The unspecified address and loopback are interchangeable.
///
/// # Errors
/// When there is no such process, or when the listener belongs neither to this user nor to root and so is not the intended proxy.
pub(super) fn connect(admin: SocketAddr) -> io::Result<net::UnixStream> {
    let mut refused = io::Error::from(io::ErrorKind::ConnectionRefused);
    for address in alike(admin) {
        match net::UnixStream::connect_addr(&name(address)?) {
            Ok(stream) if may(user(&stream)?) => return Ok(stream),
            Ok(_) => return Err(io::Error::other("the socket belongs to another user")),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// The addresses at which a process may listen whose user calls it `admin`.
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
    // Root can do anything to the process anyway.
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// The user of the process at the other end when it connected or listened (`SO_PEERCRED`, unix(7)).
///
/// This does not use `rustix`, whose type for process IDs excludes 0: the kernel reports 0 for a process in another PID
/// namespace, such as another container of the pod.
#[cfg(target_os = "linux")]
fn user(stream: &impl AsFd) -> io::Result<u32> {
    use std::os::fd::AsRawFd;
    let mut who = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor stays open while it is borrowed, and the kernel writes at most `length` bytes to `who`.
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
