//! A non-blocking connection with what is yet to be written; TLS where it is wanted.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::{Domain, Protocol, Socket, Type};

pub struct Wire {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    pub out: Vec<u8>,
    /// Is the poller to tell when there is room to write?
    pub armed: bool,
}

impl Wire {
    /// Begins to connect from `source`.
    pub fn connect(
        source: SocketAddr,
        to: SocketAddr,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::IPV4,
            Type::STREAM.nonblocking(),
            Some(Protocol::TCP),
        )?;
        late_port(&socket)?;
        socket.bind(&source.into())?;
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = tls.map(|config| ClientConnection::new(config.clone(), name).map(Box::new));
        let tls = tls.transpose().map_err(io::Error::other)?;
        socket.set_tcp_nodelay(true)?;
        Ok(Self::over(socket.into(), tls))
    }

    /// With Nagle's algorithm on, or off.
    pub fn accepted(stream: TcpStream, nagle: bool) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(!nagle)?;
        Ok(Self::over(stream, None))
    }

    fn over(stream: TcpStream, tls: Option<Box<ClientConnection>>) -> Self {
        Self {
            stream,
            tls,
            out: Vec::new(),
            armed: false,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Is everything written?
    pub fn is_clear(&self) -> bool {
        self.out.is_empty() && !self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Writes what the socket takes.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            if !self.out.is_empty() {
                tls.writer().write_all(&self.out)?;
                self.out.clear();
            }
            while tls.wants_write() {
                match tls.write_tls(&mut self.stream) {
                    Err(error) if is_later(&error) => break,
                    other => other?,
                };
            }
            return Ok(());
        }
        let mut sent = 0;
        while sent < self.out.len() {
            match self.stream.write(&self.out[sent..]) {
                Ok(n) => sent += n,
                Err(error) if is_later(&error) => break,
                Err(error) => return Err(error),
            }
        }
        if sent == self.out.len() {
            self.out.clear();
        } else {
            self.out.drain(..sent);
        }
        Ok(())
    }

    /// Reads once into `buffer`; 0 bytes mean that there is nothing yet.
    ///
    /// # Errors
    /// `UnexpectedEof` when the far end closed.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            match tls.read_tls(&mut self.stream) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if !is_later(&error) => return Err(error),
                _ => {}
            }
            tls.process_new_packets().map_err(io::Error::other)?;
            return match tls.reader().read(buffer) {
                Err(error) if is_later(&error) => Ok(0),
                other => other,
            };
        }
        match self.stream.read(buffer) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if is_later(&error) => Ok(0),
            other => other,
        }
    }

    /// May there be more to read without the poller telling so?
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }
}

/// Has the port chosen by `connect`, which knows where to, rather than by `bind`.
fn late_port(socket: &Socket) -> io::Result<()> {
    let (on, size) = (
        1_i32,
        libc::socklen_t::try_from(size_of::<i32>()).expect("small"),
    );
    // SAFETY: the pointer is to an integer of that size.
    let result = unsafe {
        let option = libc::IP_BIND_ADDRESS_NO_PORT;
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            option,
            (&raw const on).cast(),
            size,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::NotConnected | ErrorKind::Interrupted
    )
}
