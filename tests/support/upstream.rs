//! A model server that follows a script, byte for byte and fault for fault, and records what it receives.
//!
//! HTTP/1.1 is written by hand so that nothing is corrected on the way. HTTP/2 (detected by its preface or selected by ALPN) is
//! hyper's. Does not depend on the proxy.

mod http1;
mod http2;
mod script;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Version;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

pub use script::{Gate, Script, Step};

/// Both directions of a connection.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

type Handler = Arc<dyn Fn(&Received) -> Script + Send + Sync>;

/// A running model server. Dropping it closes all its connections.
pub struct Upstream {
    pub address: SocketAddr,
    log: Arc<Log>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Log {
    requests: Mutex<Vec<Arc<Received>>>,
    connections: AtomicUsize,
    open: AtomicUsize,
    bytes: AtomicU64,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// One received request.
#[derive(Debug)]
pub struct Received {
    /// The head as text; for HTTP/2, reconstructed from its fields.
    pub head: String,
    pub method: String,
    pub target: String,
    pub version: Version,
    /// Names are in lower case.
    pub headers: Vec<(String, String)>,
    /// The number of its connection, counted from 1.
    pub connection: usize,
    body: Mutex<Vec<u8>>,
    trailers: Mutex<Vec<(String, String)>>,
    complete: AtomicBool,
    gone: AtomicBool,
}

impl Received {
    /// The value of the first header with that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.headers.iter();
        let (_, value) = fields.find(|(known, _)| known == name)?;
        Some(value)
    }

    /// The values of all headers with that name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// What has arrived of its body.
    pub fn body(&self) -> Vec<u8> {
        self.body.lock().unwrap().clone()
    }

    pub fn body_length(&self) -> usize {
        self.body.lock().unwrap().len()
    }

    pub fn trailers(&self) -> Vec<(String, String)> {
        self.trailers.lock().unwrap().clone()
    }

    /// Has its whole body arrived?
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Relaxed)
    }

    /// Did the peer go away before the script was complete?
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    fn complete(&self) {
        self.complete.store(true, Ordering::Relaxed);
    }
}

impl Upstream {
    /// Starts a server whose `handler` selects the script for each request by its head.
    pub async fn start(handler: impl Fn(&Received) -> Script + Send + Sync + 'static) -> Self {
        Self::listen("127.0.0.1:0", None, handler).await
    }

    /// Starts a server that responds to every request with the same script.
    pub async fn always(script: Script) -> Self {
        Self::start(move |_| script.clone()).await
    }

    /// Starts a server on `address`, with TLS if a configuration is given.
    pub async fn listen(
        address: &str,
        tls: Option<Arc<rustls::ServerConfig>>,
        handler: impl Fn(&Received) -> Script + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::<Log>::default();
        let accepting = tokio::spawn(accept(listener, tls, log.clone(), Arc::new(handler)));
        Self {
            address,
            log,
            accepting,
        }
    }

    /// Starts a server on a port of the test's own, once the one before it there has stopped.
    pub async fn at(
        address: SocketAddr,
        handler: impl Fn(&Received) -> Script + Send + Sync + 'static,
    ) -> Self {
        super::wait::eventually("the address is free", async || {
            TcpListener::bind(address).await.is_ok()
        })
        .await;
        Self::listen(&address.to_string(), None, handler).await
    }

    /// An address without a listener.
    pub fn nobody() -> SocketAddr {
        super::Port::for_good()
    }

    /// `host:port`, as the program expects it.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// All requests so far, in the order of their heads.
    pub fn requests(&self) -> Vec<Arc<Received>> {
        self.log.requests.lock().unwrap().clone()
    }

    /// The number of requests so far.
    pub fn count(&self) -> usize {
        self.log.requests.lock().unwrap().len()
    }

    /// The last request.
    ///
    /// # Panics
    /// If there was none.
    pub fn last(&self) -> Arc<Received> {
        self.requests().pop().expect("a request came")
    }

    /// The number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.log.connections.load(Ordering::Relaxed)
    }

    /// The number of open connections.
    pub fn open(&self) -> usize {
        self.log.open.load(Ordering::Relaxed)
    }

    /// The number of bytes received so far, of any kind (HTTP/1.1 only).
    pub fn bytes(&self) -> u64 {
        self.log.bytes.load(Ordering::Relaxed)
    }

    /// Waits for the `n`-th request, counted from 1.
    pub async fn request(&self, n: usize) -> Arc<Received> {
        super::wait::until("a request reaches the upstream", async || {
            self.log.requests.lock().unwrap().get(n - 1).cloned()
        })
        .await
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
        for task in self.log.tasks.lock().unwrap().drain(..) {
            task.abort();
        }
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    log: Arc<Log>,
    handler: Handler,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let number = log.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let _ = stream.set_nodelay(true);
        let connection = Connection {
            number,
            fd: stream.as_raw_fd(),
            log: log.clone(),
            handler: handler.clone(),
        };
        let task = tokio::spawn(open(stream, tls.clone(), connection));
        let mut tasks = log.tasks.lock().unwrap();
        if tasks.len() % 512 == 511 {
            tasks.retain(|task| !task.is_finished());
        }
        tasks.push(task);
    }
}

async fn open(stream: TcpStream, tls: Option<Arc<rustls::ServerConfig>>, connection: Connection) {
    let _open = Open::new(connection.log.clone());
    if let Some(config) = tls {
        let Ok(stream) = TlsAcceptor::from(config).accept(stream).await else {
            return;
        };
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        serve(stream, is_http2, connection).await;
    } else {
        let mut first = [0; 3];
        let mut seen = 0;
        while seen < 3 {
            match stream.peek(&mut first).await {
                Ok(0) | Err(_) => return,
                Ok(now) if now == seen => tokio::time::sleep(Duration::from_millis(1)).await,
                Ok(now) => seen = now,
            }
        }
        serve(stream, &first == b"PRI", connection).await;
    }
}

async fn serve(io: impl Io, is_http2: bool, connection: Connection) {
    if is_http2 {
        http2::serve(io, connection).await;
    } else {
        http1::serve(io, connection).await;
    }
}

/// A connection's view of its server.
#[derive(Clone)]
struct Connection {
    number: usize,
    fd: RawFd,
    log: Arc<Log>,
    handler: Handler,
}

impl Connection {
    /// Records `received` and returns its script.
    fn receive(&self, received: Arc<Received>) -> Script {
        self.log.requests.lock().unwrap().push(received.clone());
        (self.handler)(&received)
    }

    /// Makes the next close a reset. Beware: call this only while the socket is open.
    fn reset_on_close(&self) {
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let _ = socket2::SockRef::from(&fd).set_linger(Some(Duration::ZERO));
    }
}

/// Counts a connection while it is open.
struct Open(Arc<Log>);

impl Open {
    fn new(log: Arc<Log>) -> Self {
        log.open.fetch_add(1, Ordering::Relaxed);
        Self(log)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
