//! Sends commands to the local admin socket of another crossfade process, for users and for hooks, which cannot rely on a
//! shell.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use super::local;
use crate::printable::printable;
use crate::telemetry::log::Level;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no crossfade process on this machine listens on the admin port {address}")]
    Unreachable {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("{address} responded '{}'", printable(.answer))]
    Refused { address: SocketAddr, answer: String },
}

/// Makes the process whose admin port is at `admin` drain. An unspecified address means this machine. Takes at most a few
/// seconds and does not wait for the drain.
///
/// # Errors
/// When there is no such process, or it rejects the command.
pub fn drain(admin: SocketAddr) -> Result<(), Error> {
    put(admin, "/drain", "")
}

/// Sets what the process whose admin port is at `admin` logs.
///
/// # Errors
/// When there is no such process, or it rejects the command.
pub fn log_level(admin: SocketAddr, level: &Level) -> Result<(), Error> {
    put(admin, "/log-level", &level.to_string())
}

fn put(address: SocketAddr, path: &str, body: &str) -> Result<(), Error> {
    let answer = exchange(address, path, body);
    let answer = answer.map_err(|source| Error::Unreachable { address, source })?;
    if answer.starts_with("HTTP/1.1 200 ") {
        return Ok(());
    }
    let answer = answer.lines().next().unwrap_or_default().to_owned();
    Err(Error::Refused { address, answer })
}

fn exchange(address: SocketAddr, path: &str, body: &str) -> io::Result<String> {
    let mut stream = local::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let length = body.len();
    write!(
        stream,
        "PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.take(4096).read_to_string(&mut answer)?;
    Ok(answer)
}
