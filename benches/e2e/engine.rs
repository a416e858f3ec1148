//! Clients and model servers in one thread around one poller, so that the load side costs little.
//!
//! [`Opener`]s define what the clients do; each request defines what the servers do.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use rustls::ClientConfig;
use socket2::{Domain, Socket, Type};

use super::client::{Client, Meters, Task};
use super::measure::now;
use super::payload::{Payload, RequestForm};
use super::server::Server;
use super::wire::Wire;

enum End {
    Listener(TcpListener, usize),
    Server(Wire, Server),
    Client(Wire, Client),
}

/// How requests come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Each over a connection of its own, which stays open if `keep`.
    NewConnection { keep: bool },
    /// In turn over all connections of [`Engine::connect_idle`] (HTTP/2).
    Shared,
    /// Over an idle connection of [`Engine::connect_idle`]; waits for one if there is none.
    Pooled,
}

/// Sends requests at even intervals.
pub struct Opener {
    pub ask: RequestForm,
    pub way: Way,
    /// When the next is due, in nanoseconds.
    pub next: u64,
    pub every: u64,
    pub left: u64,
}

#[derive(Clone)]
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
    /// Model servers keep Nagle's algorithm on.
    pub nagle: bool,
    /// Clients have an address of their own per round, so that no port is used twice within a minute.
    pub source: Ipv4Addr,
    pub tls: Option<Arc<ClientConfig>>,
    pub http2: bool,
}

pub struct Engine {
    poll: OwnedFd,
    /// Never used twice, so that a late event cannot mean another connection.
    ends: Vec<Option<Box<End>>>,
    upstreams: [SocketAddr; 2],
    proxy: SocketAddr,
    pub set: Settings,
    payload: Rc<Payload>,
    buffer: Vec<u8>,
    openers: Vec<Opener>,
    /// Paced streams in the order in which their next event is due.
    pace: VecDeque<(u64, usize)>,
    floods: Vec<usize>,
    idle: VecDeque<usize>,
    shared: VecDeque<usize>,
    /// Requests that no connection was free for, by when they were due.
    waiting: VecDeque<(u64, RequestForm)>,
    pub tasks: Vec<Task>,
    pub meters: Meters,
    /// Requests per generation.
    pub served: [u64; 2],
    pub errors: Vec<String>,
    stopping: bool,
}

impl Engine {
    /// Two model servers, and no client yet.
    pub fn new(set: Settings) -> io::Result<Self> {
        // SAFETY: a call without pointers; the descriptor it returns is nobody else's.
        let poll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut engine = Self {
            poll,
            ends: Vec::new(),
            upstreams: [any; 2],
            proxy: any,
            set,
            payload: Rc::new(Payload::new()),
            buffer: vec![0; 256 * 1024],
            openers: Vec::new(),
            pace: VecDeque::new(),
            floods: Vec::new(),
            idle: VecDeque::new(),
            shared: VecDeque::new(),
            waiting: VecDeque::new(),
            tasks: Vec::new(),
            meters: Meters::new(),
            served: [0; 2],
            errors: Vec::new(),
            stopping: false,
        };
        for generation in 0..2 {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.bind(&any.into())?;
            socket.listen(4096)?;
            socket.set_nonblocking(true)?;
            let listener = TcpListener::from(socket);
            engine.upstreams[generation] = listener.local_addr()?;
            let fd = listener.as_raw_fd();
            let at = engine.put(End::Listener(listener, generation));
            engine.watch(libc::EPOLL_CTL_ADD, fd, at, false)?;
        }
        Ok(engine)
    }

    /// Where the old and the new model server listen.
    pub fn upstreams(&self) -> [SocketAddr; 2] {
        self.upstreams
    }

    /// Where clients connect to from now on.
    pub fn target(&mut self, proxy: SocketAddr) {
        self.proxy = proxy;
    }

    pub fn open(&mut self, opener: Opener) {
        self.openers.push(opener);
    }

