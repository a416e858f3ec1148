//! Speaks to the admin port of another crossfade process on this machine: for hooks that cannot rely on a shell. Knows nothing
//! of what the other process then does.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);

/// Why a process was not told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("nobody answers at {address}")]
    Unreachable {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("{address} answers {answer:?}")]
    Refused { address: SocketAddr, answer: String },
}

/// Tells the process whose admin port is at `admin` to drain; an unspecified address means this machine. Takes at most some
/// seconds, and does not wait for the drain.
///
/// # Errors
/// When there is no such process, or it does not do so.
pub fn drain(admin: SocketAddr) -> Result<(), Error> {
    let address = here(admin);
    let answer = put(address, "/drain").map_err(|source| Error::Unreachable { address, source })?;
    if answer.starts_with("HTTP/1.1 200 ") {
        return Ok(());
    }
    let answer = answer.lines().next().unwrap_or_default().to_owned();
    Err(Error::Refused { address, answer })
}

fn here(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

fn put(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "PUT {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.take(4096).read_to_string(&mut answer)?;
    Ok(answer)
}
