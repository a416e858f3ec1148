//! A load of real streams: each is read to its end and compared to the byte with what its generation says.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::fixture::within_patience;
use crate::pair::Way;
use crate::rig::{Client, End, Family};

const CHAT: Way = Way {
    family: Family::Chat,
    stream: true,
};

/// What streams are like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub words: usize,
    pub each_ms: usize,
}

/// A stream that ended: in which phase of the test it began, and who answered, or what was wrong.
pub type Ended = (usize, Result<String, String>);

/// No phase in particular: while something changes.
pub const BETWEEN: usize = usize::MAX;

/// What a load and its thread share.
#[derive(Debug, Default)]
struct State {
    phase: AtomicUsize,
    stopped: AtomicBool,
    open: AtomicUsize,
    /// Streams of the phase so far.
    begun: AtomicUsize,
    /// Streams that began in a phase and have no head yet: it may still be open who answers them.
    undecided: AtomicUsize,
}

/// Streams on a thread of their own, so that nothing a test does holds them up.
pub struct Load {
    state: Arc<State>,
    thread: JoinHandle<Vec<Ended>>,
}

impl Load {
    /// So many streams at any time, until it is told to finish.
    pub fn start(address: SocketAddr, streams: usize, shape: Shape) -> Self {
        Self::run(address, streams, shape, false, 0)
    }

    /// The same, of no phase yet.
    pub fn aside(address: SocketAddr, streams: usize, shape: Shape) -> Self {
        Self::run(address, streams, shape, false, BETWEEN)
    }

    /// So many streams, once.
    pub fn once(address: SocketAddr, streams: usize, shape: Shape) -> Self {
        Self::run(address, streams, shape, true, 0)
    }

    fn run(address: SocketAddr, streams: usize, shape: Shape, once: bool, phase: usize) -> Self {
        let state = Arc::new(State::default());
        state.phase.store(phase, Ordering::SeqCst);
        state.stopped.store(once, Ordering::Relaxed);
        let shared = state.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let mut clients = JoinSet::new();
                for _ in 0..streams {
                    clients.spawn(client(address, shape, shared.clone()));
                }
                clients.join_all().await.concat()
            })
        });
        Self { state, thread }
    }

    /// Streams from now on belong to this phase.
    pub fn enter(&self, phase: usize) {
        self.state.begun.store(0, Ordering::SeqCst);
        self.state.phase.store(phase, Ordering::SeqCst);
    }

    /// Streams from now on belong to no phase; returns when those that did are all decided.
    pub async fn leave(&self) {
        self.enter(BETWEEN);
        within_patience("all are decided", async || {
            self.state.undecided.load(Ordering::SeqCst) == 0
        })
        .await;
    }

    /// Waits until so many streams have begun in this phase.
    pub async fn begun(&self, count: usize) {
        within_patience("enough streams", async || {
            self.state.begun.load(Ordering::SeqCst) >= count
        })
        .await;
    }

    pub fn open(&self) -> usize {
        self.state.open.load(Ordering::Relaxed)
    }

    /// Lets what runs come to its end; all that ended.
    pub fn finish(self) -> Vec<Ended> {
        self.state.stopped.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .expect("the load's thread does not panic")
    }
}

/// One stream after another, at least one.
async fn client(address: SocketAddr, shape: Shape, state: Arc<State>) -> Vec<Ended> {
    let (mut ended, start) = (Vec::new(), Instant::now());
    loop {
        state.undecided.fetch_add(1, Ordering::SeqCst);
        let began = state.phase.load(Ordering::SeqCst);
        let mut undecided = Some(Undecided(state.clone()));
        if began == BETWEEN {
            undecided = None;
        }
        state.begun.fetch_add(1, Ordering::SeqCst);
        state.open.fetch_add(1, Ordering::Relaxed);
        // A task of its own, since a client that waits in vain panics.
        let outcome = tokio::spawn(stream(address, shape, move || drop(undecided))).await;
        let outcome = outcome.unwrap_or_else(|error| Err(error.to_string()));
        let at = start.elapsed().as_secs_f64();
        let outcome = outcome.map_err(|error| format!("{at:.1} s after the start: {error}"));
        state.open.fetch_sub(1, Ordering::Relaxed);
        ended.push((began, outcome));
        if state.stopped.load(Ordering::Relaxed) {
            return ended;
        }
    }
}

/// Counts for as long as it lives.
struct Undecided(Arc<State>);

impl Drop for Undecided {
    fn drop(&mut self) {
        self.0.undecided.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One stream: who answered it. `decided` is called once there is a head.
///
/// # Errors
/// What was wrong with it.
async fn stream(
    address: SocketAddr,
    shape: Shape,
    decided: impl FnOnce(),
) -> Result<String, String> {
    let connection = TcpStream::connect(address).await;
    let mut client = Client::over(connection.map_err(|error| format!("no connection: {error}"))?);
    let Shape { words, each_ms } = shape;
    let prompt = format!("<<words={words} each_ms={each_ms}>>");
    CHAT.send(&mut client, &[], &prompt).await;
    let head = client.head().await;
    decided();
    let response = client.rest(head).await;
    let generation = response.generation().to_owned();
    let said = CHAT.said(&response);
    let right = ["old", "new", "newer"].into_iter().find(|name| {
        let words: Vec<_> = (0..words).map(|word| format!("{name}:{word}")).collect();
        said == words.join(" ")
    });
    let complete = CHAT.is_complete(&response.text());
    match (response.status, response.end, complete, right) {
        (200, End::Clean, true, Some(name)) => Ok(name.to_owned()),
        (status, end, complete, _) => Err(format!(
            "{status} of {generation}, {end:?}, complete: {complete}, said {said:?}: {}",
            response.text()
        )),
    }
}

/// Asserts that none failed; if some did, says of each kind of failure how many there were, and the first and the last.
pub fn assert_all_well(ended: &[Ended]) {
    let failed = ended.iter().filter_map(|(phase, outcome)| {
        let (at, error) = outcome.as_ref().err()?.split_once(": ")?;
        Some((error, at, *phase))
    });
    let mut kinds: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for (error, at, phase) in failed {
        kinds.entry(error).or_default().push((at, phase));
    }
    let count: usize = kinds.values().map(Vec::len).sum();
    let told = kinds.iter().take(20).map(|(error, all)| {
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
    let told: Vec<_> = told.collect();
    assert!(
        count == 0,
        "{count} of {} streams failed:\n{}",
        ended.len(),
        told.join("\n")
    );
}

/// Of a phase: all streams, and those that new answered.
pub fn share(ended: &[Ended], phase: usize) -> (usize, usize) {
    share_of("new", ended, phase)
}

/// Of a phase: all streams, and those that the generation of this name answered.
pub fn share_of(generation: &str, ended: &[Ended], phase: usize) -> (usize, usize) {
    let of_phase = ended.iter().filter(|(began, _)| *began == phase);
    let answers: Vec<_> = of_phase
        .filter_map(|(_, outcome)| outcome.as_ref().ok())
        .collect();
    let own = answers.iter().filter(|name| **name == generation).count();
    (answers.len(), own)
}