    /// Opens connections that wait for a request.
    pub fn connect_idle(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(at) = self.connect(true) {
                self.idle.push_back(at);
                self.shared.push_back(at);
            }
        }
    }

    /// Sends a request over each idle connection.
    pub fn start_loop(&mut self) {
        let begun = now();
        while let Some(at) = self.idle.pop_front() {
            self.request(at, RequestForm::Short, begun);
        }
    }

    /// No more requests; all streams are ended.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.openers.clear();
        self.waiting.clear();
        self.pace.clear();
        self.floods.clear();
        for at in 0..self.ends.len() {
            self.write(at, Server::end);
        }
    }

    /// Streams of which an event arrived.
    pub fn streaming(&self) -> u64 {
        self.tasks.iter().filter(|task| task.is_streaming()).count() as u64
    }

    pub fn open_tasks(&self) -> usize {
        self.tasks.iter().filter(|task| !task.is_done()).count()
    }

    /// Works until `deadline`, until much is wrong or until `enough` says so, which is asked each millisecond.
    pub fn run(&mut self, deadline: u64, mut enough: impl FnMut(&Self) -> bool) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 256];
        let mut asked = 0;
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
            self.pace_due(time);
            let busy = self.flood() || self.set.spin;
            let rest = if busy {
                0
            } else {
                self.rest(deadline).min(2_000_000)
            };
            let count = self.wait(&mut events, rest);
            for event in &events[..count] {
                self.ready(usize::try_from(event.u64).expect("an index"), event.events);
            }
        }
    }

    /// Nanoseconds until something is due.
    fn rest(&self, deadline: u64) -> u64 {
        let pace = self.pace.front().map(|(due, _)| *due);
        let openers = self.openers.iter().filter(|opener| opener.left > 0);
        let due = openers
            .map(|opener| opener.next)
            .chain(pace)
            .fold(deadline, u64::min);
        due.saturating_sub(now())
    }

    fn wait(&self, events: &mut [libc::epoll_event], nanos: u64) -> usize {
        let rest = libc::timespec {
            tv_sec: 0,
            tv_nsec: i64::try_from(nanos).expect("less than a second"),
        };
        let room = i32::try_from(events.len()).expect("a few");
        // SAFETY: the pointers are to memory of ours with room for so many events.
        let count = unsafe {
            libc::epoll_pwait2(
                self.poll.as_raw_fd(),
                events.as_mut_ptr(),
                room,
                &raw const rest,
                std::ptr::null(),
            )
        };
        usize::try_from(count).unwrap_or(0)
    }

    fn watch(&self, operation: i32, fd: RawFd, at: usize, room: bool) -> io::Result<()> {
        let out = if room { libc::EPOLLOUT } else { 0 };
        let flags = u32::try_from(libc::EPOLLIN | out).expect("flags");
        let mut event = libc::epoll_event {
            events: flags,
            u64: at as u64,
        };
        // SAFETY: the pointer is to an event of ours.
        match unsafe { libc::epoll_ctl(self.poll.as_raw_fd(), operation, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn put(&mut self, end: End) -> usize {
        self.ends.push(Some(Box::new(end)));
        self.ends.len() - 1
    }

    fn fail(&mut self, what: impl Into<String>) {
        self.errors.push(what.into());
    }

    fn connect(&mut self, keep: bool) -> Option<usize> {
        let source = SocketAddr::from((self.set.source, 0));
        let secure = self.set.tls.as_ref();
        match Wire::connect(source, self.proxy, secure) {
            Ok(mut wire) => {
                let client = Client::new(self.set.http2, keep, &mut wire.out);
                // The poller tells when it is connected, and what waits is written.
                wire.armed = true;
                let fd = wire.fd();
                let at = self.put(End::Client(wire, client));
                if let Err(error) = self.watch(libc::EPOLL_CTL_ADD, fd, at, true) {
                    self.fail(format!("poll: {error}"));
                }
                Some(at)
            }
            Err(error) => {
                self.fail(format!("connect: {error}"));
                None
            }
        }
    }

    fn request(&mut self, at: usize, ask: RequestForm, due: u64) {
        let task = self.tasks.len();
        self.tasks.push(Task::new(task as u64, ask, due));
        let Some(mut end) = self.ends[at].take() else {
            return self.fail("a connection is gone");
        };
        if let End::Client(wire, client) = &mut *end {
            let secure = self.set.tls.is_some();
            client.request(task, ask, secure, &self.payload, &mut wire.out);
            self.flush(at, wire);
        }
        self.ends[at] = Some(end);
    }

    fn flush(&mut self, at: usize, wire: &mut Wire) {
        if let Err(error) = wire.flush() {
            return self.fail(format!("write: {error}"));
        }
        let armed = !wire.is_clear();
        if armed != wire.armed {
            wire.armed = armed;
            if let Err(error) = self.watch(libc::EPOLL_CTL_MOD, wire.fd(), at, armed) {
                self.fail(format!("poll: {error}"));
            }
        }
    }

    fn open_due(&mut self, time: u64) {
        for index in 0..self.openers.len() {
            while self.openers[index].left > 0 && self.openers[index].next <= time {
                let opener = &mut self.openers[index];
                let (ask, way, due) = (opener.ask, opener.way, opener.next);
                opener.left -= 1;
                opener.next += opener.every;
                // What a late load generator cost is not the proxy's, save where a queue may build up.
                let begun = if way == Way::Pooled { due } else { now() };
                let connection = match way {
                    Way::NewConnection { keep } => self.connect(keep),
                    Way::Shared => {
                        self.shared.rotate_left(1);
                        self.shared.back().copied()
                    }
                    Way::Pooled => self.idle.pop_front(),
                };
                match connection {
                    Some(at) => self.request(at, ask, begun),
                    None => self.waiting.push_back((begun, ask)),
                }
            }
        }
    }

    /// Lets the server at `at` write, and flushes.
    fn write<T>(
        &mut self,
        at: usize,
        what: impl FnOnce(&mut Server, &mut Vec<u8>) -> T,
    ) -> Option<T> {
        let mut end = self.ends[at].take()?;
        let mut result = None;
        if let End::Server(wire, server) = &mut *end
            && server.is_serving()
        {
            result = Some(what(server, &mut wire.out));
            self.flush(at, wire);
        }
        self.ends[at] = Some(end);
        result
    }

    fn pace_due(&mut self, time: u64) {
        let payload = self.payload.clone();
        while let Some(&(due, at)) = self.pace.front().filter(|(due, _)| *due <= time) {
            self.pace.pop_front();
            let limit = self.set.events;
            let more = self.write(at, |server, out| {
                let count = server.event(&payload, out, now());
                if count >= limit {
                    server.end(out);
                }
                count < limit
            });
            if more == Some(true) {
                self.pace.push_back((due + self.set.interval, at));
            }
        }
    }

    /// Each flood that has room writes once. Was there one?
    fn flood(&mut self) -> bool {
        let mut wrote = false;
        let payload = self.payload.clone();
        let burst = self.set.burst;
        for index in 0..self.floods.len() {
            let at = self.floods[index];
            let done = self.write(at, |server, out| {
                if out.is_empty() {
                    for _ in 0..burst {
                        server.event(&payload, out, now());
                    }
                    return true;
                }
                false
            });
            wrote |= done == Some(true);
        }
        wrote
    }

    fn ready(&mut self, at: usize, flags: u32) {
        let Some(mut end) = self.ends[at].take() else {
            return;
        };
        let room = flags & u32::try_from(libc::EPOLLOUT).expect("a flag") != 0;
        let more = flags & !u32::try_from(libc::EPOLLOUT).expect("a flag") != 0;
        let stays = match &mut *end {
            End::Listener(listener, generation) => self.accept(listener, *generation),
            End::Server(wire, server) => {
                if room {
                    self.flush(at, wire);
                }
                !more || self.serve(at, wire, server)
            }
            End::Client(wire, client) => {
                if room {
                    self.flush(at, wire);
                }
                !more || self.receive(at, wire, client)
            }
        };
        if stays {
            self.ends[at] = Some(end);
        }
    }

    fn accept(&mut self, listener: &TcpListener, generation: usize) -> bool {
        while let Ok((stream, _)) = listener.accept() {
            let added = Wire::accepted(stream, self.set.nagle).and_then(|wire| {
                let fd = wire.fd();
                let at = self.put(End::Server(wire, Server::new(generation)));
                self.watch(libc::EPOLL_CTL_ADD, fd, at, false)
            });
            if let Err(error) = added {
                self.fail(format!("accept: {error}"));
            }
        }
        true
    }

    /// Reads from a proxy. Does the connection stay?
    fn serve(&mut self, at: usize, wire: &mut Wire, server: &mut Server) -> bool {
        let count = match wire.read(&mut self.buffer) {
            Ok(count) => count,
            Err(error) => {
                if server.is_serving() && !self.stopping {
                    self.fail(format!("a stream was left by the proxy: {error}"));
                }
                return false;
            }
        };
        match server.feed(&self.buffer[..count], &self.payload, &mut wire.out) {
            Ok(None) if wire.out.is_empty() => return true,
            Ok(None) => {}
            Ok(Some(ask)) => {
                self.served[server.generation()] += 1;
                if ask == RequestForm::Paced && !self.stopping {
                    let time = now();
                    server.event(&self.payload, &mut wire.out, time);
                    self.pace.push_back((time + self.set.interval, at));
                } else if ask == RequestForm::Flood && !self.stopping {
                    self.floods.push(at);
                } else {
                    server.end(&mut wire.out);
                }
            }
            Err(error) => self.fail(format!("upstream: {error}")),
        }
        self.flush(at, wire);
        true
    }

    /// Reads from a proxy as its client. Does the connection stay?
    fn receive(&mut self, at: usize, wire: &mut Wire, client: &mut Client) -> bool {
        loop {
            let count = match wire.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) => {
                    if client.is_waiting(&self.tasks) {
                        self.fail(format!("a response was cut: {error}"));
                    }
                    return false;
                }
            };
            let fed = client.feed(
                &self.buffer[..count],
                now(),
                &self.payload,
                &mut self.tasks,
                &mut self.meters,
                &mut wire.out,
            );
            match fed {
                Ok(0) => {}
                Ok(_) if !client.keep => return false,
                Ok(_) => self.free(at, wire, client),
                Err(error) => {
                    self.fail(format!("client: {error}"));
                    return false;
                }
            }
            if !wire.is_encrypted() {
                break;
            }
        }
        if !wire.is_clear() {
            self.flush(at, wire);
        }
        true
    }

    /// A response ended: the connection serves the next request.
    fn free(&mut self, at: usize, wire: &mut Wire, client: &mut Client) {
        let next = match self.waiting.pop_front() {
            Some(next) => next,
            None if self.set.closed_loop && !self.stopping => (now(), RequestForm::Short),
            None => return self.idle.push_back(at),
        };
        let task = self.tasks.len();
        self.tasks.push(Task::new(task as u64, next.1, next.0));
        let secure = self.set.tls.is_some();
        client.request(task, next.1, secure, &self.payload, &mut wire.out);
    }
}
