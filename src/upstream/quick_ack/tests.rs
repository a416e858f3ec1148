//! When a stream tries delayed acknowledgements, with a scripted socket; and the results with real servers with and without
//! Nagle's algorithm.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream as Blocking};
use std::thread;
use std::time::Instant;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;

const TOKEN: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(80);
const BURST: Duration = Duration::from_micros(50);
/// The state of a stream that is ready for a test.
const PROMPT: QuickAck = QuickAck::Prompt(SETTLED);
const REQUEST: &[u8] = b"GET";

/// A socket with a scripted kernel state. Its largest segment so far is 536 bytes.
struct Scripted {
    requests: Cell<u32>,
    counts: Cell<Counts>,
    tired: Cell<bool>,
}

impl Scripted {
    fn new() -> Self {
        Self {
            requests: Cell::new(0),
            counts: Cell::new(Counts {
                sent: 7,
                data_sent: 1,
                received: 1000,
                largest: 536,
            }),
            tired: Cell::new(false),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// A slice arrives and is read.
    fn comes(&self, acks: &mut QuickAck, gap: Duration, delay_tests: &DelayTests) {
        self.change(|counts| counts.received += 250);
        acks.read(gap, self, delay_tests);
    }

    fn after(&self, gaps: &[Duration], delay_tests: &DelayTests) -> QuickAck {
        let mut acks = PROMPT;
        for gap in gaps {
            self.comes(&mut acks, *gap, delay_tests);
        }
        acks
    }
}

impl Socket for Scripted {
    fn delay(&self) -> io::Result<()> {
        self.requests.set(self.requests.get() + 1);
        Ok(())
    }

    fn delays(&self) -> io::Result<bool> {
        Ok(!self.tired.get())
    }

    fn counts(&self) -> io::Result<Counts> {
        match self.counts.get() {
            counts if counts.data_sent == 0 => Err(io::ErrorKind::Unsupported.into()),
            counts => Ok(counts),
        }
    }
}

#[test]
fn two_slices_after_asking_prove_a_server_that_does_not_wait() {
    let (socket, delay_tests) = (Scripted::new(), DelayTests::default());
    assert_eq!(socket.after(&[TOKEN; 3], &delay_tests), QuickAck::Delayed);
    assert_eq!(socket.requests.get(), 1);
}

#[test]
fn a_short_stream_never_requests_acks() {
    let (socket, delay_tests) = (Scripted::new(), DelayTests::default());
    let mut acks = QuickAck::default();
    for _ in 0..SETTLED {
        for gap in [PAUSE, BURST, TOKEN] {
            socket.comes(&mut acks, gap, &delay_tests);
        }
    }
    assert_eq!((acks, socket.requests.get()), (PROMPT, 0));
    socket.comes(&mut acks, TOKEN, &delay_tests);
    assert_eq!(socket.requests.get(), 1);
}

#[test]
fn slow_and_crowded_streams_are_left_alone() {
    let (socket, delay_tests) = (Scripted::new(), DelayTests::default());
    assert_eq!(socket.after(&[PAUSE; 9], &delay_tests), PROMPT);
    assert_eq!(socket.after(&[BURST; 9], &delay_tests), PROMPT);
    assert_eq!(socket.requests.get(), 0);
}

#[test]
fn after_a_pause_that_was_too_long_it_is_proven_again() {
    let (socket, delay_tests) = (Scripted::new(), DelayTests::default());
    let mut acks = socket.after(&[TOKEN; 3], &delay_tests);
    socket.comes(&mut acks, PAUSE, &delay_tests);
    assert_eq!(acks, QuickAck::Delayed, "nothing was owed in the pause");
    socket.tired.set(true);
    socket.comes(&mut acks, PAUSE, &delay_tests);
    socket.comes(&mut acks, PAUSE, &delay_tests);
    assert_eq!(acks, QuickAck::Lapsed);
    assert_eq!(socket.requests.get(), 1, "nobody asks while it is slow");
    socket.tired.set(false);
    for _ in 0..3 {
        socket.comes(&mut acks, TOKEN, &delay_tests);
    }
    assert_eq!((acks, socket.requests.get()), (QuickAck::Delayed, 2));
}

#[test]
fn a_slice_that_arrived_earlier_proves_nothing() {
    let (socket, delay_tests) = (Scripted::new(), DelayTests::default());
    let mut acks = socket.after(&[TOKEN], &delay_tests);
    let prompt = acks;
    acks.read(TOKEN, &socket, &delay_tests);
    assert_eq!(acks, prompt);
    socket.comes(&mut acks, TOKEN, &delay_tests);
    let owed = acks;
    acks.read(TOKEN, &socket, &delay_tests);
    assert_eq!(acks, owed);
    socket.comes(&mut acks, TOKEN, &delay_tests);
    assert_eq!(acks, QuickAck::Delayed);
}

/// The state after an event that follows `slices` others, with `happened` applied before it.
fn when(slices: usize, happened: impl FnOnce(&Scripted)) -> QuickAck {
    let (socket, delay_tests) = (Scripted::new(), DelayTests::default());
    let mut acks = socket.after(&vec![TOKEN; slices], &delay_tests);
    happened(&socket);
    socket.comes(&mut acks, TOKEN, &delay_tests);
    acks
}

#[test]
fn an_inconclusive_test_ends_testing_for_the_stream() {
    let full = |socket: &Scripted| socket.change(|counts| counts.received += 400);
    assert_eq!(
        when(1, full),
        QuickAck::Never,
        "a full segment is not held back"
    );
    assert_eq!(
        when(2, full),
        QuickAck::Never,
        "a full segment is not held back"
    );
    let paid = |socket: &Scripted| socket.change(|counts| counts.sent += 1);
    assert_eq!(
        when(1, paid),
        QuickAck::Never,
        "it was acknowledged immediately"
    );
    let upload = |socket: &Scripted| socket.change(|counts| counts.data_sent += 1);
    assert_eq!(
        when(2, upload),
        QuickAck::Never,
        "data of ours acknowledged it"
    );
    let tired = |socket: &Scripted| socket.tired.set(true);
    assert_eq!(
        when(2, tired),
        QuickAck::Never,
        "the server may have waited"
    );
    let uncounted = |socket: &Scripted| socket.change(|counts| counts.data_sent = 0);
    assert_eq!(when(0, uncounted), QuickAck::Never, "it cannot be told");
}

#[test]
fn an_endpoint_is_tried_a_few_times_without_success_and_no_more() {
    let delay_tests = DelayTests::default();
    for _ in 0..MAX_DELAY_TESTS {
        assert_ne!(Scripted::new().after(&[TOKEN], &delay_tests), PROMPT);
    }
    assert_eq!(Scripted::new().after(&[TOKEN; 9], &delay_tests), PROMPT);
    delay_tests.succeeded();
    for _ in 0..2 * MAX_DELAY_TESTS {
        assert_ne!(Scripted::new().after(&[TOKEN], &delay_tests), PROMPT);
    }
}

#[test]
fn a_stream_that_ends_before_it_could_report_costs_no_trial() {
    let delay_tests = DelayTests::default();
    for slices in [1, 2].repeat(usize::from(MAX_DELAY_TESTS)) {
        let socket = Scripted::new();
        let mut acks = socket.after(&vec![TOKEN; slices], &delay_tests);
        assert_ne!(acks, PROMPT, "it was let ask");
        acks.ended(&socket, &delay_tests);
    }
    let socket = Scripted::new();
    let mut acks = socket.after(&[TOKEN; 3], &delay_tests);
    acks.ended(&socket, &delay_tests);
    assert_eq!(acks, QuickAck::Delayed, "it could tell");
}

/// How a server writes an event.
#[derive(Clone, Copy, Debug)]
enum Writes {
    One,
    Two,
    /// Every other event is longer than a segment.
    Long,
    /// Like `One`, but the connection ends with the fourth event.
    Four,
}

/// A server that sends a token every 10 ms, and a connection to it over which a request was sent.
async fn connection(nodelay: bool, writes: Writes) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut client, _): (Blocking, _) = listener.accept().unwrap();
        client.set_nodelay(nodelay).unwrap();
        // With unread data its close would be a reset.
        client.read_exact(&mut [0; REQUEST.len()]).unwrap();
        let (token, long) = ([b'x'; 250], [b'x'; 800]);
        let (first, second) = token.split_at(200);
        let pieces: [&[u8]; 4] = match writes {
            Writes::One | Writes::Four => [&token, b"", &token, b""],
            Writes::Two => [first, second, first, second],
            Writes::Long => [&token, b"", &long, b""],
        };
        let mut left = match writes {
            Writes::Four => 4,
            _ => usize::MAX,
        };
        for event in pieces.chunks(2).cycle() {
            left -= 1;
            if !event.iter().all(|piece| client.write_all(piece).is_ok()) || left == 0 {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    });
    let socket = TcpSocket::new_v4().unwrap();
    if matches!(writes, Writes::Long) {
        SockRef::from(&socket).set_tcp_mss(536).unwrap();
    }
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    stream
}

