//! A load of streams. Each stream is read to its end, and its text is compared with what its generation should send.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::fixture::eventually;
use crate::pair::RequestKind;
use crate::rig::client::Head;
use crate::rig::{Client, End, Family, within};

const CHAT: RequestKind = RequestKind {
    family: Family::Chat,
    stream: true,
};

/// The number and the interval of the words of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub words: usize,
    pub each_ms: usize,
}

/// A stream that ended: the phase in which it started, and the generation that responded or the error.
pub type FinishedStream = (usize, Result<String, String>);

/// The phase of streams that start while the test changes something.
pub const BETWEEN: usize = usize::MAX;

/// State that a load shares with its thread.
#[derive(Debug, Default)]
struct State {
    phase: AtomicUsize,
    stopped: AtomicBool,
    open: AtomicUsize,
    /// Streams that have started in the current phase.
    begun: AtomicUsize,
    /// Streams that started in a phase and have no response head yet: the split may not have assigned them yet.
    pending: AtomicUsize,
    /// How many times the clients with kept connections were restarted.
    restarts: AtomicUsize,
    /// Streams on a connection that had served another stream before.
    on_kept: AtomicUsize,
}

/// What the clients of a load do.
#[derive(Clone, Copy, Debug)]
struct Plan {
    address: SocketAddr,
    shape: Shape,
    streams: usize,
    /// How many of the clients keep their connection for the next stream, as OpenAI's client does.
    kept: usize,
    once: bool,
    phase: usize,
}

impl Plan {
    fn of(address: SocketAddr, streams: usize, shape: Shape) -> Self {
        Self {
            address,
            shape,
            streams,
            kept: 0,
            once: false,
            phase: 0,
        }
    }
}

/// Streams on their own thread, so that the test does not delay them.
pub struct Load {
    pub started: Instant,
    state: Arc<State>,
    thread: JoinHandle<Vec<FinishedStream>>,
}

impl Load {
    /// Keeps this number of streams open until [`Self::finish`]. They belong to phase 0.
    pub fn start(address: SocketAddr, streams: usize, shape: Shape) -> Self {
        Self::run(Plan::of(address, streams, shape))
    }

    /// Like [`Self::start`], but every second client keeps its connection.
    pub fn start_half_kept(address: SocketAddr, streams: usize, shape: Shape) -> Self {
        let plan = Plan::of(address, streams, shape);
        let kept = streams / 2;
        Self::run(Plan { kept, ..plan })
    }

    /// Like [`Self::start`], but the streams belong to no phase.
    pub fn start_outside_phases(address: SocketAddr, streams: usize, shape: Shape) -> Self {
        let plan = Plan::of(address, streams, shape);
        let phase = BETWEEN;
        Self::run(Plan { phase, ..plan })
    }

    /// Opens this number of streams once.
    pub fn once(address: SocketAddr, streams: usize, shape: Shape) -> Self {
        let plan = Plan::of(address, streams, shape);
        let once = true;
        Self::run(Plan { once, ..plan })
    }

    fn run(plan: Plan) -> Self {
        let state = Arc::new(State::default());
        state.phase.store(plan.phase, Ordering::SeqCst);
        state.stopped.store(plan.once, Ordering::Relaxed);
        let shared = state.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let mut clients = JoinSet::new();
                for index in 0..plan.streams {
                    clients.spawn(client(plan, index < plan.kept, shared.clone()));
                }
                clients.join_all().await.concat()
            })
        });
        Self {
            started: Instant::now(),
            state,
            thread,
        }
    }

    /// Restarts the clients with kept connections one by one, each at the end of its stream: their next streams use new connections.
    pub fn restart_kept(&self) {
        self.state.restarts.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of streams on a connection that had served another stream before.
    pub fn on_kept(&self) -> usize {
        self.state.on_kept.load(Ordering::SeqCst)
    }

    /// Streams that start from now on belong to this phase.
    pub fn enter_phase(&self, phase: usize) {
        self.state.begun.store(0, Ordering::SeqCst);
        self.state.phase.store(phase, Ordering::SeqCst);
    }

    /// Streams that start from now on belong to no phase. Waits until all streams of the phase have a response head.
    pub async fn leave_phase(&self) {
        self.enter_phase(BETWEEN);
        eventually("all have a response head", async || {
            self.state.pending.load(Ordering::SeqCst) == 0
        })
        .await;
    }

    /// Waits until this number of streams has started in this phase.
    pub async fn wait_for_started(&self, count: usize) {
        eventually("enough streams", async || {
            self.state.begun.load(Ordering::SeqCst) >= count
        })
        .await;
    }

    pub fn open(&self) -> usize {
        self.state.open.load(Ordering::Relaxed)
    }

    /// Starts no more streams, waits until the open ones have ended, and returns all streams.
    pub fn finish(self) -> Vec<FinishedStream> {
        self.state.stopped.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .expect("the load's thread does not panic")
    }
}

