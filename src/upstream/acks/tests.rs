//! What makes a stream ask for delayed acknowledgements, by script; and what real servers with and without Nagle do then.

use std::cell::Cell;
use std::io::Write;
use std::net::{TcpListener, TcpStream as Blocking};
use std::thread;
use std::time::Instant;

use tokio::io::AsyncReadExt;

use super::*;

const TOKEN: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(80);
const BURST: Duration = Duration::from_micros(50);

/// A socket of which the test says what its kernel did.
#[derive(Default)]
struct Scripted {
    asked: Cell<u32>,
    sent: Cell<u32>,
    fell_back: Cell<bool>,
    cannot: bool,
}

impl Socket for Scripted {
    fn delay(&self) -> io::Result<()> {
        self.asked.set(self.asked.get() + 1);
        if self.cannot {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(())
    }

    fn delays(&self) -> io::Result<bool> {
        Ok(!self.fell_back.get())
    }

    fn segments_sent(&self) -> io::Result<u32> {
        Ok(self.sent.get())
    }
}

fn after(gaps: &[Duration], socket: &Scripted, patience: &Patience) -> Acks {
    let mut acks = Acks::default();
    for gap in gaps {
        acks.read(*gap, socket, patience);
    }
    acks
}

#[test]
fn three_slices_in_quick_succession_prove_a_server_that_does_not_wait() {
    let (socket, patience) = (Scripted::default(), Patience::default());
    assert_eq!(after(&[TOKEN; 3], &socket, &patience), Acks::Delayed);
    assert_eq!(socket.asked.get(), 1);
}

#[test]
fn slow_and_crowded_streams_are_left_alone() {
    let (socket, patience) = (Scripted::default(), Patience::default());
    assert_eq!(after(&[PAUSE; 9], &socket, &patience), Acks::Prompt);
    assert_eq!(after(&[BURST; 9], &socket, &patience), Acks::Prompt);
    assert_eq!(socket.asked.get(), 0);
}

#[test]
fn after_a_pause_it_is_asked_for_again_once() {
    let (socket, patience) = (Scripted::default(), Patience::default());
    let mut gaps = vec![TOKEN; 3];
    gaps.extend([PAUSE; 4]);
    assert_eq!(after(&gaps, &socket, &patience), Acks::Lapsed);
    assert_eq!(socket.asked.get(), 1, "nobody asks while it is slow");
    gaps.extend([TOKEN; 4]);
    let again = Scripted::default();
    assert_eq!(after(&gaps, &again, &patience), Acks::Delayed);
    assert_eq!(again.asked.get(), 2);
}

#[test]
fn what_proves_nothing_ends_it_for_the_stream() {
    let patience = Patience::default();
    let late = Scripted {
        fell_back: true.into(),
        ..Scripted::default()
    };
    assert_eq!(after(&[TOKEN; 5], &late, &patience), Acks::Never);
    let cannot = Scripted {
        cannot: true,
        ..Scripted::default()
    };
    assert_eq!(after(&[TOKEN; 5], &cannot, &patience), Acks::Never);
    let acknowledged = Scripted::default();
    let mut acks = after(&[TOKEN], &acknowledged, &patience);
    acknowledged.sent.set(1);
    acks.read(TOKEN, &acknowledged, &patience);
    assert_eq!(acks, Acks::Never);
}

#[test]
fn an_endpoint_is_tried_a_few_times_unless_it_works() {
    let (socket, patience) = (Scripted::default(), Patience::default());
    for _ in 0..TRIES {
        assert_ne!(after(&[TOKEN], &socket, &patience), Acks::Prompt);
    }
    assert_eq!(after(&[TOKEN; 9], &socket, &patience), Acks::Prompt);
    patience.found_unneeded();
    assert_eq!(after(&[TOKEN; 9], &socket, &patience), Acks::Delayed);
}

/// A server that sends a token each 10 ms, and one connection to it.
async fn connection(nodelay: bool) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut client, _): (Blocking, _) = listener.accept().unwrap();
        client.set_nodelay(nodelay).unwrap();
        while client.write_all(&[b'x'; 250]).is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    TcpStream::connect(address).await.unwrap()
}

/// Reads `slices` from it. Answers what came of it, and how many segments were sent for the last half of them.
async fn read(stream: &mut TcpStream, slices: u32, patience: &Patience) -> (Acks, u32) {
    let (mut acks, mut last, mut half) = (Acks::default(), Instant::now(), 0);
    let mut buffer = [0; 4096];
    for slice in 0..slices {
        assert_ne!(stream.read(&mut buffer).await.unwrap(), 0);
        let now = Instant::now();
        acks.read(now - last, stream, patience);
        last = now;
        if slice == slices / 2 {
            half = stream.segments_sent().unwrap();
        }
    }
    (acks, stream.segments_sent().unwrap() - half)
}

#[tokio::test]
async fn a_server_without_nagle_gets_half_the_acknowledgements() {
    let patience = Patience::default();
    patience.found_unneeded();
    // A busy machine may spoil a try by a long gap.
    for _ in 0..20 {
        let mut stream = connection(true).await;
        let (acks, sent) = read(&mut stream, 60, &patience).await;
        if acks == Acks::Delayed && sent <= 20 {
            return;
        }
        eprintln!("{acks:?} after {sent} segments");
    }
    panic!("no try came to it");
}

#[tokio::test]
async fn a_server_with_nagle_is_recognized() {
    let patience = Patience::default();
    patience.found_unneeded();
    for _ in 0..5 {
        let mut stream = connection(false).await;
        let (acks, _) = read(&mut stream, 20, &patience).await;
        assert!(!matches!(acks, Acks::Delayed | Acks::Lapsed), "{acks:?}");
    }
}