/// Reads `slices` from the stream. Returns the final state, and how many segments were sent during the second half.
async fn read(stream: &mut TcpStream, slices: u32, delay_tests: &DelayTests) -> (QuickAck, u32) {
    let (mut acks, mut last, mut half) = (PROMPT, Instant::now(), 0);
    for slice in 0..slices {
        assert!(read_one(stream, &mut acks, &mut last, delay_tests).await);
        if slice == slices / 2 {
            half = stream.counts().unwrap().sent;
        }
    }
    (acks, stream.counts().unwrap().sent - half)
}

/// Reads one slice. Returns false if the server has closed the connection instead.
async fn read_one(
    stream: &mut TcpStream,
    acks: &mut QuickAck,
    last: &mut Instant,
    delay_tests: &DelayTests,
) -> bool {
    let length = stream.read(&mut [0; 4096]).await.unwrap();
    if length > 0 {
        let now = Instant::now();
        acks.read(now - *last, stream, delay_tests);
        *last = now;
    }
    length > 0
}

#[tokio::test]
async fn a_server_without_nagle_gets_half_the_acknowledgements() {
    // On a busy machine a long gap may spoil an attempt.
    for _ in 0..20 {
        let mut stream = connection(true, Writes::One).await;
        let (acks, sent) = read(&mut stream, 60, &DelayTests::default()).await;
        if acks == QuickAck::Delayed && sent <= 20 {
            return;
        }
        eprintln!("{acks:?} after {sent} segments");
    }
    panic!("no try came to it");
}