/// Runs one stream after another, at least one, and all on one connection if it `keeps` that.
async fn client(plan: Plan, keeps: bool, state: Arc<State>) -> Vec<FinishedStream> {
    let (mut ended, start) = (Vec::new(), Instant::now());
    let (mut connection, mut restarts) = (None, 0);
    loop {
        let restarted = state.restarts.load(Ordering::SeqCst);
        let kept = connection.take().filter(|_| restarted == restarts);
        restarts = restarted;
        state.pending.fetch_add(1, Ordering::SeqCst);
        let began = state.phase.load(Ordering::SeqCst);
        let mut pending = Some(Pending(state.clone()));
        if began == BETWEEN {
            pending = None;
        }
        state.begun.fetch_add(1, Ordering::SeqCst);
        state.open.fetch_add(1, Ordering::Relaxed);
        // In its own task, because a client that times out panics.
        let shared = state.clone();
        let running = tokio::spawn(stream(plan, kept, shared, move || drop(pending)));
        let outcome = match running.await {
            Ok(Ok((name, client))) => {
                connection = client.filter(|_| keeps);
                Ok(name)
            }
            Ok(Err(error)) => Err(error),
            Err(error) => Err(error.to_string()),
        };
        let at = start.elapsed().as_secs_f64();
        let outcome = outcome.map_err(|error| format!("{at:.1} s after the start: {error}"));
        state.open.fetch_sub(1, Ordering::Relaxed);
        ended.push((began, outcome));
        if state.stopped.load(Ordering::Relaxed) {
            return ended;
        }
    }
}

/// Counts a stream as pending until it is dropped.
struct Pending(Arc<State>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs one stream. Returns the generation that responded, and the connection if the server keeps it. Calls `decided` once the
/// response head has arrived.
///
/// # Errors
/// What was wrong with the stream.
async fn stream(
    plan: Plan,
    kept: Option<Client>,
    state: Arc<State>,
    decided: impl FnOnce(),
) -> Result<(String, Option<Client>), String> {
    let Shape { words, each_ms } = plan.shape;
    let prompt = format!("<<words={words} each_ms={each_ms}>>");
    let (mut client, head) = match on_kept(kept, &prompt).await {
        Some(begun) => {
            state.on_kept.fetch_add(1, Ordering::SeqCst);
            begun
        }
        None => {
            let connection = TcpStream::connect(plan.address).await;
            let connection = connection.map_err(|error| format!("no connection: {error}"))?;
            let mut client = Client::over(connection);
            CHAT.send(&mut client, &[], &prompt).await;
            let head = client.head().await;
            (client, head)
        }
    };
    decided();
    let response = client.rest(head).await;
    let generation = response.generation().to_owned();
    let answer = CHAT.text(&response);
    let right = ["old", "new", "newer"].into_iter().find(|name| {
        let words: Vec<_> = (0..words).map(|word| format!("{name}:{word}")).collect();
        answer == words.join(" ")
    });
    let complete = CHAT.is_complete(&response.text());
    let is_kept = response.header("connection") != Some("close");
    match (response.status, response.end, complete, right) {
        (200, End::Clean, true, Some(name)) => Ok((name.to_owned(), is_kept.then_some(client))),
        (status, end, complete, _) => Err(format!(
            "{status} of {generation}, {end:?}, complete: {complete}, text {answer:?}: {}",
            response.text()
        )),
    }
}

/// Sends a request on a kept connection and reads the head of its response. `None` if the server had closed the connection: like
/// other clients, this one then sends the request on a new connection.
async fn on_kept(kept: Option<Client>, prompt: &str) -> Option<(Client, Head)> {
    let mut client = kept?;
    CHAT.send(&mut client, &[], prompt).await;
    let head = within("a response head", client.try_head()).await.ok()?;
    Some((client, head))
}

/// Asserts that no stream failed. Otherwise, prints the number and the times of each kind of failure.
pub fn assert_none_failed(ended: &[FinishedStream]) {
    let failed = ended.iter().filter_map(|(phase, outcome)| {
        let (at, error) = outcome.as_ref().err()?.split_once(": ")?;
        Some((error, at, *phase))
    });
    let mut kinds: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for (error, at, phase) in failed {
        kinds.entry(error).or_default().push((at, phase));
    }
    let count: usize = kinds.values().map(Vec::len).sum();
    let lines = kinds.iter().take(20).map(|(error, all)| {
        let seconds = |at: &str| at.split(' ').next().and_then(|at| at.parse::<f64>().ok());
        let mut times: Vec<f64> = all.iter().filter_map(|(at, _)| seconds(at)).collect();
        times.sort_by(f64::total_cmp);
        let (phase, last) = (all[0].1, times.last());
        format!(
            "{} from {:?} to {last:?} s, one in phase {phase}: {error}",
            all.len(),
            times.first()
        )
    });
    let lines: Vec<_> = lines.collect();
    assert!(
        count == 0,
        "{count} of {} streams failed:\n{}",
        ended.len(),
        lines.join("\n")
    );
}

/// The number of completed streams of a phase, and how many of them new served.
pub fn share(ended: &[FinishedStream], phase: usize) -> (usize, usize) {
    share_of("new", ended, phase)
}

/// The number of completed streams of a phase, and how many of them this generation served.
pub fn share_of(generation: &str, ended: &[FinishedStream], phase: usize) -> (usize, usize) {
    let of_phase = ended.iter().filter(|(began, _)| *began == phase);
    let answers: Vec<_> = of_phase
        .filter_map(|(_, outcome)| outcome.as_ref().ok())
        .collect();
    let own = answers.iter().filter(|name| **name == generation).count();
    (answers.len(), own)
}
