//! What the kernel knows of a TCP connection, and how it ends it.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

/// What TCP has counted of a connection (`tcp_info` of linux/tcp.h).
///
/// # Errors
/// As getsockopt(2).
pub fn info(socket: &TcpStream) -> io::Result<libc::tcp_info> {
    // SAFETY: a struct of numbers, of which zeros are values.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = libc::socklen_t::try_from(size_of_val(&info)).expect("a few hundred");
    // SAFETY: the kernel writes at most `length` bytes to `info`, both of which outlive the call.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(info)
}

/// Bytes that were written and that the other side has not acknowledged (`SIOCOUTQ` of tcp(7)).
///
/// # Errors
/// As ioctl(2).
pub fn unacknowledged(socket: &TcpStream) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes an integer to `bytes`, which outlives the call.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// How often it is looked whether a peer has taken what was written to it.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until the other side has taken all that was written, for `limit` at most: a reset throws away what it has not.
pub async fn taken(socket: &TcpStream, limit: Duration) {
    let taken = async {
        while unacknowledged(socket).is_ok_and(|left| left > 0) {
            tokio::time::sleep(LOOK).await;
        }
    };
    let _ = tokio::time::timeout(limit, taken).await;
}

/// Makes every close of the connection a reset, or no longer. That of a process that dies, too.
pub fn reset_on_close(socket: &TcpStream, reset: bool) {
    // Fails only for a socket that is gone.
    let _ = SockRef::from(socket).set_linger(reset.then_some(Duration::ZERO));
}