#[tokio::test]
async fn a_server_with_nagle_is_recognized() {
    for writes in [Writes::One, Writes::Two, Writes::Long] {
        let mut recognized = 0;
        for _ in 0..5 {
            let mut stream = connection(false, writes).await;
            let (acks, _) = read(&mut stream, 20, &DelayTests::default()).await;
            assert!(
                !matches!(acks, QuickAck::Delayed | QuickAck::Lapsed),
                "{writes:?}: {acks:?}"
            );
            recognized += u32::from(acks == QuickAck::Never);
        }
        assert_ne!(recognized, 0, "{writes:?}");
    }
}

/// Its last event arrives together with the FIN, acknowledged or not.
#[tokio::test]
async fn a_server_with_nagle_is_not_mistaken_at_its_end() {
    let (mut tries, mut one_by_one) = (0, 0);
    while tries < 10 || one_by_one == 0 {
        tries += 1;
        assert!(tries < 200, "no try came to it");
        let delay_tests = DelayTests::default();
        let mut stream = connection(false, Writes::Four).await;
        let (mut acks, mut last, mut slices) = (PROMPT, Instant::now(), 0);
        while read_one(&mut stream, &mut acks, &mut last, &delay_tests).await {
            slices += 1;
        }
        assert_ne!(acks, QuickAck::Delayed);
        assert!(!delay_tests.succeeded.load(Ordering::Relaxed));
        // On a busy machine some events arrive together.
        one_by_one += u32::from(slices == 4);
    }
}

/// The last event of a short response arrives late and with the FIN, where it is not judged. Its test is not returned.
#[tokio::test]
async fn a_late_last_event_costs_a_trial() {
    // On a busy machine a long gap may spoil an attempt.
    for _ in 0..200 {
        let delay_tests = DelayTests::default();
        let mut stream = connection(false, Writes::One).await;
        let (mut acks, _) = read(&mut stream, 3, &delay_tests).await;
        if !matches!(acks, QuickAck::Owed(_)) {
            continue;
        }
        assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
        acks.ended(&stream, &delay_tests);
        assert_eq!(
            delay_tests.started.load(Ordering::Relaxed),
            1,
            "it had asked"
        );
        return;
    }
    panic!("no try came to it");
}

/// On a connection that was just used, the kernel delays acknowledgements by itself.
#[tokio::test]
async fn a_reused_connection_is_checked_the_same_way() {
    for _ in 0..20 {
        let mut stream = connection(true, Writes::One).await;
        stream.delay().unwrap();
        let (acks, sent) = read(&mut stream, 60, &DelayTests::default()).await;
        if acks == QuickAck::Delayed && sent <= 20 {
            return;
        }
        eprintln!("{acks:?} after {sent} segments");
    }
    panic!("no try came to it");
}
