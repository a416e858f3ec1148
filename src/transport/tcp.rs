//! Reads the kernel's state of a TCP connection, and controls how it is closed.
//!
//! Two queries call libc directly: neither socket2 nor rustix reads `TCP_INFO` or `SIOCOUTQ`, and an ioctl of one's own is unsafe in
//! rustix, too.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

/// TCP's counters of a connection (`tcp_info` in linux/tcp.h).
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Neither side has begun to close.
    pub is_established: bool,
    /// Segments sent, and those of them that carried data. The latter is zero if the kernel does not count them.
    pub segments_sent: u32,
    pub data_segments_sent: u32,
    pub bytes_received: u64,
    /// Bytes sent that the peer has acknowledged.
    pub bytes_acknowledged: u64,
    /// The largest segment received so far, or an estimate below the usual size, in bytes.
    pub largest_received: u32,
}

/// Reads the counters from the kernel.
///
/// # Errors
/// The error of getsockopt(2).
#[cfg(target_os = "linux")]
pub fn info(socket: &TcpStream) -> io::Result<Info> {
    /// From net/tcp_states.h.
    const ESTABLISHED: u8 = 1;
    // SAFETY: a struct of numbers, for which zero is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = libc::socklen_t::try_from(size_of_val(&info)).expect("a few hundred");
    // SAFETY: the kernel writes at most `length` bytes to `info`; both outlive the call.
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
    Ok(Info {
        is_established: info.tcpi_state == ESTABLISHED,
        segments_sent: info.tcpi_segs_out,
        data_segments_sent: info.tcpi_data_segs_out,
        bytes_received: info.tcpi_bytes_received,
        bytes_acknowledged: info.tcpi_bytes_acked,
        largest_received: info.tcpi_rcv_mss,
    })
}

/// Makes the kernel send the acknowledgement that it owes, and delay later ones until one has to be sent alone (`TCP_QUICKACK`
/// of tcp(7)).
///
/// # Errors
/// The error of setsockopt(2).
#[cfg(target_os = "linux")]
pub fn delay_acknowledgements(socket: &TcpStream) -> io::Result<()> {
    socket.set_quickack(true)?;
    socket.set_quickack(false)
}

/// Whether the kernel delays acknowledgements.
///
/// # Errors
/// The error of getsockopt(2).
#[cfg(target_os = "linux")]
pub fn delays_acknowledgements(socket: &TcpStream) -> io::Result<bool> {
    socket.quickack().map(|quick| !quick)
}

/// The same on systems without this information, where callers do without it.
#[cfg(not(target_os = "linux"))]
mod unsupported {
    use super::{Info, TcpStream, io};

    /// # Errors
    /// Always.
    pub fn info(_: &TcpStream) -> io::Result<Info> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// # Errors
    /// Always.
    pub fn delay_acknowledgements(_: &TcpStream) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// # Errors
    /// Always.
    pub fn delays_acknowledgements(_: &TcpStream) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
#[cfg(not(target_os = "linux"))]
pub use unsupported::{delay_acknowledgements, delays_acknowledgements, info};

/// Bytes that were written but have not been acknowledged yet (`SIOCOUTQ` of tcp(7)).
///
/// # Errors
/// The error of ioctl(2).
pub fn unacknowledged(socket: &TcpStream) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes an integer to `bytes`, which outlives the call.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Whether there is nothing to read, not even an end or an error. This asks the kernel: the runtime only knows the state of its
/// last poll.
#[must_use]
pub fn is_quiet(socket: &TcpStream) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let read = SockRef::from(socket).recv_with_flags(&mut byte, flags);
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// How often to check whether a peer has acknowledged everything.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits, for at most `limit`, until the peer has acknowledged everything: a reset discards what it has not.
pub async fn taken(socket: &TcpStream, limit: Duration) {
    let taken = async {
        while unacknowledged(socket).is_ok_and(|left| left > 0) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let _ = tokio::time::timeout(limit, taken).await;
}

/// Makes every close of the connection a reset, even when the process dies, or undoes that.
pub fn reset_on_close(socket: &TcpStream, reset: bool) {
    // Fails only for a socket that is gone.
    let _ = SockRef::from(socket).set_linger(reset.then_some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::net::TcpListener;

    use super::*;

    /// A connection, and the other side of it, which writes without the runtime.
    async fn pair() -> (TcpStream, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let near = TcpStream::connect(address).await.expect("a connection");
        let (far, _) = listener.accept().await.expect("a connection");
        (near, far.into_std().expect("a socket"))
    }

    #[tokio::test]
    async fn data_that_the_runtime_does_not_know_of_yet_is_seen() {
        let (near, mut far) = pair().await;
        assert!(is_quiet(&near));
        far.write_all(b"x").expect("written");
        assert!(
            near.try_read(&mut [0]).is_err(),
            "the runtime has not looked"
        );
        assert!(!is_quiet(&near));
        let (near, far) = pair().await;
        drop(far);
        assert!(!is_quiet(&near), "an end is something to read");
    }
}
