//! Clients and model servers in one thread around one poller, so that the load side costs little.
//!
//! What the clients do is told by [`Opener`]s; what the servers do, each request tells. Every byte is checked.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use rustls::ClientConfig;

use super::client::{Client, Meters, Task};
use super::measure::now;
use super::payload::{Ask, Payload};
use super::server::{Server, Step};
use super::wire::Wire;

/// What one end of a connection is.
enum End {
    Listener(TcpListener),
    Server(Wire, Server),
    Client(Wire, Client),
}

/// How requests come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Each over a connection of its own, which stays open when `keep`.
    NewConnection { keep: bool },
    /// In turn over the connections that are there (HTTP/2).
    Shared,
    /// Over an idle connection of [`Engine::connect_idle`]; waits for one if none is.
    Pooled,
}

/// Sends requests at even intervals.
pub struct Opener {
    pub ask: Ask,
    pub way: Way,
    /// When the next is due, in nanoseconds.
    pub next: u64,
    pub every: u64,
    pub left: u64,
}

pub struct Settings {
    /// Between two events of a paced stream, in nanoseconds.
    pub interval: u64,
    /// After so many a paced stream ends.
    pub events: u64,
    /// Events per write of a flood.
    pub burst: u64,
    /// An idle connection sends the next request at once.
    pub closed_loop: bool,
    /// Never sleep in the poller.
    pub spin: bool,
    /// Clients use addresses of their own, so that no port is used twice within a minute.
    pub source: Ipv4Addr,
    pub tls: Option<Arc<ClientConfig>>,
    pub http2: bool,
}

pub struct Engine {
    poll: RawFd,
    ends: Vec<Option<Box<End>>>,
    listeners: [SocketAddr; 2],
    proxy: SocketAddr,
    pub set: Settings,
    payload: Payload,
    buffer: Vec<u8>,
    openers: Vec<Opener>,
    /// Paced streams in the order in which their next event is due.
    pace: VecDeque<(u64, usize)>,
    floods: Vec<usize>,
    idle: VecDeque<usize>,
    shared: Vec<usize>,
    /// Requests that no connection was free for, by when they were due.
    waiting: VecDeque<(u64, Ask)>,
    pub tasks: Vec<Task>,
    pub meters: Meters,
    /// Requests per generation.
    pub served: [u64; 2],
    pub errors: Vec<String>,
    stopping: bool,
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and is not used any more.
        unsafe { libc::close(self.poll) };
    }
}

impl Engine {
    /// Two model servers, and no client yet.
    pub fn new(set: Settings) -> std::io::Result<Self> {
        // SAFETY: a call without pointers.
        let poll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut engine = Self {
            poll,
            ends: Vec::new(),
            listeners: [any; 2],
            proxy: any,
            set,
            payload: Payload::new(),
            buffer: vec![0; 256 * 1024],
            openers: Vec::new(),
            pace: VecDeque::new(),
            floods: Vec::new(),
            idle: VecDeque::new(),
            shared: Vec::new(),
            waiting: VecDeque::new(),
            tasks: Vec::new(),
            meters: Meters::new(),
            served: [0; 2],
            errors: Vec::new(),
            stopping: false,
        };
        for side in 0..2 {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.bind(&any.into())?;
            socket.listen(4096)?;
            let listener = TcpListener::from(socket);
            listener.set_nonblocking(true)?;
            engine.listeners[side] = listener.local_addr()?;
            let fd = listener.as_raw_fd();
            let at = engine.add(End::Listener(listener));
            engine.watch(libc::EPOLL_CTL_ADD, fd, at, false);
        }
        Ok(engine)
    }

    /// Where the old and the new model server listen.
    pub fn upstreams(&self) -> [SocketAddr; 2] {
        self.listeners
    }

    pub fn target(&mut self, proxy: SocketAddr) {
        self.proxy = proxy;
    }

    pub fn open(&mut self, opener: Opener) {
        self.openers.push(opener);
    }

    /// Connections that wait for a request.
    pub fn connect_idle(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(at) = self.connect(true) {
                self.idle.push_back(at);
                self.shared.push(at);
            }
        }
    }

    /// Sends a request over each idle connection, for the closed loop.
    pub fn start_loop(&mut self) {
        let begun = now();
        while let Some(at) = self.idle.pop_front() {
            self.request(at, Ask::Short, begun);
        }
    }

    /// No more requests; streams end with their next write.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.openers.clear();
        self.waiting.clear();
        self.set.closed_loop = false;
        self.pace.clear();
        self.floods.clear();
        for at in 0..self.ends.len() {
            self.with_server(at, Server::end);
        }
    }

    pub fn open_tasks(&self) -> usize {
        self.tasks.iter().filter(|task| !task.is_done()).count()
    }

    /// Works until `deadline`, until something is wrong or until `enough` says so, which is asked now and then.
    pub fn run(&mut self, deadline: u64, mut enough: impl FnMut(&Self) -> bool) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 256];
        let mut asked = now();
        loop {
            let time = now();
            if time >= deadline || self.errors.len() > 10 {
                return;
            }
            if time - asked > 1_000_000 {
                asked = time;
                if enough(self) {
                    return;
                }
            }
            self.open_due(time);
            self.pace_due();
            let busy = self.flood();
            let rest = if busy || self.set.spin { 0 } else { self.rest(deadline).min(10_000_000) };
            for event in &events[..self.wait(&mut events.clone(), rest, &mut events)] {
                let at = usize::try_from(event.u64).expect("an index");
                self.ready(at, event.events);
            }
        }
    }

    /// Nanoseconds until something is due.
    fn rest(&self, deadline: u64) -> u64 {
        let pace = self.pace.front().map(|(due, _)| *due);
        let openers = self.openers.iter().map(|opener| opener.next);
        let due = openers.chain(pace).fold(deadline, u64::min);
        due.saturating_sub(now())
    }
}
